"""The contract of executors on the simulated one: this node, another node, and a cluster."""

from collections.abc import Callable
from typing import Any

import pytest

from executors.contract import BarrierContract, Bench, ExecutorContract, SuspendContract
from executors.recording_sink import RecordingSink
from simulation.sim_fixture import machine
from simulation.simulated_executor import Faults, SimulatedExecutor
from simulation.simulated_machine import Model, Remote, SimulatedCluster, SimulatedMachine
from simulation.test_delegated import LAB
from simulation.virtual_clock import VirtualClock
from specs import launch_of, spec_of
from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId, Job
from stoker.core.state.state import State
from stoker.daemon.nodes.attempt_records import JournalRecords
from stoker.executors.port import RecoverableAttempt
from virtual_reactor import VirtualReactor

KINDS = {"local": SimulatedMachine, "remote": Remote, "cluster": SimulatedCluster}
FAULTS = {"reliable": Faults(), "faulty": Faults(lost=0.3, repeated=0.3, late=0.5, start_delay=1.0)}
PATIENCE_SECONDS = 3000.0


class SimulatedBench(Bench):
    """A simulated machine under a virtual clock."""

    def __init__(self, kind: str, faults: Faults) -> None:
        self.world, self.kind, self.faults = VirtualClock(), kind, faults
        self.models: dict[AttemptId, Model] = {}
        self.machine = KINDS[kind](self.world, lambda *key: self.models[AttemptId(*key)])
        self.restart()

    def stop(self) -> None:
        """End the daemon of this executor."""
        self.executor.close()

    def restart(self, *attempts: AttemptId) -> None:
        """Open another executor; a node that is not this one is reached at once."""
        self.machine.hear = None
        facts = LAB if self.kind == "cluster" else machine()
        records = JournalRecords(State) if self.machine.afar else None
        self.sink = RecordingSink()
        self.reactor = VirtualReactor(lambda: self.world.time)
        self.executor = SimulatedExecutor(
            self.world, self.reactor, self.machine, facts, self.faults, records
        )
        self.executor.open(self.sink)
        self.executor.recover([recoverable(attempt) for attempt in attempts])

    def launch(
        self, attempt: AttemptId, seconds: float, code: int = 0, ignores_term: bool = False
    ) -> Launch:
        """Return the start of an attempt that behaves like this."""
        self.models[attempt] = Model(seconds=seconds, code=code, ignores_term=ignores_term)
        return launch_of(job=attempt.job, attempt=attempt.attempt)

    def wait(self, seconds: float) -> None:
        """Let virtual time pass."""
        end = self.world.time + seconds
        while self.world.time < end:
            self.reactor.run_timers()
            self.world.advance(min(0.5, end - self.world.time))
        self.reactor.run_timers()

    def until(self, condition: Callable[[], Any]) -> Any:
        """Let virtual time pass until a condition holds."""
        end = self.world.time + PATIENCE_SECONDS
        while not (value := condition()):
            assert self.world.time < end, self.sink.events
            self.wait(0.5)
        return value

    def clock_seconds(self, seconds: float) -> float:
        """Return the same: virtual time costs nothing."""
        return seconds

    def starts(self, attempt: AttemptId) -> int:
        """Return how often an attempt was really started."""
        return self.machine.started.count(attempt)


def recoverable(attempt: AttemptId) -> RecoverableAttempt:
    """Return what a journal knows of an attempt."""
    job = Job(attempt.job, "spec", "job", "ada", 0.0, attempt=attempt.attempt)
    return RecoverableAttempt(job, spec_of(), "/out")


class TestManagedNode(ExecutorContract, SuspendContract, BarrierContract):
    """This node, and one over a link."""

    @pytest.fixture(params=["local", "remote"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture(params=FAULTS)
    def bench(self, request: pytest.FixtureRequest, kind: str) -> SimulatedBench:
        return SimulatedBench(kind, FAULTS[request.param])


class TestDelegatedNode(ExecutorContract, SuspendContract):
    """A cluster with a scheduler of its own."""

    @pytest.fixture(params=FAULTS)
    def bench(self, request: pytest.FixtureRequest) -> SimulatedBench:
        return SimulatedBench("cluster", FAULTS[request.param])
