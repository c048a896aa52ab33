# The agent: a POSIX sh program for a node with nothing installed, sent over the connection.
#
# session.py is the other end. Requests arrive as lines of shell words on stdin; `$NL` in a word
# stands for a newline. Replies and notifications are short lines on fd 9 (stdout of the
# connection), each one write below PIPE_BUF, so that lines of several writers never mix. Bulk
# data goes to fd 8 (its stderr) in portions with their lengths in front, written by this process
# only. Every line begins with NONCE, which is new for each connection. Jobs inherit neither
# descriptor.
#
# Files of an attempt KEY (job.attempt):
#
#   KEY.claim     the first line decides which process runs the attempt: boot id, pid of its
#                 supervisor (a subshell of the agent) and start time of that; `taken`: none may
#   KEY.gate      the barrier, created once: `go` and the variables to export, or empty: cancelled
#   KEY.pid       the job's process and its start time
#   KEY.exit      how the attempt ended
#   KEY.begun     created by the job before its command runs; if the agent creates it, it never runs
#   KEY.mark      a resource limit that its processes inherit, by which they are found
#   KEY.out .err  its output
#   KEY.list      files that it wrote in its directory
#   KEY.reports   report and control files of the training library
#   KEY.port      a port that it reserved, for rank 0 to listen on
#   KEY.request   its start request, if another scheduler starts it
#   KEY.signals   signals that were requested for it in an allocation, a line each
#
# KEY.pid and KEY.exit are padded when they are created, so that a full disk cannot lose them.
# The agent of an earlier connection may still run: no two agents write to one file, except claims,
# barriers and files that are renamed when they are complete.
#
# NONCE, ROOT, INSTALL, RUN_NAME and BATCH are set in front of this text.
#
# Attempts that are handed over to another scheduler run on hosts that share this home directory.
# STOKER_HANDED_OVER is set for the agent of the connection, which only reads and writes their files;
# BATCH for the agent in the batch job of one attempt, with its start request as input: the id of
# that job.

exec 9>&1 8>&2 2>/dev/null
umask 077
set -f
NL='
'
PATH=$PATH:/usr/local/bin:/usr/bin:/bin
BASE=$HOME/$ROOT
RUN=$BASE/run/$RUN_NAME
mkdir -p "$RUN" "$BASE/trees" "$BASE/work" "$BASE/scripts"
# Prefix of the checkpoint directories of this installation; later attempts use them.
CHECKPOINTS=$BASE/checkpoints/$(printf %.8s "$INSTALL")
BOOT=$(cat /proc/sys/kernel/random/boot_id)
BOOT=${BOOT:-unknown}
SETSID=$(command -v setsid)
BASH_PATH=$(command -v bash)
SH_PATH=$(command -v sh)
ENV_PATH=$(command -v env)
# A shell starts background processes with INT and QUIT ignored; env restores the defaults.
RESET_SIGNALS=--default-signal=INT,QUIT
env $RESET_SIGNALS true || RESET_SIGNALS=
NEWER_TEST=-cnewer
find "$RUN" -prune $NEWER_TEST "$RUN" || NEWER_TEST=-newer
EMPTY_DIRS='-o -type d -empty ! -name .'
find "$RUN" -prune \( -type f $EMPTY_DIRS \) || EMPTY_DIRS=
PAD='                                                                '
# Marks of attempts begin here: see set_mark.
MARKS=$(printf '%s' "$INSTALL${STOKER_PILOT-}" | cksum)
MARKS=${MARKS%% *}
HANDED_OVER=${STOKER_HANDED_OVER-}
if [ -n "$BATCH" ]; then
    export STOKER_GPUS="${CUDA_VISIBLE_DEVICES-}"
    BATCH=${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID:-1}}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
    # A job would take these for those of an array of its own.
    unset SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_ARRAY_TASK_COUNT SLURM_ARRAY_TASK_MIN \
        SLURM_ARRAY_TASK_MAX SLURM_ARRAY_TASK_STEP
fi

reply() { printf '%s\n' "$NONCE $id $*" >&9; }
notify() { printf '%s\n' "$NONCE - $*" >&9; }

