"""ServerSettings: the options of `auto server`, checked."""

from __future__ import annotations

import os

from stoker.client.errors import UsageError
from stoker.compat.auto.options import DEFAULT_PORT, parse_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.cli.options import Args


class ServerSettings:
    """Options of the server with the defaults of the original."""

    def __init__(self, args: Args) -> None:
        self.gpus = _gpus(args)
        self.max_run = parse_count(args, "max_run", 10_000, 1)
        self.num_records = parse_count(args, "num_records", 10_000, 0, 1_000_000)
        self.port = parse_count(args, "port", DEFAULT_PORT, 0, 65535)
        self.limit = min(parse_count(args, "limit", 8, 1), len(self.gpus))
        self.max_load = _share(args, "max_load")
        self.max_memory = _share(args, "max_memory")
        self.bind = _address(args.text("bind"))
        self.log_file = _log_file(args.text("log_file"))


def _gpus(args: Args) -> list[str]:
    indexes = [part for text in args.many("gpus") for part in text.split(",") if part]
    if not indexes:
        raise UsageError("No GPUs given. Example: auto server --gpus 0 1 2 3")
    for text in indexes:
        if not (text.isdecimal() and text.isascii() and len(text) < 6):
            raise UsageError(f"--gpus takes GPU numbers, not {text!r}.")
    numbers = [int(text) for text in indexes]
    if len(set(numbers)) != len(numbers):
        raise UsageError("--gpus names a GPU twice.")
    return [str(number) for number in sorted(numbers)]


def _share(args: Args, key: str) -> float:
    text = args.text(key)
    try:
        value = 0.1 if text is None else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise UsageError(
            f"--{key.replace('_', '-')} takes a share above 0 and up to 1, such as 0.1, "
            f"not {text!r}."
        )
    return value


def _address(text: str | None) -> str | None:
    if text is None:
        return None
    from ipaddress import ip_address

    try:
        address = ip_address(text)
    except ValueError:
        raise UsageError(f"--bind takes an IP address of this host, not {text!r}.") from None
    if address.is_unspecified:
        raise UsageError("--bind takes one address of this host, the one that clients use.")
    return str(address)


def _log_file(text: str | None) -> str | None:
    if text is None:
        return None
    path = os.path.abspath(os.path.expanduser(text))
    new = not os.path.exists(path)
    if not new and not os.path.isfile(path):  # opening a pipe would block
        raise UsageError(f"--log-file: {path} is not a file.")
    if not os.access(os.path.dirname(path) if new else path, os.W_OK):
        raise UsageError(f"--log-file: {path} cannot be written to.")
    return path
