# The main process of an attempt in a container: find the engine, run the container, forward signals.
#
#   sh -c TEXT stoker-container ENGINE NAME IMAGE SECONDS LIBRARY GPUS INSIDE WORD...
#
# ENGINE may be empty: podman or docker, whichever has the image, else the first that answers.
# SECONDS is the time between TERM and KILL. LIBRARY says which PYTHONPATH follows ours: that of the
# `image`, that of the `job`, or `none`. GPUS are separated by commas, preferably UUIDs.
# INSIDE names variables of the job that the engine must not see, so they become options of `run`.
# The words are options of `run`, then `+run`, the image and its command. Before `+run`,
#
#   +writable DIRECTORY           creates a directory that any user of the image can write to
#   +mkdir DIRECTORY              creates one that is world-writable if its parent is
#   +require PATH TARGET OPTION   is the option; the job fails if the path does not exist
#   +optional PATH TARGET OPTION  is the option only if the path exists; if it does not and there
#                                 is a target, a message says so
#
# TERM ends the container, PWR kills it; other signals are forwarded to the processes in it.
# Values of the job's variables arrive in the environment, never as words that other users can read.
# Variables of this script begin with an underscore: others would overwrite those of the job.

_engine=$1 _name=$2 _image=$3 _seconds=$4 _library=$5 _gpus=$6 _inside=$7
shift 7
_client='' _end_signal='' _init='' _ended_by=0 _interrupted=no

warn() { echo "stoker: $*" >&2; }

fail() {
    warn "$*"
    exit 125 # as engines do when it is not the command that failed
}

# Another node may have what is missing: the daemon recognises this prefix.
fail_on_node() { fail "cannot run here: $*"; }

# An engine that does not answer must not block the job for ever.
with_timeout() { timeout 60 "$@" </dev/null 2>/dev/null; }

# -- the engine and the image ------------------------------------------------------------------

find_engine() {
    _hint="leave --image out to run the command directly"
    if [ -n "$_engine" ]; then
        command -v "$_engine" >/dev/null || fail_on_node "$_engine is not installed on this node; $_hint"
        with_timeout "$_engine" version >/dev/null || fail_on_node "$_engine does not answer; try '$_engine version'"
        return
    fi
    _answering=
    for _engine in podman docker; do
        command -v $_engine >/dev/null || continue
        with_timeout $_engine image inspect "$_image" >/dev/null && return
        [ -z "$_answering" ] && with_timeout $_engine version >/dev/null && _answering=$_engine
    done
    _engine=$_answering
    [ -n "$_engine" ] || fail_on_node "neither podman nor docker answers on this node; $_hint"
}

# Pull a missing image, as `run` would do, but with a message of our own if that fails.
find_image() {
    with_timeout "$_engine" image inspect "$_image" >/dev/null && return
    warn "fetching the image $_image with $_engine"
    "$_engine" pull -q "$_image" >/dev/null &
    _pull=$!
    wait $_pull && return
    if [ -n "$_end_signal" ]; then
        kill $_pull
        exit 143
    fi
    fail_on_node "the image $_image is not on this node and could not be fetched; build it on this node, or name another image"
}

set_python_path() {
    _python_path=${PYTHONPATH:-}
    if [ "$_library" = image ]; then
        _python_path=$(with_timeout "$_engine" image inspect --format '{{range .Config.Env}}{{println .}}{{end}}' "$_image" |
            sed -n 's/^PYTHONPATH=//p')
    fi
    export PYTHONPATH="/stoker/lib${_python_path:+:$_python_path}"
}

# -- GPUs --------------------------------------------------------------------------------------