# read_start_time PID: set $start_time to the kernel's start time of a live process, else fail. A
# pid may be reused, so pid and start time identify a process. Zombies do not count.
read_start_time() {
    start_time=
    read -r line <"/proc/$1/stat" || return 1
    set -- ${line##*) }
    case $1 in [ZX]) return 1 ;; esac
    [ $# -ge 20 ] || return 1
    shift 19
    start_time=$1
}

# find_pids KEY: set $pids to the processes of an attempt: those with its token in the environment,
# in its session (some programs overwrite their environment), or with its mark, which every child
# inherits.
find_pids() {
    pids= leader= recorded= mark=
    read -r leader recorded <"$RUN/$1.pid"
    case $leader in *[!0-9]*) leader= ;; esac
    [ -n "$leader" ] && read_start_time "$leader" && [ "$start_time" != "${recorded%% *}" ] && leader=
    [ ! -e "$RUN/$1.mark" ] || read -r mark <"$RUN/$1.mark"
    set +f
    for process in $(
        grep -lszF "STOKER_TOKEN=$INSTALL.$1." /proc/[0-9]*/environ | select_pilot
        [ -z "$leader" ] || ! kill -0 "-$leader" || grep -lsE "\) [^ZX] [0-9]+ [0-9]+ $leader " /proc/[0-9]*/stat
        [ -z "$mark" ] || grep -lsE "^Max file locks +$mark " /proc/[0-9]*/limits
    ); do
        process=${process#/proc/}
        process=${process%/*}
        case " $pids " in *" $process "*) ;; *) pids="$pids $process" ;; esac
    done
    set -f
}

# Two parts of a job may be in two pilots on one host: pass on the processes of this one.
select_pilot() {
    if [ -z "${STOKER_PILOT-}" ]; then cat; return; fi
    while read -r process; do
        grep -qszF "STOKER_PILOT=$STOKER_PILOT" "$process" && echo "$process"
    done
}

# kill_all KEY: kill all processes of an attempt and set $pids to them. They are stopped first, so
# that none forks in between.
kill_all() {
    rounds=0 before=
    find_pids "$1"
    while [ "$pids" != "$before" ] && [ $rounds -lt 20 ]; do
        kill -s STOP $pids
        before=$pids rounds=$((rounds + 1))
        find_pids "$1"
    done
    [ -z "$pids" ] || kill -s KILL $pids
}

# Mark this process and all its children by a limit on file locks, which Linux does not enforce
# since version 2.4.25.
set_mark() {
    mark=$((1 << 60 | (MARKS + ${key%.*} * 1000003 + ${key#*.}) % (1 << 32)))
    ulimit -S -w $mark || ulimit -S -x $mark || return
    printf '%s\n' "$mark" >"$RUN/$key.mark"
}

# create_file PATH: create an empty file; fail if it exists.
create_file() {
    set -C
    command : >"$1"
    status=$?
    set +C
    return $status
}

# Some sleeps accept whole seconds only.
short_sleep() { sleep 0.05 || sleep 1; }

# start KEY DIRECTORY STDERR SHELL BARRIER RESULTS GRACE MASK COUNT NAME=VALUE... WORD...
#   DIRECTORY  `tree ID`, `empty`, or an existing directory
#   STDERR     `separate`, or `joined` with stdout
#   SHELL      `line`: the word is a line of shell; `argv`: the words are a command
#   BARRIER    seconds to wait at the barrier before the start is cancelled; 0: no barrier
#   RESULTS    what is fetched afterwards: `changed`, `named` or `nothing`
# The claim is created first, and the exit is recorded before it is reported, so that a later
# connection always finds one of the two.
start() {
    key=$1 directory=$2 stderr=$3 shell=$4 barrier=$5 results=$6 grace=$7 mask=$8 count=$9
    shift 9
    (
        trap '' HUP INT QUIT PIPE
        leaving= follower=
        [ -z "${STOKER_PILOT-}$BATCH" ] || trap leaving=1 TERM
        claim || exit
        if [ -n "$BATCH" ]; then
            follow_signals </dev/null &
            follower=$!
        fi
        work=$BASE/work/$INSTALL.$key code=
        prepare_directory || code="failed $why"
        [ -n "$code" ] || [ "$barrier" = 0 ] || wait_at_barrier || code="released"
        if [ -z "$code" ]; then
            run_job "$@"
        fi
        [ -z "$follower" ] || kill "$follower"
        [ -n "$code" ] || exit
        printf '%s\n' "$code" 1<>"$RUN/$key.exit"
        notify ${code%% *} "$key" ${code#* }
    ) &
}

# Only one agent can create the claim, but its content is written a moment later: another agent
# that finds it empty may also append a line. The first line counts.
claim() {
    [ -d "$RUN" ] || mkdir -p "$RUN"
    read_start_time self
    if ! create_file "$RUN/$key.claim" && [ -e "$RUN/$key.claim" ]; then
        notify late "$key"
        return 1
    fi
    if ! printf '%s\n' "$BOOT ${line%% *} $start_time" >>"$RUN/$key.claim" ||
        ! printf '%s\n' "none$PAD" >"$RUN/$key.pid" ||
        ! printf '%s\n' "none$PAD" >"$RUN/$key.exit"; then
        notify failed "$key" "no space left in $BASE"
        return 1
    fi
    read -r boot _ <"$RUN/$key.claim"
    [ "$boot" = "$BOOT" ]
}

# Send the signals that are written to KEY.signals. It is opened each time: only then does a network
# file system look for new lines.
follow_signals() {
    trap - TERM
    sent=0
    command : >>"$RUN/$key.signals"
    while sleep 0.5 || sleep 1; do
        at=0
        while read -r number how; do
            at=$((at + 1))
            [ $at -gt $sent ] || continue
            sent=$at
            signal "$number" "$key" "$how"
        done <"$RUN/$key.signals"
    done
}

# Set $work to the attempt's directory, with a copy of its tree.
prepare_directory() {
    case $directory in
        tree\ *)
            tree=$BASE/trees/${directory#tree }
            why="the job's files are no longer in $tree"
            [ -d "$tree" ] || return 1
            command : >"$tree.used"
            why="no space left for the job's files in $BASE"
            [ -d "$BASE/work" ] || mkdir -p "$BASE/work"
            [ ! -e "$work" ] || rm -rf "$work"
            cp -Rp "$tree" "$work"
            copied=$?
            # If the tree was removed during the copy, files may be missing.
            [ -d "$tree" ] || why="the job's files are no longer in $tree"
            [ -d "$tree" ] && [ $copied = 0 ] || return 1
            ;;
        empty)
            why="no space left in $BASE"
            mkdir -p "$work" || return 1
            ;;
        *)
            work=$directory
            why="the directory $work does not exist"
            [ -d "$work" ] || return 1
            results=nothing
            ;;
    esac
    case $results in
        changed)
            why="no space left in $BASE"
            command : >"$RUN/$key.stamp" || return 1
            # What the job writes must be newer than the stamp, also where `find` compares whole
            # seconds.
            if [ $NEWER_TEST = -cnewer ]; then
                sleep 0.01 || sleep 1
            else
                touch -d "@$(($(date +%s) - 1))" "$RUN/$key.stamp" || sleep 1
            fi
            ;;
    esac
    why=
}

# Report that this part is ready and wait for the others; fail if the start was cancelled.
wait_at_barrier() {
    find_port
    printf '%s\n' "$port" >"$RUN/$key.port"
    notify ready "$key" "$port"
    limit=$(($(date +%s) + barrier))
    until [ -e "$RUN/$key.gate" ]; do
        short_sleep
        [ "$(date +%s)" -lt $limit ] && continue
        create_file "$RUN/$key.gate"
    done
    word=
    read -r word <"$RUN/$key.gate"
    [ "$word" = go ]
}

# Set $port to a port that nothing listens on and that no other attempt has reserved.
find_port() {
    set +f
    used=$(
        cat "$RUN"/*.port
        cat /proc/net/tcp /proc/net/tcp6 | while read -r _ end _; do
            end=${end##*:}
            case $end in *[!0-9A-F]* | '') ;; *) printf '%d\n' "0x$end" ;; esac
        done
    )
    set -f
    used=" $(echo $used) " port=29500
    while case $used in *" $port "*) true ;; *) false ;; esac; do
        port=$((port + 1))
    done
}

run_job() {
    kills=$(count_oom_kills)
    (
        trap - HUP INT QUIT PIPE TERM
        # Container engines start processes that also serve other containers: no mark.
        case "$*" in *STOKER_CONTAINER=*) ;; *) set_mark ;; esac
        cd "$work" || exit 200
        exec 8>&- 9>&- >>"$RUN/$key.out" || exit 201
        if [ "$stderr" = joined ]; then exec 2>&1; else exec 2>>"$RUN/$key.err"; fi
        if [ "$barrier" != 0 ]; then
            while read -r word; do
                [ "$word" = go ] && continue
                set -- "$word" "$@"
                count=$((count + 1))
            done <"$RUN/$key.gate"
        fi
        umask "$mask"
        exec_job "$@"
    ) </dev/null &
    pid=$!
    read_start_time $pid
    printf '%s\n' "$pid $start_time${BATCH:+ ${SLURMD_NODENAME:-$(uname -n)} $BATCH ${SLURM_JOB_GPUS-}}" 1<>"$RUN/$key.pid"
    notify started "$key" "$pid"
    wait $pid
    code=$?
    case $code in 137 | 143) [ -n "$leaving" ] || await_leaving ;; esac
    if [ -n "$leaving" ]; then
        wait_again
        # Ended by the end of the allocation: without a record, it is lost.
        case $code in 137 | 143) code= && return ;; esac
    fi
    if [ ! -e "$RUN/$key.begun" ]; then
        code="failed $(start_failure)"
        return
    fi
    end_leftovers
    list_results
    find_checkpoints
    lacks=
    [ "$code" != 137 ] || [ "$(count_oom_kills)" = "$kills" ] || lacks=" memory"
    code="exited $code $written $leftovers$saved$lacks"
}

# Print how many processes of this node were killed because memory ran out, also that of a cgroup.
count_oom_kills() { grep '^oom_kill ' /proc/vmstat; }

# Slurm sends TERM to one process of an allocation after the other. If a job ends by a signal that
# was not requested here, wait some seconds whether this shell gets TERM, too.
await_leaving() {
    [ -n "${STOKER_PILOT-}$BATCH" ] && [ ! -s "$RUN/$key.signals" ] || return
    tries=60
    until [ -n "$leaving" ] || [ $tries = 0 ]; do
        tries=$((tries - 1))
        short_sleep
    done
}

# TERM, which Slurm sends to all processes of an allocation, interrupts `wait`.
wait_again() {
    while :; do
        wait $pid
        again=$?
        [ $again != 127 ] || return # there was no interruption: it has ended before
        code=$again
        read_start_time $pid || return # dash reports the status of an ended process every time
    done
}

# Set $saved if the job has checkpoints on this node.
find_checkpoints() {
    saved=
    # The library marks the directory for the newest attempt.
    [ -d "$CHECKPOINTS-${key%.*}" ] &&
        [ -n "$(ls -A "$CHECKPOINTS-${key%.*}" | grep -v '^\.stoker-attempts-')" ] && saved=" saved"
}

start_failure() {
    if [ $code = 200 ]; then
        echo "the directory $work cannot be entered"
    elif ! command : >"$RUN/$key.begun"; then
        echo "no space left in $BASE"
    elif [ -n "$BASH_PATH" ]; then
        echo "~/.bashrc ended the shell (code $code) before the job started; check its behaviour" \
            "in an interactive shell without a terminal: exit, exec or return there only if" \
            '$STOKER_JOB_ID is empty'
    else
        echo "the job could not be started (code $code)"
    fi
}

# Set $written: 0 no files, 1 some, 2 some that could not be listed.
list_results() {
    written=0
    case $results in
        named) written=1 ;;
        changed)
            written=2
            if cd "$work" && find . \( -type f -o -type l $EMPTY_DIRS \) $NEWER_TEST "$RUN/$key.stamp" \
                -print0 >"$RUN/$key.list.$$"; then
                written=0
                [ -s "$RUN/$key.list.$$" ] || return 0
                written=2
                mv "$RUN/$key.list.$$" "$RUN/$key.list" && written=1
            fi
            ;;
    esac
}

# end_unrecorded KEY RESULTS: end an attempt that has no exit record, and list what it wrote.
# Reply `busy` while one of its processes lives.
end_unrecorded() {
    key=$1 results=$2 work=$BASE/work/$INSTALL.$1 written=0
    kill_all "$key"
    if [ -n "$pids" ]; then
        short_sleep
        find_pids "$key"
    fi
    if [ -n "$pids" ]; then
        reply busy
        return
    fi
    [ -e "$RUN/$key.begun" ] && [ -d "$work" ] && written=$(list_results && echo "$written")
    find_checkpoints
    reply done "$written$saved"
}

# bash with ~/.bashrc, which only an interactive shell reads. Such a shell prints messages when it
# starts and when a job is killed, so that its output is discarded until the job's own begins; it
# ignores TERM without a trap; it prints `exit` unless a subshell exits; and ~/.bashrc may change
# the directory.
# Without this trap it would die of signals that are meant for the job's program.
TRAP_USR='trap : USR1 USR2'
# ~/.bashrc must not change which GPUs the job uses,
SET_GPUS='export CUDA_VISIBLE_DEVICES="$STOKER_GPUS" CUDA_DEVICE_ORDER=PCI_BUS_ID'
# nor hide the training library. With the SLURM_* variables of stoker, its tools are needed; in other
# batch jobs, the tools of Slurm are the real ones.
SET_LIBRARY='[ -z "${STOKER_LIBRARY-}" ] ||
export PYTHONPATH="$STOKER_LIBRARY${PYTHONPATH:+:$PYTHONPATH}"
[ -z "${STOKER_LIBRARY-}" ] || [ "${SLURM_CLUSTER_NAME-}" != stoker ] ||
export PATH="$STOKER_LIBRARY/stoker/executors/slurm_tools:$PATH"'
PREPARE="unset HISTFILE; $SET_GPUS; $SET_LIBRARY; trap 'exit 143' TERM; $TRAP_USR; builtin cd -- \"\$2\" || exit 200;
(set -C; : >\"\$1\") || exit 201; shift 2"
RESTORE_OUTPUT='exec >&6 2>&7 6>&- 7>&-'
BASH_RUN_LINE="$PREPARE; ($RESTORE_OUTPUT; $TRAP_USR; line=\$1; set --; eval \"\$line\")"
BASH_RUN_ARGV="$PREPARE; $RESTORE_OUTPUT; exec \"\$@\""

# exec_job NAME=VALUE... WORD...: replace this shell by the job; the first COUNT words are variables.
# Values may be secret, so they are on no command line. Names may be those of variables of this
# shell, so that after they are set only positional parameters are used.
exec_job() {
    # Variables of two jobs do not go together.
    case "$BATCH $*" in [0-9]*SLURM_CLUSTER_NAME=stoker*) unset_slurm_variables ;; esac
    quote_positions 1 "$count"
    values=${references:+export$references;}
    quote_positions $((count + 1)) $#
    set -- "$@" "$BASH_PATH" "$RUN/$key.begun" "$work"
    case $shell in line) set -- "$@" "$BASH_RUN_LINE" ;; argv) set -- "$@" "$BASH_RUN_ARGV" ;; esac
    start="exec $SETSID ${RESET_SIGNALS:+$ENV_PATH $RESET_SIGNALS}"
    case $BASH_PATH$shell in
        /*)
            start="$start \"\${$(($# - 3))}\" -ic \"\${$#}\" stoker"
            start="$start \"\${$(($# - 2))}\" \"\${$(($# - 1))}\" $references"
            ;;
        line) start="$SET_LIBRARY; $start $SH_PATH -c $references" ;;
        argv) start="$SET_LIBRARY; $start $SH_PATH -c 'exec \"\$@\"' stoker $references" ;;
    esac
    if [ -n "$BASH_PATH" ]; then
        exec 6>&1 7>&2 >/dev/null 2>&1
    else
        create_file "$RUN/$key.begun" || exit 201
    fi
    set +f
    eval "$values $start"
}

# Unset the variables that Slurm has set for a batch job, but for the GPUs, which it has chosen.
unset_slurm_variables() {
    for name in $(env | sed -n 's/^\(SLURM_[A-Z0-9_]*\)=.*/\1/p'); do
        case $name in SLURM_CONF | SLURM_JOB_GPUS | SLURM_GPUS_ON_NODE) ;; *) unset "$name" ;; esac
    done
}

