"""`grass start`: start the daemon in the background."""

from __future__ import annotations

from stoker.cli import output
from stoker.client.client import connect
from stoker.client.errors import DaemonUnreachable, StokerError, UsageError
from stoker.compat.arguments import ONCE, read_arguments
from stoker.compat.grass import queues

USAGE = """\
  grass start [--db sqlite|postgres|URL]

Start stoker's daemon in the background. Each user has one; other commands start it when they need
it. Its socket and its log are in private directories.

  --db WHERE   database: sqlite (a file, default), postgres, or postgresql://HOST/NAME
"""
STORES = ("sqlite", "postgres")


def main(argv: list[str]) -> int:
    """Start a daemon unless one runs."""
    args = read_arguments(argv, {"--db": ONCE}, "grass start")
    queues.reject_words(args, "start")
    store = _store(args.values.get("--db"))
    client = connect(autostart=False)
    try:
        pid = client.daemon()["pid"]
    except DaemonUnreachable:
        pass
    else:
        raise StokerError(f"The daemon is already running (pid {pid}). To stop it: grass stop")
    from stoker.client.autostart import start_daemon
    from stoker.client.route import require_own

    require_own()
    pid = start_daemon(["--db", store] if store else [])
    about = client.daemon()
    output.say(f"grass: started the daemon (pid {pid})")
    output.say(f"grass: its socket is {about['socket']}, its log {about['log']}")
    return 0


def _store(text: str | None) -> str | None:
    if text is None or "://" in text:
        return text
    if text.lower() not in STORES:
        raise UsageError("--db takes sqlite, postgres, or a URL such as postgresql://host/name.")
    return text.lower()
