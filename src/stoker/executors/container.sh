# The main process of an attempt in a container: finds the engine, runs it, ends what it runs.
#
#   sh -c TEXT stoker-container ENGINE NAME IMAGE SECONDS LIBRARY GPUS WORD...
#
# ENGINE may be empty: whichever of podman and docker has the image, else the first that answers.
# SECONDS is how long the container has to end when it is asked to. LIBRARY says whose PYTHONPATH
# comes after ours: the `image`'s own, or the `job`'s. GPUS are separated by commas, best by UUID.
# The words are options of `run`, then `+run`, the image and its command. Before `+run`,
#
#   +make DIRECTORY              makes one that whomever the image runs as can write to
#   +keep DIRECTORY              makes one that others can write to if they can beside it
#   +needs PATH TARGET OPTION    is the option; the job fails if the path is not there
#   +perhaps PATH OPTION         is the option only if the path is there
#
# TERM ends the container, PWR does so at once; other signals are passed on to what runs in it.
# What the job's variables hold comes in by our environment, never by words that others can read.

engine=$1 name=$2 image=$3 seconds=$4 library=$5 gpus=$6
shift 6
client='' heard='' first='' ended_by=0 again=no

say() { echo "stoker: $*" >&2; }

fail() {
    say "$*"
    exit 125 # as engines do when it is not the command that failed
}

# A server that does not answer must not keep a job for ever.
quickly() { timeout 60 "$@" </dev/null 2>/dev/null; }

# -- the engine and the image ------------------------------------------------------------------

find_engine() {
    directly="leave --image out to run the command directly"
    if [ -n "$engine" ]; then
        command -v "$engine" >/dev/null || fail "$engine is not on this machine; $directly"
        quickly "$engine" version >/dev/null || fail "$engine does not answer; try '$engine version'"
        return
    fi
    answers=
    for engine in podman docker; do
        command -v $engine >/dev/null || continue
        quickly $engine image inspect "$image" >/dev/null && return
        [ -z "$answers" ] && quickly $engine version >/dev/null && answers=$engine
    done
    engine=$answers
    [ -n "$engine" ] || fail "no podman or docker answers on this machine; $directly"
}

# An image that is not there is fetched, as by `run` itself, but here its absence gets a sentence.
find_image() {
    quickly "$engine" image inspect "$image" >/dev/null && return
    say "fetching the image $image with $engine"
    "$engine" pull -q "$image" >/dev/null &
    fetching=$!
    wait $fetching && return
    if [ -n "$heard" ]; then
        kill $fetching
        exit 143
    fi
    fail "the image $image is not on this machine and could not be fetched; build it here, or name one that is"
}

set_python_path() {
    own=${PYTHONPATH:-}
    if [ "$library" = image ]; then
        own=$(quickly "$engine" image inspect --format '{{range .Config.Env}}{{println .}}{{end}}' "$image" |
            sed -n 's/^PYTHONPATH=//p')
    fi
    export PYTHONPATH="/stoker/lib${own:+:$own}"
}

# -- GPUs --------------------------------------------------------------------------------------

