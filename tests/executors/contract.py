"""The contract of `executors.port.Executor`: what every implementation must do.

A test class inherits `ExecutorContract` and has a fixture `bench`.
"""

import signal
from abc import ABC, abstractmethod

import pytest
from msgspec.structs import replace

from executors.recording_sink import RecordingSink
from stoker.core import events as e
from stoker.core.job import AttemptId
from stoker.core.launch import Launch
from stoker.executors.port import Barrier, Capability, Executor

FIRST, SECOND = AttemptId(7, 0), AttemptId(7, 1)
ENDS = (e.ProcessExited, e.AttemptLost, e.StartCalledOff, e.StartFailed)


class Bench(ABC):
    """One node and its executor, under test."""

    executor: Executor
    sink: RecordingSink

    @abstractmethod
    def launch(
        self, attempt: AttemptId, seconds: float, code: int = 0, ignores_term: bool = False
    ) -> Launch:
        """Return the start of an attempt that behaves like this."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Let time pass, and the executor do what is due."""

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
        """Return the events of these kinds about an attempt; without one, all of them."""
        return [
            event
            for event in self.sink.events
            if (getattr(event, "job", None), getattr(event, "attempt", None)) == attempt
            and (not kinds or isinstance(event, kinds))
        ]

    def end(self, attempt: AttemptId) -> e.Event:
        """Return the end of an attempt, which may be reported more than once."""
        ends = [replace(event, at=0.0) for event in self.of(attempt, *ENDS)]
        assert ends
        assert ends == [ends[0]] * len(ends)
        return ends[0]


