"""The folders in which calls and their outcomes lie, and what is read from them."""

from __future__ import annotations

import os
import pickle
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped, unused-ignore]
import msgspec

from stoker import places
from stoker.api import call as runner
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
    """Write calls down in a folder of their own below `base`."""
    folder = os.path.join(base, key)
    travels = _inside(base, directory)
    try:
        script = _prepared(base)
        os.mkdir(folder, 0o700)
        if travels:
            _lend_cloudpickle(base)
        _write_tasks(folder, calls)
        _write_settings(folder, directory if travels else None, settings)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            why = error.strerror or str(error)
            raise UsageError(
                f"Calls cannot be written to {base}: {why}. Name another folder."
            ) from error
        raise
    if not travels:
        return Batch(folder, {"argv": [settings.python or sys.executable, script, folder]}, False)
    words = [os.path.relpath(path, directory) for path in (script, folder)]
    return Batch(folder, {"line": _anywhere(settings.python, words)}, True)


def remove(batch: Batch) -> None:
    """Take back what was written down but not accepted."""
    shutil.rmtree(batch.folder, ignore_errors=True)


def _prepared(base: str) -> str:
    """Have the folder, and the runner in it; return the runner's path."""
    os.makedirs(base, mode=0o700, exist_ok=True)
    if base == default_base():
        try:
            places.secure_dir(base)
        except places.UnsafeDirectory as error:
            raise PermissionDenied(str(error), error.exit_code, error.code) from None
    text = _runner_text()
    # Jobs that wait keep the runner that they were submitted with, whatever is installed later.
    path = os.path.join(base, f"{RUNNER}{places.digest(text)}.py")
    if not os.path.exists(path):
        _whole(path, text.encode())
    return path


@cache
def _runner_text() -> str:
    return Path(runner.__file__).read_text(encoding="utf-8")


def _inside(base: str, directory: str) -> bool:
    real, around = os.path.realpath(base), os.path.realpath(directory)
    return real != around and os.path.commonpath([real, around]) == around


def _lend_cloudpickle(base: str) -> None:
    """Another machine may have no cloudpickle, without which no function can be read there."""
    target = os.path.join(base, "library", "cloudpickle")
    if os.path.isdir(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    temporary = f"{target}.{os.getpid()}.new"
    source = os.path.dirname(cloudpickle.__file__)
    shutil.copytree(source, temporary, ignore=shutil.ignore_patterns("__pycache__"))
    try:
        os.rename(temporary, target)
    except OSError:  # somebody else was faster
        shutil.rmtree(temporary, ignore_errors=True)


def _anywhere(python: str | None, words: Sequence[str]) -> str:
    """Return a line that finds a Python on this machine and on others."""
    rest = shlex.join(words)
    if python is not None:
        return f"exec {shlex.quote(python)} {rest}"
    return f'p={shlex.quote(sys.executable)}; [ -x "$p" ] || p=python3; exec "$p" {rest}'


def _write_tasks(folder: str, calls: Sequence[Call]) -> None:
    shared = len(calls) > 1 and all(call.function is calls[0].function for call in calls)
    if shared:
        _whole(os.path.join(folder, "function"), pickled(calls[0].function))
    for index, call in enumerate(calls):
        task = (None if shared else call.function, call.args, call.kwargs)
        _whole(os.path.join(folder, f"{index}.task"), pickled(task))


def pickled(value: object) -> bytes:
    """Pickle by value what the other side cannot import."""
    try:
        return bytes(_dumps(value))
    except Exception as error:
        raise NotPicklable(
            f"The call cannot be pickled ({type(error).__name__}: {error}). Have the function "
            "open files, connections and devices itself."
        ) from error


def _write_settings(folder: str, relative_to: str | None, settings: Settings) -> None:
    content = {
        "python": list(sys.version_info[:2]),
        "path": _search_path(relative_to),
        "library": relative_to is not None,
        "signal": settings.signal,
        "signal_delay": settings.signal_delay,
        "timeouts": settings.timeouts,
    }
    _whole(os.path.join(folder, "settings"), pickle.dumps(content, 4))


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
            f"Job {view['label']} is no call of an Executor; it has no result to come back."
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
        file = path.open("rb")
    except FileNotFoundError:
        return None
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
