"""The preemption stage: which running jobs stop for which pending ones in one planning cycle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf

from stoker.core.elastic import rebalance as rounds
from stoker.core.elastic import sizes as elastic
from stoker.core.events import PreemptionCancelled, PreemptionRequested
from stoker.core.model.job import Job
from stoker.core.model.lifecycle import JobState
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.placement.capacity import capacity_test
from stoker.core.placement.placer import find_placement
from stoker.core.policies.policy import BackfillMode
from stoker.core.policies.ranking import OVERDUE_RANK, Threshold
from stoker.core.preemption.nominations import Nominations
from stoker.core.preemption.reservation_guard import ReservationGuard, may_overtake
from stoker.core.preemption.threshold_query import ThresholdQuery
from stoker.core.preemption.victim_selection import (
    Eviction,
    PreemptorRequest,
    restore_victims,
    select_victims,
)
from stoker.core.queue.job_class import JobClass, ShapeGroup
from stoker.core.queue.scan import jobs_in_order
from stoker.core.running.release_times import Release
from stoker.core.running.victims import can_preempt, is_stopping
from stoker.core.state.reranking import any_preemption_possible
from stoker.core.state.state import State
from stoker.core.state.victim_ranks import first_victim, update_victim
from stoker.core.structures.amounts import CapacityTest, SortKey

MAX_PREEMPTORS_PER_CYCLE = 16
"""Pending jobs that are tried as preemptors in one pass over the queue: bounds its time."""


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
        self.thresholds = ThresholdQuery(state, nominations, at)
        self.exhausted: set[JobClass] = set()
        """Classes that no preemption helps in this cycle."""
        self._blocked_queues: set[str] = set()
        """Queues of strict order whose head no preemption helps."""
        self._thresholds: dict[int, Threshold] = {}
        """Thresholds by GPUs."""
        self._future_tests: dict[ShapeGroup, CapacityTest] = {}
        """Whether amounts fit into the future capacity, by group."""

    def must_run_before_start(self, job: Job, key: SortKey) -> bool:
        """Whether a higher-ranked job may preempt, and this one could not be preempted for it."""
        first = self.state.pending.lower_bound()
        if first is None or first >= key:
            return False
        spec = self.state.specs[job.spec]
        saves_work = spec.training is not None or spec.early_signal is not None
        is_final = spec.non_preemptible or not saves_work
        return is_final and any_preemption_possible(self.state, self.at)

    def run(
        self, assigned: Iterator[PreemptionRequested | PreemptionCancelled] | None = None
    ) -> Iterator[PreemptionRequested | PreemptionCancelled]:
        """Yield which jobs stop, or no longer; the caller applies each event before the next.

        1. A victim resumes if its preemptor is no longer pending or no longer outranks it.
        2. Of jobs that together need more than the memory of a GPU, the last one stops.
        3. For each possible preemptor, in queue order: if it fits in the future capacity, it only
           waits. Otherwise a minimal set of victims stops: elastic jobs that can do with fewer
           GPUs, then jobs of lower priority, then, if the policy allows it, those of equal
           priority that it outranks.
        4. Elastic jobs grow into what is free.

        `assigned`: what the heterogeneous assignment has decided instead of 1 and 3.
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
            yield from self._run(None, None)
        if state.memory.elastic_targets:
            yield from rounds.grow(state, self.nominations.unnominated_ledger(), at, boot)

    def run_before(self, key: SortKey, nodes: Sequence[str]) -> Iterator[PreemptionRequested]:
        """Yield which jobs stop for those before a position, where its job would use these nodes.

        What is free there may be what a higher-ranked job misses beside its victims.
        """
        yield from self._run(nodes, key)

    def _run(
        self, nodes: Sequence[str] | None, end: SortKey | None
    ) -> Iterator[PreemptionRequested]:
        state, nominations, tried = self.state, self.nominations, 0
        self._forget_thresholds()
        for key, job_class, id in self._possible_preemptors(nodes):
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
            before = len(state.stopping), nominations.revocations
            yield from self._preempt_for(key, job_class, state.jobs[id])
            if before != (len(state.stopping), nominations.revocations):
                self._forget_thresholds()  # otherwise, they can only be too high

    def _forget_thresholds(self) -> None:
        self._thresholds.clear()
        self._future_tests.clear()

    def _preempt_for(
        self, key: SortKey, job_class: JobClass, job: Job
    ) -> Iterator[PreemptionRequested]:
        state, nominations, future = self.state, self.nominations, self.nominations.future
        request = state.startable_request(job, job_class, self.at)
        may_be_blocked = self.guard.may_be_blocked(key)
        futile = may_be_blocked and not self._would_start(key, request, job)
        is_strict = state.backfill_mode(job_class.queue) is BackfillMode.STRICT
        placement, evictions = None, list[Eviction]()
        if not futile:
            placement = nominations.find_placement(key, request)
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
            if evictions or job.id in nominations.preemptors:
                nominations.nominate(key, job.id, placement)
            else:
                nominations.count_on_surplus(job.id, placement)
            return
        if is_strict:
            self._blocked_queues.add(job_class.queue)
        self.exhausted.add(job_class)

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
        stopping = [job for _, job in sorted(state.stopping.items())]
        obsolete = [job for job in stopping if is_obsolete(state, job, self.at)]
        for job in obsolete:
            yield PreemptionCancelled(at=self.at, job=job.id, attempt=job.attempt)
        if obsolete:
            self.nominations.refresh()
            self.exhausted.clear()

    def _requests_for(
        self, evictions: list[Eviction], preemptor: Job
    ) -> Iterator[PreemptionRequested]:
        reason = f"job {preemptor.label} needs its resources"
        for eviction in evictions:
            gpus = elastic.gpu_count(eviction.keeps) if eviction.keeps is not None else None
            yield _stop_request(eviction.victim, reason, self.at, self.boot, preemptor.id, gpus)

    def _possible_preemptors(
        self, nodes: Sequence[str] | None
    ) -> Iterator[tuple[SortKey, JobClass, int]]:
        """Yield jobs in order that may preempt, given nodes: on those, or fit once others stop.

        It ends at the first job that does not outrank the first victim.
        """
        state, end = self.state, (inf, inf)
        if not state.running_elastic:
            victim = first_victim(state, self.at)
            if victim is None:
                return
            end = (victim[0], victim[1] - state.policies.min_hysteresis)
        is_skipped: Callable[[SortKey, JobClass], bool] = partial(self._is_skipped, nodes)
        if state.running_elastic or not may_overtake(state):
            is_skipped = self._is_exhausted
        for key, job_class, id in jobs_in_order(state.pending, is_skipped):
            if key[:2] >= end:
                return
            yield key, job_class, id

    def _is_exhausted(self, _key: SortKey, job_class: JobClass) -> bool:
        return job_class in self.exhausted

    def _is_skipped(self, nodes: Sequence[str] | None, key: SortKey, job_class: JobClass) -> bool:
        """Whether no job of a class from this position on can preempt or fits once others stop."""
        if job_class in self.exhausted:
            return True
        if key[1] <= OVERDUE_RANK:
            return False
        need = job_class.gpu_bucket
        threshold = self._thresholds.get(need)
        if threshold is None:
            of_nodes = self.thresholds
            found = (
                of_nodes.threshold(need) if nodes is None else of_nodes.threshold_on(nodes, need)
            )
            threshold = found[0], found[1] - self.state.policies.min_hysteresis
            self._thresholds[need] = threshold
        return key[:2] >= threshold and not self._may_fit_future(job_class)

    def _may_fit_future(self, job_class: JobClass) -> bool:
        """Whether a job may fit once others have stopped; then it claims what they free."""
        future, size = self.nominations.future, job_class.size
        if size.group is None or not future.nodes:
            return size.group is None
        test = self._future_tests.get(size.group)
        if test is None:
            test = self._future_tests[size.group] = capacity_test(future, size.group.shape)
        return test(size.amounts)


