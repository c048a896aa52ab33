"""Runs one call of an Executor as a job: reads what to call, calls it, leaves the outcome.

A copy of this file lies beside the calls and is run by their own interpreter. Nothing of stoker
need be installed there: standard library only.

Other users may be able to write to the folder that holds the calls, and what is unpickled is
executed. So every file that is unpickled here ends with a seal, made with a key that comes in the
environment of the job.
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
        from _pickle import dumps, loads  # what `pickle` is made of, in half the time
    except ImportError:
        from pickle import dumps, loads

GO_ON_LATER = 75
"""The exit code that means: I saved my work, run me again."""
TIME_IS_UP = 124
UNWINDS = 10.0
"""Seconds that a function has at most to clean up after its work was saved."""
SLACK = 2.0
"""Seconds by which the warning before a time limit may be late."""
KEY = "STOKER_CALL_KEY"
"""The variable with the key, in hexadecimal digits."""
SEAL_BYTES = 32


def main() -> int:
    """Do the call that the words and the environment name; return the exit code of the job."""
    folder = Folder(sys.argv[1], bytes.fromhex(os.environ.pop(KEY, "")))
    try:
        settings = loads(folder.read_sealed("settings"))  # noqa: S301 - sealed by the submitter
    except (OSError, Changed) as error:
        _say(str(error))
        return 1
    call = CallRunner(folder, os.environ.get("STOKER_ARRAY_INDEX", "0"))
    already = call.was_over()
    if already is not None:
        return already
    stop = Stop(call, settings)
    try:
        _find_modules(settings, folder)
        function, args, kwargs = call.load()
        stop.may_save(function, args, kwargs)
        value = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - whatever it was goes to the one who called
        stop.over(1)
        return stop.code if stop.code is not None else call.failed(error)
    stop.over(0)
    return stop.code if stop.code is not None else call.returned(value)


class Changed(Exception):
    """A file of the call is not what the submitter wrote."""


class Folder:
    """The directory of a call, which stays the same one even if its path leads elsewhere."""

    def __init__(self, path: str, key: bytes) -> None:
        self.path, self.key = path, key
        self.identity: tuple[int, int] | None = None

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        found = os.fstat(fd)
        identity = (found.st_dev, found.st_ino)
        if self.identity not in (None, identity):
            os.close(fd)
            raise Changed(f"{self.path} was replaced while the call ran; no result was written")
        self.identity = identity
        return fd

    def read(self, name: str) -> bytes:
        """Return what a file holds."""
        directory = self._open()
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(name, flags, dir_fd=directory), "rb") as file:
                return file.read()
        finally:
            os.close(directory)

    def read_sealed(self, name: str) -> bytes:
        """Return what a file holds if the submitter wrote it, or an earlier attempt."""
        data = self.read(name)
        body, seal = data[:-SEAL_BYTES], data[-SEAL_BYTES:]
        if not self.key or seal != self.seal(name, body):
            raise Changed(f"{self.path}/{name} was changed by another program; it is not run")
        return body

    def seal(self, name: str, body: bytes) -> bytes:
        """Return what proves that a file of this name and folder was written with our key."""
        try:
            from _blake2 import blake2b
        except ImportError:
            from hashlib import blake2b
        place = f"{os.path.basename(self.path)}/{name}".encode("utf-8", "surrogateescape")
        return blake2b(place + b"\0" + body, key=self.key, digest_size=SEAL_BYTES).digest()

    def write(self, name: str, data: bytes, sealed: bool = False) -> None:
        """Have a file be there whole, or not at all."""
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
        """Have no file of this name."""
        directory = self._open()
        _remove(name, directory)
        os.close(directory)


class CallRunner:
    """The files of one call: what to call, and what came of it."""

    def __init__(self, folder: Folder, index: str) -> None:
        self.folder = folder
        self.task = index + ".task"
        self.result = index + ".result"
        self.late = index + ".over"
        self.timeouts = index + ".timeouts"

    def was_over(self) -> int | None:
        """Return the code of an attempt that was asked to stop when it was done already."""
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
        if function is None:  # all calls of this folder share it
            function = loads(self.folder.read_sealed("function"))  # noqa: S301
        return function, args, kwargs

    def save(self, task: tuple[Any, ...]) -> None:
        """Have the next attempt do this instead."""
        self.folder.write(self.task, _packed(task), sealed=True)

    def returned(self, value: object) -> int:
        """Leave what the function returned."""
        try:
            self.folder.write(self.result, _head("value") + _packed(value))
        except Exception:  # noqa: BLE001 - objects raise what they like while they are pickled
            import traceback

            what = f"The return value ({_name(type(value))}) cannot be pickled."
            self.folder.write(self.result, _head("unpicklable", what, traceback.format_exc()))
            traceback.print_exc()
            return 1
        return 0

    def failed(self, error: BaseException) -> int:
        """Leave what the function raised."""
        import traceback

        # The first frame is ours and tells nobody anything.
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, frames))
        sys.stderr.write(text)
        parts = (type(error), error.args, error.__dict__)
        for kind, value in (("error", error), ("parts", parts)):
            try:
                packed = _packed(value)
                loads(packed)  # noqa: S301 - many exceptions can be written, not read
                self.folder.write(self.result, _head(kind, "", text) + packed)
            except Exception:  # noqa: BLE001, S112 - the parts may do, or nothing does
                continue
            return 1
        what = f"The call raised an exception that cannot be pickled. {_name(type(error))}: {error}"
        self.folder.write(self.result, _head("unpicklable", what, text))
        return 1

    def one_more_timeout(self) -> int:
        """Count how often the time of this call was up."""
        try:
            count = int(self.folder.read(self.timeouts)) + 1
        except (OSError, ValueError):
            count = 1
        self.folder.write(self.timeouts, str(count).encode())
        return count


class Stop:
    """What happens when the job is asked to stop: it saves its work and goes on later."""

    def __init__(self, call: CallRunner, settings: dict[str, Any]) -> None:
        self.call, self.settings = call, settings
        self.pid = os.getpid()
        self.task: tuple[Any, ...] | None = None
        self.ended: int | None = None
        self.code: int | None = None
        """The exit code of a job that has stopped, whatever its function makes of that."""
        if settings.get("signal"):
            import signal

            signal.signal(settings["signal"], self.hear)

    def may_save(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """From here on there is work to save."""
        self.task = (function, args, kwargs)

    def over(self, code: int) -> None:
        """Nothing is left to be saved: the outcome is about to be written."""
        self.ended = code

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Save and leave. Processes that the function forked have inherited this handler."""
        if os.getpid() != self.pid or self.code is not None:
            return
        heard = time.time()
        if self.ended is not None:
            # A job that ends well after this signal is run again: it must not begin anew.
            self.call.folder.write(self.call.late, str(self.ended).encode())
            return
        timed_out = self._time_is_up()
        if self.task is not None and not hasattr(self.task[0], "checkpoint"):
            if timed_out:
                return  # it would begin anew and come no further: it has until its limit
            _say("stop requested; the call will be run again from the start")
            self.code = GO_ON_LATER
        else:
            self.code = self._save(timed_out)
        self._leave_for_sure(heard)
        raise SystemExit(self.code)

    def _leave_for_sure(self, heard: float) -> None:
        """End the process before it is killed, also if the function catches what we raise."""
        import _thread  # a signal handler had better not wait for the locks of `threading`

        end = min(heard + float(self.settings["signal_delay"]), _deadline())
        pause = max(0.0, min(UNWINDS, (end - time.time()) / 2))
        _thread.start_new_thread(_leave, (pause, self.code or 0))

    def _save(self, timed_out: bool) -> int:
        if self.task is None:
            return GO_ON_LATER  # it has not begun, so that all is as it was
        function, args, kwargs = self.task
        try:
            later = function.checkpoint(*args, **kwargs)
            if later is not None:
                self.call.save(_delayed(later))
        except Exception as error:  # noqa: BLE001 - it is the caller's to hear of
            return self.call.failed(error)
        if later is None:
            _say("stop requested, and checkpoint() returned None: the call is not requeued")
            return 1
        most = int(self.settings["timeouts"])
        if timed_out and self.call.one_more_timeout() > most:
            often = f"{most + 1} times, and" if most else "once, and"
            _say(
                f"time limit reached {often} max_num_timeout is {most}; "
                "`stoker retry` resumes from the saved state"
            )
            return TIME_IS_UP
        _say("stop requested; the state is saved and the call resumes later")
        return GO_ON_LATER

    def _time_is_up(self) -> bool:
        """Whether it was asked because of its time limit, and not to make room for others."""
        return _deadline() - time.time() <= float(self.settings["signal_delay"]) + SLACK


