"""RunStatistics: completion times, waits, slowdowns and utilisation of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from stoker.simulate.replay.results import JobResult, RunCost, RunResult

MIN_RUN_SECONDS = 10.0
"""Bound of the bounded slowdown: a shorter job counts as this long. Otherwise a job that fails at
once would outweigh all others."""

SIZES = ("none", "<1", "1", "2–4", "5–8", ">8")
"""Groups by GPUs of a job."""


Times = tuple[float, float, float, float]
"""Completion time, wait, slowdown and GPU-seconds of a job."""


class Spread(Struct, kw_only=True, frozen=True):
    """Mean and quantiles of a value over many jobs."""

    mean: float
    median: float
    p90: float
    p99: float
    most: float


class Group(Struct, kw_only=True, frozen=True):
    """Statistics of the jobs of one size, user or queue."""

    name: str
    jobs: int
    service: float
    """GPU-seconds held."""
    jct: Spread
    waiting: Spread
    slowdown: Spread


class RunStatistics(Struct, kw_only=True, frozen=True):
    """Statistics of a run. Times in seconds; None if there is no data."""

    label: str
    jobs: int
    """Jobs that ended; all other statistics are about them."""
    unfinished: int
    jct: Spread | None
    """From submission to end."""
    waiting: Spread | None
    slowdown: Spread | None
    """Bounded slowdown: see `MIN_RUN_SECONDS`."""
    makespan: float | None
    """From the first submission to the last end."""
    busy: float | None
    """Share of the GPUs in use until the last submission; afterwards the cluster only drains."""
    busy_whole: float | None
    """Share of the GPUs in use until the end."""
    preemptions: float | None
    """Per job."""
    resizes: float | None
    """Restarts per job with another number of GPUs."""
    by_size: list[Group]
    by_user: list[Group]
    """By GPU-seconds, the largest first."""
    by_queue: list[Group]
    cost: RunCost


class Measure(Struct, frozen=True):
    """A statistic by which policies are compared."""

    key: str
    title: str
    kind: Literal["time", "share", "number", "instant"]
    of: Callable[[RunStatistics], float | None]
    better: Literal["less", "more", ""] = "less"


def _statistic(path: str) -> Callable[[RunStatistics], float | None]:
    """Return a getter of a statistic; it returns None if a part of the path is None."""
    names = path.split(".")

    def get(statistics: RunStatistics) -> float | None:
        value: Any = statistics
        for name in names:
            value = None if value is None else getattr(value, name)
        return None if value is None else float(value)

    return get


def _seconds_per_event(statistics: RunStatistics) -> float | None:
    return statistics.cost.seconds / statistics.cost.events if statistics.cost.events else None


MEASURES = (
    Measure("jct_mean", "mean JCT", "time", _statistic("jct.mean")),
    Measure("jct_median", "median JCT", "time", _statistic("jct.median")),
    Measure("jct_p90", "p90 JCT", "time", _statistic("jct.p90")),
    Measure("jct_p99", "p99 JCT", "time", _statistic("jct.p99")),
    Measure("wait_mean", "mean wait", "time", _statistic("waiting.mean")),
    Measure("wait_p99", "p99 wait", "time", _statistic("waiting.p99")),
    Measure("wait_most", "largest wait", "time", _statistic("waiting.most")),
    Measure("slowdown_mean", "mean slowdown", "number", _statistic("slowdown.mean")),
    Measure("makespan", "makespan", "time", _statistic("makespan")),
    Measure("busy", "in use", "share", _statistic("busy"), better="more"),
    Measure("busy_whole", "in use, whole", "share", _statistic("busy_whole"), better="more"),
    Measure("preemptions", "preempted", "number", _statistic("preemptions")),
    Measure("deciding", "per event", "instant", _seconds_per_event, better=""),
)


def run_statistics(run: RunResult, label: str | None = None) -> RunStatistics:
    """Compute the statistics of a run."""
    results = run.results
    begin = min((result.submit_time for result in results), default=0.0)
    last = max((result.submit_time for result in results), default=0.0)
    end = max((result.end_time for result in results), default=0.0)
    preemptions = sum(result.preemptions for result in results)
    resizes = sum(result.resizes for result in results)
    jobs = job_times(results)
    everything = _group("", jobs) if jobs else None
    by_size = _groups((size_group(result.gpus) for result in results), jobs)
    return RunStatistics(
        label=run.policy if label is None else label,
        jobs=len(results),
        unfinished=run.unfinished,
        jct=everything.jct if everything else None,
        waiting=everything.waiting if everything else None,
        slowdown=everything.slowdown if everything else None,
        makespan=end - begin if results else None,
        busy=share_in_use(run, begin, last),
        busy_whole=share_in_use(run, begin, end),
        preemptions=preemptions / len(results) if results else None,
        resizes=resizes / len(results) if results else None,
        by_size=sorted(by_size, key=lambda group: SIZES.index(group.name)),
        by_user=_groups((result.user for result in results), jobs),
        by_queue=_groups((result.queue for result in results), jobs),
        cost=run.cost,
    )


class Variant(Protocol):
    """A policy with parameters."""

    @property
    def policy(self) -> str: ...

    @property
    def parameters(self) -> dict[str, float]: ...


def run_labels(runs: Sequence[Variant]) -> list[str]:
    """Return unique labels of runs: the policy, and the parameters that differ."""
    labels: list[str] = []
    for run in runs:
        label = run.policy
        alike = [other.parameters for other in runs if other.policy == run.policy]
        if len(alike) > 1:
            differing = [
                f"{name}={value:g}"
                for name, value in run.parameters.items()
                if any(parameters.get(name) != value for parameters in alike)
            ]
            label = f"{label} {' '.join(differing)}".rstrip()
        same = sum(other == label or other.startswith(f"{label} #") for other in labels)
        labels.append(f"{label} #{same + 1}" if same else label)
    return labels


def statistics_of_runs(runs: Sequence[RunResult]) -> list[RunStatistics]:
    """Compute the statistics of several runs, each with a unique label."""
    return [run_statistics(run, label) for run, label in zip(runs, run_labels(runs), strict=True)]


def baseline_of(statistics: Sequence[RunStatistics], name: str | None) -> RunStatistics:
    """Return the run that the others are compared with: the named one, else the first."""
    if name is None:
        return statistics[0]
    for run in statistics:
        if name in {run.label, run.label.partition(" ")[0]}:
            return run
    known = ", ".join(run.label for run in statistics)
    raise ValueError(f"There is no run {name!r}; runs: {known}.")


def ratios(statistics: RunStatistics, base: RunStatistics) -> dict[str, float | None]:
    """Return the ratios of a run to another by measure; None where there is none."""
    return {
        measure.key: _ratio(measure.of(statistics), measure.of(base))
        for measure in MEASURES
        if measure.better
    }


def best(statistics: Sequence[RunStatistics], measure: Measure) -> float | None:
    """Return the best value of a measure; None if all are equal or it has no direction."""
    values = [value for run in statistics if (value := measure.of(run)) is not None]
    if not measure.better or len(set(values)) < 2:
        return None
    return min(values) if measure.better == "less" else max(values)


def warnings(statistics: Sequence[RunStatistics]) -> list[str]:
    """Return the reasons why these runs are not comparable."""
    messages = []
    for run in statistics:
        if run.unfinished and not run.jobs:
            messages.append(f"{run.label}: none of {run.unfinished:,} jobs ended.")
        elif run.unfinished:
            every = run.jobs + run.unfinished
            messages.append(
                f"{run.label}: {run.unfinished:,} of {every:,} jobs did not end; "
                "its statistics cover only the others."
            )
    return messages


def size_group(gpus: float) -> str:
    """Return the group of a number of GPUs."""
    if gpus <= 0:
        return "none"
    if gpus < 1:
        return "<1"
    return "1" if gpus <= 1 else "2–4" if gpus <= 4 else "5–8" if gpus <= 8 else ">8"


def spread(values: Iterable[float]) -> Spread:
    """Return mean and quantiles of at least one value."""
    ordered = sorted(values)
    return Spread(
        mean=math.fsum(ordered) / len(ordered),
        median=quantile(ordered, 0.5),
        p90=quantile(ordered, 0.9),
        p99=quantile(ordered, 0.99),
        most=ordered[-1],
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, interpolated between the two nearest ones."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def job_times(results: Iterable[JobResult]) -> list[Times]:
    """Return the times of each job; computed once, because there may be a million."""
    times = []
    for result in results:
        took = result.end_time - result.submit_time
        # Sums of many floats may be slightly too small.
        waited = max(0.0, took - result.run_time)
        slowdown = max(1.0, took / max(result.run_time, MIN_RUN_SECONDS))
        times.append((took, waited, slowdown, result.gpu_seconds))
    return times


def share_in_use(run: RunResult, begin: float, end: float) -> float | None:
    """Return the mean share of the GPUs held between two times."""
    if not run.gpus_in_use or not run.gpus or end <= begin:
        return None
    return mean_between(run.gpus_in_use, begin, end) / run.gpus


def mean_between(steps: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Return the mean over time of a step function; 0 before its first point."""
    areas = []
    for index, (since, value) in enumerate(steps):
        until = steps[index + 1][0] if index + 1 < len(steps) else end
        areas.append(value * max(0.0, min(until, end) - max(since, begin)))
    return math.fsum(areas) / (end - begin)


def _ratio(value: float | None, base: float | None) -> float | None:
    if value is None or base is None:
        return None
    if not base:
        return 1.0 if not value else None
    return value / base


def _groups(names: Iterable[str], jobs: Iterable[Times]) -> list[Group]:
    """Group jobs by name, most GPU-seconds first."""
    members: dict[str, list[Times]] = {}
    for name, times in zip(names, jobs, strict=True):
        members.setdefault(name, []).append(times)
    groups = [_group(name, times) for name, times in members.items()]
    return sorted(groups, key=lambda group: (-group.service, group.name))


def _group(name: str, jobs: Sequence[Times]) -> Group:
    took, waited, slowdown, service = zip(*jobs, strict=True)
    return Group(
        name=name,
        jobs=len(jobs),
        service=math.fsum(service),
        jct=spread(took),
        waiting=spread(waited),
        slowdown=spread(slowdown),
    )
