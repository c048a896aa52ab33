# What runs on a machine with nothing installed: POSIX sh, sent over the connection itself.
#
# It is the other end of link.py. Requests come as lines of shell words on stdin; `$NL` in a
# word stands for a newline. Answers and news go out as short lines on fd 9 (the connection's
# stdout): one write each, below PIPE_BUF, so that those of several writers never mix. Bulk
# goes out on fd 8 (its stderr), announced by its length, written by this process alone. Every
# line begins with NONCE, made anew for each connection. No job ever has either descriptor.
#
#   KEY.claim     whoever creates it may run the attempt; holds the boot it was made in
#   KEY.gate      whoever creates it decides: `go`, with what to export, or `released`
#   KEY.pid       the job's process and the kernel's start time of it
#   KEY.exit      its exit code; there from the start, so that a full disk cannot lose it
#   KEY.out .err  its output
#   KEY.list      what it wrote in its directory
#   KEY.port      the port that its first part was given
#
# NONCE, ROOT and INSTALL are set in front of this text.

exec 9>&1 8>&2 2>/dev/null
umask 077
set -f
NL='
'
PATH=$PATH:/usr/local/bin:/usr/bin:/bin
HERE=$HOME/$ROOT
RUN=$HERE/run/$INSTALL
mkdir -p "$RUN" "$HERE/trees" "$HERE/work" "$HERE/scripts"
BOOT=$(cat /proc/sys/kernel/random/boot_id)
BOOT=${BOOT:-unknown}
SETSID=$(command -v setsid) && SETSID=setsid
NEWER=-cnewer
find "$RUN" -prune $NEWER "$RUN" || NEWER=-newer
PAD='                                                                '

tell() { printf '%s\n' "$NONCE $*" >&9; }

# The kernel's start time of a process, in $born: a pid alone may come to mean another one.
find_born() {
    born=
    read -r line <"/proc/$1/stat" || return 1
    set -- ${line##*) }
    shift 19
    born=$1
}

# The processes of an attempt, in $pids: they carry its token.
find_pids() {
    pids=
    set +f
    for each in $(grep -lsF "STOKER_TOKEN=$INSTALL.$1." /proc/[0-9]*/environ); do
        each=${each#/proc/}
        pids="$pids ${each%/environ}"
    done
    set -f
}

# A short nap; some machines know whole seconds only.
nap() { sleep 0.05 || sleep 1; }

# start KEY WHERE STDERR SHELL CAREFUL GATE BRING GRACE MASK COUNT NAME=VALUE... WORD...
#   WHERE    `tree ID`, `empty`, or a directory that is here already
#   STDERR   `apart`, or `joined` with stdout
#   SHELL    `line`: the word is a line of shell; `words`: a command
#   CAREFUL  `yes`: look for processes left behind even if its group is gone (GPU jobs)
#   GATE     seconds to wait for `go` before the attempt is released, 0: begin at once
#   BRING    `changed`, `named` or `nothing`
# The claim is made before anything else is done, and the exit is written before it is told:
# whoever comes later, over another connection, finds one or the other.
start() {
    key=$1 where=$2 stderr=$3 shell=$4 careful=$5 gate=$6 bring=$7 grace=$8 mask=$9
    shift 9
    count=$1
    shift
    (
        trap '' HUP INT QUIT PIPE
        set -C
        if ! command printf '%s\n' "$BOOT" >"$RUN/$key.claim"; then
            if [ -s "$RUN/$key.claim" ]; then
                tell - late "$key"
            else
                tell - failed "$key" "no space left in $HERE"
            fi
            exit
        fi
        set +C
        if ! printf '%s\n' "none$PAD" >"$RUN/$key.exit"; then
            tell - failed "$key" "no space left in $HERE"
            exit
        fi
        work=$HERE/work/$INSTALL.$key code=
        prepare || code="failed $why"
        [ -n "$code" ] || [ "$gate" = 0 ] || wait_for_go || code="released"
        if [ -z "$code" ]; then
            run_it "$@"
        fi
        printf '%s\n' "$code" 1<>"$RUN/$key.exit"
        tell - ${code%% *} "$key" ${code#* }
    ) &
}

# The attempt's own directory, in $work, with a copy of its tree.
prepare() {
    why="cannot make $work"
    case $where in
        tree\ *)
            tree=$HERE/trees/${where#tree }
            mkdir -p "$work" || return 1
            why="no space left for its files in $HERE"
            cp -Rp "$tree/." "$work/" || return 1
            : >"$tree.used"
            ;;
        empty) mkdir -p "$work" || return 1 ;;
        *)
            work=$where
            why="the directory $work is not there"
            [ -d "$work" ] || return 1
            bring=nothing
            ;;
    esac
    case $bring in
        changed)
            why="no space left in $HERE"
            : >"$RUN/$key.stamp" || return 1
            sleep 0.01 || sleep 1 # whatever is written from now on is newer than the stamp
            ;;
    esac
    why=
}

