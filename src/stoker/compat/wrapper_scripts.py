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
    find_on_path,
    is_changed_wrapper,
    is_from_pip,
    is_wrapper,
    path_directories,
    read_start,
    real_directory,
    sign,
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
    result = InstallResult(real_directory(directory) if directory else default_directory())
    texts: dict[str, bytes] = {}
    for name in names:
        target = os.path.join(result.directory, name)
        on_path = list(commands_on_path(name))
        others = [path for path in on_path if not is_from_pip(path) and not is_wrapper(path)]
        from_pip = next((path for path in (*on_path[:1], target) if is_from_pip(path)), None)
        text = wrapper_script(name)
        if from_pip is not None:
            result.already.append(from_pip)
        else:
            _check_target(target, name)
            _check_other_programs([path for path in others if path != target], name, force)
            if is_wrapper(target) and read_start(target) == text:
                result.already.append(target)
            else:
                texts[target] = text
        if others and others[0] == on_path[0] and others[0] != target:
            result.note_other(name, others[0])
    _write_all(texts)
    result.written = list(texts)
    return result


def uninstall(
    names: list[str], directory: str | None, *, ignore_missing: bool
) -> tuple[list[str], list[str]]:
    """Remove the scripts of these names; return the paths removed and those left as modified.

    A name that was never installed is an error unless `ignore_missing`.
    """
    directories = [real_directory(directory)] if directory else _usual_directories()
    paths = [os.path.join(directory, name) for name in names for directory in directories]
    removed = [path for path in paths if is_wrapper(path)]
    left = [path for path in paths if is_changed_wrapper(path)]
    installed = {os.path.basename(path) for path in (*removed, *left)}
    missing = [name for name in names if name not in installed]
    if missing and not ignore_missing:
        raise StokerError(_not_installed_message(missing[0], directory))
    for path in removed:
        os.unlink(path)
    return removed, left


def _usual_directories() -> list[str]:
    """Return the directories of PATH, and those that `install` uses without --dir."""
    return list(
        dict.fromkeys((*path_directories(), default_directory(), real_directory("~/.local/bin")))
    )


def wrapper_script(name: str) -> bytes:
    """Return a script that runs a compat command with this installation of stoker."""
    if not sys.executable:
        raise StokerError("This Python does not know its own path (sys.executable is empty).")
    # -P: files in the current directory must not shadow modules.
    script = SCRIPT.format(name=name, python=quoted(os.path.abspath(sys.executable)))
    return sign(os.fsencode(script))


def quoted(word: str) -> str:
    """Return a word quoted for a POSIX shell."""
    return "'" + word.replace("'", "'\\''") + "'"


def _check_target(target: str, name: str) -> None:
    """Reject overwriting a file that stoker did not write, also with --force."""
    if not os.path.lexists(target) or is_wrapper(target):
        return
    changed = is_changed_wrapper(target)
    reason = "has been changed since stoker wrote it" if changed else "is not stoker's"
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


def _not_installed_message(name: str, directory: str | None) -> str:
    if directory is not None:
        return f"{name} was not installed in {clean(directory)} by stoker. Nothing was removed."
    path, owner = find_on_path(name)
    if path is not None and owner == STOKER:
        return f"{clean(path)} came with the package: `pip uninstall stoker` removes it."
    other = f" {clean(path)} is another program." if owner == OTHER else ""
    return f"{name} was not installed by stoker. Nothing was removed.{other}"


def _write_all(texts: dict[str, bytes]) -> None:
    """Write each file beside its target, then rename all."""
    try:
        for target, text in texts.items():
            os.makedirs(os.path.dirname(target), exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(_temporary(target), flags, 0o755), "wb") as file:
                file.write(text)
        for target in texts:
            os.replace(_temporary(target), target)
    except OSError as error:
        raise StokerError(
            f"{clean(os.path.dirname(target))} cannot be written to: {error.strerror}. "
            "Choose another directory with --dir."
        ) from None
    finally:
        for target in texts:
            if os.path.lexists(_temporary(target)):
                os.unlink(_temporary(target))


def _temporary(target: str) -> str:
    return f"{target}.{os.getpid()}.new"
