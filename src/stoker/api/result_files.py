"""The folders in which calls and their outcomes lie, and what is read from them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pickle
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import cloudpickle  # type: ignore[import-untyped, unused-ignore]
import msgspec

from stoker import places, wire
from stoker.api import call_runner as runner
from stoker.api.errors import NotFound, NotPicklable, PermissionDenied, UsageError
from stoker.api.parameters import Settings

RUNNER = "call."
_dumps: Any = cloudpickle.dumps


class Call(msgspec.Struct, frozen=True):
    """A function and what it is called with."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}


class Paths(msgspec.Struct, frozen=True):
    """Where the files of one call are; the names are submitit's."""

    folder: Path
    submitted_pickle: Path
    result_pickle: Path
    stdout: Path | None = None
    stderr: Path | None = None


class Batch(msgspec.Struct, frozen=True):
    """Calls that were written down and can be submitted as one job, or as one array."""

    folder: str
    what: dict[str, object]
    travels: bool
    """Whether it goes along when its job runs on another machine."""
    variables: dict[str, str] = {}
    """What the job needs in its environment to read the calls."""


def default_base() -> str:
    """Return the folder of calls for which none was named."""
    return os.path.join(places.state_dir(), "calls")


def fixed_part(folder: str | os.PathLike[str]) -> str:
    """Return the folder up to the first part with `%j` or the like, which submitit fills in."""
    parts = Path(os.path.abspath(os.path.expanduser(folder))).parts
    kept = [part for part in parts if not any(f"%{letter}" in part for letter in "jtAa")]
    return str(Path(*kept[: _first_difference(parts, kept)]))


def _first_difference(one: Sequence[str], other: Sequence[str]) -> int:
    same = [a == b for a, b in zip(one, other, strict=False)]
    return same.index(False) if False in same else len(same)


def write(base: str, directory: str, key: str, calls: Sequence[Call], settings: Settings) -> Batch:
    """Write calls down in a folder of their own below `base`, which others may write to as well."""
    folder = os.path.join(base, key)
    travels = _inside(base, directory)
    try:
        secret = _secret()
        if base != default_base():
            os.makedirs(base, mode=0o700, exist_ok=True)
        os.mkdir(folder, 0o700)
        ours = Sealed(folder, bytes.fromhex(secret))
        script, checked = _provide_runner(base, ours)
        library = _lend_cloudpickle(ours) if travels else ""
        _write_tasks(ours, calls)
        _write_settings(ours, directory if travels else None, library, settings)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            why = error.strerror or str(error)
            raise UsageError(
                f"Calls cannot be written to {base}: {why}. Name another folder."
            ) from error
        raise
    variables = {runner.KEY: secret}
    if not travels:
        argv = [settings.python or sys.executable, *checked, script, folder]
        return Batch(folder, {"argv": argv}, False, variables)
    words = [*checked, *(os.path.relpath(path, directory) for path in (script, folder))]
    return Batch(folder, {"line": _anywhere(settings.python, words)}, True, variables)


def remove(batch: Batch) -> None:
    """Take back what was written down but not accepted."""
    shutil.rmtree(batch.folder, ignore_errors=True)


class Sealed(runner.Folder):
    """The folder of a call while it is written."""

    def __init__(self, path: str, key: bytes) -> None:
        super().__init__(path, key)
        directory = _open_own(path)
        found = os.fstat(directory)
        os.close(directory)
        self.identity = (found.st_dev, found.st_ino)

    def add(self, name: str, data: bytes, sealed: bool = True) -> None:
        """Write a file. A crash before the submission loses nothing, so it is not synced."""
        directory = self._open()
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(name, flags, 0o600, dir_fd=directory), "wb") as file:
                file.write(data)
                if sealed:
                    file.write(self.seal(name, data))
        finally:
            os.close(directory)


