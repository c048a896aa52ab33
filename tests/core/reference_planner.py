"""The reference planner: one planning cycle as a plain greedy pass.

It defines what `stoker.core.planner` decides. It scans every pending job in order, every node and
every running job, and keeps nothing between cycles: no index, cache, scan scope, class, threshold
or budget. It reads the state once, when it is created, and never changes it.

What it takes as given: the sort key of each pending job and the victim key of each running job
(ranks), the latest end of each running job, and the demand histogram. What it calls: `fit` of one
node, the costs of one node, and the choice of busy devices for a reservation. What it leaves out:
elastic jobs, GPUs that are shared by memory, and the global heterogeneous assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf, log2
from typing import Any

from msgspec.structs import replace as replace_struct

from core.scenario import Scenario
from stoker.core import events as e
from stoker.core.cluster.fragmentation import max_request_amount, placement_cost
from stoker.core.cluster.free_index import free_resources
from stoker.core.cluster.node import Node
from stoker.core.model.hardware import Placement
from stoker.core.model.job import Job
from stoker.core.model.lifecycle import JobState
from stoker.core.model.resources import CPU, GPU, MEMORY, ResourceRequest
from stoker.core.model.spec import Spec
from stoker.core.placement.capacity import available_on, total_available
from stoker.core.placement.fit import fit
from stoker.core.placement.node_lookup import demand_of
from stoker.core.placement.placer import _packing_score
from stoker.core.placement.request_shape import gpus_needed, is_amount_only, non_gpu_amounts
from stoker.core.planner.cycle import plan_events, pre_command_events
from stoker.core.policies.policy import BackfillMode
from stoker.core.policies.ranking import OVERDUE_RANK
from stoker.core.reservation.device_choice import prefer_busy_devices
from stoker.core.running.release_times import KILL_GRACE_SECONDS
from stoker.core.state.reranking import refresh_ranks
from stoker.core.state.state import State
from stoker.core.state.timers import latest_end_of

SortKey = tuple[float, ...]
MAX_PLANS = 4
"""Plans in one cycle, as in `planner.cycle`."""


@dataclass(frozen=True)
class Start:
    """A job starts on these devices."""

    job: int
    placement: Placement


@dataclass(frozen=True)
class Stop:
    """A running job is asked to stop for a pending one."""

    job: int
    preemptor: int | None


@dataclass(frozen=True)
class Resume:
    """The stop request of a running job is withdrawn."""

    job: int


Decision = Start | Stop | Resume
Decisions = Iterator[Decision]
"""Yields decisions; may be sent another placement of the same cost for a start."""


@dataclass(frozen=True)
class Pending:
    """A pending job."""

    id: int
    key: SortKey
    spec: Spec
    request: ResourceRequest
    array: int
    """Id of its array, if the array has a limit of running members."""

    @property
    def is_overdue(self) -> bool:
        return self.key[1] <= OVERDUE_RANK / 2


@dataclass(frozen=True)
class Running:
    """A job that holds devices."""

    id: int
    spec: Spec
    placement: Placement
    array: int
    priority: int
    victim_key: tuple[float, ...] | None
    """Its place in the order of victims, if it is preemptible."""
    started_at: float | None
    is_running: bool
    is_completing: bool
    accepts_stop: bool
    is_asked_to_stop: bool
    preemptor: int | None
    stop_timed_out: bool
    end: float
    """The latest end."""
    end_unasked: float
    """The latest end if it is not asked to stop."""

    @property
    def is_stopping(self) -> bool:
        """Whether its devices become free soon."""
        asked = self.is_asked_to_stop and not self.stop_timed_out and self.is_running
        return self.is_completing or asked

    @property
    def can_stop(self) -> bool:
        """Whether it can be asked to stop."""
        return self.victim_key is not None and self.is_running and not self.is_asked_to_stop


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
        for part in placement.parts:
            for held in part.allocations:
                self.nodes[part.node].device(held).withhold(held.amount, held.memory)

    def is_free(self, placement: Placement) -> bool:
        return all(
            self.nodes[part.node].unavailable_reason is None
            and self.nodes[part.node].device(held).available >= held.amount
            and self.nodes[part.node].device(held).drained is None
            for part in placement.parts
            for held in part.allocations
        )

    # -- placement ----------------------------------------------------------------------

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
        demand, histogram = (
            demand_of(self.state.cluster, request),
            self.state.cluster.demand_histogram,
        )
        ranked, others = [], []
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
    return replace_struct(parts[0], other_parts=tuple(parts[1:])) if parts[1:] else parts[0]


class ReferencePlanner:
    """One planning cycle on a copy of the state."""

    def __init__(self, state: State, at: float, boot: float) -> None:
        self.state, self.at, self.boot = state, at, boot
        self.ledger = Ledger(state, state.cluster.nodes.values())
        self.running = {job.id: _running(state, job) for job in state.running.values()}
        self.pending = sorted(
            (_pending(state, state.jobs[id]) for id in state.pending.class_of),
            key=lambda job: job.key,
        )
        self.is_conservative = any(
            name == "conservative" for name, _ in state.record.policies.values()
        )
        self.modes = {job.spec.queue: state.backfill_mode(job.spec.queue) for job in self.pending}
        self.min_hysteresis = state.policies.min_hysteresis

    def cycle(self) -> Decisions:
        """Yield the decisions of one cycle."""
        for _ in range(MAX_PLANS):
            plan = Plan(self)
            yield from plan.run()
            if not (plan.has_revoked and plan.has_decided):
                return

    # -- quotas -------------------------------------------------------------------------

    def quota_blocks(self, job: Pending) -> bool:
        """Whether the limit of its array or queue keeps a job from starting."""
        limit = job.spec.array_limit
        members = [other for other in self.running.values() if other.array == job.array]
        return (limit is not None and len(members) >= limit) or self.queue_quota_blocks(job)

    def queue_quota_blocks(self, job: Pending) -> bool:
        """Whether the limit of its queue keeps a job from starting."""
        queue = self.state.record.queues.get(job.spec.queue)
        if queue is None:
            return False
        peers = [other for other in self.running.values() if other.spec.queue == queue.name]
        if queue.max_running is not None and len(peers) >= queue.max_running:
            return True
        used = sum(other.placement.gpu_amount for other in peers)
        return queue.max_gpus is not None and used + job.request.gpu_amount > queue.max_gpus

    def may_be_first(self, job: Pending) -> bool:
        """Whether later jobs of a strict queue wait for this one: not for members of an array."""
        return self.queue_quota_blocks(job) or not self.quota_blocks(job)

    def is_strict(self, job: Pending) -> bool:
        return self.modes[job.spec.queue] is BackfillMode.STRICT

    def is_protected(self, job: Pending) -> bool:
        """Whether later jobs must not delay a job that is blocked."""
        mode = self.modes[job.spec.queue]
        if mode is BackfillMode.OVERDUE_ONLY:
            return job.is_overdue or job.spec.limit is not None
        return mode is not BackfillMode.UNRESTRICTED

    def releases(self, without: Callable[[Running], bool]) -> list[tuple[float, Placement]]:
        """Return the latest ends and placements of running jobs, the first end first."""
        ends = sorted((job.end, job.id) for job in self.running.values() if not without(job))
        return [(end, self.running[id].placement) for end, id in ends]

    # -- decisions change the copy of the state ---------------------------------------------

    def start(self, job: Pending, placement: Placement) -> None:
        self.pending.remove(job)
        self.ledger.allocate(placement)
        end = inf if job.spec.limit is None else self.boot + job.spec.limit + KILL_GRACE_SECONDS
        self.running[job.id] = Running(
            job.id, job.spec, placement, job.array, int(-job.key[0]), None, None, False, False,
            False, False, None, False, end, end,
        )  # fmt: skip

    def stop(self, victim: int, preemptor: int) -> None:
        job = self.running[victim]
        is_ended = not job.accepts_stop and job.spec.early_signal is None
        self.running[victim] = replace(
            job, is_asked_to_stop=True, preemptor=preemptor, end=self.boot, stop_timed_out=False,
            is_running=not is_ended, is_completing=is_ended,
        )  # fmt: skip

    def resume(self, victim: int) -> None:
        job = self.running[victim]
        self.running[victim] = replace(
            job, is_asked_to_stop=False, preemptor=None, end=job.end_unasked
        )


def _pending(state: State, job: Job) -> Pending:
    spec = state.spec(job)
    array = (job.array or job.id) if spec.array_limit is not None else 0
    request = state.effective_request(job, spec)
    return Pending(job.id, state.pending.sort_key(job), spec, request, array)


def _running(state: State, job: Job) -> Running:
    assert job.placement is not None
    spec, progress = state.spec(job), job.progress
    stop = progress.stop if progress is not None else None
    unasked = job
    if progress is not None and stop is not None:
        unasked = replace_struct(job, progress=replace_struct(progress, stop=None))
    return Running(
        id=job.id,
        spec=spec,
        placement=job.placement,
        array=(job.array or job.id) if spec.array_limit is not None else 0,
        priority=job.priority,
        victim_key=state.victims.key_of(job.id) if job.id in state.victims else None,
        started_at=job.started_at,
        is_running=job.state is JobState.RUNNING,
        is_completing=job.state is JobState.COMPLETING,
        accepts_stop=progress is not None and progress.accepts_stop,
        is_asked_to_stop=stop is not None,
        preemptor=stop.preemptor if stop is not None else None,
        stop_timed_out=stop is not None and stop.timed_out,
        end=next(end for end, id in state.release_times if id == job.id),
        end_unasked=latest_end_of(state, unasked),
    )


class Plan:
    """One plan: start what may start, then preempt for what is left."""

    def __init__(self, planner: ReferencePlanner) -> None:
        self.planner = planner
        self.has_decided = self.has_revoked = False
        self.backfill = _backfill(planner, planner.ledger)
        self.stuck: set[int] = set()
        """Jobs that no preemption helps in this plan."""
        self.stuck_queues: set[str] = set()
        """Queues of strict order with such a job."""
        self.derive_nominations()

    def run(self) -> Decisions:
        """Yield starts, then withdrawn and new stop requests."""
        planner, blocked_queues = self.planner, set[str]()
        for job in list(planner.pending):
            if planner.is_strict(job) and planner.queue_quota_blocks(job):
                blocked_queues.add(job.spec.queue)
            if job.spec.queue in blocked_queues or planner.quota_blocks(job):
                continue
            yield from self.protect(job)
            placement = self.backfill.try_start(
                job, self.ledger_for(job), lambda job=job: self.blocked_before(job)
            )
            if placement is None:
                if planner.is_strict(job):
                    blocked_queues.add(job.spec.queue)
                continue
            self.has_decided = True
            yield Start(job.id, placement)
            self.backfill.on_start(job, placement)
            planner.start(job, placement)
            self.update_nominations(job, placement)
        self.has_revoked = False
        yield from self.preempt()

    def blocked_before(self, job: Pending) -> list[Pending]:
        """Return the protected jobs before a job that no quota and no strict order blocks."""
        planner, strict_queues, blocked = self.planner, set[str](), []
        for other in planner.pending:
            if other.key >= job.key:
                break
            queue = other.spec.queue
            if planner.is_strict(other) and queue in strict_queues:
                continue
            if planner.is_strict(other) and planner.may_be_first(other):
                strict_queues.add(queue)  # only its first job may start
            if planner.is_protected(other) and not planner.quota_blocks(other):
                blocked.append(other)
        return blocked

    # -- nominations ------------------------------------------------------------------------

    def derive_nominations(self) -> None:
        """Nominate to each preemptor what its victims free, in queue order.

        `future` is what is free once all stopping jobs have ended, less what is nominated.
        """
        planner, jobs = self.planner, self.planner.running.values()
        self.future = planner.ledger.copy()
        self.nominated: dict[int, Placement] = {}
        self.waiting: set[int] = set()
        """Jobs that count on future capacity that is not held for them."""
        if not any(job.victim_key for job in jobs):
            return
        is_pending = {job.id for job in planner.pending}
        stopping = [job for job in sorted(jobs, key=lambda job: job.id)
                    if job.is_asked_to_stop or job.is_completing]  # fmt: skip
        for preemptor in planner.pending:
            victims = [job for job in stopping if job.preemptor == preemptor.id]
            if not victims:
                continue
            for victim in victims:
                if victim.is_stopping:
                    self.future.release(victim.placement)
            names = {part.node for victim in victims for part in victim.placement.parts}
            placement = self.search(preemptor.request, everywhere=False, names=names)
            if placement is not None:
                self.future.allocate(placement)
                self.nominated[preemptor.id] = placement
        for job in stopping:
            if job.preemptor not in is_pending and job.is_stopping:
                self.future.release(job.placement)

    def ledger_for(self, job: Pending) -> Ledger:
        """Return what is free now, less what is nominated to jobs before this one."""
        ahead = [
            self.nominated[other.id]
            for other in self.planner.pending
            if other.id in self.nominated and other.key < job.key
        ]
        if not ahead:
            return self.planner.ledger
        ledger = self.planner.ledger.copy()
        for placement in ahead:
            ledger.withhold(placement)
        return ledger

    def update_nominations(self, job: Pending, placement: Placement) -> None:
        """Take over the start of a job; derive all again if it has devices nominated to others."""
        if job.id in self.nominated:
            self.future.release(self.nominated.pop(job.id))
        if self.future.is_free(placement):
            self.future.allocate(placement)
        else:
            self.derive_nominations()

    def search(
        self, request: ResourceRequest, everywhere: bool, names: Iterable[str] | None = None
    ) -> Placement | None:
        if everywhere or request.node_count > 1:
            return self.future.find(request)
        return self.future.find_on(self.future.nodes if names is None else names, request)

    def find_in_future(self, job: Pending, everywhere: bool) -> Placement | None:
        """Find devices in the future capacity, or nominated to jobs after this one.

        Nominations are revoked from the last job on, until the request fits.
        """
        placement = self.search(job.request, everywhere)
        if placement is not None:
            return placement
        behind = [other.id for other in self.planner.pending
                  if other.id in self.nominated and other.key > job.key]  # fmt: skip
        for count in range(1, len(behind) + 1):
            revoked = behind[-count:]
            self.future.release(self.nominated[revoked[0]])
            placement = self.search(job.request, everywhere)
            if placement is not None:
                for id in revoked:
                    del self.nominated[id]
                self.has_revoked = True
                return placement
        for id in behind:
            self.future.allocate(self.nominated[id])
        return None

    # -- preemption -------------------------------------------------------------------------

    def protect(self, job: Pending) -> Decisions:
        """Before a job starts that could never be preempted, preempt for the jobs before it."""
        saves_work = job.spec.training is not None or job.spec.early_signal is not None
        if saves_work and not job.spec.non_preemptible:
            return
        if self.ledger_for(job).find(job.request) is None:
            return
        everywhere = self.backfill.has_reservation or bool(self.protected_before(job))
        ahead = [other for other in self.planner.pending if other.key < job.key]
        yield from self.preempt_for_all(ahead, everywhere)

    def preempt(self) -> Decisions:
        """Withdraw obsolete stop requests, then preempt for all jobs that remain blocked."""
        planner = self.planner
        if not any(job.victim_key for job in planner.running.values()):
            return
        obsolete = [job.id for _, job in sorted(planner.running.items()) if self.is_obsolete(job)]
        for id in obsolete:
            self.has_decided = True
            yield Resume(id)
            planner.resume(id)
        if obsolete:
            self.derive_nominations()
            self.stuck.clear()
        yield from self.preempt_for_all(planner.pending, self.backfill.has_reservation)

    def is_obsolete(self, job: Running) -> bool:
        """Whether the preemptor of a job is no longer pending or no longer outranks it."""
        if job.preemptor is None or not job.is_running or not job.accepts_stop:
            return False
        preemptor = next(
            (other for other in self.planner.pending if other.id == job.preemptor), None
        )
        if preemptor is None:
            return True
        if preemptor.key[0] != -job.priority:
            return preemptor.key[0] > -job.priority
        if not self.planner.state.policy_of(job.spec.queue).preempts:
            return True
        assert job.victim_key is not None
        return job.victim_key[1] <= preemptor.key[1]

    def preempt_for_all(self, jobs: Iterable[Pending], everywhere: bool) -> Decisions:
        for job in list(jobs):
            if job.id in {*self.nominated, *self.waiting, *self.stuck}:
                continue
            if self.planner.is_strict(job) and self.planner.queue_quota_blocks(job):
                self.stuck_queues.add(job.spec.queue)
            if job.spec.queue in self.stuck_queues or self.planner.quota_blocks(job):
                continue
            yield from self.preempt_for(job, everywhere)

    def preempt_for(self, job: Pending, everywhere: bool) -> Decisions:
        """Let a job wait for future capacity, or ask a minimal set of victims to stop for it."""
        planner = self.planner
        may_be_blocked = bool(self.protected_before(job))
        is_futile = (
            may_be_blocked
            and self.future.find(job.request) is not None
            and not self.would_start(job, [])
        )
        placement, victims = None, list[int]()
        if not is_futile:
            placement = self.find_in_future(job, everywhere or planner.is_strict(job))
        if placement is None and not is_futile:
            victims = self.select_victims(job)
            self.release_all(victims)
            if victims and may_be_blocked and not self.would_start(job, victims):
                self.allocate_all(victims)
                victims = []
            for victim in victims:
                self.has_decided = True
                yield Stop(victim, job.id)
                planner.stop(victim, job.id)
            if victims:
                placement = self.future.find(job.request)
        if placement is not None:
            self.future.allocate(placement)
            if any(other.preemptor == job.id for other in planner.running.values()):
                self.nominated[job.id] = placement
            else:
                self.waiting.add(job.id)
            return
        self.stuck.add(job.id)
        if planner.is_strict(job):
            self.stuck_queues.add(job.spec.queue)

    def protected_before(self, job: Pending) -> list[Pending]:
        """Return the protected jobs before a job that have no nomination."""
        return [other for other in self.blocked_before(job) if other.id not in self.nominated]

    def would_start(self, job: Pending, victims: list[int]) -> bool:
        """Whether no reservation would block a job in the future capacity, without victims."""
        backfill = _backfill(
            self.planner, self.future, lambda other: other.is_stopping or other.id in victims
        )
        return backfill.try_start(job, self.future, lambda: self.protected_before(job)) is not None

    def release_all(self, victims: list[int]) -> None:
        for victim in victims:
            self.future.release(self.planner.running[victim].placement)

    def allocate_all(self, victims: list[int]) -> None:
        for victim in victims:
            self.future.allocate(self.planner.running[victim].placement)

    # -- victims ----------------------------------------------------------------------------

    def select_victims(self, job: Pending) -> list[int]:
        """Return a minimal set of victims; empty if none helps."""
        names, trial = self.nodes_with_victims(job), self.future.copy()
        if job.request.node_count == 1:
            for name in names:
                if victims := self.victims_on(trial, name, job, []):
                    return victims
            return []
        victims = []
        for name in names:
            if fit(trial.nodes[name], job.request.part) is not None:
                continue
            found = self.victims_on(trial, name, job, victims)
            for victim in found:
                trial.release(self.planner.running[victim].placement)
            victims += found
            if trial.count_feasible(job.request) >= job.request.node_count:
                break
        if not victims or trial.find(job.request) is None:
            return []
        return self.without_unneeded(trial, victims, lambda: trial.find(job.request) is not None)

    def nodes_with_victims(self, job: Pending) -> list[str]:
        """Return nodes where enough becomes free by victims that the job outranks, best first.

        The best node is the one where the last victim that is needed comes first in the order.
        """
        last = [(victim, name) for name in self.future.nodes
                if (victim := self.last_victim(name, job.request)) is not None
                and victim[:2] > self.min_victim(job)]  # fmt: skip
        return [name for _, name in sorted(last, reverse=True)]

    def min_victim(self, job: Pending) -> tuple[float, float]:
        """Return minus the priority and the rank that the key of a victim must exceed."""
        policy = self.planner.state.policy_of(job.spec.queue)
        return job.key[0], job.key[1] + log2(policy.hysteresis) if policy.preempts else inf

    def last_victim(self, name: str, request: ResourceRequest) -> tuple[float, ...] | None:
        """Return the key of the last victim on a node that is needed for these amounts."""
        node = self.future.nodes[name].copy()
        if node.unavailable_reason is not None:
            return None
        for victim in self.victims_in_order(name):
            for part in victim.placement.parts:
                if part.node == name:
                    node.release(part.allocations)
            enough = (
                max_request_amount(available_on(node, GPU).values()) >= gpus_needed(request)
                and total_available(node, CPU) >= request.cpus
                and total_available(node, MEMORY) >= request.memory
            )
            if enough:
                return victim.victim_key
        return None

    def victims_in_order(self, name: str) -> list[Running]:
        """Return the jobs on a node that can stop: the lowest priority, then the highest rank."""
        jobs = [
            job
            for job in self.planner.running.values()
            if job.can_stop and job.placement.on(name) is not None
        ]
        return sorted(jobs, key=lambda job: job.victim_key or (), reverse=True)

    def victims_on(self, ledger: Ledger, name: str, job: Pending, chosen: list[int]) -> list[int]:
        """Return the victims that a part of a request needs on a node; empty if none help."""
        trial, victims = ledger.copy(), list[int]()
        types = {type for type, _ in non_gpu_amounts(job.request)}
        types |= {GPU} if job.request.gpu_amount else set()
        fits = lambda: fit(trial.nodes[name], job.request.part) is not None  # noqa: E731
        for victim in self.victims_in_order(name):
            if victim.id in chosen or not self.may_be_victim(job, victim):
                continue
            part = victim.placement.on(name)
            assert part is not None
            if not job.request.exclusive and not any(
                held.type in types for held in part.allocations
            ):
                continue
            trial.release(victim.placement)
            victims.append(victim.id)
            if fits():
                return self.without_unneeded(trial, victims, fits)
        return []

    def may_be_victim(self, job: Pending, victim: Running) -> bool:
        """Whether a running job may stop for a pending one."""
        assert victim.victim_key is not None
        if victim.victim_key[:2] <= self.min_victim(job):
            return False
        if victim.priority != -job.key[0]:
            return True
        policy = self.planner.state.policy_of(victim.spec.queue)
        saves_work = victim.accepts_stop or victim.spec.early_signal is not None
        has_run = self.planner.at - (victim.started_at or 0.0) >= policy.quantum
        return policy.preempts and saves_work and has_run

    def without_unneeded(
        self, trial: Ledger, victims: list[int], fits: Callable[[], bool]
    ) -> list[int]:
        """Return the victims without those that may go on, the first to preempt first."""
        needed = []
        for victim in victims:
            placement = self.planner.running[victim].placement
            trial.allocate(placement)
            if not fits():
                trial.release(placement)
                needed.append(victim)
        return needed


# -- reservations ---------------------------------------------------------------------------


class Easy:
    """EASY backfill: one reservation, for the first protected job that is blocked."""

    def __init__(
        self, planner: ReferencePlanner, ledger: Ledger, without: Callable[[Running], bool]
    ) -> None:
        self.planner, self.ledger, self.without = planner, ledger, without
        self.shadow_time: float | None = None
        self.after_start: Ledger | None = None
        """What is free at the shadow time, once the blocked job has started."""

    @property
    def has_reservation(self) -> bool:
        return self.shadow_time is not None

    def try_start(
        self, job: Pending, ledger: Ledger, blocked: Callable[[], Iterable[Pending]]
    ) -> Placement | None:
        """Return where a job may start without a delay of the reserved job."""
        placement = ledger.find(job.request)
        if placement is None:
            return None
        if self.shadow_time is None:
            self.reserve(blocked())
        self.started_beside = self.shadow_time is not None and not self.ends_before(job)
        if not self.started_beside:
            return placement
        return self.beside(ledger).find(job.request)

    def ends_before(self, job: Pending) -> bool:
        assert self.shadow_time is not None
        limit = job.spec.limit
        return (
            limit is not None and self.planner.boot + limit + KILL_GRACE_SECONDS <= self.shadow_time
        )

    def on_start(self, job: Pending, placement: Placement) -> None:
        if self.started_beside and self.after_start is not None:
            self.after_start.withhold(placement)

    def reserve(self, blocked: Iterable[Pending]) -> None:
        """Reserve for the first job that fits after the end of some running jobs."""
        for job in blocked:
            ledger = self.ledger.copy()
            for end, placement in self.planner.releases(self.without):
                ledger.release(placement)
                found = ledger.find(job.request)
                if found is not None:
                    found = prefer_busy_devices(job.request, found, ledger, self.ledger)  # type: ignore[arg-type]
                    ledger.allocate(found)
                    self.shadow_time = end
                    self.after_start = ledger
                    self.reserved_nodes = [part.node for part in found.parts]
                    return

    def beside(self, ledger: Ledger) -> Ledger:
        """Return what is free and stays free once the reserved job has started."""
        assert self.after_start is not None
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

    @property
    def has_reservation(self) -> bool:
        return bool(self.slots)

    def try_start(
        self, job: Pending, ledger: Ledger, blocked: Callable[[], Iterable[Pending]]
    ) -> Placement | None:
        if ledger.find(job.request) is None:
            return None
        modes = self.planner.modes
        for other in blocked():
            conservative = modes[other.spec.queue] is BackfillMode.CONSERVATIVE
            if other.id in self.booked or (self.slots and not conservative):
                continue
            self.booked.add(other.id)
            slot = self.earliest_slot(other)
            if slot is not None:
                self.slots.append(slot)
        free = ledger.copy()
        self.withhold(free, self.planner.boot, self.planner.boot + _duration(job))
        return free.find(job.request)

    def on_start(self, job: Pending, placement: Placement) -> None:
        pass

    def earliest_slot(self, job: Pending) -> Slot | None:
        """Return the first time from which the request is free for as long as the job may run."""
        now, releases = self.planner.boot, self.planner.releases(self.without)
        times = {now, *(end for end, _ in releases), *(slot.end for slot in self.slots)}
        for start in sorted(time for time in times if time >= now):
            free = self.ledger.copy()
            for end, placement in releases:
                if end <= start:
                    free.release(placement)
            self.withhold(free, start, start + _duration(job))
            request = job.request
            found = (
                free.find(request) if request.node_count > 1 else free.find_on(free.nodes, request)
            )
            if found is not None:
                found = prefer_busy_devices(request, found, free, self.ledger)  # type: ignore[arg-type]
                return Slot(start, start + _duration(job), found)
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
        for release, placement in self.planner.releases(self.without):
            for name, held in _allocations(placement) if start < release < end else ():
                if (name, held.type, held.device) in changes:
                    changes[name, held.type, held.device].append(
                        (release, held.amount, held.memory)
                    )
        for (name, type, device), of_device in changes.items():
            amount = memory = least = least_memory = 0
            for time, more, more_memory in sorted(of_device, key=lambda one: (one[0], -one[1])):
                if end <= time < inf:
                    break
                amount, memory = amount + more, memory + more_memory
                least, least_memory = min(least, amount), min(least_memory, memory)
            ledger.nodes[name].by_name[type, device].withhold(-least, -least_memory)


def _allocations(placement: Placement) -> Iterator[tuple[str, Any]]:
    for part in placement.parts:
        for held in part.allocations:
            yield part.node, held


def _duration(job: Pending) -> float:
    return inf if job.spec.limit is None else job.spec.limit + KILL_GRACE_SECONDS


def _backfill(
    planner: ReferencePlanner,
    ledger: Ledger,
    without: Callable[[Running], bool] = lambda job: False,
) -> Easy:
    """Return the backfill of a plan: conservative for all queues if one of them uses it."""
    return (Conservative if planner.is_conservative else Easy)(planner, ledger, without)


# -- comparison -----------------------------------------------------------------------------


def assert_same_decisions(scenario: Scenario) -> None:
    """Run one cycle of the planner, and assert that the reference planner decides the same."""
    state, now, boot = scenario.state, scenario.now, scenario.boot
    for event in pre_command_events(state, now, boot):
        scenario.tell(event)
    refresh_ranks(state, now)
    if state.distinguishes_models():  # a global assignment decides, which is left out here
        scenario.plan()
        return
    reference = ReferencePlanner(state, now, boot)
    decided: list[Decision] = []
    for event in plan_events(state, now, boot):
        scenario.tell(event)
        decided.append(_decision_of(event))
    cycle = reference.cycle()
    expected = next(cycle, None)
    for number, decision in enumerate(decided):
        assert decision == expected, (decided, number, expected)
        expected = next(cycle, None)
    assert expected is None, (decided, expected)


def _decision_of(event: e.Event) -> Decision:
    match event:
        case e.AttemptPlanned():
            return Start(event.job, event.placement)
        case e.PreemptionRequested():
            return Stop(event.job, event.by)
        case e.PreemptionCancelled():
            return Resume(event.job)
    raise AssertionError(event)