def _deadline() -> float:
    return float(os.environ.get("STOKER_DEADLINE") or "inf")


def _delayed(later: Any) -> tuple[Any, ...]:
    """Return the call that a checkpoint asks for; submitit's is as good as ours."""
    if not callable(getattr(later, "function", None)):
        raise TypeError(
            f"checkpoint() must return a stoker.DelayedSubmission, or None, not {later!r:.60}."
        )
    return (later.function, later.args, later.kwargs)


def _leave(pause: float, code: int) -> None:
    time.sleep(pause)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _find_modules(settings: dict[str, Any], folder: Folder) -> None:
    """Look for modules where the submitter did, or say that this is another Python."""
    ours = [entry for entry in sys.path if os.path.abspath(entry or ".") != _own_directory()]
    theirs = [os.path.abspath(entry) for entry in settings["path"]]
    sys.path[:] = list(dict.fromkeys([*theirs, *ours]))
    if settings["library"]:
        sys.meta_path.append(Library(folder, settings["library"]))
    if list(sys.version_info[:2]) != settings["python"]:
        raise RuntimeError(
            "The call was made by Python {}.{}, and this is {}.{} ({}), which cannot read it. "
            "Give the executor python=PATH.".format(
                *settings["python"], *sys.version_info[:2], sys.executable
            )
        )


def _own_directory() -> str:
    """Return where this file is, which Python searches first if it runs it by its name."""
    path: str = globals().get("__file__", "/")
    return os.path.dirname(os.path.abspath(path))


class Library:
    """Finds cloudpickle in the folder of the call, where this Python has none of its own.

    It is not imported from a path, at which there may be another file by then.
    """

    def __init__(self, folder: Folder, digest: str) -> None:
        self.folder, self.digest = folder, digest
        self.sources: dict[str, str] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """Find a module of it."""
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
            raise Changed(f"{self.folder.path}/library was changed by another program")
        sources: dict[str, str] = loads(data)  # noqa: S301 - its digest is sealed
        return sources

    def create_module(self, spec: object) -> None:
        """Have Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill it."""
        code = compile(self.sources[module.__name__], f"<{module.__name__}>", "exec")
        exec(code, module.__dict__)  # noqa: S102 - our own copy, as it was submitted


def _head(kind: str, what: str = "", text: str = "") -> bytes:
    """Return the first part of an outcome, which can be read even if the rest cannot."""
    return dumps({"kind": kind, "what": what, "traceback": text}, 4)


def _packed(value: object) -> bytes:
    """Pickle it: plainly if that will do, else by value where cloudpickle is there."""
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
    try:  # noqa: SIM105 - contextlib would cost more than all the rest
        os.unlink(name, dir_fd=directory)
    except OSError:
        pass


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else _full_name(kind)


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _say(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write("stoker: " + text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
