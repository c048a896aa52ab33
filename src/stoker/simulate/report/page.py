"""The page of a simulation: one self-contained HTML file, drawn by a script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from stoker.html_page import render_report
from stoker.simulate.replay.results import RunResult
from stoker.simulate.report import statistics as known
from stoker.simulate.report.gantt import gantt_data
from stoker.simulate.report.statistics import MEASURES, Group, RunStatistics

MAX_GROUP_ROWS = 40
"""Users or queues listed by name; the others are only counted."""
BINS = 480
"""Points of a curve over time."""
LONG_TAIL_SHARE = 0.8
"""If submissions end before this share of the time, that part is also drawn alone."""
TAIL_QUANTILE = 0.99
"""Quantiles are evenly spaced below it and denser above, where the slowest jobs are."""
QUANTILES = [TAIL_QUANTILE * index / 300 for index in range(300)]
QUANTILES += [TAIL_QUANTILE + (1 - TAIL_QUANTILE) * index / 60 for index in range(61)]


def html(
    runs: Sequence[RunResult],
    workload_title: str,
    notes: Sequence[str] = (),
    base: str | None = None,
    statistics: Sequence[RunStatistics] | None = None,
) -> str:
    """Return the page of runs of one workload; `statistics` if they are known already.

    Runs are compared with the baseline, by default the first.
    """
    data = page_data(runs, workload_title, notes, base, statistics)
    title = f"{workload_title} · stoker simulate"
    return render_report("simulation", title, data)


def page_data(
    runs: Sequence[RunResult],
    title: str,
    notes: Sequence[str],
    base: str | None = None,
    statistics: Sequence[RunStatistics] | None = None,
) -> dict[str, Any]:
    """Return all data that the script draws."""
    statistics = known.statistics_of_runs(runs) if statistics is None else statistics
    end = max((item.end_time for run in runs for item in run.results), default=0.0)
    last = max((item.submit_time for run in runs for item in run.results), default=0.0)
    spans = [end, last] if 0 < last < LONG_TAIL_SHARE * end else [end]
    baseline = known.baseline_of(statistics, base) if statistics else None
    return {
        "title": title,
        "gpus": runs[0].gpus if runs else 0,
        "machines": len(runs[0].node_names) if runs else 0,
        "end": end,
        "last": last,
        "spans": spans,
        "base": statistics.index(baseline) if baseline else 0,
        "notes": list(notes),
        "warnings": known.warnings(statistics),
        "measures": [
            {"title": measure.title, "kind": measure.kind, "better": measure.better,
             "values": [measure.of(item) for item in statistics],
             "best": known.best(statistics, measure)}
            for measure in MEASURES
        ],
        "shares": QUANTILES,
        "runs": [_run(run, item, spans) for run, item in zip(runs, statistics, strict=True)],
        "users": _group_table([item.by_user for item in statistics]),
        "queues": _group_table([item.by_queue for item in statistics]),
        "cluster": gantt_data(runs),
    }  # fmt: skip


def _run(run: RunResult, statistics: RunStatistics, spans: Sequence[float]) -> dict[str, Any]:
    """Return the data of one run."""
    jobs = known.job_times(run.results)
    return {
        "label": statistics.label,
        "jobs": statistics.jobs,
        "parameters": dict(run.parameters),
        "notes": list(run.notes),
        "cost": to_builtins(run.cost),
        "curves": {
            name: _curve([times[index] for times in jobs])
            for index, name in enumerate(("jct", "waiting", "slowdown"))
        },
        "sizes": {
            group.name: [group.jobs, *map(_four_digits, (group.waiting.median, group.waiting.p90))]
            for group in statistics.by_size
        },
        "use": [_binned(run.gpus_in_use, times) for times in spans],
        "most": max((waiting for _, waiting in run.pending_jobs), default=0),
        "queue": [_binned(run.pending_jobs, times) for times in spans],
    }


def _curve(values: list[float]) -> list[float]:
    """Return the quantiles of values at QUANTILES."""
    values.sort()
    return [_four_digits(known.quantile(values, share)) for share in QUANTILES] if values else []


def _binned(steps: Sequence[tuple[float, float]], end: float) -> list[float]:
    """Return the means of BINS equal parts of the time."""
    if not steps or end <= 0:
        return []
    areas = [0.0] * BINS
    width = end / BINS
    for index, (since, value) in enumerate(steps):
        until = min(steps[index + 1][0] if index + 1 < len(steps) else end, end)
        at = max(since, 0.0)
        for part in range(int(at / width), min(int(until / width), BINS - 1) + 1):
            held = min(until, (part + 1) * width) - max(at, part * width)
            areas[part] += value * max(0.0, held)
    return [_four_digits(area / width) for area in areas]


def _group_table(groups: Sequence[Sequence[Group]]) -> dict[str, Any]:
    """Return the statistics of each user or queue under each policy, most GPU-seconds first."""
    names: dict[str, Group] = {}
    for group in sorted((g for run_groups in groups for g in run_groups), key=lambda g: -g.service):
        names.setdefault(group.name, group)
    groups_by_name = [{group.name: group for group in run_groups} for run_groups in groups]
    return {
        "left_out": max(0, len(names) - MAX_GROUP_ROWS),
        "rows": [
            [name, names[name].jobs, _four_digits(names[name].service),
             [_group_cell(run_groups.get(name)) for run_groups in groups_by_name]]
            for name in list(names)[:MAX_GROUP_ROWS]
        ],
    }  # fmt: skip


def _group_cell(group: Group | None) -> list[float] | None:
    if group is None:
        return None
    values = (group.jct.mean, group.waiting.mean, group.waiting.most, group.slowdown.mean)
    return [_four_digits(value) for value in values]


def _four_digits(value: float) -> float:
    """Round to four significant digits, so that the page stays small."""
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short
