# What runs on a machine with nothing installed: POSIX sh, sent over the connection itself.
#
# It is the other end of link.py. Requests come as lines of shell words on stdin; `$NL` in a
# word stands for a newline. Answers and news go out as short lines on fd 9 (the connection's
# stdout): one write each, below PIPE_BUF, so that those of several writers never mix. Bulk
# goes out on fd 8 (its stderr) in portions, each announced by its length, written by this
# process alone. Every line begins with NONCE, made anew for each connection. No job ever has
# either descriptor.
#
#   KEY.claim     its first line decides who may run the attempt, and says who does: the boot,
#                 the process that looks after it, and the kernel's start time of that
#   KEY.gate      whoever creates it decides: `go`, with what to export, or nothing: released
#   KEY.pid       the job's process and its start time
#   KEY.exit      how it ended
#   KEY.begun     created by the job before anything of it runs, or by us: then nothing will
#   KEY.mark      a limit that its processes inherit, by which they are found
#   KEY.out .err  its output
#   KEY.list      what it wrote in its directory
#   KEY.reports   where its training library and we leave each other word
#   KEY.port      the port that its first part was given
#
# The pid and the end have their room from the start, so that a full disk cannot lose them.
# Another agent of ours may be here still, at the end of a connection that is over: no two of
# them write to one file, except for claims, gates and what is renamed when it is whole.
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
# How the names of our jobs' checkpoints begin: they stay for the attempts that follow.
SAVED=$HERE/checkpoints/$(printf %.8s "$INSTALL")
BOOT=$(cat /proc/sys/kernel/random/boot_id)
BOOT=${BOOT:-unknown}
SETSID=$(command -v setsid)
SHELL_HERE=$(command -v bash)
SH_HERE=$(command -v sh)
ENV_HERE=$(command -v env)
# What a shell starts in the background ignores INT and QUIT, and so would all that it becomes.
DEFAULTS=--default-signal=INT,QUIT
env $DEFAULTS true || DEFAULTS=
NEWER=-cnewer
find "$RUN" -prune $NEWER "$RUN" || NEWER=-newer
EMPTY='-o -type d -empty ! -name .'
find "$RUN" -prune \( -type f $EMPTY \) || EMPTY=
PAD='                                                                '

tell() { printf '%s\n' "$NONCE $*" >&9; }