print_cdi_specs() { cat /etc/cdi/*.json /etc/cdi/*.yaml /var/run/cdi/*.json /var/run/cdi/*.yaml 2>/dev/null; }

# Whether a CDI (Container Device Interface) specification has a GPU with this name.
has_cdi_device() { print_cdi_specs | grep -q "name\"\{0,1\}: *[\"']\{0,1\}$1[\"']\{0,1\},\{0,1\} *\$"; }

has_nvidia_hook() {
    for _program in nvidia-container-runtime-hook nvidia-container-cli nvidia-container-runtime; do
        command -v $_program >/dev/null && return
    done
    return 1
}

# Print the options that make the GPUs visible in the container; fail if the engine has none.
find_devices() {
    if [ "$_kind" = docker ] && has_nvidia_hook; then
        echo "--gpus=\"device=$_gpus\""
        return
    fi
    print_cdi_specs | grep -q 'nvidia\.com/gpu' || return 1
    _numbers=$STOKER_GPUS
    for _device in $(echo "$_gpus" | tr , ' '); do
        has_cdi_device "$_device" || _device=${_numbers%%,*}
        has_cdi_device "$_device" || return 1
        _numbers=${_numbers#*,}
        echo "--device=nvidia.com/gpu=$_device"
    done
}

# Inside a container with some of the node's GPUs, these are numbered from 0.
local_gpu_numbers() {
    _count=0 _list=''
    for _ in $(echo "$_gpus" | tr , ' '); do
        _list=$_list${_list:+,}$_count
        _count=$((_count + 1))
    done
    echo "$_list"
}

# -- signals -----------------------------------------------------------------------------------

descendants() {
    echo "$1"
    for _child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do descendants "$_child"; done
}

# Whether a process exists and is not a zombie.
is_alive() {
    while read -r _key _value _; do
        case $_key$_value in
            State:[ZX]) return 1 ;;
            State:*) return 0 ;;
        esac
    done 2>/dev/null <"/proc/$1/status"
    return 1
}

# Set $_init to the pid of the container's first process; empty if it is not visible or not ours,
# as with an engine on another machine or of another user.
find_init() {
    _init=$(with_timeout "$_engine" inspect --format '{{.State.Pid}}' "$_name")
    [ "${_init:-0}" != 0 ] && kill -0 "$_init" 2>/dev/null &&
        tr '\0' '\n' 2>/dev/null <"/proc/$_init/environ" | grep -qxF "STOKER_TOKEN=$STOKER_TOKEN" &&
        return
    _init=
}

# Whether this signal would kill the first process if it were not the first of its container: the
# kernel drops signals for which such a process has no handler.
is_shielded_from() {
    while read -r _key _value; do
        case $_key in
            SigIgn: | SigCgt:)
                _value=${_value#????????} # shells have signed 64-bit numbers
                [ $((0x$_value >> ($1 - 1) & 1)) = 0 ] || return 1
                ;;
        esac
    done 2>/dev/null <"/proc/$_init/status"
}

# Signal every process once. A first process that is shielded from the signal is stopped, so that it
# starts no others, and killed when the others have ended.
forward() {
    find_init
    if [ -z "$_init" ]; then
        with_timeout "$_engine" kill -s "$1" "$_name" >/dev/null
        return
    fi
    case $1 in HUP) _number=1 ;; INT) _number=2 ;; QUIT) _number=3 ;; TERM) _number=15 ;; *) _number=0 ;; esac
    if [ $_number != 0 ] && is_shielded_from $_number; then _ended_by=$_number; fi
    # shellcheck disable=SC2046 # a word for each process
    kill -s "$1" $(descendants "$_init") 2>/dev/null
    return 0
}

kill_init_when_alone() {
    kill -s STOP "$_init" 2>/dev/null
    # shellcheck disable=SC2046
    set -- $(descendants "$_init")
    shift
    for _child in "$@"; do is_alive "$_child" && return; done
    kill -s KILL "$_init" 2>/dev/null
}

# Send TERM until a container receives it, since it may not exist yet; send KILL after the timeout.
end_container() {
    _term_sent=no _tenths_left=$((_seconds * 10))
    while is_alive "$_client"; do
        if [ $_tenths_left -le 0 ]; then
            with_timeout "$_engine" kill "$_name" >/dev/null
        elif [ $_term_sent = no ]; then
            forward TERM && _term_sent=yes
        fi
        [ $_ended_by = 0 ] || kill_init_when_alone
        _tenths_left=$((_tenths_left - 1))
        sleep 0.1
    done
}

on_signal() {
    _interrupted=yes
    [ "$1" != PWR ] || _seconds=0 _tenths_left=0 # kill it now, also if TERM was sent before
    case $1 in TERM | HUP | PWR) _is_fatal=yes ;; *) _is_fatal=no ;; esac
    if [ -z "$_client" ]; then
        [ $_is_fatal = no ] || _end_signal=$1
    elif [ $_is_fatal = yes ]; then
        end_container
    else
        forward "$1"
        while [ $_ended_by != 0 ] && is_alive "$_client"; do
            kill_init_when_alone
            sleep 0.1
        done
    fi
}

is_world_writable() { case $(ls -ld "$1") in ????????w*) return 0 ;; *) return 1 ;; esac; }

# -- the run -----------------------------------------------------------------------------------

for _signal in HUP INT QUIT TERM USR1 USR2 ALRM VTALRM PROF PWR WINCH URG XCPU; do
    # shellcheck disable=SC2064 # the name is expanded now
    trap "on_signal $_signal" $_signal
done
for _variable in $_inside; do
    eval "_value=\$$_variable"
    set -- "--env=$_variable=$_value" "$@"
    case $_variable in
        PATH) PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin ;;
        HOME) HOME=$(getent passwd "$(id -u)" | cut -d: -f6) ;;
        *) unset "$_variable" ;;
    esac
done
find_engine
find_image
case $(with_timeout "$_engine" --version) in *odman*) _kind=podman ;; *) _kind=docker ;; esac
[ "$_library" = none ] || set_python_path

_unread=$#
while [ $_unread -gt 0 ]; do # rotate through all words and replace those with a plus
    _word=$1
    shift
    _unread=$((_unread - 1))
    case $_word in
        +run)
            break
            ;;
        +writable | +mkdir)
            mkdir -p "$1" || fail "cannot create the directory $1"
            if [ "$_word" = +writable ] || is_world_writable "${1%/*}"; then chmod 777 "$1"; fi
            shift
            _unread=$((_unread - 1))
            ;;
        +require)
            [ -e "$1" ] || fail_on_node "$1, to be mounted at $2 in the container, does not exist"
            _option=$3
            shift 3
            set -- "$@" "$_option"
            _unread=$((_unread - 3))
            ;;
        +optional)
            _path=$1 _target=$2 _option=$3
            shift 3
            if [ -e "$_path" ]; then
                set -- "$@" "$_option"
            elif [ -n "$_target" ]; then
                warn "$_path is not on this node, so there is no $_target in the container"
            fi
            _unread=$((_unread - 3))
            ;;
        *)
            set -- "$@" "$_word"
            ;;
    esac
done
while [ $_unread -gt 0 ]; do
    _word=$1
    shift
    set -- "$@" "$_word"
    _unread=$((_unread - 1))
done

if [ -n "$_gpus" ]; then
    NVIDIA_VISIBLE_DEVICES=$_gpus
    if _devices=$(find_devices); then
        CUDA_VISIBLE_DEVICES=$(local_gpu_numbers)
        # shellcheck disable=SC2086 # a word for each device
        set -- $_devices "$@"
    elif [ "$_gpus" = "$STOKER_GPUS" ]; then
        NVIDIA_VISIBLE_DEVICES=all # numbers are valid only if no GPU is hidden
    else
        CUDA_VISIBLE_DEVICES=$_gpus # UUIDs are valid whether or not a hook hides other GPUs
    fi
else
    NVIDIA_VISIBLE_DEVICES=void
fi
export NVIDIA_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES
if [ -n "${ROCR_VISIBLE_DEVICES:-}" ] && [ -e /dev/kfd ]; then
    set -- --device=/dev/kfd --device=/dev/dri "$@"
fi
# Shared memory as on the node: data loaders pass whole batches through it, 64 MB are too small.
while read -r _key _value _; do
    [ "$_key" = MemTotal: ] && set -- "--shm-size=$((_value / 2))k" "$@"
done </proc/meminfo
[ ! -e /sys/fs/selinux/enforce ] || set -- --security-opt=label=disable "$@"
[ $_kind = docker ] || set -- --http-proxy=false "$@"

[ -z "$_end_signal" ] || exit 143
exec 3<&0 # a background command has no stdin otherwise
"$_engine" run --rm --sig-proxy=false --name "$_name" "$@" <&3 3<&- &
_client=$!
[ -z "$_end_signal" ] || end_container
_code=127
while :; do
    _interrupted=no
    wait $_client
    _status=$?
    [ $_status = 127 ] && [ $_code != 127 ] || _code=$_status # 127: its exit was already collected
    [ $_interrupted = yes ] || break
done
if [ $_ended_by != 0 ] && [ $_code = 137 ]; then _code=$((128 + _ended_by)); fi
exit $_code
