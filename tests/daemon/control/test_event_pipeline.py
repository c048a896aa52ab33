"""EventPipeline: the order of events, and what is collected when a part of it fails."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from core.scenario import Scenario
from stoker.core import events as e
from stoker.daemon.control import event_pipeline
from stoker.daemon.control.event_pipeline import READING_TIMEOUT_SECONDS, EventPipeline
from stoker.daemon.runtime.clock import system_clock
from stoker.faults import FaultTracker


def event(job: int) -> e.Event:
    return e.JobHeld(at=0, job=job)


class PipelineFixture:
    """A pipeline over executors, training and GPUs that tests fill."""

    def __init__(self) -> None:
        self.scenario = Scenario()
        self.now = 100.0
        self.faults = FaultTracker(system_clock)
        self.registry = SimpleNamespace(pending=False, collect=lambda _: [event(20)])
        self.training = SimpleNamespace(enrich_events=lambda events: [*events, event(30)])
        recorder = SimpleNamespace(before_ends=lambda events, _: events)
        self.gpus = SimpleNamespace(
            recorder=recorder,
            has_reading=False,
            is_stale=lambda: self.is_stale,
            take_events=lambda _: [event(40)],
        )
        self.alarms = SimpleNamespace(before_ends=lambda events, _: events, collect=lambda _: [])
        self.is_stale = False
        self.pipeline = EventPipeline(
            cast("Any", self.registry), cast("Any", self.training), cast("Any", self.gpus),
            cast("Any", self.alarms), lambda: self.scenario.state, "/logs", self.faults,
            lambda: self.now,
        )  # fmt: skip

    def collect(self) -> list[int]:
        return [cast("Any", event).job for event in self.pipeline.collect()]


@pytest.fixture
def fixture() -> PipelineFixture:
    return PipelineFixture()


def fail(*_: object) -> Any:
    raise KeyError("a bug")


def test_gpu_readings_come_before_events_of_executors(fixture: PipelineFixture):
    fixture.registry.pending = fixture.gpus.has_reading = True
    assert fixture.pipeline.has_events
    assert fixture.collect() == [40, 20, 30]


def test_alarms_come_before_the_ends_of_their_attempts(fixture: PipelineFixture):
    fixture.alarms.collect = lambda _: [event(50)]
    fixture.alarms.before_ends = lambda events, _: [event(60), *events]
    assert fixture.collect() == [50, 60, 20, 30]
    fixture.alarms.collect = fixture.alarms.before_ends = fail
    assert fixture.collect() == [20, 30]


def test_the_registry_fails_and_other_events_are_collected(fixture: PipelineFixture):
    fixture.registry.collect, fixture.registry.pending = fail, True
    assert fixture.collect() == [30]
    assert fixture.pipeline.is_failing


def test_events_survive_errors_of_training_and_of_container_logs(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
):
    fixture.training.enrich_events = fail
    monkeypatch.setattr(event_pipeline, "mark_container_failures", fail)
    assert fixture.collect() == [20]


def test_gpus_are_not_allocated_by_an_old_reading(fixture: PipelineFixture):
    assert fixture.pipeline.gpus_fresh(has_commands=True)
    fixture.is_stale = True
    assert fixture.pipeline.gpus_fresh(has_commands=False)
    assert not fixture.pipeline.gpus_fresh(has_commands=True)
    fixture.scenario.submit()
    assert not fixture.pipeline.gpus_fresh(has_commands=False)


def test_a_missing_reading_delays_jobs_by_a_second_only(fixture: PipelineFixture):
    fixture.is_stale = True
    fixture.scenario.submit()
    assert not fixture.pipeline.gpus_fresh(has_commands=False)
    fixture.now += READING_TIMEOUT_SECONDS + 0.1
    assert fixture.pipeline.gpus_fresh(has_commands=False)
    fixture.gpus.has_reading = True
    fixture.collect()
    assert not fixture.pipeline.gpus_fresh(has_commands=False)
