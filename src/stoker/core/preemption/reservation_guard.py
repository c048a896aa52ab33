"""Which pending jobs are protected by reservations, and which jobs those would block.

A blocked job is protected if its queue uses backfill with reservations or strict order; under
`planner`, if it is overdue or has a time limit. Lower-ranked jobs must not delay it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import cached_property, partial
from heapq import merge
from math import inf
from operator import itemgetter

from stoker.core.cluster.cluster import Cluster
from stoker.core.model.job import Job
from stoker.core.model.resources import ResourceRequest
from stoker.core.policies.catalog import POLICIES
from stoker.core.policies.policy import BackfillMode
from stoker.core.queue.job_class import JobClass, ShapeGroup
from stoker.core.queue.scan import heads_between, jobs_in_order
from stoker.core.reservation.conservative import ConservativeBackfill
from stoker.core.reservation.easy import BlockedJob, EasyBackfill
from stoker.core.reservation.reservation import Releases
from stoker.core.state.state import State
from stoker.core.structures.amounts import Amounts, CapacityTest, SortKey


class ReservationGuard:
    """Tells for one planning cycle which jobs a reservation keeps from starting."""

    def __init__(self, state: State, at: float, boot: float) -> None:
        self.state, self.at, self.boot = state, at, boot

    @cached_property
    def is_conservative(self) -> bool:
        """Whether a queue uses conservative backfill."""
        names = (name for name, _ in self.state.record.policies.values())
        modes = (POLICIES[name].backfill for name in names if name in POLICIES)
        return BackfillMode.CONSERVATIVE in modes

    def backfill(self, cluster: Cluster, releases: Releases) -> EasyBackfill:
        """Return the backfill of a scan: conservative for all queues if one of them uses it."""
        kind = ConservativeBackfill if self.is_conservative else EasyBackfill
        return kind(cluster, releases, self.boot, self.at - self.boot)

    def may_be_blocked(self, key: SortKey) -> bool:
        """Whether a reservation of a higher-ranked job could block a job at this position."""
        return self.any_protected and next(self.protected_before(key), None) is not None

    @cached_property
    def any_protected(self) -> bool:
        """Whether a pending job may be protected: no loop over 1,000 classes."""
        return not may_overtake(self.state) or self.state.pending.may_have_reservations

    def would_start(
        self,
        key: SortKey,
        job: Job,
        request: ResourceRequest,
        ledger: Cluster,
        releases: Releases,
    ) -> bool:
        """Whether a job could start, were this the ledger and were these the only running jobs."""
        blocked = self.protected_before(key)
        if self.is_conservative:
            blocked = self.blocked_ahead(key, exclude=self.state.memory.nominations)
        backfill = self.backfill(ledger, releases)
        limit = self.state.spec(job).limit
        return backfill.try_start(request, limit, ledger, blocked) is not None

    def protected_before(self, end: SortKey) -> Iterator[BlockedJob]:
        """Yield, of each class, the first protected job before a position without a nomination."""
        state, strict_queues = self.state, set[str]()
        may_be = partial(may_be_protected, state)
        heads = heads_between(state.pending, state.jobs, may_be, end)
        first_jobs = ((job_class.indexed_key, job, job_class) for job, job_class in heads)
        for key, job, job_class in merge(
            first_jobs, self._followers_of_nominated(end), key=itemgetter(0)
        ):
            if (
                not self._may_be_next(job_class, strict_queues)
                or job.id in state.memory.nominations
            ):
                continue
            if is_protected(state, job_class):
                yield blocked_job(state, key, job, job_class)

    def _followers_of_nominated(self, end: SortKey) -> list[tuple[SortKey, Job, JobClass]]:
        """Return the first job without a nomination of each class with a nominated head."""
        state, pending = self.state, self.state.pending
        nominated = [id for id in state.memory.nominations if id in pending]
        followers = []
        for job_class in dict.fromkeys(pending.class_of[id] for id in nominated):
            for key in job_class.sort_keys():
                job = state.jobs.get(int(key[-1]))
                if job is None or job.id in state.memory.nominations or job.id not in pending:
                    continue
                if pending.sort_key(job) == key:
                    followers.append((key, job, job_class))
                    break
        return sorted((each for each in followers if each[0] < end), key=itemgetter(0))

    def blocked_ahead(self, end: SortKey, exclude: Container[int] = ()) -> Iterator[BlockedJob]:
        """Yield all protected jobs before a position, for conservative backfill."""
        state, strict_queues = self.state, set[str]()
        for key, job_class, id in jobs_in_order(state.pending):
            if key >= end:
                return
            if not self._may_be_next(job_class, strict_queues) or id in exclude:
                continue
            if is_protected(state, job_class):
                yield blocked_job(state, key, state.jobs[id], job_class)

    def _may_be_next(self, job_class: JobClass, strict_queues: set[str]) -> bool:
        """Whether neither a quota nor an earlier job of its strict queue blocks a job.

        `strict_queues`: strict queues of which a job was seen; jobs are asked for in queue order.
        """
        is_blocked = bool(self.state.quota_reason(job_class))
        if job_class.request is None:
            if job_class.queue in strict_queues:
                return False
            if not is_blocked or self.state.quotas.queue_reason(job_class):
                strict_queues.add(job_class.queue)
        return not is_blocked


def blocked_job(state: State, key: SortKey, job: Job, job_class: JobClass) -> BlockedJob:
    """Return what backfill needs to know of a blocked job."""
    return BlockedJob(
        key,
        state.class_request(job, job_class),
        state.specs[job.spec].limit,
        state.backfill_mode(job_class.queue) is BackfillMode.CONSERVATIVE,
        state.specs[job.spec].time_needed,
    )


def is_protected(state: State, job_class: JobClass) -> bool:
    """Whether lower-ranked jobs must not delay the head of a class."""
    has_limit = job_class.key.time_limit is not None
    return state.policies.is_protected(job_class.queue, job_class.is_overdue, has_limit)


def may_be_protected(state: State, group: ShapeGroup) -> CapacityTest:
    """Return the test whether jobs of a group that are not overdue may be protected."""
    gpus, mode = state.gpu_quota_left(group.queue), state.backfill_mode(group.queue)
    if gpus is None or gpus < 0 or mode is BackfillMode.UNRESTRICTED:
        return fits_never
    needs_limit = mode is BackfillMode.OVERDUE_ONLY
    max_gpus = gpus if group.shape.gpus is not None else inf
    return lambda amounts: (amounts[-1] < inf or not needs_limit) and amounts[0] <= max_gpus


def may_overtake(state: State) -> bool:
    """Whether in all queues with pending jobs a blocked job delays no other, unless overdue."""
    overtaking = (BackfillMode.UNRESTRICTED, BackfillMode.OVERDUE_ONLY)
    return all(state.backfill_mode(queue) in overtaking for queue in state.pending.queues)


def fits_never(_: Amounts) -> bool:
    """Return False for any amounts."""
    return False
