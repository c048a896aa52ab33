"""What `auto server` was told, checked before anything is touched."""

from __future__ import annotations

import os

from stoker.client.errors import UsageError
from stoker.compat.auto.options import PORT, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.cli.options import Args


class Settings:
    """The server's options, with the defaults of the guide."""

    def __init__(self, gpus: list[str]) -> None:
        self.gpus = gpus
        self.max_run = 10_000
        self.num_records = 10_000
        self.port = PORT
        self.limit = min(8, len(gpus))
        self.max_load = 0.1
        self.max_memory = 0.1
        self.log_file: str | None = None
        self.bind: str | None = None


def read(args: Args) -> Settings:
    """Return the settings, or say what is wrong with them."""
    found = Settings(_gpus(args))
    found.max_run = whole(args, "max_run", found.max_run, 1)
    found.num_records = whole(args, "num_records", found.num_records, 0, 1_000_000)
    found.port = whole(args, "port", found.port, 0, 65535)
    found.limit = min(whole(args, "limit", 8, 1), len(found.gpus))
    found.max_load = _share(args, "max_load", found.max_load)
    found.max_memory = _share(args, "max_memory", found.max_memory)
    found.bind = _address(args.text("bind"))
    found.log_file = _log_file(args.text("log_file"))
    return found


def _gpus(args: Args) -> list[str]:
    typed = [part for text in args.many("gpus") for part in text.split(",") if part]
    if not typed:
        raise UsageError("No GPUs given. Example: auto server --gpus 0 1 2 3")
    for text in typed:
        if not (text.isdecimal() and text.isascii() and len(text) < 6):
            raise UsageError(f"--gpus takes GPU numbers, not {text!r}.")
    numbers = [int(text) for text in typed]
    if len(set(numbers)) != len(numbers):
        raise UsageError("--gpus names a GPU twice.")
    return [str(number) for number in sorted(numbers)]


def _share(args: Args, key: str, default: float) -> float:
    text = args.text(key)
    try:
        value = default if text is None else float(text)
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
    if not new and not os.path.isfile(path):  # opening a pipe would wait for its reader
        raise UsageError(f"--log-file: {path} is not a file.")
    if not os.access(os.path.dirname(path) if new else path, os.W_OK):
        raise UsageError(f"--log-file: {path} cannot be written to.")
    return path
