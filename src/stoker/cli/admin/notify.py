"""List the targets of notifications, or send a test message to one.

Targets are in config.toml, as [notify.NAME]. TARGET may also be an e-mail address.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import Option, parse
from stoker.cli.output import clean, table
from stoker.cli.output.table import Column
from stoker.cli.session import connect_without_start
from stoker.client.errors import StokerError, UsageError

USAGE = ("notify [list]", "notify test TARGET")
OPTIONS = (Option("--no-header", None, "print no header line"),)
COLUMNS = (
    Column("TARGET"),
    Column("KIND"),
    Column("ON"),
    Column("SENT", right=True),
    Column("PENDING", right=True),
    Column("FAILED", right=True),
    Column("LAST ERROR", cut=True),
)


def main(argv: list[str]) -> int:
    """List targets, or test one."""
    args = parse(OPTIONS, argv, verb="notify")
    words = args.words or ["list"]
    client = connect_without_start()
    if words[0] == "test" and len(words) == 2:
        reply = client.test_notification(words[1])
        if reply["error"] is not None:
            raise StokerError(f"{words[1]}: {clean(reply['error'])}")
        return output.report(reply, f"stoker: sent a test message to {words[1]}")
    if words != ["list"]:
        raise UsageError("Write: stoker notify list, or: stoker notify test TARGET.")
    reply = client.notification_targets()
    if args.flag("json"):
        return output.emit(reply)
    if not reply["targets"]:
        output.say("stoker: no targets; write [notify.NAME] into config.toml")
        return 0
    rows = [
        [
            clean(target["name"]), target["kind"], ",".join(target["on"]) or "-",
            str(target["sent"]), str(target["pending"]), str(target["failed"]),
            clean(target["error"] or "-"),
        ]
        for target in reply["targets"]
    ]  # fmt: skip
    table.write(COLUMNS, rows, header=not args.flag("no_header"))
    return 0
