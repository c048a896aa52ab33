"""Data of the Gantt chart: which job held which GPUs when, reduced to what is visible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stoker.simulate.replay.results import RunResult, Segment

MAX_SEGMENTS_PER_RUN = 20_000
"""Segments of one run."""
MAX_SEGMENTS = 40_000
"""Segments of all runs together, so that the page stays small."""
MAX_LANES = 128
"""GPUs in the chart; more would be thinner than a line."""
TIME_RESOLUTION = 20_000
"""Distinct times in the chart."""
MAX_USER_COLOURS = 8
"""Users with their own colour."""


def gantt_data(runs: Sequence[RunResult]) -> dict[str, Any] | None:
    """Return the chart of all runs, None if they have no segments."""
    sizes = _sizes(runs)
    if not sizes:
        return None
    shown = _sampled_nodes(sizes)
    rows = {node: row for row, node in enumerate(shown)}
    max_segments = min(MAX_SEGMENTS_PER_RUN, MAX_SEGMENTS // len(runs))
    kept = [
        _earliest([segment for segment in run.segments if segment.node in rows], max_segments)
        for run in runs
    ]
    # All runs show the same time span, up to where the first of them was cut.
    until = min((moment for _, moment in kept if moment is not None), default=None)
    chosen = [
        [segment for segment in segments if until is None or segment.begin < until]
        for segments, _ in kept
    ]
    end = until or max((segment.end for segments in chosen for segment in segments), default=0.0)
    tick = max(end / TIME_RESOLUTION, 1e-3)
    jobs = sorted({segment.job for segments in chosen for segment in segments})
    job_index = {job: index for index, job in enumerate(jobs)}
    names = next(run.node_names for run in runs if run.segments)
    return {
        "tick": tick,
        "end": round(end / tick),
        "machines": [names[node] if node < len(names) else str(node) for node in shown],
        "sizes": [sizes[node] for node in shown],
        "all": max(len(names), len(sizes)),
        **_jobs(runs, jobs, tick),
        "pieces": [_columns(segments, rows, job_index, tick, end) for segments in chosen],
    }


def _sizes(runs: Sequence[RunResult]) -> dict[int, int]:
    """Return the GPUs of each node, as far as any segment shows."""
    sizes: dict[int, int] = {}
    for run in runs:
        for segment in run.segments:
            last = segment.gpu + max(1, math.ceil(segment.gpus))
            sizes[segment.node] = max(sizes.get(segment.node, 1), last)
    return dict(sorted(sizes.items()))


def _sampled_nodes(sizes: dict[int, int]) -> list[int]:
    """Return the nodes that fit into the chart, evenly sampled."""
    nodes = list(sizes)
    count = len(nodes)
    while count > 1:
        chosen = [nodes[index * len(nodes) // count] for index in range(count)]
        lanes = sum(sizes[node] for node in chosen)
        if lanes <= MAX_LANES:
            return chosen
        count = min(count - 1, max(1, count * MAX_LANES // lanes))
    return nodes[:1]


def _earliest(segments: list[Segment], max_segments: int) -> tuple[list[Segment], float | None]:
    """Return the earliest segments, and the time from which on some are missing."""
    segments.sort(key=lambda segment: (segment.begin, segment.node, segment.gpu))
    cut = segments[max_segments].begin if len(segments) > max_segments else None
    return segments[:max_segments], cut


def _jobs(runs: Sequence[RunResult], jobs: Sequence[int], tick: float) -> dict[str, Any]:
    """Return the data of each job in the chart, by column."""
    chosen_ids = set(jobs)
    results = {
        result.job: result for run in runs for result in run.results if result.job in chosen_ids
    }
    held: dict[str, float] = {}
    for result in results.values():
        held[result.user] = held.get(result.user, 0.0) + result.gpu_seconds
    users = sorted(held, key=lambda user: (-held[user], user))
    user_index = {user: index for index, user in enumerate(users)}
    # A job that never ended has segments, but no result.
    at = [round(results[job].submit_time / tick) if job in results else -1 for job in jobs]
    return {
        "jobs": _differences(jobs),
        "at": at,
        "user": [user_index[results[job].user] if job in results else -1 for job in jobs],
        "gpus": [_plain(results[job].gpus) if job in results else 0 for job in jobs],
        "users": users,
        "coloured": min(MAX_USER_COLOURS, len(users)),
    }


def _columns(
    segments: Sequence[Segment],
    rows: dict[int, int],
    job_index: dict[int, int],
    tick: float,
    end: float,
) -> dict[str, list[float]]:
    """Return segments by column; begin times as differences, which is shorter."""
    begins = [round(segment.begin / tick) for segment in segments]
    return {
        "job": [job_index[segment.job] for segment in segments],
        "row": [rows[segment.node] for segment in segments],
        "gpu": [segment.gpu for segment in segments],
        "gpus": [_plain(segment.gpus) for segment in segments],
        "begin": _differences(begins),
        "long": [
            max(0, round(min(segment.end, end) / tick) - begin)
            for segment, begin in zip(segments, begins, strict=True)
        ],
        "on": [index for index, segment in enumerate(segments) if segment.end > end],
    }


def _differences(values: Sequence[int]) -> list[float]:
    return [value - before for value, before in zip(values, [0, *values], strict=False)]


def _plain(value: float) -> float:
    return int(value) if float(value).is_integer() else round(value, 3)
