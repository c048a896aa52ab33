"""The scripts that `stoker door install` writes, and the record of them.

A file is ours only if it is byte for byte what the record says we wrote. Everything else in
a directory is somebody's, and is never overwritten or removed.
"""

from __future__ import annotations

import os
import sys

from stoker import places
from stoker.cli.output import clean
from stoker.client import jsonlight
from stoker.client.errors import StokerError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = "ours"
ANOTHER = "another"
SCRIPT = """\
#!/bin/sh
# Written by `stoker door install {name}`; `stoker door uninstall {name}` removes it.
exec {python} -P -m stoker door {name} "$@"
"""
PIP_WROTE = b"from stoker.frontdoors.doors import"
"""What stands in the command that came with the package."""
LOOK_BYTES = 65536


class Installed:
    """What `install` did, and what to know about it."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.written: list[str] = []
        self.already: list[str] = []
        self.hides: dict[str, str] = {}
        self.hidden_by: dict[str, str] = {}
        self.on_path = directory in path_directories()

    def as_dict(self) -> dict[str, object]:
        """Return it for --json."""
        return {
            "directory": self.directory,
            "on_path": self.on_path,
            "written": self.written,
            "already": self.already,
            "hides": self.hides,
            "hidden_by": self.hidden_by,
        }

    def sentences(self) -> Iterator[str]:
        """Yield it for a person."""
        yield from (f"{path} is there already" for path in self.already)
        yield from (f"wrote {path}" for path in self.written)
        if self.written and not self.on_path:
            yield (
                f"{self.directory} is not on your PATH. Add it: "
                f'export PATH={quoted(self.directory)}:"$PATH"'
            )
            return
        for name, other in self.hides.items():
            yield f"{name} now means this one; the other program is still {other}"
        for name, other in self.hidden_by.items():
            yield f"{name} still means {other}, which comes first on your PATH"


def install(names: list[str], directory: str | None, *, force: bool) -> Installed:
    """Write a script for each name, or none at all."""
    where = os.path.abspath(os.path.expanduser(directory)) if directory else default_directory()
    done = Installed(where)
    texts: dict[str, bytes] = {}
    record = read_record()
    for name in names:
        target = os.path.join(where, name)
        seen = list(commands_on_path(name))
        from_pip = next((path for path in (*seen[:1], target) if is_from_pip(path)), None)
        if from_pip is not None:
            done.already.append(from_pip)
            continue
        text = script(name)
        _check_target(target, name, text, record)
        others = [path for path in seen if path != target and not is_ours(path, record)]
        if others and not force:
            raise StokerError(
                f"{name} is another program here: {clean(others[0])}. Nothing was written. "
                f"Type `stoker door {name}` instead, or take the name in spite of it with --force."
            )
        if _bytes_of(target) == text and record.get(target) == digest(text):
            done.already.append(target)
        else:
            texts[target] = text
        if others:
            first = _comes_first(where, others[0])
            (done.hides if first else done.hidden_by)[name] = others[0]
    _write_all(texts, record)
    done.written = list(texts)
    return done


def uninstall(
    names: list[str], directory: str | None, *, everything: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Remove what was written for these names; return what was, and what was left and why."""
    where = os.path.abspath(os.path.expanduser(directory)) if directory else None
    record = read_record()
    chosen = [
        path
        for path in record
        if os.path.basename(path) in names and where in {None, os.path.dirname(path)}
    ]
    missing = [name for name in names if name not in map(os.path.basename, chosen)]
    if missing and not everything:
        raise StokerError(_was_not_written(missing[0], where))
    removed, left = [], {}
    for path in chosen:
        if not os.path.lexists(path):
            left_alone = None  # removed by hand: only the record has to forget it
        elif not is_ours(path, record):
            left_alone = "it has been changed or replaced since stoker wrote it"
        else:
            os.unlink(path)
            removed.append(path)
            left_alone = None
        if left_alone is None:
            del record[path]
        else:
            left[path] = left_alone
    if chosen:
        write_record(record)
    return removed, left


def found_on_path(name: str) -> tuple[str | None, str | None]:
    """Return the command of this name that a shell would run, and whose it is."""
    path = next(commands_on_path(name), None)
    if path is None:
        return None, None
    mine = is_from_pip(path) or is_ours(path, read_record())
    return path, OURS if mine else ANOTHER


# --------------------------------------------------------------------- whose is a file


def is_ours(path: str, record: dict[str, str]) -> bool:
    """Whether a file is exactly what we wrote there."""
    data = _bytes_of(path)
    return data is not None and record.get(path) == digest(data)


