"""The figures of a run: how long jobs took and waited, and what the cluster did meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct

from stoker.simulate.replay.results import JobResult, RunCost, RunResult

MIN_RUN_SECONDS = 10.0
"""Seconds: a job that ran for less counts as this long in its slowdown, as is usual. Otherwise
a job that fails at once would outweigh all others."""

SIZES = ("none", "<1", "1", "2–4", "5–8", ">8")
"""GPUs of a job, as waiting is told apart by them."""


Times = tuple[float, float, float, float]
"""Of a job: its completion time, its waiting, its slowdown, and the GPU-seconds that it held."""


class Spread(Struct, kw_only=True, frozen=True):
    """How the values of many jobs are spread."""

    mean: float
    median: float
    p90: float
    p99: float
    most: float


class Group(Struct, kw_only=True, frozen=True):
    """Jobs that have something in common: their size, their user or their queue."""

    name: str
    jobs: int
    service: float
    """GPU-seconds that they held."""
    jct: Spread
    waiting: Spread
    slowdown: Spread


class RunStatistics(Struct, kw_only=True, frozen=True):
    """A run in numbers. Times in seconds; None where there is nothing to tell from."""

    label: str
    jobs: int
    """That ended; all other figures are theirs."""
    unfinished: int
    jct: Spread | None
    """From submission to end."""
    waiting: Spread | None
    slowdown: Spread | None
    """Completion time by time running, bounded: see `SHORT`."""
    makespan: float | None
    """From the first submission to the last end."""
    busy: float | None
    """Share of the GPUs in use until the last submission: afterwards a cluster only empties."""
    busy_whole: float | None
    """Share of the GPUs in use until the end."""
    preemptions: float | None
    """Per job."""
    resizes: float | None
    """Stops per job after which it went on with another number of GPUs."""
    by_size: list[Group]
    by_user: list[Group]
    """By what they held, the largest first."""
    by_queue: list[Group]
    cost: RunCost


class Measure(Struct, kw_only=True, frozen=True):
    """One of the figures by which policies are compared."""

    key: str
    title: str
    kind: Literal["time", "share", "number", "instant"]
    better: Literal["less", "more", ""] = "less"
    of: Callable[[RunStatistics], float | None]


def _statistic(path: str) -> Callable[[RunStatistics], float | None]:
    """Return what finds a figure, None where a part of its path is None."""
    names = path.split(".")

    def get(figures: RunStatistics) -> float | None:
        found: Any = figures
        for name in names:
            found = None if found is None else getattr(found, name)
        return None if found is None else float(found)

    return get


def _seconds_per_event(figures: RunStatistics) -> float | None:
    return figures.cost.seconds / figures.cost.events if figures.cost.events else None


MEASURES = (
    Measure(key="jct_mean", title="mean JCT", kind="time", of=_statistic("jct.mean")),
    Measure(key="jct_median", title="median JCT", kind="time", of=_statistic("jct.median")),
    Measure(key="jct_p90", title="p90 JCT", kind="time", of=_statistic("jct.p90")),
    Measure(key="jct_p99", title="p99 JCT", kind="time", of=_statistic("jct.p99")),
    Measure(key="wait_mean", title="mean wait", kind="time", of=_statistic("waiting.mean")),
    Measure(key="wait_p99", title="p99 wait", kind="time", of=_statistic("waiting.p99")),
    Measure(key="wait_most", title="largest wait", kind="time", of=_statistic("waiting.most")),
    Measure(
        key="slowdown_mean", title="mean slowdown", kind="number", of=_statistic("slowdown.mean")
    ),
    Measure(key="makespan", title="makespan", kind="time", of=_statistic("makespan")),
    Measure(key="busy", title="in use", kind="share", better="more", of=_statistic("busy")),
    Measure(
        key="busy_whole",
        title="in use, whole",
        kind="share",
        better="more",
        of=_statistic("busy_whole"),
    ),
    Measure(key="preemptions", title="preempted", kind="number", of=_statistic("preemptions")),
    Measure(key="deciding", title="per event", kind="instant", better="", of=_seconds_per_event),
)


def run_statistics(run: RunResult, label: str | None = None) -> RunStatistics:
    """Work out the figures of a run."""
    results = run.results
    begin = min((each.submit_time for each in results), default=0.0)
    last = max((each.submit_time for each in results), default=0.0)
    end = max((each.end_time for each in results), default=0.0)
    preemptions = sum(each.preemptions for each in results)
    resizes = sum(each.resizes for each in results)
    jobs = job_times(results)
    everything = _group("", jobs) if jobs else None
    by_size = _groups((size_group(each.gpus) for each in results), jobs)
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
        by_user=_groups((each.user for each in results), jobs),
        by_queue=_groups((each.queue for each in results), jobs),
        cost=run.cost,
    )


def run_labels(runs: Sequence[RunResult]) -> list[str]:
    """Name the runs: by policy, and where that is not enough by the parameters that differ."""
    policies = [run.policy for run in runs]
    found: list[str] = []
    for run in runs:
        label = run.policy
        if policies.count(label) > 1:
            alike = [each for each in runs if each.policy == run.policy]
            differing = [
                f"{name}={value:g}"
                for name, value in run.parameters.items()
                if any(each.parameters.get(name) != value for each in alike)
            ]
            label = f"{label} {' '.join(differing)}".rstrip()
        same = sum(each == label or each.startswith(f"{label} #") for each in found)
        found.append(f"{label} #{same + 1}" if same else label)
    return found


def statistics_of_runs(runs: Sequence[RunResult]) -> list[RunStatistics]:
    """Work out the figures of several runs, each with a label of its own."""
    return [run_statistics(run, label) for run, label in zip(runs, run_labels(runs), strict=True)]


def baseline_of(figures: Sequence[RunStatistics], name: str | None) -> RunStatistics:
    """Return the run that the others are compared with: the named one, else the first."""
    if name is None:
        return figures[0]
    for each in figures:
        if name in {each.label, each.label.partition(" ")[0]}:
            return each
    known = ", ".join(each.label for each in figures)
    raise ValueError(f"There is no run {name!r}; runs: {known}.")


def ratios(figures: RunStatistics, base: RunStatistics) -> dict[str, float | None]:
    """Compare a run with another one, measure by measure; None where that says nothing."""
    return {
        measure.key: _ratio(measure.of(figures), measure.of(base))
        for measure in MEASURES
        if measure.better
    }


def best(figures: Sequence[RunStatistics], measure: Measure) -> float | None:
    """Return the best value of a measure, None where all are the same or none is better."""
    values = [value for each in figures if (value := measure.of(each)) is not None]
    if not measure.better or len(set(values)) < 2:
        return None
    return min(values) if measure.better == "less" else max(values)


def warnings(figures: Sequence[RunStatistics]) -> list[str]:
    """Say what keeps these runs from being compared as they stand."""
    found = []
    for each in figures:
        if each.unfinished and not each.jobs:
            found.append(f"{each.label}: none of {each.unfinished:,} jobs ended.")
        elif each.unfinished:
            every = each.jobs + each.unfinished
            found.append(
                f"{each.label}: {each.unfinished:,} of {every:,} jobs did not end; "
                "its statistics cover only the others."
            )
    return found


def size_group(gpus: float) -> str:
    """Return which of the sizes a number of GPUs is."""
    if gpus <= 0:
        return "none"
    if gpus < 1:
        return "<1"
    return "1" if gpus <= 1 else "2–4" if gpus <= 4 else "5–8" if gpus <= 8 else ">8"


def spread(values: Iterable[float]) -> Spread:
    """Return how values are spread; there is at least one."""
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
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def job_times(results: Iterable[JobResult]) -> list[Times]:
    """Return what is reckoned with of each job, once for all: there may be a million."""
    found = []
    for each in results:
        took = each.end_time - each.submit_time
        # Sums of many floats may fall a little short of what they stand for.
        waited = max(0.0, took - each.run_time)
        found.append(
            (took, waited, max(1.0, took / max(each.run_time, MIN_RUN_SECONDS)), each.gpu_seconds)
        )
    return found


def share_in_use(run: RunResult, begin: float, end: float) -> float | None:
    """Return the mean share of the cluster's GPUs held between two moments."""
    if not run.gpus_in_use or not run.gpus or end <= begin:
        return None
    return mean_between(run.gpus_in_use, begin, end) / run.gpus


def mean_between(steps: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Return the mean over time of what holds from each step to the next; 0 before the first."""
    areas = []
    for place, (since, value) in enumerate(steps):
        until = steps[place + 1][0] if place + 1 < len(steps) else end
        areas.append(value * max(0.0, min(until, end) - max(since, begin)))
    return math.fsum(areas) / (end - begin)


def _ratio(value: float | None, base: float | None) -> float | None:
    if value is None or base is None:
        return None
    if not base:
        return 1.0 if not value else None
    return value / base


def _groups(names: Iterable[str], jobs: Iterable[Times]) -> list[Group]:
    """Put jobs together by name, the largest first."""
    members: dict[str, list[Times]] = {}
    for name, each in zip(names, jobs, strict=True):
        members.setdefault(name, []).append(each)
    groups = [_group(name, each) for name, each in members.items()]
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
