"""The value by which a policy ranks a job: in numbers, and in words."""

from __future__ import annotations

from math import inf

from msgspec import Struct

from stoker.core.measurement import estimator
from stoker.core.model.units import approximate_duration, short_number
from stoker.core.policies import ranking as ranks
from stoker.core.policies.policy import DurationSource, QueueOrder

UNMEASURED, UNDECLARED = "not measured yet", "no expected duration was given"
FROM_LIMIT, FROM_DECLARATION = "from its time limit", "from its expected duration"
MAX_EXPLAINED_OVERRUN = 1 + estimator.OVERRUN_TOLERANCE / estimator.OVERRUN
"""Share of the declared duration up to which restarts may explain that it was exceeded."""


class RankExplanation(Struct, frozen=True):
    """The value by which a policy ranks a job."""

    text: str
    seconds: float | None = None
    """Its remaining time, or its attained time, depending on the policy."""
    gpus: float | None = None
    basis: str | None = None


def explain_rank(ranking: ranks.RankingInput, at: float) -> RankExplanation:
    """Return the value by which a job is ranked."""
    policy, declared = ranking.policy, ranking.spec.expected
    gpus, used = ranks.gpus_of(ranking.spec.request), estimator.attained(ranking.job, at)
    if policy.order is QueueOrder.ATTAINED_SERVICE:
        step = sum(used * gpus >= bound for bound in policy.service_levels)
        amount = _service(used, gpus) if used else "nothing"
        text = f"{amount} so far, step {step + 1} of {len(policy.service_levels) + 1}"
        return RankExplanation(text, used, gpus, "attained")
    if policy.order not in (QueueOrder.REMAINING_TIME, QueueOrder.REMAINING_SERVICE):
        return RankExplanation("")
    left, basis = ranks.remaining_time(ranking, at).seconds, _basis(ranking, at)
    counted_gpus = gpus if policy.order is QueueOrder.REMAINING_SERVICE else None
    amount = _service(left, counted_gpus)
    text = f"{amount} left, {basis}"
    if basis == FROM_LIMIT:
        allowed = max((ranking.spec.limit or 0) - used, 0.0)
        if allowed < left:  # ranks do not distinguish very short limits
            counted = approximate_duration(left)
            text = f"{_service(allowed, counted_gpus)} left, {basis}: counted as {counted}"
            left = allowed
    elif basis == FROM_DECLARATION and declared and used > declared * MAX_EXPLAINED_OVERRUN:
        ran, expected = approximate_duration(used), approximate_duration(declared)
        text = f"{amount} left: it has run {ran}, longer than the expected {expected}"
    elif basis == UNDECLARED:
        text = f"{basis}: counted as 0"
    elif basis == UNMEASURED:
        text = f"{basis}: counted as {amount}"
        if used * gpus >= ranking.first_level:
            text += f", because it has run {approximate_duration(used)}"
    return RankExplanation(text + _aging_text(ranking, at), left, gpus, basis)


def _basis(ranking: ranks.RankingInput, at: float) -> str:
    """Return the basis of the remaining time, in words."""
    job, spec, source = ranking.job, ranking.spec, ranking.policy.durations
    if source is DurationSource.DECLARED:
        return UNDECLARED if spec.expected is None else FROM_DECLARATION
    if source is DurationSource.MEASURED:
        epochs = estimator.epochs_of(job, spec)
        if job.progress.epoch_time is not None and epochs is not None:
            return "as measured"
        likely = estimator.estimate(ranking.profiles, ranking.cluster, job, spec, at)
        if likely.epoch_seconds is not None and epochs is not None:
            return "from measurements of similar jobs"
        if likely.remaining_seconds is not None:
            return FROM_DECLARATION
    return FROM_LIMIT if spec.limit is not None else UNMEASURED


def _aging_text(ranking: ranks.RankingInput, at: float) -> str:
    """Return the aging bonus in words; empty if it is small."""
    left, waits = ranks.remaining_time(ranking, at), ranks.wait_time(ranking.job, at)
    if ranking.policy.longest_first or left.ageing == inf:
        return ""
    times = 1 + waits / (left.ageing * max(left.seconds, ranks.MIN_SECONDS))
    if times < ranking.policy.grain:  # less than a step of the rank
        return ""
    pending = approximate_duration(waits)
    return f"; reduced {short_number(times)} times because it has been pending for {pending}"


def overdue_in(ranking: ranks.RankingInput, at: float) -> float:
    """Return the seconds until a pending job is overdue; `inf` if the policy has no bound."""
    bound = ranks.starvation_bound(ranking.policy, ranks.remaining_time(ranking, at).seconds)
    return max(bound - ranks.wait_time(ranking.job, at), 0.0)


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
