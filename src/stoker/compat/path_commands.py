"""Find commands on PATH and their owner.

A file belongs to stoker only if it is byte for byte a script that stoker wrote, or a command that
the package installed. Every other file belongs to another program.
"""

from __future__ import annotations

import os
import sys

from stoker import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

STOKER = "stoker"
OTHER = "other"
PIP_SCRIPT_MARK = b"from stoker.compat.registry import"
"""Text contained in every command that the package installed."""
WRAPPER_MARK = b"# Written by `stoker compat install "
"""Text contained in every script that stoker wrote, also in a changed one."""
DIGEST_MARK = b"# digest "
"""Begins the last line of such a script: the hash of the lines before it."""
MAX_READ_BYTES = 65536
"""How much of a file is compared; the files of stoker are much shorter."""


def find_on_path(name: str) -> tuple[str | None, str | None]:
    """Return the path of the command that a shell would run, and its owner."""
    path = next(commands_on_path(name), None)
    if path is None:
        return None, None
    return path, STOKER if is_from_pip(path) or is_wrapper(path) else OTHER


def sign(script: bytes) -> bytes:
    """Return a script with its hash in the last line."""
    return script + DIGEST_MARK + places.digest(os.fsdecode(script)).encode() + b"\n"


def is_wrapper(path: str) -> bool:
    """Return True if a file is exactly what stoker wrote there."""
    data = b"" if os.path.islink(path) else read_start(path) or b""
    script, mark, _ = data.rpartition(DIGEST_MARK)
    return bool(mark) and data == sign(script)


def is_changed_wrapper(path: str) -> bool:
    """Return True if stoker wrote a file that was changed since, or linked."""
    return WRAPPER_MARK in (read_start(path) or b"") and not is_wrapper(path)


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
