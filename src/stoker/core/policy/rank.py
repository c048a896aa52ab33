"""Where a job stands among those of equal priority: a number, and until when that holds.

The number is a binary logarithm, of GPU-seconds or of seconds: one less means half as much to go,
or to have had. What a waiting job has left does not change while it waits, so its number holds
until it is overdue. Of a running job, what is left becomes less with every second; that is worked
out only when somebody asks, since an older number is merely too large, and never hides anybody.
What it has had so far becomes more, in steps at moments that are known in advance.
"""

from __future__ import annotations

from math import floor, inf, log2

from msgspec import Struct

from stoker.core.cluster import Cluster
from stoker.core.estimate import Families, attained, remaining
from stoker.core.job import Job, Spec
from stoker.core.policy.rules import Knows, Order, Policy
from stoker.core.request import Request
from stoker.core.units import THOUSAND

OVERDUE = -1e6
"""Before everybody who has not waited too long."""
LEAST = 1.0
"""Nobody needs less than a second."""
STEP = 0.5
"""What a job has had counts in steps of half a doubling."""
SOON = 1.0
"""Nobody is looked at again within a second, however the moments are rounded."""
CORES = 8
"""So many cores without a GPU count as much as one GPU."""

Rank = tuple[float, float]
"""The number, and the wall-clock time at which it changes by itself."""


class Known(Struct):
    """What is known of one job."""

    job: Job
    spec: Spec
    rules: Policy
    """Those of its queue."""
    families: Families
    cluster: Cluster


def rank(known: Known, at: float) -> Rank:
    """Where a job stands now."""
    job, rules = known.job, known.rules
    late = overdue_at(job, rules, at)
    if late <= at:
        return OVERDUE, inf
    waits = job.placement is None
    level, until = _level(known, at)
    return level, min(until, late) if waits else until


def overdue_at(job: Job, rules: Policy, at: float) -> float:
    """When a job has waited too long in all; what it has run does not count."""
    if not rules.patience:
        return inf
    since = job.ready_at if job.ready_at is not None else job.submitted_at
    return since + attained(job, at) + rules.patience


def _level(known: Known, at: float) -> Rank:
    job, spec, rules = known.job, known.spec, known.rules
    if rules.order is Order.ARRIVAL or rules.order is Order.SHARE:
        return 0.0, inf
    weight = gpus_of(spec.request)
    if rules.order is Order.ATTAINED:
        return _attained_step(job, rules, at, weight)
    left = time_left(known, rules.knows, at)
    if left is None:
        return _had(job, rules, at, weight)
    level = log2(max(left, LEAST)) + (log2(weight) if rules.order is Order.SERVICE else 0.0)
    return (-level if rules.longest else level), inf


def time_left(known: Known, knows: Knows, at: float) -> float | None:
    """Seconds that a job is believed to need from now on."""
    job, spec = known.job, known.spec
    if knows is Knows.MEASURED:
        left = remaining(known.families, known.cluster, job, spec, at)
        if left is not None or spec.limit is None:
            return left
        knows = Knows.LIMIT
    total: float | None = spec.limit
    if knows is Knows.SAID and spec.training is not None:
        total = spec.training.expected
    return max(total - attained(job, at), 0.0) if total is not None else None


def _had(job: Job, rules: Policy, at: float, weight: float) -> Rank:
    """Nobody knows what is left: by what it has had, and one that has had little like any other."""
    had = max(attained(job, at), rules.floor, LEAST)
    step = floor(log2(had) / STEP)
    level = step * STEP + log2(weight)
    if job.placement is None or job.started_at is None:
        return level, inf
    return level, at + max(2 ** ((step + 1) * STEP) - attained(job, at), SOON)


def _attained_step(job: Job, rules: Policy, at: float, weight: float) -> Rank:
    service = attained(job, at) * weight
    step = sum(service >= each for each in rules.steps)
    if step == len(rules.steps) or job.started_at is None or job.placement is None:
        return float(step), inf
    return float(step), at + max((rules.steps[step] - service) / weight, SOON)


def gpus_of(request: Request) -> float:
    """How many GPUs a request is worth."""
    cores = request.cpus * request.machines / CORES
    return max(request.gpu_amount, cores, THOUSAND / CORES) / THOUSAND
