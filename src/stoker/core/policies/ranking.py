"""The rank of a job among those of equal priority, and until when it is valid.

The rank is the binary logarithm of remaining GPU-seconds or seconds: one less means half as much
left (SRSF, SRTF). It changes in steps, so that jobs with about the same remaining service keep the
order of submission, and small differences cause no preemption. `ATTAINED_SERVICE` is 2D-LAS
(Tiresias, NSDI'19).

The remaining time of a pending job does not change. Its pending time improves its rank, and the
times of these steps are known in advance. The remaining time of a running job decreases every
second. It is computed on request: an older value is only too large and hides no victim. Once the
job exceeds its expected duration, its remaining time grows again, in steps at known times. A job
without an estimate is assumed to need as much service as it has attained, in a few levels
(multilevel feedback); the times of its level changes are known, too. As long as no job of the queue
has reported epochs, the levels are those of Tiresias: there is no estimate to compare with.
"""

from __future__ import annotations

from math import floor, inf, log2

from msgspec import Struct

from stoker.core.cluster.cluster import Cluster
from stoker.core.measurement import estimator
from stoker.core.model.job import Job
from stoker.core.model.profile import JobProfiles
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.spec import Spec
from stoker.core.model.units import THOUSAND
from stoker.core.policies.policy import DurationSource, Policy, QueueOrder

OVERDUE_RANK = -1e6
"""Rank of overdue jobs, below all other ranks."""
MIN_SECONDS = 1.0
"""Minimum remaining seconds, so that the logarithm is defined, and minimum seconds until a rank is
computed again, whatever rounding says."""
ROUNDING_SECONDS = 1e-3
"""More than rounding adds to a sum of times: an overdue job stays overdue while it runs."""
SERVICE_LEVEL_RATIO = 16.0
"""Ratio of two levels of a job without an estimate: with fewer levels, its rank says too little;
with more, jobs of about the same size preempt each other in turns."""
CORES_PER_GPU = 8
"""Cores of a job without GPUs that count as one GPU: a usual ratio of GPU servers."""
UNMEASURED_SECONDS = 600.0
"""Minimum remaining seconds by a time limit, which is typed and not measured, and seconds until a
stop request times out if no epoch of the job was measured."""

MAX_AGEING_BONUS = 3.0
"""Maximum improvement of a measured job's rank by waiting, a factor of eight: with more, jobs of a
long backlog would come before every new short job."""

RankResult = tuple[float, float, float]
"""The rank, the time of its next known change, and until when it is valid (wall clock)."""


Threshold = tuple[float, float]
"""Minus the priority and the rank of the last victim needed; a preemptor must be below it."""


class RankingInput(Struct):
    """What the rank of one job depends on."""

    job: Job
    spec: Spec
    policy: Policy
    """Policy of its queue."""
    profiles: JobProfiles
    cluster: Cluster
    queue_reports: bool
    """Whether a job of its queue has reported epochs."""

    @property
    def first_level(self) -> float:
        """GPU-seconds in the first level of attained service of a job without an estimate."""
        if self.policy.service_levels and not self.queue_reports:
            return self.policy.service_levels[0]
        return max(self.policy.floor, MIN_SECONDS)


class RemainingTime(estimator.TimeLeft, frozen=True):
    """Expected remaining time of a job, and its precision."""

    grain: float = 0.0
    """Step of the rank in doublings; 0: exact."""
    ageing: float = inf
    """A wait of this many times the remaining time improves the rank by one doubling."""
    max_bonus: float = inf
    """Maximum improvement of the rank by waiting, in doublings."""

    def falls_to(self, seconds: float, at: float) -> float:
        """Return when a running job has this much left; infinite if it stays above."""
        return at + self.seconds - seconds if seconds > self.floor else inf


def rank(inputs: RankingInput, at: float) -> RankResult:
    """Return the rank of a job."""
    job, policy = inputs.job, inputs.policy
    order = policy.order
    if order in (QueueOrder.ARRIVAL, QueueOrder.FAIR_SHARE):
        return 0.0, inf, inf
    if order is QueueOrder.ATTAINED_SERVICE:
        return _attained_step(job, policy, at, gpus_of(inputs.spec.request))
    remaining = remaining_time(inputs, at)
    amount = max(remaining.seconds, MIN_SECONDS)
    if order is QueueOrder.REMAINING_SERVICE:
        amount *= _gpu_weight(inputs)
    level = _quantize(log2(amount), remaining.grain)
    grows_at = at + max(remaining.grows_in, MIN_SECONDS)
    valid_until = at  # an exact rank falls with every second
    if remaining.grain:
        valid_until = remaining.falls_to(remaining.seconds * 2**level / amount, at)
    if policy.longest_first:
        return -level, grows_at, valid_until
    since = waiting_since(job, at)
    waited = max(at - since, 0.0)
    overdue_at = since + starvation_bound(policy, remaining.seconds)
    if at >= overdue_at - ROUNDING_SECONDS:
        return OVERDUE_RANK, inf, inf
    bonus, next_bonus_after = _ageing_bonus(waited, remaining)
    if job.placement is not None:
        if waited and next_bonus_after < inf:  # it grows as the remaining time falls
            bonus_at = remaining.falls_to(remaining.seconds * waited / next_bonus_after, at)
            valid_until = min(valid_until, bonus_at)
        return level - bonus, grows_at, min(grows_at, valid_until)
    until = min(since + next_bonus_after, overdue_at)
    if until <= at:
        until = at + MIN_SECONDS
    return level - bonus, until, until


