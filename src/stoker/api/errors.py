"""Exceptions of the Python API, one class per error code."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from stoker import wire
from stoker.client.errors import KINDS, DaemonUnreachable, StokerError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any


class UnknownOption(UsageError, TypeError):
    """An unknown keyword; the message lists the known ones, the most similar first."""

    def __init__(
        self, name: str, known: Iterable[str], what: str = "option", prefix: str = ""
    ) -> None:
        def similarity(option: str) -> float:
            return _similarity(name.removeprefix(prefix), option.removeprefix(prefix))

        listed = sorted(known, key=lambda option: (-similarity(option), option))
        guess = ""
        if listed and similarity(listed[0]) >= 0.6:
            guess = f" Did you mean {listed[0]}?"
        super().__init__(f"There is no {what} '{name}'.{guess} There are: {', '.join(listed)}.")
        self.name = name
        self.valid = listed

    def __reduce__(self) -> tuple[object, ...]:
        return (rebuild_error, (type(self), self.args, self.__dict__))


class NotPicklable(StokerError):
    """A call or its result cannot be pickled."""


class JobFailed(StokerError):
    """A job ended without a result: killed, out of memory or time, lost."""

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
        return (rebuild_error, (type(self), self.args, self.__dict__))


def rebuild_error(
    kind: type[BaseException], args: tuple[object, ...], values: dict[str, object]
) -> BaseException:
    """Rebuild an exception of another process without calling its constructor."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(values)
    return error


_ours = (UnknownOption, NotPicklable, JobFailed)
for _kind in (StokerError, DaemonUnreachable, *KINDS.values(), *_ours):
    _kind.__module__ = "stoker"  # a traceback shows the name that a script can catch
DaemonUnreachable.__name__ = DaemonUnreachable.__qualname__ = "Unreachable"


def typed_error(error: StokerError) -> StokerError:
    """Return an error as Unreachable if the daemon replied that it cannot serve requests."""
    if type(error) is not StokerError or error.exit_code != wire.EXIT_UNREACHABLE:
        return error
    unreachable = DaemonUnreachable(error.message, error.exit_code, error.code)
    unreachable.answered = error.answered
    return unreachable


def never_starts_error(stuck: Mapping[str, Any], views: Sequence[Mapping[str, Any]]) -> StokerError:
    """Return the error for a job that can never start."""
    labels = (str(view["label"]) for view in views if view["id"] == stuck["id"])
    return StokerError(f"Job {next(labels, stuck['id'])} can never start: {stuck['text']}.")


def _similarity(one: str, other: str) -> float:
    starts = other.startswith(one) or one.startswith(other)
    return SequenceMatcher(None, one, other).ratio() + (0.2 if starts else 0.0)
