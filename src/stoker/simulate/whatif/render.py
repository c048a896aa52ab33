"""The result of `stoker what-if` as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from stoker.core.model.resources import GPU
from stoker.core.model.units import format_duration
from stoker.simulate.replay.results import RunResult
from stoker.simulate.report.statistics import (
    MEASURES,
    Group,
    RunStatistics,
    statistics_of_runs,
    warnings,
)
from stoker.simulate.report.table import align_rows
from stoker.simulate.report.table import as_json as figures_json
from stoker.simulate.traces.files import count_jobs
from stoker.simulate.whatif.api_views import WhatIfInput
from stoker.simulate.whatif.cluster_model import ClusterModel, RecordedJob
from stoker.simulate.whatif.history_replay import Forecast

ASSUMPTIONS_TEXT = (
    "Assumed: jobs are submitted at the recorded times and take the recorded time; training jobs"
    " checkpoint every 10 minutes and need 60 s to resume; no further jobs are submitted."
)
MAX_SHIFTS = 5
"""Finished jobs shown with the largest gains, and with the largest losses."""
MAX_LIVE_JOBS = 20
"""Unfinished jobs shown; of more, those with the largest changes."""
UNCHANGED_SECONDS = 1.0
"""Smaller differences count as unchanged."""
STATISTICS = {
    "wait_mean": "mean wait", "jct_mean": "mean completion", "jct_p90": "p90 completion",
    "jct_p99": "p99 completion", "makespan": "makespan", "busy": "GPUs in use",
    "preemptions": "preemptions per job",
}  # fmt: skip


class WhatIfResult(Struct, kw_only=True):
    """Both replays and both forecasts."""

    change: str
    whatif_input: WhatIfInput
    cluster: ClusterModel
    changed_cluster: ClusterModel
    runs: list[RunResult]
    """Replays of the history without and with the changes; empty if no job has ended."""
    jobs: list[RecordedJob]
    """Jobs of the history, in the order of the runs."""
    live_jobs: list[RecordedJob]
    before: dict[int, Forecast]
    after: dict[int, Forecast]
    infeasible: list[RecordedJob]
    """Jobs that no node could run."""
    notes: list[str]
    assumptions: str


class JobShift(Struct, kw_only=True):
    """A finished job that would have ended at another time."""

    job: RecordedJob
    before: float
    after: float
    """Seconds from its submission to its end."""


# -- text ----------------------------------------------------------------------------------


def lines(result: WhatIfResult) -> list[str]:
    """Return the result as text."""
    text = [f"what if: {result.change}"]
    if result.runs:
        before, after = statistics_of_runs(result.runs)
        text += ["", _history_heading(result), *_statistics_lines(before, after)]
        text += _group_lines("user", before.by_user, after.by_user)
        text += _group_lines("queue", before.by_queue, after.by_queue)
        text += _shift_lines(result)
    text += _live_lines(result)
    if result.infeasible:
        labels = ", ".join(job.label for job in result.infeasible[:10])
        more = f" and {len(result.infeasible) - 10:,} more" if len(result.infeasible) > 10 else ""
        text += ["", f"could no longer run: {labels}{more}"]
    return [*text, "", *(f"note: {note}" for note in result.notes), f"note: {result.assumptions}"]


def _statistics_lines(before: RunStatistics, after: RunStatistics) -> list[str]:
    """Return the main statistics side by side."""
    rows = [["", before.label, "", after.label, ""]]
    for key, title in STATISTICS.items():
        measure = next(entry for entry in MEASURES if entry.key == key)
        old, new = measure.of(before), measure.of(after)
        if old is None or new is None or (key == "preemptions" and not old and not new):
            continue
        change = f"{100 * (new / old - 1):+.0f} %" if old and measure.kind == "time" else ""
        texts = [_statistic_text(measure.kind, value) for value in (old, new)]
        rows.append([title, texts[0], "→", texts[1], change.replace("-", "−")])
    return [*align_rows(rows, left=1), *(f"note: {entry}" for entry in warnings([before, after]))]


def _statistic_text(kind: str, value: float) -> str:
    if kind == "time":
        return format_span(value)
    return f"{100 * value:.0f} %" if kind == "share" else f"{value:.2f}"


def _history_heading(result: WhatIfResult) -> str:
    nodes, gpus = len(result.cluster.nodes), _gpus(result.cluster)
    text = f"{last_days(result.whatif_input.days)}: {len(result.jobs):,} jobs on {nodes}"
    text += f" node{'s' * (nodes != 1)} with {gpus} GPU{'s' * (gpus != 1)}"
    if result.changed_cluster.nodes != result.cluster.nodes:
        text += f" → {len(result.changed_cluster.nodes)} with {_gpus(result.changed_cluster)}"
    return text


def last_days(days: float) -> str:
    """Return the replayed time as text."""
    return "the last day" if days == 1 else f"the last {days:g} days"


def _gpus(cluster: ClusterModel) -> int:
    return sum(len(node.types.get(GPU, ())) for node in cluster.nodes)


def _group_lines(title: str, before: Sequence[Group], after: Sequence[Group]) -> list[str]:
    """Return a table by user or queue; empty if there is only one."""
    if len(before) < 2:
        return []
    then = {group.name: group for group in after}
    rows = [[title, "jobs", "mean wait", "", "", "mean completion", "", ""]]
    for group in before[:20]:
        other = then.get(group.name)
        if other is None:
            continue
        rows.append([
            group.name or "-", f"{group.jobs:,}",
            format_span(group.waiting.mean), "→", format_span(other.waiting.mean),
            format_span(group.jct.mean), "→", format_span(other.jct.mean),
        ])  # fmt: skip
    return ["", *align_rows(rows, left=1)]


def job_shifts(result: WhatIfResult) -> list[JobShift]:
    """Return the finished jobs that would have ended at another time, largest gain first."""
    if not result.runs:
        return []
    after = {result.job: result for result in result.runs[1].results}
    moved = [
        JobShift(
            job=result.jobs[old.job],
            before=old.completion_time,
            after=after[old.job].completion_time,
        )
        for old in result.runs[0].results
        if old.job in after
        and abs(after[old.job].completion_time - old.completion_time) >= UNCHANGED_SECONDS
    ]
    return sorted(moved, key=lambda shift: shift.after - shift.before)


def _shift_lines(result: WhatIfResult) -> list[str]:
    moved = job_shifts(result)
    if not moved:
        return ["", "no finished job would have ended at a different time"]
    earlier = [shift for shift in moved if shift.after < shift.before]
    later = [shift for shift in reversed(moved) if shift.after > shift.before]
    text = ["", f"would have ended earlier: {len(earlier):,}, later: {len(later):,}"]
    rows = [["job", "name", "user", "GPUs", "completion", "", "", ""]]
    for shift in [*earlier[:MAX_SHIFTS], *later[:MAX_SHIFTS][::-1]]:
        job = shift.job
        rows.append([
            job.label, job.name, job.user, f"{job.gpus:g}", format_span(shift.before), "→",
            format_span(shift.after), _change(shift.after - shift.before),
        ])  # fmt: skip
    return [*text, *align_rows(rows, left=3)]


def _live_lines(result: WhatIfResult) -> list[str]:
    """Return the unfinished jobs by predicted end; of many, those with the largest changes."""
    if not result.live_jobs:
        return ["", "no pending or running jobs"]
    rows = [["job", "name", "user", "state", "ends in", "", "", ""]]
    jobs = sorted(result.live_jobs, key=lambda job: _end(result.before[job.id]))
    shown = jobs
    if len(jobs) > MAX_LIVE_JOBS:
        ordered = sorted(jobs, key=lambda job: _delay(result, job))
        shown = [*ordered[: MAX_LIVE_JOBS // 2], *ordered[-MAX_LIVE_JOBS // 2 :]]
    for job in shown:
        before, after = result.before[job.id].end, result.after[job.id].end
        change = "" if before is None or after is None else _change(after - before)
        rows.append([
            job.label, job.name, job.user, job.state.lower(), _when(before), "→", _when(after),
            change,
        ])  # fmt: skip
    text = ["", _live_heading(result, jobs), *align_rows(rows, left=4)]
    if len(shown) < len(jobs):
        text.append(f"… and {len(jobs) - len(shown):,} jobs with smaller changes; see --json")
    return text


def _live_heading(result: WhatIfResult, jobs: Sequence[RecordedJob]) -> str:
    moves = [_delay(result, job) for job in jobs]
    earlier = sum(move <= -UNCHANGED_SECONDS for move in moves)
    later = sum(move >= UNCHANGED_SECONDS for move in moves)
    text = f"today: {count_jobs(len(jobs))}"
    text += f"; earlier: {earlier:,}, later: {later:,}"
    ends = [(result.before[job.id].end, result.after[job.id].end) for job in jobs]
    both = [(old, new) for old, new in ends if old is not None and new is not None]
    if len(both) > 1:
        old, new = (sum(seconds) / len(both) for seconds in zip(*both, strict=True))
        text += f"; on average they end in {format_span(old)} → {format_span(new)}"
    return text


def _delay(result: WhatIfResult, job: RecordedJob) -> float:
    """Return the seconds by which a job ends later; infinite if it never ends."""
    before, after = _end(result.before[job.id]), _end(result.after[job.id])
    return 0.0 if before == after else after - before


def _end(forecast: Forecast) -> float:
    return float("inf") if forecast.end is None else forecast.end


def _when(seconds: float | None) -> str:
    return "never" if seconds is None else format_duration(seconds)


def _change(seconds: float) -> str:
    if abs(seconds) < UNCHANGED_SECONDS:
        return "unchanged"
    return f"{format_span(abs(seconds))} {'earlier' if seconds < 0 else 'later'}"


def format_span(seconds: float) -> str:
    """Return `42 s`, `3.2 h`, `1.5 d`."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


