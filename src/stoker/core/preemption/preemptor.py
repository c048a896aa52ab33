"""The preemption stage: which running jobs stop for which pending ones in one planning cycle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf

from stoker.core.elastic import rebalance as rounds
from stoker.core.elastic import sizes as elastic
from stoker.core.events import PreemptionCancelled, PreemptionRequested
from stoker.core.model.job import Job
from stoker.core.model.lifecycle import JobState
from stoker.core.model.resources import ResourceRequest
from stoker.core.placement.placer import find_placement
from stoker.core.policies.policy import BackfillMode
from stoker.core.policies.ranking import Threshold
from stoker.core.preemption.nominations import Nominations
from stoker.core.preemption.overcommit import memory_overcommitted
from stoker.core.preemption.reservation_guard import ReservationGuard, may_overtake
from stoker.core.preemption.threshold_query import ThresholdQuery
from stoker.core.preemption.victim_selection import (
    Eviction,
    PreemptorRequest,
    restore_victims,
    select_victims,
)
from stoker.core.queue.heads import PreemptorHeads, QueueHeads, ThresholdFor
from stoker.core.queue.job_class import JobClass
from stoker.core.queue.pending_queue import PendingQueue
from stoker.core.running.future_capacity import can_preempt, is_stopping
from stoker.core.running.release_times import Release
from stoker.core.state.reranking import any_preemption_possible
from stoker.core.state.state import State
from stoker.core.structures.amounts import SortKey

MAX_PREEMPTORS_PER_CYCLE = 16
"""Pending jobs that are tried as preemptors in one cycle: bounds its time."""


class PreemptionStage:
    """Preemption in one planning cycle."""

    def __init__(
        self,
        state: State,
        nominations: Nominations,
        guard: ReservationGuard,
        at: float,
        boot: float,
    ) -> None:
        self.state, self.nominations, self.guard = state, nominations, guard
        self.at, self.boot = at, boot
        self.thresholds = ThresholdQuery(state, nominations)
        self.exhausted: set[JobClass] = set()
        """Classes that no preemption helps in this cycle."""
        self._blocked_queues: set[str] = set()
        """Queues of strict order whose head no preemption helps."""
        self._counting_on_surplus: set[JobClass] = set()
        """Classes of which a job counts on future capacity that is not held for it."""

    def must_run_before_start(self, job: Job, key: SortKey) -> bool:
        """Whether a higher-ranked job may preempt, and this one could not be preempted for it."""
        first = self.state.pending.lower_bound()
        if first is None or first >= key:
            return False
        spec = self.state.specs[job.spec]
        saves_work = spec.training is not None or spec.early_signal is not None
        return (spec.non_preemptible or not saves_work) and any_preemption_possible(self.state)

    def run(
        self,
        has_reservation: bool,
        assigned: Iterator[PreemptionRequested | PreemptionCancelled] | None = None,
    ) -> Iterator[PreemptionRequested | PreemptionCancelled]:
        """Yield which jobs stop, or no longer; the caller applies each event before the next.

        1. A victim resumes if its preemptor is no longer pending or no longer outranks it.
        2. Of jobs that together need more than the memory of a GPU, the last one stops.
        3. For each possible preemptor, in queue order: if it fits in the future capacity, it only
           waits. Otherwise a minimal set of victims stops: elastic jobs that can do with fewer
           GPUs, then jobs of lower priority, then, if the policy allows it, of lower rank.
        4. Elastic jobs grow into what is free.

        `has_reservation`: jobs that fit may be pending because of a reservation. `assigned`: what
        the heterogeneous assignment has decided instead of 1 and 3.
        """
        state, at, boot = self.state, self.at, self.boot
        if not state.preemptible:
            return
        yield from self._cancel_obsolete() if assigned is None else assigned
        for job in memory_overcommitted(state):
            yield _stop_request(
                job, "its GPU has too little memory for all jobs that share it", at, boot
            )
        if assigned is None:
            yield from self._run(self._preemptor_heads(), None, has_reservation)
            state.thresholds.changed.clear()
        yield from self._grow_elastic()

    def run_before(
        self, key: SortKey, nodes: Sequence[str], has_reservation: bool
    ) -> Iterator[PreemptionRequested]:
        """Yield which jobs stop for those before a position, where its job would use these nodes.

        What is free there may be what a higher-ranked job misses beside its victims.
        """
        yield from self._run(self._preemptor_heads(nodes), key, has_reservation)

    def _run(
        self, heads: QueueHeads, end: SortKey | None, has_reservation: bool
    ) -> Iterator[PreemptionRequested]:
        state, nominations, tried = self.state, self.nominations, 0
        for key, job_class, id in self._until_no_victim(heads):
            if end is not None and key >= end:
                return
            if tried == MAX_PREEMPTORS_PER_CYCLE:
                return
            if id in nominations.counting_on_surplus:
                continue
            if id in state.memory.nominations or rounds.covered_by_rebalance(state, id):
                tried += 1
                continue
            is_strict = state.backfill_mode(job_class.queue) is BackfillMode.STRICT
            if is_strict and state.quotas.queue_reason(job_class):
                self._blocked_queues.add(job_class.queue)
            if job_class.queue in self._blocked_queues or state.quota_reason(job_class):
                self.exhausted.add(job_class)
                continue
            tried += 1
            future, before = nominations.future, nominations.future.changes.end
            yield from self._preempt_for(key, job_class, state.jobs[id], has_reservation)
            if nominations.future is not future or future.changes.end != before:
                heads.invalidate()

    def _preempt_for(
        self, key: SortKey, job_class: JobClass, job: Job, has_reservation: bool
    ) -> Iterator[PreemptionRequested]:
        state, nominations, future = self.state, self.nominations, self.nominations.future
        request = state.class_request(job, job_class)
        may_be_blocked = self.guard.may_be_blocked(key)
        futile = may_be_blocked and not self._would_start(key, request, job)
        is_strict = state.backfill_mode(job_class.queue) is BackfillMode.STRICT
        placement = None
        if not futile:
            # In strict order, a job may be pending although it fits.
            placement = nominations.find_placement(key, request, has_reservation or is_strict)
        if placement is None and not futile:
            preemptor = PreemptorRequest(state, request, job_class, key[1])
            evictions = select_victims(self.thresholds, preemptor, self.at)
            if may_be_blocked and evictions:
                futile = not self._would_start(key, request, job, evictions)
            if futile:
                restore_victims(future, evictions)
            elif evictions:
                yield from self._requests_for(evictions, job)
                placement = find_placement(future, request)
        if placement is not None:
            if not nominations.nominate(key, job.id, placement):
                self._counting_on_surplus.add(job_class)
            state.pending.mark_unchecked(job_class)
            return
        if is_strict:
            self._blocked_queues.add(job_class.queue)
        self.exhausted.add(job_class)
        if futile:  # victims may count for it once no reservation blocks it
            state.pending.mark_unchecked(job_class)
        elif job_class not in self._counting_on_surplus and job_class.request is not None:
            state.pending.mark_checked(job_class)  # in strict order, the next request differs

    def _would_start(
        self,
        key: SortKey,
        request: ResourceRequest,
        job: Job,
        evictions: Sequence[Eviction] = (),
    ) -> bool:
        """Whether no reservation would block a job with free devices, were the victims gone."""
        future = self.nominations.future
        if not evictions and find_placement(future, request) is None:
            return True
        victims = {eviction.victim.id for eviction in evictions}
        return self.guard.would_start(key, job, request, future, partial(self._releases, victims))

    def _releases(self, victims: set[int]) -> Iterator[Release]:
        """Yield the releases of running jobs that are not stopping."""
        running = self.state.running
        for end, id in self.state.release_times:
            placement = running[id].placement
            if placement is not None and id not in victims and not is_stopping(running[id]):
                yield end, placement

    def _cancel_obsolete(self) -> Iterator[PreemptionCancelled]:
        """Let victims resume whose preemptor does not need them any more."""
        state = self.state
        obsolete = [job for _, job in sorted(state.stopping.items()) if is_obsolete(state, job)]
        for job in obsolete:
            yield PreemptionCancelled(at=self.at, job=job.id, attempt=job.attempt)
        if obsolete:
            self.nominations.refresh()
            for job_class in self.exhausted:
                if job_class.entries:
                    state.pending.mark_unchecked(job_class)
            self.exhausted.clear()

    def _requests_for(
        self, evictions: list[Eviction], preemptor: Job
    ) -> Iterator[PreemptionRequested]:
        reason = f"job {preemptor.label} needs its resources"
        for eviction in evictions:
            gpus = elastic.gpu_count(eviction.keeps) if eviction.keeps is not None else None
            yield _stop_request(eviction.victim, reason, self.at, self.boot, preemptor.id, gpus)

    def _grow_elastic(self) -> Iterator[PreemptionRequested]:
        """Yield elastic jobs that resume with more GPUs."""
        state, at, boot = self.state, self.at, self.boot
        if state.memory.elastic_targets:
            yield from rounds.grow(state, self.nominations.unnominated_ledger(), at, boot)
        if len(state.pending):
            return
        jobs = [
            job
            for job in state.running_elastic.values()
            if can_preempt(job) and not rounds.is_rebalanced(state, job)
        ]
        if jobs:
            future = self.nominations.future
            for job, gpus, reason in elastic.growth_candidates(state, future, jobs, at):
                yield _stop_request(job, reason, at, boot, gpus=gpus)

    def _preemptor_heads(self, nodes: Sequence[str] | None = None) -> QueueHeads:
        """Return the pending jobs that may preempt a running one; given nodes, on those."""
        state = self.state
        if not (state.running_elastic or any_preemption_possible(state)):
            return QueueHeads(PendingQueue(), self.exhausted)
        if state.running_elastic or not may_overtake(state):
            return QueueHeads(state.pending, self.exhausted)
        if nodes is not None:
            on_nodes = self._with_hysteresis(partial(self.thresholds.threshold_on, nodes))
            return PreemptorHeads(state.pending, on_nodes, exhausted=self.exhausted)
        return PreemptorHeads(
            state.pending,
            self._with_hysteresis(self.thresholds.changed_threshold),
            self._with_hysteresis(self.thresholds.threshold),
            self.exhausted,
        )

    def _with_hysteresis(self, threshold_for: ThresholdFor) -> ThresholdFor:
        min_hysteresis = self.state.policies.min_hysteresis

        def threshold(gpu_bucket: int) -> Threshold:
            priority, rank = threshold_for(gpu_bucket)
            return priority, rank - min_hysteresis

        return threshold

    def _until_no_victim(self, heads: QueueHeads) -> Iterator[tuple[SortKey, JobClass, int]]:
        """Yield pending jobs while they outrank the first victim."""
        state = self.state
        first = state.victims.first_victim()
        if first is None and not state.running_elastic:
            return
        end = first[:2] if first is not None and not state.running_elastic else (inf, inf)
        for key, job_class, id in heads:
            if (key[0], key[1] + state.policies.min_hysteresis) >= end:
                return
            yield key, job_class, id


def _stop_request(
    job: Job, why: str, at: float, boot: float, by: int | None = None, gpus: int | None = None
) -> PreemptionRequested:
    return PreemptionRequested(
        at=at, job=job.id, attempt=job.attempt, why=why, boot=boot, by=by, gpus=gpus
    )


def is_obsolete(state: State, job: Job) -> bool:
    """Whether the preemptor of a stopping job is no longer pending or no longer outranks it."""
    stop = job.progress.stop if job.progress is not None else None
    if stop is None or stop.preemptor is None or job.state is not JobState.RUNNING:
        return False
    if job.progress is None or not job.progress.accepts_stop:
        return False
    if stop.preemptor not in state.pending:
        return True
    ahead = state.jobs[stop.preemptor].priority - job.priority
    if ahead or stop.resize_to is not None:
        return ahead < 0
    if not state.preempts(job):
        return True
    return state.victims.rank_of(job.id) <= state.pending.class_of[stop.preemptor].indexed_key[1]
