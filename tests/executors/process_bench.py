"""Benches for executors of real processes; a second of the contract is a hundredth of one."""

import os
import time
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from executors.agent.local_transport import LocalTransport
from executors.contract import ScriptBench
from executors.recording_sink import RecordingSink
from specs import launch_of, spec_of
from stoker.core.events import ProcessStarted
from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId, Job, JobState
from stoker.core.model.resources import Placement
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.agent.executor import AgentEnvironment, AgentExecutor
from stoker.executors.agent.session.transport import Transport
from stoker.executors.launch.paths import ExecutorPaths
from stoker.executors.local.executor import LocalExecutor
from stoker.executors.local.recovery import COMPLETE
from stoker.executors.local.supervisor_client import spawn_supervisors
from stoker.executors.port import RecoverableAttempt
from stoker.probes import remote_facts

SCALE = 0.01
TIMEOUT_SECONDS = 30.0
GRACE_SECONDS = 0.5


class ProcessBench(ScriptBench):
    """A daemon without a core: an executor and its reactor."""

    scale = SCALE
    """Seconds of the clock in one second of the contract."""

    def __init__(self, base: Path, home: Path, install: str) -> None:
        self.base, self.home, self.install = base, home, install
        (base / "work").mkdir()
        self.launches: dict[AttemptId, Launch] = {}
        self.started: dict[AttemptId, float] = {}
        """When attempts were started, as the journal has it."""
        self.sink = RecordingSink()
        self.is_open = False
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Create the executor of a new daemon, which reports to the sink."""

    def turn(self) -> None:
        """Let the executor do what is due."""
        self.reactor.wait(0.02)

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds * self.scale
        while time.monotonic() < deadline:
            if self.is_open:
                self.turn()
            else:
                time.sleep(self.scale)

    def until(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not (value := condition()):
            assert time.monotonic() < deadline, self.sink.events
            self.turn()
        return value

    def clock_seconds(self, seconds: float) -> float:
        return seconds * self.scale

    def stop(self) -> None:
        if self.is_open:
            self.is_open = False
            self.executor.close()

    def restart(self, *attempts: AttemptId) -> None:
        self.stop()
        for event in self.sink.events:
            if isinstance(event, ProcessStarted):
                self.started[AttemptId(event.job, event.attempt)] = event.at
        self.sink = RecordingSink()
        self.open()
        self.executor.recover([self.recoverable(attempt) for attempt in attempts])

    def recoverable(self, attempt: AttemptId) -> RecoverableAttempt:
        """Return what the journal knows of an attempt."""
        launch, started_at = self.launches[attempt], self.started.get(attempt)
        state = JobState.CONFIGURING if started_at is None else JobState.RUNNING
        job = Job(
            id=attempt.job, spec="", name="", user="", submitted_at=0.0, started_at=started_at,
            attempt=attempt.attempt, state=state, placement=launch.placement,
        )  # fmt: skip
        return RecoverableAttempt(job, spec_of(directory=launch.directory), launch.out, launch.err)

    def launch(
        self, attempt: AttemptId, seconds: float, code: int = 0, ignores_term: bool = False
    ) -> Launch:
        trap = "trap '' TERM; " if ignores_term else ""
        lines = f"{trap}echo {attempt} >>$HOME/ran; sleep {seconds * self.scale}; exit {code}"
        return self.script(attempt, lines)

    def script(self, attempt: AttemptId, script: str) -> Launch:
        launch = self.launches[attempt] = launch_of(
            job=attempt.job, attempt=attempt.attempt, argv=("sh", "-c", script),
            directory=str(self.base / "work"), extra={"STOKER_TOKEN": f"{self.install}.{attempt}"},
            out=str(self.base / f"{attempt}.out"), placement=Placement("here", ()),
            label=str(attempt.job),
        )  # fmt: skip
        return launch

    def starts(self, attempt: AttemptId) -> int:
        ran = self.home / "ran"
        return ran.read_text().split().count(str(attempt)) if ran.exists() else 0


class LocalBench(ProcessBench):
    """The executor of this node, with real supervisors."""

    def open(self) -> None:
        for name in ("run", "exits", "scripts"):
            (self.base / name).mkdir(exist_ok=True)
        (self.base / "run" / COMPLETE).touch()
        paths = [str(self.base / name) for name in ("run", "exits", "scripts", "run")]
        environment = f"PATH={os.environ['PATH']}\0HOME={self.home}\0".encode()
        self.reactor = EpollReactor()
        self.executor = LocalExecutor(
            ExecutorPaths(*paths), self.install, spawn_supervisors(paths[1]), self.reactor,
            lambda _: environment, lambda _: None, GRACE_SECONDS,
        )  # fmt: skip
        self.executor.open(self.sink)
        self.is_open = True

    def claims(self) -> list[str]:
        return [path.name for path in (self.base / "run").iterdir() if path.name != COMPLETE]


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


class AgentBench(ProcessBench):
    """The executor behind a real agent, on a node that has files of its own or not."""

    def __init__(
        self,
        base: Path,
        home: Path,
        install: str,
        transport: Transport | None = None,
        shares_files: bool = False,
    ) -> None:
        self.transport, self.shares_files = transport or LocalTransport(), shares_files
        super().__init__(base, home, install)
        self.until(lambda: self.sink.ups)

    def open(self) -> None:
        (self.base / "notes").mkdir(exist_ok=True)
        self.reactor = EpollReactor()
        environment = AgentEnvironment(
            self.install, str(self.base / "notes"), self.reactor, lambda _: b"", lambda _: None,
            remote_facts.parse, GRACE_SECONDS,
        )  # fmt: skip
        self.executor = AgentExecutor(
            "node", self.transport, environment, Records(), self.shares_files
        )
        self.executor.open(self.sink)
        self.is_open = True

    def restart(self, *attempts: AttemptId) -> None:
        super().restart(*attempts)
        self.until(lambda: self.sink.ups)

    def claims(self) -> list[str]:
        run = self.home / ".stoker/run" / self.install
        return [path.name for path in run.glob("*.claim")]
