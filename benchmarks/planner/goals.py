"""The goals: tasks, table and verdict of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean

from benchmarks.planner.suite import Outcome, Task, geometric
from benchmarks.report import table

LIMITS = ("guessed", "exact", "equal")
BASELINES = (
    ("fifo", "exact"), ("skip", "exact"), ("backfill", "exact"), ("sjf", "exact"),
    ("tiresias", None), ("srtf", None),
)  # fmt: skip
"""Policies to compare with; those with time limits get the true durations."""
FRONTIER = (1.5, 2.0, 3.0, 4.5, 6.0)
"""Hysteresis values of the frontier."""
MAX_SMALL_JOBS = 6000
"""Maximum jobs of workloads for baselines and frontier."""
HOUR = 3600.0
Find = Callable[..., Outcome]


@dataclass(frozen=True)
class Verdict:
    """A measured value and its target."""

    goal: str
    figure: str
    value: float
    target: float
    unit: str = ""
    more: bool = False
    """Higher is better."""

    @property
    def kept(self) -> bool:
        """Return True if the target is reached."""
        return self.value >= self.target if self.more else self.value <= self.target

    def cells(self) -> list[str]:
        """Return the row of the table."""
        sign = "≥" if self.more else "≤"
        return [
            self.goal, self.figure, f"{sign} {_number(self.target)} {self.unit}".strip(),
            f"{self._measured()} {self.unit}".strip(), "kept" if self.kept else "MISSED",
        ]  # fmt: skip

    def _measured(self) -> str:
        """Format the value with enough digits to compare it with the target."""
        text = _number(self.value)
        hidden = text == _number(self.target) and not self.kept
        return f"{self.value:.8g}" if hidden else text


@dataclass
class Section:
    """A table and its verdicts."""

    title: str
    head: list[str]
    rows: list[list[str]]
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the section as text."""
        return "\n".join([f"\n{self.title}", table(self.head, self.rows), *self.notes])

    def markdown(self) -> str:
        """Return the section as Markdown."""
        lines = [f"### {self.title}", "", _row(self.head), _row(["---"] * len(self.head))]
        return "\n".join([*lines, *map(_row, self.rows), "", *self.notes]).rstrip() + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    """Format ratios with three decimals, so that none is rounded to its target."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3f}"


# -- goal 1: close to the oracle ----------------------------------------------------------


def near_oracle_tasks(names: Sequence[str]) -> list[Task]:
    """Return the planner and the oracle on all workloads."""
    return [Task(name, policy) for name in names for policy in ("srsf", "planner")]


def near_oracle(names: Sequence[str], find: Find) -> Section:
    """Ratios to SRSF with true durations."""
    rows, ratios = [], []
    for name in names:
        ours, best = find(Task(name, "planner")), find(Task(name, "srsf"))
        ratio = (ours.mean / best.mean, ours.p99 / best.p99, ours.makespan / best.makespan)
        ratios.append((*ratio, ours.preemptions, best.preemptions))
        rows.append([
            name, f"{ours.jobs:,}", f"{ours.gpus:,}", f"{best.mean / HOUR:,.2f}",
            f"{ours.mean / HOUR:,.2f}", *(f"{each:.3f}" for each in ratio),
            f"{ours.preemptions:.2f}", f"{best.preemptions:.2f}",
        ])  # fmt: skip
    mean, p99, makespan, stopped, best_stopped = zip(*ratios, strict=True)
    rows.append([
        "geometric mean", "", "", "", "", f"{geometric(mean):.3f}", f"{geometric(p99):.3f}",
        f"{geometric(makespan):.3f}", f"{fmean(stopped):.2f}", f"{fmean(best_stopped):.2f}",
    ])  # fmt: skip
    return Section(
        "Goal 1: the planner against the SRSF oracle (durations unknown until measured)",
        ["workload", "jobs", "GPUs", "SRSF JCT h", "JCT h", "× JCT", "× p99", "× makespan",
         "preempted", "SRSF's"],
        rows,
        [
            Verdict("1", "mean JCT × SRSF, geometric mean", geometric(mean), 1.06),
            Verdict("1", "mean JCT × SRSF, worst", max(mean), 1.20),
            Verdict("1", "p99 JCT × SRSF, geometric mean", geometric(p99), 1.10),
            Verdict("1", "p99 JCT × SRSF, worst", max(p99), 1.10),
            Verdict("1", "preemptions per job, mean of workloads", fmean(stopped), 1.0),
        ],
        ["preempted: per job, in the last line the mean; each costs 60 s on the job's GPUs."],
    )  # fmt: skip


# -- goal 2: only time limits -------------------------------------------------------------


def limits_tasks(names: Sequence[str]) -> list[Task]:
    """Return the planner and EASY with limits of every kind."""
    return [
        Task(name, policy, limits=kind)
        for name in names for kind in LIMITS for policy in ("backfill", "planner")
    ]  # fmt: skip


def only_limits(names: Sequence[str], find: Find) -> Section:
    """Ratios to EASY."""
    rows: list[list[str]] = []
    by_kind: dict[str, list[float]] = {kind: [] for kind in LIMITS}
    for name in names:
        cells = []
        for kind in LIMITS:
            easy, ours = (find(Task(name, each, limits=kind)) for each in ("backfill", "planner"))
            by_kind[kind].append(ours.mean / easy.mean)
            cells += [f"{easy.mean / HOUR:,.2f}", f"{ours.mean / easy.mean:.3f}"]
        rows.append([name, *cells])
    means = [cell for kind in LIMITS for cell in ("", f"{geometric(by_kind[kind]):.3f}")]
    rows.append(["geometric mean", *means])
    verdicts = []
    for kind in LIMITS:
        verdicts += [
            Verdict("2", f"mean JCT × EASY, {kind} limits, worst", max(by_kind[kind]), 1.0),
            Verdict("2", f"mean JCT × EASY, {kind} limits, geometric mean",
                    geometric(by_kind[kind]), 1.0),
        ]  # fmt: skip
    return Section(
        "Goal 2: only time limits are known, no preemption; the planner against EASY",
        ["workload", *(cell for kind in LIMITS for cell in (f"{kind}: EASY h", "× JCT"))],
        rows,
        verdicts,
        ["equal: everybody has the same limit, as long as the longest job takes."],
    )


# -- the field ----------------------------------------------------------------------------


def baseline_tasks(names: Sequence[str]) -> list[Task]:
    """Return the tasks of all baselines."""
    known = near_oracle_tasks(names)
    return known + [Task(name, each, limits=kind) for name in names for each, kind in BASELINES]


def baselines(names: Sequence[str], find: Find) -> Section:
    """Return the geometric means relative to SRSF."""
    rows = []
    for policy, kind in (*BASELINES, ("planner", None), ("srsf", None)):
        pairs = [
            (find(Task(name, policy, limits=kind)), find(Task(name, "srsf"))) for name in names
        ]
        ratios = [
            geometric([getattr(ours, key) / getattr(best, key) for ours, best in pairs])
            for key in ("mean", "p99", "makespan")
        ]
        worst = max(ours.mean / best.mean for ours, best in pairs)
        stopped = fmean(ours.preemptions for ours, _ in pairs)
        label = f"{policy}, true durations as limits" if kind else policy
        cells = [f"{each:.2f}" for each in (*ratios, worst, stopped)]
        rows.append([label, *cells])
    return Section(
        f"All policies on {len(names)} workloads: times SRSF, geometric means",
        ["policy", "× JCT", "× p99", "× makespan", "worst × JCT", "preempted"],
        rows,
    )


# -- the frontier -------------------------------------------------------------------------


def frontier_task(name: str, ratio: float) -> Task:
    """Return the planner with another hysteresis."""
    return Task(name, "planner", (("hysteresis", ratio),))


def frontier_tasks(names: Sequence[str]) -> list[Task]:
    """Return the tasks of the frontier and the oracle."""
    tasks = [frontier_task(name, ratio) for name in names for ratio in FRONTIER]
    return tasks + [Task(name, "srsf") for name in names]


def frontier(names: Sequence[str], find: Find) -> Section:
    """Return the cost of fewer preemptions."""
    rows = []
    for ratio in FRONTIER:
        ours = [find(frontier_task(name, ratio)) for name in names]
        best = [find(Task(name, "srsf")) for name in names]
        pairs = list(zip(ours, best, strict=True))
        rows.append([
            f"{ratio:g}",
            f"{geometric([one.mean / other.mean for one, other in pairs]):.3f}",
            f"{max(one.mean / other.mean for one, other in pairs):.3f}",
            f"{geometric([one.p99 / other.p99 for one, other in pairs]):.3f}",
            f"{fmean(one.preemptions for one in ours):.2f}",
            f"{max(one.preemptions for one in ours):.2f}",
        ])  # fmt: skip
    return Section(
        f"The frontier: completion time against preemptions, {len(names)} workloads",
        ["hysteresis", "× JCT", "worst × JCT", "× p99", "preempted", "worst"],
        rows,
    )


# -- elastic jobs, and GPUs of several kinds ----------------------------------------------

POLLUX = (("pollux 1", 2089.0), ("pollux 2", inf), ("pollux 3", 2188.0))


def elastic_task(name: str) -> Task:
    """Return a Pollux task; a restart takes 30 s as in the paper."""
    return Task(name, "planner", restart=30.0)


def elastic(find: Find) -> Section:
    """Pollux's own workloads."""
    rows, verdicts = [], []
    for name, target in POLLUX:
        ours = find(elastic_task(name))
        known = f"{target:,.0f}" if target < inf else "–"
        rows.append([
            name, f"{ours.mean:,.0f}", known, f"{ours.makespan / HOUR:.2f}",
            f"{ours.preemptions:.2f}", f"{ours.decision * 1e3:.2f}",
        ])  # fmt: skip
        if target < inf:
            verdicts.append(Verdict("elastic", f"{name}: mean JCT", ours.mean, target, "s"))
    times = [find(elastic_task(name)).decision * 1e3 for name, _ in POLLUX]
    verdicts.append(Verdict("elastic", "decision, a thousandth of 2.2 s", max(times), 2.2, "ms"))
    return Section(
        "Elastic: the Pollux workloads, 16 × 4 GPUs, 30 s per restart",
        ["workload", "mean JCT s", "Pollux's own", "makespan h", "preempted", "ms per event"],
        rows,
        verdicts,
    )


GAVEL = (
    (Task("gavel continuous", "planner"), "mean", "mean JCT", 4.06),
    (Task("gavel static", "makespan"), "makespan", "makespan", 17.98),
)


def sharing(find: Find) -> Section:
    """Gavel's own traces."""
    rows, verdicts = [], []
    for task, key, words, target in GAVEL:
        ours = find(task)
        value = getattr(ours, key) / HOUR
        rows.append([
            task.trace, task.policy, words, f"{value:.2f}", f"{target:.2f}",
            f"{ours.preemptions:.2f}",
        ])  # fmt: skip
        verdicts.append(Verdict("sharing", f"{task.trace}: {words}", value, target, "h"))
    return Section(
        "Kinds of GPUs and sharing: the Gavel traces, 8 V100, 16 P100, 24 K80",
        ["workload", "policy", "figure", "h", "Gavel's own", "preempted"],
        rows,
        verdicts,
    )
