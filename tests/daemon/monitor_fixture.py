"""The daemon's side of one running job, without a daemon."""

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.changes import training as changes
from stoker.core.cluster import Placement
from stoker.core.job import AttemptId, Job, Progress, Spec, Training
from stoker.core.lifecycle import JobState
from stoker.core.request import Request
from stoker.core.state import State
from stoker.daemon.metrics.scorer import TrialScorer
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.daemon.training.monitor import TrainingMonitor

STARTED = 1000.0


class RecordingExecutor:
    """Notes what would go to other machines."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def send_control(self, attempt: AttemptId, rank: int, name: str, text: str) -> None:
        self.told.append((name, attempt, rank, text))


class MonitorFixture:
    """A home, a state with one running job, and somebody who listens to it."""

    def __init__(self, home: Path, epochs: int | None = None) -> None:
        self.home, self.state = home, State()
        self.couriers = RecordingExecutor()
        self.state.specs["s"] = Spec(
            kind="line", user="u", directory="/", shell="/bin/sh", environment="", name="t",
            request=Request(), training=Training(epochs=epochs) if epochs is not None else None,
        )  # fmt: skip
        self.state.spec_users["s"] = 1
        self.job = Job(7, "s", "t", "u", 1.0, state=JobState.RUNNING, started_at=STARTED)
        self.job.placement = Placement("here", ())
        self.state.jobs[7] = self.state.running[7] = self.job
        self.state.rest.next_id = 8
        self.directory = home / "training" / "7.0"
        self.listen()

    def listen(self) -> None:
        """What a new daemon does."""
        self.reactor = EpollReactor()
        self.trainings = TrainingMonitor(
            str(self.home), self.reactor, self.couriers, lambda: self.state,
            TrialScorer(lambda: self.state),
        )  # fmt: skip
        self.trainings.start()

    def seconds_until_due(self) -> float | None:
        """Return when the loop is to turn though nothing happens."""
        due = self.reactor.next_due()
        return None if due is None else max(due - self.reactor.time(), 0.0)

    def write(self, *lines: dict[str, Any] | bytes) -> None:
        """Append to the report, as the library does."""
        self.directory.mkdir(0o700, exist_ok=True)
        with (self.directory / "report").open("ab") as file:
            for line in lines:
                file.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")

    def heed(self, *facts: e.Event) -> list[e.Event]:
        """One turn of the loop, with its facts applied to the job's progress."""
        self.reactor.wait(0)
        told = self.trainings.enrich_events(list(facts))
        for fact in told:
            if isinstance(fact, e.TrainingBegan):
                changes.on_training_began(self.state, fact)
            elif isinstance(fact, e.EpochsCounted):
                progress = self.job.progress or Progress()
                metrics = progress.metrics if fact.metrics is None else fact.metrics
                self.job.progress = replace(progress, epochs=fact.done, metrics=metrics)
        self.trainings.on_events(told)
        return told

    def exit(self, code: int = 0, part: int | None = None) -> list[e.Event]:
        """Its process ends."""
        return self.heed(e.ProcessExited(at=2000.0, job=7, attempt=0, code=code, part=part))
