"""The scheduler's state: journalled data, changed by events only, and indexes derived from it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from math import inf

from msgspec.structs import replace

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.fragmentation import ResourceDemand
from stoker.core.measurement.estimator import (
    DEFAULT_RESTART_SECONDS,
    ESTIMATE_SLACK,
    profile_key,
    profile_of,
    remaining,
)
from stoker.core.measurement.gpu_memory import with_reserved_memory
from stoker.core.model.job import FAILED_STATES, Job, JobState
from stoker.core.model.limits import user_key
from stoker.core.model.resources import GPU, Placement, ResourceRequest
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep, TrialBoard
from stoker.core.placement.advance import Occupation, without_reserved
from stoker.core.placement.horizon import exclude_ending_nodes
from stoker.core.placement.infeasible import infeasibility_reason, max_parts
from stoker.core.placement.node_lookup import demand_of
from stoker.core.placement.request_shape import is_amount_only
from stoker.core.policies.fair_share import FairShareUsage
from stoker.core.policies.policy import BackfillMode
from stoker.core.policies.queue_policies import QueuePolicies
from stoker.core.policies.ranking import RankingInput
from stoker.core.queue.job_class import ClassKey, JobClass
from stoker.core.queue.pending_queue import PendingQueue
from stoker.core.running.release_times import KILL_GRACE_SECONDS
from stoker.core.running.thresholds import PreemptionThresholds
from stoker.core.running.victims import VictimIndex, can_preempt
from stoker.core.state.limits import LimitTracker
from stoker.core.state.quotas import Quotas
from stoker.core.state.record import ChangeSet, ClusterRecord, queue_devices
from stoker.core.structures import SortedMap, TimerHeap

REBALANCE_SECONDS = 2 * DEFAULT_RESTART_SECONDS
"""Seconds during which an elastic attempt keeps its GPUs, and in which a job that gave back idle
GPUs is not started again: it ranks before most jobs that wait for these."""
NO_OWN_DEVICES = "none"
"""Device name that no GPU has: what a job of a queue without GPUs is restricted to."""


class PlannerMemory:
    """What a plan derives from the jobs, and trials that the next cycle judges.

    After a restart it is empty; `DaemonStarted` ranks all jobs and sets the next rebalance.
    """

    def __init__(self) -> None:
        self.nominations: dict[int, Placement] = {}
        """Placements held for preemptors until their victims have stopped: those of the last plan.

        `preemption.nominations` derives them again from the stopping jobs in every plan.
        """
        self.elastic_targets: dict[int, int] = {}
        """GPUs by job that this plan assigned and the job does not have yet."""
        self.next_rebalance = inf
        """When the next elastic job may change its size: a minute after its start."""
        self.has_current_ranks = False
        """Whether all jobs were ranked since the state was restored."""
        self.trials_at_rung: dict[int, int] = {}
        """Rungs by trial that early stopping has not judged yet."""


class State:
    """Jobs, specs, cluster record, the ledger of allocations, and indexes of them."""

    def __init__(self, record: ClusterRecord | None = None) -> None:
        self.record = record if record is not None else ClusterRecord()
        self.policies = QueuePolicies(
            self.record.policies, self.record.queues, self.record.queues_with_progress
        )
        # Bound methods: both are called for every candidate of a scan.
        self.policy_of = self.policies.for_queue
        self.backfill_mode = self.policies.backfill_mode
        self.jobs: dict[int, Job] = {}
        self.specs: dict[str, Spec] = {}
        self._demands: dict[int, ResourceDemand] = {}
        """Demands of unfinished jobs in the demand histogram, by job."""
        self.jobs_by_profile: dict[str, dict[int, None]] = {}
        """Jobs in memory by profile key: a measurement of one may change the ranks of all."""
        self.cluster = Cluster()
        self.pending = PendingQueue()
        self.running: dict[int, Job] = {}
        """Jobs that hold devices."""
        self.preemptible: dict[int, Job] = {}
        """Running jobs that can be preempted and resumed."""
        self.victims = VictimIndex()
        """The same in victim order."""
        self.thresholds = PreemptionThresholds(
            self.cluster, self.victims, lambda job: can_preempt(self.jobs[job])
        )
        self.stopping: dict[int, Job] = {}
        """Running jobs that were requested to stop or are being terminated."""
        self.running_elastic: dict[int, Job] = {}
        """Running elastic jobs."""
        self.pending_elastic: dict[int, None] = {}
        """Pending elastic jobs; may contain jobs that are no longer pending."""
        self.sharing: dict[int, Job] = {}
        """Running jobs that share their GPUs by memory."""
        self.rank_timers = TimerHeap()
        """Times at which ranks change without an event, by job."""
        self.usage = FairShareUsage(self.record.usage)
        self.release_times = SortedMap[int, float]()
        """Running jobs by latest end (boot clock); `timers.arm_timers` sets it."""
        self.limit_timers = TimerHeap()
        """Next timer of each running job: limits, warnings, timeouts (boot clock)."""
        self.dependents: dict[int, set[int]] = {}
        self.never_eligible: set[int] = set()
        """Pending jobs with a dependency that can never be met."""
        self.begin_timers = TimerHeap()
        """Begin times, back-offs and delays of dependencies, by job (wall clock)."""
        self.deadlines = TimerHeap()
        """Deadlines, by job (wall clock)."""
        self.finished: dict[int, None] = {}
        """Finished jobs still in memory, oldest first."""
        self.unacknowledged: dict[int, None] = {}
        self.sweeps: dict[int, Sweep] = {}
        self.limits = LimitTracker(self.record, self.specs, self.cluster)
        self.quotas = Quotas(self.record.queues, self.jobs, self.specs, self.sweeps, self.limits)
        self.quota_reason = self.quotas.reason
        self.gpu_quota_left = self.quotas.gpus_left
        self.boards: dict[int, TrialBoard] = {}
        """Trials of sweeps that are open or ended lately."""
        self.memory = PlannerMemory()
        self.changes = ChangeSet()
        self.update_model_profiles()
        self.update_queue_devices()
        self.update_reservations()

    # -- queries ------------------------------------------------------------------------

    def spec(self, job: Job) -> Spec:
        """Return the spec of a job."""
        return self.specs[job.spec]

    @property
    def live(self) -> int:
        """The number of unfinished jobs."""
        return len(self.jobs) - len(self.finished)

    @property
    def has_wall_clock_timers(self) -> bool:
        """Whether a begin time, deadline or end of a node is set, which a new clock moves."""
        times = (self.begin_timers.next_time(), self.deadlines.next_time())
        has_ends = self.cluster.node_ends or self.record.reservations
        return times != (None, None) or bool(has_ends)

    def class_key(self, job: Job) -> ClassKey:
        """Return the class key of a pending job."""
        spec = self.specs[job.spec]
        is_throttled = spec.array_limit is not None or job.params is not None
        array = (job.array or job.id) if is_throttled else 0
        fair_weight = self.pending.queue_fair_weight[spec.queue] = self.policy_of(spec.queue).fair
        user = job.user if fair_weight else ""
        by_user = self.limits.by_user or bool(self.record.reservations)
        owner = user_key(spec.user, spec.uid) if by_user else ""
        if self.backfill_mode(spec.queue) is BackfillMode.STRICT:
            # Only the head of a strict queue can start, so requests make no difference.
            return ClassKey(None, job.priority, spec.queue, array, None, user, owner=owner)
        request, needed = self.effective_request(job, spec), spec.time_needed
        return ClassKey(request, job.priority, spec.queue, array, spec.limit, user, needed, owner)

    def preempts(self, job: Job) -> bool:
        """Whether a job's queue preempts among jobs of equal priority."""
        return self.policy_of(self.specs[job.spec].queue).preempts

    def ranking_input(self, job: Job) -> RankingInput:
        """Return what the rank of a job depends on."""
        spec = self.specs[job.spec]
        policy = self.policy_of(spec.queue)
        reports = spec.queue in self.record.queues_with_progress
        return RankingInput(job, spec, policy, self.record.profiles, self.cluster, reports)

    def class_request(self, job: Job, job_class: JobClass) -> ResourceRequest:
        """Return the request of the head of a class."""
        if job_class.request is not None:
            return job_class.request
        return self.effective_request(job, self.specs[job.spec])

    def startable_request(self, job: Job, job_class: JobClass, at: float) -> ResourceRequest:
        """Return the request of the head of a class without nodes that end too soon for it."""
        return self.within_horizon(job, self.class_request(job, job_class), at)

    def within_horizon(
        self, job: Job, request: ResourceRequest, at: float, keep: Container[str] = ()
    ) -> ResourceRequest:
        """Return a request without what the job may not use for as long as it needs it from now on.

        Nodes that end too soon, and what is reserved for others. `keep`: nodes that are not
        excluded.
        """
        if self.cluster.advance_reservations:
            occupation = self.occupation(job, at)
            request = without_reserved(self.cluster, request, occupation, at, keep)
        if not self.cluster.node_ends:
            return request
        until = at + self.specs[job.spec].time_needed
        return exclude_ending_nodes(self.cluster, request, until, keep)

    def occupation(self, job: Job, at: float) -> Occupation:
        """Return how long a job that starts now may hold devices: by its limit or an estimate."""
        spec = self.specs[job.spec]
        seconds: float | None = spec.limit
        if spec.is_always_preemptible:
            seconds = 0.0
        elif seconds is not None:
            seconds += KILL_GRACE_SECONDS
        else:
            left = remaining(self.record.profiles, self.cluster, job, spec, at)
            seconds = inf if left is None else left * ESTIMATE_SLACK
        return Occupation(self.limits.keys(spec), seconds)

    def deadline(self, job: Job) -> float:
        """Return the time by which a job must have ended, or started if it is pending; or inf."""
        spec = self.specs[job.spec]
        is_ending = job.finished or job.state is JobState.COMPLETING
        if is_ending or job.late or spec.deadline_at is None:
            return inf
        waits = job.state in (JobState.PENDING, JobState.QUEUED)
        return spec.deadline_at - (spec.limit or 0) if waits else spec.deadline_at

    def effective_request(self, job: Job, spec: Spec) -> ResourceRequest:
        """Return the request restricted by queue, `retry --same-gpus`, pilots, missing devices."""
        request = self._left_to_pilots(self._restricted_to_queue(job, spec), spec)
        if spec.container is None or spec.container.image not in self.record.missing_devices:
            return request
        not_nodes = (*request.not_nodes, *self.record.missing_devices[spec.container.image])
        elsewhere = replace(request, not_nodes=tuple(dict.fromkeys(not_nodes)))
        able_count = sum(
            infeasibility_reason(node, elsewhere) is None for node in self.cluster.nodes.values()
        )
        return elsewhere if able_count >= request.node_count else request

    def _left_to_pilots(self, request: ResourceRequest, spec: Spec) -> ResourceRequest:
        """Exclude clusters to which a job is not handed over, since their pilots can run it."""
        names = [
            name
            for name, (pilot, seconds) in self.cluster.pilots.items()
            if name not in request.nodes
            and spec.time_needed <= seconds
            and max_parts(pilot, request) >= request.node_count
            and not self._pilots_lack(name, spec)
        ]
        return replace(request, not_nodes=(*request.not_nodes, *names)) if names else request

    def _pilots_lack(self, name: str, spec: Spec) -> bool:
        """Return whether a pilot could not run the image of a job, which is handed over then."""
        image = spec.container.image if spec.container is not None else ""
        nodes = self.record.missing_devices.get(image, {})
        remotes, added = self.record.remotes, self.record.remotes.get(name)
        return added is not None and any(
            remotes[node].cluster == added.cluster for node in nodes if node in remotes
        )

    def _restricted_to_queue(self, job: Job, spec: Spec) -> ResourceRequest:
        request = spec.request
        if request.gpus is not None and request.gpus.shareable:
            gpus = with_reserved_memory(
                request.gpus, job.progress, profile_of(self.record.profiles, job, spec)
            )
            request = replace(request, gpus=gpus)
        queue = self.record.queues.get(spec.queue)
        allowed = queue.devices if queue else ()
        if queue is not None and queue.resources:
            request = replace(request, queue_devices=self.queue_devices[queue.name])
            allowed = request.allowed_devices(GPU) or (NO_OWN_DEVICES,)
        if job.same_devices and job.last_devices and request.node_count == 1:
            allowed = job.last_devices
            if job.last_node is not None:
                request = replace(request, nodes=(job.last_node,))
        if allowed and request.gpus:
            return replace(request, gpus=replace(request.gpus, allowed=allowed))
        return request

    def uses_release_times(self) -> bool:
        """Whether a pending job may have a reservation, which depends on release times."""
        return self.pending.may_have_reservations or self.policies.uses_release_times(
            self.pending.queues
        )

    def releases(self) -> Iterator[tuple[float, Placement]]:
        """Yield the latest end and the placement of running attempts, in order of end."""
        for end, id in self.release_times:
            if (placement := self.running[id].placement) is not None:
                yield end, placement

    def in_flight(self, node: str) -> list[int]:
        """Return the jobs that were placed on a delegated node and do not run yet."""
        waiting = (job for job in self.running.values() if job.started_at is None)
        return [job.id for job in waiting if any(part.node == node for part in job.parts)]

    def is_delegated(self, job: Job) -> bool:
        """Whether another scheduler decides where on its node a job runs."""
        node = self.cluster.nodes.get(job.placement.node) if job.placement is not None else None
        return node is not None and node.delegated

    def take_changes(self) -> ChangeSet:
        """Return what changed since the last call."""
        changes, self.changes = self.changes, ChangeSet()
        return changes

    # -- changes (called by event handlers only) ---------------------------------------------

    def update_model_profiles(self) -> None:
        """Note changed job profiles."""
        profiles = self.record.profiles.values()
        self.distinguishes_models = any(
            profile.interference or profile.has_several_models for profile in profiles
        )
        """Whether measured speed depends on GPU model or co-located jobs for some profile."""

    def update_reservations(self) -> None:
        """Let the ledger have the advance reservations, which changed."""
        self.cluster.advance_reservations = tuple(self.record.reservations.values())

    def update_queue_devices(self) -> None:
        """Find the devices of queues again, since a queue or nodes changed."""
        queues, nodes = self.record.queues.values(), self.record.nodes
        self.queue_devices = {queue.name: queue_devices(queue, nodes) for queue in queues}
        """Devices by queue: one object each, so that requests compare fast."""

    def _count(self, job: Job, placement: Placement, step: int) -> None:
        """Count a start (+1) or an end (-1) of an attempt in the quotas and limits."""
        self.pending.invalidate_head()
        self.quotas.count(job, placement, step)
        self.limits.count(job, placement, step)

    def load(self, job: Job) -> None:
        """Add a job to memory."""
        self.jobs[job.id] = job
        if not job.finished:
            self.count_demand(job)
        self.index_profile(job)
        self.deadlines.set(job.id, self.deadline(job))
        self.changes.job(job.id)

    def count_demand(self, job: Job) -> None:
        """Count the request of an unfinished job in the demand histogram."""
        request = self.specs[job.spec].request
        if is_amount_only(request):
            demand = self._demands[job.id] = demand_of(self.cluster, request)
            self.cluster.demand_histogram.count(demand, +1)

    def uncount_demand(self, job: Job) -> None:
        """Undo `count_demand`: the job has finished."""
        if job.id in self._demands:
            self.cluster.demand_histogram.count(self._demands.pop(job.id), -1)

    def recount_demands(self) -> None:
        """Count all demands again: the GPU models have changed, which a request may name."""
        for id in list(self._demands):
            self.uncount_demand(self.jobs[id])
            self.count_demand(self.jobs[id])

    def index_profile(self, job: Job) -> None:
        """Index a job by its profile."""
        profile = profile_key(job, self.specs[job.spec])
        self.jobs_by_profile.setdefault(profile, {})[job.id] = None

    def deindex_profile(self, job: Job) -> None:
        """Undo `index_profile`, before its name or spec changes."""
        profile = profile_key(job, self.specs[job.spec])
        del self.jobs_by_profile[profile][job.id]
        if not self.jobs_by_profile[profile]:
            del self.jobs_by_profile[profile]

    def drop_unused_specs(self) -> None:
        """Remove the specs that no job in memory has."""
        for hash in self.specs.keys() - {job.spec for job in self.jobs.values()}:
            del self.specs[hash]

    def index_finished(self, job: Job) -> None:
        """Index a finished job, also as a failure if the user has not dismissed it."""
        self.finished[job.id] = None
        if job.state in FAILED_STATES and not job.seen:
            self.unacknowledged[job.id] = None

    def unload(self, job: Job) -> None:
        """Remove a finished job from memory."""
        del self.jobs[job.id]
        self.finished.pop(job.id, None)
        self.unacknowledged.pop(job.id, None)
        self.dependents.pop(job.id, None)
        self.never_eligible.discard(job.id)
        for timers in (self.deadlines, self.begin_timers, self.rank_timers):
            timers.cancel(job.id)
        self.deindex_profile(job)
        self.changes.unload(job.id)

    def allocate(self, job: Job, placement: Placement) -> None:
        """Allocate the placement of an attempt in the ledger and count it."""
        self.cluster.allocate(placement)
        job.placement = placement
        self.index_running(job, placement)

    def index_running(self, job: Job, placement: Placement) -> None:
        """Index and count a job that holds devices."""
        self._count(job, placement, +1)
        self.running[job.id] = job
        if self.is_delegated(job):
            return  # neither its size nor its memory is ours to change
        gpus = self.specs[job.spec].request.gpus
        if gpus is not None and gpus.max_amount is not None:
            self.running_elastic[job.id] = job
        if gpus is not None and gpus.shareable:
            self.sharing[job.id] = job

    def release(self, job: Job) -> None:
        """Release the devices of an ended attempt."""
        placement = job.placement
        if placement is None:
            return
        self.cluster.release(placement)
        self.pending.request_planning()
        self._count(job, placement, -1)
        job.last_devices, job.last_node = tuple(placement.names(GPU)), placement.node
        job.last_others = tuple(part.node for part in placement.other_parts)
        job.placement = None
        by_id = (self.running, self.preemptible, self.stopping, self.running_elastic, self.sharing)
        for index in by_id:
            index.pop(job.id, None)
        self.victims.remove(job.id)
        self.release_times.remove(job.id)
        self.limit_timers.cancel(job.id)
        self.rank_timers.cancel(job.id)

    def update_stopping(self, job: Job) -> None:
        """Update the index of stopping jobs."""
        if job.progress.stop is not None or job.state is JobState.COMPLETING:
            self.stopping[job.id] = job
        else:
            self.stopping.pop(job.id, None)

    def resize_memory(self, job: Job, placement: Placement) -> None:
        """Replace the placement of an attempt by one with other amounts of GPU memory."""
        assert job.placement is not None
        self.cluster.release(job.placement)
        self._count(job, job.placement, -1)
        self.allocate(job, placement)
        self.pending.request_planning()