# -- JSON ----------------------------------------------------------------------------------


def as_json(result: WhatIfResult) -> dict[str, Any]:
    """Return the result for --json: durations in seconds, times as ISO 8601."""
    moved = job_shifts(result)
    now = result.whatif_input.now
    return {
        "change": result.change,
        "days": result.whatif_input.days,
        "gpus": {"before": _gpus(result.cluster), "after": _gpus(result.changed_cluster)},
        "past": figures_json(result.runs) if result.runs else None,
        "shifts": [
            {"id": shift.job.id, "label": shift.job.label, "name": shift.job.name,
             "user": shift.job.user, "before": shift.before, "after": shift.after}
            for shift in moved
        ],
        "today": [
            {"id": job.id, "label": job.label, "name": job.name, "user": job.user,
             "queue": job.queue, "state": job.state,
             "before": _forecast_json(result.before[job.id], now),
             "after": _forecast_json(result.after[job.id], now)}
            for job in result.live_jobs
        ],
        "lost": [job.label for job in result.infeasible],
        "notes": result.notes,
        "assumed": result.assumptions,
    }  # fmt: skip


def _forecast_json(forecast: Forecast, now: float) -> dict[str, str | None]:
    return {"starts_at": _timestamp(now, forecast.start), "ends_at": _timestamp(now, forecast.end)}


def _timestamp(now: float, seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(now + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
