# The part of the agent that measures its node: resources and load.
#
# A GPU driver in trouble can block every process that queries it for ever, even against SIGKILL.
# So the measurement runs beside the agent's loop, which never waits for the querying process, and
# the measurement waits for its output at most DRIVER_TIMEOUT seconds.
#
# The lines of a reading are notifications, `reading LINE`, with `reading-end` after the last, so
# that a full disk does not matter. RUN only has the file `stuck`: pid and start time of a process
# that the driver still blocks.

DRIVER_TIMEOUT=${DRIVER_TIMEOUT:-10}
measuring='' measuring_start=''

# is_alive PID START: whether the process with this start time lives.
is_alive() { [ -n "$2" ] && read_start_time "$1" && [ "$start_time" = "$2" ]; }

# measure: start a measurement, unless one is under way.
measure() {
    is_alive "$measuring" "$measuring_start" && return
    (
        print_reading 9>&- | while read -r line; do notify reading "$line"; done
        notify reading-end
    ) </dev/null 8>&- &
    measuring=$!
    read_start_time "$measuring"
    measuring_start=$start_time
}

print_reading() {
    printf '%s\n' "boot $BOOT" "home $HOME" "connection $SSH_CONNECTION"
    # nproc counts the cores that we may use, but OpenMP's variables would override it.
    echo "cores ${PILOT_CORES:-$(
        unset OMP_NUM_THREADS OMP_THREAD_LIMIT
        nproc || grep -c '^processor' /proc/cpuinfo
    )}"
    for tool in bash rsync tar setsid nvidia-smi; do
        command -v "$tool" >/dev/null && echo "tool $tool"
    done
    if [ "${PILOT_MEMORY:-0}" -gt 0 ]; then
        printf '%s\n' "MemTotal: $((PILOT_MEMORY * 1024))" "MemAvailable: $((PILOT_MEMORY * 1024))"
    else
        grep -E '^(MemTotal|MemAvailable):' /proc/meminfo
    fi
    if [ -z "${STOKER_PILOT-}" ]; then # an allocation is not shared, whatever the node's load is
        grep '^cpu ' /proc/stat
        echo "load $(cat /proc/loadavg)"
    fi
    echo "disk $(df -Pk "$BASE" | tail -n 1)"
    print_gpus
    echo end
}

# Print a row per GPU, one per process on it, and what these processes are.
print_gpus() {
    if ! command -v nvidia-smi >/dev/null; then
        [ -z "${STOKER_PILOT-}" ] || print_unlisted_gpus
        return
    fi
    if read -r pid recorded <"$RUN/stuck" && is_alive "$pid" "$recorded"; then
        echo 'gpu-error the GPU driver has not answered'
        return
    fi
    querier='' printed=''
    {
        run_timer &
        timer=$!
        query_driver &
        wait $timer || wait $! # no process remains, except a blocked one
    } | while read -r word rest; do
        case $word in
            querier)
                querier=$rest
                continue
                ;;
            end)
                break
                ;;
            late)
                kill_query
                break
                ;;
        esac
        printf '%s\n' "$word $rest"
        [ "$word" = app ] && rest=${rest#*,} && print_owner "${rest%%,*}"
    done
    rm -f "$RUN/driver.$$"
    print_xids
}

# Print `late` when the time is over; a timer that is ended ends its sleep, too.
run_timer() {
    sleeper=
    trap 'kill $sleeper; wait $sleeper; exit 1' TERM
    sleep "$DRIVER_TIMEOUT" &
    sleeper=$!
    wait $sleeper
    echo late
}

query_driver() {
    read -r me rest <"/proc/self/stat"
    echo "querier $me"
    use=name,memory.total,memory.used,utilization.gpu,temperature.gpu,power.draw
    errors=ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.hw_thermal_slowdown
    # A driver that does not know one of these fields prints nothing else.
    key=gpu-health rows=$(query "gpu=index,uuid,pci.bus_id,$errors,$use") ||
        { key=gpu rows=$(query "gpu=index,uuid,$use"); }
    select_gpus "$rows" | sed "s/^/$key /"
    # `apps` tells a GPU without processes from a driver that cannot list them.
    rows=$(query compute-apps=gpu_uuid,pid,used_memory) && echo apps &&
        printf '%s\n' "$rows" | sed 's/^/app /'
    kill "$timer"
    echo end
}

# Print the faults of GPUs in the last day, if this user may read the kernel's log.
print_xids() {
    read -r now rest <"/proc/uptime"
    dmesg | sed -n 's/^.*\[ *\([0-9]*\)\.[0-9]*\] NVRM: Xid (PCI:\([0-9A-Fa-f:.]*\)): \([0-9]*\).*/\1 \2 \3/p' |
        tail -n 32 | while read -r at bus number; do
            [ $((${now%%.*} - at)) -lt 86400 ] && echo "xid $bus $number"
        done
}

# select_gpus ROWS: print the rows of this node, or of the allocation of a pilot. If the driver
# lists no more GPUs than were allocated, it lists these only, and counts from 0.
select_gpus() {
    allocated=$(split_gpus | wc -w) listed=$(printf '%s\n' "$1" | wc -l)
    if [ -z "${STOKER_PILOT-}" ] || [ "$listed" -le "$allocated" ]; then
        printf '%s\n' "$1"
        return
    fi
    printf '%s\n' "$1" | while IFS= read -r row; do
        case ",$PILOT_GPUS," in *",${row%%,*},"*) printf '%s\n' "$row" ;; esac
    done
}

split_gpus() { echo "${PILOT_GPUS-}" | tr ',' ' '; }

# Print the GPUs that were allocated, if no driver tells more about them. The device plugin of
# Kubernetes names them in a variable.
print_unlisted_gpus() {
    set -- $(echo "${NVIDIA_VISIBLE_DEVICES-}" | tr ',' ' ')
    for gpu in $(split_gpus); do
        uuid=$(uname -n)-$gpu
        case ${1-} in GPU-*) uuid=$1 ;; esac
        [ $# = 0 ] || shift
        echo "gpu $gpu, $uuid, ${PILOT_GPU_MODEL:-GPU}, ${PILOT_GPU_MEMORY:-N/A}, N/A, N/A, N/A, N/A"
    done
}

# Replace this process by nvidia-smi, after recording its pid and start time.
query() {
    read -r me rest <"/proc/self/stat"
    read_start_time "$me"
    echo "$me $start_time" >"$RUN/driver.$$"
    exec nvidia-smi --format=csv,noheader,nounits "--query-$1"
}

# Kill the querier first, or it would start the next query; then nvidia-smi, which the driver may
# block for an hour or for ever.
kill_query() {
    [ -n "$querier" ] && kill -9 "$querier"
    read -r pid recorded <"$RUN/driver.$$" && is_alive "$pid" "$recorded" && kill -9 "$pid" &&
        mv -f "$RUN/driver.$$" "$RUN/stuck"
    echo 'gpu-error the GPU driver has not answered'
}

# print_owner PID: print its session, user, token (or -) and command.
print_owner() {
    pid=${1# } name='' uid='' session=''
    case $pid in '' | *[!0-9]*) return ;; esac
    case " $printed " in *" $pid "*) return ;; esac
    printed="$printed $pid"
    if [ ! -d "/proc/$pid" ]; then
        # If init is visible, all processes are: this one is dead, and the driver's list is old.
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

# Set $user to the name of a user id, or to the number if it has none. Names are cached.
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
