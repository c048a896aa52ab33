"""What is measured of GPUs and jobs, and since when something has been so without a break.

All times are on the boot clock, which does not jump.
"""

from __future__ import annotations

from math import inf, isfinite, nextafter
from statistics import median
from typing import Any

from msgspec import Struct

IDLE_PERCENT = 1
"""Utilisation up to which a GPU is idle; within as much of 100 it is full."""
MAX_GAP_SECONDS = 60.0
"""After a longer time without a sample, nothing is known of the time before."""
STARTUP_SECONDS = 600.0
"""An attempt may load data and compile for so long; that is no idle time."""
INTERVALS = 9
"""Recent times between two reports whose median is the usual one."""
MISSED_INTERVALS = 5
SILENCE_FACTOR = 3
"""Factor of the limit of `hung` for an attempt without reports."""
LEAST_GAIN = 1e-3
"""Part of its best value by which an objective must get better, or it is flat."""


class GpuSample(Struct, frozen=True, kw_only=True):
    """One reading of one GPU; None: the driver does not say."""

    at: float
    utilization: int | None = None
    has_process: bool | None = None
    """Whether a process of the attempt has a context on it."""
    memory: int | None = None
    temperature: int | None = None
    slowdown: int | None = None
    """The temperature at which the GPU slows down."""
    is_slowed: bool | None = None
    """Whether it is slowed down by heat, where that temperature is not known."""
    ecc_errors: int | None = None
    """Uncorrectable errors since the driver was loaded."""
    xid: int | None = None
    """The last fault of the GPU that its driver has reported."""


class GpuTrack(Struct, frozen=True):
    """Since when a GPU has been so in every sample; None: it is not."""

    at: float
    idle: float | None = None
    unused: float | None = None
    flat: float | None = None
    """Utilisation is all the time 0, or all the time 100."""
    hot: float | None = None
    is_full: bool = False
    was_used: bool = False
    """Whether the attempt has ever used it."""
    last: GpuSample | None = None


def observe_gpu(before: GpuTrack | None, sample: GpuSample) -> GpuTrack:
    """Return the track of a GPU after another sample."""
    was_used = before is not None and before.was_used
    if before is None or sample.at - before.at > MAX_GAP_SECONDS:
        before = GpuTrack(sample.at, was_used=was_used)
    load, at = sample.utilization, sample.at
    is_idle = load is not None and load <= IDLE_PERCENT
    is_full = load is not None and load >= 100 - IDLE_PERCENT
    was_used |= bool(sample.has_process) or (load is not None and not is_idle)
    is_same = before.flat is None or is_full == before.is_full
    is_hot = sample.is_slowed or (
        sample.temperature is not None
        and sample.slowdown is not None
        and sample.temperature >= sample.slowdown
    )
    return GpuTrack(
        at,
        idle=_since(before.idle, is_idle, at),
        unused=_since(before.unused, sample.has_process is False and not was_used, at),
        flat=_since(before.flat if is_same else None, is_idle or is_full, at),
        hot=_since(before.hot, bool(is_hot), at),
        is_full=is_full,
        was_used=was_used,
        last=sample,
    )


def _since(before: float | None, holds: bool, at: float) -> float | None:
    if not holds:
        return None
    return at if before is None else before


class JobSample(Struct, frozen=True, kw_only=True):
    """What an attempt has reported and written by now."""

    at: float
    progress: Any = None
    """Changes with every report of an epoch or a step; None: it has reported none."""
    is_done: bool = False
    """Whether it has reported its last epoch: it may save for long."""
    nan_metrics: tuple[str, ...] = ()
    """Metrics that were not a number in the last two reports."""
    log_size: int | None = None
    log_has_nan: bool = False
    """Whether its log has a loss that is not a number, twice in a row."""
    objective: float | None = None
    """The last value by which the trials of its sweep are compared; smaller is better."""


