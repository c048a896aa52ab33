"""The stage that starts jobs: scan the queue in order, admit by quota, place with backfill."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from stoker.core.cluster.cluster import Cluster
from stoker.core.events import AttemptPlanned
from stoker.core.heterogeneous.assignment import Assignment
from stoker.core.model.job import Job
from stoker.core.model.resources import Placement, ResourceRequest
from stoker.core.placement.advance import within_own
from stoker.core.placement.capacity import capacity_test
from stoker.core.planner.request_variants import request_variants
from stoker.core.planner.session import PlanningSession
from stoker.core.preemption.admission import Admission
from stoker.core.queue.job_class import ShapeGroup
from stoker.core.queue.scan import SizeTest, fitting_heads
from stoker.core.structures import BEFORE_ALL, CapacityTest, SortKey


class Candidate(NamedTuple):
    """A pending job that may fit, when the scan has come to its position."""

    key: SortKey
    job: Job
    request: ResourceRequest


class StartStage:
    """One scan of the queue: yields candidates and places them."""

    def __init__(self, session: PlanningSession) -> None:
        self.session = session
        self._position: SortKey = BEFORE_ALL
        """Position of the last candidate: what is nominated to jobs before it is withheld."""
        self._admission = Admission(session.state)
        self.has_unused_targets = False
        """Whether a quota blocks a job with a target, which others could have."""

    def _capacity_test(self, group: ShapeGroup) -> CapacityTest:
        """Return the test whether jobs of a group may start now."""
        session, shape = self.session, group.shape
        quota = session.state.gpu_quota_left(group.queue)
        if quota is None or quota < 0:
            return lambda _: False
        ledger = session.nominations.ledger_for(self._position)
        if any(each.begin <= session.at for each in session.state.cluster.advance_reservations):
            fits = capacity_test(ledger, shape)  # jobs may start there whatever they delay
        else:
            fits = session.backfill.capacity_test(shape, ledger)
        if quota == inf or shape.gpus is None:
            return fits
        return lambda amounts: amounts[0] <= quota and fits(amounts)

    def candidates(self) -> Iterator[Candidate]:
        """Yield jobs that may fit and that no quota blocks, in queue order.

        The caller starts a candidate before it asks for the next; otherwise it counts as blocked.
        """
        state = self.session.state
        if self.session.assignment is not None:
            yield from self._assigned_candidates(self.session.assignment)
            return
        # Not an attribute: by a reference cycle, the overlays of each plan would stay in memory
        # until garbage is collected: 13 % of the time of a plan at 10^3 nodes.
        may_fit = SizeTest(self._capacity_test)
        for key, job_class in fitting_heads(state.pending, may_fit):
            self._position = key
            if not self._admission.admits(job_class):
                continue
            job = state.jobs[job_class.head]
            request = state.startable_request(job, job_class, self.session.at)
            yield Candidate(key, job, request)
            may_fit.forget()
            if job.id in state.pending:
                self._admission.on_blocked(job_class)

    def _assigned_candidates(self, assignment: Assignment) -> Iterator[Candidate]:
        """Yield jobs with a target that no quota blocks; each may have its target only."""
        state = self.session.state
        for key, job_class, job, request in assignment.candidates():
            if self._admission.is_behind_blocked(job_class):
                continue
            quota = state.quotas.max_gpus(state.specs[job.spec], 0)
            if state.quota_reason(job_class) or request.gpu_amount > quota:
                self.has_unused_targets = True
                continue
            yield Candidate(key, job, request)
            if job.id in state.pending:
                self._admission.on_blocked(job_class)

    def start(self, candidate: Candidate) -> Iterator[AttemptPlanned]:
        """Yield the start of a candidate, unless it is blocked."""
        session, job = self.session, candidate.job
        limit = session.state.specs[job.spec].limit
        ledger = session.nominations.ledger_for(candidate.key)
        variants, nominated = [candidate.request], session.state.memory.nominations
        if session.assignment is None:
            variants = request_variants(session.state, job, candidate.request)
            nominated = {}
        for request in variants:
            blocked = session.guard.blocked_before(candidate.key, nominated)
            placement = session.backfill.find_start(request, limit, ledger, blocked)
            if placement is None and session.state.cluster.advance_reservations:
                placement = self._within_own(job, request, ledger)
            if placement is not None:
                yield AttemptPlanned(
                    at=session.at, job=job.id, attempt=job.attempt, placement=placement,
                    boot=session.boot,
                )  # fmt: skip
                return

    def _within_own(self, job: Job, request: ResourceRequest, ledger: Cluster) -> Placement | None:
        """Return devices of an advance reservation of a job: no job before it can use them."""
        state, at = self.session.state, self.session.at
        keys = state.limits.keys(state.specs[job.spec])
        own = within_own(state.cluster, request, keys, at)
        return self.session.backfill.start_regardless(own, ledger) if own is not None else None
