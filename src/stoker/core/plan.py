"""One scheduling cycle, as a recipe."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.core.events import AttemptPlanned
from stoker.core.policy.backfill import Gate
from stoker.core.policy.order import Walk
from stoker.core.state import State


def plan(state: State, at: float, boot: float) -> Iterator[AttemptPlanned]:
    """Yield what starts now. The caller applies each decision before asking for the next.

    1. Walk the line: priority first, then order of submission, one head per class.
    2. Pass over classes at the limit of their queue or array.
    3. A head that fits starts, and the next of its class takes its place in the walk.
    4. The first that does not fit gets a reservation; in a strict queue, the queue stops.
    5. Behind it, only what cannot delay that reservation starts (backfill).
    """
    walk = Walk(state.line, state.jobs)
    gate = Gate(state.cluster, state.ends)
    stopped: set[str] = set()
    while (candidate := walk.next()) is not None:
        job, found = candidate
        if found.queue in stopped or state.limit_reached(found):
            continue
        placement = gate.find(state.request(job, found), state.specs[job.spec].limit, boot)
        if placement is None:
            queue = state.rest.queues.get(found.queue)
            if queue is not None and queue.strict:
                stopped.add(found.queue)
            continue
        yield AttemptPlanned(at=at, job=job.id, attempt=job.attempt, placement=placement, boot=boot)
        walk.again(found)