# quote_positions FIRST LAST: set $references to these positional parameters, quoted for eval.
quote_positions() {
    references= at=$1
    while [ "$at" -le "$2" ]; do
        references="$references \"\${$at}\""
        at=$((at + 1))
    done
}

# End the processes that the job left behind, and set $leftovers to their number.
end_leftovers() {
    leftovers=0
    find_pids "$key"
    [ -n "$pids" ] || return
    leftovers=$(set -- $pids && echo $#)
    kill -s CONT $pids
    kill -s TERM $pids
    limit=$(($(date +%s) + grace))
    while [ -n "$pids" ]; do
        short_sleep
        [ "$(date +%s)" -lt $limit ] || kill_all "$key"
        find_pids "$key"
    done
}

# pass_barrier KEY NAME=VALUE...: all parts are ready. Fails if the start was cancelled.
pass_barrier() {
    key=$1
    shift
    set -C
    if (printf '%s\n' go "$@") >"$RUN/$key.gate.$$" && ln "$RUN/$key.gate.$$" "$RUN/$key.gate"; then
        reply done
    else
        reply failed
    fi
    set +C
    rm -f "$RUN/$key.gate.$$"
}

# cancel_start KEY: the attempt does not pass its barrier.
cancel_start() {
    create_file "$RUN/$1.gate"
    reply done
}

# poll KEY...: report the states of attempts. The claim of an attempt that has none is revoked, so
# that a start request that arrives later has no effect.
#
# Processes are checked before the exit record is read: the supervisor writes the record and then
# ends. In the opposite order, an attempt that ends in between would seem to have no record.
poll() {
    if [ -n "$HANDED_OVER" ]; then
        poll_records "$@"
        return
    fi
    for key in "$@"; do
        boot= state= word=
        [ -s "$RUN/$key.claim" ] || [ -s "$RUN/$key.exit" ] || printf 'taken\n' >>"$RUN/$key.claim"
        read -r boot supervisor supervisor_start <"$RUN/$key.claim"
        [ "$boot" != "$BOOT" ] || find_process_state
        read -r word rest <"$RUN/$key.exit"
        case $word in
            '' | n*) # `none`, or the beginning of it: see poll_records
                case $boot in
                    '') reply undecided "$key" ;; # the disk is full
                    taken) reply revoked "$key" ;;
                    "$BOOT")
                        [ "$state" != "gone $key" ] || revoke_unless_begun
                        reply "$state"
                        ;;
                    *) reply rebooted "$key" ;;
                esac
                ;;
            *) reply "$word" "$key" "$rest" ;;
        esac
    done
    reply done
}

