"""What a policy orders a job by: in numbers, and in words that can be checked."""

from __future__ import annotations

from math import inf

from msgspec import Struct

from stoker.core.estimate import OVERRUN, TOLERATED, attained, epochs_of, estimate
from stoker.core.policy.rank import LEAST, Known, gpus_of, left_of, patience_of, waited
from stoker.core.policy.rules import Knows, Order

UNKNOWN, UNSAID = "not measured yet", "no expected duration was given"
LIMITED, SAID = "from its time limit", "from its expected duration"
WORTH_A_WORD = 1.2
"""What a job gains by waiting is told from so many times on."""


class Figure(Struct, frozen=True):
    """What a policy orders a job by."""

    text: str
    seconds: float | None = None
    """Of its time: what is left, or what it has had."""
    gpus: float | None = None
    basis: str | None = None


def figure(known: Known, at: float) -> Figure:
    """What counts of one job."""
    job, rules = known.job, known.rules
    gpus, had = gpus_of(known.spec.request), attained(job, at)
    if rules.order is Order.ATTAINED:
        step = sum(had * gpus >= each for each in rules.steps)
        what = _service(had, gpus) if had else "nothing"
        text = f"{what} so far, step {step + 1} of {len(rules.steps) + 1}"
        return Figure(text, had, gpus, "attained")
    if rules.order not in (Order.TIME, Order.SERVICE):
        return Figure("")
    left, basis = left_of(known, at).seconds, _basis(known, at)
    each = gpus if rules.order is Order.SERVICE else None
    what = _service(left, each)
    text = f"{what} left, {basis}"
    if basis == LIMITED:
        allowed = max((known.spec.limit or 0) - had, 0.0)
        if allowed < left:  # very short limits are not told apart
            text = f"{_service(allowed, each)} left, {basis}: counted as {span(left)}"
            left = allowed
    elif basis == SAID and (said := _overrun(known, had)) is not None:
        text = f"{what} left: it has run {span(had)}, longer than the expected {span(said)}"
    elif basis == UNSAID:
        text = f"{basis}: counted as 0"
    elif basis == UNKNOWN:
        text = f"{basis}: counted as {what}"
        if left > rules.floor:
            text += f", much more than the {span(had)} it has run"
    return Figure(text + _for_waiting(known, at), left, gpus, basis)


def _basis(known: Known, at: float) -> str:
    """Whence it is known how much is left."""
    training, knows = known.spec.training, known.rules.knows
    if knows is Knows.SAID:
        said = training is not None and training.expected is not None
        return SAID if said else UNSAID
    if knows is Knows.MEASURED:
        progress, epochs = known.job.progress, epochs_of(known.job, known.spec)
        if progress is not None and progress.pace is not None and epochs is not None:
            return "as measured"
        likely = estimate(known.families, known.cluster, known.job, known.spec, at)
        if likely.epoch_seconds is not None and epochs is not None:
            return "from measurements of similar jobs"
        if likely.remaining_seconds is not None:
            return SAID
    return LIMITED if known.spec.limit is not None else UNKNOWN


def _overrun(known: Known, had: float) -> float | None:
    """Return what its owner said, if that is over by more than restarts may have cost."""
    said = known.spec.training.expected if known.spec.training is not None else None
    return said if said is not None and had > said * (1 + TOLERATED / OVERRUN) else None


def _for_waiting(known: Known, at: float) -> str:
    """What a job gains by having waited, if that is worth a word."""
    left, waits = left_of(known, at), waited(known.job, at)
    if known.rules.longest or left.ageing == inf:
        return ""
    times = 1 + waits / (left.ageing * max(left.seconds, LEAST))
    if times < WORTH_A_WORD:
        return ""
    return f"; reduced {_short(times)} times because it has been pending for {span(waits)}"


def overdue_in(known: Known, at: float) -> float:
    """Seconds until a waiting job has waited too long; `inf` where nobody ever has."""
    rules = known.rules
    if rules.order not in (Order.TIME, Order.SERVICE) or rules.longest:
        return inf
    return max(patience_of(rules, left_of(known, at).seconds) - waited(known.job, at), 0.0)


def _service(seconds: float, gpus: float | None) -> str:
    """A time, on so many GPUs, and what that comes to."""
    if gpus is None:
        return span(seconds)
    if gpus == 1:
        return f"{span(seconds)} on 1 GPU"
    return f"{span(seconds)} × {gpus_in_words(gpus)} = {_gpu_time(seconds * gpus)}"


def gpus_in_words(count: float) -> str:
    """`1 GPU`, `0.5 GPUs`."""
    return f"{count:g} GPU{'s' * (count != 1)}"


def _gpu_time(seconds: float) -> str:
    for unit, size in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= size * (2 if unit == "day" else 1):
            count = _short(seconds / size)
            return f"{count} GPU-{unit}{'s' * (count != '1')}"
    return f"{_short(seconds)} GPU-seconds"


def span(seconds: float) -> str:
    """A duration as a person says it, with two digits where one would be too few."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{_short(seconds / 3600)} h"
    return f"{_short(seconds / 86400)} days"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:.0f}"
