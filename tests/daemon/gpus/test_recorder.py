"""Readings become GPU-seconds and joules of the attempts on each GPU."""

import time

import pytest

from core.scenario import Scenario, gpus
from stoker.core import events as e
from stoker.core.model.alarm import Alarm
from stoker.core.model.resources import DeviceFacts, GpuRequest, NodeFacts, ResourceRequest
from stoker.daemon.gpus import recorder as module
from stoker.daemon.gpus.history import GpuHistory
from stoker.daemon.gpus.recorder import GpuRecorder
from stoker.probes.gpu_reading import GpuUse


class RecorderFixture:
    """A node with two GPUs of 24,000 MiB, and a recorder that reads it every two seconds."""

    def __init__(self) -> None:
        self.scenario = Scenario(gpus=0)
        cards = [DeviceFacts(name=str(n), memory=24_000, uuid=f"GPU-{n}") for n in range(2)]
        facts = NodeFacts(name="here", types={"gpu": tuple(cards)})
        self.scenario.tell(e.NodeJoined(at=self.scenario.now, facts=facts))
        self.recorder = GpuRecorder(GpuHistory())
        self.now = 5000.0

    def read(self, *utilization: int | None, power: float | None = 100.0) -> list[e.Event]:
        uses = {
            f"GPU-{n}": GpuUse(
                uuid=f"GPU-{n}", memory_used=1000, utilization=value, temperature=40, power=power,
                processes=(), processes_known=True,
            )
            for n, value in enumerate(utilization)
        }  # fmt: skip
        self.now += 2.0
        return self.recorder.record(self.scenario.state, "here", uses, self.now)

    def measured(self, job: int) -> tuple[float, float, float] | None:
        """Seconds, busy seconds and joules."""
        usage = self.recorder.measured(job, 0)
        return (usage.measured, usage.busy, usage.energy) if usage is not None else None

    def start(self, request: ResourceRequest) -> int:
        job = self.scenario.submit(request)
        self.scenario.run(job)
        return job


@pytest.fixture
def fixture() -> RecorderFixture:
    return RecorderFixture()


def test_an_attempt_gets_the_use_of_its_gpus(fixture: RecorderFixture) -> None:
    job = fixture.start(gpus(2))
    for _ in range(6):
        fixture.read(100, 20)
    assert fixture.measured(job) == pytest.approx((20.0, 12.0, 2000.0))


def test_the_first_reading_and_long_gaps_measure_nothing(fixture: RecorderFixture) -> None:
    job = fixture.start(gpus(1))
    fixture.read(100, 0)
    assert fixture.measured(job) is None
    fixture.now += 60.0
    fixture.read(100, 0)
    assert fixture.measured(job) is None
    fixture.read(100, 0)
    assert fixture.measured(job) == pytest.approx((2.0, 2.0, 200.0))


def test_shares_of_a_gpu_share_its_use(fixture: RecorderFixture) -> None:
    half, quarter = fixture.start(gpus(0.5)), fixture.start(gpus(0.25))
    fixture.read(80, 0)
    fixture.read(80, 0)
    assert fixture.measured(half) == pytest.approx((1.0, 0.8, 100.0))
    assert fixture.measured(quarter) == pytest.approx((0.5, 0.4, 50.0))


def test_a_gpu_shared_by_memory_is_shared_by_its_parts(fixture: RecorderFixture) -> None:
    request = ResourceRequest(gpus=GpuRequest(amount=1000, memory=6_000, shareable=True))
    job = fixture.start(request)
    fixture.read(80, 0)
    fixture.read(80, 0)
    seconds, busy, energy = fixture.measured(job) or (0.0, 0.0, 0.0)
    assert busy == pytest.approx(0.8 * seconds)
    assert energy == pytest.approx(100 * seconds)
    assert 0 < seconds < 2.0


def test_what_the_driver_does_not_tell_counts_as_nothing(fixture: RecorderFixture) -> None:
    job = fixture.start(gpus(1))
    fixture.read(None, None, power=None)
    fixture.read(None, None, power=None)
    assert fixture.measured(job) == pytest.approx((2.0, 0.0, 0.0))


def test_time_of_an_idle_gpu_is_wasted_while_its_alarm_is_active(
    fixture: RecorderFixture,
) -> None:
    scenario, job = fixture.scenario, fixture.start(gpus(2))
    idle = Alarm(kind="gpu_idle", since=0.0, text="", job=job, node="here", gpu="1")
    fixture.read(90, 0)
    fixture.read(90, 0)
    scenario.tell(e.AlarmRaised(at=scenario.now, alarm=idle))
    for _ in range(3):
        fixture.read(90, 0)
    scenario.tell(e.AlarmCleared(at=scenario.now, alarm=idle))
    fixture.read(90, 90)
    scenario.now += 100.0
    end = e.ProcessExited(at=scenario.now, job=job, attempt=0, code=0)
    for event in fixture.recorder.before_ends([end], scenario.state):
        scenario.tell(event)
    assert scenario.state.jobs[job].usage.wasted == pytest.approx(6.0)


def test_the_usage_comes_before_the_end_of_its_attempt(fixture: RecorderFixture) -> None:
    job = fixture.start(gpus(1))
    fixture.read(50, 0)
    fixture.read(50, 0)
    end = e.ProcessExited(at=fixture.now, job=job, attempt=0, code=0)
    other = e.ProcessExited(at=fixture.now, job=99, attempt=0, code=0)
    events = fixture.recorder.before_ends([other, end], fixture.scenario.state)
    assert [type(event).__name__ for event in events] == [
        "ProcessExited", "UsageMeasured", "ProcessExited"
    ]  # fmt: skip
    for event in events[1:]:
        fixture.scenario.tell(event)
    usage = fixture.scenario.job(job).usage
    assert (usage.measured, usage.busy, usage.energy) == (2.0, 1.0, 200)


def test_usage_is_journalled_now_and_then_and_continued_by_the_next_daemon(
    fixture: RecorderFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUBLISH_SECONDS", 5.0)
    job = fixture.start(gpus(1))
    events = [event for _ in range(6) for event in fixture.read(100, 0)]
    assert [type(event).__name__ for event in events] == ["UsageMeasured"]
    fixture.scenario.tell(events[0])
    fixture.recorder = GpuRecorder(GpuHistory())
    fixture.read(100, 0)
    fixture.read(100, 0)
    seconds = fixture.scenario.job(job).measured.measured + 2.0
    assert (fixture.measured(job) or (0.0,))[0] == pytest.approx(seconds)


def test_history_names_the_job_on_a_gpu(fixture: RecorderFixture) -> None:
    job = fixture.start(gpus(1))
    fixture.read(50, 0)
    series = fixture.recorder.history.series(time.time(), 60, 2, ())[2]
    assert job in series["here/0"]["jobs"]
    assert set(series["here/1"]["jobs"]) == {None}