# poll_records KEY...: report the states of attempts by their files alone; before an exit, the
# process that exited. After its pid: host, id of the batch job, GPUs. `waiting`: the batch job has
# not begun.
poll_records() {
    for key in "$@"; do
        boot= word= pid= where=
        read -r boot _ <"$RUN/$key.claim"
        read -r word rest <"$RUN/$key.exit" # the process is recorded before its exit
        read -r pid _ where <"$RUN/$key.pid"
        [ "$word" != exited ] || reply started "$key" "$pid" "$where"
        case $word in
            '' | n*)
                case $boot/$pid in
                    /*) reply waiting "$key" ;;
                    taken/*) reply revoked "$key" ;;
                    */ | */n*) reply busy "$key" ;;
                    *) reply running "$key" "$pid" "$where" ;;
                esac
                ;;
            *) reply "$word" "$key" "$rest" ;;
        esac
    done
    reply done
}

# revoke KEY: if the batch job of an attempt has not begun, let it have no effect; report the state.
revoke() {
    [ -s "$RUN/$1.claim" ] || printf 'taken\n' >>"$RUN/$1.claim"
    poll_records "$1"
}

# Set $state from the attempt's processes. `busy`: its supervisor lives, and its process has not
# started yet or has ended. `gone`: neither lives.
find_process_state() {
    state="gone $key" pid=none port=
    read_start_time "$supervisor" && [ "$start_time" = "$supervisor_start" ] && state="busy $key"
    read -r pid recorded <"$RUN/$key.pid"
    if [ "$pid" != none ]; then
        read_start_time "$pid" && [ "$start_time" = "${recorded%% *}" ] && state="running $key $pid"
    elif [ "$state" = "busy $key" ] && [ -e "$RUN/$key.port" ]; then
        read -r port <"$RUN/$key.port"
        [ -z "$port" ] || [ -e "$RUN/$key.gate" ] || state="ready $key $port"
    fi
}

