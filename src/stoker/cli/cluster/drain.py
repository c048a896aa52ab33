"""Start no more jobs on a GPU or node; running jobs continue.

GPU is an index (0 or 2,3), gpu:1, or NODE/INDEX; NODE alone means all GPUs of that node, `all`
every GPU.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import Option, parse
from stoker.client.client import connect
from stoker.client.errors import UsageError
from stoker.wire import JsonObject

USAGE = ("drain GPU ...",)
OPTIONS = (Option("--reason", "TEXT", "reason, shown by `gpus` and `why`"),)


def main(argv: list[str]) -> int:
    """Drain the named devices."""
    args = parse(OPTIONS, argv, verb="drain")
    reply = connect().drain(split_devices(args.words, "drain"), args.text("reason"))
    running = reply.get("labels") or []
    still = f"; jobs still running there: {', '.join(running)}" if running else ""
    return output.report(reply, f"stoker: draining {drained_names(reply)}{still}")


def drained_names(reply: JsonObject) -> str:
    """Return the names of whole nodes, then of devices."""
    nodes: list[str] = reply.get("machines") or []
    devices = [name for name in reply["devices"] if name.partition("/")[0] not in nodes]
    return ", ".join([*nodes, *devices])


def split_devices(words: list[str], verb: str) -> list[str]:
    """Return the named devices; `2,3` is two."""
    names = [name.strip() for word in words for name in word.split(",") if name.strip()]
    if not names:
        raise UsageError(f"No GPU given. For example: stoker {verb} 2,3")
    return names
