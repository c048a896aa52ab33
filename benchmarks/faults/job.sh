#!/bin/sh
# One attempt of a campaign job. It leaves a record of its start and one of its end, and holds a
# lock on its job and on each of its GPUs for as long as any process of it lives.
# Arguments: directory of records, directory of device locks, number of the line, seconds, exit
# code, manner.
records=$1 devices=$2 line=$3 seconds=$4 code=$5 manner=${6:-plain}
attempt=$STOKER_JOB_ID.$STOKER_ATTEMPT

# Create a record exclusively: if it exists, this attempt has already been here.
record() {
    read -r at rest </proc/uptime
    set -C
    if ! { echo "$at $2" >"$records/$attempt.$1"; } 2>/dev/null; then
        echo "$at pid=$$ again: $1" >>"$records/$attempt.twice"
    fi
    set +C
}

# Lock a file through a descriptor that every child inherits.
lock() {
    eval "exec $1>>\"\$2\""
    flock --nonblock "$1"
}

violated() {
    read -r at rest </proc/uptime
    echo "$at pid=$$ $2" >>"$records/$attempt.$1"
}

record start "line=$line pid=$$ parent=$PPID gpus=$STOKER_GPUS count=$STOKER_GPU_COUNT"
lock 9 "$records/$STOKER_JOB_ID.alive" || violated twice "another attempt is alive"
descriptor=3
for gpu in $(echo "$STOKER_GPUS" | tr , ' '); do
    case $STOKER_GPU_COUNT in
    0.5)
        lock $descriptor "$devices/$gpu.a" || lock $descriptor "$devices/$gpu.b" ||
            violated overcommit "half of $gpu" ;;
    *)
        lock $descriptor "$devices/$gpu.a" && lock $((descriptor + 1)) "$devices/$gpu.b" ||
            violated overcommit "all of $gpu" ;;
    esac
    descriptor=$((descriptor + 2))
done

case $manner in
retry) # fail once
    set -- "$records/$STOKER_JOB_ID".*.end
    if [ -e "$1" ]; then code=0; fi ;;
saves) # stop when asked to, and go on in the next attempt
    trap 'record end code=75; exit 75' USR1 ;;
leaves) # a process that has to be ended with the job
    setsid sleep 600 & ;;
flees) # the same, without the attempt's token in its environment
    env -i setsid sh -c 'sleep 600 & sleep 600' & ;;
esac
if [ "$seconds" != 0 ]; then
    sleep "$seconds" &
    wait $!
fi
trap '' USR1
record end "code=$code"
exit "$code"
