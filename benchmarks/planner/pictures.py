"""Plots of the results."""

from collections.abc import Sequence
from math import floor, log2
from pathlib import Path

from benchmarks.planner.goals import BASELINES, FRONTIER, HOUR, Find, frontier_task
from benchmarks.planner.plots import Axis, Curve, bars, curves
from benchmarks.planner.suite import POINTS, Task, geometric
from stoker.core.policies.policy import POLICIES
from stoker.core.policies.ranking import SERVICE_LEVEL_RATIO

LONG = 10.0
"""Hours of the job in the plot of the order."""
MEASURED_AFTER = 0.05


def draw(folder: Path, names: Sequence[str], small: Sequence[str], find: Find) -> list[Path]:
    """Write all plots; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"planner-order.svg": rank_over_time()}
    if names:
        drawn["planner-oracle.svg"] = oracle_ratios(names, find)
    if small:
        drawn["planner-frontier.svg"] = preemption_trade_off(small, find)
        drawn["planner-jct.svg"] = distribution(small[-1], find)
    for name, text in drawn.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in drawn]


def rank_over_time() -> str:
    """Return the rank of a running job over time: estimated, then measured."""
    rules = POLICIES["planner"]
    least, grain = rules.floor / HOUR, log2(rules.grain)
    guessed, measured = [], []
    for number in range(10_001):
        had = LONG * number / 10_000
        if had < MEASURED_AFTER * LONG:
            guessed.append((had, least if had < least else least * SERVICE_LEVEL_RATIO))
        else:
            left = max(LONG - had, least / 10)
            measured.append((had, 2 ** (floor(log2(left) / grain) * grain)))
    guessed = [*_changes(guessed), (MEASURED_AFTER * LONG, guessed[-1][1])]
    truth = [(LONG * number / 100, max(LONG - LONG * number / 100, 0.02)) for number in range(101)]
    return curves(
        "A job of 10 hours on one GPU: what it is taken to need from now on",
        Axis("hours that it has run", 0, LONG, [(n, str(n)) for n in range(0, 11, 2)]),
        Axis("GPU-hours to go", 0.1, 20, [(v, f"{v:g}") for v in (0.1, 0.3, 1, 3, 10)], log=True),
        [
            Curve("not measured yet", guessed, steps=True),
            Curve("measured", [*_changes(measured), measured[-1]], steps=True),
            Curve("the truth", truth),
        ],
    )


def _changes(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points at which the value changes."""
    return [each for n, each in enumerate(points) if not n or each[1] != points[n - 1][1]]


def oracle_ratios(names: Sequence[str], find: Find) -> str:
    """Return the completion times relative to the oracle."""
    pairs = [(find(Task(name, "planner")), find(Task(name, "srsf"))) for name in names]
    groups = {
        "mean JCT": [ours.mean / best.mean for ours, best in pairs],
        "p99 JCT": [ours.p99 / best.p99 for ours, best in pairs],
    }
    values = [value for each in groups.values() for value in each]
    top, low = min(max(1.25, *values) + 0.05, 2.0), max(min(0.9, *values) - 0.05, 0.0)
    marks = [(each / 10, f"{each / 10:.1f}") for each in range(int(top * 10) + 1)]
    marks = [each for each in marks if each[0] >= low]
    return bars(
        "The planner, times SRSF with true durations",
        Axis("", low, top, marks),
        names,
        groups,
        1.0,
        {"SRSF": 1.0, "1.20": 1.2},
    )


def preemption_trade_off(names: Sequence[str], find: Find) -> str:
    """Return completion time against preemptions."""
    points = []
    for ratio in FRONTIER:
        ours = [find(frontier_task(name, ratio)) for name in names]
        best = [find(Task(name, "srsf")) for name in names]
        mean = geometric([a.mean / b.mean for a, b in zip(ours, best, strict=True)])
        points.append((sum(each.preemptions for each in ours) / len(ours), mean))
    most = max(x for x, _ in points) * 1.25
    low, high = min(y for _, y in points), max(y for _, y in points)
    low, high = min(low, 1.0) - 0.005, high + 0.02
    marks = [(each / 100, f"{each / 100:.2f}") for each in range(90, 140, 1 if high < 1.1 else 5)]
    return curves(
        "Completion time against preemptions, by hysteresis",
        Axis(
            "preemptions per job",
            0,
            most,
            [(n / 5, f"{n / 5:g}") for n in range(int(most * 5) + 1)],
        ),
        Axis("mean JCT × SRSF", low, high, [each for each in marks if low <= each[0] <= high]),
        [Curve("planner", points, [f"{each:g}" for each in FRONTIER])],
    )


def distribution(name: str, find: Find) -> str:
    """Return the cumulative distribution of completion times."""
    shown = [*BASELINES, ("planner", None), ("srsf", None)]
    shown = [each for each in shown if each[0] not in {"skip", "srtf"}]
    lines = []
    for policy, kind in reversed(shown):
        times = find(Task(name, policy, limits=kind)).curve
        points = [(max(at, 10.0), (n + 0.5) / POINTS) for n, at in enumerate(times)]
        lines.append(Curve(policy, points))
    most = max(curve.points[-1][0] for curve in lines)
    marks = [(60, "1 min"), (HOUR, "1 h"), (24 * HOUR, "1 d"), (240 * HOUR, "10 d")]
    return curves(
        f"Completion times of {name}",
        Axis(
            "from submission to end", 60, most, [each for each in marks if each[0] < most], log=True
        ),
        Axis("share of jobs", 0, 1, [(n / 4, f"{n * 25} %") for n in range(5)]),
        lines,
    )
