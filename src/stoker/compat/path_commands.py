"""Which commands are on PATH, whose they are, and the record of what stoker wrote itself.

A file is ours only if it is byte for byte what the record says we wrote there, or the command
that came with the package. Everything else is somebody's.
"""

from __future__ import annotations

import contextlib
import os
import sys

from stoker import places
from stoker.cli.output import clean
from stoker.client import fast_json as jsonlight
from stoker.client.errors import StokerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = "ours"
ANOTHER = "another"
PIP_WROTE = b"from stoker.compat.registry import"
"""What stands in a command that came with the package."""
LOOK_BYTES = 65536
"""How much of a file is looked at; nothing of ours is nearly as long."""


def found_on_path(name: str, record: dict[str, str]) -> tuple[str | None, str | None]:
    """Return the command of this name that a shell would run, and whose it is."""
    path = next(commands_on_path(name), None)
    if path is None:
        return None, None
    return path, OURS if is_from_pip(path) or is_recorded(path, record) else ANOTHER


def is_recorded(path: str, record: dict[str, str]) -> bool:
    """Whether a file is exactly what we wrote there."""
    data = None if os.path.islink(path) else contents(path)
    return data is not None and record.get(path) == digest(data)


def is_from_pip(path: str) -> bool:
    """Whether a file is, or leads to, a command that came with the package."""
    return PIP_WROTE in (contents(path) or b"")


def contents(path: str) -> bytes | None:
    """Return the beginning of a file, None if it is none or cannot be read."""
    try:
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            return file.read(LOOK_BYTES)
    except OSError:
        return None


# ------------------------------------------------------------------------------ places


def default_directory() -> str:
    """Return where the running `stoker` is, if that can be written to, else ~/.local/bin."""
    typed = os.path.abspath(sys.argv[0])
    beside_python = os.path.join(os.path.dirname(sys.executable), "stoker")
    for command in (typed, beside_python):
        directory = os.path.dirname(command)
        is_stoker = os.path.basename(command) == "stoker" and os.path.isfile(command)
        if is_stoker and os.access(directory, os.W_OK | os.X_OK):
            return real_directory(directory)
    return real_directory("~/.local/bin")


def real_directory(typed: str) -> str:
    """Return the one name of a directory: the record knows files by it."""
    return os.path.realpath(os.path.expanduser(typed))


def path_directories() -> list[str]:
    """Return the directories of PATH in order, each once."""
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    # An empty entry means the current directory.
    return list(dict.fromkeys(real_directory(entry or ".") for entry in entries))


def commands_on_path(name: str) -> Iterator[str]:
    """Yield every command of this name on PATH, the one that a shell would run first."""
    for directory in path_directories():
        path = os.path.join(directory, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            yield path


# ------------------------------------------------------------------------------- record


def record_path() -> str:
    """Return the record's file, beside the states of single machines: so is ~/.local/bin."""
    return os.path.join(os.path.dirname(places.state_dir()), "doors.json")


@contextlib.contextmanager
def record_lock() -> Iterator[None]:
    """Keep others from changing the record between our reading and our writing of it."""
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
    """Return what was written: each file's path and a hash of its bytes."""
    path = record_path()
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            found = jsonlight.loads(file.read())
    except FileNotFoundError:
        return {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise StokerError(
            f"{clean(path)} is damaged. Move it away, and remove commands that were installed "
            "earlier by hand."
        )
    return found


def write_record(record: dict[str, str]) -> None:
    """Replace the record by a new one."""
    path = record_path()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}.new"
    data = jsonlight.dumps(record).encode("utf-8", "surrogateescape")
    try:
        write_new(temporary, data, 0o600)
        os.replace(temporary, path)
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def write_new(path: str, data: bytes, mode: int) -> None:
    """Write a file that does not exist yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        file.write(data)


def digest(data: bytes) -> str:
    """Return a short hash of a file's bytes."""
    return places.digest(os.fsdecode(data))
