"""Back up the database, or print where it is.

`stoker db backup FILE` writes a consistent copy while jobs run.
"""

from __future__ import annotations

import os

from stoker import places
from stoker.cli import output
from stoker.cli.options import parse
from stoker.cli.session import connect_existing
from stoker.client.client import Client, connect
from stoker.client.errors import StokerError, UsageError
from stoker.client.route import system_socket

USAGE = ("db backup FILE", "db path")
OPTIONS = ()


def main(argv: list[str]) -> int:
    """Run `backup` or `path`."""
    args = parse(OPTIONS, argv, verb="db")
    if args.words == ["path"]:
        path = _path()
        if args.flag("json"):
            return output.emit({"path": path})
        print(path)
        return 0
    if len(args.words) != 2 or args.words[0] != "backup":
        raise UsageError("Use: stoker db backup FILE, or: stoker db path")
    path = os.path.abspath(os.path.expanduser(args.words[1]))
    reply = connect_existing().backup(path)
    return output.report(reply, f"stoker: wrote {reply['path']} ({reply['bytes']:,} bytes)")


def _path() -> str:
    """Return the database: the file, or the server that the running daemon uses."""
    client = connect(autostart=False) if system_socket() else Client()
    client.check_version = False
    try:
        store = str(client.daemon().get("store") or "")
    except StokerError:
        store = ""
    if system_socket() and not store.startswith("postgres"):
        raise StokerError("The database belongs to the system daemon: /var/lib/stoker.")
    return store if store.startswith("postgres") else places.journal_path()
