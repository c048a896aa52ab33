"""Serve jobs, GPUs and logs to an MCP client over stdin and stdout (Model Context Protocol).

The client starts this command, which has the rights of the user. Without --write it changes
nothing. Settings for clients: docs/mcp.md.
"""

from __future__ import annotations

import sys

from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.client.errors import UsageError
from stoker.compat.mcp.limits import WriteLimits
from stoker.compat.mcp.protocol import Server

USAGE = ("mcp [--write[=own] [--max-gpus N] [--max-jobs N] [--max-hours H] [--queue NAME]]",)
OPTIONS = (
    Option("--write", "[=own]", "allow changes; `own`: only of jobs submitted by this command"),
    Option("--max-gpus", "N", "with --write: GPUs of all its unfinished jobs together"),
    Option("--max-jobs", "N", "with --write: number of its unfinished jobs"),
    Option("--max-hours", "H", "with --write: time limit of each of its jobs"),
    Option("--queue", "NAME", "with --write: the queue of all its jobs"),
)


def main(argv: list[str]) -> int:
    """Serve until stdin ends."""
    args = parse(OPTIONS, argv, verb="mcp")
    if args.words:
        raise UsageError(f"stoker mcp takes no arguments, but {args.words[0]!r} was given.")
    limits = _write_limits(args)
    if output.is_terminal(0):
        output.say("stoker: reads requests of an MCP client from stdin; ^D ends. See docs/mcp.md")
    Server(limits).serve(sys.stdin.buffer, sys.stdout)
    return 0


def _write_limits(args: Args) -> WriteLimits | None:
    """Return the limits of changes; None without --write."""
    write = args.values.get("write")
    if write is None:
        for key in ("max_gpus", "max_jobs", "max_hours", "queue"):
            if key in args.values:
                raise UsageError(f"--{key.replace('_', '-')} needs --write.")
        return None
    if write not in {True, "own"}:
        raise UsageError(f"--write takes no value or =own, not {write!r}.")
    for key in ("max_gpus", "max_hours"):
        value = args.number(key)
        if value is not None and not 0 < value < 1e6:
            raise UsageError(f"--{key.replace('_', '-')} takes a number above 0.")
    return WriteLimits(
        own=write == "own", max_gpus=args.number("max_gpus"), max_jobs=args.count("max_jobs"),
        max_hours=args.number("max_hours"), queue=args.text("queue"),
    )  # fmt: skip