# Nobody runs before all are ready. No `go` in time, and the attempt is given up.
wait_for_go() {
    find_port
    printf '%s\n' "$port" >"$RUN/$key.port"
    tell - ready "$key" "$port"
    limit=$(($(date +%s) + gate))
    until [ -e "$RUN/$key.gate" ]; do
        nap
        [ "$(date +%s)" -lt $limit ] && continue
        set -C
        command printf 'released\n' >"$RUN/$key.gate"
        set +C
    done
    read -r word <"$RUN/$key.gate"
    [ "$word" = go ]
}

# A port that nothing listens on and no other attempt of ours was given, in $port.
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

run_it() {
    (
        trap - HUP INT QUIT PIPE
        cd "$work" || exit 200
        exec 8>&- 9>&- >>"$RUN/$key.out" || exit 201
        if [ "$stderr" = joined ]; then exec 2>&1; else exec 2>>"$RUN/$key.err"; fi
        while [ "$count" -gt 0 ]; do
            export "$1"
            shift
            count=$((count - 1))
        done
        if [ "$gate" != 0 ]; then
            while read -r word; do [ "$word" = go ] || export "$word"; done <"$RUN/$key.gate"
        fi
        umask "$mask"
        set +f
        : >"$RUN/$key.begun"
        under_its_shell "$@"
    ) </dev/null &
    pid=$!
    find_born $pid
    printf '%s\n' "$pid $born$PAD" >"$RUN/$key.pid"
    tell - started "$key" "$pid"
    wait $pid
    code=$?
    if [ ! -e "$RUN/$key.begun" ]; then
        code="failed it could not be started (code $code)"
        return
    fi
    end_the_rest
    written=0
    if [ "$bring" = changed ]; then
        cd "$work" && find . \( -type f -o -type l \) $NEWER "$RUN/$key.stamp" >"$RUN/$key.list" &&
            [ -s "$RUN/$key.list" ] && written=1
    elif [ "$bring" = named ]; then
        written=1
    fi
    code="exited $code $written $left"
}

# bash with ~/.bashrc, as its user knows it: only an interactive shell reads that. It says so,
# ignores TERM unless told otherwise, and announces its exit unless a subshell makes it. What it
# prints while it starts is nobody's output.
# It also catches what is meant for programs, to die of it; with a trap it does not.
DEAF='trap : USR1 USR2'
QUIETLY="unset HISTFILE; trap 'exit 143' TERM; $DEAF; exec >&6 2>&7 6>&- 7>&-"
under_its_shell() {
    if command -v bash >/dev/null; then
        exec 6>&1 7>&2 >/dev/null 2>&1
        if [ "$shell" = line ]; then
            exec $SETSID bash -ic "$QUIETLY; ($DEAF; line=\$1; set --; eval \"\$line\")" stoker "$1"
        else
            exec $SETSID bash -ic "$QUIETLY; exec \"\$@\"" stoker "$@"
        fi
    elif [ "$shell" = line ]; then
        exec $SETSID sh -c "$1"
    else
        exec $SETSID "$@"
    fi
}

