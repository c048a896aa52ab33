"""SimulatedDaemon: the real engine, store, dispatcher, registry and handlers in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from simulation.client import ClientRequest, MakeHandler
from simulation.crash_points import Crash, CrashPoint, FusedStore
from simulation.simulated_executor import Faults, SimulatedExecutor
from simulation.simulated_machine import Model, Remote, SimulatedCluster, SimulatedMachine
from simulation.training_model import LaunchInfo
from simulation.virtual_clock import VirtualClock
from stoker.core import events as e
from stoker.core.events.instructions import StartProcess
from stoker.core.launch.launch import Launch, launch
from stoker.core.measurement.foreign_use import Thresholds
from stoker.core.model.job import AttemptId
from stoker.core.model.resources import NodeFacts, PlacementMode
from stoker.core.state.timers import next_wakeup
from stoker.daemon.context import RequestContext
from stoker.daemon.control.dispatcher import InstructionDispatcher
from stoker.daemon.control.hooks import HookRunner
from stoker.daemon.control.journal_sync import AfterSync, JournalSync
from stoker.daemon.gpus.foreign_usage import ForeignUsageThresholds
from stoker.daemon.gpus.memory import GpuMemoryTracker
from stoker.daemon.nodes.registry import ExecutorRegistry
from stoker.daemon.training.stop_requests import StopRequests
from stoker.engine import CycleResult, Engine
from stoker.executors.port import AttemptRecords
from stoker.faults import FaultTracker
from stoker.store.port import Store
from virtual_reactor import VirtualReactor

GRACE_SECONDS = 10.0
"""Time between TERM and KILL."""


def run_inline(target: Callable[[], None], _: tuple[()]) -> None:
    """Run a thread's target at once: no simulation depends on the order of threads."""
    target()


class SimulatedStops:
    """Sends requests to stop as control files, which simulated machines understand."""

    def __init__(self, engine: Engine, registry: ExecutorRegistry) -> None:
        self.engine, self.registry = engine, registry

    def send(self, job: int, attempt: int) -> None:
        """Ask an attempt to stop at its next safe point."""
        self._write(AttemptId(job, attempt), "asked to stop")

    def withdraw(self, job: int, attempt: int) -> None:
        """Take that back."""
        self._write(AttemptId(job, attempt), "")

    def _write(self, id: AttemptId, text: str) -> None:
        placement = self.engine.state.jobs[id.job].placement
        for rank in range(len(placement.parts) if placement is not None else 0):
            self.registry.send_control(id, rank, "stop", text)


class RecordingHooks:
    """Keeps the jobs whose end was announced."""

    def __init__(self, told: list[int]) -> None:
        self.told = told

    def run_job_end(self, job: int) -> None:
        """Note the end of a job."""
        self.told.append(job)

    def run_queue_empty(self) -> None:
        """No hook."""


class StrictFaults(FaultTracker):
    """Raises internal errors instead of containing them."""

    def record(self, what: str, error: Exception, excerpt: str = "") -> None:
        """Raise the error."""
        raise error

    def contain(self, what: str, default: Any, call: Callable[..., Any], *args: Any) -> Any:
        """Call, and contain nothing."""
        return call(*args)


