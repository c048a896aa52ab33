"""What other measures have to say about the planner: what a decision costs, and where jobs go."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from benchmarks.planner.goals import Section, Verdict
from benchmarks.settings import Settings

MILLISECOND = 1000.0
FGD = 95.23
"""Per cent of the GPUs that are allocated, as published."""


def cost(settings: Settings) -> Section:
    """One event with 10⁴ jobs that wait and 10³ machines, and on from there."""
    points: list[dict[str, Any]] = import_module("benchmarks.planner_cost").measure(settings)[
        "points"
    ]
    rows, verdicts = [], []
    for each in points:
        rows.append([
            each["requests"], f"{each['nodes']:,}", f"{each['queued']:,}",
            *(f"{each[key]:,.0f}" for key in ("median_us", "mean_us", "p95_us", "p99_us")),
        ])  # fmt: skip
        if (each["nodes"], each["queued"]) == (1_000, 10_000):
            words = f"an event, {each['requests']}: median"
            verdicts.append(Verdict("3", words, each["median_us"] / MILLISECOND, 1.0, "ms"))
            words = f"an event, {each['requests']}: mean"
            verdicts.append(Verdict("3", words, each["mean_us"] / MILLISECOND, 1.0, "ms"))
    return Section(
        "Goal 3: what one event costs, µs",
        ["requests", "machines", "waiting", "median", "mean", "p95", "p99"],
        rows,
        verdicts,
    )


def placement(settings: Settings) -> Section | None:
    """Pods that share GPUs, until no more fit."""
    if find_spec("benchmarks.placement") is None:
        return None
    found: dict[str, Any] = import_module("benchmarks.placement").measure(settings)
    share = float(found["allocated"])
    return Section(
        "Placement: share of the GPUs allocated, Alibaba's pods",
        ["pods", "allocated %", "FGD's own"],
        [["openb, default", f"{share:.2f}", f"{FGD}"]],
        [Verdict("placement", "GPUs allocated", share, FGD, "%", more=True)],
    )