# What an attempt leaves behind goes with it; how many those were, in $left.
end_the_rest() {
    left=0
    kill -s 0 -- "-$pid" || [ "$careful" = yes ] || return
    find_pids "$key"
    [ -n "$pids" ] || return
    left=$(set -- $pids && echo $#)
    kill -s CONT $pids
    kill -s TERM $pids
    limit=$(($(date +%s) + grace))
    while [ -n "$pids" ]; do
        nap
        [ "$(date +%s)" -lt $limit ] || kill -s KILL $pids
        find_pids "$key"
    done
}

# go KEY NAME=VALUE...: all parts are ready. Too late if the attempt has been released.
go() {
    key=$1
    shift
    set -C
    if (printf '%s\n' go "$@") >"$RUN/$key.gate.$$" && ln "$RUN/$key.gate.$$" "$RUN/$key.gate"; then
        tell "$id" done
    else
        tell "$id" failed
    fi
    set +C
    rm -f "$RUN/$key.gate.$$"
}

# release KEY: it will not go.
release() {
    set -C
    command printf 'released\n' >"$RUN/$1.gate"
    set +C
    tell "$id" done
}

# look KEY...: how attempts stand. One that nobody has claimed is claimed here and now, so that
# an order that is still on its way can no longer start it.
look() {
    for key in "$@"; do
        how= word=
        read -r word rest <"$RUN/$key.exit"
        if [ -n "$word" ] && [ "$word" != none ]; then
            how="$word $key $rest"
        elif ! read -r boot <"$RUN/$key.claim"; then
            set -C
            command printf '%s\n' taken >"$RUN/$key.claim" && how="free $key"
            set +C
        elif [ "$boot" = taken ]; then
            how="free $key"
        elif [ "$boot" != "$BOOT" ]; then
            how="rebooted $key"
        elif read -r pid was <"$RUN/$key.pid"; then
            port=
            read -r port <"$RUN/$key.port"
            find_born "$pid" && [ "$born" = "${was%% *}" ] && how="running $key $pid $port"
        elif [ -s "$RUN/$key.port" ] && [ ! -e "$RUN/$key.gate" ]; then
            read -r port <"$RUN/$key.port"
            how="ready $key $port"
        fi
        tell "$id" "${how:-gone $key}"
    done
    tell "$id" done
}

# keys: the attempts that this machine still knows of.
keys() {
    set +f
    for each in "$RUN"/*.claim; do
        [ -s "$each" ] || continue
        each=${each##*/}
        tell "$id" key "${each%.claim}"
    done
    set -f
    tell "$id" done
}

# signal NUMBER KEY: to all its processes; one that is meant for a program, and would merely kill
# the shells around it, to those that catch it, if there are any.
signal() {
    find_pids "$2"
    case $1 in
        1 | 2 | 3 | 9 | 15 | 18 | 19) ;; # HUP INT QUIT KILL TERM CONT STOP
        *)
            catching=
            for each in $pids; do catches "$each" "$1" && catching="$catching $each"; done
            pids=${catching:-$pids}
            ;;
    esac
    [ -z "$pids" ] || kill "-$1" $pids
    tell "$id" done $pids
}

catches() {
    while read -r word mask; do
        [ "$word" = SigCgt: ] && return $((1 - (0x$mask >> ($2 - 1) & 1)))
    done <"/proc/$1/status"
    return 1
}

# store NAME TEXT: a file under HERE, whole or not at all.
store() {
    if printf '%s' "$2" >"$HERE/$1.new" && chmod 700 "$HERE/$1.new" && mv -f "$HERE/$1.new" "$HERE/$1"; then
        tell "$id" done
    else
        tell "$id" failed
    fi
}

# have ID: whether a tree is here.
have() { if [ -d "$HERE/trees/$1" ]; then tell "$id" done yes; else tell "$id" done no; fi; }

