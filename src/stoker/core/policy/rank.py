"""Where a job stands among those of equal priority: a number, and until when that holds.

The number is a binary logarithm, of GPU-seconds or of seconds: one less means half as much to go.
It moves in steps, so that jobs that need about the same keep the order in which they came, and
running ones are not stopped for a trifle.

The remaining time of a pending job does not change. Its pending time improves its rank, and the
times of these steps are known in advance. The remaining time of a running job decreases every
second. It is computed on request: an older value is only too large and hides no victim. Once the
job exceeds its expected duration, its remaining time grows again, in steps at known times. A job
without measurements is taken to need a multiple of the time it has run, because even its first
epoch takes longer than that; the times of these steps are known, too.
"""

from __future__ import annotations

from math import floor, inf, log2

from msgspec import Struct

from stoker.core.cluster import Cluster
from stoker.core.estimate import Families, at_best, attained, time_left, time_to_go
from stoker.core.job import Job, Spec
from stoker.core.policy.rules import Knows, Order, Policy
from stoker.core.request import Request
from stoker.core.units import THOUSAND

OVERDUE = -1e6
"""Before everybody who has not waited too long."""
LEAST = 1.0
"""Nobody needs less than a second."""
SOON = 1.0
"""Nobody is looked at again within a second, however the moments are rounded."""
MANY = 20.0
"""Before its first epoch is over, a job is taken to need so many times what it has had."""
GUESSED = 0.5
"""What is taken to be left of such a job becomes more in steps of half a doubling."""
CORES = 8
"""So many cores without a GPU count as much as one GPU."""
SHORTEST_LIMIT = 600.0
"""Below that, people who type time limits do not tell jobs apart."""

_AS_THEY_CAME = (Order.ARRIVAL, Order.SHARE)

Rank = tuple[float, float, float]
"""The number, when somebody should look again, and until when it holds for sure (wall clock)."""


class Known(Struct):
    """What is known of one job."""

    job: Job
    spec: Spec
    rules: Policy
    """Those of its queue."""
    families: Families
    cluster: Cluster


class Left(Struct, frozen=True):
    """How long a job is believed to need from now on, and how far that is to be trusted."""

    seconds: float
    grain: float
    """Steps, in doublings; 0: exact."""
    ageing: float
    """Whoever has waited so many times what it needs stands a doubling further in front."""
    until: float = inf
    """When it is believed to need more, though nothing has been heard."""


def rank(known: Known, at: float) -> Rank:
    """Where a job stands now."""
    job, rules = known.job, known.rules
    order = rules.order
    if order in _AS_THEY_CAME:
        return 0.0, inf, inf
    if order is Order.ATTAINED:
        return _attained_step(job, rules, at, gpus_of(known.spec.request))
    left = left_of(known, at)
    amount = max(left.seconds, LEAST)
    if order is Order.SERVICE:
        amount *= gpus_of(known.spec.request)
    level = _down(log2(amount), left.grain)
    falls = at + left.seconds * (1 - 2**level / amount) if left.grain else at
    if rules.longest:
        return -level, left.until, falls
    waits = waited(job, at)
    late = patience_of(rules, left.seconds)
    if waits >= late:
        return OVERDUE, inf, inf
    age, older = _age(waits, left)
    if job.placement is not None:
        return level - age, left.until, min(left.until, falls)
    until = at + max(min(older, late) - waits, SOON)
    return level - age, until, until


def waited(job: Job, at: float) -> float:
    """Seconds in which it could have run and did not; while it runs, they do not become more."""
    since = job.ready_at if job.ready_at is not None else job.submitted_at
    return max(at - since - attained(job, at), 0.0)


def patience_of(rules: Policy, left: float) -> float:
    """Seconds of waiting after which one that needs so long is overdue."""
    return max(rules.patience, rules.overdue * left) if rules.patience else inf


def left_of(known: Known, at: float) -> Left:
    """How long a job needs from now on, by what its policy believes."""
    job, spec, rules = known.job, known.spec, known.rules
    said = spec.training.expected if spec.training is not None else None
    if rules.knows is Knows.SAID and said is not None:
        found = time_left(said, attained(job, at))
        grows_in = found.grows_in if job.placement is not None else inf
        return Left(found.seconds, 0.0, inf, at + max(grows_in, SOON))
    grain = log2(max(rules.grain, 1.0))
    if rules.knows is Knows.MEASURED:
        measured = time_to_go(known.families, known.cluster, job, spec, at)
        if measured is not None:
            # By where it would be fastest: a job on a slow GPU is no longer job for that.
            seconds = measured.seconds * at_best(known.families, known.cluster, job, spec)
            return Left(seconds, grain, rules.ageing, at + max(measured.grows_in, SOON))
    if spec.limit is not None:
        return Left(max(spec.limit - attained(job, at), SHORTEST_LIMIT), 1.0, 1.0)
    return _unmeasured(job, rules, at, grain)


def _unmeasured(job: Job, rules: Policy, at: float, grain: float) -> Left:
    had = attained(job, at)
    guess = max(MANY * had, rules.floor)
    if job.placement is None or job.started_at is None:
        return Left(guess, grain, rules.ageing)
    least = max(rules.floor, LEAST)
    step = floor(log2(max(guess, least) / least) / GUESSED)
    guess = least * 2 ** (step * GUESSED)
    more = least * 2 ** ((step + 1) * GUESSED)
    return Left(guess, grain, rules.ageing, at + max(more / MANY - had, SOON))


def _age(waits: float, left: Left) -> tuple[float, float]:
    """By how much a job stands further in front for having waited, and when it is a step more."""
    if not 0 < left.ageing < inf:
        return 0.0, inf
    scale = left.ageing * max(left.seconds, LEAST)
    grain = left.grain or 1.0
    age = _down(log2(1 + waits / scale), grain)
    return age, scale * (2 ** (age + grain) - 1)


def _down(level: float, grain: float) -> float:
    """The step at or below a level. Those of equal jobs come out equal, whatever is rounded."""
    return round(floor(level / grain + 1e-9) * grain, 9) if grain else level


def _attained_step(job: Job, rules: Policy, at: float, weight: float) -> Rank:
    service = attained(job, at) * weight
    step = sum(service >= each for each in rules.steps)
    if step == len(rules.steps) or job.started_at is None or job.placement is None:
        return float(step), inf, inf
    until = at + max((rules.steps[step] - service) / weight, SOON)
    return float(step), until, until


def gpus_of(request: Request) -> float:
    """How many GPUs a request is worth."""
    cores = request.cpus * request.machines / CORES
    return max(request.gpu_amount, cores, THOUSAND / CORES) / THOUSAND