def _stop_request(
    job: Job, why: str, at: float, boot: float, by: int | None = None, gpus: int | None = None
) -> PreemptionRequested:
    return PreemptionRequested(
        at=at, job=job.id, attempt=job.attempt, why=why, boot=boot, by=by, gpus=gpus
    )


def is_obsolete(state: State, job: Job, at: float) -> bool:
    """Whether the preemptor of a stopping job is no longer pending or no longer outranks it."""
    stop = job.progress.stop
    if stop is None or stop.preemptor is None or job.state is not JobState.RUNNING:
        return False
    if not job.progress.accepts_stop:
        return False
    if stop.preemptor not in state.pending:
        return True
    ahead = state.jobs[stop.preemptor].priority - job.priority
    if ahead or stop.resize_to is not None:
        return ahead < 0
    if not state.preempts(job):
        return True
    update_victim(state, job.id, at)
    preemptor = state.pending.sort_key(state.jobs[stop.preemptor])
    return state.victims.key_of(job.id)[1] <= preemptor[1]


def memory_overcommitted(state: State) -> list[Job]:
    """Return one job to stop for each GPU whose memory is not enough for the jobs that share it."""
    victims: dict[int, Job] = {}
    for (node, name), jobs in _jobs_by_gpu(state).items():
        device = state.cluster.nodes[node].by_name[GPU, name]
        is_short = device.memory_free - device.foreign_memory < 0 and not device.removed
        if device.sharers < 2 or not is_short:
            continue
        if any(job.progress.stop is not None for job in jobs):
            continue
        candidates = [
            job
            for job in jobs
            if job.id in state.preemptible and job.id not in victims and can_preempt(job)
        ]
        if candidates:
            last = max(candidates, key=lambda job: (-job.priority, job.started_at or 0.0))
            victims[last.id] = last
    return list(victims.values())


def _jobs_by_gpu(state: State) -> dict[tuple[str, str], list[Job]]:
    """Return the jobs that share GPUs by memory, by node and name of the GPU."""
    jobs: dict[tuple[str, str], list[Job]] = {}
    for _, job in sorted(state.sharing.items()):
        for part in job.placement.parts if job.placement is not None else ():
            for name in part.names(GPU):
                jobs.setdefault((part.node, name), []).append(job)
    return jobs
