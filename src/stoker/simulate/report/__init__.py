"""Report of a simulation: statistics, a table for the terminal, and a page with plots."""

from __future__ import annotations

from stoker.simulate.report.page import write
from stoker.simulate.report.statistics import (
    RunStatistics,
    ratios,
    run_labels,
    run_statistics,
    statistics_of_runs,
)
from stoker.simulate.report.table import as_json, lines, size_lines

__all__ = [
    "RunStatistics",
    "as_json",
    "lines",
    "ratios",
    "run_labels",
    "run_statistics",
    "size_lines",
    "statistics_of_runs",
    "write",
]
