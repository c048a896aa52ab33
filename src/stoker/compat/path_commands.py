"""Find commands on PATH and their owner; record of the wrapper scripts that stoker wrote.

A file belongs to stoker only if it is byte for byte what the record says was written there, or a
command that the package installed. Every other file belongs to another program.
"""

from __future__ import annotations

import contextlib
import os
import sys

from stoker import places
from stoker.cli.output import clean
from stoker.client import fast_json
from stoker.client.errors import StokerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

STOKER = "stoker"
OTHER = "other"
PIP_SCRIPT_MARK = b"from stoker.compat.registry import"
"""Text contained in every command that the package installed."""
MAX_READ_BYTES = 65536
"""How much of a file is compared; the files of stoker are much shorter."""


def find_on_path(name: str, record: dict[str, str]) -> tuple[str | None, str | None]:
    """Return the path of the command that a shell would run, and its owner."""
    path = next(commands_on_path(name), None)
    if path is None:
        return None, None
    return path, STOKER if is_from_pip(path) or is_recorded(path, record) else OTHER


def is_recorded(path: str, record: dict[str, str]) -> bool:
    """Return True if a file is exactly what stoker wrote there."""
    data = None if os.path.islink(path) else read_start(path)
    return data is not None and record.get(path) == digest(data)


def is_from_pip(path: str) -> bool:
    """Return True if a file is, or links to, a command that the package installed."""
    return PIP_SCRIPT_MARK in (read_start(path) or b"")


def read_start(path: str) -> bytes | None:
    """Return the first MAX_READ_BYTES of a file, or None if it cannot be read."""
    try:
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            return file.read(MAX_READ_BYTES)
    except OSError:
        return None


# ------------------------------------------------------------------------------ directories


def default_directory() -> str:
    """Return the directory of the running `stoker` if it is writable, else ~/.local/bin."""
    this_command = os.path.abspath(sys.argv[0])
    beside_python = os.path.join(os.path.dirname(sys.executable), "stoker")
    for command in (this_command, beside_python):
        directory = os.path.dirname(command)
        is_stoker = os.path.basename(command) == "stoker" and os.path.isfile(command)
        if is_stoker and os.access(directory, os.W_OK | os.X_OK):
            return real_directory(directory)
    return real_directory("~/.local/bin")


def real_directory(path: str) -> str:
    """Return the canonical path of a directory, as used in the record."""
    return os.path.realpath(os.path.expanduser(path))


def path_directories() -> list[str]:
    """Return the directories of PATH in order, without duplicates."""
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    # An empty entry means the current directory.
    return list(dict.fromkeys(real_directory(entry or ".") for entry in entries))


def commands_on_path(name: str) -> Iterator[str]:
    """Yield every command of this name on PATH, in PATH order."""
    for directory in path_directories():
        path = os.path.join(directory, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            yield path


# ------------------------------------------------------------------------------- record


def record_path() -> str:
    """Return the record file: one per home directory, like ~/.local/bin, not one per host."""
    return os.path.join(os.path.dirname(places.state_dir()), "compat.json")


@contextlib.contextmanager
def record_lock() -> Iterator[None]:
    """Hold an exclusive lock on the record while it is read and rewritten."""
    import fcntl

    path = f"{record_path()}.lock"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_record() -> dict[str, str]:
    """Return the path of every written script and the hash of its bytes."""
    path = record_path()
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            record = fast_json.loads(file.read())
    except FileNotFoundError:
        return {}
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise StokerError(
            f"{clean(path)} is damaged. Move it away, and remove commands that were installed "
            "earlier by hand."
        )
    return record


def write_record(record: dict[str, str]) -> None:
    """Replace the record atomically."""
    path = record_path()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}.new"
    data = fast_json.dumps(record).encode("utf-8", "surrogateescape")
    try:
        write_new(temporary, data, 0o600)
        os.replace(temporary, path)
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def write_new(path: str, data: bytes, mode: int) -> None:
    """Create a file; raise FileExistsError if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        file.write(data)


def digest(data: bytes) -> str:
    """Return a short hash of a file's bytes."""
    return places.digest(os.fsdecode(data))
