"""The picture of the cluster: which job held which GPUs when, thinned out to what can be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stoker.simulate.replay.results import RunResult, Segment
from stoker.simulate.report.statistics import run_labels

MAX_SEGMENTS_PER_RUN = 20_000
"""Pieces of one run."""
MAX_SEGMENTS = 40_000
"""Pieces of all runs together: a page that is sent about stays small."""
MAX_LANES = 128
"""GPUs in the picture; more of them are thinner than a line."""
TIME_RESOLUTION = 20_000
"""Moments that are told apart, from the beginning of the picture to its end."""
MAX_USER_COLOURS = 12
"""Users with a colour of their own."""


def gantt_data(runs: Sequence[RunResult]) -> dict[str, Any] | None:
    """Return the picture of all runs, None where nobody asked for their pieces."""
    sizes = _sizes(runs)
    if not sizes:
        return None
    shown = _sampled_nodes(sizes)
    rows = {node: row for row, node in enumerate(shown)}
    most = min(MAX_SEGMENTS_PER_RUN, MAX_SEGMENTS // len(runs))
    kept = [
        _earliest([piece for piece in run.segments if piece.node in rows], most) for run in runs
    ]
    # All runs show the same time, so that they compare: until the first of them was cut off.
    until = min((moment for _, moment in kept if moment is not None), default=None)
    chosen = [
        [piece for piece in pieces if until is None or piece.begin < until] for pieces, _ in kept
    ]
    end = until or max((piece.end for pieces in chosen for piece in pieces), default=0.0)
    tick = max(end / TIME_RESOLUTION, 1e-3)
    jobs = sorted({piece.job for pieces in chosen for piece in pieces})
    places = {job: place for place, job in enumerate(jobs)}
    names = next(run.node_names for run in runs if run.segments)
    return {
        "tick": tick,
        "end": round(end / tick),
        "machines": [names[node] if node < len(names) else str(node) for node in shown],
        "sizes": [sizes[node] for node in shown],
        "all": max(len(names), len(sizes)),
        **_jobs(runs, jobs, tick),
        "pieces": [_columns(pieces, rows, places, tick, end) for pieces in chosen],
        "labels": run_labels(runs),
    }


def _sizes(runs: Sequence[RunResult]) -> dict[int, int]:
    """Return how many GPUs each machine has, as far as any job has shown."""
    found: dict[int, int] = {}
    for run in runs:
        for piece in run.segments:
            last = piece.gpu + max(1, math.ceil(piece.gpus))
            found[piece.node] = max(found.get(piece.node, 1), last)
    return dict(sorted(found.items()))


def _sampled_nodes(sizes: dict[int, int]) -> list[int]:
    """Return the machines that the picture has room for, taken evenly from all."""
    nodes = list(sizes)
    count = len(nodes)
    while count > 1:
        chosen = [nodes[place * len(nodes) // count] for place in range(count)]
        lanes = sum(sizes[node] for node in chosen)
        if lanes <= MAX_LANES:
            return chosen
        count = min(count - 1, max(1, count * MAX_LANES // lanes))
    return nodes[:1]


def _earliest(pieces: list[Segment], most: int) -> tuple[list[Segment], float | None]:
    """Return the earliest pieces, and from when on they are no longer all there."""
    pieces.sort(key=lambda piece: (piece.begin, piece.node, piece.gpu))
    cut = pieces[most].begin if len(pieces) > most else None
    return pieces[:most], cut


def _jobs(runs: Sequence[RunResult], jobs: Sequence[int], tick: float) -> dict[str, Any]:
    """Return what is told of each job in the picture, column by column."""
    wanted = set(jobs)
    facts = {each.job: each for run in runs for each in run.results if each.job in wanted}
    held: dict[str, float] = {}
    for each in facts.values():
        held[each.user] = held.get(each.user, 0.0) + each.gpu_seconds
    users = sorted(held, key=lambda user: (-held[user], user))
    places = {user: place for place, user in enumerate(users)}
    # A job that never ended has pieces, but no result to tell of.
    at = [round(facts[job].submit_time / tick) if job in facts else -1 for job in jobs]
    return {
        "jobs": _differences(jobs),
        "at": at,
        "user": [places[facts[job].user] if job in facts else -1 for job in jobs],
        "gpus": [_plain(facts[job].gpus) if job in facts else 0 for job in jobs],
        "users": users,
        "coloured": min(MAX_USER_COLOURS, len(users)),
    }


def _columns(
    pieces: Sequence[Segment], rows: dict[int, int], places: dict[int, int], tick: float, end: float
) -> dict[str, list[float]]:
    """Return pieces column by column, their beginnings as steps: that is short."""
    begins = [round(piece.begin / tick) for piece in pieces]
    return {
        "job": [places[piece.job] for piece in pieces],
        "row": [rows[piece.node] for piece in pieces],
        "gpu": [piece.gpu for piece in pieces],
        "gpus": [_plain(piece.gpus) for piece in pieces],
        "begin": _differences(begins),
        "long": [
            max(0, round(min(piece.end, end) / tick) - begin)
            for piece, begin in zip(pieces, begins, strict=True)
        ],
        "on": [place for place, piece in enumerate(pieces) if piece.end > end],
    }


def _differences(values: Sequence[int]) -> list[float]:
    return [value - before for value, before in zip(values, [0, *values], strict=False)]


def _plain(value: float) -> float:
    return int(value) if float(value).is_integer() else round(value, 3)
