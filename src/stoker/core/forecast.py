"""When waiting jobs may start: the planner's own rules, played forward in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from math import inf

from stoker.core.cluster import Cluster, Placement
from stoker.core.estimate import remaining
from stoker.core.job import Job
from stoker.core.lifecycle import JobState
from stoker.core.policy.backfill import Gate
from stoker.core.policy.order import in_order
from stoker.core.policy.rank import OVERDUE
from stoker.core.policy.rules import Gaps
from stoker.core.request import Request
from stoker.core.state import State

LIMITS, EPOCHS, RUNS = BASES = ("time limits", "epochs", "earlier runs")
MOMENTS = 300
"""How many ends of jobs a forecast looks at before it gives up."""

Expected = Callable[[Job], float | None]
"""How long a job is expected to run in all, from its limit or from history."""


def forecast(
    state: State, at: float, boot: float, expected: Expected, most: int, until: int | None = None
) -> tuple[dict[int, float], str]:
    """Seconds until the first ready jobs start, by id, and what that rests on.

    Jobs whose start nobody can know are left out. Stops early at the job asked about.
    """
    waiting = [
        job
        for job in in_order(state.line, state.jobs, most)
        if not state.limit_reached(state.line.where[job.id])
    ]
    starts: dict[int, float] = {}
    if not waiting:
        return starts, ""
    play = _Play(state, at, boot, expected)
    for _ in range(MOMENTS):
        begun = play.start(waiting)
        starts.update((job.id, play.moment - boot) for job in begun)
        waiting = [job for job in waiting if job.id not in starts]
        if not waiting or until in starts or not play.advance():
            break
    return starts, play.basis


class _Play:
    """A copy of the ledger in which running jobs end as expected."""

    def __init__(self, state: State, at: float, boot: float, expected: Expected) -> None:
        self.state, self.at, self.expected, self.moment = state, at, expected, boot
        self.shadow: Cluster = state.cluster.shadow()
        self.held: dict[int, Placement] = {}
        self.ends: list[tuple[float, int]] = []
        self._bases: set[str] = set()
        for job in state.running.values():
            if job.placement is not None:
                started = job.started_boot if job.started_boot is not None else boot
                self._run(job, job.placement, started)
        heapify(self.ends)

    @property
    def basis(self) -> str:
        """What is known of the jobs whose ends count."""
        return " and ".join(each for each in BASES if each in self._bases)

    def _run(self, job: Job, placement: Placement, started: float) -> None:
        end, basis = self._end(job, started)
        self.held[job.id] = placement
        heappush(self.ends, (end, job.id))
        if basis:
            self._bases.add(basis)

    def _end(self, job: Job, started: float) -> tuple[float, str]:
        state, spec = self.state, self.state.spec(job)
        if job.state is JobState.SUSPENDED:  # until somebody lets it go on
            return inf, ""
        left = remaining(state.rest.families, state.cluster, job, spec, self.at)
        if left is not None:
            return self.moment + left, EPOCHS
        span = self.expected(job)
        if span is None:
            return inf, ""
        return max(started + span, self.moment), LIMITS if span == spec.limit else RUNS

    def start(self, waiting: list[Job]) -> list[Job]:
        """What the planner would start now, in its order and with its backfill."""
        begun: list[Job] = []
        blocked: list[Request] = []

        def ends() -> list[tuple[float, Placement]]:
            return [(end, self.held[id]) for end, id in sorted(self.ends)]

        def passed() -> Iterator[Request]:
            while blocked:
                yield blocked.pop(0)

        gate = Gate(self.shadow, ends, passed, self.moment)
        full: set[Request] = set()
        stopped: set[str] = set()
        for job in waiting:
            spec = self.state.spec(job)
            request = self.state.effective(job, spec)
            if request in full or spec.queue in stopped:
                continue
            found = gate.find(request, spec.limit)
            if found is None:
                overdue = self.state.line.ranks.get(job.id) == OVERDUE
                if self.state.policies.holds(spec.queue, overdue, spec.limit is not None):
                    blocked.append(request)
                if spec.limit is None:
                    full.add(request)
                if self.state.gaps(spec.queue) is Gaps.NOBODY:
                    stopped.add(spec.queue)
                continue
            self.shadow.take(found)
            self._run(job, found, self.moment)
            begun.append(job)
        return begun

    def advance(self) -> bool:
        """Go to the next end of a job; False when there is none that anybody can know."""
        if not self.ends or self.ends[0][0] == inf:
            return False
        self.moment = self.ends[0][0]
        while self.ends and self.ends[0][0] <= self.moment:
            _, id = heappop(self.ends)
            self.shadow.release(self.held.pop(id))
        return True
