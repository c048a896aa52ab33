# What this machine has and how busy it is: the part of the agent that measures.
#
# A driver in trouble can hold whoever asks it for ever, even against SIGKILL. So the measuring
# is done beside the agent's loop, and nobody waits for the process that asks the driver: only
# for its answer, or for DRIVER_PATIENCE seconds to be over.
#
# It goes out line by line as news, `fact` before each and `facts` after the last: a full disk
# does not matter. In RUN is only `stuck`: the process that the driver did not let go, and the
# kernel's start time of it.

DRIVER_PATIENCE=${DRIVER_PATIENCE:-10}
measuring='' measuring_born=''

# Whether a process is the one that was born then.
lives() { [ -n "$2" ] && find_born "$1" && [ "$born" = "$2" ]; }

# measure: look at this machine, unless that is being done.
measure() {
    lives "$measuring" "$measuring_born" && return
    (
        gather 9>&- | while read -r line; do tell - fact "$line"; done
        tell - facts
    ) </dev/null 8>&- &
    measuring=$!
    find_born "$measuring"
    measuring_born=$born
}

gather() {
    printf '%s\n' "boot $BOOT" "home $HOME" "connection $SSH_CONNECTION"
    # nproc knows which cores we may use, but would take OpenMP's word before the kernel's.
    echo "cores $(
        unset OMP_NUM_THREADS OMP_THREAD_LIMIT
        nproc || grep -c '^processor' /proc/cpuinfo
    )"
    for tool in bash rsync tar setsid nvidia-smi; do
        command -v "$tool" >/dev/null && echo "tool $tool"
    done
    grep -E '^(MemTotal|MemAvailable):' /proc/meminfo
    grep '^cpu ' /proc/stat
    echo "load $(cat /proc/loadavg)"
    echo "disk $(df -Pk "$HERE" | tail -n 1)"
    gpus
    echo end
}

# One row per GPU, one per process on it, and who these are.
gpus() {
    command -v nvidia-smi >/dev/null || return
    if read -r pid was <"$RUN/stuck" && lives "$pid" "$was"; then
        echo 'gpu-error the GPU driver has not answered'
        return
    fi
    asker='' seen=''
    {
        guard &
        guard=$!
        ask_driver &
        wait $guard || wait $! # so that nobody is left over, except for a stuck one
    } | while read -r word rest; do
        case $word in
            asker)
                asker=$rest
                continue
                ;;
            end)
                break
                ;;
            late)
                give_up
                break
                ;;
        esac
        printf '%s\n' "$word $rest"
        [ "$word" = app ] && rest=${rest#*,} && owner "${rest%%,*}"
    done
    rm -f "$RUN/driver.$$"
}

# `late`, in the end; a guard that is sent away takes its sleep along.
guard() {
    sleeper=
    trap 'kill $sleeper; wait $sleeper; exit 1' TERM
    sleep "$DRIVER_PATIENCE" &
    sleeper=$!
    wait $sleeper
    echo late
}

ask_driver() {
    read -r me rest <"/proc/self/stat"
    echo "asker $me"
    rows=$(query gpu=index,uuid,name,memory.total,memory.used,utilization.gpu,temperature.gpu,power.draw)
    printf '%s\n' "$rows" | sed 's/^/gpu /'
    # That nothing runs there and that nobody can say are two things.
    rows=$(query compute-apps=gpu_uuid,pid,used_memory) && echo apps &&
        printf '%s\n' "$rows" | sed 's/^/app /'
    kill "$guard"
    echo end
}

# Become nvidia-smi, on record by pid and start time.
query() {
    read -r me rest <"/proc/self/stat"
    find_born "$me"
    echo "$me $born" >"$RUN/driver.$$"
    exec nvidia-smi --format=csv,noheader,nounits "--query-$1"
}

# The asker first: let go, it would ask the next question. Then the one in the driver's hands,
# which may die now, in an hour or never.
give_up() {
    [ -n "$asker" ] && kill -9 "$asker"
    read -r pid was <"$RUN/driver.$$" && lives "$pid" "$was" && kill -9 "$pid" &&
        mv -f "$RUN/driver.$$" "$RUN/stuck"
    echo 'gpu-error the GPU driver has not answered'
}

# owner PID: its session, its user, its token or -, its command.
owner() {
    pid=${1# } name='' uid='' session=''
    case $pid in '' | *[!0-9]*) return ;; esac
    case " $seen " in *" $pid "*) return ;; esac
    seen="$seen $pid"
    if [ ! -d "/proc/$pid" ]; then
        # Where init is in sight everybody is: this one is dead and the driver slow to notice.
        [ -d /proc/1 ] || echo "owner $pid - - -"
        return
    fi
    while read -r key value rest; do
        case $key in
            Name:) name=$value ;;
            Uid:) uid=$value ;;
            NSsid:) session=$value ;;
        esac
    done <"/proc/$pid/status"
    find_user "$uid"
    token=$(tr '\000' '\n' <"/proc/$pid/environ" | sed -n '/^STOKER_TOKEN=/{s///p;q;}')
    command=$(dd bs=200 count=1 <"/proc/$pid/cmdline" | tr '\000\n\r\t' '    ')
    printf '%s\n' "owner $pid ${session:--} ${user:--} ${token:--} ${command:-[$name]}"
}

# A user's name, or the number where nobody knows it, in $user. Each is asked for once.
find_user() {
    user=$1
    case $1 in '' | *[!0-9]*) return ;; esac
    eval "user=\${user_$1}"
    [ -n "$user" ] && return
    user=$(getent passwd "$1" || grep "^[^:]*:[^:]*:$1:" /etc/passwd)
    user=${user%%:*}
    user=${user:-$1}
    eval "user_$1=\$user"
}
