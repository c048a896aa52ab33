"""The contract, for the executor of this node and for the one behind an agent."""

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.agent.local_transport import LocalTransport
from executors.process_contract import GRACE_SECONDS, ExecutorBed, ProcessContract
from executors.recording_sink import RecordingSink
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.agent.executor import AgentEnvironment, AgentExecutor
from stoker.executors.launch.paths import ExecutorPaths
from stoker.executors.local.executor import LocalExecutor
from stoker.executors.local.recovery import COMPLETE
from stoker.executors.local.supervisor_client import spawn_supervisors
from stoker.executors.port import AttemptId
from stoker.probes import remote_facts


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LocalBed(ExecutorBed):
    """The executor of this node, with real supervisors."""

    def open(self) -> None:
        for name in ("run", "exits", "scripts"):
            (self.place / name).mkdir(exist_ok=True)
        (self.place / "run" / COMPLETE).touch()
        paths = [str(self.place / name) for name in ("run", "exits", "scripts", "run")]
        self.reactor = EpollReactor()
        self.executor = LocalExecutor(
            ExecutorPaths(*paths), self.install, spawn_supervisors(paths[1]), self.reactor,
            lambda _: f"PATH={os.environ['PATH']}\0".encode(), lambda _: None, GRACE_SECONDS,
        )  # fmt: skip
        self.sink = RecordingSink()
        self.executor.open(self.sink)

    def turn(self) -> None:
        self.reactor.wait(0.02)
        self.executor.tick(boot_time())

    def records(self) -> list[str]:
        return [path.name for path in (self.place / "run").iterdir() if path.name != COMPLETE]


class Records:
    """A journal that waits for every attempt."""

    def abandoned_attempts(self, node: str) -> list[AttemptId]:
        return []

    def is_expected(self, attempt: AttemptId) -> bool:
        return True

    def is_superseded(self, attempt: AttemptId) -> bool:
        return False

    def next_job_id(self) -> int:
        return 1000

    def has_work(self) -> bool:
        return True


class AgentBed(ExecutorBed):
    """The executor behind a real agent, on a node that shares its files with this one or not."""

    shares_files = True

    def open(self) -> None:
        (self.place / "notes").mkdir(exist_ok=True)
        self.reactor = EpollReactor()
        environment = AgentEnvironment(
            self.install, str(self.place / "notes"), self.reactor, lambda _: b"", lambda _: None,
            remote_facts.parse, GRACE_SECONDS,
        )  # fmt: skip
        self.executor = AgentExecutor(
            "node", LocalTransport(), environment, Records(), self.shares_files
        )
        self.sink = RecordingSink()
        self.executor.open(self.sink)

    def restart(self, *launches: object) -> None:
        super().restart(*launches)  # type: ignore[arg-type]
        self.until(lambda: self.sink.ups)

    def turn(self) -> None:
        self.executor.tick(boot_time())
        self.reactor.wait(0.02)

    def records(self) -> list[str]:
        run = self.place / ".stoker/run" / self.install
        return [path.name for path in run.glob("*.claim")]


@pytest.fixture
def install() -> str:
    """A name that no other test on this host has: attempts are found by it."""
    return f"c{secrets.token_hex(4)}"


class TestLocalExecutor(ProcessContract):
    @pytest.fixture
    def bed(self, tmp_path: Path, install: str) -> Iterator[ExecutorBed]:
        made = LocalBed(tmp_path, install)
        yield made
        made.executor.close()


class TestAgentExecutor(ProcessContract):
    @pytest.fixture
    def bed(
        self, tmp_path: Path, install: str, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[ExecutorBed]:
        monkeypatch.setenv("HOME", str(tmp_path))
        made = AgentBed(tmp_path, install)
        made.until(lambda: made.sink.ups)
        yield made
        made.executor.close()
