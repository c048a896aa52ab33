"""The folders of calls and results, and how they are read."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pickle
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

import cloudpickle  # type: ignore[import-untyped, unused-ignore]
import msgspec

from stoker import places
from stoker.api.calls import call_runner as runner
from stoker.api.calls.parameters import Settings
from stoker.api.errors import NotPicklable, rebuild_error
from stoker.client.errors import NotFound, PermissionDenied, UsageError

RUNNER_PREFIX = "call."
_dumps: Any = cloudpickle.dumps


class Call(msgspec.Struct, frozen=True):
    """A function and its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}


class Paths(msgspec.Struct, frozen=True):
    """The paths of one call's files; the names are submitit's."""

    folder: Path
    submitted_pickle: Path
    result_pickle: Path
    stdout: Path | None = None
    stderr: Path | None = None


class CallBatch(msgspec.Struct, frozen=True):
    """Calls that are written to files, to be submitted as one job or array."""

    folder: str
    what: dict[str, object]
    is_uploaded: bool
    """Whether it is uploaded if its job runs on another node."""
    variables: dict[str, str] = {}
    """Environment variables that the job needs to read the calls."""


def default_folder() -> str:
    """Return the default folder of calls."""
    return os.path.join(places.state_dir(), "calls")


def fixed_folder(folder: str | os.PathLike[str]) -> str:
    """Return the folder up to the first part with a placeholder of submitit, such as `%j`."""
    parts = Path(os.path.abspath(os.path.expanduser(folder))).parts
    return str(Path(*takewhile(lambda part: not re.search("%[jtAa]", part), parts)))


def write_calls(
    base: str, directory: str, key: str, calls: Sequence[Call], settings: Settings
) -> CallBatch:
    """Write calls to a new folder below `base`, to which others may have write access."""
    folder = os.path.join(base, key)
    is_uploaded = _is_inside(base, directory)
    try:
        secret = _load_key()
        if base != default_folder():
            os.makedirs(base, mode=0o700, exist_ok=True)
        os.mkdir(folder, 0o700)
        ours = NewCallFolder(folder, bytes.fromhex(secret))
        script, checked = _provide_runner(base, ours)
        library = _add_cloudpickle(ours) if is_uploaded else ""
        _write_tasks(ours, calls)
        _write_settings(ours, directory if is_uploaded else None, library, settings)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            why = error.strerror or str(error)
            raise UsageError(
                f"Calls cannot be written to {base}: {why}. Name another folder."
            ) from error
        raise
    variables = {runner.KEY_VARIABLE: secret}
    if not is_uploaded:
        argv = [settings.python or sys.executable, *checked, script, folder]
        return CallBatch(folder, {"argv": argv}, False, variables)
    words = [*checked, *(os.path.relpath(path, directory) for path in (script, folder))]
    return CallBatch(folder, {"line": _portable_command(settings.python, words)}, True, variables)


def remove_calls(batch: CallBatch) -> None:
    """Remove the files of calls that were not accepted."""
    shutil.rmtree(batch.folder, ignore_errors=True)


class NewCallFolder(runner.CallFolder):
    """The folder of calls while it is written."""

    def __init__(self, path: str, key: bytes) -> None:
        super().__init__(path, key)
        directory = _open_private(path)
        status = os.fstat(directory)
        os.close(directory)
        self.identity = (status.st_dev, status.st_ino)

    def add(self, name: str, data: bytes, sealed: bool = True) -> None:
        """Write a file; not synced, since a crash before the submission loses nothing."""
        directory = self._open()
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(name, flags, 0o600, dir_fd=directory), "wb") as file:
                file.write(data)
                if sealed:
                    file.write(self.seal(name, data))
        finally:
            os.close(directory)


def _open_private(path: str) -> int:
    """Open a folder; raise PermissionDenied unless only this user can write to it."""
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (NotADirectoryError, PermissionError):
        raise PermissionDenied(f"{path} is not used: it was replaced by another user.") from None
    status = os.fstat(directory)
    if status.st_uid == os.getuid() and not status.st_mode & 0o022:
        return directory
    os.close(directory)
    if status.st_uid != os.getuid():
        raise PermissionDenied(f"{path} is not used: it belongs to user {status.st_uid}.")
    raise PermissionDenied(
        f"{path} is not used: other users can write to it. Run: chmod 700 {path}"
    )


def _load_key() -> str:
    """Return the key of all calls of this user on this host; created once."""
    try:
        base = places.secure_dir(default_folder())
    except places.UnsafeDirectory as error:
        raise PermissionDenied(str(error)) from None
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


_RUN_IF_UNCHANGED = (
    "import sys;''in sys.path[:1]and sys.path.pop(0);from hashlib import sha256;"
    "p=sys.argv.pop(1);t=open(p,'rb').read();"
    "sha256(t).hexdigest()=='{digest}'or sys.exit('stoker: '+p+' was changed; it is not run');"
    "exec(compile(t,p,'exec'))"
)
"""Run a file if it is unchanged; without `__file__`, no process reads it again."""


