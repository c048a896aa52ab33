"""One planning cycle, as a recipe."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from stoker.core.elastic.rebalance import rebalance
from stoker.core.events import AttemptPlanned, PreemptionRequested
from stoker.core.heterogeneous.assignment import applicable_policy, assign
from stoker.core.planner.session import PlanningSession
from stoker.core.planner.start_stage import StartStage
from stoker.core.planner.types import Candidate, Decision, PlanResult
from stoker.core.state.state import State


def plan(state: State, at: float, boot: float) -> Generator[Decision, None, PlanResult]:
    """Yield which jobs start and which stop; the caller applies each event before the next.

    0. If models of GPUs or co-located jobs were measured to differ, assign all jobs at once
       (`heterogeneous.assign`), and do nothing else.
    1. Rebalance elastic jobs, if a round is due: those that get fewer GPUs are asked to stop.
    2. Scan the queue by priority, then rank: the head of each class that may fit is a candidate,
       unless the quota of its queue or array, or strict order, blocks it.
    3. Protect higher-ranked jobs: if the candidate could never be preempted for them, their
       victims are asked to stop first.
    4. Place the candidate. It starts unless its devices are nominated to a job before it, or it
       would delay a reservation. The first protected candidate that does not fit gets one.
    5. Preempt: for jobs that remain blocked, minimal sets of victims are asked to stop, and what
       they free is nominated. Elastic jobs grow into what is left.
    """
    policy = applicable_policy(state)
    if policy is not None:
        yield from assign(state, policy, at, boot)
        return PlanResult(again=False)
    session = PlanningSession(state, at, boot)
    yield from session.commit(_rebalance(session))
    starts = StartStage(session)
    for candidate in starts.candidates():
        yield from session.commit(starts.protect(candidate))
        yield from session.commit(_start(session, starts, candidate))
    revocations = session.nominations.revocations
    yield from session.commit(session.preemption.run(session.backfill.has_reservation))
    revoked = session.nominations.revocations > revocations
    return PlanResult(again=revoked and session.has_decided)


def _rebalance(session: PlanningSession) -> Iterator[PreemptionRequested]:
    """Yield elastic jobs that get fewer GPUs, if a round is due."""
    state, nominations = session.state, session.nominations
    if not (state.running_elastic or state.pending_elastic):
        return
    requests = list(rebalance(state, nominations.future, session.at, session.boot))
    yield from requests
    if requests:
        nominations.refresh()


def _start(
    session: PlanningSession, starts: StartStage, candidate: Candidate
) -> Iterator[AttemptPlanned]:
    """Yield the start of a candidate, unless it is blocked."""
    placement = starts.place(candidate)
    if placement is not None:
        job = candidate.job
        yield AttemptPlanned(
            at=session.at, job=job.id, attempt=job.attempt, placement=placement, boot=session.boot
        )
