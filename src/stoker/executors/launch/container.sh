# The main process of an attempt in a container: finds the engine, runs it, ends what it runs.
#
#   sh -c TEXT stoker-container ENGINE NAME IMAGE SECONDS LIBRARY GPUS INSIDE WORD...
#
# ENGINE may be empty: whichever of podman and docker has the image, else the first that answers.
# SECONDS is how long the container has to end when it is asked to. LIBRARY says whose PYTHONPATH
# comes after ours: the `image`'s own, or the `job`'s. GPUS are separated by commas, best by UUID.
# INSIDE names variables that are the job's alone: the engine must not see them, so they are words.
# The words are options of `run`, then `+run`, the image and its command. Before `+run`,
#
#   +make DIRECTORY              makes one that whomever the image runs as can write to
#   +keep DIRECTORY              makes one that others can write to if they can beside it
#   +needs PATH TARGET OPTION    is the option; the job fails if the path is not there
#   +perhaps PATH TARGET OPTION  is the option only if the path is there; with a target, its
#                                absence is said
#
# TERM ends the container, PWR does so at once; other signals are passed on to what runs in it.
# What the job's variables hold comes in by our environment, never by words that others can read.
# Ours begin with an underline, for an assignment to one of the job's would change it inside.

_engine=$1 _name=$2 _image=$3 _seconds=$4 _library=$5 _gpus=$6 _inside=$7
shift 7
_client='' _heard='' _first='' _ended_by=0 _again=no

say() { echo "stoker: $*" >&2; }

fail() {
    say "$*"
    exit 125 # as engines do when it is not the command that failed
}

# Another node may have what this one lacks: the daemon looks for these words.
lack() { fail "cannot run here: $*"; }

# A server that does not answer must not keep a job for ever.
quickly() { timeout 60 "$@" </dev/null 2>/dev/null; }

# -- the engine and the image ------------------------------------------------------------------

find_engine() {
    _directly="leave --image out to run the command directly"
    if [ -n "$_engine" ]; then
        command -v "$_engine" >/dev/null || lack "$_engine is not installed on this node; $_directly"
        quickly "$_engine" version >/dev/null || lack "$_engine does not answer; try '$_engine version'"
        return
    fi
    _answers=
    for _engine in podman docker; do
        command -v $_engine >/dev/null || continue
        quickly $_engine image inspect "$_image" >/dev/null && return
        [ -z "$_answers" ] && quickly $_engine version >/dev/null && _answers=$_engine
    done
    _engine=$_answers
    [ -n "$_engine" ] || lack "neither podman nor docker answers on this node; $_directly"
}

# An image that is not there is fetched, as by `run` itself, but here its absence gets a sentence.
find_image() {
    quickly "$_engine" image inspect "$_image" >/dev/null && return
    say "fetching the image $_image with $_engine"
    "$_engine" pull -q "$_image" >/dev/null &
    _fetching=$!
    wait $_fetching && return
    if [ -n "$_heard" ]; then
        kill $_fetching
        exit 143
    fi
    lack "the image $_image is not on this node and could not be fetched; build it on this node, or name another image"
}

set_python_path() {
    _own=${PYTHONPATH:-}
    if [ "$_library" = image ]; then
        _own=$(quickly "$_engine" image inspect --format '{{range .Config.Env}}{{println .}}{{end}}' "$_image" |
            sed -n 's/^PYTHONPATH=//p')
    fi
    export PYTHONPATH="/stoker/lib${_own:+:$_own}"
}

# -- GPUs --------------------------------------------------------------------------------------

