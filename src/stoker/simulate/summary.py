"""Summary of several workloads: geometric means of the ratios to the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, fsum, log
from typing import Any

from msgspec import Struct, to_builtins

from stoker.simulate.compare import Comparison
from stoker.simulate.report.statistics import baseline_of, ratios
from stoker.simulate.report.table import align_rows

SUMMARY_COLUMNS = (("jct_mean", "mean JCT"), ("jct_p99", "p99 JCT"), ("slowdown_mean", "slowdown"),
         ("makespan", "makespan"))  # fmt: skip


class PolicySummary(Struct, kw_only=True):
    """One policy over all workloads (as in the JSON output)."""

    policy: str
    workloads: int
    means: dict[str, float | None]
    """Geometric means of the ratios to the baseline; None if a workload has no such ratio."""
    worst: dict[str, float | None]
    preemptions: float
    """Per job, mean over the workloads."""


def summarize(comparisons: Sequence[Comparison], baseline: str | None) -> list[PolicySummary]:
    """Return one row per policy."""
    rows = []
    for index, first in enumerate(comparisons[0].statistics):
        compared = [
            ratios(item.statistics[index], baseline_of(item.statistics, baseline))
            for item in comparisons
        ]
        keys = compared[0]
        values = {key: [item[key] for item in compared] for key in keys}
        preempted = [item.statistics[index].preemptions or 0.0 for item in comparisons]
        rows.append(PolicySummary(
            policy=first.label,
            workloads=len(comparisons),
            means={key: _geometric_mean(item) for key, item in values.items()},
            worst={key: max((v for v in item if v is not None), default=None)
                   for key, item in values.items()},
            preemptions=fsum(preempted) / len(comparisons),
        ))  # fmt: skip
    return rows


def _geometric_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value]
    return exp(fsum(map(log, known)) / len(known)) if len(known) == len(values) else None


def summary_lines(comparisons: Sequence[Comparison], baseline: str | None) -> list[str]:
    """Return the summary as a table."""
    baseline_label = baseline_of(comparisons[0].statistics, baseline).label
    titles = ["policy", *(title for _, title in SUMMARY_COLUMNS), "worst JCT", "preempted"]
    rows = [titles]
    for summary in summarize(comparisons, baseline):
        cells = [_ratio_text(summary.means[key]) for key, _ in SUMMARY_COLUMNS]
        worst = _ratio_text(summary.worst["jct_mean"])
        rows.append([summary.policy, *cells, worst, f"{summary.preemptions:.2f}"])
    heading = f"{len(comparisons)} workloads: times {baseline_label}, geometric means"
    return [heading, *align_rows(rows)]


def _ratio_text(value: float | None) -> str:
    return "–" if value is None else f"× {value:,.2f}"


def summary_json(comparisons: Sequence[Comparison], baseline: str | None) -> dict[str, Any]:
    """Return the summary for --json."""
    return {
        "base": baseline_of(comparisons[0].statistics, baseline).label,
        "policies": [to_builtins(summary) for summary in summarize(comparisons, baseline)],
    }
