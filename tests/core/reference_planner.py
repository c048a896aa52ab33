"""The reference planner: one planning cycle as a plain greedy pass.

It defines what `stoker.core.planner` decides. It scans every pending job in order, every node and
every running job, and keeps nothing between cycles: no index, cache, class, threshold or budget.
It runs in step with the planner and reads the state, to which each decision has been applied
before it is asked for the next one.

What it takes as given: the sort key of each pending job and the victim key of each running job
(ranks), the latest end of each running job, and the demand histogram. What it calls: `fit` of one
node, the costs of one node, and the choice of busy devices for a reservation. What it leaves out:
elastic jobs, GPUs that are shared by memory, and the global heterogeneous assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf, log2
from typing import Any

from msgspec.structs import replace

from core.scenario import Scenario
from stoker.core import events as e
from stoker.core.cluster.fragmentation import max_request_amount, placement_cost
from stoker.core.cluster.free_index import free_resources
from stoker.core.cluster.node import Node
from stoker.core.model.job import Job, JobState
from stoker.core.model.resources import CPU, GPU, MEMORY, Placement, ResourceRequest
from stoker.core.model.spec import Spec
from stoker.core.placement.capacity import available_on, total_available
from stoker.core.placement.fit import fit
from stoker.core.placement.horizon import END_GRACE_SECONDS
from stoker.core.placement.node_lookup import demand_of
from stoker.core.placement.placer import _packing_score
from stoker.core.placement.request_shape import gpus_needed, is_amount_only, non_gpu_amounts
from stoker.core.planner.cycle import plan_events, pre_command_events
from stoker.core.policies.policy import BackfillMode
from stoker.core.policies.ranking import OVERDUE_RANK
from stoker.core.reservation.reservation import prefer_busy_devices
from stoker.core.running.release_times import KILL_GRACE_SECONDS
from stoker.core.state.reranking import refresh_ranks, victim_key
from stoker.core.state.state import State

SortKey = tuple[float, ...]
MAX_PLANS = 4
"""Plans in one cycle, as in `planner.cycle`."""
Decision = tuple[str, int, Placement | int | None]
"""`start` with a placement, `stop` with the preemptor, or `resume`; and the job."""


@dataclass(frozen=True)
class Pending:
    """A pending job."""

    id: int
    key: SortKey
    spec: Spec
    request: ResourceRequest
    """Without the nodes that end too soon for a start now."""
    array: int | None
    mode: BackfillMode
    """How jobs behind it may start."""

    @property
    def is_strict(self) -> bool:
        return self.mode is BackfillMode.STRICT

    @property
    def is_protected(self) -> bool:
        """Whether later jobs must not delay it if it is blocked."""
        if self.mode is BackfillMode.OVERDUE_ONLY:
            return self.key[1] <= OVERDUE_RANK / 2 or self.spec.limit is not None
        return self.mode is not BackfillMode.UNRESTRICTED

    @property
    def duration(self) -> float:
        return inf if self.spec.limit is None else self.spec.limit + KILL_GRACE_SECONDS


class Ledger:
    """All nodes with what is free on them."""

    def __init__(self, state: State, nodes: Iterable[Node]) -> None:
        self.state = state
        self.nodes = {node.name: node.copy() for node in nodes}

    def copy(self) -> Ledger:
        return Ledger(self.state, self.nodes.values())

    def node(self, name: str) -> Node | None:
        return self.nodes.get(name)

    def modified_nodes(self) -> dict[str, Node]:
        return self.nodes

    def allocate(self, placement: Placement) -> None:
        for part in placement.parts:
            self.nodes[part.node].allocate(part.allocations)

    def release(self, placement: Placement) -> None:
        for part in placement.parts:
            self.nodes[part.node].release(part.allocations)

    def withhold(self, placement: Placement) -> None:
        """Allocate as much of a placement as is free."""
        for name, held in _allocations(placement):
            self.nodes[name].device(held).withhold(held.amount, held.memory)

    def is_free(self, placement: Placement) -> bool:
        return all(
            self.nodes[name].unavailable_reason is None
            and self.nodes[name].device(held).available >= held.amount
            and self.nodes[name].device(held).drained is None
            for name, held in _allocations(placement)
        )

    def count_feasible(self, request: ResourceRequest) -> int:
        return sum(fit(node, request.part) is not None for node in self.nodes.values())

    def find(self, request: ResourceRequest) -> Placement | None:
        """Return the placement of a request on the best nodes; None: it does not fit.

        Amount-only requests go where they cost least by fragmentation, and then to nodes with GPUs
        that differ. Other requests go where `_packing_score` is lowest.
        """
        part, count = request.part, request.node_count
        if not is_amount_only(request):
            return _join(self._packed(self.nodes, part, count), count)
        cluster, ranked, others = self.state.cluster, [], []
        demand, histogram = demand_of(cluster, request), cluster.demand_histogram
        for name, node in self.nodes.items():
            free = free_resources(node)
            if free is None:
                others.append(name)
            elif (cost := placement_cost(free, demand, histogram)) is not None:
                ranked.append((cost, node.join_index, name))
        parts = [
            Placement(name, fit(self.nodes[name], part, cost[-1]) or ())
            for cost, _, name in sorted(ranked)[:count]
        ]
        return _join(parts + self._packed(others, part, count - len(parts)), count)

    def find_on(self, names: Iterable[str], request: ResourceRequest) -> Placement | None:
        """Return the placement on the nodes with the lowest packing scores."""
        return _join(self._packed(names, request.part, request.node_count), request.node_count)

    def _packed(self, names: Iterable[str], part: ResourceRequest, count: int) -> list[Placement]:
        feasible = [
            (_packing_score(self.nodes[name], part), self.nodes[name].join_index, name, devices)
            for name in names
            if (devices := fit(self.nodes[name], part)) is not None
        ]
        feasible.sort(key=lambda each: each[:2])
        return [Placement(name, devices) for *_, name, devices in feasible[:count]]


def _join(parts: list[Placement], count: int) -> Placement | None:
    if len(parts) < count:
        return None
    return replace(parts[0], other_parts=tuple(parts[1:])) if parts[1:] else parts[0]


def _allocations(placement: Placement) -> Iterator[tuple[str, Any]]:
    return ((part.node, held) for part in placement.parts for held in part.allocations)


def _held(job: Job) -> Placement:
    assert job.placement is not None
    return job.placement


def _preemptor(job: Job) -> int | None:
    stop = job.progress.stop if job.progress is not None else None
    return stop.preemptor if stop is not None else None


def _is_asked_to_stop(job: Job) -> bool:
    return job.progress is not None and job.progress.stop is not None


def _is_stopping(job: Job) -> bool:
    """Whether the devices of a job become free soon."""
    stop = job.progress.stop if job.progress is not None else None
    asked = stop is not None and not stop.timed_out and job.state is JobState.RUNNING
    return asked or job.state is JobState.COMPLETING


class Plan:
    """One plan: start what may start, then preempt for what is left."""

    def __init__(self, state: State, at: float, boot: float) -> None:
        self.state, self.at, self.boot = state, at, boot
        names = (name for name, _ in state.record.policies.values())
        self.backfill_type = Conservative if "conservative" in names else Easy
        self.backfill = self.backfill_type(self, self.now(), lambda job: False)
        self.has_decided = self.has_revoked = False
        self.stuck: set[int] = set()
        """Jobs that no preemption helps in this plan."""
        self.stuck_queues: set[str] = set()
        """Queues of strict order with such a job."""
        self.derive_nominations()

    # -- what the state says ----------------------------------------------------------------

    def now(self) -> Ledger:
        """Return what is free now."""
        return Ledger(self.state, self.state.cluster.nodes.values())

    def pending(self) -> list[Pending]:
        """Return the pending jobs in order."""
        state, jobs = self.state, []
        for job in [state.jobs[id] for id in state.pending.class_of]:
            spec = state.spec(job)
            array = (job.array or job.id) if spec.array_limit is not None else None
            request, mode = state.effective_request(job, spec), state.backfill_mode(spec.queue)
            request = self.request_at(request, spec, self.boot)
            key = state.pending.sort_key(job)
            jobs.append(Pending(job.id, key, spec, request, array, mode))
        return sorted(jobs, key=lambda job: job.key)

    def request_at(self, request: ResourceRequest, spec: Spec, start: float) -> ResourceRequest:
        """Return a request without nodes that end too soon for this start."""
        needed = 0 if spec.training is not None else spec.limit or 0
        until = start + self.at - self.boot + needed + END_GRACE_SECONDS
        ends = ((facts.name, facts.ends_at) for facts in self.state.record.nodes.values())
        ending = [name for name, end in ends if end is not None and end <= until]
        return replace(request, not_nodes=tuple(dict.fromkeys((*request.not_nodes, *ending))))

    def running(self) -> list[Job]:
        return [job for _, job in sorted(self.state.running.items())]

    def can_stop(self, job: Job) -> bool:
        """Whether a job can be asked to stop."""
        is_running = job.state is JobState.RUNNING and not _is_asked_to_stop(job)
        return job.id in self.state.preemptible and is_running

    def victim_key(self, job: Job) -> tuple[float, ...]:
        return victim_key(self.state, job, self.at)[0]

    def quota_blocks(self, job: Pending) -> bool:
        """Whether the limit of its array or queue keeps a job from starting."""
        limit, jobs = job.spec.array_limit, self.running()
        members = [other for other in jobs if (other.array or other.id) == job.array]
        return (limit is not None and len(members) >= limit) or self.queue_quota_blocks(job)

    def queue_quota_blocks(self, job: Pending) -> bool:
        """Whether the limit of its queue keeps a job from starting."""
        queue = self.state.record.queues.get(job.spec.queue)
        if queue is None:
            return False
        peers = [each for each in self.running() if self.state.spec(each).queue == queue.name]
        if queue.max_running is not None and len(peers) >= queue.max_running:
            return True
        used = sum(_held(other).gpu_amount for other in peers)
        return queue.max_gpus is not None and used + job.request.gpu_amount > queue.max_gpus

    def releases(self, without: Callable[[Job], bool]) -> list[tuple[float, Placement]]:
        """Return the latest ends and placements of running jobs, the first end first."""
        jobs = self.state.running
        ends = [(end, id) for end, id in self.state.release_times if not without(jobs[id])]
        return [(end, _held(jobs[id])) for end, id in sorted(ends)]

    # -- starts -----------------------------------------------------------------------------

    def run(self) -> Iterator[Decision]:
        """Yield starts, then withdrawn and new stop requests."""
        blocked_queues = set[str]()
        for job in self.pending():
            if job.is_strict and self.queue_quota_blocks(job):
                blocked_queues.add(job.spec.queue)
            if job.spec.queue in blocked_queues or self.quota_blocks(job):
                continue
            yield from self.protect(job)
            placement = self.backfill.find_start(
                job, self.ledger_for(job), lambda job=job: self.blocked_before(job)
            )
            if placement is not None:
                self.has_decided = True
                yield "start", job.id, placement
                self.backfill.on_start(placement)
                self.on_start(job, placement)
            elif job.is_strict:
                blocked_queues.add(job.spec.queue)
        self.has_decided = self.has_revoked = False
        yield from self.preempt()

    def blocked_before(self, job: Pending) -> list[Pending]:
        """Return the protected jobs before a job that no quota and no strict order blocks."""
        strict_queues, blocked = set[str](), []
        for other in self.pending():
            if other.key >= job.key:
                break
            if other.is_strict and other.spec.queue in strict_queues:
                continue
            quota_blocks = self.quota_blocks(other)
            if other.is_strict and (not quota_blocks or self.queue_quota_blocks(other)):
                strict_queues.add(other.spec.queue)  # only its first job may start
            if other.is_protected and not quota_blocks:
                blocked.append(other)
        return blocked

    def protect(self, job: Pending) -> Iterator[Decision]:
        """Before a job starts that could never be preempted, preempt for the jobs before it."""
        saves_work = job.spec.training is not None or job.spec.early_signal is not None
        if saves_work and not job.spec.non_preemptible:
            return
        if self.ledger_for(job).find(job.request) is not None:
            ahead = [other for other in self.pending() if other.key < job.key]
            yield from self.preempt_for_all(ahead)

    # -- nominations ------------------------------------------------------------------------

    def derive_nominations(self) -> None:
        """Nominate to each preemptor what its victims free, in queue order.

        `future` is what is free once all stopping jobs have ended, less what is nominated.
        """
        self.future, self.nominated = self.now(), dict[int, Placement]()
        self.waiting: set[int] = set()
        """Jobs that count on future capacity that is not held for them."""
        if not self.state.preemptible:
            return
        pending, stopping = self.pending(), [job for job in self.running() if _is_stopping(job)]
        for preemptor in pending:
            jobs = [job for job in self.running() if _preemptor(job) == preemptor.id]
            self.release_all(job for job in jobs if _is_stopping(job))
            names = {part.node for job in jobs for part in _held(job).parts}
            if preemptor.request.node_count > 1:
                placement = self.future.find(preemptor.request) if jobs else None
            else:
                placement = self.future.find_on(names, preemptor.request)
            if placement is not None:
                self.future.allocate(placement)
                self.nominated[preemptor.id] = placement
        preemptors = {job.id for job in pending}
        self.release_all(job for job in stopping if _preemptor(job) not in preemptors)

    def ledger_for(self, job: Pending) -> Ledger:
        """Return what is free now, less what is nominated to jobs before this one."""
        ledger = self.now()
        for other in self.pending():
            if other.id in self.nominated and other.key < job.key:
                ledger.withhold(self.nominated[other.id])
        return ledger

    def on_start(self, job: Pending, placement: Placement) -> None:
        """Take over the start of a job; derive all again if it has devices nominated to others."""
        if job.id in self.nominated:
            self.future.release(self.nominated.pop(job.id))
        if self.future.is_free(placement):
            self.future.allocate(placement)
        else:
            self.derive_nominations()

    def find_in_future(self, job: Pending) -> Placement | None:
        """Find devices in the future capacity, or nominated to jobs after this one.

        Nominations are revoked from the last job on, until the request fits.
        """
        behind = [other.id for other in self.pending()
                  if other.id in self.nominated and other.key > job.key]  # fmt: skip
        revoked: list[int] = []
        while (placement := self.future.find(job.request)) is None:
            if not behind:
                for id in revoked:
                    self.future.allocate(self.nominated[id])
                return None
            revoked.append(behind.pop())
            self.future.release(self.nominated[revoked[-1]])
        for id in revoked:
            del self.nominated[id]
            self.has_revoked = True
        return placement

    # -- preemption -------------------------------------------------------------------------

    def preempt(self) -> Iterator[Decision]:
        """Withdraw obsolete stop requests, then preempt for all jobs that remain blocked."""
        if not self.state.preemptible:
            return
        obsolete = [job.id for job in self.running() if self.is_obsolete(job)]
        for id in obsolete:
            self.has_decided = True
            yield "resume", id, None
        if obsolete:
            self.derive_nominations()
            self.stuck.clear()
        yield from self.preempt_for_all(self.pending())

    def is_obsolete(self, job: Job) -> bool:
        """Whether the preemptor of a job is no longer pending or no longer outranks it."""
        accepts_stop = job.progress is not None and job.progress.accepts_stop
        if _preemptor(job) is None or job.state is not JobState.RUNNING or not accepts_stop:
            return False
        preemptor = next((other for other in self.pending() if other.id == _preemptor(job)), None)
        if preemptor is None:
            return True
        if preemptor.key[0] != -job.priority:
            return preemptor.key[0] > -job.priority
        return not self.state.preempts(job) or self.victim_key(job)[1] <= preemptor.key[1]

    def preempt_for_all(self, jobs: Iterable[Pending]) -> Iterator[Decision]:
        for job in jobs:
            if job.id in {*self.nominated, *self.waiting, *self.stuck}:
                continue
            if job.is_strict and self.queue_quota_blocks(job):
                self.stuck_queues.add(job.spec.queue)
            if job.spec.queue not in self.stuck_queues and not self.quota_blocks(job):
                yield from self.preempt_for(job)

    def preempt_for(self, job: Pending) -> Iterator[Decision]:
        """Let a job wait for future capacity, or ask a minimal set of victims to stop for it."""
        placement, victims = None, list[Job]()
        if self.would_start(job, []):
            placement = self.find_in_future(job)
            if placement is None:
                victims = self.select_victims(job)
                self.release_all(victims)
                if victims and not self.would_start(job, victims):
                    self.allocate_all(victims)
                    victims = []
        for victim in victims:
            self.has_decided = True
            yield "stop", victim.id, job.id
        if victims:
            placement = self.future.find(job.request)
        if placement is not None:
            self.future.allocate(placement)
            if any(_preemptor(other) == job.id for other in self.running()):
                self.nominated[job.id] = placement
            else:
                self.waiting.add(job.id)
            return
        self.stuck.add(job.id)
        if job.is_strict:
            self.stuck_queues.add(job.spec.queue)

    def would_start(self, job: Pending, victims: list[Job]) -> bool:
        """Whether no reservation would block a job that fits into the future capacity."""
        blocked = [other for other in self.blocked_before(job) if other.id not in self.nominated]
        if not blocked or self.future.find(job.request) is None:
            return True
        ids = {victim.id for victim in victims}
        backfill = self.backfill_type(
            self, self.future, lambda other: _is_stopping(other) or other.id in ids
        )
        return backfill.find_start(job, self.future, lambda: blocked) is not None

    def release_all(self, victims: Iterable[Job]) -> None:
        for victim in victims:
            self.future.release(_held(victim))

    def allocate_all(self, victims: Iterable[Job]) -> None:
        for victim in victims:
            self.future.allocate(_held(victim))

    # -- victims ----------------------------------------------------------------------------

    def select_victims(self, job: Pending) -> list[Job]:
        """Return a minimal set of victims; empty if none helps."""
        request, trial = job.request, self.future.copy()
        victims: list[Job] = []
        for name in self.nodes_with_victims(job):
            if fit(trial.nodes[name], request.part) is None:
                found = self.victims_on(trial, name, job, victims)
                if found and request.node_count == 1:
                    return found
                for victim in found:
                    trial.release(_held(victim))
                victims += found
            if victims and trial.count_feasible(request) >= request.node_count:
                break
        if not victims or trial.find(request) is None:
            return []
        return self.without_unneeded(trial, victims, lambda: trial.find(request) is not None)

    def nodes_with_victims(self, job: Pending) -> list[str]:
        """Return nodes where enough becomes free by victims that the job outranks, best first.

        The best node is the one where the last victim that is needed comes first in the order.
        """
        last = [(victim, name) for name in self.future.nodes
                if name not in job.request.not_nodes
                and (victim := self.last_victim(name, job.request)) is not None
                and victim[:2] > self.min_victim(job)]  # fmt: skip
        return [name for _, name in sorted(last, reverse=True)]

    def min_victim(self, job: Pending) -> tuple[float, float]:
        """Return minus the priority and the rank that the key of a victim must exceed."""
        policy = self.state.policy_of(job.spec.queue)
        return job.key[0], job.key[1] + log2(policy.hysteresis) if policy.preempts else inf

    def last_victim(self, name: str, request: ResourceRequest) -> tuple[float, ...] | None:
        """Return the key of the last victim on a node that is needed for these amounts."""
        node = self.future.nodes[name].copy()
        for victim in self.victims_in_order(name) if node.unavailable_reason is None else ():
            node.release(allocation for part in _held(victim).parts if part.node == name
                         for allocation in part.allocations)  # fmt: skip
            if (
                max_request_amount([*available_on(node, GPU).values()]) >= gpus_needed(request)
                and total_available(node, CPU) >= request.cpus
                and total_available(node, MEMORY) >= request.memory
            ):
                return self.victim_key(victim)
        return None

    def victims_in_order(self, name: str) -> list[Job]:
        """Return the jobs on a node that can stop: the lowest priority, then the highest rank."""
        jobs = [job for job in self.running() if self.can_stop(job) and _held(job).on(name)]
        return sorted(jobs, key=self.victim_key, reverse=True)

    def victims_on(self, ledger: Ledger, name: str, job: Pending, chosen: list[Job]) -> list[Job]:
        """Return the victims that a part of a request needs on a node; empty if none help."""
        trial, victims = ledger.copy(), list[Job]()
        types = {type for type, _ in non_gpu_amounts(job.request)} | {GPU}
        fits = lambda: fit(trial.nodes[name], job.request.part) is not None  # noqa: E731
        for victim in self.victims_in_order(name):
            part = _held(victim).on(name)
            assert part is not None
            helps = job.request.exclusive or any(held.type in types for held in part.allocations)
            if victim in chosen or not helps or not self.may_be_victim(job, victim):
                continue
            trial.release(_held(victim))
            victims.append(victim)
            if fits():
                return self.without_unneeded(trial, victims, fits)
        return []

    def may_be_victim(self, job: Pending, victim: Job) -> bool:
        """Whether a running job may stop for a pending one."""
        if self.victim_key(victim)[:2] <= self.min_victim(job):
            return False
        if victim.priority != -job.key[0]:
            return True
        spec = self.state.spec(victim)
        accepts_stop = victim.progress is not None and victim.progress.accepts_stop
        policy = self.state.policy_of(spec.queue)
        has_run = self.at - (victim.started_at or 0.0) >= policy.quantum
        return policy.preempts and has_run and (accepts_stop or spec.early_signal is not None)

    def without_unneeded(
        self, trial: Ledger, victims: list[Job], fits: Callable[[], bool]
    ) -> list[Job]:
        """Return the victims without those that may go on, the first to preempt first."""
        needed = []
        for victim in victims:
            trial.allocate(_held(victim))
            if not fits():
                trial.release(_held(victim))
                needed.append(victim)
        return needed


# -- reservations ---------------------------------------------------------------------------


class Easy:
    """EASY backfill: one reservation, for the first protected job that is blocked."""

    def __init__(self, plan: Plan, ledger: Ledger, without: Callable[[Job], bool]) -> None:
        self.plan, self.ledger, self.without = plan, ledger, without
        self.shadow_time: float | None = None
        self.started_beside = False

    @property
    def releases(self) -> list[tuple[float, Placement]]:
        return self.plan.releases(self.without)

    def find_start(
        self, job: Pending, ledger: Ledger, blocked: Callable[[], Iterable[Pending]]
    ) -> Placement | None:
        """Return where a job may start without a delay of the reserved job."""
        placement = ledger.find(job.request)
        if placement is None:
            return None
        if self.shadow_time is None:
            self.reserve(blocked())
        end = self.plan.boot + job.duration
        self.started_beside = self.shadow_time is not None and (
            end == inf or end > self.shadow_time
        )
        return self.beside(ledger).find(job.request) if self.started_beside else placement

    def on_start(self, placement: Placement) -> None:
        self.ledger.allocate(placement)
        if self.started_beside:
            self.after_start.withhold(placement)

    def reserve(self, blocked: Iterable[Pending]) -> None:
        """Reserve for the first job that fits after the end of some running jobs."""
        for job in blocked:
            ledger = self.ledger.copy()
            for end, placement in self.releases:
                ledger.release(placement)
                request = self.plan.request_at(job.request, job.spec, end)
                found = ledger.find(request)
                if found is not None:
                    found = prefer_busy_devices(request, found, ledger, self.ledger)  # type: ignore[arg-type]
                    ledger.allocate(found)
                    self.shadow_time, self.after_start = end, ledger
                    self.reserved_nodes = [part.node for part in found.parts]
                    return

    def beside(self, ledger: Ledger) -> Ledger:
        """Return what is free and stays free once the reserved job has started."""
        capacity = ledger.copy()
        for name in self.reserved_nodes:
            for device in capacity.nodes[name].devices():
                device.limit_to(self.after_start.nodes[name].by_name[device.type, device.name])
        return capacity


@dataclass(frozen=True)
class Slot:
    """The devices of a blocked job from a start to an end."""

    start: float
    end: float
    placement: Placement

    def overlaps(self, start: float, end: float) -> bool:
        return (self.start < end or end == inf) and (start < self.end or self.end == inf)


class Conservative(Easy):
    """Conservative backfill: one slot for each blocked job of a conservative queue."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.slots: list[Slot] = []
        self.booked: set[int] = set()

    def find_start(
        self, job: Pending, ledger: Ledger, blocked: Callable[[], Iterable[Pending]]
    ) -> Placement | None:
        if ledger.find(job.request) is None:
            return None
        for other in blocked():
            is_conservative = other.mode is BackfillMode.CONSERVATIVE
            if other.id in self.booked or (self.slots and not is_conservative):
                continue
            self.booked.add(other.id)
            slot = self.earliest_slot(other)
            if slot is not None:
                self.slots.append(slot)
        free, now = ledger.copy(), self.plan.boot
        self.withhold(free, now, now + job.duration)
        return free.find(job.request)

    def on_start(self, placement: Placement) -> None:
        self.ledger.allocate(placement)

    def earliest_slot(self, job: Pending) -> Slot | None:
        """Return the first time from which the request is free for as long as the job may run."""
        now, releases = self.plan.boot, self.releases
        times = {now, *(end for end, _ in releases), *(slot.end for slot in self.slots)}
        for start in sorted(time for time in times if time >= now):
            free = self.ledger.copy()
            for end, placement in releases:
                if end <= start:
                    free.release(placement)
            self.withhold(free, start, start + job.duration)
            request = self.plan.request_at(job.request, job.spec, start)
            found = free.find_on(free.nodes, request)
            if found is not None:
                found = prefer_busy_devices(request, found, free, self.ledger)  # type: ignore[arg-type]
                return Slot(start, start + job.duration, found)
        return None

    def withhold(self, ledger: Ledger, start: float, end: float) -> None:
        """Leave of each device what is free of slots during the whole interval."""
        slots = [slot for slot in self.slots if slot.overlaps(start, end)]
        changes: dict[tuple[str, str, str], list[tuple[float, int, int]]] = {}
        for slot in slots:
            for name, held in _allocations(slot.placement):
                of_device = changes.setdefault((name, held.type, held.device), [])
                of_device.append((max(slot.start, start), -held.amount, -held.memory))
                if slot.end < inf:
                    of_device.append((slot.end, held.amount, held.memory))
        for release, placement in self.releases:
            for name, held in _allocations(placement) if start < release < end else ():
                if (name, held.type, held.device) in changes:
                    change = (release, held.amount, held.memory)
                    changes[name, held.type, held.device].append(change)
        for (name, type, device), of_device in changes.items():
            amount = memory = least = least_memory = 0
            for time, more, more_memory in sorted(of_device, key=lambda one: (one[0], -one[1])):
                if end <= time < inf:
                    break
                amount, memory = amount + more, memory + more_memory
                least, least_memory = min(least, amount), min(least_memory, memory)
            ledger.nodes[name].by_name[type, device].withhold(-least, -least_memory)


