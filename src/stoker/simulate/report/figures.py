"""The figures of a run: how long jobs took and waited, and what the cluster did meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Literal

from msgspec import Struct

from stoker.simulate.outcome import Cost, Result, Run

SHORT = 10.0
"""Seconds: a job that ran for less counts as this long in its slowdown, as is usual. Otherwise
a job that fails at once would outweigh all others."""

SIZES = ("none", "<1", "1", "2–4", "5–8", ">8")
"""GPUs of a job, as waiting is told apart by them."""


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


class Figures(Struct, kw_only=True, frozen=True):
    """A run in numbers. Times in seconds; None where there is nothing to tell from."""

    label: str
    jobs: int
    """That ended; all other figures are theirs."""
    unfinished: int
    jct: Spread | None
    """From submission to end."""
    waiting: Spread | None
    slowdown: Spread | None
    """Completion time by time running, bounded; see `SHORT`."""
    makespan: float | None
    """From the first submission to the last end."""
    busy: float | None
    """Share of the GPUs in use until the last submission: afterwards a cluster only empties."""
    busy_whole: float | None
    """Share of the GPUs in use until the end."""
    preemptions: float | None
    """Per job."""
    by_size: list[Group]
    by_user: list[Group]
    """By what they held, the largest first."""
    by_queue: list[Group]
    cost: Cost


class Measure(Struct, kw_only=True, frozen=True):
    """One of the figures by which policies are compared."""

    key: str
    title: str
    kind: Literal["time", "share", "number", "instant"]
    better: Literal["less", "more", ""] = "less"
    of: Callable[[Figures], float | None]


def _of(path: str) -> Callable[[Figures], float | None]:
    """Return what finds a figure, None where a part of its path is None."""
    first, _, rest = path.partition(".")
    inner = attrgetter(rest) if rest else None

    def get(figures: Figures) -> float | None:
        found = getattr(figures, first)
        return found if found is None or inner is None else inner(found)

    return get


def _deciding(figures: Figures) -> float | None:
    return figures.cost.seconds / figures.cost.events if figures.cost.events else None


MEASURES = (
    Measure(key="jct_mean", title="mean JCT", kind="time", of=_of("jct.mean")),
    Measure(key="jct_median", title="median JCT", kind="time", of=_of("jct.median")),
    Measure(key="jct_p90", title="p90 JCT", kind="time", of=_of("jct.p90")),
    Measure(key="jct_p99", title="p99 JCT", kind="time", of=_of("jct.p99")),
    Measure(key="wait_mean", title="mean wait", kind="time", of=_of("waiting.mean")),
    Measure(key="wait_p99", title="p99 wait", kind="time", of=_of("waiting.p99")),
    Measure(key="wait_most", title="largest wait", kind="time", of=_of("waiting.most")),
    Measure(key="slowdown_mean", title="mean slowdown", kind="number", of=_of("slowdown.mean")),
    Measure(key="makespan", title="makespan", kind="time", of=_of("makespan")),
    Measure(key="busy", title="in use", kind="share", better="more", of=_of("busy")),
    Measure(
        key="busy_whole", title="in use, whole", kind="share", better="more", of=_of("busy_whole")
    ),
    Measure(key="preemptions", title="preempted", kind="number", of=_of("preemptions")),
    Measure(key="deciding", title="per event", kind="instant", better="", of=_deciding),
)


def figures_of(run: Run, label: str | None = None) -> Figures:
    """Work out the figures of a run."""
    results = run.results
    begin = min((each.at for each in results), default=0.0)
    last = max((each.at for each in results), default=0.0)
    end = max((each.end for each in results), default=0.0)
    preemptions = sum(each.preemptions for each in results)
    busy = share_in_use(run, begin, last)
    busy_whole = share_in_use(run, begin, end)
    everything = _group("", results) if results else None
    return Figures(
        label=run.policy if label is None else label,
        jobs=len(results),
        unfinished=run.unfinished,
        jct=everything and everything.jct,
        waiting=everything and everything.waiting,
        slowdown=everything and everything.slowdown,
        makespan=end - begin if results else None,
        busy=busy,
        busy_whole=busy_whole,
        preemptions=preemptions / len(results) if results else None,
        by_size=_groups(results, lambda each: size_of(each.gpus), SIZES.index),
        by_user=_groups(results, attrgetter("user")),
        by_queue=_groups(results, attrgetter("queue")),
        cost=run.cost,
    )


def labels(runs: Sequence[Run]) -> list[str]:
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


def all_figures(runs: Sequence[Run]) -> list[Figures]:
    """Work out the figures of several runs, each with a label of its own."""
    return [figures_of(run, label) for run, label in zip(runs, labels(runs), strict=True)]


def base_of(figures: Sequence[Figures], name: str | None) -> Figures:
    """Return the run that the others are compared with: the named one, else the first."""
    if name is None:
        return figures[0]
    for each in figures:
        if name in {each.label, each.label.partition(" ")[0]}:
            return each
    known = ", ".join(each.label for each in figures)
    raise ValueError(f"No run is called {name!r}; there are {known}.")


def ratios(figures: Figures, base: Figures) -> dict[str, float | None]:
    """Compare a run with another one, measure by measure; None where that says nothing."""
    return {
        measure.key: _ratio(measure.of(figures), measure.of(base))
        for measure in MEASURES
        if measure.better
    }


def best(figures: Sequence[Figures], measure: Measure) -> float | None:
    """Return the best value of a measure, None where all are the same or none is better."""
    values = [value for each in figures if (value := measure.of(each)) is not None]
    if not measure.better or len(set(values)) < 2:
        return None
    return min(values) if measure.better == "less" else max(values)


def warnings(figures: Sequence[Figures]) -> list[str]:
    """Say what keeps these runs from being compared as they stand."""
    return [
        f"{each.label}: {each.unfinished:,} of {each.jobs + each.unfinished:,} jobs did not end; "
        "its figures are those of the others."
        for each in figures
        if each.unfinished
    ]


def size_of(gpus: float) -> str:
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


def waited(result: Result) -> float:
    """Return the seconds a job held nothing; sums of many floats may fall short of 0."""
    return max(0.0, result.waited)


def slowdown(result: Result) -> float:
    """Return how many times as long as it ran a job took."""
    return max(1.0, result.took / max(result.ran, SHORT))


def share_in_use(run: Run, begin: float, end: float) -> float | None:
    """Return the mean share of the cluster's GPUs held between two moments."""
    if not run.in_use or not run.gpus or end <= begin:
        return None
    return mean_between(run.in_use, begin, end) / run.gpus


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


def _groups(
    results: Sequence[Result],
    name_of: Callable[[Result], str],
    place: Callable[[str], int] | None = None,
) -> list[Group]:
    """Put jobs together by name: in the order of their places, else the largest first."""
    members: dict[str, list[Result]] = {}
    for result in results:
        members.setdefault(name_of(result), []).append(result)
    groups = [_group(name, each) for name, each in members.items()]
    if place is not None:
        return sorted(groups, key=lambda group: place(group.name))
    return sorted(groups, key=lambda group: (-group.service, group.name))


def _group(name: str, results: Sequence[Result]) -> Group:
    return Group(
        name=name,
        jobs=len(results),
        service=math.fsum(each.service for each in results),
        jct=spread(each.took for each in results),
        waiting=spread(waited(each) for each in results),
        slowdown=spread(slowdown(each) for each in results),
    )
