"""The third driver: turns the real engine over a real store, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from simulation.client import ClientRequest, MakeHandler
from simulation.crash_points import Crash, CrashPoint, FusedStore
from simulation.simulated_executor import Faults
from simulation.simulated_machine import Model, Remote, SimulatedCluster, SimulatedMachine
from simulation.simulated_nodes import Fleet
from simulation.training_model import LaunchInfo
from simulation.virtual_clock import VirtualClock
from stoker.core.clock import seconds_until_due
from stoker.core.cluster import NodeFacts, PlacementMode
from stoker.core.events import DaemonStarted, Event, NodeAdded, NodeJoined, NodeMeasured
from stoker.core.instructions import (
    AnnounceEmpty,
    AnnounceEnd,
    AskToStop,
    EndAttempt,
    Instruction,
    LetGoOn,
    ResumeAttempt,
    SignalAttempt,
    StartProcess,
    SuspendAttempt,
)
from stoker.core.launch import launch
from stoker.daemon.context import RequestContext
from stoker.engine import CycleResult, Engine
from stoker.store.port import Store

FORCE_AFTER = 0.05
"""Seconds within which everything committed is on disk."""


class SimulatedDaemon:
    """A daemon without sockets: it can be killed at any instant and started again."""

    def __init__(
        self,
        world: VirtualClock,
        open_store: Callable[[], Store],
        facts: NodeFacts,
        behaviour: Callable[[int, int], Model],
        faults: Faults | None = None,
        remotes: Sequence[NodeFacts] = (),
    ) -> None:
        self.world, self.open_store, self.facts = world, open_store, facts
        self.faults = faults or Faults()
        self.machine = SimulatedMachine(world, behaviour)
        self.machines: dict[str, tuple[NodeFacts, SimulatedMachine]] = {
            facts.name: (facts, self.machine)
        }
        """What there is in the world, whether or not it belongs to us."""
        for each in remotes:
            kind = Remote if each.placement is PlacementMode.MANAGED else SimulatedCluster
            self.machines[each.name] = (each, kind(world, behaviour))
        self.fuse = CrashPoint()
        self.crashes = 0
        self.waiting: list[ClientRequest] = []
        """Requests without an answer: their clients repeat them after a crash."""
        self.told: list[int] = []
        """Jobs whose end was announced."""
        self.published: list[Event] = []
        self.store: Store
        self.engine: Engine
        self.executor: Fleet
        self._until_up(self._start)

    # -- life and death -----------------------------------------------------------------

    def _start(self) -> None:
        """Load, adopt what an earlier driver left, and go on."""
        self.store = self.open_store()
        term = self.store.acquire_term()
        store = cast("Store", FusedStore(self.store, self.fuse))
        self.executor = Fleet(self.world, self.facts.name, self.machines, self.faults)
        self.engine = Engine(store, self.world.moment)
        state, now, boot = self.engine.state, self.world.moment(), self.world.boot_id
        self.executor.adopt(list(state.running.values()), state.rest.boot == boot)
        self.fuse.pass_by("adopted")
        events = [
            DaemonStarted(
                at=now.wall, term=term, boot=boot, pid=1, version="simulated", clock=now.boot
            ),
            NodeJoined(at=now.wall, facts=self.facts),
            *self.executor.take_facts(),
        ]
        # Nothing is started before it is known what runs.
        self._act_on(self.engine.cycle(events, scheduling_enabled=False))
        self.executor.follow(self.engine.state)
        self._force()

    def _until_up(self, act: Callable[[], None]) -> None:
        """Do something; after a crash, start again until that succeeds."""
        try:
            act()
        except Crash:
            self.crashes += 1
            for _, machine in self.machines.values():
                machine.hear = None
            self.fuse.at = None
            self._until_up(self._start)

    def crash(self) -> None:
        """Kill the driver between two cycles, and start it again."""

        def die() -> None:
            raise Crash("between two cycles")

        self._until_up(die)

    def reboot(self, keeps_records: bool = True) -> None:
        """Restart the whole machine."""
        self.machine.restart(keeps_records)
        self.crash()

    def rejoin(self, facts: NodeFacts) -> None:
        """The machine is declared anew, as at a restart with other devices."""
        self.facts = facts
        self.crash()

    # -- machines over SSH --------------------------------------------------------------

    def cut(self, node: str) -> None:
        """Break the link to a machine."""
        self.executor.cut(node)

    def mend(self, node: str) -> None:
        """Let a machine be reached again."""
        self.machines[node][1].cut = False
        self.executor.reach(node, self.engine.state)

    def reboot_remote(self, node: str, keeps_records: bool = True) -> None:
        """Restart another machine; if its link holds otherwise, it is soon reached again."""
        _, machine = self.machines[node]
        machine.restart(keeps_records)
        machine.hear = None
        self.executor.reach(node, self.engine.state)

    def add_cluster(self, node: str) -> None:
        """Add a delegated node."""
        at = self.world.moment().wall
        self.executor.facts.append(NodeAdded(at=at, name=node, executor="simulated"))
        self.turn()

    def measure(self, node: str, cpus: int = 0, memory: int = 0) -> None:
        """Other programs use so much of a node."""
        at = self.world.moment().wall
        self.executor.facts.append(NodeMeasured(at=at, node=node, cpus=cpus, memory=memory))
        self.turn()

    # -- one turn -----------------------------------------------------------------------

    def send(self, make_handler: MakeHandler) -> ClientRequest:
        """Hand a request in; it is answered by the next turn that survives."""
        request = ClientRequest(make_handler)
        self.waiting.append(request)
        return request

    def turn(self) -> None:
        """One cycle of the engine, repeated by its clients if the driver dies in it."""
        self._until_up(self._turn)
        while self.waiting:
            self._until_up(self._turn)

    def _turn(self) -> None:
        self.executor.tick(self.world.moment().boot)
        self.fuse.pass_by("before the reports are read")
        context = RequestContext(self.store, logs="/l", node=self.facts.name, user="ada")
        requests = [request.to(context) for request in self.waiting]
        self._act_on(self.engine.cycle(self.executor.take_facts(), requests))
        self.fuse.pass_by("before machines are reached")
        self.executor.follow(self.engine.state)
        self.waiting = [request for request in self.waiting if not request.answered]
        if self.engine.unsynced:
            self.world.after(FORCE_AFTER, self._force)
        self.fuse.pass_by("after the turn")

    def _force(self) -> None:
        if not self.executor.facts:
            self.store.sync()
            self.engine.mark_synced()
            self.executor.settle()

    def _act_on(self, result: CycleResult) -> None:
        """Do with the result of a cycle what the daemon does."""
        self._execute(result.instructions)
        for reply in result.replies:
            reply.send()
        assert result.seq == self.engine.seq
        self.published += result.events
        result.raise_error()

    def _execute(self, instructions: list[Instruction]) -> None:
        for wish in instructions:
            self.fuse.pass_by(f"before {type(wish).__name__}")
            self._one(wish)
        if instructions:
            self.fuse.pass_by("executed")

    def _one(self, wish: Instruction) -> None:
        executor = self.executor
        match wish:
            case StartProcess():
                self._check_launch(wish)
                executor.start(wish)
            case EndAttempt():
                executor.end(wish)
            case SignalAttempt():
                executor.signal(wish)
            case AskToStop():
                executor.ask_to_stop(wish.job, wish.attempt)
            case LetGoOn():
                executor.let_go_on(wish.job, wish.attempt)
            case SuspendAttempt():
                executor.suspend(wish.job, wish.attempt)
            case ResumeAttempt():
                executor.resume(wish.job, wish.attempt)
            case AnnounceEnd():
                self.told.append(wish.job)
            case AnnounceEmpty():
                pass
            case _:
                raise AssertionError(f"nobody carries out {wish!r}")

    def _check_launch(self, wish: StartProcess) -> None:
        """What would be executed can be said for every part."""
        state, token = self.engine.state, f"sim.{wish.job}.{wish.attempt}"
        job = state.jobs[wish.job]
        for rank, part in enumerate(wish.placement.parts):
            node = state.cluster.nodes[part.node]
            start = launch(job, state.spec(job), part, node, 0.0, "/l", token, "/s", rank)
            assert (start.job, start.attempt) == (wish.job, wish.attempt)
            done = int(start.extra["STOKER_EPOCHS_DONE"])
            facts, machine = self.machines[part.node]
            names = part.names("gpu") or [f"{wish.job}.{n}" for n in range(part.gpu_count)]
            machine.desk.told[wish.job, wish.attempt] = LaunchInfo(tuple(names), done)
            cards = facts.types.get("gpu", ())
            machine.desk.cards = {card.name: card.memory or 1 << 40 for card in cards}

    # -- time ---------------------------------------------------------------------------

    def run(self, seconds: float, after_turn: Callable[[], None] = lambda: None) -> None:
        """Let time pass, turning whenever something happens or is due."""
        end = self.world.time + seconds
        while True:
            self.turn()
            after_turn()
            wait = self._until_due()
            if wait is None or self.world.time + wait > end:
                break
            self.world.advance(wait)
        self.world.advance(end - self.world.time)
        self.turn()
        after_turn()

    def _until_due(self) -> float | None:
        now = self.world.moment()
        waits = [
            0.0 if self.executor.facts else None,
            self.world.until_next(),
            self.executor.tick(now.boot),
            seconds_until_due(self.engine.state, now.wall, now.boot),
        ]
        known = [wait for wait in waits if wait is not None]
        # Never zero for ever: a clock of floats may need a nudge to reach a moment.
        return max(min(known), 1e-6) if known else None
