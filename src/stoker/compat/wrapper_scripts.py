"""Writes and removes the small scripts that give a door a name of its own."""

from __future__ import annotations

import os
import sys

from stoker.cli.output import clean
from stoker.client.errors import StokerError
from stoker.compat.path_commands import (
    ANOTHER,
    OURS,
    commands_on_path,
    contents,
    default_directory,
    digest,
    found_on_path,
    is_from_pip,
    is_recorded,
    path_directories,
    read_record,
    real_directory,
    record_lock,
    write_new,
    write_record,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = """\
#!/bin/sh
# Written by `stoker door install {name}`; `stoker door uninstall {name}` removes it.
exec {python} -P -m stoker door {name} "$@"
"""


class Installed:
    """What `install` did, and what to know about it."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.on_path = directory in path_directories()
        self.written: list[str] = []
        self.already: list[str] = []
        self.hides: dict[str, str] = {}
        self.hidden_by: dict[str, str] = {}

    def note_other(self, name: str, other: str) -> None:
        """Remember that another program has this name, and which of the two a shell runs."""
        order = path_directories()
        first = self.on_path and order.index(self.directory) < order.index(os.path.dirname(other))
        (self.hides if first else self.hidden_by)[name] = other

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
        for path in self.already:
            yield f"{clean(path)} already exists"
        for path in self.written:
            yield f"wrote {clean(path)}"
        for name, other in self.hides.items():
            yield f"{name} now runs this command; {clean(other)} still exists"
        for name, other in self.hidden_by.items():
            yield f"{name} still runs {clean(other)}, which comes first on your PATH"
        here = [path for path in self.already if os.path.dirname(path) == self.directory]
        if (self.written or here) and not self.on_path:
            yield (
                f"{clean(self.directory)} is not on your PATH. Add it: "
                f'export PATH={quoted(clean(self.directory))}:"$PATH"'
            )


def install(names: list[str], directory: str | None, *, force: bool) -> Installed:
    """Write a script for each name, or none at all."""
    with record_lock():
        return _install(names, directory, force)


def _install(names: list[str], directory: str | None, force: bool) -> Installed:
    done = Installed(real_directory(directory) if directory else default_directory())
    record = read_record()
    texts: dict[str, bytes] = {}
    for name in names:
        target = os.path.join(done.directory, name)
        seen = list(commands_on_path(name))
        others = [path for path in seen if not is_from_pip(path) and not is_recorded(path, record)]
        from_pip = next((path for path in (*seen[:1], target) if is_from_pip(path)), None)
        text = script(name)
        if from_pip is not None:
            done.already.append(from_pip)
        else:
            _check_target(target, name, text, record)
            _check_others([path for path in others if path != target], name, force)
            if is_recorded(target, record) and contents(target) == text:
                done.already.append(target)
            else:
                texts[target] = text
        if others and others[0] == seen[0] and others[0] != target:
            done.note_other(name, others[0])
    _write_all(texts, record)
    done.written = list(texts)
    return done


def uninstall(
    names: list[str], directory: str | None, *, everything: bool
) -> tuple[list[str], list[str]]:
    """Remove what was written for these names; return what was removed and what was left.

    With `everything`, a name that was never installed is no mistake.
    """
    with record_lock():
        return _uninstall(names, real_directory(directory) if directory else None, everything)


def _uninstall(
    names: list[str], where: str | None, everything: bool
) -> tuple[list[str], list[str]]:
    record = read_record()
    chosen = [
        path
        for path in record
        if os.path.basename(path) in names and where in {None, os.path.dirname(path)}
    ]
    missing = [name for name in names if name not in map(os.path.basename, chosen)]
    if missing and not everything:
        raise StokerError(_was_not_written(missing[0], where, record))
    removed, left = [], []
    for path in chosen:
        if is_recorded(path, record):
            os.unlink(path)
            removed.append(path)
        elif os.path.lexists(path):
            left.append(path)
    if chosen:
        write_record({path: known for path, known in record.items()
                      if path not in chosen or path in left})  # fmt: skip
    return removed, left


def script(name: str) -> bytes:
    """Return the script that enters a door through the stoker that writes it."""
    if not sys.executable:
        raise StokerError("This Python does not know its own path (sys.executable is empty).")
    # -P: a file that is called like a module, in the directory where it is used, stays out.
    return os.fsencode(SCRIPT.format(name=name, python=quoted(os.path.abspath(sys.executable))))


def quoted(word: str) -> str:
    """Return a word as a shell has to read it."""
    return "'" + word.replace("'", "'\\''") + "'"


def _check_target(target: str, name: str, text: bytes, record: dict[str, str]) -> None:
    """Refuse to overwrite what we did not write: --force does not change that."""
    same = contents(target) == text and not os.path.islink(target)
    if not os.path.lexists(target) or is_recorded(target, record) or same:
        return
    what = "has been changed since stoker wrote it" if target in record else "is not stoker's"
    raise StokerError(
        f"{clean(target)} exists and {what}. Nothing was written. Move it away, or choose "
        f"another directory: stoker door install {name} --dir DIR"
    )


def _check_others(others: list[str], name: str, force: bool) -> None:
    """Refuse to take a name that means another program, unless that is wanted."""
    if others and not force:
        raise StokerError(
            f"{name} is another program here: {clean(others[0])}. Nothing was written. "
            f"Use `stoker door {name}`, or install it anyway with --force."
        )


def _was_not_written(name: str, where: str | None, record: dict[str, str]) -> str:
    if where is not None:
        return f"{name} was not installed in {clean(where)} by stoker. Nothing was removed."
    path, whose = found_on_path(name, record)
    if path is not None and whose == OURS:
        return f"{clean(path)} came with the package: `pip uninstall stoker` removes it."
    other = f" {clean(path)} is another program." if whose == ANOTHER else ""
    return f"{name} was not installed by stoker. Nothing was removed.{other}"


def _write_all(texts: dict[str, bytes], record: dict[str, str]) -> None:
    """Put all files in place: each written whole beside its target, then renamed."""
    ready: list[tuple[str, str]] = []
    before = {target: contents(target) for target in texts}
    done: list[str] = []
    try:
        for target, text in texts.items():
            temporary = f"{target}.{os.getpid()}.new"
            ready.append((temporary, target))
            _write_beside(temporary, text)
        # The record comes first: a file that is in it and not there does no harm.
        if texts:
            write_record(record | {target: digest(text) for target, text in texts.items()})
        for temporary, target in ready:
            os.replace(temporary, target)
            done.append(target)
    except OSError as error:
        for target in done:
            _put_back(target, before[target])
        write_record(record)
        raise _not_written(os.path.dirname(target), error) from None
    finally:
        for temporary, _ in ready:
            if os.path.lexists(temporary):
                os.unlink(temporary)


def _put_back(target: str, text: bytes | None) -> None:
    """Make a file what it was before."""
    os.unlink(target)
    if text is not None:
        write_new(target, text, 0o755)


def _write_beside(path: str, text: bytes) -> None:
    directory = os.path.dirname(path)
    try:
        os.makedirs(directory, exist_ok=True)
        write_new(path, text, 0o755)
    except OSError as error:
        raise _not_written(directory, error) from None


def _not_written(directory: str, error: OSError) -> StokerError:
    return StokerError(
        f"{clean(directory)} cannot be written to: {error.strerror}. Nothing was installed. "
        "Choose another directory with --dir."
    )
