"""`grass create-queue`: create a queue with its own devices."""

from __future__ import annotations

import sys

from stoker.cli import output
from stoker.client.client import connect
from stoker.client.errors import StokerError, UsageError
from stoker.compat.arguments import ONCE, SWITCH, Arguments, read_arguments
from stoker.compat.grass import queues
from stoker.compat.grass.resources import (
    MAX_TEXT_LENGTH,
    daemon_type,
    format_amount,
    parse_capacities,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.compat.grass.resources import Device

USAGE = """\
  grass create-queue QUEUE (--json JSON5 | --file FILE) [--backfill]

Create a queue with its own devices: {gpu:4} is four devices 0 to 3, {hdd:[32,64]} two devices of
these capacities, {gpu:{'2':1,'4':1}} two devices with these names.

  --json JSON5   its devices
  --file FILE    the same, read from a file (-: stdin)
  --backfill     a job may start ahead of a blocked job if it does not delay it; by default
                 jobs start in the order of submission

Devices with the same name in two queues are the same device and are never allocated twice; their
capacities must agree. GPUs are those of this node and of added nodes, if there are any: {gpu:4} is
the first four, {gpu:{'box1/0':1}} is GPU 0 of node box1.
"""
OPTIONS = {"--json": ONCE, "--file": ONCE, "--backfill": SWITCH}


def main(argv: list[str]) -> int:
    """Create the queue."""
    args = read_arguments(argv, OPTIONS, "grass create-queue")
    name = queues.only_queue(args, "create-queue")
    _check_name(name)
    devices = parse_capacities(*_text(args))
    resources = [
        {"type": daemon_type(kind), "device": device, "capacity": format_amount(capacity)}
        for kind, device, capacity in devices
    ]
    strict = "--backfill" not in args.switches
    try:
        connect().define_queue(name, strict=strict, new=True, resources=resources)
    except StokerError as error:
        raise queues.translate_error(error) from None
    output.say(f"grass: created {name}: {_describe(devices)}")
    return 0


def _check_name(name: str) -> None:
    if name == "default":
        raise UsageError("The queue 'default' is for jobs without a queue; choose another name.")
    letters = name.replace("_", "a").replace(".", "a").replace(":", "a").replace("-", "a")
    if not letters.isalnum() or len(name) > 64:
        raise UsageError(
            f"{output.clean(name)[:80]!r} is not a valid queue name; use letters, digits "
            "and _ - . :"
        )


def _text(args: Arguments) -> tuple[str, str]:
    """Return the JSON5 of --json or --file, and its name for messages."""
    text, path = args.values.get("--json"), args.values.get("--file")
    if (text is None) == (path is None):
        raise UsageError(
            "Give the devices of the queue with either --json '{gpu:4}' or --file FILE."
        )
    if text is not None:
        return text, "--json"
    assert path is not None
    name = "stdin" if path == "-" else output.clean(path)
    try:
        if path == "-" and sys.stdin is not None:
            data = sys.stdin.buffer.read(MAX_TEXT_LENGTH + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(MAX_TEXT_LENGTH + 1)
        return data.decode(), name
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not valid UTF-8.") from None


def _describe(devices: list[Device]) -> str:
    """Return the devices of a queue as text: `4 gpu, 2 hdd (32, 64)`."""
    types: dict[str, list[Device]] = {}
    for device in devices:
        types.setdefault(device[0], []).append(device)
    parts = []
    for kind, those in types.items():
        unit = all(capacity == 1000 for _, _, capacity in those)
        sizes = ", ".join(format_amount(capacity) for _, _, capacity in those[:8])
        more = ", ..." if len(those) > 8 else ""
        parts.append(f"{len(those)} {kind}" + ("" if unit else f" ({sizes}{more})"))
    return ", ".join(parts) or "no devices"
