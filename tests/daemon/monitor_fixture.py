"""The training monitor of one running job, without a daemon."""

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.handlers import training
from stoker.core.model.job import AttemptId, Job, JobState, Progress
from stoker.core.model.resources import Placement, ResourceRequest
from stoker.core.model.spec import Spec, Training
from stoker.core.state.state import State
from stoker.daemon.metrics.scorer import TrialScorer
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.daemon.training.monitor import TrainingMonitor
from stoker.daemon.training.stop_requests import RemoteControl

STARTED = 1000.0


class RecordingExecutor:
    """Records control files for other nodes."""

    def __init__(self) -> None:
        self.control_files: list[tuple[Any, ...]] = []

    def send_control(self, attempt: AttemptId, rank: int, name: str, text: str) -> None:
        self.control_files.append((name, attempt, rank, text))


class MonitorFixture:
    """A home, a state with one running job, and a training monitor."""

    def __init__(
        self, home: Path, epochs: int | None = None, remote: RemoteControl | None = None
    ) -> None:
        """`remote` gets the control files for other nodes; without it, they are recorded."""
        self.home, self.state = home, State()
        self.executor = RecordingExecutor()
        self.remote = remote or self.executor
        self.state.specs["s"] = Spec(
            kind="line",
            user="u",
            directory="/",
            shell="/bin/sh",
            environment="",
            name="t",
            request=ResourceRequest(),
            training=Training(epochs=epochs) if epochs is not None else None,
        )
        self.job = Job(7, "s", "t", "u", 1.0, state=JobState.RUNNING, started_at=STARTED)
        self.job.placement = Placement("here", ())
        self.state.jobs[7] = self.state.running[7] = self.job
        self.state.record.next_id = 8
        self.directory = home / "training" / "7.0"
        self.open_monitor()

    def open_monitor(self) -> None:
        """Create the monitor of a new daemon."""
        self.reactor = EpollReactor()
        self.monitor = TrainingMonitor(
            str(self.home), self.reactor, self.remote, lambda: self.state,
            TrialScorer(lambda: self.state),
        )  # fmt: skip
        self.monitor.start()

    def seconds_until_due(self) -> float | None:
        """Return when the loop is to turn though nothing happens."""
        due = self.reactor.next_due()
        return None if due is None else max(due - self.reactor.time(), 0.0)

    def write(self, *lines: dict[str, Any] | bytes) -> None:
        """Append to the report like the library."""
        self.directory.mkdir(0o700, exist_ok=True)
        with (self.directory / "report").open("ab") as file:
            for line in lines:
                file.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")

    def run_turn(self, *given: e.Event) -> list[e.Event]:
        """Run one turn with these events, and apply the result to the job's progress."""
        self.reactor.wait(0)
        events = self.monitor.enrich_events(list(given))
        for event in events:
            if isinstance(event, e.TrainingBegan):
                training.on_training_began(self.state, self.job, event)
            elif isinstance(event, e.EpochsCounted):
                progress = self.job.progress or Progress()
                metrics = progress.metrics if event.metrics is None else event.metrics
                self.job.progress = replace(progress, epochs=event.done, metrics=metrics)
        self.monitor.on_events(events)
        return events

    def exit(self, code: int = 0, part: int | None = None) -> list[e.Event]:
        """Run a turn with the end of the process; return the events."""
        return self.run_turn(e.ProcessExited(at=2000.0, job=7, attempt=0, code=code, part=part))
