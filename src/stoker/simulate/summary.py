"""Several workloads taken together: how policies compare in the geometric mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, fsum, log
from typing import Any

from msgspec import Struct, to_builtins

from stoker.simulate.compare import Compared
from stoker.simulate.report import ratios
from stoker.simulate.report.statistics import base_of

SHOWN = (("jct_mean", "mean JCT"), ("jct_p99", "p99 JCT"), ("slowdown_mean", "slowdown"),
         ("makespan", "makespan"))  # fmt: skip
GAP = "  "


class Together(Struct, kw_only=True):
    """One policy over all workloads."""

    policy: str
    workloads: int
    means: dict[str, float | None]
    """Geometric means of the ratios to the base; None where a workload has no such ratio."""
    worst: dict[str, float | None]
    preemptions: float
    """Per job, the mean over workloads."""


def together(found: Sequence[Compared], base: str | None) -> list[Together]:
    """Each policy, over all workloads."""
    rows = []
    for place, first in enumerate(found[0].figures):
        compared = [ratios(each.figures[place], base_of(each.figures, base)) for each in found]
        keys = compared[0]
        values = {key: [each[key] for each in compared] for key in keys}
        preempted = [each.figures[place].preemptions or 0.0 for each in found]
        rows.append(Together(
            policy=first.label,
            workloads=len(found),
            means={key: _mean(each) for key, each in values.items()},
            worst={key: max((v for v in each if v is not None), default=None)
                   for key, each in values.items()},
            preemptions=fsum(preempted) / len(found),
        ))  # fmt: skip
    return rows


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value]
    return exp(fsum(map(log, known)) / len(known)) if len(known) == len(values) else None


def summary_lines(found: Sequence[Compared], base: str | None) -> list[str]:
    """A table of them all."""
    against = base_of(found[0].figures, base).label
    titles = ["policy", *(title for _, title in SHOWN), "worst JCT", "preempted"]
    rows = [titles]
    for each in together(found, base):
        cells = [_times(each.means[key]) for key, _ in SHOWN]
        rows.append(
            [each.policy, *cells, _times(each.worst["jct_mean"]), f"{each.preemptions:.2f}"]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{len(found)} workloads: times {against}, geometric means"]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append(GAP.join(cells).rstrip())
    return lines


def _times(value: float | None) -> str:
    return "–" if value is None else f"× {value:,.2f}"


def summary_json(found: Sequence[Compared], base: str | None) -> dict[str, Any]:
    """The same for programs."""
    return {
        "base": base_of(found[0].figures, base).label,
        "policies": [to_builtins(each) for each in together(found, base)],
    }