def _open_own(path: str) -> int:
    """Open a folder that only this user can write to; raise PermissionDenied for any other."""
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (NotADirectoryError, PermissionError):
        raise _denied(f"{path} is not used: it was replaced by another user.") from None
    found = os.fstat(directory)
    if found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return directory
    os.close(directory)
    if found.st_uid != os.getuid():
        raise _denied(f"{path} is not used: it belongs to user {found.st_uid}.")
    raise _denied(f"{path} is not used: other users can write to it. Run: chmod 700 {path}")


def _denied(text: str) -> PermissionDenied:
    return PermissionDenied(text, wire.EXIT_PERMISSION, "permission")


def _secret() -> str:
    """Return the key of all calls of this user on this machine; it is made once."""
    try:
        base = places.secure_dir(default_base())
    except places.UnsafeDirectory as error:
        raise _denied(str(error)) from None
    path = os.path.join(base, "key")
    if not os.path.exists(path):
        new = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="ascii") as file:
            file.write(os.urandom(32).hex())
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.link(new, path)
        os.unlink(new)
    secret = Path(path).read_text(encoding="ascii")
    if len(secret) != 64:
        raise UsageError(f"{path} is damaged. Remove it, and a new one is made.")
    return secret


_CHECKED = (
    "import sys;''in sys.path[:1]and sys.path.pop(0);from hashlib import sha256;"
    "p=sys.argv.pop(1);t=open(p,'rb').read();"
    "sha256(t).hexdigest()=='{digest}'or sys.exit('stoker: '+p+' was changed; it is not run');"
    "exec(compile(t,p,'exec'))"
)
"""Runs a file if it is what was submitted; without `__file__`, no process reads it once more."""


def _provide_runner(base: str, folder: Sealed) -> tuple[str, list[str]]:
    """Have a runner; return its path, and what to put before it where others may change it."""
    text = _runner_text().encode()
    # Jobs that wait keep the runner that they were submitted with, whatever is installed later.
    name = f"{RUNNER}{places.digest(text.decode())}.py"
    if base == default_base():
        path = os.path.join(base, name)
        if not os.path.exists(path):
            _whole(path, text)
        return path, []
    folder.add(name, text, sealed=False)
    code = _CHECKED.format(digest=hashlib.sha256(text).hexdigest())
    return os.path.join(folder.path, name), ["-c", code]


@cache
def _runner_text() -> str:
    return Path(runner.__file__).read_text(encoding="utf-8")


def _inside(base: str, directory: str) -> bool:
    real, around = os.path.realpath(base), os.path.realpath(directory)
    return real != around and os.path.commonpath([real, around]) == around


def _lend_cloudpickle(folder: Sealed) -> str:
    """Another machine may have no cloudpickle, without which no function can be read there."""
    data = _cloudpickle_sources()
    folder.add("library", data, sealed=False)
    return hashlib.sha256(data).hexdigest()


@cache
def _cloudpickle_sources() -> bytes:
    """Return the sources by module: the same bytes each time, so that they travel once."""
    top = Path(cloudpickle.__file__).parent
    sources = {}
    for path in sorted(top.rglob("*.py")):
        name = ".".join(("cloudpickle", *path.relative_to(top).with_suffix("").parts))
        sources[name] = path.read_text("utf-8")
    sources["cloudpickle"] = sources.pop("cloudpickle.__init__")
    return pickle.dumps(sources, 4)


def _anywhere(python: str | None, words: Sequence[str]) -> str:
    """Return a line that finds a Python on this machine and on others."""
    rest = shlex.join(words)
    if python is not None:
        return f"exec {shlex.quote(python)} {rest}"
    return f'p={shlex.quote(sys.executable)}; [ -x "$p" ] || p=python3; exec "$p" {rest}'


def _write_tasks(folder: Sealed, calls: Sequence[Call]) -> None:
    shared = len(calls) > 1 and all(call.function is calls[0].function for call in calls)
    if shared:
        folder.add("function", pickled(calls[0].function))
    for index, call in enumerate(calls):
        task = (None if shared else call.function, call.args, call.kwargs)
        folder.add(f"{index}.task", pickled(task))


