"""The page of a simulation: one HTML file that needs nothing else, drawn by a little script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from stoker.simulate.outcome import Run
from stoker.simulate.report import figures as known
from stoker.simulate.report.cluster import cluster
from stoker.simulate.report.figures import MEASURES, Figures, Group
from stoker.simulate.report.table import finite

SCRIPTS = ("page.js", "page_curves.js", "page_sizes.js", "page_times.js", "page_gantt.js",
           "page_tables.js")  # fmt: skip
MANY = 40
"""Users or queues that are listed by name; the others are left out, and counted."""
BINS = 480
"""Parts into which time is cut for the curves over time."""
TAIL = 0.99
"""Below it quantiles are evenly spaced; above, where the slowest jobs are, they stand closer."""
SHARES = [TAIL * each / 300 for each in range(300)]
SHARES += [TAIL + (1 - TAIL) * each / 60 for each in range(61)]


def write(
    path: str | Path,
    runs: Sequence[Run],
    workload_title: str,
    notes: Sequence[str] = (),
    base: str | None = None,
) -> None:
    """Write the page of some runs of the same workload."""
    Path(path).write_text(html(runs, workload_title, notes, base), encoding="utf-8")


def html(
    runs: Sequence[Run], workload_title: str, notes: Sequence[str] = (), base: str | None = None
) -> str:
    """Return the page; the runs are compared with the base, which is the first unless named."""
    return _file("page.html").format(
        title=escape(f"{workload_title} · stoker simulate"),
        style=_file("page.css"),
        data=embedded(facts(runs, workload_title, notes, base)),
        script="\n".join(_file(name) for name in SCRIPTS),
    )


def facts(
    runs: Sequence[Run], title: str, notes: Sequence[str], base: str | None = None
) -> dict[str, Any]:
    """All that the script draws."""
    figures = known.all_figures(runs)
    end = max((each.end for run in runs for each in run.results), default=0.0)
    against = known.base_of(figures, base) if figures else None
    return {
        "title": title,
        "gpus": runs[0].gpus if runs else 0,
        "machines": len(runs[0].machines) if runs else 0,
        "end": end,
        "last": max((each.at for run in runs for each in run.results), default=0.0),
        "base": figures.index(against) if against else 0,
        "notes": list(notes),
        "warnings": known.warnings(figures),
        "measures": [
            {"title": measure.title, "kind": measure.kind, "better": measure.better,
             "values": [measure.of(each) for each in figures],
             "best": known.best(figures, measure)}
            for measure in MEASURES
        ],
        "shares": SHARES,
        "runs": [_run(run, each, end) for run, each in zip(runs, figures, strict=True)],
        "users": _matrix([each.by_user for each in figures]),
        "queues": _matrix([each.by_queue for each in figures]),
        "cluster": cluster(runs),
    }  # fmt: skip


def _run(run: Run, figures: Figures, end: float) -> dict[str, Any]:
    """What is drawn of one run."""
    return {
        "label": figures.label,
        "jobs": figures.jobs,
        "parameters": dict(run.parameters),
        "notes": list(run.notes),
        "cost": to_builtins(run.cost),
        "curves": {
            "jct": _curve([each.took for each in run.results]),
            "waiting": _curve([known.waited(each) for each in run.results]),
            "slowdown": _curve([known.slowdown(each) for each in run.results]),
        },
        "sizes": {
            group.name: [group.jobs, *map(_rough, (group.waiting.median, group.waiting.p90))]
            for group in figures.by_size
        },
        "use": _binned(run.in_use, end),
        "queue": _binned(run.queued, end),
    }


def _curve(values: list[float]) -> list[float]:
    """Return the quantiles of values, at the shares that all curves have in common."""
    values.sort()
    return [_rough(known.quantile(values, share)) for share in SHARES] if values else []


def _binned(steps: Sequence[tuple[float, float]], end: float) -> list[float]:
    """Return the means of evenly long parts of the time."""
    if not steps or end <= 0:
        return []
    areas = [0.0] * BINS
    width = end / BINS
    for place, (since, value) in enumerate(steps):
        until = min(steps[place + 1][0] if place + 1 < len(steps) else end, end)
        at = max(since, 0.0)
        while value and at < until:
            part = min(int(at / width), BINS - 1)
            # Rounding must not leave a step on the edge where it began.
            edge = until if part == BINS - 1 else min(until, (part + 1) * width)
            areas[part] += value * (edge - at)
            at = edge if edge > at else until
    return [_rough(area / width) for area in areas]


def _matrix(groups: Sequence[Sequence[Group]]) -> dict[str, Any]:
    """Return what each user, or queue, met under each policy; the largest first."""
    names: dict[str, Group] = {}
    for group in sorted((g for each in groups for g in each), key=lambda g: -g.service):
        names.setdefault(group.name, group)
    found = [{group.name: group for group in each} for each in groups]
    return {
        "left_out": max(0, len(names) - MANY),
        "rows": [
            [name, names[name].jobs, _rough(names[name].service),
             [_met(each.get(name)) for each in found]]
            for name in list(names)[:MANY]
        ],
    }  # fmt: skip


def _met(group: Group | None) -> list[float] | None:
    if group is None:
        return None
    values = (group.jct.mean, group.waiting.mean, group.waiting.most, group.slowdown.mean)
    return [_rough(value) for value in values]


def _rough(value: float) -> float:
    """Four digits that count: more is not seen, and a page is sent about."""
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short


def embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in, whatever texts it holds."""
    text = json.dumps(finite(data), separators=(",", ":"), ensure_ascii=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _file(name: str) -> str:
    """One of the files beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