# -- comparison -----------------------------------------------------------------------------


def reference_cycle(state: State, at: float, boot: float) -> Iterator[Decision]:
    """Yield the decisions of one cycle; the caller applies each before it asks for the next."""
    for _ in range(MAX_PLANS):
        plan = Plan(state, at, boot)
        yield from plan.run()
        if not (plan.has_revoked and plan.has_decided):
            return


def assert_same_decisions(scenario: Scenario) -> None:
    """Run one cycle of the planner, and assert that the reference planner decides the same."""
    state, now, boot = scenario.state, scenario.now, scenario.boot
    for event in pre_command_events(state, now, boot):
        scenario.tell(event)
    refresh_ranks(state, now)
    if state.distinguishes_models:  # a global assignment decides, which is left out here
        scenario.plan()
        return
    reference, decided = reference_cycle(state, now, boot), list[Decision]()
    for event in plan_events(state, now, boot):
        decision, expected = _decision_of(event), next(reference, None)
        assert decision == expected, (decided, decision, expected)
        decided.append(decision)
        scenario.tell(event)
    expected = next(reference, None)
    assert expected is None, (decided, None, expected)


def _decision_of(event: e.Event) -> Decision:
    match event:
        case e.AttemptPlanned():
            return "start", event.job, event.placement
        case e.PreemptionRequested():
            return "stop", event.job, event.by
        case e.PreemptionCancelled():
            return "resume", event.job, None
    raise AssertionError(event)
