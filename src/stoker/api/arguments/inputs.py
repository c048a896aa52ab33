"""Convert arguments of callers: jobs, commands, signals and times."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import groupby
from numbers import Real
from signal import Signals
from typing import NamedTuple

from stoker.api.jobs import Job
from stoker.client.errors import UsageError

STREAMS = ("out", "err")
POSITIONS = ("first", "last", "before", "after")


class JobReference(NamedTuple):
    """A selector, and the id of the job if it means exactly one."""

    text: str
    id: int | None = None


def selector(job: object) -> str:
    """Return the selector of one job."""
    references = list(_references([job]))
    if len(references) != 1:
        raise UsageError(f"Expected one job, got {len(references)}.")
    return references[0].text


def selectors(jobs: Iterable[object], *, ordered: bool = True) -> list[str]:
    """Return selectors of these jobs; consecutive ids become one range."""
    references = list(_references(jobs))
    if not ordered:
        references.sort(key=lambda reference: reference.id or 0)
    texts = []
    for _, pairs in groupby(enumerate(references), _range_key):
        run = [reference for _, reference in pairs]
        texts.append(run[0].text if len(run) == 1 else f"{run[0].id}-{run[-1].id}")
    return texts


def single_selectors(jobs: Iterable[object]) -> list[str]:
    """Return one selector per job."""
    return [reference.text for reference in _references(jobs)]


def _range_key(pair: tuple[int, JobReference]) -> tuple[bool, int]:
    """Return the same key for jobs with consecutive ids."""
    index, reference = pair
    return (False, index) if reference.id is None else (True, reference.id - index)


def _references(jobs: Iterable[object]) -> Iterator[JobReference]:
    """Yield every job, also from lists, sets, generators and keys of dicts."""
    for job in jobs:
        reference = _reference(job)
        if reference is not None:
            yield reference
        elif isinstance(job, Iterable) and not isinstance(job, bytes):
            yield from _references(job)
        else:
            raise UsageError(
                f"{job!r} is not a job. Give an id, a name, a range, last, or what "
                "submit() returned."
            )


def _reference(job: object) -> JobReference | None:
    if isinstance(job, str):
        return JobReference(job)
    if hasattr(job, "__index__") and not isinstance(job, bool):
        return JobReference(str(job))
    if isinstance(job, Job):
        return JobReference(job.label, job.id)
    for name in ("job_id", "label"):  # a future, a trial, a sweep
        text = getattr(job, name, None)
        if isinstance(text, str):
            id = getattr(job, "id", None) if name == "job_id" else None
            return JobReference(text, id if isinstance(id, int) else None)
    return None


def command_words(command: object) -> list[str]:
    """Return the words of a command."""
    if isinstance(command, os.PathLike):
        command = [command]
    if not isinstance(command, Iterable) or isinstance(command, bytes | Mapping | AbstractSet):
        raise UsageError(
            f"A command is a list of words, or a line for the shell; {command!r} is neither."
        )
    words = [_command_word(word) for word in command]
    if not words:
        raise UsageError("The command is empty. Give its words, or a line for the shell.")
    return words


def _command_word(word: object) -> str:
    if isinstance(word, str):
        return word
    if isinstance(word, os.PathLike):
        return os.fsdecode(word)
    if isinstance(word, Real):
        return str(word)
    raise UsageError(f"A command is made of texts, paths and numbers; {word!r} is none of these.")


def command_body(command: object) -> dict[str, object]:
    """Return the `what` of a submission: a shell line or an argv."""
    return {"line": command} if isinstance(command, str) else {"argv": command_words(command)}


def signal_name(given: object) -> str | None:
    """Return a signal as the HTTP API takes it: from `TERM`, 15 or signal.SIGTERM."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Signals):
        return given.name
    if isinstance(given, int) and not isinstance(given, bool):
        return str(given)
    raise UsageError(f"{given!r} is not a signal; write 'USR1', 10 or signal.SIGUSR1.")


def device_names(devices: Iterable[object]) -> list[str]:
    """Return device names; a number is a GPU of this host."""
    names = []
    for device in devices:
        if not isinstance(device, str | int) or isinstance(device, bool):
            raise UsageError(f"{device!r} is not a device; write 0, 'gpu1/0', a node or 'all'.")
        names.append(str(device))
    return names


def timeout_seconds(given: object) -> float | None:
    """Return a timeout; None for no limit."""
    if given is None:
        return None
    if not isinstance(given, Real) or given != given:  # noqa: PLR0124 - NaN
        raise UsageError(f"timeout must be a number of seconds, not {given!r}.")
    return float(given)


def require_one_of(given: object, choices: tuple[str, ...], name: str) -> str:
    """Return the value; raise unless it is one of the choices."""
    if isinstance(given, str) and given in choices:
        return given
    *others, last = choices
    raise UsageError(f"{name} must be {', '.join(others)} or {last}, not {given!r}.")