# The kernel's start time of a process that lives, in $born: a pid alone may come to mean another
# one, and what nobody has buried yet does not run any more.
find_born() {
    born=
    read -r line <"/proc/$1/stat" || return 1
    set -- ${line##*) }
    case $1 in [ZX]) return 1 ;; esac
    [ $# -ge 20 ] || return 1
    shift 19
    born=$1
}

# The processes of an attempt, in $pids: they carry its token, or are of its session, since some
# programs write over their environment, or have its mark, which is inherited whatever they do.
find_pids() {
    pids= leader= was= mark=
    read -r leader was <"$RUN/$1.pid"
    case $leader in *[!0-9]*) leader= ;; esac
    [ -n "$leader" ] && find_born "$leader" && [ "$born" != "${was%% *}" ] && leader=
    [ ! -e "$RUN/$1.mark" ] || read -r mark <"$RUN/$1.mark"
    set +f
    for each in $(
        grep -lszF "STOKER_TOKEN=$INSTALL.$1." /proc/[0-9]*/environ
        [ -z "$leader" ] || ! kill -0 "-$leader" || grep -lsE "\) [^ZX] [0-9]+ [0-9]+ $leader " /proc/[0-9]*/stat
        [ -z "$mark" ] || grep -lsE "^Max file locks +$mark " /proc/[0-9]*/limits
    ); do
        each=${each#/proc/}
        each=${each%/*}
        case " $pids " in *" $each "*) ;; *) pids="$pids $each" ;; esac
    done
    set -f
}

# Kill all processes of an attempt; those that were found are in $pids. They are stopped first, so
# that none starts another one meanwhile.
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

# Mark this process and all that it starts: Linux has not enforced this limit for twenty years.
set_mark() {
    mark=$(printf '%s' "$INSTALL.$key" | cksum)
    mark=$((1 << 60 | ${mark%% *}))
    ulimit -S -w $mark || ulimit -S -x $mark || return
    printf '%s\n' "$mark" >"$RUN/$key.mark"
}

# Create a file that is not there yet.
create() {
    set -C
    command : >"$1"
    created=$?
    set +C
    return $created
}

# A short nap; some machines know whole seconds only.
nap() { sleep 0.05 || sleep 1; }

# start KEY WHERE STDERR SHELL GATE BRING GRACE MASK COUNT NAME=VALUE... WORD...
#   WHERE    `tree ID`, `empty`, or a directory that is here already
#   STDERR   `apart`, or `joined` with stdout
#   SHELL    `line`: the word is a line of shell; `words`: a command
#   GATE     seconds to wait for `go` before the attempt is released, 0: begin at once
#   BRING    `changed`, `named` or `nothing`
# The claim is made before anything else is done, and the exit is written before it is told:
# whoever comes later, over another connection, finds one or the other.
start() {
    key=$1 where=$2 stderr=$3 shell=$4 gate=$5 bring=$6 grace=$7 mask=$8 count=$9
    shift 9
    (
        trap '' HUP INT QUIT PIPE
        claim || exit
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

# A file is created by one alone, but what it says is written a moment later: whoever finds it
# empty meanwhile may write a line into it too, and the first line counts.
claim() {
    [ -d "$RUN" ] || mkdir -p "$RUN"
    find_born self
    if ! create "$RUN/$key.claim" && [ -e "$RUN/$key.claim" ]; then
        tell - late "$key"
        return 1
    fi
    if ! printf '%s\n' "$BOOT ${line%% *} $born" >>"$RUN/$key.claim" ||
        ! printf '%s\n' "none$PAD" >"$RUN/$key.pid" ||
        ! printf '%s\n' "none$PAD" >"$RUN/$key.exit"; then
        tell - failed "$key" "no space left in $HERE"
        return 1
    fi
    read -r boot _ <"$RUN/$key.claim"
    [ "$boot" = "$BOOT" ]
}

# The attempt's own directory, in $work, with a copy of its tree.
prepare() {
    case $where in
        tree\ *)
            tree=$HERE/trees/${where#tree }
            why="the job's files are no longer in $tree"
            [ -d "$tree" ] || return 1
            command : >"$tree.used"
            why="no space left for the job's files in $HERE"
            [ -d "$HERE/work" ] || mkdir -p "$HERE/work"
            [ ! -e "$work" ] || rm -rf "$work"
            cp -Rp "$tree" "$work"
            copied=$?
            # Had it been cleared away meanwhile, part of it might be missing.
            [ -d "$tree" ] || why="the job's files are no longer in $tree"
            [ -d "$tree" ] && [ $copied = 0 ] || return 1
            ;;
        empty)
            why="no space left in $HERE"
            mkdir -p "$work" || return 1
            ;;
        *)
            work=$where
            why="the directory $work does not exist"
            [ -d "$work" ] || return 1
            bring=nothing
            ;;
    esac
    case $bring in
        changed)
            why="no space left in $HERE"
            command : >"$RUN/$key.stamp" || return 1
            # Whatever is written from now on is to be newer than the stamp. Where `find` knows
            # whole seconds only, what is written in this one is.
            if [ $NEWER = -cnewer ]; then
                sleep 0.01 || sleep 1
            else
                touch -d "@$(($(date +%s) - 1))" "$RUN/$key.stamp" || sleep 1
            fi
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
        create "$RUN/$key.gate"
    done
    word=
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
        # Engines leave processes behind that serve other containers, too.
        case "$*" in *STOKER_CONTAINER=*) ;; *) set_mark ;; esac
        cd "$work" || exit 200
        exec 8>&- 9>&- >>"$RUN/$key.out" || exit 201
        if [ "$stderr" = joined ]; then exec 2>&1; else exec 2>>"$RUN/$key.err"; fi
        if [ "$gate" != 0 ]; then
            while read -r word; do
                [ "$word" = go ] && continue
                set -- "$word" "$@"
                count=$((count + 1))
            done <"$RUN/$key.gate"
        fi
        umask "$mask"
        become "$@"
    ) </dev/null &
    pid=$!
    find_born $pid
    printf '%s\n' "$pid $born" 1<>"$RUN/$key.pid"
    tell - started "$key" "$pid"
    wait $pid
    code=$?
    if [ ! -e "$RUN/$key.begun" ]; then
        code="failed $(not_begun)"
        return
    fi
    end_the_rest
    list_results
    find_saved
    code="exited $code $written $left$saved"
}

# Whether the job has checkpoints here, in $saved.
find_saved() {
    saved=
    [ -d "$SAVED-${key%.*}" ] && [ -n "$(ls -A "$SAVED-${key%.*}")" ] && saved=" saved"
}

not_begun() {
    if [ $code = 200 ]; then
        echo "the directory $work cannot be entered"
    elif ! command : >"$RUN/$key.begun"; then
        echo "no space left in $HERE"
    elif [ -n "$SHELL_HERE" ]; then
        echo "~/.bashrc ended the shell (code $code) before the job started; check its behaviour" \
            "in an interactive shell without a terminal: exit, exec or return there only if" \
            '$STOKER_JOB_ID is empty'
    else
        echo "the job could not be started (code $code)"
    fi
}

# What it wrote, in $written: 0 nothing, 1 something, 2 something that could not be listed.
list_results() {
    written=0
    case $bring in
        named) written=1 ;;
        changed)
            written=2
            if cd "$work" && find . \( -type f -o -type l $EMPTY \) $NEWER "$RUN/$key.stamp" \
                -print0 >"$RUN/$key.list.$$"; then
                written=0 # and an empty list is of use to nobody
                [ -s "$RUN/$key.list.$$" ] || return 0
                written=2
                mv "$RUN/$key.list.$$" "$RUN/$key.list" && written=1
            fi
            ;;
    esac
}

# salvage KEY BRING: nobody wrote its end down. What is left of it ends, and what it wrote is
# listed all the same. `busy`: something of it lives on; ask again later.
salvage() {
    key=$1 bring=$2 work=$HERE/work/$INSTALL.$1 written=0
    kill_all "$key"
    if [ -n "$pids" ]; then
        nap
        find_pids "$key"
    fi
    if [ -n "$pids" ]; then
        tell "$id" busy
        return
    fi
    [ -e "$RUN/$key.begun" ] && [ -d "$work" ] && written=$(list_results && echo "$written")
    find_saved
    tell "$id" done "$written$saved"
}

# bash with ~/.bashrc, as its user knows it: only an interactive shell reads that. It says so,
# ignores TERM unless told otherwise, and announces its exit unless a subshell makes it. What it
# prints while it starts, or when a job is killed, is nobody's output, and where it goes meanwhile
# is not the job's place.
# It also catches what is meant for programs, to die of it; with a trap it does not.
DEAF='trap : USR1 USR2'
# Which GPUs a job has is not for ~/.bashrc to say.
SEALED='export CUDA_VISIBLE_DEVICES="$STOKER_GPUS" CUDA_DEVICE_ORDER=PCI_BUS_ID'
# Nor where Python finds what we have brought for it.
FOUND_FIRST='[ -z "${STOKER_LIBRARY-}" ] ||
export PYTHONPATH="$STOKER_LIBRARY${PYTHONPATH:+:$PYTHONPATH}"
[ -z "${STOKER_LIBRARY-}" ] || [ -z "${SLURM_JOB_ID-}" ] ||
export PATH="$STOKER_LIBRARY/stoker/executors/slurm_tools:$PATH"'
QUIETLY="unset HISTFILE; $SEALED; $FOUND_FIRST; trap 'exit 143' TERM; $DEAF; builtin cd -- \"\$2\" || exit 200;
(set -C; : >\"\$1\") || exit 201; shift 2"
ALOUD='exec >&6 2>&7 6>&- 7>&-'
BASH_LINE="$QUIETLY; ($ALOUD; $DEAF; line=\$1; set --; eval \"\$line\")"
BASH_WORDS="$QUIETLY; $ALOUD; exec \"\$@\""

# Become the job: COUNT NAME=VALUE..., then its words. Values may be secret, so they are on no
# command line; and names may mean something in this shell, so that once they are set only the
# numbers of words are used.
become() {
    refer 1 "$count"
    values=${found:+export$found;}
    refer $((count + 1)) $#
    set -- "$@" "$SHELL_HERE" "$RUN/$key.begun" "$work"
    case $shell in line) set -- "$@" "$BASH_LINE" ;; words) set -- "$@" "$BASH_WORDS" ;; esac
    start="exec $SETSID ${DEFAULTS:+$ENV_HERE $DEFAULTS}"
    case $SHELL_HERE$shell in
        /*)
            start="$start \"\${$(($# - 3))}\" -ic \"\${$#}\" stoker"
            start="$start \"\${$(($# - 2))}\" \"\${$(($# - 1))}\" $found"
            ;;
        line) start="$FOUND_FIRST; $start $SH_HERE -c $found" ;;
        words) start="$FOUND_FIRST; $start $SH_HERE -c 'exec \"\$@\"' stoker $found" ;;
    esac
    if [ -n "$SHELL_HERE" ]; then
        exec 6>&1 7>&2 >/dev/null 2>&1
    else
        create "$RUN/$key.begun" || exit 201
    fi
    set +f
    eval "$values $start"
}

# Words by number, in $found.
refer() {
    found= at=$1
    while [ "$at" -le "$2" ]; do
        found="$found \"\${$at}\""
        at=$((at + 1))
    done
}

# What an attempt leaves behind goes with it; how many those were, in $left.
end_the_rest() {
    left=0
    find_pids "$key"
    [ -n "$pids" ] || return
    left=$(set -- $pids && echo $#)
    kill -s CONT $pids
    kill -s TERM $pids
    limit=$(($(date +%s) + grace))
    while [ -n "$pids" ]; do
        nap
        [ "$(date +%s)" -lt $limit ] || kill_all "$key"
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
    create "$RUN/$1.gate"
    tell "$id" done
}

# look KEY...: how attempts stand. One that nobody has claimed is claimed here and now, so that
# an order that is still on its way can no longer start it.
#
# Whether processes live is asked first, and the record of the exit is read afterwards: the shell
# that looks after an attempt writes the record and then ends. The other way round, an attempt
# that ended in between would seem to have ended without a record.
look() {
    for key in "$@"; do
        boot= how= word=
        [ -s "$RUN/$key.claim" ] || [ -s "$RUN/$key.exit" ] || printf 'taken\n' >>"$RUN/$key.claim"
        read -r boot keeper since <"$RUN/$key.claim"
        [ "$boot" != "$BOOT" ] || find_standing
        read -r word rest <"$RUN/$key.exit"
        case $word in
            '' | none)
                case $boot in
                    '') tell "$id" undecided "$key" ;; # no room for a word
                    taken) tell "$id" free "$key" ;;
                    "$BOOT")
                        [ "$how" != "gone $key" ] || find_begun
                        tell "$id" "$how"
                        ;;
                    *) tell "$id" rebooted "$key" ;;
                esac
                ;;
            *) tell "$id" "$word" "$key" "$rest" ;;
        esac
    done
    tell "$id" done
}

# How its processes stand, in $how. `busy`: its process is not there yet, or no longer, and its
# shell lives. `gone`: neither lives.
find_standing() {
    how="gone $key" pid=none port=
    find_born "$keeper" && [ "$born" = "$since" ] && how="busy $key"
    read -r pid was <"$RUN/$key.pid"
    if [ "$pid" != none ]; then
        find_born "$pid" && [ "$born" = "${was%% *}" ] && how="running $key $pid"
    elif [ "$how" = "busy $key" ] && [ -e "$RUN/$key.port" ]; then
        read -r port <"$RUN/$key.port"
        [ -z "$port" ] || [ -e "$RUN/$key.gate" ] || how="ready $key $port"
    fi
}

# `void`: nothing of it has run, and nothing will. Its first process may be about to begin; only
# one of us creates the file that says so, and the other one gives up.
find_begun() {
    find_pids "$key"
    [ -z "$pids" ] || return
    if create "$RUN/$key.begun"; then
        printf 'taken\n' >"$RUN/$key.claim.$$" && mv -f "$RUN/$key.claim.$$" "$RUN/$key.claim"
        how="void $key"
    elif [ ! -e "$RUN/$key.begun" ]; then
        how="undecided $key"
    fi
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
# the shells around it, to those that catch it, if there are any. Into a container its first
# process passes on whatever can be passed on.
signal() {
    if [ "$1" = 9 ]; then
        kill_all "$2"
        tell "$id" done $pids
        return
    fi
    find_pids "$2"
    case $1 in 18 | 19) ;; *) in_container && { catches "$leader" "$1" && pids=$leader || pids=; } ;; esac
    case $1 in
        1 | 2 | 3 | 15 | 18 | 19) ;; # HUP INT QUIT TERM CONT STOP
        *)
            catching=
            for each in $pids; do catches "$each" "$1" && catching="$catching $each"; done
            [ -n "$catching" ] || [ "$3" != gently ] || pids=
            pids=${catching:-$pids}
            ;;
    esac
    [ -z "$pids" ] || kill "-$1" $pids
    tell "$id" done $pids
}

in_container() {
    [ -n "$leader" ] && grep -qszF STOKER_CONTAINER= "/proc/$leader/environ"
}

catches() {
    while read -r word mask; do
        [ "$word" = SigCgt: ] && return $((1 - (0x$mask >> ($2 - 1) & 1)))
    done <"/proc/$1/status"
    return 1
}

# store NAME TEXT: a file under HERE, whole or not at all.
store() {
    new=$HERE/$1.$$
    if printf '%s' "$2" >"$new" && chmod 755 "$new" && mv -f "$new" "$HERE/$1"; then
        tell "$id" done
    else
        rm -f "$new"
        tell "$id" failed
    fi
}

# leave KEY NAME TEXT: a word for its training library, whole or not at all.
leave() {
    new=$RUN/$1.reports/$2.new
    if [ -e "$RUN/$1.claim" ] && mkdir -p "$RUN/$1.reports" &&
        printf '%s\n' "$3" >"$new" && mv -f "$new" "$RUN/$1.reports/$2"; then
        tell "$id" done
    else
        tell "$id" failed
    fi
}

# shelve ID: keep a tree as a library: unlike trees, these stay, since jobs import as they go.
# Whoever a container runs as may read it.
shelve() {
    new=$HERE/library/$1.$$
    [ -d "$HERE/library/$1" ] || {
        mkdir -p "$HERE/library" && cp -Rp "$HERE/trees/$1" "$new" && chmod -R a+rX "$new" &&
            mv "$new" "$HERE/library/$1"
    } || rm -rf "$new"
    if [ -d "$HERE/library/$1" ]; then tell "$id" done; else tell "$id" failed; fi
}

# room NAME: a place for a job's checkpoints. Those that are marked could not be carried away: what
# others have is older.
room() {
    if ! mkdir -p "$HERE/checkpoints/$1"; then
        tell "$id" failed
    elif [ -e "$HERE/checkpoints/$1.ahead" ]; then
        tell "$id" done ahead
    else
        tell "$id" done
    fi
}

# mark NAME, unmark NAME
mark() {
    if command : >"$HERE/checkpoints/$1.ahead"; then tell "$id" done; else tell "$id" failed; fi
}
unmark() {
    rm -f "$HERE/checkpoints/$1.ahead"
    tell "$id" done
}

# ping: answer in both ways, which shows that all requests before this one are answered.
ping() {
    finish
    tell "$id" done
}

# have ID: whether a tree is here. If not, it comes: now and then others go for it.
have() {
    if [ -d "$HERE/trees/$1" ]; then
        command : >"$HERE/trees/$1.used"
        tell "$id" done yes
        return
    fi
    tell "$id" done no
    sent=$((sent + 1))
    if [ $((sent % 10)) = 0 ]; then
        clear_trees </dev/null >/dev/null 8>&- 9>&- &
    fi
}

# The trees that were used last stay for two weeks, others for an hour. One that goes is renamed
# first: what has its name is whole.
clear_trees() (
    trap '' HUP INT QUIT PIPE
    set +f
    cd "$HERE/trees" || exit
    for each in *; do
        case $each in
            *.old) rm -rf "$each" ;;
            *.used | *.part) ;;
            *) [ -e "$each.used" ] || [ ! -d "$each" ] || : >"$each.used" ;;
        esac
    done
    rank=0
    for each in $(ls -t | grep '\.used$'); do
        rank=$((rank + 1)) age='-mtime +14'
        [ $rank -le 20 ] || age='-mmin +60'
        [ -n "$(find "$each" -prune $age)" ] || continue
        each=${each%.used}
        rm -f "$each.used"
        mv "$each" "$each.$$.old" && rm -rf "$each.$$.old"
    done
)

# forget KEY...: everything about attempts whose end is on record.
forget() {
    tell "$id" done
    for key in "$@"; do
        shift
        set -- "$@" "$HERE/work/$INSTALL.$key"
        for each in claim gate pid exit begun mark stamp out err list list.$$ port reports; do
            [ -e "$RUN/$key.$each" ] && set -- "$@" "$RUN/$key.$each"
        done
    done
    rm -rf "$@" &
}

# keep KEY: what it wrote could not be carried; put it where nobody forgets it.
keep() {
    mkdir -p "$HERE/kept"
    mv "$HERE/work/$INSTALL.$1" "$HERE/kept/$INSTALL.$1"
    for each in out err; do ln "$RUN/$1.$each" "$HERE/kept/$INSTALL.$1.$each"; done
    tell "$id" done
}

# Bulk: portions by their lengths, and 0 in the end.
say() { printf '%s\n' "$NONCE $id $((${#1} + 1))" "$1" >&8; }
finish() { printf '%s\n' "$NONCE $id 0" >&8; }

# put FILE OFFSET SIZE: exactly so much, even of a file that is cut short meanwhile, since a
# length that was announced must hold.
put() {
    [ "$3" -gt 0 ] || return
    printf '%s\n' "$NONCE $id $3" >&8
    {
        dd bs=65536 skip=$(($2 / 65536)) count=$((($2 % 65536 + $3) / 65536 + 1)) <"$1" |
            tail -c "+$(($2 % 65536 + 1))"
        cat /dev/zero
    } | head -c "$3" >&8
}

# The size of a file, in $size.
find_size() {
    set -- $(ls -ln "$1")
    size=${5:-0}
}

# pull NAME MOST: a file in RUN; nothing of one that is larger than MOST.
pull() {
    find_size "$RUN/$1"
    [ "$size" -gt "$2" ] || put "$RUN/$1" 0 "$size"
    finish
}

# grown MOST KEY OUT ERR SAID ...: what logs and reports have to say beyond what we have of them,
# MOST in all. Reports are short, and come first.
grown() {
    left=$1
    shift
    find_sizes "$@"
    while [ $# -gt 3 ]; do
        grown_one "$1" said "$4"
        grown_one "$1" out "$2"
        grown_one "$1" err "$3"
        shift 4
    done
    finish
}

# The sizes of all these, in $out_JOB_ATTEMPT, $err_JOB_ATTEMPT and $said_JOB_ATTEMPT.
find_sizes() {
    names=
    while [ $# -gt 3 ]; do
        for each in out err said; do eval "${each}_${1%.*}_${1#*.}="; done
        [ -s "$RUN/$1.out" ] || [ "$2" -gt 0 ] && names="$names $1.out"
        [ -s "$RUN/$1.err" ] || [ "$3" -gt 0 ] && names="$names $1.err"
        # A job can put anything there: a link's name would be followed by where it leads.
        [ -f "$RUN/$1.reports/report" ] && [ ! -L "$RUN/$1.reports/report" ] &&
            names="$names $1.reports/report"
        shift 4
    done
    [ -n "$names" ] || return
    sizes=$(cd "$RUN" && ls -ln $names)
    while read -r _ _ _ _ size _ _ _ name; do
        key=${name%.*} each=${name##*.}
        [ "$each" = reports/report ] && each=said
        [ -n "$key" ] && eval "${each}_${key%.*}_${key#*.}=$size"
    done <<END
$sizes
END
}

grown_one() {
    eval "size=\$$2_${1%.*}_${1#*.}"
    from=$3 file=$RUN/$1.$2
    [ "$2" = said ] && file=$RUN/$1.reports/report
    [ -n "$size" ] && [ "$left" -gt 0 ] || return
    if [ "$size" -lt "$from" ]; then
        say "$1 cut-$2 0 0" # the job has emptied it: `>/dev/stdout` does
        from=0
    fi
    size=$((size - from))
    [ "$size" -le "$left" ] || size=$left
    left=$((left - size))
    [ "$size" = 0 ] || say "$1 $2 $from $size"
    put "$file" "$from" "$size"
}

# collect MOST KEY OUT ERR SAID PATH...: the rest of an attempt's logs and report, and a tar of
# what comes back: the paths, or what it wrote. More than MOST of it, or what this tar cannot do
# or this disk cannot hold, is left for others to carry.
collect() {
    most=$1 key=$2 left=$1
    find_sizes "$2" "$3" "$4" "$5"
    grown_one "$2" said "$5"
    grown_one "$2" out "$3"
    grown_one "$2" err "$4"
    shift 5
    if [ $# -gt 0 ] || [ -s "$RUN/$key.list" ]; then
        pack "$@"
        say "$key tar 0 $size"
        put "$RUN/part.$$" 0 "$size"
        rm -f "$RUN/part.$$"
    fi
    finish
}

# A tar in $RUN/part.$$, its length in $size: 0 if it is not all there.
pack() {
    trouble=$({
        (cd "$HERE/work/$INSTALL.$key" && tar_of "$@" || echo tar >&3) |
            head -c $((most + 1)) >"$RUN/part.$$" || echo disk >&3
    } 3>&1)
    find_size "$RUN/part.$$"
    [ -z "$trouble" ] && [ "$size" -le "$most" ] || size=0
}

# Names as words, since not every tar reads a list; only GNU's sees more in a backslash.
tar_of() {
    plain=
    tar --no-unquote --version >/dev/null && plain=--no-unquote
    if [ $# -gt 0 ]; then
        for each in "$@"; do
            shift
            [ -e "$each" ] || [ -L "$each" ] && set -- "$@" "./$each"
        done
        tar $plain -cf - "$@"
    else
        xargs -0 tar $plain -cf - <"$RUN/$key.list"
    fi
}

# Trees and checkpoints that nobody uses, and claims that were only taken, go.
sent=0
(
    trap '' HUP INT QUIT PIPE
    clear_trees
    set +f
    for each in "$RUN"/*.claim; do
        read -r word <"$each" && [ "$word" = taken ] && [ -n "$(find "$each" -mtime +1)" ] || continue
        each=${each%.claim}
        rm -rf "$HERE/work/$INSTALL.${each##*/}" "$each".*
    done
    for each in "$SAVED"-*; do
        [ -d "$each" ] || continue
        set -- "$RUN/${each##*-}".*.claim
        [ -e "$1" ] || [ -n "$(find "$each" -mtime -30 | head -n 1)" ] || rm -rf "$each" "$each.ahead"
    done
    for each in "$RUN"/part.* "$RUN"/*.list.[0-9]* "$HERE"/scripts/*.[0-9]*; do
        [ ! -e "$each" ] || kill -0 "${each##*.}" || rm -f "$each"
    done
) </dev/null >/dev/null 8>&- 9>&- &

tell - hello "$BOOT"
while read -r line; do
    eval "set -- $line"
    id=$1 verb=$2
    shift 2
    "$verb" "$@"
done
# The connection goes with us, although jobs may still hold our ends of it.
rm -f "$RUN/part.$$"
read -r name <"/proc/$PPID/comm"
case $name in sshd* | dropbear*) kill "$PPID" ;; esac
