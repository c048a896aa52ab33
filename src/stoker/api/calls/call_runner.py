"""Run one call of an Executor as a job: read the call, run it, write the outcome.

A copy of this file is stored beside the calls and run by their interpreter, in which stoker need
not be installed: standard library only.

Other users may be able to write to the folder of the calls, and unpickling executes code. Every
file that is unpickled here therefore ends with a seal, made with a key from the job's environment.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pickle import dumps, loads
    from types import FrameType, ModuleType
    from typing import Any
else:
    try:
        from _pickle import dumps, loads  # the C half of `pickle`, imported in half the time
    except ImportError:
        from pickle import dumps, loads

EXIT_REQUEUE = 75
"""Exit code: the state is saved, requeue the job."""
EXIT_TIME_LIMIT = 124
CLEANUP_SECONDS = 10.0
"""How long a function may clean up after its state was saved."""
SIGNAL_SLACK_SECONDS = 2.0
"""How late the signal before a time limit may be."""
KEY_VARIABLE = "STOKER_CALL_KEY"
"""The variable with the key, in hexadecimal."""
SEAL_BYTES = 32


def main() -> int:
    """Run the call that argv and the environment name; return the exit code of the job."""
    folder = CallFolder(sys.argv[1], bytes.fromhex(os.environ.pop(KEY_VARIABLE, "")))
    try:
        settings = loads(folder.read_sealed("settings"))  # noqa: S301 - sealed by the submitter
    except (OSError, FileChanged) as error:
        _print_message(str(error))
        return 1
    call = CallRunner(folder, os.environ.get("STOKER_ARRAY_INDEX", "0"))
    code = call.finished_before()
    if code is not None:
        return code
    stop = StopHandler(call, settings)
    try:
        _set_module_path(settings, folder)
        function, args, kwargs = call.load()
        stop.set_task(function, args, kwargs)
        value = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - every exception is passed to the caller
        stop.set_ended(1)
        return stop.code if stop.code is not None else call.write_error(error)
    stop.set_ended(0)
    return stop.code if stop.code is not None else call.write_value(value)


class FileChanged(Exception):
    """A file of the call is not what the submitter wrote."""


class CallFolder:
    """The directory of a call; it is an error if the path later leads to another one."""

    def __init__(self, path: str, key: bytes) -> None:
        self.path, self.key = path, key
        self.identity: tuple[int, int] | None = None

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        status = os.fstat(fd)
        identity = (status.st_dev, status.st_ino)
        if self.identity not in (None, identity):
            os.close(fd)
            raise FileChanged(f"{self.path} was replaced while the call ran; no result was written")
        self.identity = identity
        return fd

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        directory = self._open()
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(name, flags, dir_fd=directory), "rb") as file:
                return file.read()
        finally:
            os.close(directory)

    def read_sealed(self, name: str) -> bytes:
        """Return the content of a file; raise unless its seal is valid."""
        data = self.read(name)
        body, seal = data[:-SEAL_BYTES], data[-SEAL_BYTES:]
        if not self.key or seal != self.seal(name, body):
            raise FileChanged(f"{self.path}/{name} was changed by another program; it is not run")
        return body

    def seal(self, name: str, body: bytes) -> bytes:
        """Return the keyed hash of folder name, file name and content."""
        try:
            from _blake2 import blake2b
        except ImportError:
            from hashlib import blake2b
        name_bytes = f"{os.path.basename(self.path)}/{name}".encode("utf-8", "surrogateescape")
        return blake2b(name_bytes + b"\0" + body, key=self.key, digest_size=SEAL_BYTES).digest()

    def write(self, name: str, data: bytes, sealed: bool = False) -> None:
        """Write a file atomically."""
        temporary = f"{name}.{os.getpid()}.new"
        directory = self._open()
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(os.open(temporary, flags, 0o666, dir_fd=directory), "wb") as file:
                file.write(data)
                if sealed:
                    file.write(self.seal(name, data))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            _remove(temporary, directory)
            raise
        finally:
            os.close(directory)

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        directory = self._open()
        _remove(name, directory)
        os.close(directory)


class CallRunner:
    """The files of one call: task and result."""

    def __init__(self, folder: CallFolder, index: str) -> None:
        self.folder = folder
        self.task = index + ".task"
        self.result = index + ".result"
        self.late = index + ".over"
        self.timeouts = index + ".timeouts"

    def finished_before(self) -> int | None:
        """Return the exit code of an attempt that had finished when it got a stop request."""
        try:
            code = int(self.folder.read(self.late))
            self.folder.remove(self.late)
        except (OSError, ValueError):
            self.folder.remove(self.result)
            return None
        return code if os.path.exists(os.path.join(self.folder.path, self.result)) else None

    def load(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Return the function and its arguments."""
        function, args, kwargs = loads(self.folder.read_sealed(self.task))  # noqa: S301
        if function is None:  # shared by all calls of this folder
            function = loads(self.folder.read_sealed("function"))  # noqa: S301
        return function, args, kwargs

    def save(self, task: tuple[Any, ...]) -> None:
        """Replace the task of the next attempt."""
        self.folder.write(self.task, _to_pickle(task), sealed=True)

    def write_value(self, value: object) -> int:
        """Write the return value; return the exit code."""
        try:
            self.folder.write(self.result, _header("value") + _to_pickle(value))
        except Exception:  # noqa: BLE001 - pickling may raise anything
            import traceback

            what = f"The return value ({_name(type(value))}) cannot be pickled."
            self.folder.write(self.result, _header("unpicklable", what, traceback.format_exc()))
            traceback.print_exc()
            return 1
        return 0

    def write_error(self, error: BaseException) -> int:
        """Write the exception; return the exit code."""
        import traceback

        # The first frame is ours.
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, frames))
        sys.stderr.write(text)
        parts = (type(error), error.args, error.__dict__)
        for kind, value in (("error", error), ("parts", parts)):
            try:
                packed = _to_pickle(value)
                loads(packed)  # noqa: S301 - some exceptions can be pickled but not unpickled
                self.folder.write(self.result, _header(kind, "", text) + packed)
            except Exception:  # noqa: BLE001, S112 - try its parts next
                continue
            return 1
        what = f"The call raised an exception that cannot be pickled. {_name(type(error))}: {error}"
        self.folder.write(self.result, _header("unpicklable", what, text))
        return 1

    def count_timeout(self) -> int:
        """Increase and return the number of time-outs of this call."""
        try:
            count = int(self.folder.read(self.timeouts)) + 1
        except (OSError, ValueError):
            count = 1
        self.folder.write(self.timeouts, str(count).encode())
        return count