# `not-begun`: the job's command has not run and never will. Its first process may be about to
# begin: either it or the agent creates KEY.begun, and the other one gives up.
revoke_unless_begun() {
    find_pids "$key"
    [ -z "$pids" ] || return
    if create_file "$RUN/$key.begun"; then
        printf 'taken\n' >"$RUN/$key.claim.$$" && mv -f "$RUN/$key.claim.$$" "$RUN/$key.claim"
        state="not-begun $key"
    elif [ ! -e "$RUN/$key.begun" ]; then
        state="undecided $key"
    fi
}

# list_attempts: the attempts that have a claim on this node.
list_attempts() {
    set +f
    for claim in "$RUN"/*.claim; do
        [ -s "$claim" ] || continue
        claim=${claim##*/}
        reply attempt "${claim%.claim}"
    done
    set -f
    reply done
}

# signal NUMBER KEY [only-if-handled]: signal all processes of an attempt. A signal for a program would only
# kill the shells around it, so it goes to the processes that handle it, if there are any; with
# `only-if-handled` to no others. In a container, its first process forwards what can be forwarded.
signal() {
    [ -z "$HANDED_OVER${STOKER_PILOT-}" ] || printf '%s\n' "$1 $3" >>"$RUN/$2.signals"
    if [ -n "$HANDED_OVER" ]; then
        reply done
        return
    fi
    if [ "$1" = 9 ]; then
        kill_all "$2"
        reply done $pids
        return
    fi
    find_pids "$2"
    case $1 in 18 | 19) ;; *) is_in_container && { handles "$leader" "$1" && pids=$leader || pids=; } ;; esac
    case $1 in
        1 | 2 | 3 | 15 | 18 | 19) ;; # HUP INT QUIT TERM CONT STOP
        *)
            handling=
            for pid in $pids; do handles "$pid" "$1" && handling="$handling $pid"; done
            [ -n "$handling" ] || [ "$3" != only-if-handled ] || pids=
            pids=${handling:-$pids}
            ;;
    esac
    [ -z "$pids" ] || kill "-$1" $pids
    reply done $pids
}