class ObjectiveTrack(Struct, frozen=True):
    """How the objective of a trial develops; smaller is better."""

    first: float
    best: float
    improved: float
    """When it last got better."""
    worse: float | None = None
    """Since when it is worse than its first value."""


class JobTrack(Struct, frozen=True):
    """When an attempt last reported and wrote."""

    last: JobSample
    reported: float
    wrote: float
    intervals: tuple[float, ...] = ()
    objective: ObjectiveTrack | None = None
    restored: frozenset[str] = frozenset()
    """Kinds of alarms that were active when the daemon stopped; it has done nothing since."""


def restored_track(at: float, since: dict[str, float]) -> JobTrack:
    """Return the track of an attempt of an earlier daemon, by the begins of its active alarms."""
    objective = None
    if "loss_flat" in since or "diverged" in since:
        improved, worse = since.get("loss_flat", at), since.get("diverged")
        objective = ObjectiveTrack(inf, inf, improved, worse)
    return JobTrack(
        JobSample(at=at), since.get("hung", at), since.get("log_silent", at),
        objective=objective, restored=frozenset(since),
    )  # fmt: skip


def observe_job(before: JobTrack | None, sample: JobSample, is_paused: bool = False) -> JobTrack:
    """Return the track of an attempt after another sample."""
    at = sample.at
    objective = before.objective if before is not None else None
    if is_paused and objective is not None:
        objective = ObjectiveTrack(objective.first, objective.best, at)
    objective = _observe_objective(objective, sample.objective, at)
    if before is None or is_paused:
        intervals = before.intervals if before is not None else ()
        return JobTrack(sample, at, at, intervals, objective)
    reported, wrote, intervals = before.reported, before.wrote, before.intervals
    last = before.last
    has_reported = sample.progress != last.progress
    has_written = sample.log_size != last.log_size
    if before.restored and last.progress is None and last.log_size is None:
        has_reported = has_written = False  # that was before the daemon started
    if has_reported:
        took = (at - reported,) if last.progress is not None else ()
        intervals, reported = (intervals + took)[-INTERVALS:], at
    if has_written:
        wrote = at
    restored = frozenset[str]() if has_reported or has_written else before.restored
    return JobTrack(sample, reported, wrote, intervals, objective, restored)


def _observe_objective(
    before: ObjectiveTrack | None, value: float | None, at: float
) -> ObjectiveTrack | None:
    if value is None or not isfinite(value):
        return before
    if before is None:
        return ObjectiveTrack(value, value, at)
    if before.first == inf:  # of an earlier daemon: what is true remains true at this value
        first = value if before.worse is None else nextafter(value, -inf)
        return ObjectiveTrack(first, value, before.improved, before.worse)
    has_improved = value < before.best - LEAST_GAIN * abs(before.best)
    return ObjectiveTrack(
        before.first,
        min(value, before.best) if has_improved else before.best,
        at if has_improved else before.improved,
        _since(before.worse, value > before.first, at),
    )


def hung_since(track: JobTrack, gpus: list[GpuTrack], now: float, limit: float) -> float | None:
    """Return since when an attempt does nothing any more; None: it does something.

    `gpus`: those of the attempt whose utilisation is known. A GPU whose load varies is at work,
    for instance on a long validation.
    """
    flat = max((now if gpu.flat is None else gpu.flat for gpu in gpus), default=None)
    if "hung" in track.restored:
        return None if any(gpu.flat is None for gpu in gpus) else track.reported
    idle = max(track.reported, flat or 0.0)
    if len(track.intervals) > 1 and not track.last.is_done:
        usual = max(MISSED_INTERVALS * median(track.intervals), limit)
        if now - track.reported > usual and now - idle >= limit:
            return track.reported
    silent = max(idle, track.wrote)
    knows_all = flat is not None and track.last.log_size is not None
    return silent if knows_all and now - silent >= SILENCE_FACTOR * limit else None