def _cannot_fail(attempt: AttemptId, why: str) -> None:
    raise AssertionError(f"the start of {attempt} failed: {why}")


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
        """All machines of the world, whether or not they are nodes of this daemon."""
        for each in remotes:
            kind = Remote if each.placement is PlacementMode.MANAGED else SimulatedCluster
            self.machines[each.name] = (each, kind(world, behaviour))
        self.fuse = CrashPoint()
        self.crashes = 0
        self.waiting: list[ClientRequest] = []
        """Requests without an answer: their clients repeat them after a crash."""
        self.told: list[int] = []
        """Jobs whose end was announced."""
        self.published: list[e.Event] = []
        self.store: Store
        self.engine: Engine
        self.registry: ExecutorRegistry
        self.sync: JournalSync
        self.dispatcher: InstructionDispatcher
        self._until_up(self._start)

    # -- life and death -----------------------------------------------------------------

    def _start(self) -> None:
        """Load the journal, recover attempts, and record the restart."""
        self.store = self.open_store()
        term = self.store.acquire_term()
        self.engine = Engine(cast("Store", FusedStore(self.store, self.fuse)), self.world.moment)
        self.reactor = VirtualReactor(lambda: self.world.time)
        self.registry = self._build_registry()
        self.sync = JournalSync(self.store, self.reactor, run_inline)
        self.dispatcher = self._build_dispatcher()
        state, now, boot = self.engine.state, self.world.moment(), self.world.boot_id
        self.registry.recover(state.running.values(), node_restarted=state.record.boot != boot)
        self.fuse.pass_by("recovered")
        events = [
            e.DaemonStarted(
                at=now.wall, term=term, boot=boot, pid=1, version="simulated", clock=now.boot
            ),
            e.NodeJoined(at=now.wall, facts=self.facts),
            *self.registry.collect(state),
        ]
        # Nothing is started before it is known what runs.
        self._act_on(self.engine.cycle(events, scheduling_enabled=False))
        self.registry.sync(self.engine.state)
        self._sync()

    def _build_registry(self) -> ExecutorRegistry:
        local = SimulatedExecutor(self.world, self.reactor, self.machine, self.facts, self.faults)
        create = self._create_executor
        return ExecutorRegistry(
            local, self.facts.name, "sim", {"ssh": create, "simulated": create},
            ForeignUsageThresholds(Thresholds()), GpuMemoryTracker(), "/l",
            lambda: self.engine.state, self._build_launch, lambda *_: None, self.reactor,
            self.world.moment,
        )  # fmt: skip

    def _build_dispatcher(self) -> InstructionDispatcher:
        return InstructionDispatcher(
            self.engine, self.registry, _cannot_fail, GRACE_SECONDS,
            cast("StopRequests", SimulatedStops(self.engine, self.registry)),
            cast("HookRunner", RecordingHooks(self.told)), self.sync,
            StrictFaults(self.world.moment),
        )  # fmt: skip

    def _create_executor(self, added: e.NodeAdded, records: AttemptRecords) -> SimulatedExecutor:
        facts, machine = self.machines[added.name]
        return SimulatedExecutor(
            self.world, self.reactor, machine, facts, self.faults, records, GRACE_SECONDS
        )

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
        """Kill the daemon between two cycles, and start it again."""

        def die() -> None:
            raise Crash("between two cycles")

        self._until_up(die)

    def reboot(self, keeps_records: bool = True) -> None:
        """Restart the machine of the daemon."""
        self.machine.restart(keeps_records)
        self.crash()

    def rejoin(self, facts: NodeFacts) -> None:
        """Restart the daemon with other devices."""
        self.facts = facts
        self.crash()

    # -- other nodes --------------------------------------------------------------------

    def executor(self, node: str) -> SimulatedExecutor | None:
        """The executor of another node, if it is one of this daemon's."""
        known = self.registry.nodes.get(node)
        return cast("SimulatedExecutor", known.executor) if known is not None else None

    def cut(self, node: str) -> None:
        """Break the link to a machine."""
        machine = self.machines[node][1]
        machine.cut, machine.hear = True, None
        if (executor := self.executor(node)) is not None:
            executor.lose_link()

    def mend(self, node: str) -> None:
        """Let a machine be reached again."""
        self.machines[node][1].cut = False
        if (executor := self.executor(node)) is not None:
            executor.refresh()

    def reboot_remote(self, node: str, keeps_records: bool = True) -> None:
        """Restart another machine; if its link holds otherwise, it is soon reached again."""
        machine = self.machines[node][1]
        machine.restart(keeps_records)
        machine.hear = None
        if (executor := self.executor(node)) is not None:
            executor.refresh()

    def add_cluster(self, node: str) -> None:
        """Add a delegated node."""
        at = self.world.moment().wall
        self._report(e.NodeAdded(at=at, name=node, executor="simulated"))

    def measure(self, node: str, cpus: int = 0, memory: int = 0) -> None:
        """Other programs use so much of a node."""
        at = self.world.moment().wall
        self._report(e.NodeLoadMeasured(at=at, node=node, cpus=cpus, memory=memory))

    def _report(self, event: e.Event) -> None:
        self.registry.on_event(self.facts.name, event)
        self.turn()

    # -- one turn -----------------------------------------------------------------------

    def send(self, make_handler: MakeHandler) -> ClientRequest:
        """Hand a request in; it is answered by the next turn that survives."""
        request = ClientRequest(make_handler)
        self.waiting.append(request)
        return request

    def turn(self) -> None:
        """One cycle of the engine, repeated by its clients if the daemon dies in it."""
        self._until_up(self._turn)
        while self.waiting:
            self._until_up(self._turn)

    def _turn(self) -> None:
        self.reactor.run_timers()
        if self.sync.is_due:
            self._sync()
        self.fuse.pass_by("before the events are collected")
        context = RequestContext(self.store, logs="/l", node=self.facts.name, user="ada")
        requests = [request.to(context) for request in self.waiting]
        events = self.registry.collect(self.engine.state)
        self._act_on(self.engine.cycle(events, requests))
        self.waiting = [request for request in self.waiting if not request.answered]
        if self.engine.unsynced and not self.sync.is_requested:
            self.sync.request()
        self.fuse.pass_by("after the turn")

    def _sync(self) -> None:
        """Put the journal on disk; then acknowledge ends and release starts, as the daemon does."""
        self.engine.mark_synced()
        ended = {} if self.registry.pending else self.registry.take_ended()
        self.sync.begin(AfterSync(ended, starts=self.dispatcher.take_deferred()))
        self.fuse.pass_by("after the sync")
        done = self.sync.finish()
        assert done is not None
        self.registry.acknowledge(done.ended)
        self.dispatcher.release_deferred(done.starts)

    def _act_on(self, result: CycleResult) -> None:
        """Do with the result of a cycle what the daemon does."""
        for instruction in result.instructions:
            self.fuse.pass_by(f"before {type(instruction).__name__}")
            self.dispatcher.execute([instruction])
        self.fuse.pass_by("executed")
        for reply in result.replies:
            reply.send()
        assert not result.events or result.seq == self.engine.seq
        self.published += result.events
        self.fuse.pass_by("before the registry follows")
        self.registry.on_events(self.engine.state, result.events)
        result.raise_error()

    def _build_launch(self, start: StartProcess, rank: int) -> Launch:
        """Build a launch as the daemon does, and tell the machine what the process learns."""
        state, token = self.engine.state, f"sim.{start.job}.{start.attempt}"
        part = start.placement.parts[rank]
        job, node = state.jobs[start.job], state.cluster.nodes[part.node]
        built = launch(job, state.spec(job), start.placement, node, 0.0, "/l", token, "/s", rank)
        assert built.id == (start.job, start.attempt)
        names = part.names("gpu") or [f"{job.id}.{n}" for n in range(part.gpu_count)]
        done = int(built.extra["STOKER_EPOCHS_DONE"])
        facts, machine = self.machines[part.node]
        machine.reports.told[built.id] = LaunchInfo(tuple(names), done)
        cards = facts.types.get("gpu", ())
        machine.reports.cards = {card.name: card.memory or 1 << 40 for card in cards}
        return built

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
            0.0 if self.registry.pending else None,
            self.world.until_next(),
            self.reactor.seconds_until_timer(),
            next_wakeup(self.engine.state, now.wall, now.boot),
        ]
        known = [wait for wait in waits if wait is not None]
        # Never zero for ever: a clock of floats may need a nudge to reach a moment.
        return max(min(known), 1e-6) if known else None