is_in_container() {
    [ -n "$leader" ] && grep -qszF STOKER_CONTAINER= "/proc/$leader/environ"
}

handles() {
    while read -r word mask; do
        [ "$word" = SigCgt: ] && return $((1 - (0x$mask >> ($2 - 1) & 1)))
    done <"/proc/$1/status"
    return 1
}

# write_file NAME TEXT: write an executable file below BASE, all of it or nothing.
write_file() {
    new=$BASE/$1.$$
    if printf '%s' "$2" >"$new" && chmod 755 "$new" && mv -f "$new" "$BASE/$1"; then
        reply done
    else
        rm -f "$new"
        reply failed
    fi
}

# stop_on_warning KEY NUMBER HOW: in a batch job, when USR2 warns that it ends soon, ask the training
# library to stop at a checkpoint, and send this signal if there is one.
stop_on_warning() {
    stop_key=$1 stop_number=$2 stop_how=$3
    trap on_warning USR2
}
on_warning() {
    write_control "$stop_key" stop "Slurm ends its job soon"
    [ -z "$stop_number" ] || signal "$stop_number" "$stop_key" "$stop_how"
}

# write_control KEY NAME TEXT: write a control file for the training library.
write_control() {
    new=$RUN/$1.reports/$2.new
    if [ -e "$RUN/$1.claim" ] && mkdir -p "$RUN/$1.reports" &&
        printf '%s\n' "$3" >"$new" && mv -f "$new" "$RUN/$1.reports/$2"; then
        reply done
    else
        reply failed
    fi
}

# install_library ID: copy a tree to the libraries, which are never removed, since jobs import from
# them at any time. Readable for any user that a container runs as.
install_library() {
    new=$BASE/library/$1.$$
    [ -d "$BASE/library/$1" ] || {
        mkdir -p "$BASE/library" && cp -Rp "$BASE/trees/$1" "$new" && chmod -R a+rX "$new" &&
            mv "$new" "$BASE/library/$1"
    } || rm -rf "$new"
    if [ -d "$BASE/library/$1" ]; then reply done; else reply failed; fi
}

# make_checkpoint_dir NAME: create the directory of a job's checkpoints. Reply `ahead` if it is
# marked: its checkpoints could not be fetched and are newer than all copies.
make_checkpoint_dir() {
    if ! mkdir -p "$BASE/checkpoints/$1"; then
        reply failed
    elif [ -e "$BASE/checkpoints/$1.ahead" ]; then
        reply done ahead
    else
        reply done
    fi
}