def hysteresis_of(job: Job, policy: Policy) -> float:
    """Return the doublings by which a pending job must outrank a running one to preempt it.

    0 if the running job started before its first estimate: by a guess it may have displaced a
    shorter job, which could otherwise not displace it in turn.
    """
    if policy.durations is DurationSource.MEASURED and job.progress.started_unmeasured:
        return 0.0
    return log2(policy.hysteresis)


def waiting_since(job: Job, at: float) -> float:
    """Return when a job became eligible, later by the time it has run.

    For a pending job it is the same at all times, so that a restart does not change its timers.
    """
    eligible_since = job.ready_at if job.ready_at is not None else job.submitted_at
    return eligible_since + estimator.attained(job, at)


def wait_time(job: Job, at: float) -> float:
    """Return the seconds a job was eligible and not running."""
    return max(at - waiting_since(job, at), 0.0)


def starvation_bound(policy: Policy, remaining_seconds: float) -> float:
    """Return the seconds of waiting after which a job with this remaining time is overdue."""
    return max(policy.patience, policy.overdue * remaining_seconds) if policy.patience else inf


def remaining_time(inputs: RankingInput, at: float) -> RemainingTime:
    """Return the expected remaining time by the duration source of the policy."""
    job, spec, policy = inputs.job, inputs.spec, inputs.policy
    declared = spec.expected
    if policy.durations is DurationSource.DECLARED and declared is not None:
        left = estimator.time_left(declared, estimator.attained(job, at))
        grows_in = left.grows_in if job.placement is not None else inf
        return RemainingTime(left.seconds, grows_in, left.floor)
    grain = log2(max(policy.grain, 1.0))
    if policy.durations is DurationSource.MEASURED:
        measured = estimator.expected_time_left(inputs.profiles, inputs.cluster, job, spec, at)
        if measured is not None:
            # On its fastest GPU model: a job on a slow GPU is not a longer job.
            ratio = estimator.best_model_ratio(inputs.profiles, inputs.cluster, job, spec)
            seconds, floor_seconds = measured.seconds * ratio, measured.floor * ratio
            return RemainingTime(
                seconds, measured.grows_in, floor_seconds, grain, policy.ageing, MAX_AGEING_BONUS
            )
    if spec.limit is not None:
        seconds = max(spec.limit - estimator.attained(job, at), UNMEASURED_SECONDS)
        return RemainingTime(seconds, floor=UNMEASURED_SECONDS, grain=1.0, ageing=1.0)
    return _unmeasured(inputs, at, grain)


def _unmeasured(inputs: RankingInput, at: float, grain: float) -> RemainingTime:
    """Return the remaining time of a job without an estimate, by its attained service."""
    job, policy, gpus = inputs.job, inputs.policy, gpus_of(inputs.spec.request)
    service, first_level = estimator.attained(job, at) * gpus, inputs.first_level
    assumed_service, next_level_at, ageing = first_level * gpus, first_level, policy.ageing
    if policy.service_levels and not inputs.queue_reports:
        # FIFO within a level. Long assumed times: it need not run soon in order to be measured.
        ageing, last_level = inf, policy.service_levels[-1] * SERVICE_LEVEL_RATIO
        bounds = (bound for bound in policy.service_levels if service < bound)
        next_level_at = next(bounds, inf)
        assumed_service = min(next_level_at, last_level) * SERVICE_LEVEL_RATIO
        assumed_service *= gpus / _gpu_weight(inputs)
    elif service >= first_level:
        level = first_level * SERVICE_LEVEL_RATIO
        while service >= level * SERVICE_LEVEL_RATIO:
            level *= SERVICE_LEVEL_RATIO
        assumed_service = max(level, assumed_service)
        next_level_at = level * SERVICE_LEVEL_RATIO
    is_running = job.placement is not None and job.started_at is not None
    grows_in = (next_level_at - service) / gpus if is_running else inf
    seconds = assumed_service / gpus
    return RemainingTime(seconds, grows_in, seconds, grain, ageing)


def _ageing_bonus(waited: float, remaining: RemainingTime) -> tuple[float, float]:
    """Return the rank improvement by waiting, and the wait at which it grows by a step."""
    if not 0 < remaining.ageing < inf:
        return 0.0, inf
    scale = remaining.ageing * max(remaining.seconds, MIN_SECONDS)
    grain = remaining.grain or 1.0
    bonus = _quantize(min(log2(1 + waited / scale), remaining.max_bonus), grain)
    if bonus + grain > remaining.max_bonus:
        return bonus, inf
    return bonus, scale * (2 ** (bonus + grain) - 1)


def _quantize(level: float, grain: float) -> float:
    """Return the step at or below a level; rounded, so that equal jobs have equal ranks."""
    return round(floor(level / grain + 1e-9) * grain, 9) if grain else level


def _attained_step(job: Job, policy: Policy, at: float, weight: float) -> RankResult:
    service = estimator.attained(job, at) * weight
    level = sum(service >= boundary for boundary in policy.service_levels)
    if level == len(policy.service_levels) or job.started_at is None or job.placement is None:
        return float(level), inf, inf
    until = at + max((policy.service_levels[level] - service) / weight, MIN_SECONDS)
    return float(level), until, until


def _gpu_weight(inputs: RankingInput) -> float:
    """Return the factor of the remaining time in the rank."""
    return float(gpus_of(inputs.spec.request) ** inputs.policy.gpu_exponent)


def gpus_of(request: ResourceRequest) -> float:
    """Return the number of GPUs that a request counts as."""
    cores = request.cpus * request.node_count / CORES_PER_GPU
    return max(request.gpu_amount, cores, THOUSAND / CORES_PER_GPU) / THOUSAND