def pickled(value: object) -> bytes:
    """Pickle by value what the other side cannot import."""
    try:
        return bytes(_dumps(value))
    except Exception as error:
        raise NotPicklable(
            f"The call cannot be pickled ({type(error).__name__}: {error}). Have the function "
            "open files, connections and devices itself."
        ) from error


def _write_settings(
    folder: Sealed, relative_to: str | None, library: str, settings: Settings
) -> None:
    content = {
        "python": list(sys.version_info[:2]),
        "path": _search_path(relative_to),
        "library": library,
        "signal": settings.signal,
        "signal_delay": settings.signal_delay,
        "timeouts": settings.timeouts,
    }
    folder.add("settings", pickle.dumps(content, 4))


def _search_path(relative_to: str | None) -> list[str]:
    """Return where we look for modules; what travels with the job is named from its directory."""
    found = []
    for entry in sys.path:
        path = os.path.abspath(entry or ".")
        if relative_to is not None and (path == relative_to or _inside(path, relative_to)):
            path = os.path.relpath(path, relative_to)
        found.append(path)
    return found


def _whole(path: str, data: bytes) -> None:
    temporary = f"{path}.{os.getpid()}.new"
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


def paths_of(view: Mapping[str, Any]) -> Paths:
    """Find the files of a call from what the daemon knows of its job."""
    words = shlex.split(str(view["command"]))
    is_ours = len(words) >= 3 and os.path.basename(words[-2]).startswith(RUNNER)
    if not is_ours:
        raise NotFound(
            f"Job {view['label']} was not submitted by an Executor, so it has no result."
        )
    folder = Path(str(view["directory"]), words[-1])
    index = (view.get("array") or {}).get("index") or 0
    error_log = view.get("error_log")
    return Paths(
        folder=folder,
        submitted_pickle=folder / f"{index}.task",
        result_pickle=folder / f"{index}.result",
        stdout=Path(view["log"]) if view.get("log") else None,
        stderr=Path(error_log) if error_log else None,
    )


class Outcome(msgspec.Struct, frozen=True):
    """What came of a call."""

    value: Any = None
    error: BaseException | None = None


class RemoteTraceback(Exception):
    """Where it happened, over there: the cause of an exception that came back."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def outcome(path: Path, label: str) -> Outcome | None:
    """Read what a call has left; None when it has left nothing."""
    try:
        file = _opened_result(path)
    except FileNotFoundError:
        return None
    except PermissionDenied as error:
        return Outcome(error=error)
    with file:
        head = pickle.load(file)  # noqa: S301 - left by our own job, in a folder of ours
        kind, what, text = head["kind"], head["what"], head["traceback"]
        if kind == "unpicklable":
            return Outcome(error=_lost(f"Job {label}: {what}", text))
        try:
            value = pickle.load(file)  # noqa: S301
            if kind == "parts":
                value = _from_parts(*value)
        except Exception as error:  # noqa: BLE001 - objects raise what they like
            what = f"{type(error).__name__}: {error}"
            return Outcome(error=_lost(f"Job {label}: its result cannot be read ({what}).", text))
    if kind == "value":
        return Outcome(value)
    value.__cause__ = RemoteTraceback(text)
    return Outcome(error=value)


def _opened_result(path: Path) -> BinaryIO:
    """Open a result where only this user can have put it: what is unpickled is executed."""
    directory = _open_own(str(path.parent))
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return open(os.open(path.name, flags, dir_fd=directory), "rb")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _denied(f"{path} is not used: it is a link.") from None
        raise
    finally:
        os.close(directory)


def _from_parts(
    kind: type[BaseException], args: tuple[object, ...], values: dict[str, object]
) -> BaseException:
    """Make an exception whose constructor does not take its `args`."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(values)
    return error


def _lost(sentence: str, text: str) -> NotPicklable:
    error = NotPicklable(sentence)
    error.__cause__ = RemoteTraceback(text) if text else None
    return error
