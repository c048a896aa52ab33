"""What callers hand in: jobs, commands, signals and times, as the API takes them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import groupby
from numbers import Real
from signal import Signals
from typing import NamedTuple

from stoker.api.errors import UsageError
from stoker.api.jobs import Job

STREAMS = ("out", "err")
PLACES = ("first", "last", "before", "after")


class Named(NamedTuple):
    """A selector, and the number of the job if it means exactly one."""

    text: str
    id: int | None = None


def selector(job: object) -> str:
    """Return the text that means a job: its label, or whatever was given."""
    found = list(_each([job]))
    if len(found) != 1:
        raise UsageError(f"Expected one job, got {len(found)}.")
    return found[0].text


def selectors(jobs: Iterable[object], *, ordered: bool = True) -> list[str]:
    """Return what means these jobs; neighbours are a range, so that thousands are one word."""
    found = list(_each(jobs))
    if not ordered:
        found.sort(key=lambda each: each.id or 0)
    texts = []
    for _, pairs in groupby(enumerate(found), _run):
        run = [each for _, each in pairs]
        texts.append(run[0].text if len(run) == 1 else f"{run[0].id}-{run[-1].id}")
    return texts


def names(jobs: Iterable[object]) -> list[str]:
    """Return what means each of these jobs, one by one."""
    return [each.text for each in _each(jobs)]


def _run(pair: tuple[int, Named]) -> tuple[bool, int]:
    """Return the same for jobs whose numbers follow on each other."""
    place, each = pair
    return (False, place) if each.id is None else (True, each.id - place)


def _each(jobs: Iterable[object]) -> Iterator[Named]:
    """Yield each job, also from lists, sets, generators and the keys of dicts."""
    for job in jobs:
        named = _named(job)
        if named is not None:
            yield named
        elif isinstance(job, Iterable) and not isinstance(job, bytes):
            yield from _each(job)
        else:
            raise UsageError(
                f"{job!r} is not a job. Give an id, a name, a range, last, or what "
                "submit() returned."
            )


def _named(job: object) -> Named | None:
    if isinstance(job, str):
        return Named(job)
    if hasattr(job, "__index__") and not isinstance(job, bool):
        return Named(str(job))
    if isinstance(job, Job):
        return Named(job.label, job.id)
    for name in ("job_id", "label"):  # a future, a trial, a sweep
        text = getattr(job, name, None)
        if isinstance(text, str):
            number = getattr(job, "id", None) if name == "job_id" else None
            return Named(text, number if isinstance(number, int) else None)
    return None


def words(command: object) -> list[str]:
    """Return the words of a command."""
    if isinstance(command, os.PathLike):
        command = [command]
    if not isinstance(command, Iterable) or isinstance(command, bytes | Mapping | AbstractSet):
        raise UsageError(
            f"A command is a list of words, or a line for the shell; {command!r} is neither."
        )
    found = [_word(word) for word in command]
    if not found:
        raise UsageError("The command is empty. Give its words, or a line for the shell.")
    return found


def _word(word: object) -> str:
    if isinstance(word, str):
        return word
    if isinstance(word, os.PathLike):
        return os.fsdecode(word)
    if isinstance(word, Real):
        return str(word)
    raise UsageError(f"A command is made of texts, paths and numbers; {word!r} is none of these.")


def command(given: object) -> dict[str, object]:
    """Return what to run: a line for the shell, or words."""
    return {"line": given} if isinstance(given, str) else {"argv": words(given)}


def signal_name(given: object) -> str | None:
    """Return a signal as the API takes it: `TERM` and 15 and signal.SIGTERM are the same."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Signals):
        return given.name
    if isinstance(given, int) and not isinstance(given, bool):
        return str(given)
    raise UsageError(f"{given!r} is not a signal; write 'USR1', 10 or signal.SIGUSR1.")


def devices(given: Iterable[object]) -> list[str]:
    """Return devices as the API takes them; a number is a GPU of this machine."""
    found = []
    for device in given:
        if not isinstance(device, str | int) or isinstance(device, bool):
            raise UsageError(f"{device!r} is not a device; write 0, 'gpu1/0', a node or 'all'.")
        found.append(str(device))
    return found


def seconds(given: object, name: str = "timeout") -> float | None:
    """Return how long to wait; None is for ever."""
    if given is None:
        return None
    if not isinstance(given, Real) or given != given:  # noqa: PLR0124 - not a number is unequal
        raise UsageError(f"{name} must be a number of seconds, not {given!r}.")
    return float(given)


def one_of(given: object, known: tuple[str, ...], name: str) -> str:
    """Return one of a few words."""
    if isinstance(given, str) and given in known:
        return given
    *some, last = known
    raise UsageError(f"{name} must be {', '.join(some)} or {last}, not {given!r}.")
