"""Estimates: from the samples of a forecast to the one number, and its range, that is printed."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from msgspec.structs import replace

from stoker.core.explain.forecast import (
    CLUSTER_DECIDES,
    CLUSTER_SCHEDULE,
    JobForecast,
    Kind,
    Samples,
    StartEndEstimate,
    TimeInterval,
    combined,
)
from stoker.core.measurement.estimator import OVERRUN
from stoker.core.model.job import Job
from stoker.core.policies.ranking import MIN_SECONDS

INTERVAL_SHARE = 0.8
"""Probability that the actual time is within the printed range."""

OUT_OF_DATE = "the forecast is out of date, a newer one is being computed"


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
