"""Write and remove wrapper scripts, which run a compat command under its own name."""

from __future__ import annotations

import os
import sys

from stoker.cli.output import clean
from stoker.client.errors import StokerError
from stoker.compat.path_commands import (
    OTHER,
    STOKER,
    commands_on_path,
    default_directory,
    digest,
    find_on_path,
    is_from_pip,
    is_recorded,
    path_directories,
    read_record,
    read_start,
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
# Written by `stoker compat install {name}`; `stoker compat uninstall {name}` removes it.
exec {python} -P -m stoker compat {name} "$@"
"""


class InstallResult:
    """Result of `install`: files written, and other programs of the same names."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.on_path = directory in path_directories()
        self.written: list[str] = []
        self.already: list[str] = []
        self.hides: dict[str, str] = {}
        self.hidden_by: dict[str, str] = {}

    def note_other(self, name: str, other: str) -> None:
        """Record another program of this name as hidden by the script, or as hiding it."""
        order = path_directories()
        first = self.on_path and order.index(self.directory) < order.index(os.path.dirname(other))
        (self.hides if first else self.hidden_by)[name] = other

    def as_dict(self) -> dict[str, object]:
        """Return the result for --json."""
        return {
            "directory": self.directory,
            "on_path": self.on_path,
            "written": self.written,
            "already": self.already,
            "hides": self.hides,
            "hidden_by": self.hidden_by,
        }

    def messages(self) -> Iterator[str]:
        """Yield the result as messages for the user."""
        for path in self.already:
            yield f"{clean(path)} already exists"
        for path in self.written:
            yield f"wrote {clean(path)}"
        for name, other in self.hides.items():
            yield f"{name} now runs this command; {clean(other)} still exists"
        for name, other in self.hidden_by.items():
            yield f"{name} still runs {clean(other)}, which comes first on your PATH"
        in_directory = [path for path in self.already if os.path.dirname(path) == self.directory]
        if (self.written or in_directory) and not self.on_path:
            yield (
                f"{clean(self.directory)} is not on your PATH. Add it: "
                f'export PATH={quoted(clean(self.directory))}:"$PATH"'
            )


def install(names: list[str], directory: str | None, *, force: bool) -> InstallResult:
    """Write a script for each name; write none if one cannot be written."""
    with record_lock():
        return _install(names, directory, force)


def _install(names: list[str], directory: str | None, force: bool) -> InstallResult:
    result = InstallResult(real_directory(directory) if directory else default_directory())
    record = read_record()
    texts: dict[str, bytes] = {}
    for name in names:
        target = os.path.join(result.directory, name)
        on_path = list(commands_on_path(name))
        others = [
            path for path in on_path if not is_from_pip(path) and not is_recorded(path, record)
        ]
        from_pip = next((path for path in (*on_path[:1], target) if is_from_pip(path)), None)
        text = wrapper_script(name)
        if from_pip is not None:
            result.already.append(from_pip)
        else:
            _check_target(target, name, text, record)
            _check_other_programs([path for path in others if path != target], name, force)
            if is_recorded(target, record) and read_start(target) == text:
                result.already.append(target)
            else:
                texts[target] = text
        if others and others[0] == on_path[0] and others[0] != target:
            result.note_other(name, others[0])
    _write_all(texts, record)
    result.written = list(texts)
    return result


def uninstall(
    names: list[str], directory: str | None, *, ignore_missing: bool
) -> tuple[list[str], list[str]]:
    """Remove the scripts of these names; return the paths removed and those left as modified.

    A name that was never installed is an error unless `ignore_missing`.
    """
    with record_lock():
        return _uninstall(names, real_directory(directory) if directory else None, ignore_missing)


def _uninstall(
    names: list[str], directory: str | None, ignore_missing: bool
) -> tuple[list[str], list[str]]:
    record = read_record()
    paths = [
        path
        for path in record
        if os.path.basename(path) in names and directory in {None, os.path.dirname(path)}
    ]
    missing = [name for name in names if name not in map(os.path.basename, paths)]
    if missing and not ignore_missing:
        raise StokerError(_not_installed_message(missing[0], directory, record))
    removed, left = [], []
    for path in paths:
        if is_recorded(path, record):
            os.unlink(path)
            removed.append(path)
        elif os.path.lexists(path):
            left.append(path)
    if paths:
        write_record({path: hash for path, hash in record.items()
                      if path not in paths or path in left})  # fmt: skip
    return removed, left


def wrapper_script(name: str) -> bytes:
    """Return a script that runs a compat command with this installation of stoker."""
    if not sys.executable:
        raise StokerError("This Python does not know its own path (sys.executable is empty).")
    # -P: files in the current directory must not shadow modules.
    return os.fsencode(SCRIPT.format(name=name, python=quoted(os.path.abspath(sys.executable))))


def quoted(word: str) -> str:
    """Return a word quoted for a POSIX shell."""
    return "'" + word.replace("'", "'\\''") + "'"


def _check_target(target: str, name: str, text: bytes, record: dict[str, str]) -> None:
    """Reject overwriting a file that stoker did not write, also with --force."""
    same = read_start(target) == text and not os.path.islink(target)
    if not os.path.lexists(target) or is_recorded(target, record) or same:
        return
    reason = "has been changed since stoker wrote it" if target in record else "is not stoker's"
    raise StokerError(
        f"{clean(target)} exists and {reason}. Nothing was written. Move it away, or choose "
        f"another directory: stoker compat install {name} --dir DIR"
    )


def _check_other_programs(others: list[str], name: str, force: bool) -> None:
    """Reject a name that is another program on PATH, unless forced."""
    if others and not force:
        raise StokerError(
            f"{name} is another program here: {clean(others[0])}. Nothing was written. "
            f"Use `stoker compat {name}`, or install it anyway with --force."
        )


def _not_installed_message(name: str, directory: str | None, record: dict[str, str]) -> str:
    if directory is not None:
        return f"{name} was not installed in {clean(directory)} by stoker. Nothing was removed."
    path, owner = find_on_path(name, record)
    if path is not None and owner == STOKER:
        return f"{clean(path)} came with the package: `pip uninstall stoker` removes it."
    other = f" {clean(path)} is another program." if owner == OTHER else ""
    return f"{name} was not installed by stoker. Nothing was removed.{other}"


def _write_all(texts: dict[str, bytes], record: dict[str, str]) -> None:
    """Install all files: write each to a temporary file beside its target, then rename."""
    temporaries: list[tuple[str, str]] = []
    previous = {target: read_start(target) for target in texts}
    replaced: list[str] = []
    try:
        for target, text in texts.items():
            temporary = f"{target}.{os.getpid()}.new"
            temporaries.append((temporary, target))
            _write_temporary(temporary, text)
        # The record is written first: an entry without a file does no harm.
        if texts:
            write_record(record | {target: digest(text) for target, text in texts.items()})
        for temporary, target in temporaries:
            os.replace(temporary, target)
            replaced.append(target)
    except OSError as error:
        for target in replaced:
            _restore(target, previous[target])
        write_record(record)
        raise _not_writable(os.path.dirname(target), error) from None
    finally:
        for temporary, _ in temporaries:
            if os.path.lexists(temporary):
                os.unlink(temporary)


def _restore(target: str, text: bytes | None) -> None:
    """Restore the previous content of a file, or delete it."""
    os.unlink(target)
    if text is not None:
        write_new(target, text, 0o755)


def _write_temporary(path: str, text: bytes) -> None:
    directory = os.path.dirname(path)
    try:
        os.makedirs(directory, exist_ok=True)
        write_new(path, text, 0o755)
    except OSError as error:
        raise _not_writable(directory, error) from None


def _not_writable(directory: str, error: OSError) -> StokerError:
    return StokerError(
        f"{clean(directory)} cannot be written to: {error.strerror}. Nothing was installed. "
        "Choose another directory with --dir."
    )
