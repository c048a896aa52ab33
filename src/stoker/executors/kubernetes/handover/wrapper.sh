# The first process of an attempt's container: run the command, pass its reports on, tell how it ended.
#
#   sh -c TEXT stoker NONCE FLAGS BARRIER COMMAND...
#
# Lines that begin with the nonce are taken out of the log by the daemon:
#
#   NONCE r OFFSET LINE     a line of the training report
#   NONCE e OFFSET LINE     a line of stderr, if it has a file of its own
#   NONCE b                 waits at the barrier
#   NONCE g                 has passed the barrier
#   NONCE x CODE            the exit code, after everything else
#   NONCE x lacks           the container does not see its GPUs, and the command was not run
#
# When a pod is deleted, the kubelet may remove the container before the end of its log was read. So
# the last lines of the report and the exit code are in the termination message too, which is a part
# of the pod's status, and the wrapper waits a moment.
#
# With STOKER_REPORT_ACCESS the training library sends the report over HTTP. While the file .http
# exists it has the number of bytes that need not be in the log.
#
# FLAGS has r and e for those that are wanted, and g to check that NVIDIA GPUs are visible, which the
# kubelet has not given to this container. BARRIER is the longest wait in seconds, 0 for none.
# Signals come through `kubectl exec` and reach all processes but this one; the kernel drops what
# has no handler here. So the command runs in the foreground, with its usual signals.

_nonce=$1 _flags=$2 _barrier=$3
shift 3
_dir=/stoker/reports
_message=/dev/termination-log
_kept_lines=12

# Pass on the complete lines of a file that grows, until the command has ended.
forward() {
    trap '' HUP INT QUIT TERM USR1 USR2
    trap : ALRM
    LC_ALL=C
    exec 3<"$_dir/report" 4<"$_dir/.err"
    _at=0 _err_at=0 _part='' _err_part='' _ended=no _sent=0
    set --
    while :; do
        [ ! -e "$_dir/.ended" ] || _ended=yes
        _by_http=no
        [ ! -e "$_dir/.http" ] || ! read -r _sent 2>/dev/null <"$_dir/.http" || _by_http=yes
        while [ $_ended = yes ] || [ $_by_http = no ]; do
            IFS= read -r _line <&3 || {
                _part=$_part$_line
                break
            }
            _line=$_part$_line _part=''
            [ "$_at" -lt "$_sent" ] || {
                printf '%s r %s %s\n' "$_nonce" "$_at" "$_line"
                set -- "$@" "$_nonce r $_at $_line"
                [ $# -le $_kept_lines ] || shift
            }
            _at=$((_at + ${#_line} + 1))
        done
        while IFS= read -r _line <&4; do
            _line=$_err_part$_line _err_part=''
            printf '%s e %s %s\n' "$_nonce" "$_err_at" "$_line"
            _err_at=$((_err_at + ${#_line} + 1))
        done
        _err_part=$_err_part$_line
        if [ $_ended = yes ]; then
            [ -z "$_err_part" ] || printf '%s e %s %s\n' "$_nonce" "$_err_at" "$_err_part"
            [ $# = 0 ] || printf '%s\n' "$@" >>$_message
            exit
        fi
        sleep 1 &
        wait $!
    done
} >&2

# print_end TEXT: print how it ended, in the log and in the termination message.
print_end() {
    printf '%s x %s\n' "$_nonce" "$1"
    printf '%s x %s\n' "$_nonce" "$1" >>$_message
    [ ! -e "$_dir/.ending" ] || sleep 2
}

case $_flags in *g)
    _flags=${_flags%g}
    [ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || case $(nvidia-smi -L 2>/dev/null) in
        *"UUID: "*) ;;
        *)
            print_end lacks
            exit 0
            ;;
    esac
    ;;
esac
if [ -d /stoker/lib ]; then
    export PYTHONPATH="/stoker/lib${PYTHONPATH:+:$PYTHONPATH}"
fi
if [ -n "${STOKER_SCRIPT_TEXT:-}" ]; then
    printf '%s' "$STOKER_SCRIPT_TEXT" >"$_dir/.job"
    chmod 755 "$_dir/.job"
    unset STOKER_SCRIPT_TEXT
fi
if [ "$_barrier" != 0 ]; then
    printf '%s b\n' "$_nonce" >&2
    until [ -e "$_dir/.go" ]; do
        [ ! -e "$_dir/.cancelled" ] && [ "$_barrier" != 0 ] || {
            print_end cancelled
            exit 0
        }
        _barrier=$((_barrier - 1))
        sleep 1
    done
    . "$_dir/.go"
    printf '%s g\n' "$_nonce" >&2
fi
_forwarder=''
if [ -n "$_flags" ]; then
    : >>"$_dir/report"
    : >>"$_dir/.err"
    trap '' ALRM # until the forwarder has its handler
    forward &
    _forwarder=$!
    trap - ALRM
fi
_sender=''
if [ -n "${STOKER_REPORT_ACCESS:-}" ]; then
    _python=$(command -v python3 || command -v python) && {
        "$_python" -I -S /stoker/lib/stoker/training/reports/http_sender.py "$_dir" >/dev/null 2>&1 &
        _sender=$!
    }
    unset STOKER_REPORT_ACCESS
fi
_main='echo $$ >/stoker/reports/.pid; exec "$@"'
case $_flags in
    *e*) sh -c "$_main" sh "$@" 2>>"$_dir/.err" ;;
    *) sh -c "$_main" sh "$@" 2>&1 ;;
esac
_code=$?
[ -z "$_sender" ] || kill -KILL $_sender 2>/dev/null
if [ -n "$_forwarder" ]; then
    : >"$_dir/.ended"
    kill -ALRM $_forwarder 2>/dev/null
    wait $_forwarder 2>/dev/null
fi
print_end $_code
exit $_code