# forget KEY...: everything about attempts whose end is on record.
forget() {
    tell "$id" done
    cd "$RUN" || return
    for key in "$@"; do
        set -- "$@" "$HERE/work/$INSTALL.$key"
        for each in claim gate pid exit begun stamp out err list port; do
            [ -e "$key.$each" ] && set -- "$@" "$key.$each"
        done
    done
    rm -rf "$@" &
}

# What is in $RUN/bulk goes out, its length first. A copy, so that the length holds.
send() {
    if [ -s "$RUN/bulk" ]; then
        size=$(wc -c <"$RUN/bulk")
        printf '%s\n' "$NONCE $id $((size))" >&8
        cat "$RUN/bulk" >&8
    else
        printf '%s\n' "$NONCE $id 0" >&8
    fi
}

# So much of a file from an offset on, into $RUN/part; its size in $size.
slice() {
    tail -c "+$(($2 + 1))" <"$1" | head -c "$3" >"$RUN/part"
    size=$(($(wc -c <"$RUN/part")))
}

# pull NAME OFFSET MOST: a piece of a file in RUN.
pull() {
    tail -c "+$(($2 + 1))" <"$RUN/$1" | head -c "$3" >"$RUN/bulk"
    send
}

# grown MOST KEY OUT ERR ...: what logs have to say beyond what we have of them.
grown() {
    most=$1
    shift
    : >"$RUN/bulk"
    while [ $# -gt 2 ]; do
        grown_one "$1" out "$2"
        grown_one "$1" err "$3"
        shift 3
    done
    send
}

grown_one() {
    [ -s "$RUN/$1.$2" ] || return
    slice "$RUN/$1.$2" "$3" "$most"
    [ $size -gt 0 ] || return
    printf '%s\n' "$1 $2 $size" >>"$RUN/bulk"
    cat "$RUN/part" >>"$RUN/bulk"
}

# collect MOST KEY OUT ERR PATH...: the rest of an attempt's logs, and a tar of what comes
# back: the paths, or what it wrote. More than MOST of it is left for others to carry.
collect() {
    most=$1 key=$2
    : >"$RUN/bulk"
    grown_one "$key" out "$3"
    grown_one "$key" err "$4"
    shift 4
    if [ $# -gt 0 ]; then
        for each in "$@"; do printf '%s\n' "./$each"; done >"$RUN/$key.list"
    fi
    if [ -s "$RUN/$key.list" ]; then
        size=0
        few_names && pack | head -c $((most + 1)) >"$RUN/part" &&
            size=$(($(wc -c <"$RUN/part")))
        [ $size -le "$most" ] || size=0
        printf '%s\n' "$key tar $size" >>"$RUN/bulk"
        [ $size = 0 ] || cat "$RUN/part" >>"$RUN/bulk"
    fi
    send
}

few_names() { [ "$(head -n 201 <"$RUN/$key.list" | wc -l)" -le 200 ]; }

# As words: not every tar reads a list.
pack() {
    cd "$HERE/work/$INSTALL.$key" || return
    while read -r each; do [ -e "$each" ] || [ -L "$each" ] && set -- "$@" "$each"; done <"$RUN/$key.list"
    tar -cf - "$@"
}

# What nobody has asked for in weeks, and claims that were only taken, go.
(
    trap '' HUP INT QUIT PIPE
    set +f
    for each in "$HERE"/trees/*.used; do
        [ -z "$(find "$each" -prune -mtime +14)" ] || rm -rf "$each" "${each%.used}"
    done
    for each in "$RUN"/*.claim; do
        read -r word <"$each" && [ "$word" = taken ] &&
            [ -n "$(find "$each" -mtime +1)" ] && rm -f "$each"
    done
) </dev/null >/dev/null 8>&- 9>&- &

tell - hello "$BOOT"
while read -r line; do
    eval "set -- $line"
    id=$1 verb=$2
    shift 2
    "$verb" "$@"
done
