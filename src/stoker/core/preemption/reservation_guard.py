"""Which pending jobs are protected by reservations, and which jobs those would block.

A blocked job is protected if its queue uses backfill with reservations or strict order; under
`planner`, if it is overdue or has a time limit. Lower-ranked jobs must not delay it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import cached_property

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.idle import idle_cluster
from stoker.core.model.job import Job
from stoker.core.model.resources import ResourceRequest
from stoker.core.placement.capacity import capacity_test
from stoker.core.placement.placer import find_placement
from stoker.core.policies.policy import POLICIES, BackfillMode
from stoker.core.preemption.admission import Admission
from stoker.core.queue.job_class import JobClass
from stoker.core.queue.scan import SizeTest, jobs_in_order
from stoker.core.reservation.conservative import ConservativeBackfill
from stoker.core.reservation.easy import BlockedJob, EasyBackfill
from stoker.core.reservation.reservation import Releases
from stoker.core.running.release_times import Release
from stoker.core.running.victims import is_stopping
from stoker.core.state.state import State
from stoker.core.structures import SortKey


class ReservationGuard:
    """Tells for one planning cycle which jobs a reservation keeps from starting."""

    def __init__(self, state: State, at: float, boot: float) -> None:
        self.state, self.at, self.boot = state, at, boot
        self._fits_when_idle = SizeTest(
            lambda group: idle_cluster(state.cluster).capacity_test(group.shape, capacity_test)
        )

    @cached_property
    def is_conservative(self) -> bool:
        """Whether a queue uses conservative backfill."""
        names = (name for name, _ in self.state.record.policies.values())
        modes = (POLICIES[name].backfill for name in names if name in POLICIES)
        return BackfillMode.CONSERVATIVE in modes

    @cached_property
    def _may_protect(self) -> bool:
        """Whether a pending job may be protected: starts and stop requests protect no other job.

        Without this, each of the jobs that are tried in a plan loops over 1,000 classes.
        """
        return not may_overtake(self.state) or self.state.pending.may_have_reservations

    def backfill(self, cluster: Cluster, releases: Releases) -> EasyBackfill:
        """Return the backfill of a scan: conservative for all queues if one of them uses it."""
        kind = ConservativeBackfill if self.is_conservative else EasyBackfill
        return kind(cluster, releases, self.boot, self.at - self.boot)

    def would_block(
        self, key: SortKey, job: Job, request: ResourceRequest, future: Cluster, victims: set[int]
    ) -> bool:
        """Whether a reservation keeps a job from devices that are free in the future capacity.

        `victims`: running jobs that are counted as gone, as those are that stop already.
        """
        nominated = self.state.memory.nominations
        if next(self.blocked_before(key, exclude=nominated), None) is None:
            return False
        if not victims and find_placement(future, request) is None:
            return False

        def releases() -> Iterator[Release]:
            for end, id in self.state.release_times:
                other = self.state.running[id]
                if id not in victims and not is_stopping(other) and other.placement is not None:
                    yield end, other.placement

        backfill, blocked = self.backfill(future, releases), self.blocked_before(key, nominated)
        return backfill.find_start(request, self.state.spec(job).limit, future, blocked) is None

    def blocked_before(self, end: SortKey, exclude: Container[int] = ()) -> Iterator[BlockedJob]:
        """Yield protected jobs before a position, which no quota and no strict order blocks.

        All of them for conservative backfill, otherwise the first of each class. `exclude`: jobs
        that need no reservation, since they have nominations.
        """
        state, done, admission = self.state, set[JobClass](), Admission(self.state)
        if not self._may_protect:
            return
        for key, job_class, id in jobs_in_order(
            state.pending, lambda _, each: each in done or not is_protected(state, each)
        ):
            if key >= end:
                return
            if not admission.admits(job_class):
                continue
            admission.on_blocked(job_class)
            if id in exclude:
                continue
            if not self.is_conservative:
                done.add(job_class)
            if self._fits_when_idle(job_class.size):  # otherwise the end of no job helps it
                job = state.jobs[id]
                request, spec = state.class_request(job, job_class), state.spec(job)
                mode = state.backfill_mode(job_class.queue)
                is_conservative = mode is BackfillMode.CONSERVATIVE
                occupation = None
                if state.cluster.advance_reservations:
                    occupation = state.occupation(job, self.at)
                yield BlockedJob(
                    key, request, spec.limit, is_conservative, spec.time_needed, occupation
                )


def is_protected(state: State, job_class: JobClass) -> bool:
    """Whether lower-ranked jobs must not delay the head of a class."""
    has_limit = job_class.key.time_limit is not None
    return state.policies.is_protected(job_class.queue, job_class.is_overdue, has_limit)


def may_overtake(state: State) -> bool:
    """Whether in all queues with pending jobs a blocked job delays no other, unless overdue."""
    overtaking = (BackfillMode.UNRESTRICTED, BackfillMode.OVERDUE_ONLY)
    return all(state.backfill_mode(queue) in overtaking for queue in state.pending.queues)
