"""One planning cycle, as a recipe."""

from __future__ import annotations

from collections.abc import Generator

from stoker.core.elastic.rebalance import rebalance
from stoker.core.planner.session import Decision, PlanningSession
from stoker.core.planner.start_stage import StartStage
from stoker.core.state.state import State


def plan(state: State, at: float, boot: float) -> Generator[Decision, None, bool]:
    """Yield which jobs start and which stop; the caller applies each event before the next.

    1. Rebalance elastic jobs: those that get fewer GPUs are asked to stop.
    2. If models of GPUs or co-located jobs were measured to differ, assign a target to every job
       (`heterogeneous.Assignment`): the only devices on which the following stages start it.
    3. Scan the queue by priority, then rank: the head of each class is a candidate if it may fit
       into what is neither nominated to a job before it nor reserved, unless the quota of its
       queue or array, or strict order, blocks it. Of a request that does not fit, no later class
       is examined.
    4. Preempt for jobs ahead first: if the candidate could never be preempted for them, their
       victims are asked to stop before it starts.
    5. Place the candidate. It starts unless it does not fit beside what is nominated to jobs
       before it, or would delay a reservation. If there is none yet, the first protected job
       before a candidate that fits gets it.
    6. Preempt: for jobs that remain blocked, minimal sets of victims are asked to stop, and what
       they free is nominated; with an assignment, jobs that are not on their targets stop.
       Elastic jobs grow into what is left.

    Returns whether another plan could start more jobs, with capacity given up after the scan.
    """
    session = PlanningSession(state, at, boot)
    smaller = list(rebalance(state, session.nominations.future, at, boot))
    yield from session.emit(smaller)
    if smaller:
        session.nominations.refresh()
    session.assign()
    assignment = session.assignment
    starts = StartStage(session)
    for candidate in starts.candidates():
        if assignment is None:  # otherwise jobs before it have their targets
            yield from session.emit(session.preemption.preempt_for_jobs_ahead(*candidate))
        yield from session.emit(starts.start(candidate))
    decided, revoked = session.decision_count, session.nominations.revocations
    assigned = assignment.preemptions(boot) if assignment is not None else None
    yield from session.emit(session.preemption.run(assigned))
    # As long as the same jobs stop, another plan derives the revoked nominations again.
    is_freed = session.nominations.revocations > revoked and session.decision_count > decided
    return is_freed or (starts.has_unused_targets and session.decision_count > 0)
