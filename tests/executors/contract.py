"""The contract of `executors.port.Executor`: what every implementation must do.

A test class inherits ExecutorContract and the parts that its executor is capable of, and has a
fixture `bench`.
"""

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from executors.recording_sink import RecordingSink
from stoker.core import events as e
from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId
from stoker.executors.port import Barrier, Capability, Executor

FIRST, SECOND = AttemptId(7, 0), AttemptId(7, 1)
ENDS = (e.ProcessExited, e.AttemptLost, e.StartCancelled, e.StartFailed)
LONG = 1000.0
"""Seconds of an attempt that is terminated before."""


class Bench(ABC):
    """One node and its executor, under test. Its seconds may be shorter than those of a clock."""

    executor: Executor
    sink: RecordingSink

    @abstractmethod
    def launch(
        self, attempt: AttemptId, seconds: float, code: int = 0, ignores_term: bool = False
    ) -> Launch:
        """Return the start of an attempt that behaves like this."""

    @abstractmethod
    def clock_seconds(self, seconds: float) -> float:
        """Return how long these seconds of the bench are for its executor."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Let time pass, and the executor do what is due."""

    @abstractmethod
    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition holds; return its value."""

    @abstractmethod
    def stop(self) -> None:
        """End the daemon of this executor; attempts continue."""

    @abstractmethod
    def restart(self, *attempts: AttemptId) -> None:
        """Open the executor of another daemon, whose journal has these attempts under way."""

    @abstractmethod
    def starts(self, attempt: AttemptId) -> int:
        """Return how often an attempt was really started."""

    def of(self, attempt: AttemptId, *kinds: type[e.Event]) -> list[e.Event]:
        """Return the events of these kinds about an attempt; without a kind, all of them."""
        return [
            event
            for event in self.sink.events
            if (getattr(event, "job", None), getattr(event, "attempt", None)) == attempt
            and (not kinds or isinstance(event, kinds))
        ]

    def until_running(self, attempt: AttemptId) -> None:
        """Wait until an attempt runs and its start was reported."""
        self.until(lambda: self.of(attempt, e.ProcessStarted) and self.starts(attempt))

    def end(self, attempt: AttemptId) -> e.Event:
        """Wait for the end of an attempt, which may be reported more than once; return it."""
        self.until(lambda: self.of(attempt, *ENDS))
        ends = [replace(event, at=0.0) for event in self.of(attempt, *ENDS)]
        assert ends == [ends[0]] * len(ends)
        return ends[0]

    def exit(self, attempt: AttemptId) -> e.ProcessExited:
        """Wait for the exit of an attempt; return it."""
        ended = self.end(attempt)
        assert isinstance(ended, e.ProcessExited)
        return ended


class ExecutorContract:
    """Start once, report the end, terminate, recover, acknowledge."""

    PARTS: ClassVar = (Capability.SUSPEND, Capability.BARRIER)
    """Capabilities with a part of the contract of their own."""
    capabilities: Capability = Capability(0)
    """Those whose parts the class inherits."""

    def __init_subclass__(cls) -> None:
        for base in cls.__mro__:
            cls.capabilities |= vars(base).get("capability", Capability(0))

    def test_the_contract_of_every_capability_is_checked(self, bench: Bench) -> None:
        for part in self.PARTS:
            assert (part in bench.executor.capabilities) == (part in self.capabilities)

    def test_a_start_and_then_the_exit_code_are_reported(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=2.0, code=3))
        exited = bench.exit(FIRST)
        assert (exited.code, exited.signal) == (3, None)
        kinds = [type(event) for event in bench.of(FIRST)]
        assert kinds.index(e.ProcessStarted) < kinds.index(e.ProcessExited)

    def test_an_attempt_is_started_once_however_often_it_is_sent(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=2.0))
        bench.end(FIRST)
        bench.restart()
        bench.executor.start(bench.launch(FIRST, seconds=2.0))
        bench.wait(100)
        assert bench.starts(FIRST) == 1

    def test_two_attempts_do_not_mix(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=1.0, code=1))
        bench.executor.start(bench.launch(SECOND, seconds=2.0, code=2))
        assert [bench.exit(attempt).code for attempt in (FIRST, SECOND)] == [1, 2]

    def test_terminate_ends_an_attempt_by_a_signal(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, LONG))
        bench.until_running(FIRST)
        bench.executor.terminate(FIRST, grace=bench.clock_seconds(LONG))
        exited = bench.exit(FIRST)
        assert signal.SIGTERM in (exited.signal, (exited.code or 0) - 128)

    @pytest.mark.parametrize("grace", [0.0, 50.0])
    def test_an_attempt_that_ignores_the_signal_is_killed_after_the_grace(
        self, bench: Bench, grace: float
    ) -> None:
        bench.executor.start(bench.launch(FIRST, LONG, ignores_term=True))
        bench.until_running(FIRST)
        bench.executor.terminate(FIRST, bench.clock_seconds(grace))
        bench.wait(grace / 2)
        assert not (grace and bench.of(FIRST, *ENDS))
        assert bench.exit(FIRST).signal == signal.SIGKILL

    def test_an_attempt_that_is_terminated_at_once_ends(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, LONG))
        bench.executor.terminate(FIRST, grace=0.0)
        assert isinstance(bench.end(FIRST), e.ProcessExited | e.StartCancelled)

    def test_calls_about_an_attempt_that_it_does_not_have_are_ignored(self, bench: Bench) -> None:
        executor = bench.executor
        executor.terminate(FIRST, 0.0)
        executor.signal(FIRST, signal.SIGTERM)
        executor.suspend(FIRST)
        executor.resume(FIRST)
        executor.release(FIRST, 1, {})
        executor.release(FIRST, 1, None)
        executor.send_control(FIRST, 0, "stop", "now")
        executor.acknowledge([FIRST])
        executor.abandon(FIRST)
        bench.wait(10)
        assert bench.of(FIRST) == []

    def test_another_daemon_reports_the_end_of_an_attempt_that_runs(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=200.0, code=3))
        bench.until_running(FIRST)
        bench.restart(FIRST)
        assert (bench.exit(FIRST).code, bench.starts(FIRST)) == (3, 1)

    def test_an_end_that_no_daemon_saw_is_reported_by_the_next(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=5.0, code=3))
        bench.stop()
        bench.wait(100)
        bench.restart(FIRST)
        ended = bench.end(FIRST)
        assert isinstance(ended, e.ProcessExited | e.StartCancelled)
        assert bench.starts(FIRST) == isinstance(ended, e.ProcessExited)

    def test_an_attempt_that_was_never_sent_is_not_started_later(self, bench: Bench) -> None:
        bench.launch(FIRST, seconds=1.0)
        bench.restart(FIRST)
        assert isinstance(bench.end(FIRST), e.StartCancelled)
        bench.executor.start(bench.launch(FIRST, seconds=1.0))
        bench.wait(100)
        assert bench.starts(FIRST) == 0

    def test_an_end_is_reported_to_every_daemon_until_it_is_acknowledged(
        self, bench: Bench
    ) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=2.0, code=3))
        bench.end(FIRST)
        for _ in range(2):
            bench.restart(FIRST)
            assert bench.exit(FIRST).code == 3
        bench.executor.acknowledge([FIRST])
        bench.restart()
        bench.wait(100)
        assert bench.of(FIRST) == []


class SuspendContract:
    """Suspend and resume."""

    capability = Capability.SUSPEND

    def test_a_suspended_attempt_does_not_end_before_it_is_resumed(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=100.0))
        bench.until_running(FIRST)
        bench.executor.suspend(FIRST)
        bench.wait(200)
        assert not bench.of(FIRST, *ENDS)
        bench.executor.resume(FIRST)
        assert bench.exit(FIRST).code == 0


class BarrierContract:
    """Parts of gangs."""

    capability = Capability.BARRIER

    def test_a_part_starts_when_its_barrier_is_released(self, bench: Bench) -> None:
        self._start_at_barrier(bench)
        bench.executor.release(FIRST, 1, {"MASTER_ADDR": "here"})
        assert bench.exit(FIRST).code == 0
        assert bench.starts(FIRST) == 1

    def test_a_part_with_a_cancelled_barrier_never_starts(self, bench: Bench) -> None:
        self._start_at_barrier(bench)
        bench.executor.release(FIRST, 1, None)
        assert isinstance(bench.end(FIRST), e.StartCancelled)
        assert bench.starts(FIRST) == 0

    @staticmethod
    def _start_at_barrier(bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=2.0), Barrier(rank=1, timeout=60))
        bench.until(lambda: bench.sink.ready_parts)
        bench.wait(10)
        assert {(attempt, rank) for attempt, rank, _ in bench.sink.ready_parts} == {(FIRST, 1)}
        assert bench.starts(FIRST) == 0


class ScriptBench(Bench):
    """A bench whose attempts are shell scripts."""

    home: Path
    """The home directory of the node, as seen from here."""

    @abstractmethod
    def script(self, attempt: AttemptId, script: str) -> Launch:
        """Return the start of a script."""

    @abstractmethod
    def claims(self) -> list[str]:
        """Return the names of the claims on the node."""


class ProcessContract:
    """Output, signals and trees of real processes."""

    def test_the_output_arrives_before_the_exit(self, bench: ScriptBench) -> None:
        launch = bench.script(FIRST, "echo hello; exit 7")
        bench.executor.start(launch)
        assert bench.exit(FIRST).code == 7
        assert Path(launch.out).read_text() == "hello\n"
        assert not bench.executor.has_attempts()

    def test_terminate_ends_the_whole_tree(self, bench: ScriptBench) -> None:
        beat = bench.home / "beat"
        child = "trap '' TERM; while :; do echo >>$HOME/beat; sleep 0.05; done"
        bench.executor.start(bench.script(FIRST, f"setsid sh -c {child!r} & sleep 60"))
        bench.until(lambda: beat.exists() and bench.of(FIRST, e.ProcessStarted))
        bench.executor.terminate(FIRST, bench.clock_seconds(50))
        bench.exit(FIRST)
        size = beat.stat().st_size
        bench.wait(30)
        assert beat.stat().st_size == size

    def test_a_signal_reaches_a_process_that_handles_it(self, bench: ScriptBench) -> None:
        script = "trap 'exit 9' USR1; touch $HOME/ready; while :; do sleep 0.05; done"
        bench.executor.start(bench.script(FIRST, script))
        ready = bench.home / "ready"
        bench.until(lambda: ready.exists() and bench.of(FIRST, e.ProcessStarted))
        bench.executor.signal(FIRST, signal.SIGUSR1)
        assert bench.exit(FIRST).code == 9

    def test_a_claim_is_deleted_when_its_own_attempt_is_acknowledged(
        self, bench: ScriptBench
    ) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=1.0))
        bench.end(FIRST)
        bench.executor.acknowledge([SECOND])
        bench.wait(20)
        assert bench.claims()
        bench.executor.acknowledge([FIRST])
        bench.until(lambda: not bench.claims())


class ProcessBarrierContract:
    """Parts of gangs that are real processes."""

    def test_a_part_runs_with_the_variables_of_its_release(self, bench: ScriptBench) -> None:
        launch = bench.script(FIRST, "echo $MEET")
        bench.executor.start(launch, Barrier(rank=0, timeout=60))
        bench.until(lambda: bench.sink.ready_parts)
        bench.executor.release(FIRST, 0, {"MEET": "here"})
        assert bench.exit(FIRST).code == 0
        assert Path(launch.out).read_text() == "here\n"
