"""The recipe of the planner without any index: everybody is looked at, one after another."""

from collections.abc import Iterator

from stoker.core.events import AttemptPlanned
from stoker.core.job import Job
from stoker.core.policy.backfill import Reservation, reserve
from stoker.core.policy.order import in_order
from stoker.core.policy.place import place
from stoker.core.policy.rules import Gaps
from stoker.core.request import Request
from stoker.core.state import State

ALL = 10_000


def plan(state: State, at: float, boot: float) -> Iterator[AttemptPlanned]:
    """What starts now, found the slow way."""
    ahead: Reservation | None = None
    blocked: list[Request] = []
    stopped: set[str] = set()
    done: set[object] = set()
    for job in in_order(state.line, state.jobs, ALL):
        found = state.line.where[job.id]
        if found in done or found.queue in stopped or state.limit_reached(found):
            done.add(found)
            continue
        request = state.effective(job, state.spec(job))
        placement = place(state.cluster, request)
        if placement is None and ahead is None and state.gaps(found.queue) is not Gaps.ANYBODY:
            blocked.append(request)
        if placement is not None:
            while ahead is None and blocked:
                ahead = reserve(state.cluster, state.ends(), blocked.pop(0))
            if ahead is not None and not ahead.over_in_time(boot, state.spec(job).limit):
                placement = place(ahead.beside(state.cluster), request)
                if placement is not None:
                    ahead.take(placement)
        if placement is None:
            done.add(found)
            if _is_strict(state, job):
                stopped.add(found.queue)
            continue
        yield AttemptPlanned(at=at, job=job.id, attempt=job.attempt, placement=placement, boot=boot)


def _is_strict(state: State, job: Job) -> bool:
    queue = state.rest.queues.get(state.spec(job).queue)
    return queue is not None and queue.strict
