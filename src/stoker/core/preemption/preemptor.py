"""The preemption stage: which running jobs stop for which pending ones in one planning cycle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from stoker.core.cluster.overlay import Overlay
from stoker.core.elastic import rebalance
from stoker.core.events import PreemptionCancelled, PreemptionRequested
from stoker.core.model.job import Job, JobState
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.placement.capacity import capacity_test
from stoker.core.placement.placer import find_placement
from stoker.core.policies.ranking import OVERDUE_RANK, Threshold
from stoker.core.preemption.admission import Admission
from stoker.core.preemption.candidate_nodes import best_threshold
from stoker.core.preemption.nominations import Nominations
from stoker.core.preemption.reservation_guard import ReservationGuard, may_overtake
from stoker.core.preemption.victim_selection import Eviction, VictimSelector
from stoker.core.queue.job_class import JobClass
from stoker.core.queue.scan import SizeTest, jobs_in_order
from stoker.core.running.victims import can_preempt
from stoker.core.state.reranking import first_victim, may_preempt, update_victim
from stoker.core.state.state import State
from stoker.core.structures import AFTER_ALL, SortKey

MAX_PREEMPTORS_PER_PASS = 16
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
        self.exhausted: set[JobClass] = set()
        """Classes that no preemption helps in this cycle."""
        self._admission = Admission(state)
        self._thresholds: dict[int, Threshold] = {}
        """Thresholds by GPUs."""
        self._may_fit_future = SizeTest(
            lambda group: capacity_test(nominations.future, group.shape)
        )

    def preempt_for_jobs_ahead(
        self, key: SortKey, job: Job, request: ResourceRequest
    ) -> Iterator[PreemptionRequested]:
        """Yield victims of higher-ranked jobs, if a job that may start could not be preempted.

        What is free where it would start may be what such a job misses beside its victims.
        """
        first, spec = self.state.pending.lower_bound(), self.state.specs[job.spec]
        saves_work = spec.training is not None or spec.early_signal is not None
        if first is None or first >= key or (saves_work and not spec.non_preemptible):
            return
        if may_preempt(self.state, first, first_victim(self.state, self.at)):
            placement = find_placement(self.nominations.ledger_for(key), request)
            if placement is not None:
                yield from self._run(key, [part.node for part in placement.parts])

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
            reason = "its GPU has too little memory for all jobs that share it"
            yield self._stop_request(job, reason)
        if assigned is None:
            yield from self._run(AFTER_ALL, None)
        if state.memory.elastic_targets:
            ledger = Overlay(self.nominations.ledger_for(AFTER_ALL))
            yield from rebalance.grow(state, ledger, at, boot)

    def _run(self, end: SortKey, nodes: Sequence[str] | None) -> Iterator[PreemptionRequested]:
        state, nominations, tried = self.state, self.nominations, 0
        self._forget_thresholds()
        for key, job_class, id in self._possible_preemptors(nodes):
            if key >= end or tried == MAX_PREEMPTORS_PER_PASS:
                return
            if id in nominations.counting_on_surplus:
                continue
            if id in state.memory.nominations or rebalance.covered_by_rebalance(state, id):
                tried += 1
                continue
            if not self._admission.admits(job_class):
                self.exhausted.add(job_class)
                continue
            tried += 1
            before = len(state.stopping), nominations.revocations
            yield from self._preempt_for(key, job_class, state.jobs[id])
            if before != (len(state.stopping), nominations.revocations):
                self._forget_thresholds()  # otherwise, they can only be too high

    def _forget_thresholds(self) -> None:
        self._thresholds.clear()
        self._may_fit_future.forget()

    def _preempt_for(
        self, key: SortKey, job_class: JobClass, job: Job
    ) -> Iterator[PreemptionRequested]:
        state, nominations, future = self.state, self.nominations, self.nominations.future
        request = state.startable_request(job, job_class, self.at)
        placement, evictions = None, list[Eviction]()
        if not self.guard.would_block(key, job, request, future, set()):
            placement = nominations.find_placement(key, request)
            if placement is None:
                selector = VictimSelector(state, future, request, job_class, key[1], self.at)
                evictions = selector.select()
                victims = {eviction.victim.id for eviction in evictions}
                if evictions and self.guard.would_block(key, job, request, future, victims):
                    selector.restore(evictions)
                    evictions = []
                for eviction in evictions:
                    yield self._stop_request(
                        eviction.victim, f"job {job.label} needs its resources", job.id,
                        eviction.resize_to,
                    )  # fmt: skip
                placement = find_placement(future, request) if evictions else None
        if placement is not None:
            nominations.claim(key, job.id, placement, bool(evictions))
        else:
            self._admission.on_blocked(job_class)
            self.exhausted.add(job_class)

    def _cancel_obsolete(self) -> Iterator[PreemptionCancelled]:
        """Let victims resume whose preemptor does not need them any more."""
        state = self.state
        obsolete = sorted(obsolete_victims(state, self.at))
        for id in obsolete:
            yield PreemptionCancelled(at=self.at, job=id, attempt=state.jobs[id].attempt)
        if obsolete:
            self.nominations.refresh()
            self.exhausted.clear()

    def _stop_request(
        self, job: Job, reason: str, preemptor: int | None = None, gpus: int | None = None
    ) -> PreemptionRequested:
        return PreemptionRequested(
            at=self.at, job=job.id, attempt=job.attempt, why=reason, boot=self.boot, by=preemptor,
            gpus=gpus,
        )  # fmt: skip

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
        all_may_help = bool(state.running_elastic) or not may_overtake(state)

        def is_skipped(key: SortKey, job_class: JobClass) -> bool:
            is_exhausted = job_class in self.exhausted
            return is_exhausted or not (all_may_help or self._may_help(nodes, key, job_class))

        for key, job_class, id in jobs_in_order(state.pending, is_skipped):
            if key[:2] >= end:
                return
            yield key, job_class, id

    def _may_help(self, nodes: Sequence[str] | None, key: SortKey, job_class: JobClass) -> bool:
        """Whether a job of a class from this position on may preempt or fits once others stop."""
        if key[1] <= OVERDUE_RANK:
            return True
        need = job_class.gpu_bucket
        threshold = self._thresholds.get(need)
        if threshold is None:
            priority, rank = best_threshold(self.state, need, self.at, nodes)
            threshold = priority, rank - self.state.policies.min_hysteresis
            self._thresholds[need] = threshold
        if key[:2] < threshold or job_class.size.group is None:
            return True
        return bool(self.nominations.future.nodes) and self._may_fit_future(job_class.size)


def obsolete_victims(state: State, at: float) -> Iterator[int]:
    """Yield the stopping jobs whose preemptor is no longer pending or no longer outranks them."""
    keys: dict[int, SortKey | None] = {}
    for job in state.stopping.values():
        stop = job.progress.stop
        if stop is None or stop.preemptor is None or not job.progress.accepts_stop:
            continue
        if stop.preemptor not in keys:  # many jobs stop for the same one
            is_pending = stop.preemptor in state.pending
            preemptor = state.jobs[stop.preemptor] if is_pending else None
            keys[stop.preemptor] = state.pending.sort_key(preemptor) if preemptor else None
        key = keys[stop.preemptor]
        if job.state is JobState.RUNNING and not (key and _outranks(state, key, job, at)):
            yield job.id


def _outranks(state: State, key: SortKey, victim: Job, at: float) -> bool:
    """Whether a preemptor with this sort key still outranks its victim."""
    ahead, stop = -key[0] - victim.priority, victim.progress.stop
    if ahead or (stop is not None and stop.resize_to is not None):
        return ahead >= 0
    if not state.preempts(victim):
        return False
    update_victim(state, victim.id, at)
    return key[1] < state.victims.key_of(victim.id)[1]


def memory_overcommitted(state: State) -> list[Job]:
    """Return one job to stop for each GPU whose memory is not enough for the jobs that share it."""
    victims: dict[int, Job] = {}
    jobs_by_gpu: dict[tuple[str, str], list[Job]] = {}
    for _, job in sorted(state.sharing.items()):
        for part in job.parts:
            for name in part.names(GPU):
                jobs_by_gpu.setdefault((part.node, name), []).append(job)
    for (node, name), jobs in jobs_by_gpu.items():
        device = state.cluster.nodes[node].by_name[GPU, name]
        is_short = device.memory_free < device.foreign_memory and not device.removed
        if device.sharers < 2 or not is_short or any(job.progress.stop for job in jobs):
            continue
        others = (job for job in jobs if job.id in state.preemptible and job.id not in victims)
        if candidates := list(filter(can_preempt, others)):
            last = max(candidates, key=lambda job: (-job.priority, job.started_at or 0.0))
            victims[last.id] = last
    return list(victims.values())
