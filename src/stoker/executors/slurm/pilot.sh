# The batch script of a pilot: an allocation in which the agent runs attempts.
#
# STOKER_PILOT is set in front of this text. The agents run here, in the batch step, because
# processes of a step that srun started end with that srun. A connection is a relay: srun starts it
# beside the batch step, it creates three named pipes in a directory of its own, writes the name of
# the directory to the pipe `connections`, and copies between the pipes and its srun.
umask 077
DIRECTORY=/tmp/$STOKER_PILOT # on the node: named pipes do not work across file servers
mkdir "$DIRECTORY" || exit 1
ticker=
trap '[ -z "$ticker" ] || kill "$ticker"; rm -rf "$DIRECTORY"' EXIT
find /tmp -maxdepth 1 -name 'stoker-*-*' -user "$(id -un)" -mtime +2 -exec rm -rf {} + 2>/dev/null

# print_processes: agents and attempts of this pilot.
print_processes() {
    grep -lszF "STOKER_PILOT=$STOKER_PILOT" /proc/[0-9]*/environ | sed 's|/proc/\([0-9]*\)/.*|\1|'
}

# kill_leftovers PID: kill the processes of this pilot when its batch script has ended.
kill_leftovers() {
    while kill -0 "$1"; do sleep 0.2; done
    pids=$(print_processes)
    [ -z "$pids" ] || kill -s KILL $pids
}

# The daemon needs the allocation no longer: nothing is to be read here any more.
release() {
    pids=$(print_processes)
    [ -z "$pids" ] || kill -s KILL $pids
    rm -rf "$HOME"/.stoker/run/*".$STOKER_PILOT"
    exit 0
}
trap release USR1

# Slurm sends TERM to all processes before it ends the allocation, or to this one only. Attempts
# that handle it continue until Slurm kills them; without any, the allocation ends at once. The
# relay is ended: a daemon whose connection is lost asks Slurm when the allocation ends now, connects
# again, and asks its training jobs to stop.
leave() {
    trap : TERM
    leaving=1
    if grep -qsF "$STOKER_PILOT" "/proc/${relay:-none}/cmdline"; then
        kill -- "-$relay" || kill "$relay"
    fi
    # Where Slurm finds processes by their parents, it would miss those that have lost them.
    (kill_leftovers "$$" </dev/null >/dev/null 2>&1 3<&- &)
    tick 0.2
}

# tick SECONDS: write an empty line to the pipe `connections` at this interval from now on.
tick() {
    [ -z "$ticker" ] || kill "$ticker"
    while sleep "$1"; do echo; done >&3 &
    ticker=$!
}
leaving= relay=
trap leave TERM

# What the allocation has: the agent would see the whole node otherwise.
PILOT_CORES=$SLURM_CPUS_ON_NODE
PILOT_MEMORY=${SLURM_MEM_PER_NODE:-$((${SLURM_MEM_PER_CPU:-0} * PILOT_CORES))}
PILOT_GPUS=${SLURM_JOB_GPUS:-${SLURM_STEP_GPUS:-${CUDA_VISIBLE_DEVICES-}}}
# Programs would take the variables of the allocation for their own.
for name in $(env | sed -n 's/^\(SLURM_[A-Z0-9_]*\|SLURMD_[A-Z0-9_]*\|CUDA_VISIBLE_DEVICES\|GPU_DEVICE_ORDINAL\|ROCR_VISIBLE_DEVICES\|ZE_AFFINITY_MASK\)=.*/\1/p'); do
    [ "$name" = SLURM_CONF ] || unset "$name"
done

# start_agent DIRECTORY: run the command of a connection. It does not come through the pipe: sh
# would also read some of what follows it.
start_agent() {
    exec 3<&-
    read -r command <"$1/command"
    export STOKER_PILOT PILOT_CORES PILOT_MEMORY PILOT_GPUS
    exec sh -c "$command" <"$1/in" >"$1/out" 2>"$1/err"
}

mkfifo "$DIRECTORY/connections" || exit 1
exec 3<>"$DIRECTORY/connections" # read and write: it never ends
tick 60
unused=0
while :; do
    connection=
    read -r connection <&3 # signals interrupt it
    case $connection in
        "$DIRECTORY"/relay.*)
            start_agent "$connection" &
            relay=${connection##*.}
            ;;
    esac
    touch "$DIRECTORY" # other pilots remove old directories
    unused=$((unused + 1))
    [ -z "$(print_processes)" ] || unused=0
    [ -z "$leaving" ] || [ $unused = 0 ] || exit 0
    # Without a daemon for half an hour, and without records that it would read.
    [ $unused -lt 30 ] || ls "$HOME"/.stoker/run/*".$STOKER_PILOT"/*.claim >/dev/null 2>&1 || release
done