class StopHandler:
    """Handles a stop request: save the state, exit, resume later."""

    def __init__(self, call: CallRunner, settings: dict[str, Any]) -> None:
        self.call, self.settings = call, settings
        self.pid = os.getpid()
        self.task: tuple[Any, ...] | None = None
        self.ended: int | None = None
        self.code: int | None = None
        """The exit code after a stop, whatever the function does with SystemExit."""
        if settings.get("signal"):
            import signal

            signal.signal(settings["signal"], self.on_signal)

    def set_task(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Set the call; from now on there is state to save."""
        self.task = (function, args, kwargs)

    def set_ended(self, code: int) -> None:
        """The function has ended and its outcome is about to be written."""
        self.ended = code

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Save and exit. Processes that the function forked inherit this handler and ignore it."""
        if os.getpid() != self.pid or self.code is not None:
            return
        received = time.time()
        if self.ended is not None:
            # A job that succeeds after this signal is run again: it must not start over.
            self.call.folder.write(self.call.late, str(self.ended).encode())
            return
        timed_out = self._is_time_limit()
        if self.task is not None and not hasattr(self.task[0], "checkpoint"):
            if timed_out:
                return  # a restart would get no further: let it run until its limit
            _print_message("stop requested; the call will be run again from the start")
            self.code = EXIT_REQUEUE
        else:
            self.code = self._save(timed_out)
        self._exit_soon(received)
        raise SystemExit(self.code)

    def _exit_soon(self, received: float) -> None:
        """Exit before the process is killed, even if the function catches SystemExit."""
        import _thread  # a signal handler must not wait for locks of `threading`

        end = min(received + float(self.settings["signal_delay"]), _deadline())
        pause = max(0.0, min(CLEANUP_SECONDS, (end - time.time()) / 2))
        _thread.start_new_thread(_exit_after, (pause, self.code or 0))

    def _save(self, timed_out: bool) -> int:
        if self.task is None:
            return EXIT_REQUEUE  # not started: there is nothing to save
        function, args, kwargs = self.task
        try:
            later = function.checkpoint(*args, **kwargs)
            if later is not None:
                self.call.save(_delayed_call(later))
        except Exception as error:  # noqa: BLE001 - passed to the caller
            return self.call.write_error(error)
        if later is None:
            _print_message(
                "stop requested, and checkpoint() returned None: the call is not requeued"
            )
            return 1
        maximum = int(self.settings["timeouts"])
        if timed_out and self.call.count_timeout() > maximum:
            often = f"{maximum + 1} times, and" if maximum else "once, and"
            _print_message(
                f"time limit reached {often} max_num_timeout is {maximum}; "
                "`stoker retry` resumes from the saved state"
            )
            return EXIT_TIME_LIMIT
        _print_message("stop requested; the state is saved and the call resumes later")
        return EXIT_REQUEUE

    def _is_time_limit(self) -> bool:
        """Return True for the signal before the time limit, False for a preemption."""
        return (
            _deadline() - time.time() <= float(self.settings["signal_delay"]) + SIGNAL_SLACK_SECONDS
        )


def _deadline() -> float:
    return float(os.environ.get("STOKER_DEADLINE") or "inf")


def _delayed_call(later: Any) -> tuple[Any, ...]:
    """Return the call from a checkpoint; submitit's DelayedSubmission works as well."""
    if not callable(getattr(later, "function", None)):
        raise TypeError(
            f"checkpoint() must return a stoker.DelayedSubmission, or None, not {later!r:.60}."
        )
    return (later.function, later.args, later.kwargs)


def _exit_after(pause: float, code: int) -> None:
    time.sleep(pause)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _set_module_path(settings: dict[str, Any], folder: CallFolder) -> None:
    """Use the module path of the submitter; raise for another version of Python."""
    ours = [entry for entry in sys.path if os.path.abspath(entry or ".") != _own_directory()]
    theirs = [os.path.abspath(entry) for entry in settings["path"]]
    sys.path[:] = list(dict.fromkeys([*theirs, *ours]))
    if settings["library"]:
        sys.meta_path.append(CloudpickleFinder(folder, settings["library"]))
    if list(sys.version_info[:2]) != settings["python"]:
        raise RuntimeError(
            "The call was made by Python {}.{}, and this is {}.{} ({}), which cannot read it. "
            "Give the executor python=PATH.".format(
                *settings["python"], *sys.version_info[:2], sys.executable
            )
        )


def _own_directory() -> str:
    """Return the directory of this file, which Python puts first in sys.path."""
    path: str = globals().get("__file__", "/")
    return os.path.dirname(os.path.abspath(path))


class CloudpickleFinder:
    """Imports cloudpickle from the folder of the call if this Python has none.

    From checked bytes, not from a path, where the file could be replaced.
    """

    def __init__(self, folder: CallFolder, digest: str) -> None:
        self.folder, self.digest = folder, digest
        self.sources: dict[str, str] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """Return the spec of a module of cloudpickle."""
        if name.partition(".")[0] != "cloudpickle":
            return None
        import importlib.util

        self.sources = self.sources or self._read()
        if name not in self.sources:
            return None
        is_package = any(other.startswith(name + ".") for other in self.sources)
        return importlib.util.spec_from_loader(name, self, is_package=is_package)  # type: ignore[arg-type]

    def _read(self) -> dict[str, str]:
        import hashlib

        data = self.folder.read("library")
        if hashlib.sha256(data).hexdigest() != self.digest:
            raise FileChanged(f"{self.folder.path}/library was changed by another program")
        sources: dict[str, str] = loads(data)  # noqa: S301 - its digest is sealed
        return sources

    def create_module(self, spec: object) -> None:
        """Let Python create the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module."""
        code = compile(self.sources[module.__name__], f"<{module.__name__}>", "exec")
        exec(code, module.__dict__)  # noqa: S102 - our copy, its digest is checked


def _header(kind: str, what: str = "", text: str = "") -> bytes:
    """Return the first part of an outcome, which is readable even if the value is not."""
    return dumps({"kind": kind, "what": what, "traceback": text}, 4)


def _to_pickle(value: object) -> bytes:
    """Pickle a value; if that fails, by value with cloudpickle if available."""
    try:
        return dumps(value, -1)
    except Exception:
        by_value = _cloudpickle()
        if by_value is None:
            raise
        return bytes(by_value.dumps(value))


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle


def _remove(name: str, directory: int) -> None:
    try:  # noqa: SIM105 - importing contextlib is slow
        os.unlink(name, dir_fd=directory)
    except OSError:
        pass


def _name(kind: type) -> str:
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return module + kind.__qualname__


def _print_message(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write("stoker: " + text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