# mark_ahead NAME, unmark_ahead NAME: set or remove that mark.
mark_ahead() {
    if command : >"$BASE/checkpoints/$1.ahead"; then reply done; else reply failed; fi
}
unmark_ahead() {
    rm -f "$BASE/checkpoints/$1.ahead"
    reply done
}

# ping: reply on both streams, after all earlier requests.
ping() {
    end_reply
    reply done
}

# has_tree ID: whether a tree is on this node; if not, an upload follows. Every tenth upload removes
# old trees.
has_tree() {
    if [ -d "$BASE/trees/$1" ]; then
        command : >"$BASE/trees/$1.used"
        reply done yes
        return
    fi
    reply done no
    uploads=$((uploads + 1))
    if [ $((uploads % 10)) = 0 ]; then
        remove_old_trees </dev/null >/dev/null 8>&- 9>&- &
    fi
}

# Keep the 20 trees that were used last for two weeks, the others for an hour. A tree is renamed
# before it is deleted: a tree under its own name is complete.
remove_old_trees() (
    trap '' HUP INT QUIT PIPE
    set +f
    cd "$BASE/trees" || exit
    for tree in *; do
        case $tree in
            *.old) rm -rf "$tree" ;;
            *.used | *.part) ;;
            *) [ -e "$tree.used" ] || [ ! -d "$tree" ] || : >"$tree.used" ;;
        esac
    done
    rank=0
    for tree in $(ls -t | grep '\.used$'); do
        rank=$((rank + 1)) age='-mtime +14'
        [ $rank -le 20 ] || age='-mmin +60'
        [ -n "$(find "$tree" -prune $age)" ] || continue
        tree=${tree%.used}
        rm -f "$tree.used"
        mv "$tree" "$tree.$$.old" && rm -rf "$tree.$$.old"
    done
)

# forget KEY...: delete all files of attempts with an acknowledged end.
forget() {
    reply done
    for key in "$@"; do
        shift
        set -- "$@" "$BASE/work/$INSTALL.$key"
        for suffix in claim gate pid exit begun mark stamp out err list list.$$ port reports request signals; do
            [ -e "$RUN/$key.$suffix" ] && set -- "$@" "$RUN/$key.$suffix"
        done
    done
    rm -rf "$@" &
}

# keep_results KEY: move results that could not be fetched to a directory that is never cleaned.
keep_results() {
    mkdir -p "$BASE/kept"
    mv "$BASE/work/$INSTALL.$1" "$BASE/kept/$INSTALL.$1"
    for suffix in out err; do ln "$RUN/$1.$suffix" "$BASE/kept/$INSTALL.$1.$suffix"; done
    reply done
}

# Bulk data: portions with their lengths in front, and length 0 at the end of a reply.
send_line() { printf '%s\n' "$NONCE $id $((${#1} + 1))" "$1" >&8; }
end_reply() { printf '%s\n' "$NONCE $id 0" >&8; }

# send_bytes FILE OFFSET SIZE: send exactly SIZE bytes, padded if the file is truncated meanwhile,
# since the length was already sent.
send_bytes() {
    [ "$3" -gt 0 ] || return
    printf '%s\n' "$NONCE $id $3" >&8
    {
        dd bs=65536 skip=$(($2 / 65536)) count=$((($2 % 65536 + $3) / 65536 + 1)) <"$1" |
            tail -c "+$(($2 % 65536 + 1))"
        cat /dev/zero
    } | head -c "$3" >&8
}

# Set $size to the size of a file.
read_size() {
    set -- $(ls -ln "$1")
    size=${5:-0}
}

# read_file NAME MAX: send a file in RUN, or nothing if it is larger than MAX bytes.
read_file() {
    read_size "$RUN/$1"
    [ "$size" -gt "$2" ] || send_bytes "$RUN/$1" 0 "$size"
    end_reply
}

