"""The table of a simulation for the terminal, policy against policy, and the same as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import to_builtins

from stoker.simulate.replay.results import RunResult
from stoker.simulate.report import statistics as known
from stoker.simulate.report.statistics import MEASURES, SIZES, RunStatistics

GAP = "  "
UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
SHORT_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))

COLUMN_PRIORITY = (
    "jct_mean",
    "wait_mean",
    "jct_p99",
    "preemptions",
    "busy",
    "jct_median",
    "makespan",
    "wait_p99",
    "jct_p90",
    "wait_most",
    "deciding",
    "slowdown_mean",
)
"""What is kept longest where a terminal is too narrow for all; the rest is in the JSON."""

Row = tuple[str, list[str]]


def lines(
    figures: Sequence[RunStatistics], width: int | None = None, base: str | None = None
) -> list[str]:
    """Return the table; `width` leaves out what does not fit, None nothing."""
    if not figures:
        return []
    against = known.baseline_of(figures, base)
    columns: list[tuple[int, Row]] = []
    for measure in MEASURES:
        if measure.key not in COLUMN_PRIORITY:
            continue
        rank = 2 * COLUMN_PRIORITY.index(measure.key)
        values = [measure.of(each) for each in figures]
        if any(value is not None for value in values):
            columns.append((rank, (measure.title, _cells(values, measure.kind))))
        if measure.key == "jct_mean" and len(figures) > 1:
            compared = [known.ratios(each, against)[measure.key] for each in figures]
            columns.append((rank + 1, (f"× {against.label}", [_number(each) for each in compared])))
    text = _fit_table(("policy", [each.label for each in figures]), columns, width)
    return text + [f"note: {each}" for each in known.warnings(figures)]


def size_lines(figures: Sequence[RunStatistics], width: int | None = None) -> list[str]:
    """Return a table of the mean wait by the GPUs of a job."""
    waits = [{group.name: group.waiting.mean for group in each.by_size} for each in figures]
    columns: list[tuple[int, Row]] = []
    for rank, size in enumerate(SIZES):
        values = [each.get(size) for each in waits]
        if any(value is not None for value in values):
            title = "no GPU" if size == "none" else f"{size} GPU"
            columns.append((rank, (title, _cells(values, "time"))))
    return _fit_table(("mean wait", [each.label for each in figures]), columns, width)


def as_json(
    runs: Sequence[RunResult],
    base: str | None = None,
    figures: Sequence[RunStatistics] | None = None,
) -> dict[str, Any]:
    """Return all figures of all runs, and how each compares with the base."""
    figures = known.statistics_of_runs(runs) if figures is None else figures
    against = known.baseline_of(figures, base) if figures else None
    return {
        "workload": runs[0].workload if runs else "",
        "gpus": runs[0].gpus if runs else 0,
        "machines": len(runs[0].node_names) if runs else 0,
        "base": against and against.label,
        "warnings": known.warnings(figures),
        "runs": [
            replace_non_finite({
                "policy": run.policy,
                "parameters": dict(run.parameters),
                **to_builtins(each),
                "ratios": known.ratios(each, against) if against else {},
                "notes": list(run.notes),
            })
            for run, each in zip(runs, figures, strict=True)
        ],
    }  # fmt: skip


def replace_non_finite(value: Any) -> Any:
    """What is no number to JSON is not there."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): replace_non_finite(each) for key, each in value.items()}
    return (
        [replace_non_finite(each) for each in value] if isinstance(value, list | tuple) else value
    )


def _cells(values: Sequence[float | None], kind: str) -> list[str]:
    """Write the values of a column, all in the same unit, so that they compare at a glance."""
    if kind == "share":
        return [_missing(value, lambda share: f"{100 * share:.1f} %") for value in values]
    if kind == "number":
        return [_number(value) for value in values]
    units = UNITS if kind == "time" else SHORT_UNITS
    least = min((value for value in values if value), default=0.0)
    name, unit = next((each for each in units if least >= 0.5 * each[1]), units[-1])
    return [_missing(value, lambda span: f"{_digits(span / unit)} {name}") for value in values]


def _number(value: float | None) -> str:
    return _missing(value, lambda number: f"{number:,.2f}" if number < 1000 else f"{number:,.0f}")


def _digits(value: float) -> str:
    """Three digits that count."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _missing(value: float | None, write: Callable[[float], str]) -> str:
    return "–" if value is None or not math.isfinite(value) else write(value)


def _fit_table(names: Row, columns: Sequence[tuple[int, Row]], width: int | None) -> list[str]:
    """Set a table; while it is too wide the column of the highest rank goes."""
    kept = list(columns)
    while True:
        every = [names, *(column for _, column in kept)]
        widths = [max(map(len, [title, *cells])) for title, cells in every]
        over = width is not None and sum(widths) + len(GAP) * (len(widths) - 1) > width
        if not over or len(kept) < 2:
            break
        kept.remove(max(kept, key=lambda column: column[0]))
    rows = zip(*([title, *cells] for title, cells in every), strict=True)
    return [_line(row, widths) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    parts = [row[0].ljust(widths[0])]
    parts += [text.rjust(wide) for text, wide in zip(row[1:], widths[1:], strict=True)]
    return GAP.join(parts).rstrip()
