# What runs on a machine with nothing installed: POSIX sh, sent over the connection itself.
#
# It is the other end of link.py. Requests come as lines of shell words on stdin; `$NL` in a
# word stands for a newline. Answers and news go out as short lines on fd 9 (the connection's
# stdout): one write each, below PIPE_BUF, so that those of several writers never mix. Bulk
# goes out on fd 8 (its stderr), announced by its length, written by this process alone. Every
# line begins with NONCE, made anew for each connection. No job ever has either descriptor.
#
#   KEY.claim     whoever creates it may run the attempt; holds the boot it was made in
#   KEY.pid       the job's process and the kernel's start time of it
#   KEY.exit      its exit code
#   KEY.out .err  its output, unless the user named files
#
# NONCE, ROOT and NODE are set in front of this text.

exec 9>&1 8>&2 2>/dev/null
umask 077
set -f
NL='
'
PATH=$PATH:/usr/local/bin:/usr/bin:/bin
HERE=$HOME/$ROOT
RUN=$HERE/run/$NODE
mkdir -p "$RUN" "$HERE/trees" "$HERE/env"
BOOT=$(cat /proc/sys/kernel/random/boot_id)
SETSID=$(command -v setsid) && SETSID=setsid

tell() { printf '%s\n' "$NONCE $*" >&9; }

# The kernel's start time of a process, in $born: a pid alone may come to mean another one.
find_born() {
    born=
    read -r line <"/proc/$1/stat" || return 1
    set -- ${line##*) }
    shift 19
    born=$1
}

# start KEY ENV DIRECTORY UMASK OUT ERR COUNT NAME=VALUE... WORD...
# The claim is made before anything runs, and the exit is written before it is told: whoever
# comes later, over another connection, finds one or the other.
start() {
    key=$1 env=$2 directory=$3 mask=$4 out=${5:-$RUN/$1.out} err=${6:-$RUN/$1.err} count=$7
    shift 7
    [ "$err" = - ] && err=$out
    (
        trap '' HUP INT QUIT PIPE
        set -C
        if ! command printf '%s\n' "$BOOT" >"$RUN/$key.claim"; then
            tell - late "$key"
            exit
        fi
        set +C
        (
            trap - HUP INT QUIT PIPE
            cd "$directory" || exit 200
            exec >>"$out" 2>>"$err" 8>&- 9>&- || exit 201
            . "$HERE/env/$env" || exit 202
            while [ "$count" -gt 0 ]; do
                export "$1"
                shift
                count=$((count - 1))
            done
            umask "$mask"
            set +f
            : >"$RUN/$key.begun"
            exec $SETSID "$@"
        ) </dev/null &
        pid=$!
        find_born $pid
        printf '%s %s\n' "$pid" "$born" >"$RUN/$key.pid"
        tell - started "$key" "$pid"
        wait $pid
        code=$?
        [ -e "$RUN/$key.begun" ] || code="not begun $code"
        printf '%s\n' "$code" >"$RUN/$key.exit"
        tell - exited "$key" "$code"
    ) &
}

# look KEY...: how attempts stand. One that nobody has claimed is claimed here and now, so that
# an order that is still on its way can no longer start it.
look() {
    for key in "$@"; do
        how=
        if read -r how <"$RUN/$key.exit"; then
            how="exited $key $how"
        elif ! read -r boot <"$RUN/$key.claim"; then
            set -C
            command printf '%s\n' taken >"$RUN/$key.claim" && how="free $key"
            set +C
        elif [ "$boot" = taken ]; then
            how="free $key"
        elif [ "$boot" != "$BOOT" ]; then
            how="rebooted $key"
        elif read -r pid was <"$RUN/$key.pid" && find_born "$pid" && [ "$born" = "$was" ]; then
            how="running $key $pid"
        fi
        tell "$id" "${how:-gone $key}"
    done
    tell "$id" done
}

# The processes that carry one of these tokens, in $pids.
find_pids() {
    pids=
    set +f
    for token in "$@"; do
        for each in $(grep -lsF "STOKER_TOKEN=$token" /proc/[0-9]*/environ); do
            each=${each#/proc/}
            pids="$pids ${each%/environ}"
        done
    done
    set -f
}

# signal NAME TOKEN...
signal() {
    name=$1
    shift
    find_pids "$@"
    [ -z "$pids" ] || kill -s "$name" $pids
    tell "$id" signalled ${pids:-none}
}

# store NAME TEXT: a file under HERE, whole or not at all.
store() {
    printf '%s' "$2" >"$HERE/$1.new" && mv -f "$HERE/$1.new" "$HERE/$1" && tell "$id" stored ||
        tell "$id" failed "cannot write $HERE/$1"
}

# forget KEY...: everything about attempts whose end is on record.
forget() {
    for key in "$@"; do
        rm -f "$RUN/$key.claim" "$RUN/$key.pid" "$RUN/$key.exit" "$RUN/$key.begun" \
            "$RUN/$key.out" "$RUN/$key.err"
        [ -d "$HERE/work/$key" ] && rm -rf "$HERE/work/$key"
    done
    tell "$id" forgotten
}

# What is in $RUN/bulk goes out, its length first. A copy, so that the length holds.
send() {
    size=$(wc -c <"$RUN/bulk")
    printf '%s\n' "$NONCE $id $((size))" >&8
    cat "$RUN/bulk" >&8
}

# pull FILE OFFSET MOST: a piece of a file.
pull() {
    tail -c "+$(($2 + 1))" <"$1" | head -c "$3" >"$RUN/bulk"
    send
}

# facts: what this machine has, and how busy it is.
facts() {
    {
        echo "boot $BOOT"
        echo "home $HOME"
        echo "cores $(nproc || grep -c '^processor' /proc/cpuinfo)"
        for tool in bash rsync tar setsid nvidia-smi; do
            command -v "$tool" >/dev/null && echo "tool $tool"
        done
        grep -E '^(MemTotal|MemAvailable):' /proc/meminfo
        grep '^cpu ' /proc/stat
        echo "disk $(df -Pk "$HERE" | tail -n 1)"
        nvidia-smi --format=csv,noheader,nounits --query-gpu=index,uuid,name,memory.total,memory.used,utilization.gpu,temperature.gpu,power.draw | sed 's/^/gpu /'
        nvidia-smi --format=csv,noheader,nounits --query-compute-apps=gpu_uuid,pid,used_memory | sed 's/^/app /'
    } >"$RUN/bulk"
    send
}

tell - hello "$BOOT"
while read -r line; do
    eval "set -- $line"
    id=$1 verb=$2
    shift 2
    "$verb" "$@"
done
