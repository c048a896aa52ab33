"""Statistics of several runs as a text table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import to_builtins

from stoker.html_page import replace_non_finite
from stoker.simulate.replay.results import RunResult
from stoker.simulate.report import statistics as known
from stoker.simulate.report.statistics import MEASURES, SIZES, RunStatistics

GAP = "  "
UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
SHORT_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))

COLUMN_PRIORITY = (
    "jct_mean", "wait_mean", "jct_p99", "preemptions", "busy", "jct_median", "makespan",
    "wait_p99", "jct_p90", "wait_most", "deciding", "slowdown_mean",
)  # fmt: skip
"""Order in which columns are kept on a narrow terminal; the JSON has all."""

Row = tuple[str, list[str]]


def lines(
    statistics: Sequence[RunStatistics], width: int | None = None, base: str | None = None
) -> list[str]:
    """Return the table; columns that exceed `width` are dropped."""
    if not statistics:
        return []
    baseline = known.baseline_of(statistics, base)
    columns: list[tuple[int, Row]] = []
    for measure in MEASURES:
        if measure.key not in COLUMN_PRIORITY:
            continue
        rank = 2 * COLUMN_PRIORITY.index(measure.key)
        values = [measure.of(item) for item in statistics]
        if any(value is not None for value in values):
            columns.append((rank, (measure.title, _cells(values, measure.kind))))
        if measure.key == "jct_mean" and len(statistics) > 1:
            compared = [known.ratios(item, baseline)[measure.key] for item in statistics]
            columns.append(
                (rank + 1, (f"× {baseline.label}", [_number(item) for item in compared]))
            )
    text = _fit_table(("policy", [item.label for item in statistics]), columns, width)
    return text + [f"note: {item}" for item in known.warnings(statistics)]


def size_lines(statistics: Sequence[RunStatistics], width: int | None = None) -> list[str]:
    """Return a table of the mean wait by the GPUs of a job."""
    waits = [{group.name: group.waiting.mean for group in item.by_size} for item in statistics]
    columns: list[tuple[int, Row]] = []
    for rank, size in enumerate(SIZES):
        values = [item.get(size) for item in waits]
        if any(value is not None for value in values):
            title = "no GPU" if size == "none" else f"{size} GPU"
            columns.append((rank, (title, _cells(values, "time"))))
    return _fit_table(("mean wait", [item.label for item in statistics]), columns, width)


def as_json(
    runs: Sequence[RunResult],
    base: str | None = None,
    statistics: Sequence[RunStatistics] | None = None,
) -> dict[str, Any]:
    """Return all statistics of all runs, and their ratios to the baseline."""
    statistics = known.statistics_of_runs(runs) if statistics is None else statistics
    baseline = known.baseline_of(statistics, base) if statistics else None
    return {
        "workload": runs[0].workload if runs else "",
        "gpus": runs[0].gpus if runs else 0,
        "machines": len(runs[0].node_names) if runs else 0,
        "base": baseline and baseline.label,
        "warnings": known.warnings(statistics),
        "runs": [
            replace_non_finite({
                "policy": run.policy,
                "parameters": dict(run.parameters),
                **to_builtins(run_statistics),
                "ratios": known.ratios(run_statistics, baseline) if baseline else {},
                "notes": list(run.notes),
            })
            for run, run_statistics in zip(runs, statistics, strict=True)
        ],
    }  # fmt: skip


def _cells(values: Sequence[float | None], kind: str) -> list[str]:
    """Format the values of a column in one unit, so that they are comparable."""
    if kind == "share":
        return [_missing(value, lambda share: f"{100 * share:.1f} %") for value in values]
    if kind == "number":
        return [_number(value) for value in values]
    units = UNITS if kind == "time" else SHORT_UNITS
    least = min((value for value in values if value), default=0.0)
    name, unit = next((candidate for candidate in units if least >= 0.5 * candidate[1]), units[-1])
    return [_missing(value, lambda span: f"{_digits(span / unit)} {name}") for value in values]


def _number(value: float | None) -> str:
    return _missing(value, lambda number: f"{number:,.2f}" if number < 1000 else f"{number:,.0f}")


def _digits(value: float) -> str:
    """Format three significant digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _missing(value: float | None, write: Callable[[float], str]) -> str:
    return "–" if value is None or not math.isfinite(value) else write(value)


def _fit_table(names: Row, columns: Sequence[tuple[int, Row]], width: int | None) -> list[str]:
    """Align a table; while it is too wide, drop the column with the highest rank."""
    kept = list(columns)
    while True:
        every = [names, *(column for _, column in kept)]
        widths = [max(map(len, [title, *cells])) for title, cells in every]
        over = width is not None and sum(widths) + len(GAP) * (len(widths) - 1) > width
        if not over or len(kept) < 2:
            break
        kept.remove(max(kept, key=lambda column: column[0]))
    return align_rows(list(zip(*([title, *cells] for title, cells in every), strict=True)))


def align_rows(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Align a table: the first columns to the left, the others to the right."""
    printable = [[text if text.isprintable() else "?" for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*printable, strict=True)]
    lines = []
    for row in printable:
        cells = zip(row, widths, strict=True)
        texts = [
            text.ljust(width) if index < left else text.rjust(width)
            for index, (text, width) in enumerate(cells)
        ]
        lines.append(GAP.join(texts).rstrip())
    return lines
