"""Use a drained GPU or node again."""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.cluster.drain import drained_names, split_devices
from stoker.cli.options import parse
from stoker.client.client import connect

USAGE = ("undrain GPU ...",)
OPTIONS = ()


def main(argv: list[str]) -> int:
    """Undrain the named devices."""
    args = parse(OPTIONS, argv, verb="undrain")
    reply = connect().undrain(split_devices(args.words, "undrain"))
    return output.report(reply, f"stoker: using {drained_names(reply)} again")