specifications() { cat /etc/cdi/*.json /etc/cdi/*.yaml /var/run/cdi/*.json /var/run/cdi/*.yaml 2>/dev/null; }

# Whether the Container Device Interface knows a GPU by this name.
specified() { specifications | grep -q "name\"\{0,1\}: *[\"']\{0,1\}$1[\"']\{0,1\},\{0,1\} *\$"; }

has_hook() {
    for program in nvidia-container-runtime-hook nvidia-container-cli nvidia-container-runtime; do
        command -v $program >/dev/null && return
    done
    return 1
}

# Prints what the engine needs to pass the GPUs on, a word for each; it may have no way to.
find_devices() {
    if [ "$kind" = docker ] && has_hook; then
        echo "--gpus=\"device=$gpus\""
        return
    fi
    specifications | grep -q 'nvidia\.com/gpu' || return 1
    numbers=$STOKER_GPUS
    for device in $(echo "$gpus" | tr , ' '); do
        specified "$device" || device=${numbers%%,*}
        specified "$device" || return 1
        numbers=${numbers#*,}
        echo "--device=nvidia.com/gpu=$device"
    done
}

# A container that is given some of the machine's GPUs counts them from 0.
count_devices() {
    count=0 list=''
    for _ in $(echo "$gpus" | tr , ' '); do
        list=$list${list:+,}$count
        count=$((count + 1))
    done
    echo "$list"
}

# -- signals -----------------------------------------------------------------------------------

tree() {
    echo "$1"
    for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do tree "$child"; done
}

# Whether a process is there and no zombie.
lives() {
    while read -r key value _; do
        case $key$value in
            State:[ZX]) return 1 ;;
            State:*) return 0 ;;
        esac
    done 2>/dev/null <"/proc/$1/status"
    return 1
}

# The container's first process, as this machine knows it: none if it is not ours to touch, as
# with an engine that works on another machine or for another user.
find_first() {
    first=$(quickly "$engine" inspect --format '{{.State.Pid}}' "$name")
    [ "${first:-0}" != 0 ] && kill -0 "$first" 2>/dev/null &&
        tr '\0' '\n' 2>/dev/null <"/proc/$first/environ" | grep -qxF "STOKER_TOKEN=$STOKER_TOKEN" &&
        return
    first=
}

# Whether the first process would die of this signal if it were not the first of its container:
# the kernel keeps from such a process whatever it has no handler for.
shielded() {
    while read -r key value; do
        case $key in
            SigIgn: | SigCgt:)
                value=${value#????????} # no shell counts to 2^64
                [ $((0x$value >> ($1 - 1) & 1)) = 0 ] || return 1
                ;;
        esac
    done 2>/dev/null <"/proc/$first/status"
}

# Every process gets a signal, and gets it once. A first process that is shielded from it is
# stopped, so that it begins nothing new, and killed when the others have ended.
pass_on() {
    find_first
    if [ -z "$first" ]; then
        quickly "$engine" kill -s "$1" "$name" >/dev/null
        return
    fi
    case $1 in HUP) number=1 ;; INT) number=2 ;; QUIT) number=3 ;; TERM) number=15 ;; *) number=0 ;; esac
    if [ $number != 0 ] && shielded $number; then ended_by=$number; fi
    # shellcheck disable=SC2046 # a word for each process
    kill -s "$1" $(tree "$first") 2>/dev/null
    return 0
}

bury_first() {
    kill -s STOP "$first" 2>/dev/null
    # shellcheck disable=SC2046
    set -- $(tree "$first")
    shift
    for each in "$@"; do lives "$each" && return; done
    kill -s KILL "$first" 2>/dev/null
}

# Ask until somebody hears it, for there may be no container yet; insist when the time is up.
end() {
    told=no tenths=$((seconds * 10))
    while lives "$client"; do
        if [ $tenths -le 0 ]; then
            quickly "$engine" kill "$name" >/dev/null
        elif [ $told = no ]; then
            pass_on TERM && told=yes
        fi
        [ $ended_by = 0 ] || bury_first
        tenths=$((tenths - 1))
        sleep 0.1
    done
}

hear() {
    again=yes
    [ "$1" != PWR ] || seconds=0 tenths=0 # at once, also if it has been asked already
    case $1 in TERM | HUP | PWR) deadly=yes ;; *) deadly=no ;; esac
    if [ -z "$client" ]; then
        [ $deadly = no ] || heard=$1
    elif [ $deadly = yes ]; then
        end
    else
        pass_on "$1"
        while [ $ended_by != 0 ] && lives "$client"; do
            bury_first
            sleep 0.1
        done
    fi
}

others_write() { case $(ls -ld "$1") in ????????w*) return 0 ;; *) return 1 ;; esac; }

# -- the run -----------------------------------------------------------------------------------

for each in HUP INT QUIT TERM USR1 USR2 ALRM VTALRM PROF PWR WINCH URG XCPU; do
    # shellcheck disable=SC2064 # each signal its own name
    trap "hear $each" $each
done
find_engine
find_image
case $(quickly "$engine" --version) in *odman*) kind=podman ;; *) kind=docker ;; esac
[ "$library" = none ] || set_python_path

left=$#
while [ $left -gt 0 ]; do # one turn of all words, those with a plus replaced by what they mean
    word=$1
    shift
    left=$((left - 1))
    case $word in
        +run)
            break
            ;;
        +make | +keep)
            mkdir -p "$1" || fail "cannot make the directory $1"
            if [ "$word" = +make ] || others_write "${1%/*}"; then chmod 777 "$1"; fi
            shift
            left=$((left - 1))
            ;;
        +needs)
            [ -e "$1" ] || fail "$1, which $2 in the container is to be, is not there"
            option=$3
            shift 3
            set -- "$@" "$option"
            left=$((left - 3))
            ;;
        +perhaps)
            there=$1 option=$2
            shift 2
            [ ! -e "$there" ] || set -- "$@" "$option"
            left=$((left - 2))
            ;;
        *)
            set -- "$@" "$word"
            ;;
    esac
done
while [ $left -gt 0 ]; do
    word=$1
    shift
    set -- "$@" "$word"
    left=$((left - 1))
done

if [ -n "$gpus" ]; then
    NVIDIA_VISIBLE_DEVICES=$gpus
    if devices=$(find_devices); then
        CUDA_VISIBLE_DEVICES=$(count_devices)
        # shellcheck disable=SC2086 # a word for each device
        set -- $devices "$@"
    elif [ "$gpus" = "$STOKER_GPUS" ]; then
        NVIDIA_VISIBLE_DEVICES=all # numbers are right only where none is hidden
    else
        CUDA_VISIBLE_DEVICES=$gpus # UUIDs are right whether or not a hook of the engine hides others
    fi
else
    NVIDIA_VISIBLE_DEVICES=void
fi
export NVIDIA_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES
if [ -n "${ROCR_VISIBLE_DEVICES:-}" ] && [ -e /dev/kfd ]; then
    set -- --device=/dev/kfd --device=/dev/dri "$@"
fi
# What a machine has: loaders of data pass whole batches through it, 64 MB are soon full.
while read -r key value _; do
    [ "$key" = MemTotal: ] && set -- "--shm-size=$((value / 2))k" "$@"
done </proc/meminfo
[ ! -e /sys/fs/selinux/enforce ] || set -- --security-opt=label=disable "$@"
[ $kind = docker ] || set -- --http-proxy=false "$@"

[ -z "$heard" ] || exit 143
exec 3<&0 # a command in the background would not get it otherwise
"$engine" run --rm --sig-proxy=false --name "$name" "$@" <&3 3<&- &
client=$!
[ -z "$heard" ] || end
code=127
while :; do
    again=no
    wait $client
    last=$?
    [ $last = 127 ] && [ $code != 127 ] || code=$last # 127: it was waited for before
    [ $again = yes ] || break
done
if [ $ended_by != 0 ] && [ $code = 137 ]; then code=$((128 + ended_by)); fi
exit $code
