"""GangCoordinator: starts the parts of a multi-node attempt together and merges their events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.events.instructions import StartProcess
from stoker.core.launch import training_env as contract
from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId, Job
from stoker.daemon.nodes.gang_barrier import BarrierActions, GangBarrier, PartState
from stoker.engine import Instant
from stoker.executors.port import NODE, Barrier, Executor, PartHost

BARRIER_SECONDS = 60
"""Time that a part waits for the others."""
DELEGATED_BARRIER_SECONDS = 300
"""The same on a delegated node, where the others may wait for a host, and for an image there."""
RETRY_SECONDS, MAX_RETRY_SECONDS = 10.0, 640.0
"""Delay of the next try of a job whose parts were not ready together; it doubles."""


class GangNodes(Protocol):
    """What the coordinator needs of the registry."""

    @property
    def local_name(self) -> str:
        """The name of this node."""

    @property
    def build_launch(self) -> Callable[[StartProcess, int], Launch]:
        """Builds the launch of the part with a rank."""

    @property
    def clock(self) -> Callable[[], Instant]:
        """The clocks of this node."""

    def executor(self, name: str) -> Executor | None:
        """Return the executor of a node; None if the node was removed."""

    def address(self, name: str) -> str | None:
        """Return the address by which other nodes reach a node, if it is known."""

    def local_address(self, seen_from: Iterable[str]) -> str:
        """Return the address by which these nodes reach this one."""

    def is_training(self, job: int) -> bool:
        """Return whether a job uses the training library: its parts get TF_CONFIG."""


class GangCoordinator:
    """The attempts with several parts, and how far these are."""

    def __init__(self, registry: GangNodes) -> None:
        self.registry = registry
        self.nodes: dict[AttemptId, tuple[str, ...]] = {}
        """The node of each part, by rank; all on the same one if that is delegated."""
        self.barriers: dict[AttemptId, GangBarrier] = {}
        self.events: list[e.Event] = []
        self._cancelled: dict[int, int] = {}
        """How often in a row each job was not started because its parts were not ready."""

    def recover(self, jobs: Iterable[Job]) -> None:
        """Begin again with attempts that an earlier daemon was starting."""
        for job in jobs:
            if job.placement is not None and job.placement.other_parts:
                barrier = self._create(StartProcess(job.id, job.attempt, job.placement))
                for end in job.ends:
                    barrier.set_running(end.part)

    def start(self, instruction: StartProcess) -> None:
        """Start every part at a barrier; when the last one is ready, all are released."""
        barrier = self._create(instruction)
        for rank, part in enumerate(instruction.placement.parts):
            executor = self.registry.executor(part.node)
            if executor is not None:
                launch = self.registry.build_launch(instruction, rank)
                executor.start(launch, Barrier(rank, _barrier_seconds(barrier)))
            else:
                barrier.set_failed(rank, f"{part.node} has been removed", failed=False)
        self._advance(barrier)

    def _create(self, instruction: StartProcess) -> GangBarrier:
        barrier = GangBarrier.of(instruction)
        self.nodes[barrier.attempt] = tuple(part.node for part in instruction.placement.parts)
        self.barriers[barrier.attempt] = barrier
        return barrier

    def on_ready(
        self, node: str, attempt: AttemptId, rank: int, port: int, host: PartHost = NODE
    ) -> None:
        """Note that a part waits at its barrier."""
        barrier = self.barriers.get(attempt)
        if barrier is not None:
            barrier.set_ready(self._rank(attempt, node, rank), port, host)
            self._advance(barrier)
        elif (executor := self.registry.executor(node)) is not None:
            executor.release(attempt, rank, None)

    def _rank(self, attempt: AttemptId, node: str, part: int | None) -> int:
        """Return the rank of the part on a node, or of the one that a delegated node has named."""
        nodes = self.nodes[attempt]
        is_named = part is not None and part < len(nodes) and nodes[part] == node
        return part if part is not None and is_named else nodes.index(node)

    def to_gang_events(self, node: str, event: e.Event) -> list[e.Event]:
        """Return what an event of one part means for the whole attempt."""
        attempt = AttemptId(getattr(event, "job", 0), getattr(event, "attempt", -1))
        if attempt not in self.nodes or node not in self.nodes[attempt]:
            return [event]
        rank = self._rank(attempt, node, getattr(event, "part", None))
        barrier = self.barriers.get(attempt)
        match event:
            case e.StartCancelled() | e.StartFailed() if barrier is not None:
                barrier.set_failed(rank, event.why, isinstance(event, e.StartFailed))
                self._advance(barrier)
                return []
            case e.StartCancelled():
                job, number = attempt
                lost = e.AttemptLost(at=event.at, job=job, attempt=number, why=event.why, part=rank)
                return [lost]
            case e.ProcessStarted() | e.ProcessExited() | e.AttemptLost() | e.StartFailed():
                if barrier is not None:
                    barrier.set_running(rank)
                    self._advance(barrier)
                return [replace(event, part=rank)]
        return [event]

    def on_part_ends(self, running: Mapping[int, Job]) -> None:
        """Stop waiting for parts that the core gave up: no executor reports their ends."""
        for attempt, barrier in list(self.barriers.items()):
            job = running.get(attempt.job)
            for end in job.ends if job is not None and job.attempt == attempt.attempt else ():
                if barrier.parts[end.part] is not PartState.RUNNING:
                    barrier.set_running(end.part)
                    self._advance(barrier)

    def forget_ended(self, is_expected: Callable[[AttemptId], bool]) -> None:
        """Forget attempts that have ended."""
        for attempt in [attempt for attempt in self.nodes if not is_expected(attempt)]:
            del self.nodes[attempt]
            self.barriers.pop(attempt, None)

    def take_events(self) -> list[e.Event]:
        """Return the events about whole attempts since the last call."""
        events, self.events = self.events, []
        return events

    # -- what follows from the states of the parts ----------------------------------------

    def _advance(self, barrier: GangBarrier) -> None:
        attempt = barrier.attempt
        if self.barriers.get(attempt) is not barrier:
            return  # it was decided while its parts were being started
        actions = barrier.next_actions()
        (job, number), now = attempt, self.registry.clock().wall
        tries = self._cancelled.get(job, 0)
        if actions.is_over:
            del self.barriers[attempt]
            self._cancelled.pop(job, None)
        self._release(barrier, actions)
        for rank in actions.lost:
            why = "it was not started with the others"
            self.events.append(e.AttemptLost(at=now, job=job, attempt=number, why=why, part=rank))
        if actions.cancelled is None:
            return
        del self.nodes[attempt]
        if actions.failed:
            event: e.Event = e.StartFailed(at=now, job=job, attempt=number, why=actions.cancelled)
        else:
            self._cancelled[job] = tries + 1
            event = e.StartCancelled(
                at=now, job=job, attempt=number, why=actions.cancelled,
                delay=min(RETRY_SECONDS * 2**tries, MAX_RETRY_SECONDS),
            )  # fmt: skip
        self.events.append(event)

    def _release(self, barrier: GangBarrier, actions: BarrierActions) -> None:
        """Let parts run with the addresses of all others, or give them up."""
        nodes = self.nodes[barrier.attempt]
        for rank in actions.give_up:
            executor = self.registry.executor(nodes[rank])
            if executor is not None:
                executor.release(barrier.attempt, rank, None)
        addresses = self._addresses(barrier) if actions.release else []
        for rank in actions.release:
            executor = self.registry.executor(nodes[rank])
            if executor is not None:
                variables = self._meeting_point(barrier, addresses, rank)
                executor.release(barrier.attempt, rank, variables)

    def _addresses(self, barrier: GangBarrier) -> list[str]:
        """Return the addresses by which the parts reach each other."""
        registry, nodes = self.registry, self.nodes[barrier.attempt]
        others = [node for node in nodes if node != registry.local_name]
        return [
            host.address or registry.address(node) or registry.local_address(others)
            for node, host in zip(nodes, barrier.hosts, strict=True)
        ]

    def _meeting_point(
        self, barrier: GangBarrier, addresses: list[str], rank: int
    ) -> dict[str, str]:
        """Return the variables by which a part finds the first one, or all others."""
        variables = {"MASTER_ADDR": addresses[0], "MASTER_PORT": str(barrier.ports[0])}
        if barrier.is_delegated:
            names = ",".join(host.name for host in barrier.hosts)
            variables |= {"NODELIST": names, "STOKER_NODES": names}
        if self.registry.is_training(barrier.instruction.job):
            ends = zip(addresses, barrier.ports, strict=True)
            workers = [f"{address}:{port}" for address, port in ends]
            variables["TF_CONFIG"] = contract.tf_config(workers, rank)
        return variables


def _barrier_seconds(barrier: GangBarrier) -> int:
    return DELEGATED_BARRIER_SECONDS if barrier.is_delegated else BARRIER_SECONDS
