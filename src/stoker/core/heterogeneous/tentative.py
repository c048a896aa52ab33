"""Tentative assignment: every pending or movable job is placed before anything is decided.

It keeps two overlays: the target ledger, in which all movable jobs are gone but those assigned so
far, and the current ledger, in which jobs that are not yet assigned still hold their devices. A
placement that is free in the current ledger is preferred, so that no job is displaced needlessly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from math import inf, log2

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.cluster.node import Device
from stoker.core.cluster.overlay import Overlay
from stoker.core.elastic import sizes
from stoker.core.heterogeneous.matching import Option, choose
from stoker.core.heterogeneous.throughput import ExpectedRuntime, ThroughputModel
from stoker.core.measurement.estimator import NO_GPU, hardware
from stoker.core.model.hardware import Placement
from stoker.core.model.job import Job
from stoker.core.model.lifecycle import JobState
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.placement.placer import find_placement
from stoker.core.policies.policy import BackfillMode, Policy
from stoker.core.policies.ranking import rank
from stoker.core.queue.heads import QueueHeads
from stoker.core.queue.job_class import OVERDUE_CUTOFF, JobClass
from stoker.core.state.state import State
from stoker.core.structures.amounts import SortKey

MAX_PENDING_CONSIDERED = 256
"""Pending jobs per plan that may displace others; jobs after them get what is free."""
RESTART_PAYBACK = 5.0
"""Restarts that an attempt must last before the job moves for its own benefit."""


class AssignmentEntry(Struct, kw_only=True, eq=False):
    """A pending or movable job, and the placement assigned to it."""

    job: Job
    request: ResourceRequest
    sort_key: SortKey
    runtime: ExpectedRuntime
    job_class: JobClass | None = None
    """Its class while it is pending."""
    is_elastic: bool = False
    """Whether it runs with a number of GPUs that may change."""
    fallback: ResourceRequest | None = None
    """A smaller request of an elastic job, if this one does not fit."""
    current: Placement | None = None
    preferred: Placement | None = None
    """Its current placement or that of the last plan: it goes there unless another is better."""
    model: str = ""
    """GPU model of the preferred placement."""
    recently_started: bool = False
    """Whether it has just started, and does not move for its own benefit."""
    target: Placement | None = None
    is_assigned: bool = False
    displaced_by: int | None = None
    """The job that was assigned its current devices."""
    penalized: bool = False
    """Whether it has lost the advantage of a running job because it was displaced."""

    @property
    def is_stopping(self) -> bool:
        """Whether it runs and was asked to stop."""
        return self.job.progress is not None and self.job.progress.stop is not None

    @property
    def may_share(self) -> bool:
        """Whether it may share its single GPU."""
        gpus = self.request.gpus
        return self.runtime.gpus == 1 and gpus is not None and gpus.shareable

    @property
    def fastest_seconds(self) -> float:
        """Remaining seconds on its fastest model."""
        return min(self.runtime.seconds.values(), default=inf)

    def restart_seconds(self, placement: Placement) -> float:
        """Return the seconds lost by going to a placement."""
        has_run = self.current is not None or self.job.attempt > 0
        return self.runtime.restart if has_run and placement is not self.current else 0.0


class TentativeAssignment:
    """Entries of all pending and movable jobs, and the two ledgers.

    Derived from: the state at one time; made for one plan.
    Invariant: targets of all entries fit the target ledger together.
    Cost: one entry per running job and up to 256 pending ones.
    """

    def __init__(self, state: State, policy: Policy, now: float) -> None:
        self.state, self.policy, self.now = state, policy, now
        self.throughput = ThroughputModel(state, now)
        self.target_ledger = Overlay(state.cluster)
        self.current_ledger = Overlay(state.cluster)
        self.entries: dict[int, AssignmentEntry] = {}
        self._full_requests: set[ResourceRequest] = set()
        """Requests that no longer fit: capacity only shrinks during an assignment. Without this the
        static Gavel trace takes 2.2 times as long."""
        self._blocked_queues: set[str] = set()
        """Strict queues with a job that does not fit."""
        self._heads = QueueHeads(state.pending)
        self._pending = iter(self._heads)
        for job in state.running.values():
            self._add_running(job)
        for sort_key, job_class, id in islice(self._pending, MAX_PENDING_CONSIDERED):
            self._add_pending(sort_key, job_class, id)

    # -- entries ------------------------------------------------------------------------

    def _add_running(self, job: Job) -> None:
        """Add an entry for a job that can move; release the devices of one that is ending."""
        state, placement = self.state, job.placement
        if placement is None:
            return
        progress = job.progress
        stop = progress.stop if progress is not None else None
        accepts_stop = progress is not None and progress.accepts_stop
        if job.state is JobState.COMPLETING or (stop is not None and not accepts_stop):
            if stop is None or not stop.timed_out:
                self.target_ledger.release(placement)
                self.current_ledger.release(placement)
            return
        if job.id not in state.preemptible or job.state is not JobState.RUNNING:
            return
        if (stop is not None and stop.timed_out) or _is_out_of_service(state, placement):
            return
        is_elastic = job.id in state.running_elastic
        if is_elastic and stop is not None and stop.preemptor is None:  # it changes its size
            self.target_ledger.release(placement)
            self.current_ledger.release(placement)
            return
        request = state.effective_request(job, state.spec(job))
        if is_elastic:
            gpus = hardware(state.cluster, placement)[0]
            request = sizes.resized(request, gpus, sizes.gpus_per_node(state))
        runtime = self.throughput.runtime_of(job, request)
        if hardware(state.cluster, placement)[1] not in runtime.seconds:
            return
        effective_rank, preferred = -inf, placement  # not preempted by jobs of equal priority
        if accepts_stop and self._exceeded_quantum(job):
            effective_rank = rank(state.ranking_input(job), self.now)[0]
            effective_rank -= log2(self.policy.hysteresis)
            effective_rank += self.policy.fair * state.pending.user_penalties.get(job.user, 0.0)
        if stop is not None:
            preferred = state.memory.nominations.get(job.id, placement)
        self.target_ledger.release(placement)
        started = job.started_at if job.started_at is not None else self.now
        self.entries[job.id] = AssignmentEntry(
            job=job,
            request=request,
            sort_key=(-job.priority, effective_rank, job.order, job.id),
            runtime=runtime,
            is_elastic=is_elastic,
            current=placement,
            preferred=preferred,
            model=hardware(state.cluster, preferred)[1],
            recently_started=stop is None
            and self.now - started < RESTART_PAYBACK * runtime.restart,
        )

    def _exceeded_quantum(self, job: Job) -> bool:
        return job.started_at is not None and self.now - job.started_at >= self.policy.quantum

    def _add_pending(
        self, sort_key: SortKey, job_class: JobClass, id: int
    ) -> AssignmentEntry | None:
        """Add an entry for a pending job unless a quota blocks it."""
        state = self.state
        if state.quota_reason(job_class):
            return None
        job = state.jobs[id]
        variants = sizes.candidate_sizes(state, job, state.class_request(job, job_class))
        request = variants[0]
        entry = self.entries[id] = AssignmentEntry(
            job=job,
            request=request,
            sort_key=sort_key,
            runtime=self.throughput.runtime_of(job, request),
            job_class=job_class,
            fallback=variants[-1] if len(variants) > 1 else None,
        )
        nominated = state.memory.nominations.get(id)
        if nominated is not None:
            priority, effective_rank, *others = sort_key
            entry.sort_key = (priority, effective_rank - log2(self.policy.hysteresis), *others)
            entry.preferred, entry.model = nominated, hardware(state.cluster, nominated)[1]
        return entry

    # -- assignment ---------------------------------------------------------------------

    def assign_remaining(self) -> None:
        """Assign pending jobs after the first ones, class by class until one does not fit."""
        for sort_key, job_class, id in self._pending:
            entry = self._add_pending(sort_key, job_class, id)
            if entry is None or not self.assign_best(entry, {}):
                self._heads.exhausted.add(job_class)

    def assign_best(self, entry: AssignmentEntry, opportunity_costs: Mapping[str, float]) -> bool:
        """Assign the cheapest placement; return False if there is none."""
        queue = entry.job_class.queue if entry.job_class is not None else None
        if queue in self._blocked_queues:
            self.assign(entry, None)
            return False
        options = [
            (
                Option(
                    model,
                    entry.runtime.seconds[model] + entry.restart_seconds(placement),
                    placement is entry.preferred,
                ),
                placement,
            )
            for model, placement in self.placements(entry)
        ]
        best = choose((option for option, _ in options), entry.runtime.gpus, opportunity_costs)
        for option, placement in options:
            if option is best:
                self.assign(entry, placement)
                return True
        if entry.fallback is not None:
            entry.request, entry.fallback = entry.fallback, None
            entry.runtime = self.throughput.runtime_of(entry.job, entry.request)
            return self.assign_best(entry, opportunity_costs)
        self.assign(entry, None)
        if queue is not None and self.state.backfill_mode(queue) is BackfillMode.STRICT:
            self._blocked_queues.add(queue)
        if entry.sort_key[1] <= OVERDUE_CUTOFF:
            self._reserve(entry)
        return False

    def placements(self, entry: AssignmentEntry) -> Iterator[tuple[str, Placement]]:
        """Yield a free placement on each model that has one."""
        models = list(entry.runtime.seconds)
        if entry.recently_started and entry.current and self._is_untouched(entry.current):
            models = [entry.model]
        for requested_model in models:
            placement = self.placement_on(entry, requested_model)
            if placement is None:
                continue
            model = hardware(self.state.cluster, placement)[1]  # a name may be part of another
            if model in entry.runtime.seconds:
                yield model, placement

    def placement_on(self, entry: AssignmentEntry, model: str) -> Placement | None:
        """Return the preferred placement, or one on this model, without displacing if possible."""
        preferred = entry.preferred
        if preferred is not None and model == entry.model and self._is_untouched(preferred):
            return preferred
        request = _exclusive_on(entry.request, model)
        if request in self._full_requests:
            return None
        placement = find_placement(self.current_ledger, request)
        if placement is None or not self.target_ledger.is_free(placement):  # it may be reserved
            placement = find_placement(self.target_ledger, request)
        if placement is None:
            self._full_requests.add(request)
        return placement

    def _is_untouched(self, placement: Placement) -> bool:
        """Whether no job was assigned to these devices."""
        return self.target_ledger.is_free(placement) and all(
            not allocation.is_shared or not self.device(part.node, allocation.device).sharers
            for part in placement.parts
            for allocation in part.allocations
        )

    def device(self, node: str, name: str) -> Device:
        """Return a GPU of the target ledger."""
        target_node = self.target_ledger.node(node)
        assert target_node is not None
        return target_node.by_name[GPU, name]

    def assign(self, entry: AssignmentEntry, target: Placement | None) -> None:
        """Enter the target of a job in both ledgers, and displace the jobs that hold it."""
        entry.is_assigned, entry.target = True, target
        if target is not None:
            self.target_ledger.allocate(target)
            if target is entry.current:
                return
        if entry.current is not None and entry.displaced_by is None:
            self.current_ledger.release(entry.current)
        if target is None:
            return
        if not self.current_ledger.is_free(target):
            self._displace(entry, target)
        self.current_ledger.withhold(target)

    def _displace(self, preemptor: AssignmentEntry, target: Placement) -> None:
        """Release the devices of unassigned jobs, lowest rank first, until the target is free."""
        nodes = {part.node for part in target.parts}
        holders = [
            entry
            for entry in self.entries.values()
            if not entry.is_assigned
            and entry.current is not None
            and entry.displaced_by is None
            and not nodes.isdisjoint(part.node for part in entry.current.parts)
        ]
        devices = devices_of(target)
        holders.sort(key=lambda entry: entry.sort_key, reverse=True)
        for on_target in (True, False):  # first jobs on these GPUs, then for cores and memory
            for entry in holders:
                if self.current_ledger.is_free(target):
                    return
                assert entry.current is not None
                if entry.displaced_by is None and on_target != devices.isdisjoint(
                    devices_of(entry.current)
                ):
                    self.current_ledger.release(entry.current)
                    entry.displaced_by = preemptor.job.id

    def _reserve(self, entry: AssignmentEntry) -> None:
        """Withhold from later jobs what an overdue job would get if all running jobs ended."""
        idle = Overlay(self.state.cluster)
        for job in self.state.running.values():
            if job.placement is not None:
                idle.release(job.placement)
        placement = find_placement(idle, entry.request)
        if placement is not None:
            self.target_ledger.withhold(placement)
            self.current_ledger.withhold(placement)


def _exclusive_on(request: ResourceRequest, model: str) -> ResourceRequest:
    """Return a request for GPUs of one model without other users."""
    gpus = request.gpus
    if gpus is None or not gpus.amount:
        return request
    if model != NO_GPU:
        gpus = replace(gpus, model=model.lower(), models=())
    return replace(request, gpus=replace(gpus, on_idle_gpus=True) if gpus.shareable else gpus)


def devices_of(placement: Placement) -> set[tuple[str, str]]:
    """Return the GPUs of a placement."""
    return {(part.node, name) for part in placement.parts for name in part.names(GPU)}


def _is_out_of_service(state: State, placement: Placement) -> bool:
    """Whether a job could not start where it is: then it is left alone."""
    nodes = state.cluster.nodes
    devices = (
        nodes[part.node].by_name[allocation.type, allocation.device]
        for part in placement.parts
        for allocation in part.allocations
    )
    return any(nodes[part.node].unavailable_reason is not None for part in placement.parts) or any(
        device.removed or device.drained is not None for device in devices
    )
