"""Goals measured by other benchmarks: cost of a decision, and placement."""

from pathlib import Path
from typing import Any

from benchmarks import placement as pods
from benchmarks import planner_cost
from benchmarks.planner.goals import Section, Verdict
from benchmarks.settings import Settings

MILLISECOND = 1000.0
QUICK_SEEDS = 1


def decision_cost(settings: Settings) -> Section:
    """Measure one event with up to 10⁵ pending jobs and 10³ nodes, and larger clusters."""
    points: list[dict[str, Any]] = planner_cost.measure(settings)["points"]
    rows, verdicts = [], []
    for each in points:
        rows.append([
            each["requests"], f"{each['nodes']:,}", f"{each['queued']:,}",
            *(f"{each[key]:,.0f}" for key in ("median_us", "mean_us", "p95_us", "p99_us")),
        ])  # fmt: skip
        if each["nodes"] == 1_000 and each["classes"] <= 1_000:
            words = f"an event, {each['requests']}, {each['queued']:,} pending"
            median, p99 = (each[key] / MILLISECOND for key in ("median_us", "p99_us"))
            verdicts.append(Verdict("3", f"{words}: median", median, 3.0, "ms"))
            verdicts.append(Verdict("3", f"{words}: p99", p99, 20.0, "ms"))
    return Section(
        "Goal 3: what one event costs, µs",
        ["requests", "machines", "waiting", "median", "mean", "p95", "p99"],
        rows,
        verdicts,
    )


def placement(folder: Path, quick: bool) -> Section:
    """Measure the allocation of pods that share GPUs."""
    lists = pods.measure(folder / "openb", *([QUICK_SEEDS] if quick else []))
    return Section(
        "Placement: share of the GPUs allocated, Alibaba's pods",
        ["pods", "orders of arrival", "allocated %", "FGD's own"],
        [
            [f"openb, {each.name}", str(len(each.rounds)), f"{each.mean():.2f}", f"{each.fgd}"]
            for each in lists
        ],
        [
            Verdict("placement", f"GPUs allocated, {each.name}", each.mean(), each.fgd, "%", True)
            for each in lists
        ],
    )
