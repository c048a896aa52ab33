"""The report of a simulation: figures, a table for the terminal, and a page with plots."""

from __future__ import annotations

from stoker.simulate.report.page import write
from stoker.simulate.report.statistics import RunStatistics, all_figures, figures_of, labels, ratios
from stoker.simulate.report.table import as_json, lines, size_lines

__all__ = [
    "RunStatistics",
    "all_figures",
    "as_json",
    "figures_of",
    "labels",
    "lines",
    "ratios",
    "size_lines",
    "write",
]
