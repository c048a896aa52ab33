"""What can go wrong: the server's sentence, as an exception of its own kind."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from stoker import wire
from stoker.client.errors import DaemonUnreachable, StokerError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

__all__ = [
    "Full",
    "Impossible",
    "JobFailed",
    "NotFound",
    "NotPicklable",
    "PermissionDenied",
    "StokerError",
    "UnknownOption",
    "Unreachable",
    "UsageError",
    "never_starts",
    "of_kind",
]

Unreachable = DaemonUnreachable
"""No daemon listens, or it cannot be spoken to."""


class NotFound(StokerError):
    """There is no such job, queue, machine or device."""


class PermissionDenied(StokerError):
    """It belongs to another user."""


class Impossible(StokerError):
    """No machine could ever give what was asked for."""


class Full(StokerError):
    """The queue takes no more jobs for now."""


class UnknownOption(UsageError, TypeError):
    """A keyword that means nothing; the message lists those that do, the nearest first."""

    def __init__(
        self, name: str, known: Iterable[str], what: str = "option", prefix: str = ""
    ) -> None:
        def likeness(each: str) -> float:
            return _likeness(name.removeprefix(prefix), each.removeprefix(prefix))

        listed = sorted(known, key=lambda each: (-likeness(each), each))
        guess = ""
        if listed and likeness(listed[0]) >= 0.6:
            guess = f" Did you mean {listed[0]}?"
        super().__init__(f"There is no {what} '{name}'.{guess} There are: {', '.join(listed)}.")
        self.name = name
        self.valid = listed

    def __reduce__(self) -> tuple[object, ...]:
        return (_as_it_was, (type(self), self.args, self.__dict__))


class NotPicklable(StokerError):
    """A call, or what came of it, cannot travel between processes."""


class JobFailed(StokerError):
    """A job ended without leaving a result: killed, out of memory or time, lost."""

    def __init__(
        self,
        message: str,
        *,
        job_id: str = "",
        state: str = "",
        cause: str | None = None,
        job_exit_code: int | None = None,
        lines: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.state = state
        self.cause = cause
        self.exit_code = job_exit_code if job_exit_code is not None else wire.EXIT_FAILED
        self.lines = lines
        """The last lines of its log."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_as_it_was, (type(self), self.args, self.__dict__))


def _as_it_was(
    kind: type[StokerError], args: tuple[object, ...], values: dict[str, object]
) -> StokerError:
    """Make an exception anew from another process, without asking its constructor."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(values)
    return error


for _kind in (
    StokerError, UsageError, DaemonUnreachable, NotFound, PermissionDenied, Impossible, Full,
    UnknownOption, NotPicklable, JobFailed,
):  # fmt: skip
    _kind.__module__ = "stoker"  # so a traceback shows the name that a script can catch
Unreachable.__name__ = Unreachable.__qualname__ = "Unreachable"

_KINDS = {
    "not_found": NotFound,
    "permission": PermissionDenied,
    "impossible": Impossible,
    "queue_full": Full,
}


def of_kind(error: StokerError) -> StokerError:
    """Return an error as the exception that is named after its code."""
    if type(error) is not StokerError:
        return error
    found = error
    if error.code == "usage":
        found = UsageError(error.message)
    elif error.exit_code == wire.EXIT_UNREACHABLE:
        found = DaemonUnreachable(error.message)
        found.code = error.code
    elif (kind := _KINDS.get(error.code)) is not None:
        found = kind(error.message, error.exit_code, error.code)
    found.answered = error.answered
    return found


def never_starts(stuck: Mapping[str, Any], views: Sequence[Mapping[str, Any]]) -> StokerError:
    """Return what to say of a job that waits for something that will not come."""
    labels = (str(view["label"]) for view in views if view["id"] == stuck["id"])
    return StokerError(f"Job {next(labels, stuck['id'])} can never start: {stuck['text']}.")


def _likeness(one: str, other: str) -> float:
    starts = other.startswith(one) or one.startswith(other)
    return SequenceMatcher(None, one, other).ratio() + (0.2 if starts else 0.0)