class ExecutorContract:
    """Start once, report the end, terminate, recover, acknowledge."""

    def test_a_start_and_then_the_exit_code_are_reported(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=2.0, code=3))
        bench.wait(100)
        started, *_ = bench.of(FIRST, e.ProcessStarted)
        ended = bench.end(FIRST)
        assert isinstance(started, e.ProcessStarted)
        assert isinstance(ended, e.ProcessExited)
        assert (ended.code, ended.signal) == (3, None)
        assert bench.sink.events.index(started) < bench.sink.events.index(bench.of(FIRST, *ENDS)[0])

    def test_an_attempt_is_started_once_however_often_it_is_sent(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=2.0))
        bench.wait(100)
        bench.restart()
        bench.executor.start(bench.launch(FIRST, seconds=2.0))
        bench.wait(100)
        assert bench.starts(FIRST) == 1

    def test_two_attempts_do_not_mix(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=1.0, code=1))
        bench.executor.start(bench.launch(SECOND, seconds=2.0, code=2))
        bench.wait(100)
        codes = [getattr(bench.end(attempt), "code", None) for attempt in (FIRST, SECOND)]
        assert codes == [1, 2]

    def test_terminate_ends_an_attempt_by_a_signal(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=1000.0))
        bench.wait(60)
        bench.executor.terminate(FIRST, grace=50.0)
        bench.wait(20)
        ended = bench.end(FIRST)
        assert isinstance(ended, e.ProcessExited)
        assert ended.signal == signal.SIGTERM

    @pytest.mark.parametrize("grace", [0.0, 5.0])
    def test_what_ignores_the_signal_is_killed_after_the_grace(
        self, bench: Bench, grace: float
    ) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=1000.0, ignores_term=True))
        bench.wait(60)
        bench.executor.terminate(FIRST, grace)
        bench.wait(grace / 2)
        assert not (grace and bench.of(FIRST, *ENDS))
        bench.wait(grace + 10)
        ended = bench.end(FIRST)
        assert isinstance(ended, e.ProcessExited)
        assert ended.signal == signal.SIGKILL

    def test_an_attempt_that_is_terminated_at_once_ends(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=1000.0))
        bench.executor.terminate(FIRST, grace=0.0)
        bench.wait(100)
        assert isinstance(bench.end(FIRST), e.ProcessExited | e.StartCalledOff)

    def test_a_suspended_attempt_does_not_go_on_before_it_is_resumed(self, bench: Bench) -> None:
        if Capability.SUSPEND not in bench.executor.capabilities:
            pytest.skip("it cannot suspend")
        bench.executor.start(bench.launch(FIRST, seconds=50.0))
        bench.wait(25)
        bench.executor.suspend(FIRST)
        bench.wait(200)
        assert not bench.of(FIRST, *ENDS)
        bench.executor.resume(FIRST)
        bench.wait(60)
        assert isinstance(bench.end(FIRST), e.ProcessExited)

    def test_calls_about_an_attempt_that_it_does_not_have_are_ignored(self, bench: Bench) -> None:
        executor = bench.executor
        executor.terminate(FIRST, 0.0)
        executor.signal(FIRST, signal.SIGTERM)
        executor.suspend(FIRST)
        executor.resume(FIRST)
        executor.release(FIRST, {})
        executor.release(FIRST, None)
        executor.send_control(FIRST, 0, "stop", "now")
        executor.acknowledge([FIRST])
        executor.abandon(FIRST)
        bench.wait(10)
        assert bench.of(FIRST) == []

    def test_another_daemon_reports_the_end_of_an_attempt_that_runs(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=200.0, code=3))
        bench.wait(60)
        bench.restart(FIRST)
        bench.wait(300)
        ended = bench.end(FIRST)
        assert isinstance(ended, e.ProcessExited)
        assert (ended.code, bench.starts(FIRST)) == (3, 1)

    def test_an_end_that_no_daemon_saw_is_reported_by_the_next(self, bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=5.0, code=3))
        bench.stop()
        bench.wait(100)
        bench.restart(FIRST)
        bench.wait(10)
        ended = bench.end(FIRST)
        assert isinstance(ended, e.ProcessExited | e.StartCalledOff)
        assert bench.starts(FIRST) == isinstance(ended, e.ProcessExited)

    def test_an_attempt_that_was_never_sent_is_not_started_later(self, bench: Bench) -> None:
        bench.restart(FIRST)
        bench.wait(10)
        assert isinstance(bench.end(FIRST), e.StartCalledOff)
        bench.executor.start(bench.launch(FIRST, seconds=1.0))
        bench.wait(100)
        assert bench.starts(FIRST) == 0

    def test_an_end_is_reported_to_every_daemon_until_it_is_acknowledged(
        self, bench: Bench
    ) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=2.0, code=3))
        bench.wait(100)
        for _ in range(2):
            bench.restart(FIRST)
            bench.wait(10)
            assert getattr(bench.end(FIRST), "code", None) == 3
        bench.executor.acknowledge([FIRST])
        bench.restart()
        bench.wait(100)
        assert bench.of(FIRST) == []

    def test_a_part_starts_when_its_barrier_is_released(self, bench: Bench) -> None:
        if Capability.BARRIER not in bench.executor.capabilities:
            pytest.skip("it has no barriers")
        self._start_at_barrier(bench)
        assert bench.starts(FIRST) == 0
        bench.executor.release(FIRST, {"MASTER_ADDR": "here"})
        bench.wait(20)
        assert isinstance(bench.end(FIRST), e.ProcessExited)

    def test_a_part_whose_barrier_is_given_up_never_starts(self, bench: Bench) -> None:
        if Capability.BARRIER not in bench.executor.capabilities:
            pytest.skip("it has no barriers")
        self._start_at_barrier(bench)
        bench.executor.release(FIRST, None)
        bench.wait(20)
        assert isinstance(bench.end(FIRST), e.StartCalledOff)
        assert bench.starts(FIRST) == 0

    @staticmethod
    def _start_at_barrier(bench: Bench) -> None:
        bench.executor.start(bench.launch(FIRST, seconds=2.0), Barrier(rank=1, timeout=60))
        bench.wait(10)
        assert {(attempt, rank) for attempt, rank, _ in bench.sink.ready_parts} == {(FIRST, 1)}
