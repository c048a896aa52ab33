"""Send a signal to running jobs; without a signal, end them at once.

`kill -s USR1 42` only sends SIGUSR1 to job 42. `kill 42` cancels it without the grace time.
`kill -9 42` and `kill -USR1 42` work as with kill(1).
"""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.cli.session import confirm, connect_existing, print_result, require_selectors

USAGE = ("kill [-s SIGNAL] JOB ...",)
OPTIONS = (
    Option("-s/--signal", "SIG", "signal: USR1, SIGUSR1, 10"),
    Option("-y/--yes", None, "do not ask for confirmation", key="yes"),
)


def main(argv: list[str]) -> int:
    """Send a signal to, or kill, the selected jobs."""
    args = parse(OPTIONS, _expand_signal(argv), verb="kill")
    select = require_selectors(args, "kill")
    client = connect_existing()
    if not confirm(args, client, "Kill"):
        return 1
    signal = args.text("signal")
    participle = f"sent {signal} to" if signal else "killed"
    return print_result(client.kill(select, signal), args, participle)


def _expand_signal(argv: list[str]) -> list[str]:
    """Replace `-USR1` by `-s USR1`, as for kill(1); also `-9` if a job follows."""
    first = argv[0] if argv else ""
    name = first[1:]
    is_name = name.isalnum() and name.isupper() and len(name) > 2
    is_number = name.isdecimal() and len(argv) > 1
    if first.startswith("-") and (is_name or is_number):
        return ["-s", name, *argv[1:]]
    return argv
