"""The value by which a policy ranks a job: in numbers, and in words."""

from __future__ import annotations

from math import inf

from msgspec import Struct

from stoker.core.measurement.estimator import (
    OVERRUN,
    OVERRUN_TOLERANCE,
    attained,
    epochs_of,
    estimate,
)
from stoker.core.model.units import approximate_duration, short_number
from stoker.core.policies.policy import DurationSource, QueueOrder
from stoker.core.policies.ranking import (
    MIN_SECONDS,
    RankingInput,
    gpus_of,
    remaining_time,
    starvation_bound,
    wait_time,
)

UNMEASURED, UNDECLARED = "not measured yet", "no expected duration was given"
FROM_LIMIT, FROM_DECLARATION = "from its time limit", "from its expected duration"
MIN_AGING_FACTOR_SHOWN = 1.2
"""Factor from which on the aging bonus is mentioned: smaller ones explain nothing."""


class RankExplanation(Struct, frozen=True):
    """The value by which a policy ranks a job."""

    text: str
    seconds: float | None = None
    """Its remaining time, or its attained time, depending on the policy."""
    gpus: float | None = None
    basis: str | None = None


def explain_rank(ranking: RankingInput, at: float) -> RankExplanation:
    """Return the value by which a job is ranked."""
    policy = ranking.policy
    gpus, used = gpus_of(ranking.spec.request), attained(ranking.job, at)
    if policy.order is QueueOrder.ATTAINED_SERVICE:
        step = sum(used * gpus >= bound for bound in policy.service_levels)
        amount = _service(used, gpus) if used else "nothing"
        text = f"{amount} so far, step {step + 1} of {len(policy.service_levels) + 1}"
        return RankExplanation(text, used, gpus, "attained")
    if policy.order not in (QueueOrder.REMAINING_TIME, QueueOrder.REMAINING_SERVICE):
        return RankExplanation("")
    left, basis = remaining_time(ranking, at).seconds, _basis(ranking, at)
    counted_gpus = gpus if policy.order is QueueOrder.REMAINING_SERVICE else None
    amount = _service(left, counted_gpus)
    text = f"{amount} left, {basis}"
    if basis == FROM_LIMIT:
        allowed = max((ranking.spec.limit or 0) - used, 0.0)
        if allowed < left:  # ranks do not distinguish very short limits
            counted = approximate_duration(left)
            text = f"{_service(allowed, counted_gpus)} left, {basis}: counted as {counted}"
            left = allowed
    elif basis == FROM_DECLARATION and (declared := _overrun(ranking, used)) is not None:
        ran, expected = approximate_duration(used), approximate_duration(declared)
        text = f"{amount} left: it has run {ran}, longer than the expected {expected}"
    elif basis == UNDECLARED:
        text = f"{basis}: counted as 0"
    elif basis == UNMEASURED:
        text = f"{basis}: counted as {amount}"
        if used * gpus >= ranking.first_level:
            text += f", because it has run {approximate_duration(used)}"
    return RankExplanation(text + _aging_text(ranking, at), left, gpus, basis)


def _basis(ranking: RankingInput, at: float) -> str:
    """Return the basis of the remaining time, in words."""
    training, source = ranking.spec.training, ranking.policy.durations
    if source is DurationSource.DECLARED:
        is_declared = training is not None and training.expected is not None
        return FROM_DECLARATION if is_declared else UNDECLARED
    if source is DurationSource.MEASURED:
        progress, epochs = ranking.job.progress, epochs_of(ranking.job, ranking.spec)
        if progress is not None and progress.epoch_time is not None and epochs is not None:
            return "as measured"
        likely = estimate(ranking.profiles, ranking.cluster, ranking.job, ranking.spec, at)
        if likely.epoch_seconds is not None and epochs is not None:
            return "from measurements of similar jobs"
        if likely.remaining_seconds is not None:
            return FROM_DECLARATION
    return FROM_LIMIT if ranking.spec.limit is not None else UNMEASURED


def _overrun(ranking: RankingInput, used: float) -> float | None:
    """Return the declared duration if it was exceeded by more than restarts may cost."""
    training = ranking.spec.training
    if training is None or training.expected is None:
        return None
    declared = training.expected
    return declared if used > declared * (1 + OVERRUN_TOLERANCE / OVERRUN) else None


def _aging_text(ranking: RankingInput, at: float) -> str:
    """Return the aging bonus in words; empty if it is small."""
    left, waits = remaining_time(ranking, at), wait_time(ranking.job, at)
    if ranking.policy.longest_first or left.ageing == inf:
        return ""
    times = 1 + waits / (left.ageing * max(left.seconds, MIN_SECONDS))
    if times < MIN_AGING_FACTOR_SHOWN:
        return ""
    pending = approximate_duration(waits)
    return f"; reduced {short_number(times)} times because it has been pending for {pending}"


def overdue_in(ranking: RankingInput, at: float) -> float:
    """Return the seconds until a pending job is overdue; `inf` if the policy has no bound."""
    policy = ranking.policy
    if (
        policy.order not in (QueueOrder.REMAINING_TIME, QueueOrder.REMAINING_SERVICE)
        or policy.longest_first
    ):
        return inf
    return max(
        starvation_bound(policy, remaining_time(ranking, at).seconds) - wait_time(ranking.job, at),
        0.0,
    )


def _service(seconds: float, gpus: float | None) -> str:
    """Return a time and, with a number of GPUs, the product of both, in words."""
    if gpus is None:
        return approximate_duration(seconds)
    if gpus == 1:
        return f"{approximate_duration(seconds)} on 1 GPU"
    return f"{approximate_duration(seconds)} × {gpus_in_words(gpus)} = {_gpu_time(seconds * gpus)}"


def gpus_in_words(count: float) -> str:
    """Return `1 GPU`, `0.5 GPUs`."""
    return f"{count:g} GPU{'s' * (count != 1)}"


def _gpu_time(seconds: float) -> str:
    for unit, size in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= size * (2 if unit == "day" else 1):
            count = short_number(seconds / size)
            return f"{count} GPU-{unit}{'s' * (count != '1')}"
    return f"{short_number(seconds)} GPU-seconds"