def _provide_runner(base: str, folder: NewCallFolder) -> tuple[str, list[str]]:
    """Write the runner; return its path, and arguments that check it before it is run."""
    text = _runner_text().encode()
    # Pending jobs keep their runner, whatever version is installed later.
    name = f"{RUNNER_PREFIX}{places.digest(text.decode())}.py"
    if base == default_folder():
        path = os.path.join(base, name)
        if not os.path.exists(path):
            _write_file(path, text)
        return path, []
    folder.add(name, text, sealed=False)
    code = _RUN_IF_UNCHANGED.format(digest=hashlib.sha256(text).hexdigest())
    return os.path.join(folder.path, name), ["-c", code]


@cache
def _runner_text() -> str:
    return Path(runner.__file__).read_text(encoding="utf-8")


def _is_inside(base: str, directory: str) -> bool:
    real, around = os.path.realpath(base), os.path.realpath(directory)
    return real != around and os.path.commonpath([real, around]) == around


def _add_cloudpickle(folder: NewCallFolder) -> str:
    """Add cloudpickle's source; a node without it could not unpickle functions."""
    data = _cloudpickle_sources()
    folder.add("library", data, sealed=False)
    return hashlib.sha256(data).hexdigest()


@cache
def _cloudpickle_sources() -> bytes:
    """Return the sources by module: always the same bytes, so that they are uploaded once."""
    top = Path(cloudpickle.__file__).parent
    sources = {}
    for path in sorted(top.rglob("*.py")):
        name = ".".join(("cloudpickle", *path.relative_to(top).with_suffix("").parts))
        sources[name] = path.read_text("utf-8")
    sources["cloudpickle"] = sources.pop("cloudpickle.__init__")
    return pickle.dumps(sources, 4)


def _portable_command(python: str | None, words: Sequence[str]) -> str:
    """Return a shell line that finds Python on this host and on others."""
    arguments = shlex.join(words)
    if python is not None:
        return f"exec {shlex.quote(python)} {arguments}"
    return f'p={shlex.quote(sys.executable)}; [ -x "$p" ] || p=python3; exec "$p" {arguments}'


def _write_tasks(folder: NewCallFolder, calls: Sequence[Call]) -> None:
    shared = len(calls) > 1 and all(call.function is calls[0].function for call in calls)
    if shared:
        folder.add("function", pickle_call(calls[0].function))
    for index, call in enumerate(calls):
        task = (None if shared else call.function, call.args, call.kwargs)
        folder.add(f"{index}.task", pickle_call(task))


def pickle_call(value: object) -> bytes:
    """Pickle a call; functions that cannot be imported are pickled by value."""
    try:
        return bytes(_dumps(value))
    except Exception as error:
        raise NotPicklable(
            f"The call cannot be pickled ({type(error).__name__}: {error}). Have the function "
            "open files, connections and devices itself."
        ) from error


def _write_settings(
    folder: NewCallFolder, relative_to: str | None, library: str, settings: Settings
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
    """Return sys.path; paths inside the uploaded directory are relative to it."""
    paths = []
    for entry in sys.path:
        path = os.path.abspath(entry or ".")
        if relative_to is not None and (path == relative_to or _is_inside(path, relative_to)):
            path = os.path.relpath(path, relative_to)
        paths.append(path)
    return paths


def _write_file(path: str, data: bytes) -> None:
    temporary = f"{path}.{os.getpid()}.new"
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


def call_paths(view: Mapping[str, Any]) -> Paths:
    """Return the paths of a call's files, by the view of its job."""
    words = shlex.split(str(view["command"]))
    is_ours = len(words) >= 3 and os.path.basename(words[-2]).startswith(RUNNER_PREFIX)
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
    """The value or the exception of a call."""

    value: Any = None
    error: BaseException | None = None


class RemoteTraceback(Exception):
    """The traceback in the job: the cause of the exception that a call raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def read_outcome(path: Path, label: str) -> Outcome | None:
    """Return the outcome of a call; None if there is no result file."""
    try:
        file = _open_result(path)
    except FileNotFoundError:
        return None
    except PermissionDenied as error:
        return Outcome(error=error)
    with file:
        head = pickle.load(file)  # noqa: S301 - written by our job, in a private folder
        kind, what, text = head["kind"], head["what"], head["traceback"]
        if kind == "unpicklable":
            return Outcome(error=_unpicklable(f"Job {label}: {what}", text))
        try:
            value = pickle.load(file)  # noqa: S301
            if kind == "parts":
                value = rebuild_error(*value)
        except Exception as error:  # noqa: BLE001 - unpickling may raise anything
            what = f"{type(error).__name__}: {error}"
            return Outcome(
                error=_unpicklable(f"Job {label}: its result cannot be read ({what}).", text)
            )
    if kind == "value":
        return Outcome(value)
    value.__cause__ = RemoteTraceback(text)
    return Outcome(error=value)


def _open_result(path: Path) -> BinaryIO:
    """Open a result that only this user can have written: unpickling executes code."""
    directory = _open_private(str(path.parent))
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return open(os.open(path.name, flags, dir_fd=directory), "rb")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PermissionDenied(f"{path} is not used: it is a link.") from None
        raise
    finally:
        os.close(directory)


def _unpicklable(message: str, text: str) -> NotPicklable:
    error = NotPicklable(message)
    error.__cause__ = RemoteTraceback(text) if text else None
    return error
