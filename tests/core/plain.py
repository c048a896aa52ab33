"""The recipe of the planner without any index: everybody is looked at, one after another."""

from collections.abc import Iterator

from stoker.core.events import AttemptPlanned
from stoker.core.model.job import Job
from stoker.core.model.resources import ResourceRequest
from stoker.core.placement.placer import find_placement
from stoker.core.policies.policy import BackfillMode
from stoker.core.queue.pending_queue import first_jobs
from stoker.core.reservation.reservation import Reservation, reserve
from stoker.core.state.state import State

ALL = 10_000


def plan(state: State, at: float, boot: float) -> Iterator[AttemptPlanned]:
    """What starts now, found the slow way."""
    ahead: Reservation | None = None
    blocked: list[ResourceRequest] = []
    stopped: set[str] = set()
    done: set[object] = set()
    for job in first_jobs(state.pending, state.jobs, ALL):
        found = state.pending.class_of[job.id]
        if found in done or found.queue in stopped or state.quota_reason(found):
            done.add(found)
            continue
        request = state.effective_request(job, state.spec(job))
        placement = find_placement(state.cluster, request)
        if (
            placement is None
            and ahead is None
            and state.backfill_mode(found.queue) is not BackfillMode.UNRESTRICTED
        ):
            blocked.append(request)
        if placement is not None:
            while ahead is None and blocked:
                ahead = reserve(state.cluster, state.releases(), blocked.pop(0))
            if ahead is not None and not ahead.ends_before(boot, state.spec(job).limit):
                placement = find_placement(ahead.backfill_capacity(state.cluster), request)
                if placement is not None:
                    ahead.allocate(placement)
        if placement is None:
            done.add(found)
            if _is_strict(state, job):
                stopped.add(found.queue)
            continue
        yield AttemptPlanned(at=at, job=job.id, attempt=job.attempt, placement=placement, boot=boot)


def _is_strict(state: State, job: Job) -> bool:
    queue = state.record.queues.get(state.spec(job).queue)
    return queue is not None and queue.strict
