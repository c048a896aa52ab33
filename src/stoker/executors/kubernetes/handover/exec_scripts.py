"""Shell programs that run in the container of an attempt, through `kubectl exec`."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Mapping

from stoker.executors.kubernetes.handover.pod_spec import REPORTS, SHELL, TERM_ALL

KILL_FIRST = f'kill -KILL "$(cat {REPORTS}/.pid)" || kill -KILL -1'
"""Ends the command; its wrapper then ends the container, with everything that is left in it."""
TO_HANDLERS = """\
number=$1 only=$2
for directory in /proc/[0-9]*; do
    pid=${directory#/proc/}
    [ "$pid" != 1 ] && [ "$pid" != $$ ] || continue
    [ -z "$only" ] || [ "$pid" = "$(cat $only)" ] || continue
    while read -r key value; do
        [ "$key" = SigCgt: ] || continue
        value=${value#????????}
        [ $((0x$value >> (number - 1) & 1)) = 0 ] || kill -"$number" "$pid"
    done <"$directory/status"
done 2>/dev/null
exit 0
"""
"""Signals the processes that handle the signal: all, or the one in the file `only`."""
WRITE = f'printf %s "$2" >"{REPORTS}/.$1.new" && mv "{REPORTS}/.$1.new" "{REPORTS}/$1"'
GO, CANCELLED = ".go", ".cancelled"
BARRIER_FILES = (GO, CANCELLED)
"""Files that end the wait at the barrier."""


def term() -> list[str]:
    """Return the command that terminates all processes."""
    return [SHELL, "-c", TERM_ALL]


def kill() -> list[str]:
    """Return the command that kills them."""
    return [SHELL, "-c", KILL_FIRST]


def send_signal(number: int, only_if_handled: bool, to_script: bool) -> list[str]:
    """Return the command that sends a signal."""
    if number == signal.SIGKILL:
        return kill()
    if only_if_handled or to_script:
        only = f"{REPORTS}/.pid" if to_script else ""
        return [SHELL, "-c", TO_HANDLERS, "sh", str(number), only]
    return [SHELL, "-c", f"kill -{number} -1"]


def write_file(name: str, text: str) -> list[str]:
    """Return the command that writes a file into the report directory, whole or not at all."""
    return [SHELL, "-c", WRITE, "sh", name, text]


def exports(environment: Mapping[str, str]) -> str:
    """Return the text of GO: the variables with which a part passes its barrier."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
