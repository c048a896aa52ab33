"""Heterogeneous assignment: a target placement for every pending and movable job (after Gavel).

Where measured speed depends on the GPU model or on co-located jobs, it matters which job gets which
GPU. All pending and movable jobs are therefore placed together, in order, in the future capacity:
running jobs as if they could stop at once, but ahead by the policy's hysteresis and with a
preference for their current placement. The stages of the planner carry out as much as possible: a
pending job starts when its target is free, and a running job with another target, or none, is
asked to stop. That takes a while, so the next plan decides again, with a preference for what is
nominated.

A job goes where it is cheapest. For the mean completion time that is its own time and the delay of
later jobs, which miss the GPU that it holds: without later jobs, where it is fastest; with many, a
job that is hardly faster on a fast GPU leaves it to one that is. For the makespan it is the price
of the GPU-seconds alone; when all jobs can run, each goes where it ends first.

Every running job is considered, so this is for small clusters; on larger ones `request_variants`
prefers fast models, and idle GPUs to sharing that does not pay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from math import inf, log2

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.node import Device
from stoker.core.elastic import sizes
from stoker.core.elastic.allocation import RESTART_PAYBACK
from stoker.core.elastic.rebalance import MAX_PENDING_CONSIDERED
from stoker.core.events import PreemptionCancelled, PreemptionRequested
from stoker.core.heterogeneous.colocation import (
    MIN_GAIN,
    GpuKey,
    colocation_gain,
    devices_of,
)
from stoker.core.heterogeneous.entry import AssignmentEntry, exclusive_on, only_on
from stoker.core.heterogeneous.prices import equilibrium_prices
from stoker.core.heterogeneous.throughput import ThroughputModel
from stoker.core.measurement.estimator import NO_GPU, hardware
from stoker.core.model.job import Job, JobState, StopRequest
from stoker.core.model.resources import GPU, Placement, ResourceRequest
from stoker.core.placement.placer import find_placement
from stoker.core.policies.policy import BackfillMode, DurationSource, Policy
from stoker.core.policies.ranking import hysteresis_of, rank
from stoker.core.queue.job_class import JobClass
from stoker.core.queue.scan import jobs_in_order
from stoker.core.state.state import REBALANCE_SECONDS, State
from stoker.core.structures import SortKey

MAX_ASSIGNED = 512
"""Running jobs and nodes, at most, for an assignment, which places every running job again."""


def applicable_policy(state: State) -> Policy | None:
    """Return the policy of an assignment, or None if each job is placed by itself."""
    if not state.distinguishes_models:
        return None
    if max(len(state.running), len(state.cluster.nodes)) > MAX_ASSIGNED:
        return None
    policy = state.policy_of("default")
    if policy.durations is not DurationSource.MEASURED:
        return None
    if not (policy.preempts or policy.longest_first):
        return None
    return policy if all(state.policy_of(name) == policy for name in state.record.queues) else None


class Assignment:
    """Targets of all pending and movable jobs at one time.

    Derived from: the state and its nominations; made for one plan.
    Invariant: all targets are allocated in the future capacity, and no other devices of movable
    jobs and preemptors are.
    Cost: one entry per running job and for the first 256 pending ones; beyond these, one per job
    that fits and per class.
    """

    def __init__(self, state: State, policy: Policy, future: Cluster, now: float) -> None:
        """`future`: the ledger after all stopping jobs are gone, without nominated devices."""
        self.state, self.policy, self.future, self.now = state, policy, future, now
        self.throughput = ThroughputModel(state, now)
        self.entries: dict[int, AssignmentEntry] = {}
        self._full_requests: set[ResourceRequest] = set()
        """Requests that no longer fit: capacity only shrinks during an assignment. Without this the
        static Gavel trace takes 2.2 times as long."""
        self._blocked_queues: set[str] = set()
        """Strict queues with a job that does not fit."""
        for placement in state.memory.nominations.values():
            future.release(placement)
        for job in sorted(state.running.values(), key=lambda job: (job.started_at or 0.0, job.id)):
            self._add_running(job)
        exhausted: set[JobClass] = set()
        pending = jobs_in_order(state.pending, lambda _, job_class: job_class in exhausted)
        for key, job_class, id in islice(pending, MAX_PENDING_CONSIDERED):
            self._add_pending(key, job_class, id)
        unassigned = self._assign_in_order()
        for key, job_class, id in pending:
            entry = self._add_pending(key, job_class, id)
            if entry is None or not self._assign(entry, 0.0):
                exhausted.add(job_class)
        self._share(unassigned)

    # -- entries ------------------------------------------------------------------------

    def _add_running(self, job: Job) -> None:
        """Add an entry for a job that can move, and release its devices."""
        state, placement, progress = self.state, job.placement, job.progress
        stop = progress.stop
        if placement is None or job.state is not JobState.RUNNING:
            return
        if job.id not in state.preemptible or (stop and not _may_resume(state, job, stop)):
            return
        request = state.effective_request(job, state.spec(job))
        own_nodes = {part.node for part in placement.parts}
        request = state.within_horizon(job, request, self.now, keep=own_nodes)
        if job.id in state.running_elastic:
            gpus = hardware(state.cluster, placement)[0]
            request = sizes.resized(request, gpus, sizes.gpus_per_node(state))
        runtime = self.throughput.runtime_of(job, request)
        if hardware(state.cluster, placement)[1] not in runtime.seconds:
            return
        if stop is None:
            self.future.release(placement)
            if not self.future.is_free(placement):  # its devices are out of service: it continues
                self.future.allocate(placement)
                return
        effective_rank = -inf  # not preempted by jobs of equal priority
        started = job.started_at if job.started_at is not None else self.now
        if progress.accepts_stop and self.now - started >= self.policy.quantum:
            effective_rank = rank(state.ranking_input(job), self.now)[0]
            effective_rank -= hysteresis_of(job, self.policy)
            effective_rank += self.policy.fair * state.pending.user_penalties.get(job.user, 0.0)
        self.entries[job.id] = AssignmentEntry(
            job=job,
            key=(-job.priority, effective_rank, job.order, job.id),
            requests=[request],
            request=request,
            runtime=runtime,
            current=placement,
            preferred=placement if stop is None else None,
        )

    def _add_pending(self, key: SortKey, job_class: JobClass, id: int) -> AssignmentEntry | None:
        """Add an entry for a pending job unless a quota blocks it."""
        state = self.state
        if state.quota_reason(job_class):
            return None
        job, nominated = state.jobs[id], state.memory.nominations.get(id)
        advance = log2(self.policy.hysteresis) * (nominated is not None or self._resumes(job) / 2)
        priority, effective_rank, *others = key
        key = (priority, effective_rank - advance, *others)
        request = state.startable_request(job, job_class, self.now)
        requests = sizes.candidate_sizes(state, job, request)
        entry = self.entries[id] = AssignmentEntry(
            job=job,
            key=key,
            requests=requests,
            request=requests[0],
            runtime=self.throughput.runtime_of(job, requests[0]),
            job_class=job_class,
            preferred=nominated,
        )
        return entry

    def _resumes(self, job: Job) -> bool:
        """Whether a job has just stopped to go elsewhere: it precedes equal jobs that did not."""
        return bool(job.past) and self.now - job.past[-1].ended_at <= REBALANCE_SECONDS

    # -- targets ------------------------------------------------------------------------

    def _assign_in_order(self) -> list[AssignmentEntry]:
        """Assign each entry its cheapest placement, in order; return those without any."""
        if self.policy.longest_first:
            for entry in self.entries.values():
                entry.key = self._longest_first_key(entry)
        entries = sorted(self.entries.values(), key=lambda entry: entry.key)
        self._prices = equilibrium_prices(_demands(entries), self.throughput.supply)
        gpus, behind = self.throughput.gpus, float(sum(entry.runtime.gpus for entry in entries))
        self._by_price = self.policy.longest_first and behind > gpus
        if self._by_price:  # every job where it is cheapest, before any gets what is left
            entries = [entry for entry in entries if not self._assign_cheapest(entry)]
        unassigned = []
        turns = [(entry.key, entry) for entry in entries]
        while turns:
            key, entry = heappop(turns)
            is_displaced = entry.current is not None and not self.future.is_free(entry.current)
            if is_displaced and key is entry.key and not self.policy.longest_first:
                # It ranks as a pending job, so that it does not displace the next.
                priority, effective_rank, *others = key
                key = (priority, effective_rank + log2(self.policy.hysteresis), *others)
                heappush(turns, (key, entry))
                continue
            behind -= entry.runtime.gpus
            crowding = min(behind / gpus, 1.0) if gpus and self.policy.preempts else 0.0
            if not self._assign(entry, crowding):
                unassigned.append(entry)
        return unassigned

    def _longest_first_key(self, entry: AssignmentEntry) -> SortKey:
        """Order by seconds on the fastest model, not in steps, so that few jobs move."""
        seconds = min(entry.runtime.seconds.values(), default=inf)
        if entry.preferred is not None or entry.current is not None or self._resumes(entry.job):
            seconds *= self.policy.hysteresis
        return entry.key[0], -seconds, entry.job.order, entry.job.id

    def _assign_cheapest(self, entry: AssignmentEntry) -> bool:
        """Assign a placement on the cheapest model; return False if there is none."""
        if entry.job_class is not None and self._is_strict(entry.job_class.queue):
            return False
        costs = {
            model: seconds * self._prices.get(model, 0.0)
            for model, seconds in entry.runtime.seconds.items()
        }
        if entry.preferred is not None:
            costs[hardware(self.state.cluster, entry.preferred)[1]] *= 1 - MIN_GAIN
        cheapest = min(costs, key=lambda model: costs[model], default="")
        for model, placement in self._placements(entry):
            if model == cheapest:
                self._set_target(entry, placement)
                return True
        return False

    def _assign(self, entry: AssignmentEntry, crowding: float) -> bool:
        """Assign the cheapest placement; return False if there is none."""
        queue = entry.job_class.queue if entry.job_class is not None else None
        for request in entry.requests if queue not in self._blocked_queues else ():
            if request is not entry.request:
                entry.request = request
                entry.runtime = self.throughput.runtime_of(entry.job, request)
            options = [
                (self._cost(entry, model, placement, crowding), number, placement)
                for number, (model, placement) in enumerate(self._placements(entry))
            ]
            if options:
                self._set_target(entry, min(options)[2])
                return True
        if queue is not None and self._is_strict(queue):
            self._blocked_queues.add(queue)
        return False

    def _is_strict(self, queue: str) -> bool:
        return self.state.backfill_mode(queue) is BackfillMode.STRICT

    def _set_target(self, entry: AssignmentEntry, target: Placement) -> None:
        """Allocate the target of a job."""
        entry.target = target
        self.future.allocate(target)

    def _cost(
        self, entry: AssignmentEntry, model: str, placement: Placement, crowding: float
    ) -> float:
        """Return the time of a job on a placement, and of later jobs that it delays."""
        seconds = entry.runtime.seconds[model] + entry.restart_seconds(placement)
        if placement is entry.preferred:
            seconds *= 1 - MIN_GAIN
        price = self._prices.get(model, 0.0)
        if self._by_price:
            return seconds * price
        return seconds * (1.0 + entry.runtime.gpus * crowding * price)

    def _placements(self, entry: AssignmentEntry) -> Iterator[tuple[str, Placement]]:
        """Yield the preferred placement, if it is free, and one on each model that has one."""
        preferred, cluster = entry.preferred, self.state.cluster
        model = ""
        if preferred is not None and self._is_unused(preferred):
            model = hardware(cluster, preferred)[1]
            yield model, preferred
            ran = self.now - (entry.job.started_at or 0.0)
            if preferred is entry.current and ran < RESTART_PAYBACK * entry.runtime.restart:
                return
        for requested_model in entry.runtime.seconds:
            request = exclusive_on(entry.request, requested_model)
            if requested_model == model or request in self._full_requests:
                continue
            placement = find_placement(self.future, request)
            if placement is None:
                self._full_requests.add(request)
            elif (found := hardware(cluster, placement)[1]) in entry.runtime.seconds:
                yield found, placement  # the name of a model may be part of another

    def _is_unused(self, placement: Placement) -> bool:
        """Whether no job was assigned to these devices."""
        return self.future.is_free(placement) and all(
            not allocation.is_shared or not self._device(part.node, allocation.device).sharers
            for part in placement.parts
            for allocation in part.allocations
        )

    def _device(self, node: str, name: str) -> Device:
        future_node = self.future.node(node)
        assert future_node is not None
        return future_node.by_name[GPU, name]

    # -- co-location --------------------------------------------------------------------

    def _share(self, unassigned: list[AssignmentEntry]) -> None:
        """Let each job without a target join the jobs on a GPU with which it gains most."""
        sharers: dict[GpuKey, list[AssignmentEntry]] = {}
        for entry in self.entries.values():
            if entry.may_share and entry.target is not None:
                (gpu,) = devices_of(entry.target)
                sharers[gpu] = [entry]
        gains: dict[tuple[str, ...], float] = {}
        for entry in unassigned:
            options: list[tuple[float, GpuKey]] = []
            for gpu, others in sharers.items() if entry.may_share else ():
                model = self._device(*gpu).facts.model or NO_GPU
                profiles = [other.runtime.profile for other in others]
                key = (model, entry.runtime.profile, *profiles)
                if key not in gains:  # 256 jobs and as many GPUs, but few profiles
                    gains[key] = colocation_gain(self.state, key[1], profiles, model)
                if gains[key] > MIN_GAIN and self._has_memory(entry, gpu):
                    is_preferred = entry.preferred is not None and gpu in devices_of(
                        entry.preferred
                    )
                    options.append((-gains[key] / (1 - MIN_GAIN if is_preferred else 1), gpu))
            if options:
                gpu = min(options, key=lambda option: option[0])[1]
                self._join(entry, gpu, sharers[gpu])

    def _has_memory(self, entry: AssignmentEntry, gpu: GpuKey) -> bool:
        """Whether a GPU of an allowed model has enough memory for a job."""
        device, gpu_request = self._device(*gpu), entry.request.gpus
        if gpu_request is None or (device.facts.model or NO_GPU) not in entry.runtime.seconds:
            return False
        if "/".join(gpu) in gpu_request.reserved:
            return False
        return device.memory_free - device.foreign_memory >= (gpu_request.memory or 0)

    def _join(self, entry: AssignmentEntry, gpu: GpuKey, others: list[AssignmentEntry]) -> None:
        """Assign a job to a GPU that others use."""
        target, host = entry.preferred, others[0].target
        assert host is not None
        if target is None or gpu not in devices_of(target) or not self.future.is_free(target):
            target = find_placement(self.future, only_on(entry.request, host, on_idle_gpus=False))
        if target is not None:  # None: the node has too little else
            self._set_target(entry, target)
            others.append(entry)

    # -- what follows -------------------------------------------------------------------

    def nominations(self) -> Iterator[tuple[SortKey, int, Placement]]:
        """Yield the targets of jobs that are not there yet: sort key, job and placement."""
        for entry in self.entries.values():
            if entry.target is not None and entry.target != entry.current:
                yield entry.key, entry.job.id, entry.target

    def candidates(self) -> Iterator[tuple[SortKey, JobClass, Job, ResourceRequest]]:
        """Yield pending jobs with a target, in order, and the request for exactly its devices."""
        leaving: set[GpuKey] = set()
        for sharer in self.state.sharing.values():
            entry = self.entries.get(sharer.id)
            if sharer.placement is not None and (entry is None or entry.target != entry.current):
                leaving |= devices_of(sharer.placement)
        for entry in sorted(self.entries.values(), key=lambda entry: entry.key):
            if entry.job_class is None or entry.target is None:
                continue
            # It waits for jobs that share its GPU and leave it, even if the memory of all fits.
            is_left = not devices_of(entry.target).isdisjoint(leaving)
            request = only_on(entry.request, entry.target, on_idle_gpus=is_left)
            yield entry.key, entry.job_class, entry.job, request

    def preemptions(self, boot: float) -> Iterator[PreemptionRequested | PreemptionCancelled]:
        """Yield running jobs that go elsewhere, or that need not stop any more."""
        now = self.now
        taker_of = {
            gpu: entry.job
            for entry in self.entries.values()
            if entry.target is not None and entry.target != entry.current
            for gpu in devices_of(entry.target)
        }
        for entry in self.entries.values():
            job, current = entry.job, entry.current
            if current is None:
                continue
            if entry.target == current:
                if job.progress.stop is not None:
                    yield PreemptionCancelled(at=now, job=job.id, attempt=job.attempt)
            elif job.progress.stop is None:
                takers = (taker_of[gpu] for gpu in sorted(devices_of(current)) if gpu in taker_of)
                taker = next(takers, None)
                yield PreemptionRequested(
                    at=now, job=job.id, attempt=job.attempt, boot=boot,
                    why=_reason(self.state, entry, taker),
                    by=taker.id if taker is not None else None,
                )  # fmt: skip


def _may_resume(state: State, job: Job, stop: StopRequest) -> bool:
    """Whether a job that was asked to stop would continue if the request were withdrawn."""
    is_resized = job.id in state.running_elastic and stop.preemptor is None
    return job.progress.accepts_stop and not stop.timed_out and not is_resized


def _demands(entries: Iterable[AssignmentEntry]) -> Iterable[dict[str, float]]:
    """Return the GPU-seconds by model, summed over jobs of one profile and size."""
    demands: dict[tuple[str, int], dict[str, float]] = {}
    for entry in entries:
        demand = demands.setdefault((entry.runtime.profile, entry.runtime.gpus), {})
        for model, seconds in entry.runtime.seconds.items():
            demand[model] = demand.get(model, 0.0) + seconds * entry.runtime.gpus
    return demands.values()


def _reason(state: State, entry: AssignmentEntry, taker: Job | None) -> str:
    if taker is not None:
        return f"job {taker.label} needs its resources"
    if entry.target is None:
        return "other jobs need its resources"
    return f"it continues with {hardware(state.cluster, entry.target)[1] or 'another GPU'}"