specifications() { cat /etc/cdi/*.json /etc/cdi/*.yaml /var/run/cdi/*.json /var/run/cdi/*.yaml 2>/dev/null; }

# Whether the Container Device Interface knows a GPU by this name.
specified() { specifications | grep -q "name\"\{0,1\}: *[\"']\{0,1\}$1[\"']\{0,1\},\{0,1\} *\$"; }

has_hook() {
    for _program in nvidia-container-runtime-hook nvidia-container-cli nvidia-container-runtime; do
        command -v $_program >/dev/null && return
    done
    return 1
}

# Prints what the engine needs to pass the GPUs on, a word for each; it may have no way to.
find_devices() {
    if [ "$_kind" = docker ] && has_hook; then
        echo "--gpus=\"device=$_gpus\""
        return
    fi
    specifications | grep -q 'nvidia\.com/gpu' || return 1
    _numbers=$STOKER_GPUS
    for _device in $(echo "$_gpus" | tr , ' '); do
        specified "$_device" || _device=${_numbers%%,*}
        specified "$_device" || return 1
        _numbers=${_numbers#*,}
        echo "--device=nvidia.com/gpu=$_device"
    done
}

# A container that is given some of the machine's GPUs counts them from 0.
count_devices() {
    _count=0 _list=''
    for _ in $(echo "$_gpus" | tr , ' '); do
        _list=$_list${_list:+,}$_count
        _count=$((_count + 1))
    done
    echo "$_list"
}

# -- signals -----------------------------------------------------------------------------------

tree() {
    echo "$1"
    for _child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do tree "$_child"; done
}

# Whether a process is there and no zombie.
lives() {
    while read -r _key _value _; do
        case $_key$_value in
            State:[ZX]) return 1 ;;
            State:*) return 0 ;;
        esac
    done 2>/dev/null <"/proc/$1/status"
    return 1
}

# The container's first process, as this machine knows it: none if it is not ours to touch, as
# with an engine that works on another machine or for another user.
find_first() {
    _first=$(quickly "$_engine" inspect --format '{{.State.Pid}}' "$_name")
    [ "${_first:-0}" != 0 ] && kill -0 "$_first" 2>/dev/null &&
        tr '\0' '\n' 2>/dev/null <"/proc/$_first/environ" | grep -qxF "STOKER_TOKEN=$STOKER_TOKEN" &&
        return
    _first=
}

# Whether the first process would die of this signal if it were not the first of its container:
# the kernel keeps from such a process whatever it has no handler for.
shielded() {
    while read -r _key _value; do
        case $_key in
            SigIgn: | SigCgt:)
                _value=${_value#????????} # no shell counts to 2^64
                [ $((0x$_value >> ($1 - 1) & 1)) = 0 ] || return 1
                ;;
        esac
    done 2>/dev/null <"/proc/$_first/status"
}

# Every process gets a signal, and gets it once. A first process that is shielded from it is
# stopped, so that it begins nothing new, and killed when the others have ended.
pass_on() {
    find_first
    if [ -z "$_first" ]; then
        quickly "$_engine" kill -s "$1" "$_name" >/dev/null
        return
    fi
    case $1 in HUP) _number=1 ;; INT) _number=2 ;; QUIT) _number=3 ;; TERM) _number=15 ;; *) _number=0 ;; esac
    if [ $_number != 0 ] && shielded $_number; then _ended_by=$_number; fi
    # shellcheck disable=SC2046 # a word for each process
    kill -s "$1" $(tree "$_first") 2>/dev/null
    return 0
}

bury_first() {
    kill -s STOP "$_first" 2>/dev/null
    # shellcheck disable=SC2046
    set -- $(tree "$_first")
    shift
    for _each in "$@"; do lives "$_each" && return; done
    kill -s KILL "$_first" 2>/dev/null
}

# Ask until somebody hears it, for there may be no container yet; insist when the time is up.
end() {
    _told=no _tenths=$((_seconds * 10))
    while lives "$_client"; do
        if [ $_tenths -le 0 ]; then
            quickly "$_engine" kill "$_name" >/dev/null
        elif [ $_told = no ]; then
            pass_on TERM && _told=yes
        fi
        [ $_ended_by = 0 ] || bury_first
        _tenths=$((_tenths - 1))
        sleep 0.1
    done
}

hear() {
    _again=yes
    [ "$1" != PWR ] || _seconds=0 _tenths=0 # at once, also if it has been asked already
    case $1 in TERM | HUP | PWR) _deadly=yes ;; *) _deadly=no ;; esac
    if [ -z "$_client" ]; then
        [ $_deadly = no ] || _heard=$1
    elif [ $_deadly = yes ]; then
        end
    else
        pass_on "$1"
        while [ $_ended_by != 0 ] && lives "$_client"; do
            bury_first
            sleep 0.1
        done
    fi
}

others_write() { case $(ls -ld "$1") in ????????w*) return 0 ;; *) return 1 ;; esac; }

# -- the run -----------------------------------------------------------------------------------

for _each in HUP INT QUIT TERM USR1 USR2 ALRM VTALRM PROF PWR WINCH URG XCPU; do
    # shellcheck disable=SC2064 # each signal its own name
    trap "hear $_each" $_each
done
for _each in $_inside; do
    eval "_value=\$$_each"
    set -- "--env=$_each=$_value" "$@"
    case $_each in
        PATH) PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin ;;
        HOME) HOME=$(getent passwd "$(id -u)" | cut -d: -f6) ;;
        *) unset "$_each" ;;
    esac
done
find_engine
find_image
case $(quickly "$_engine" --version) in *odman*) _kind=podman ;; *) _kind=docker ;; esac
[ "$_library" = none ] || set_python_path

_left=$#
while [ $_left -gt 0 ]; do # one turn of all words, those with a plus replaced by what they mean
    _word=$1
    shift
    _left=$((_left - 1))
    case $_word in
        +run)
            break
            ;;
        +make | +keep)
            mkdir -p "$1" || fail "cannot create the directory $1"
            if [ "$_word" = +make ] || others_write "${1%/*}"; then chmod 777 "$1"; fi
            shift
            _left=$((_left - 1))
            ;;
        +needs)
            [ -e "$1" ] || lack "$1, to be mounted at $2 in the container, does not exist"
            _option=$3
            shift 3
            set -- "$@" "$_option"
            _left=$((_left - 3))
            ;;
        +perhaps)
            _there=$1 _target=$2 _option=$3
            shift 3
            if [ -e "$_there" ]; then
                set -- "$@" "$_option"
            elif [ -n "$_target" ]; then
                say "$_there is not on this node, so there is no $_target in the container"
            fi
            _left=$((_left - 3))
            ;;
        *)
            set -- "$@" "$_word"
            ;;
    esac
done
while [ $_left -gt 0 ]; do
    _word=$1
    shift
    set -- "$@" "$_word"
    _left=$((_left - 1))
done

if [ -n "$_gpus" ]; then
    NVIDIA_VISIBLE_DEVICES=$_gpus
    if _devices=$(find_devices); then
        CUDA_VISIBLE_DEVICES=$(count_devices)
        # shellcheck disable=SC2086 # a word for each device
        set -- $_devices "$@"
    elif [ "$_gpus" = "$STOKER_GPUS" ]; then
        NVIDIA_VISIBLE_DEVICES=all # numbers are right only where none is hidden
    else
        CUDA_VISIBLE_DEVICES=$_gpus # UUIDs are right whether or not a hook of the engine hides others
    fi
else
    NVIDIA_VISIBLE_DEVICES=void
fi
export NVIDIA_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES
if [ -n "${ROCR_VISIBLE_DEVICES:-}" ] && [ -e /dev/kfd ]; then
    set -- --device=/dev/kfd --device=/dev/dri "$@"
fi
# What a machine has: loaders of data pass whole batches through it, 64 MB are soon full.
while read -r _key _value _; do
    [ "$_key" = MemTotal: ] && set -- "--shm-size=$((_value / 2))k" "$@"
done </proc/meminfo
[ ! -e /sys/fs/selinux/enforce ] || set -- --security-opt=label=disable "$@"
[ $_kind = docker ] || set -- --http-proxy=false "$@"

[ -z "$_heard" ] || exit 143
exec 3<&0 # a command in the background would not get it otherwise
"$_engine" run --rm --sig-proxy=false --name "$_name" "$@" <&3 3<&- &
_client=$!
[ -z "$_heard" ] || end
_code=127
while :; do
    _again=no
    wait $_client
    _last=$?
    [ $_last = 127 ] && [ $_code != 127 ] || _code=$_last # 127: it was waited for before
    [ $_again = yes ] || break
done
if [ $_ended_by != 0 ] && [ $_code = 137 ]; then _code=$((128 + _ended_by)); fi
exit $_code
