"""Runs one call of an Executor as a job: reads what to call, calls it, leaves the outcome.

A copy of this file lies beside the calls and is run by their own interpreter. Nothing of stoker
need be installed there: standard library only.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pickle import dumps, load, loads
    from types import FrameType
    from typing import Any
else:
    try:
        from _pickle import dumps, load, loads  # what `pickle` is made of, in half the time
    except ImportError:
        from pickle import dumps, load, loads

GO_ON_LATER = 75
"""The exit code that means: I saved my work, run me again."""
TIME_IS_UP = 124
UNWINDS = 10.0
"""Seconds that a function has at most to clean up after its work was saved."""
SLACK = 2.0
"""Seconds by which the warning before a time limit may be late."""


def main() -> int:
    """Do the call that the words and the environment name; return the exit code of the job."""
    folder = sys.argv[1]
    with open(os.path.join(folder, "settings"), "rb") as file:
        settings = load(file)  # noqa: S301 - written by the submitter
    call = Call(folder, os.environ.get("STOKER_ARRAY_INDEX", "0"))
    already = call.was_over()
    if already is not None:
        return already
    stop = Stop(call, settings)
    try:
        _find_modules(settings)
        function, args, kwargs = call.load()
        stop.may_save(function, args, kwargs)
        value = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - whatever it was goes to the one who called
        stop.over(1)
        return stop.code if stop.code is not None else call.failed(error)
    stop.over(0)
    return stop.code if stop.code is not None else call.returned(value)


class Call:
    """The files of one call: what to call, and what came of it."""

    def __init__(self, folder: str, index: str) -> None:
        self.folder = folder
        self.task = os.path.join(folder, index + ".task")
        self.result = os.path.join(folder, index + ".result")
        self.late = os.path.join(folder, index + ".over")
        self.timeouts = os.path.join(folder, index + ".timeouts")

    def was_over(self) -> int | None:
        """Return the code of an attempt that was asked to stop when it was done already."""
        try:
            with open(self.late, encoding="ascii") as file:
                code = int(file.read())
            os.unlink(self.late)
        except (OSError, ValueError):
            _remove(self.result)
            return None
        return code if os.path.exists(self.result) else None

    def load(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Return the function and its arguments."""
        with open(self.task, "rb") as file:
            function, args, kwargs = load(file)  # noqa: S301 - written by the submitter
        if function is None:  # all calls of this folder share it
            with open(os.path.join(self.folder, "function"), "rb") as file:
                function = load(file)  # noqa: S301
        return function, args, kwargs

    def save(self, task: tuple[Any, ...]) -> None:
        """Have the next attempt do this instead."""
        _write(self.task, b"", task)

    def returned(self, value: object) -> int:
        """Leave what the function returned."""
        try:
            _write(self.result, _head("value"), value)
        except Exception:  # noqa: BLE001 - objects raise what they like while they are pickled
            import traceback

            what = f"What it returned ({_name(type(value))}) cannot be pickled."
            _write(self.result, _head("unpicklable", what, traceback.format_exc()))
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
                loads(_packed(value))  # noqa: S301 - many exceptions can be written, not read
                _write(self.result, _head(kind, "", text), value)
            except Exception:  # noqa: BLE001, S112 - the parts may do, or nothing does
                continue
            return 1
        what = f"It raised an exception that cannot be pickled. {_name(type(error))}: {error}"
        _write(self.result, _head("unpicklable", what, text))
        return 1

    def one_more_timeout(self) -> int:
        """Count how often the time of this call was up."""
        try:
            with open(self.timeouts, encoding="ascii") as file:
                count = int(file.read()) + 1
        except (OSError, ValueError):
            count = 1
        _write(self.timeouts, str(count).encode())
        return count


class Stop:
    """What happens when the job is asked to stop: it saves its work and goes on later."""

    def __init__(self, call: Call, settings: dict[str, Any]) -> None:
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
            _write(self.call.late, str(self.ended).encode())
            return
        timed_out = self._time_is_up()
        if self.task is not None and not hasattr(self.task[0], "checkpoint"):
            if timed_out:
                return  # it would begin anew and come no further: it has until its limit
            _say("asked to stop; it will begin anew")
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
            _say("asked to stop, and checkpoint() returned nothing: it is not run again")
            return 1
        most = int(self.settings["timeouts"])
        if timed_out and self.call.one_more_timeout() > most:
            often = f"{most + 1} times, and" if most else "once, and"
            _say(
                f"its time was up {often} max_num_timeout is {most}; "
                "`stoker retry` goes on from what it saved"
            )
            return TIME_IS_UP
        _say("asked to stop; its work is saved and goes on later")
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


def _find_modules(settings: dict[str, Any]) -> None:
    """Look for modules where the submitter did, or say that this is another Python."""
    here = os.path.dirname(os.path.abspath(__file__))
    ours = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    theirs = [os.path.abspath(entry) for entry in settings["path"]]
    last = [os.path.join(here, "library")] if settings.get("library") else []
    sys.path[:] = list(dict.fromkeys([*theirs, *ours, *last]))
    if list(sys.version_info[:2]) != settings["python"]:
        raise RuntimeError(
            "The call was made by Python {}.{}, and this is {}.{} ({}), which cannot read it. "
            "Give the executor python=PATH.".format(
                *settings["python"], *sys.version_info[:2], sys.executable
            )
        )


def _head(kind: str, what: str = "", text: str = "") -> bytes:
    """Return the first part of an outcome, which can be read even if the rest cannot."""
    return dumps({"kind": kind, "what": what, "traceback": text}, 4)


_NOTHING = object()


def _write(path: str, head: bytes, value: object = _NOTHING) -> None:
    """Have a file be there whole, or not at all."""
    temporary = f"{path}.{os.getpid()}.new"
    try:
        with open(temporary, "wb") as file:
            file.write(head)
            if value is not _NOTHING:
                file.write(_packed(value))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise


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


def _remove(path: str) -> None:
    try:  # noqa: SIM105 - contextlib would cost more than all the rest
        os.unlink(path)
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