# read_new MAX KEY OUT ERR REPORT ...: send what logs and reports contain beyond these offsets, at
# most MAX bytes in all. Reports are short and come first.
read_new() {
    budget=$1
    shift
    read_sizes "$@"
    while [ $# -gt 3 ]; do
        send_new "$1" report "$4"
        send_new "$1" out "$2"
        send_new "$1" err "$3"
        shift 4
    done
    end_reply
}

# Set $out_JOB_ATTEMPT, $err_JOB_ATTEMPT and $report_JOB_ATTEMPT to the sizes of these files.
read_sizes() {
    names=
    while [ $# -gt 3 ]; do
        for stream in out err report; do eval "${stream}_${1%.*}_${1#*.}="; done
        [ -s "$RUN/$1.out" ] || [ "$2" -gt 0 ] && names="$names $1.out"
        [ -s "$RUN/$1.err" ] || [ "$3" -gt 0 ] && names="$names $1.err"
        # The job can create any file there; the line of a symbolic link would end with its target.
        [ -f "$RUN/$1.reports/report" ] && [ ! -L "$RUN/$1.reports/report" ] &&
            names="$names $1.reports/report"
        shift 4
    done
    [ -n "$names" ] || return
    sizes=$(cd "$RUN" && ls -ln $names)
    while read -r _ _ _ _ size _ _ _ name; do
        key=${name%.*} stream=${name##*.}
        [ "$stream" = reports/report ] && stream=report
        [ -n "$key" ] && eval "${stream}_${key%.*}_${key#*.}=$size"
    done <<END
$sizes
END
}

send_new() {
    eval "size=\$$2_${1%.*}_${1#*.}"
    from=$3 file=$RUN/$1.$2
    [ "$2" = report ] && file=$RUN/$1.reports/report
    [ -n "$size" ] && [ "$budget" -gt 0 ] || return
    if [ "$size" -lt "$from" ]; then
        send_line "$1 cut-$2 0 0" # the job truncated it, as `>/dev/stdout` does
        from=0
    fi
    size=$((size - from))
    [ "$size" -le "$budget" ] || size=$budget
    budget=$((budget - size))
    [ "$size" = 0 ] || send_line "$1 $2 $from $size"
    send_bytes "$file" "$from" "$size"
}

# collect MAX KEY OUT ERR REPORT PATH...: send the rest of an attempt's logs and report, and a tar of
# these paths, or of what it wrote. The tar is empty if it exceeds MAX bytes, or if tar or the disk
# cannot make it: the results are then downloaded over a connection of their own.
collect() {
    max_bytes=$1 key=$2 budget=$1
    read_sizes "$2" "$3" "$4" "$5"
    send_new "$2" report "$5"
    send_new "$2" out "$3"
    send_new "$2" err "$4"
    shift 5
    if [ $# -gt 0 ] || [ -s "$RUN/$key.list" ]; then
        make_tar "$@"
        send_line "$key tar 0 $size"
        send_bytes "$RUN/part.$$" 0 "$size"
        rm -f "$RUN/part.$$"
    fi
    end_reply
}

# Write a tar to $RUN/part.$$ and set $size to its length: 0 if it is incomplete.
make_tar() {
    error=$({
        (cd "$BASE/work/$INSTALL.$key" && write_tar "$@" || echo tar >&3) |
            head -c $((max_bytes + 1)) >"$RUN/part.$$" || echo disk >&3
    } 3>&1)
    read_size "$RUN/part.$$"
    [ -z "$error" ] && [ "$size" -le "$max_bytes" ] || size=0
}

# Names are arguments, since not every tar reads a list. Only GNU tar unquotes backslashes.
write_tar() {
    plain=
    tar --no-unquote --version >/dev/null && plain=--no-unquote
    if [ $# -gt 0 ]; then
        for path in "$@"; do
            shift
            [ -e "$path" ] || [ -L "$path" ] && set -- "$@" "./$path"
        done
        tar $plain -cf - "$@"
    else
        xargs -0 tar $plain -cf - <"$RUN/$key.list"
    fi
}

# Remove old trees, revoked claims, checkpoints that no attempt uses, and files of dead agents.
uploads=0
[ -n "$BATCH" ] || (
    trap '' HUP INT QUIT PIPE
    remove_old_trees
    set +f
    for claim in "$RUN"/*.claim; do
        read -r word <"$claim" && [ "$word" = taken ] && [ -n "$(find "$claim" -mtime +1)" ] || continue
        claim=${claim%.claim}
        rm -rf "$BASE/work/$INSTALL.${claim##*/}" "$claim".*
    done
    for directory in "$CHECKPOINTS"-*; do
        [ -d "$directory" ] || continue
        set -- "$RUN/${directory##*-}".*.claim
        [ -e "$1" ] || [ -n "$(find "$directory" -mtime -30 | head -n 1)" ] || rm -rf "$directory" "$directory.ahead"
    done
    [ -z "${STOKER_PILOT-}" ] ||
        find "$BASE/run" -maxdepth 1 -name "$INSTALL.stoker-*" -mtime +30 -exec rm -rf {} +
    # Old ones only: the supervisor of an attempt lists its results although its agent has ended, and
    # agents on other hosts may share this directory.
    for file in "$RUN"/part.* "$RUN"/*.list.[0-9]* "$BASE"/scripts/*.[0-9]*; do
        [ ! -e "$file" ] || [ -z "$(find "$file" -mtime +1)" ] || rm -f "$file"
    done
) </dev/null >/dev/null 8>&- 9>&- &

notify hello "$BOOT"
while read -r line; do
    eval "set -- $line"
    id=$1 verb=$2
    shift 2
    "$verb" "$@"
done
if [ -n "$BATCH" ]; then
    trap : TERM # Slurm sends it to all processes; it interrupts `wait`
    until wait; do :; done
    exit 0
fi
# End the connection, although jobs may still have its descriptors open.
rm -f "$RUN/part.$$"
read -r name <"/proc/$PPID/comm"
case $name in sshd* | dropbear*) kill "$PPID" ;; esac
