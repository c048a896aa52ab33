"""The stage that starts jobs: scan the queue in order, admit by quota, place with backfill."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from stoker.core.cluster.idle import idle_cluster
from stoker.core.events import PreemptionRequested
from stoker.core.heterogeneous.assignment import Assignment
from stoker.core.model.hardware import Placement
from stoker.core.placement.capacity import capacity_test
from stoker.core.placement.placer import find_placement
from stoker.core.planner.request_variants import request_variants
from stoker.core.planner.session import PlanningSession
from stoker.core.planner.types import Candidate
from stoker.core.policies.policy import BackfillMode
from stoker.core.preemption.reservation_guard import (
    blocked_job,
    fits_never,
    is_protected,
    may_be_protected,
)
from stoker.core.queue.job_class import ShapeGroup
from stoker.core.queue.scan import QueueScan
from stoker.core.reservation.easy import BlockedJob
from stoker.core.structures.amounts import BEFORE_ALL, CapacityTest, SortKey


class StartStage:
    """One scan of the queue: yields candidates and places them."""

    def __init__(self, session: PlanningSession) -> None:
        self.session = session
        self._scan = QueueScan(session.state.pending, session.state.jobs, self._capacity_test)
        self._position: SortKey = BEFORE_ALL
        """Position of the last candidate: what is nominated to jobs before it is withheld."""
        self._blocked_queues: set[str] = set()
        """Queues of strict order with a blocked job."""
        self.has_unused_targets = False
        """Whether a quota blocks a job with a target, which others could have."""

    def _capacity_test(self, group: ShapeGroup) -> CapacityTest:
        """Return the test whether jobs of a group may start now."""
        session, shape = self.session, group.shape
        quota = session.state.gpu_quota_left(group.queue)
        if quota is None or quota < 0:
            return fits_never
        ledger = session.nominations.ledger_for(self._position)
        fits = session.backfill.capacity_test(shape, ledger)
        if quota == inf or shape.gpus is None:
            return fits
        return lambda amounts: amounts[0] <= quota and fits(amounts)

    def _protected_test(self, group: ShapeGroup) -> CapacityTest:
        """Return the test whether jobs of a group may be protected and can ever fit."""
        state = self.session.state
        may_be = may_be_protected(state, group)
        fits_when_idle = idle_cluster(state.cluster).capacity_test(group.shape, capacity_test)
        return lambda amounts: may_be(amounts) and fits_when_idle(amounts)

    def candidates(self) -> Iterator[Candidate]:
        """Yield jobs that may fit and that no quota blocks, in queue order.

        The caller starts a candidate before it asks for the next; otherwise it counts as blocked.
        """
        state, scan = self.session.state, self._scan
        if self.session.assignment is not None:
            yield from self._assigned_candidates(self.session.assignment)
            return
        while (entry := scan.next_candidate()) is not None:
            job, job_class = entry
            self._position = scan.position
            is_strict = state.backfill_mode(job_class.queue) is BackfillMode.STRICT
            if is_strict and state.quotas.queue_reason(job_class):
                self._blocked_queues.add(job_class.queue)
            if job_class.queue in self._blocked_queues or state.quota_reason(job_class):
                continue
            request = state.startable_request(job, job_class, self.session.at)
            yield Candidate(scan.position, job, job_class, request)
            if job.id not in state.pending:
                scan.on_start()
                continue
            scan.on_blocked()
            if is_strict:
                self._blocked_queues.add(job_class.queue)

    def _assigned_candidates(self, assignment: Assignment) -> Iterator[Candidate]:
        """Yield jobs with a target that no quota blocks; each may have its target only."""
        state = self.session.state
        for key, job_class, job, request in assignment.candidates():
            if job_class.queue in self._blocked_queues:
                continue
            quota = state.gpu_quota_left(job_class.queue)
            if state.quota_reason(job_class) or quota is None or request.gpu_amount > quota:
                self.has_unused_targets = True
                continue
            yield Candidate(key, job, job_class, request)
            is_strict = state.backfill_mode(job_class.queue) is BackfillMode.STRICT
            if is_strict and job.id in state.pending:
                self._blocked_queues.add(job_class.queue)

    def protect(self, candidate: Candidate) -> Iterator[PreemptionRequested]:
        """Yield victims of higher-ranked jobs, if the candidate could not be preempted for them."""
        session, key = self.session, candidate.key
        if session.assignment is not None:  # jobs before it have their targets
            return
        if not session.preemption.must_run_before_start(candidate.job, key):
            return
        placement = find_placement(session.nominations.ledger_for(key), candidate.request)
        if placement is not None:
            nodes = [part.node for part in placement.parts]
            yield from session.preemption.run_before(key, nodes)

    def place(self, candidate: Candidate) -> Placement | None:
        """Return the devices on which a candidate starts; None: it is blocked."""
        session, job = self.session, candidate.job
        limit = session.state.specs[job.spec].limit
        ledger = session.nominations.ledger_for(candidate.key)
        variants = [candidate.request]
        if session.assignment is None:
            variants = request_variants(session.state, job, candidate.request)
        for request in variants:
            blocked = self._blocked_before(candidate.key)
            placement = session.backfill.try_start(request, limit, ledger, blocked)
            if placement is not None:
                return placement
        return None

    def _blocked_before(self, key: SortKey) -> Iterator[BlockedJob]:
        """Yield the protected jobs before a position that did not fit."""
        session = self.session
        if not session.guard.any_protected:
            return
        if session.guard.is_conservative:
            yield from session.guard.blocked_ahead(key)
            return
        if session.assignment is not None:
            yield from session.guard.protected_before(key)
            return
        state = session.state
        for job, job_class in self._scan.blocked_before(self._protected_test):
            if is_protected(state, job_class) and not state.quota_reason(job_class):
                yield blocked_job(state, job_class.indexed_key, job, job_class)
