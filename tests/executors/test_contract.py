"""The contract, for the executor of this node and for the one behind an agent."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.contract import (
    BarrierContract,
    ExecutorContract,
    ProcessBarrierContract,
    ProcessContract,
    SuspendContract,
)
from executors.process_bench import AgentBench, LocalBench, ProcessBench
from executors.user_bench import UserBench
from stoker.core.events import ProcessStarted, StartCancelled
from stoker.core.model.job import AttemptId


@pytest.fixture
def install() -> str:
    """A name that no other test on this host has: attempts are found by it."""
    return f"c{secrets.token_hex(4)}"


class TestLocalExecutor(
    ExecutorContract, SuspendContract, BarrierContract, ProcessContract, ProcessBarrierContract
):
    @pytest.fixture
    def bench(self, tmp_path: Path, install: str) -> Iterator[ProcessBench]:
        made = LocalBench(tmp_path, tmp_path, install)
        yield made
        made.stop()


class TestUserExecutor(
    ExecutorContract, SuspendContract, BarrierContract, ProcessContract, ProcessBarrierContract
):
    @pytest.fixture
    def bench(self, tmp_path: Path, install: str) -> Iterator[ProcessBench]:
        made = UserBench(tmp_path, tmp_path, install)
        yield made
        made.stop()


class TestAgentExecutor(
    ExecutorContract, SuspendContract, BarrierContract, ProcessContract, ProcessBarrierContract
):
    @pytest.fixture
    def bench(
        self, tmp_path: Path, install: str, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[ProcessBench]:
        monkeypatch.setenv("HOME", str(tmp_path))
        made = AgentBench(tmp_path, tmp_path, install, shares_files=True)
        yield made
        made.stop()

    def test_an_attempt_that_is_killed_before_the_job_begins_is_called_off(
        self, bench: ProcessBench
    ) -> None:
        (bench.home / ".bashrc").write_text("trap '' TERM; exec sleep 30\n")
        attempt = AttemptId(1, 1)
        bench.executor.start(bench.launch(attempt, seconds=0.0))
        bench.until(lambda: bench.of(attempt, ProcessStarted))
        bench.executor.terminate(attempt, grace=0.0)
        assert isinstance(bench.end(attempt), StartCancelled)
        assert bench.starts(attempt) == 0
