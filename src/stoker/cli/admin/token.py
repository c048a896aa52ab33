"""Create, list and revoke tokens for remote clients.

A remote client presents a token to a TCP port of the daemon (stoker daemon start --listen), with
STOKER_SERVER and STOKER_TOKEN_FILE. It acts as the user that created the token: --rights view
(default) only looks, act also submits and changes jobs. The token is shown once and stored hashed;
`revoke` ends it and its connections.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.cli.output import clean, table
from stoker.cli.output.table import Column
from stoker.cli.output.times import relative
from stoker.cli.session import connect_without_start
from stoker.client.client import connect
from stoker.client.errors import UsageError

USAGE = (
    "token create --name NAME [--rights view|act] [--days N]",
    "token list",
    "token revoke NAME|ID",
)
OPTIONS = (
    Option("--name", "NAME", "a name of your choice, such as that of the client machine"),
    Option("--rights", "RIGHTS", "view: only look (default); act: submit and change jobs too"),
    Option("--days", "N", "days until it expires (90)"),
    Option("--no-header", None, "print no header line"),
)
MAX_DAYS = 3650
NAMES = ("NAME", "RIGHTS", "USED", "EXPIRES", "USER", "ID")


def main(argv: list[str]) -> int:
    """Create, list or revoke tokens."""
    args = parse(OPTIONS, argv, verb="token")
    action, *words = args.words or [""]
    if action == "create" and len(words) <= 1:
        return _create(args, words)
    if any(args.values.get(option) for option in ("name", "rights", "days")):
        raise UsageError("--name, --rights and --days belong to stoker token create.")
    if action == "list" and not words:
        return _list(args)
    if action == "revoke" and len(words) == 1:
        reply = connect().revoke_token(words[0])
        return output.report(reply, f"stoker: revoked the token {clean(reply['name'])}")
    raise UsageError("Write stoker token create --name NAME, list, or revoke NAME.")


def _create(args: Args, words: list[str]) -> int:
    name = args.text("name") or "".join(words)
    if not name or (words and args.text("name")):
        raise UsageError("Give the token one name: stoker token create --name laptop")
    rights, days = args.text("rights") or "view", args.number("days", 90.0) or 0.0
    if rights not in ("view", "act"):
        raise UsageError(f"--rights is view or act, not '{clean(rights)}'.")
    if not 0 < days <= MAX_DAYS:
        raise UsageError(f"--days takes a number of days above 0 and up to {MAX_DAYS}.")
    reply = connect().create_token(name, rights, days)
    if args.flag("json"):
        return output.emit(reply)
    print(reply["token"])
    end = relative(reply["expires"])
    output.say(f"stoker: token {clean(name)} ({rights}) ends {end}; it is not shown again")
    return 0


def _list(args: Args) -> int:
    views = connect_without_start().tokens()["tokens"]
    if args.flag("json"):
        return output.emit(views)
    if not views:
        output.say("stoker: there are no tokens")
        return 0
    rows = [
        [
            clean(view["name"]), view["rights"], relative(view["used"]) or "never",
            relative(view["expires"]), clean(view["user"]), view["id"],
        ]
        for view in views
    ]  # fmt: skip
    columns = [Column(name) for name in NAMES]
    header = not args.flag("no_header")
    print("\n".join(table.render(columns, rows, header=header, width=table.terminal_width())))
    return 0