def is_from_pip(path: str) -> bool:
    """Whether a file is the command that came with the package."""
    return PIP_WROTE in (_bytes_of(path) or b"")


def _check_target(target: str, name: str, text: bytes, record: dict[str, str]) -> None:
    """Refuse to overwrite what we did not write; --force does not change that."""
    if not os.path.lexists(target) or is_ours(target, record) or _bytes_of(target) == text:
        return
    what = "has been changed since stoker wrote it" if target in record else "is not stoker's"
    raise StokerError(
        f"{clean(target)} exists and {what}. Nothing was written. Move it away, or choose "
        f"another directory: stoker door install {name} --dir DIR"
    )


def _was_not_written(name: str, where: str | None) -> str:
    place = f" in {clean(where)}" if where else ""
    path, whose = found_on_path(name)
    if path is not None and whose == OURS and where is None:
        return f"{clean(path)} came with the package; `pip uninstall stoker` removes it."
    other = f" {clean(path)} is another program." if path is not None and where is None else ""
    return f"stoker has not installed {name}{place}, so there is nothing to remove.{other}"


def _bytes_of(path: str) -> bytes | None:
    """Return the beginning of a file, None if it is none or cannot be read."""
    try:
        if os.path.islink(path) or not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            return file.read(LOOK_BYTES)
    except OSError:
        return None


# ------------------------------------------------------------------------------ places


def default_directory() -> str:
    """Return where the running `stoker` is, if that can be written to, else ~/.local/bin."""
    typed = os.path.abspath(sys.argv[0])
    beside = os.path.join(os.path.dirname(sys.executable), "stoker")
    for command in (typed, beside):
        directory = os.path.dirname(command)
        is_stoker = os.path.basename(command) == "stoker" and os.path.isfile(command)
        if is_stoker and os.access(directory, os.W_OK | os.X_OK):
            return directory
    return os.path.join(os.path.expanduser("~"), ".local", "bin")


def path_directories() -> list[str]:
    """Return the directories of PATH, absolute, in order."""
    # An empty entry means the current directory.
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return [os.path.abspath(os.path.expanduser(entry or ".")) for entry in entries]


def commands_on_path(name: str) -> Iterator[str]:
    """Yield every command of this name on PATH, the one that a shell would run first."""
    for directory in dict.fromkeys(path_directories()):
        path = os.path.join(directory, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            yield path


def _comes_first(directory: str, other: str) -> bool:
    order = path_directories()
    return directory in order and order.index(directory) < order.index(os.path.dirname(other))


# ------------------------------------------------------------------------ writing it all


def script(name: str) -> bytes:
    """Return the script that enters a door through the stoker that writes it."""
    if not sys.executable:
        raise StokerError("Python does not know where its own program is; see sys.executable.")
    # -P: a file called like a module of ours, in the directory where it is used, stays out.
    return os.fsencode(SCRIPT.format(name=name, python=quoted(os.path.abspath(sys.executable))))


def quoted(word: str) -> str:
    """Return a word as a shell has to read it."""
    return "'" + word.replace("'", "'\\''") + "'"


def digest(data: bytes) -> str:
    """Return a short hash of a file's bytes."""
    return places.digest(os.fsdecode(data))


def _write_all(texts: dict[str, bytes], record: dict[str, str]) -> None:
    """Put all files in place: each whole beside its target first, then renamed."""
    ready: list[tuple[str, str]] = []
    try:
        for target, text in texts.items():
            os.makedirs(os.path.dirname(target), exist_ok=True)
            temporary = f"{target}.{os.getpid()}.new"
            ready.append((temporary, target))
            _write_file(temporary, text, 0o755)
        # The record comes first: a file that is in it and not there does no harm.
        if texts:
            write_record(record | {target: digest(text) for target, text in texts.items()})
        for temporary, target in ready:
            os.replace(temporary, target)
    finally:
        for temporary, _ in ready:
            if os.path.lexists(temporary):
                os.unlink(temporary)


def _write_file(path: str, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        file.write(data)


# ------------------------------------------------------------------------------- record


def record_path() -> str:
    """Return the record's file: not below the machine's own state, as ~/.local/bin is not."""
    return os.path.join(os.path.dirname(places.state_dir()), "doors.json")


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
        raise UsageError(
            f"{clean(path)} cannot be understood. Move it away, and remove the commands by hand."
        )
    return found


def write_record(record: dict[str, str]) -> None:
    """Replace the record by a new one."""
    path = record_path()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}.new"
    _write_file(temporary, jsonlight.dumps(record).encode("utf-8", "surrogateescape"), 0o600)
    os.replace(temporary, path)
