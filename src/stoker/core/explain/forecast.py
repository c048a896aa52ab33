"""Forecasts of job starts and ends: samples of simulated futures, and the interval printed.

The samples come from a helper process; `interval` turns them into the one number (and range) that
every command prints. The input of a forecast is in `forecast_input`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.measurement.estimator import OVERRUN
from stoker.core.model.job import Job
from stoker.core.policies.ranking import MIN_SECONDS

INTERVAL_SHARE = 0.8
"""Probability that the actual time is within the printed range."""

CLUSTER_DECIDES = "the cluster decides when it starts"
CLUSTER_SCHEDULE = "the schedule of its cluster"
OUT_OF_DATE = "the forecast is out of date, a newer one is being computed"


class Kind(StrEnum):
    """What an estimate is based on."""

    EPOCHS = "epochs"
    """Epochs of the job that were measured."""
    RUNS = "runs"
    """Earlier runs of the same command with the same arguments."""
    STATED = "stated"
    """The duration that the user stated."""
    ORDER = "order"
    """No duration is needed: nothing has to end first."""
    LIMIT = "limit"
    """Time limits: the estimate is an upper bound."""
    SIMILAR = "similar"
    """Runs of similar jobs: the same name with other arguments, the same size, recent jobs."""
    UNKNOWN = "unknown"
    """Nothing is known, so there is no estimate."""


MOST_PRECISE_FIRST = (Kind.ORDER, Kind.EPOCHS, Kind.RUNS, Kind.STATED)
"""Kinds that name the job itself, the most precise first."""


def combined(kinds: Collection[Kind]) -> Kind:
    """Return the kind of an estimate that depends on several durations."""
    if Kind.UNKNOWN in kinds:
        return Kind.UNKNOWN
    if Kind.LIMIT in kinds:
        # A sum of bounds is a bound; a sum of a bound and an estimate is neither.
        exact = all(kind in (Kind.LIMIT, Kind.ORDER) for kind in kinds)
        return Kind.LIMIT if exact else Kind.SIMILAR
    if Kind.SIMILAR in kinds:
        return Kind.SIMILAR
    return max(kinds, key=MOST_PRECISE_FIRST.index, default=Kind.ORDER)


class Samples(Struct, kw_only=True, omit_defaults=True):
    """When a job starts or ends, in each simulated future."""

    at: list[float | None]
    """In the order of the futures; None: later than was simulated."""
    until: float
    """Every future was simulated at least until then."""
    kind: Kind
    basis: str
    """What the estimate is based on, in words; with `UNKNOWN`, what is missing."""
    latest: float | None = None
    """When it happens if every job ahead uses its whole time limit."""


class JobForecast(Struct, kw_only=True, omit_defaults=True):
    """The forecast of one job."""

    job: int
    start: Samples | None = None
    """None: it is running, or there is no forecast."""
    end: Samples | None = None
    never: str | None = None
    """Why there is no forecast, in words."""


class Forecast(Struct, kw_only=True):
    """The forecast of all jobs of a state."""

    at: float
    """The time of the state that was simulated."""
    jobs: list[JobForecast]
    plays: int = 0
    """How many futures were simulated."""
    horizon: float | None = None
    """Jobs without a forecast start later than this."""


class TimeInterval(Struct, frozen=True):
    """An estimated time with its range of 80 % and its basis, on the wall clock."""

    low: float
    likely: float | None
    """None: later than was simulated."""
    high: float | None
    kind: Kind
    basis: str


def interval(samples: Samples, now: float) -> TimeInterval | None:
    """Return the estimate as of now: samples that have passed without the event do not count."""
    kind, basis, soonest = samples.kind, samples.basis, now + MIN_SECONDS  # it has not happened yet
    if kind is Kind.UNKNOWN:
        return None
    later = [inf if at is None else max(at, soonest) for at in samples.at if at is None or at > now]
    edge = (1 - INTERVAL_SHARE) / 2
    simulated = max(samples.until, soonest)
    low = _quantile([simulated if at == inf else at for at in later], edge)
    if kind is Kind.LIMIT and samples.latest is not None and samples.latest > now:
        latest = max(samples.latest, soonest)
        return TimeInterval(min(low or latest, latest), latest, latest, kind, basis)
    if low is None:
        # It has outlived every sample: expect it to take longer the longer it is overdue.
        overdue = now - max(at for at in samples.at if at is not None)
        likely = now + max(OVERRUN * overdue, MIN_SECONDS)
        return TimeInterval(soonest, likely, None, kind, basis)
    return TimeInterval(low, _quantile(later, 0.5), _quantile(later, 1 - edge), kind, basis)


def _contradicted(start: Samples, now: float) -> bool:
    """Return True if a pending job should have started by now: the whole queue is late."""
    if start.kind is Kind.LIMIT and start.latest is not None:
        return start.latest <= now
    return 2 * sum(at is not None and at <= now for at in start.at) > len(start.at)


class StartEndEstimate(Struct, frozen=True):
    """The estimate of one job that every command prints."""

    at: float
    """The time of the state that was simulated."""
    start: TimeInterval | None = None
    end: TimeInterval | None = None
    never: str | None = None
    """Why there is no estimate, in words."""


def queued_estimate(forecast: JobForecast, job: Job, at: float, now: float) -> StartEndEstimate:
    """Return the estimate of a job that another scheduler starts, from a forecast made at `at`.

    Its start is what that scheduler expects, and its run time what the forecast expects.
    """
    start = job.queue_start
    if start is None or start <= now:
        return StartEndEstimate(at, never=CLUSTER_DECIDES)
    later = start - at
    ends = None
    if (end := forecast.end) is not None:
        times = [None if each is None else each + later for each in end.at]
        latest = None if end.latest is None else end.latest + later
        ends = interval(replace(end, at=times, until=end.until + later, latest=latest), now)
    starts = TimeInterval(now + MIN_SECONDS, start, None, Kind.SIMILAR, CLUSTER_SCHEDULE)
    return StartEndEstimate(at, starts, ends)


def start_end_estimate(forecast: JobForecast, job: Job, at: float, now: float) -> StartEndEstimate:
    """Return the estimate of an unfinished job, from a forecast made at `at`."""
    if job.held:
        return StartEndEstimate(at, never="it is held")
    start = forecast.start if job.placement is None else None
    if start is not None and _contradicted(start, now):
        return StartEndEstimate(at, never=OUT_OF_DATE)
    starts = interval(start, now) if start is not None else None
    ends = interval(forecast.end, now) if forecast.end is not None else None
    never, needed = forecast.never, start or forecast.end
    if needed is not None and needed.kind is Kind.UNKNOWN:
        never = needed.basis
    return StartEndEstimate(at, starts, ends, never)


def last_of(parts: Iterable[Samples], scale: float, at: float) -> Samples | None:
    """Return when the last of several jobs ends, with the time from `at` on times `scale`."""
    samples = list(parts)
    if not samples:
        return None
    ends = [
        None if None in plays else at + scale * (max(end for end in plays if end is not None) - at)
        for plays in zip(*(part.at for part in samples), strict=True)
    ]
    kind = combined([part.kind for part in samples] + [Kind.SIMILAR] * (scale != 1.0))
    basis = next((part.basis for part in samples if part.kind is kind), samples[0].basis)
    latest = [inf if part.latest is None else part.latest for part in samples if part.kind is kind]
    bounded = kind is Kind.LIMIT and max(latest) < inf
    return Samples(
        at=ends, until=min(part.until for part in samples), kind=kind, basis=basis,
        latest=max(latest) if bounded else None,
    )  # fmt: skip


def _quantile(values: list[float], share: float) -> float | None:
    """Return the quantile; None where it is infinite or there is no value."""
    if not values:
        return None
    values = sorted(values)
    index = min(max(share * (len(values) + 1) - 1, 0.0), len(values) - 1.0)
    low, high = values[int(index)], values[min(int(index) + 1, len(values) - 1)]
    part = index - int(index)
    value = low if part < 1e-9 else low + part * (high - low)
    return value if value < inf else None
