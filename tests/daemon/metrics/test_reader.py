"""Metrics of trials: all are published in order, and none blocks the loop."""

import json
from pathlib import Path
from typing import Any

import pytest

from daemon.monitor_fixture import MonitorFixture
from stoker.core import events as e
from stoker.core.events import NodeAdded
from stoker.core.model.job import AttemptId, Job, JobState
from stoker.core.model.resources import Placement
from stoker.daemon.metrics import reader
from stoker.daemon.reports.format import Point
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.daemon.training import monitor
from stoker.daemon.training.cleanup import remove
from stoker.daemon.training.monitor import TrainingMonitor


class RecordingScorer:
    """Records points of trials, and returns an event for each end."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.ends: list[AttemptId] = []

    def on_points(self, job: Job, key: AttemptId, points: list[Point]) -> list[e.Event]:
        self.points += points
        return []

    def on_end(self, job: Job, key: AttemptId) -> list[e.Event]:
        self.ends.append(key)
        return [e.TrialMeasured(at=1.0, job=key[0], attempt=key[1], value=1.0, final=True)]

    @property
    def steps(self) -> list[float | None]:
        return [point.step for point in self.points]


class Trial(MonitorFixture):
    """A monitor of a trial of a sweep."""

    def open_monitor(self) -> None:
        self.job.params = '{"lr":0.1}'
        self.scorer = RecordingScorer()
        self.reactor = EpollReactor()
        self.monitor = TrainingMonitor(
            str(self.home), self.reactor, self.executor, lambda: self.state, self.scorer
        )
        self.monitor.start()

    def finish(self) -> None:
        """Apply the end of the job to the state."""
        self.job.state = JobState.COMPLETED
        self.state.running.pop(7, None)
        self.monitor.on_events([e.BeginTimeReached(at=1.0, job=7)])


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "READ_INTERVAL_SECONDS", 0.0)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


def point(step: int, **values: Any) -> dict[str, Any]:
    return {"k": "metrics", "e": 0, "t": 1000.0 + step, "s": step, "v": values or {"loss": 1.0}}


def kinds(events: list[e.Event]) -> list[str]:
    return [type(fact).__name__ for fact in events]


def test_points_are_published_as_they_arrive_and_the_last_before_the_end(
    trial: Trial,
) -> None:
    trial.write({"k": "hello", "t": 1.0}, point(0, loss=0.5, note="warm", flag=True))
    trial.run_turn()
    assert trial.scorer.points == [Point(0.0, 1000.0, {"loss": 0.5})]
    trial.write(point(1), b'{"k":"metrics","t":1.0,"v":{"loss":NaN}}\n', b'{"k":"metr')
    events = trial.exit()
    assert kinds(events) == ["EpochsCounted", "TrialMeasured", "ProcessExited"]
    assert trial.scorer.steps == [0.0, 1.0, None]
    assert str(trial.scorer.points[2].values["loss"]) == "nan"
    assert trial.scorer.ends == [(7, 0)]


def test_points_of_a_job_that_is_not_a_trial_are_not_read(trial: Trial) -> None:
    trial.job.params = None
    trial.write(point(0))
    trial.run_turn()
    trial.exit()
    assert (trial.scorer.points, trial.scorer.ends) == ([], [])


def test_a_trial_without_a_report_has_an_end(trial: Trial) -> None:
    assert kinds(trial.exit()) == ["TrialMeasured", "ProcessExited"]
    assert trial.scorer.ends == [(7, 0)]


def test_only_the_first_part_ends_it(trial: Trial) -> None:
    trial.write(point(0))
    trial.exit(part=1)
    assert trial.scorer.ends == []
    trial.exit(part=0)
    assert trial.scorer.ends == [(7, 0)]


def test_a_new_daemon_reads_the_points_from_their_start(trial: Trial) -> None:
    trial.write(point(0))
    trial.run_turn()
    trial.open_monitor()
    trial.run_turn()
    trial.write(point(1))
    trial.run_turn()
    assert trial.scorer.steps == [0.0, 1.0]


def test_a_long_report_is_read_to_its_end_after_the_attempt_has_ended(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PIECE", 1000)
    monkeypatch.setattr(reader, "MAX_PER_TURN", 4000)
    trial.write(*(point(step) for step in range(500)))
    assert kinds(trial.exit()) == ["EpochsCounted", "ProcessExited"]
    read = len(trial.scorer.points)
    assert 0 < read < 100
    assert trial.monitor.is_reading_ended
    trial.finish()
    assert trial.monitor.cleanup.take_removable() == []  # it is still needed
    trial.write(point(999))  # by a process that it left behind
    for _ in range(500):
        if trial.scorer.ends:
            break
        assert trial.seconds_until_due() == 0.0
        before = len(trial.scorer.points)
        trial.run_turn()
        assert len(trial.scorer.points) - before < 100
    assert trial.scorer.steps == [float(step) for step in range(500)]
    assert (trial.scorer.ends, trial.monitor.is_reading_ended) == ([(7, 0)], False)
    assert trial.monitor.cleanup.take_removable() == [str(trial.directory)]
    assert trial.seconds_until_due() is None


def test_the_next_daemon_reads_what_a_crashed_one_has_not(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PIECE", 1000)
    monkeypatch.setattr(reader, "MAX_PER_TURN", 4000)
    trial.write(*(point(step) for step in range(100)))
    trial.exit()
    trial.finish()
    assert trial.scorer.ends == []
    trial.open_monitor()
    trial.monitor.cleanup.scan(trial.state)
    assert trial.monitor.cleanup.take_removable() == []
    for _ in range(100):
        trial.run_turn()
    assert trial.scorer.steps == [float(step) for step in range(100)]
    assert trial.scorer.ends == [(7, 0)]


def test_a_published_earlier_attempt_is_not_read_by_the_next_daemon(trial: Trial) -> None:
    trial.write(point(0))
    trial.exit(1)
    trial.job.attempt, trial.job.state = 1, JobState.PENDING
    del trial.state.running[7]
    trial.run_turn()  # the next turn
    trial.open_monitor()
    trial.run_turn()
    assert (trial.scorer.points, trial.scorer.ends) == ([], [])


def test_a_report_of_a_remote_node_is_stored_and_published(trial: Trial, tmp_path: Path) -> None:
    trial.job.placement = Placement("there", ())
    trial.state.record.remotes["there"] = NodeAdded(at=1.0, name="there", address="there")
    data = b"".join(json.dumps(point(step)).encode() + b"\n" for step in range(3))
    trial.monitor.on_report_data(AttemptId(7, 0), None, data[:90], 0)
    trial.run_turn()
    trial.monitor.on_report_data(AttemptId(7, 0), None, data[60:], 60)
    trial.exit()
    assert trial.scorer.steps == [0.0, 1.0, 2.0]
    kept = tmp_path / "series" / "7.0"
    assert kept.read_bytes() == data
    trial.finish()
    remove(trial.monitor.cleanup.take_removable())
    assert kept.read_bytes() == data


def test_of_a_remote_report_only_metrics_are_kept(trial: Trial, tmp_path: Path) -> None:
    trial.job.placement = Placement("there", ())
    trial.state.record.remotes["there"] = NodeAdded(at=1.0, name="there", address="there")
    trial.monitor.on_report_data(AttemptId(7, 0), None, b'{"k":"hello"}\n', 0)
    trial.exit()
    trial.finish()
    remove(trial.monitor.cleanup.take_removable())
    assert list((tmp_path / "series").iterdir()) == []
