# The first process of a pilot's container. Agents are started beside it, by kubectl exec.
#
#   sh -c TEXT pilot NAME GRACE TOOL...
#
# NAME is the name of the pod, GRACE its grace period in seconds. The tools are those that an agent
# needs. As the first process of its name space it reaps what attempts leave: `wait` does that.
umask 077
name=$1 grace=$2
shift 2
lacks=
for tool in "$@"; do
    command -v "$tool" >/dev/null 2>&1 || lacks="$lacks $tool"
done
if [ -n "$lacks" ]; then
    echo "the image lacks programs that stoker needs:$lacks" >/dev/termination-log
    exit 1
fi

# print_processes: agents and attempts.
print_processes() {
    grep -lszF "STOKER_PILOT=$name" /proc/[0-9]*/environ | sed 's|/proc/\([0-9]*\)/.*|\1|'
}

# print_attempts: processes of attempts.
print_attempts() {
    grep -lszF "STOKER_TOKEN=" /proc/[0-9]*/environ | sed 's|/proc/\([0-9]*\)/.*|\1|'
}

# has_records: whether the daemon has not fetched all ends of attempts, or pods use the GPUs of this
# one (a file that the daemon writes before it creates one, and removes after the last has ended).
has_records() { [ -e "$HOME/.pods" ] || ls "$HOME"/.stoker/run/*/*.claim >/dev/null 2>&1; }

pause() {
    sleep "$1" &
    wait $!
}

# The pod is being deleted. Agents are ended: a daemon whose connection is lost asks when the pod
# ends, connects again, and asks its training jobs to stop. The shells that look after attempts get
# TERM, too, and know from it that an attempt that is killed now is lost.
leave() {
    trap : TERM
    for pid in $(print_processes); do
        grep -qszF "STOKER_TOKEN=" "/proc/$pid/environ" || kill "$pid" 2>/dev/null
    done
    left=$grace
    while [ -n "$(print_attempts)" ] || has_records; do
        # What has not ended by now was not asked to, or needs a reminder.
        [ "$left" != 10 ] || kill $(print_attempts) 2>/dev/null
        pause 1
        left=$((left - 1))
    done
    exit 0
}
trap leave TERM

unused=0
while :; do
    pause 60
    unused=$((unused + 1))
    [ -z "$(print_processes)" ] || unused=0
    # Without a daemon for half an hour, and without records that it would read.
    [ $unused -lt 30 ] || has_records || exit 0
done
