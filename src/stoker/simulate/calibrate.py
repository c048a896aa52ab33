"""How good the forecasts are: a workload is played, and at some moments somebody asks.

What was foreseen then is compared with what became of it in the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from statistics import median

import msgspec
from msgspec import Struct

from stoker.core.cluster import NodeFacts, Placement
from stoker.core.outlook import Outlook, Span, question
from stoker.simulate.ahead import PLAYS, foresee
from stoker.simulate.diary import Diary
from stoker.simulate.replay import Assumed, Replay
from stoker.simulate.workload import Load, Workload

LEAST = 60.0
"""Seconds: an error is compared with the time to come, but not with less than this."""
FIRST, LAST = 0.2, 0.7
"""The share of the submissions before the first moment, and before the last one."""
KINDS = ("start", "end of waiting", "end of running")


class Score(Struct, kw_only=True):
    """How the forecasts of one kind have turned out."""

    kind: str
    """What was foreseen: one of KINDS."""
    count: int
    within: float
    """The share of truths in the range."""
    before: float
    """The share that was earlier than that."""
    after: float
    error: float
    """The median of the error, as a share of the time that was to come."""


class _Seen(Struct):
    """One forecast, and what to compare it with."""

    kind: str
    job: int
    at: float
    span: Span


class _Notes(Diary):
    """All starts of every job: who has made room for others waits again."""

    def __init__(self, nodes: list[NodeFacts], pieces: int) -> None:
        super().__init__(nodes, pieces)
        self.starts: dict[int, list[float]] = {}

    def begun(self, id: int, load: Load, at: float, placement: Placement) -> None:
        super().begun(id, load, at, placement)
        self.starts.setdefault(id, []).append(at)

    def truth(self, kind: str, job: int, after: float) -> float | None:
        """What became of it; None when the run was over before."""
        if kind == "start":
            return next((at for at in self.starts.get(job, ()) if at >= after), None)
        return self.ends.get(job)

    @cached_property
    def ends(self) -> dict[int, float]:
        """When each job ended; asked for when all is over."""
        return {result.job + 1: result.end for result in self.results}


def calibrate(
    workload: Workload,
    nodes: list[NodeFacts],
    policy: str,
    moments: int = 10,
    assumed: Assumed | None = None,
    plays: int = PLAYS,
    parameters: dict[str, float] | None = None,
) -> list[Score]:
    """Ask at moments among the submissions: when there is a past, and while others still come."""
    arrivals = [load.at for load in workload.jobs]
    first, last = int(len(arrivals) * FIRST), int(len(arrivals) * LAST)
    step = max((last - first) // moments, 1)
    todo = sorted({arrivals[at] for at in range(first, last, step)}, reverse=True)
    seen: list[_Seen] = []

    def look(_: int) -> None:
        if todo and replay.now >= todo[-1]:
            todo.pop()
            asked = question(replay.state, replay.now, replay.now, {})
            answer = foresee(msgspec.json.encode(asked), plays=plays, seed=len(todo))
            seen.extend(_noted(answer))

    replay = Replay(workload, nodes, policy, parameters, assumed)
    replay.diary = notes = _Notes(nodes, 0)
    replay.run(look)
    return [_score(kind, seen, notes) for kind in KINDS]


def _noted(answer: Outlook) -> list[_Seen]:
    found = []
    for each in answer.jobs:
        if each.start is not None:
            found.append(_Seen("start", each.job, answer.at, each.start))
        if each.end is not None:
            kind = "end of running" if each.start is None else "end of waiting"
            found.append(_Seen(kind, each.job, answer.at, each.end))
    return found


def _score(kind: str, seen: Sequence[_Seen], notes: _Notes) -> Score:
    count = early = late = 0
    errors: list[float] = []
    for each in seen:
        real, span = notes.truth(kind, each.job, each.at), each.span
        if each.kind != kind or real is None:
            continue
        count += 1
        early += real < span.low - 1.0
        late += span.high is not None and real > span.high + 1.0
        if span.likely is not None:
            errors.append(abs(span.likely - real) / max(real - each.at, LEAST))
    whole = max(count, 1)
    return Score(
        kind=kind, count=count, within=1 - (early + late) / whole, before=early / whole,
        after=late / whole, error=median(errors) if errors else 0.0,
    )  # fmt: skip
