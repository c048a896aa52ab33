"""Use a drained GPU or node again."""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.cluster.drain import drained_names, split_devices
from stoker.cli.options import Option, parse
from stoker.client.client import connect

USAGE = ("undrain GPU ...",)
OPTIONS: tuple[Option, ...] = ()


def main(argv: list[str]) -> int:
    """Undrain the named devices."""
    args = parse(OPTIONS, argv, verb="undrain")
    reply = connect().undrain(split_devices(args.words, "undrain"))
    if args.flag("json"):
        output.emit(reply)
    else:
        output.say(f"stoker: using {drained_names(reply)} again")
    return 0
