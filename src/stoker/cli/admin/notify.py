"""Notify targets of jobs, sweeps, alarms and GPUs; list targets; send a test message.

Targets are in config.toml, as [notify.NAME]. TARGET may also be an e-mail address. CONDITION is
`job fail`, `job 42 done`, `sweep 17 done`, `alarm idle`, `before-limit 10m`, `queue empty` or
`gpu free`: [job|array|sweep [ID]] start|end|done|fail|requeue|alarm [KIND]|before-limit TIME.
It holds until it is removed, or its job, array or sweep has ended.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.cli.output import clean, table
from stoker.cli.output.table import Column
from stoker.cli.session import connect_without_start
from stoker.client.client import connect
from stoker.client.errors import StokerError, UsageError
from stoker.wire import JsonObject

USAGE = (
    "notify [list]", "notify test TARGET", "notify TARGET --when CONDITION", "notify remove RULE"
)  # fmt: skip
OPTIONS = (
    Option("--when", "CONDITION", "notify TARGET when this happens"),
    Option("--no-header", None, "print no header line"),
)
COLUMNS = (
    Column("TARGET"),
    Column("KIND"),
    Column("ON"),
    Column("SENT", right=True),
    Column("PENDING", right=True),
    Column("FAILED", right=True),
    Column("LAST ERROR", cut=True),
)
RULE_COLUMNS = (Column("RULE", right=True), Column("TARGET"), Column("WHEN"), Column("USER"))


def main(argv: list[str]) -> int:
    """List targets and rules, test a target, add or remove a rule."""
    args = parse(OPTIONS, argv, verb="notify")
    words, when = args.words or ["list"], args.text("when")
    if when is not None:
        if len(words) != 1 or not args.words:
            raise UsageError("Write: stoker notify TARGET --when CONDITION.")
        return _add(words[0], when)
    client = connect_without_start()
    if words[0] == "test" and len(words) == 2:
        reply = client.test_notification(words[1])
        if reply["error"] is not None:
            raise StokerError(f"{words[1]}: {clean(reply['error'])}")
        return output.report(reply, f"stoker: sent a test message to {words[1]}")
    if words[0] == "remove" and len(words) == 2:
        reply = client.remove_notify_rule(words[1])
        return output.report(reply, f"stoker: {_text(reply)}: removed")
    if words != ["list"]:
        raise UsageError(f"Write: stoker {'; or: stoker '.join(USAGE)}.")
    return _list(client.notification_targets(), args)


def _add(target: str, when: str) -> int:
    reply = connect().add_notify_rule(target, when)
    note = f" ({reply['note']})" if reply["note"] else ""
    return output.report(reply, f"stoker: {_text(reply)}{note}")


def _text(rule: JsonObject) -> str:
    return f"rule {rule['id']}: {clean(rule['target'])} when {clean(rule['when'])}"


def _list(reply: JsonObject, args: Args) -> int:
    if args.flag("json"):
        return output.emit(reply)
    header = not args.flag("no_header")
    if not (reply["targets"] or reply["rules"]):
        output.say("stoker: no targets; write [notify.NAME] into config.toml")
        return 0
    rows = [
        [
            clean(target["name"]), target["kind"], ", ".join(target["on"]) or "-",
            str(target["sent"]), str(target["pending"]), str(target["failed"]),
            clean(target["error"] or "-"),
        ]
        for target in reply["targets"]
    ]  # fmt: skip
    if rows:
        table.write(COLUMNS, rows, header=header)
    if reply["rules"]:
        if rows:
            print()
        rules = [
            [str(rule["id"]), clean(rule["target"]), clean(rule["when"]), clean(rule["user"])]
            for rule in reply["rules"]
        ]
        table.write(RULE_COLUMNS, rules, header=header)
    return 0
