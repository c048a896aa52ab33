"""Readings, reports and logs become alarm events, at a bounded pace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.scenario import Scenario, gpus
from stoker.core import events as e
from stoker.core.alarms.samples import JobSample
from stoker.core.model.alarm import AlarmRule, AlarmRules
from stoker.core.model.resources import DeviceFacts, NodeFacts, ResourceRequest
from stoker.daemon.alarms import monitor as module
from stoker.daemon.alarms.monitor import AlarmMonitor
from stoker.engine import Instant
from stoker.probes.gpu_reading import GpuProcess, GpuUse
from virtual_reactor import VirtualReactor

MINUTE = 60.0


class MonitorFixture:
    """A node `here` with two GPUs and a monitor, in virtual time."""

    def __init__(self, logs: Path) -> None:
        self.scenario = Scenario(gpus=0)
        cards = [DeviceFacts(name=str(n), memory=24_000, uuid=f"GPU-{n}") for n in range(2)]
        facts = NodeFacts(name="here", types={"gpu": tuple(cards)})
        self.scenario.tell(e.NodeJoined(at=self.scenario.now, facts=facts))
        self.samples: dict[int, JobSample] = {}
        self.memory: dict[int, dict[str, int]] = {}
        self.reactor = VirtualReactor()
        self.monitor = AlarmMonitor(
            AlarmRules(), "here", str(logs), self.reactor, self.samples.get,
            lambda job: self.memory.get(job, {}), clock=self.clock,
        )  # fmt: skip

    def clock(self) -> Instant:
        return Instant(self.scenario.now, self.scenario.boot)

    def start(self, amount: float = 1) -> int:
        job = self.scenario.submit(gpus(amount))
        self.scenario.run(job)
        return job

    def read(self, **use: Any) -> None:
        given = {"memory_used": 1000, "utilization": 50, "temperature": 40, "power": 100.0,
                 "processes": (), "processes_known": True, **use}  # fmt: skip
        uses = {f"GPU-{n}": GpuUse(uuid=f"GPU-{n}", **given) for n in range(2)}
        self.monitor.on_reading(self.scenario.state, "here", uses)

    def collect(self) -> list[str]:
        """Apply what the monitor returns; return raised kinds, `-kind` of cleared ones."""
        kinds = []
        for event in self.monitor.collect(self.scenario.state):
            self.scenario.tell(event)
            assert isinstance(event, e.AlarmRaised | e.AlarmCleared)
            sign = "-" if isinstance(event, e.AlarmCleared) else ""
            kinds.append(f"{sign}{event.alarm.kind}")
        return kinds

    def pass_time(self, seconds: float, **use: Any) -> list[str]:
        kinds = []
        end = self.scenario.now + seconds
        while self.scenario.now < end:
            self.scenario.now += 2.0
            self.read(**use)
            kinds += self.collect()
        return kinds


@pytest.fixture
def fixture(tmp_path: Path) -> MonitorFixture:
    return MonitorFixture(tmp_path)


def test_an_idle_gpu(fixture: MonitorFixture) -> None:
    job = fixture.start()
    fixture.memory[job] = {"0": 1000}
    assert fixture.pass_time(19 * MINUTE + 50, utilization=0) == []
    assert fixture.pass_time(MINUTE, utilization=0) == ["gpu_idle"]
    assert fixture.pass_time(MINUTE, utilization=90) == ["-gpu_idle"]


def test_memory_shows_a_process_that_the_driver_does_not_list(fixture: MonitorFixture) -> None:
    fixture.start()
    assert fixture.pass_time(11 * MINUTE, utilization=0, memory_used=500) == []
    assert fixture.pass_time(30 * MINUTE, utilization=0, memory_used=500) == ["gpu_idle"]


@pytest.mark.parametrize(
    "use",
    [{"processes_known": False}, {"processes": (GpuProcess(pid=1, memory=3),)}],
)
def test_a_driver_that_lists_no_or_other_processes(
    fixture: MonitorFixture, use: dict[str, Any]
) -> None:
    fixture.start()
    assert fixture.pass_time(15 * MINUTE, utilization=0, memory_used=3, **use) == []


def test_an_unused_gpu(fixture: MonitorFixture) -> None:
    fixture.start()
    assert fixture.pass_time(11 * MINUTE, utilization=0, memory_used=3) == ["gpu_unused"]


def test_reports_and_logs_are_looked_at(fixture: MonitorFixture, tmp_path: Path) -> None:
    job = fixture.start()
    fixture.samples[job] = JobSample(at=0.0, nan_metrics=("loss",))
    assert fixture.pass_time(2 * module.CHECK_SECONDS) == ["nan"]
    fixture.samples[job] = JobSample(at=0.0)
    assert fixture.pass_time(2 * module.CHECK_SECONDS) == ["-nan"]
    (tmp_path / f"{job}.out").write_text("loss nan\nloss nan\n")
    assert fixture.pass_time(2 * module.CHECK_SECONDS) == ["nan"]


def on_another_node(fixture: MonitorFixture) -> int:
    """A job on the node `far`, which uses no GPU."""
    facts = NodeFacts(name="far", types={"cpu": (DeviceFacts(name="cpu", capacity=4000),)})
    fixture.scenario.tell(e.NodeAdded(at=fixture.scenario.now, name="far", address="ssh://far"))
    fixture.scenario.tell(e.NodeJoined(at=fixture.scenario.now, facts=facts))
    fixture.scenario.tell(e.NodeReached(at=fixture.scenario.now, node="far"))
    request = ResourceRequest(cpus=1000, nodes=("far",))
    job = fixture.scenario.submit(request, alarms=(AlarmRule("log_silent", 600.0),))
    fixture.scenario.run(job)
    return job


def test_the_output_of_other_nodes_is_looked_at(fixture: MonitorFixture, tmp_path: Path) -> None:
    job = on_another_node(fixture)
    log = tmp_path / f"{job}.out"
    log.write_text("loss 0.3\n")
    assert fixture.pass_time(9 * MINUTE) == []
    log.write_text("loss 0.3\nloss nan\nloss nan\n")
    assert fixture.pass_time(9 * MINUTE) == ["nan"]
    assert fixture.pass_time(2 * MINUTE) == ["log_silent"]


def test_no_output_of_a_node_that_cannot_be_reached_is_no_silence(
    fixture: MonitorFixture, tmp_path: Path
) -> None:
    job = on_another_node(fixture)
    (tmp_path / f"{job}.out").write_text("loss 0.3\n")
    now = fixture.scenario
    now.tell(e.NodeUnreachable(at=now.now, node="far", why="no route", boot=now.boot))
    assert fixture.pass_time(60 * MINUTE) == []
    now.tell(e.NodeReached(at=now.now, node="far"))
    assert fixture.pass_time(9 * MINUTE) == []
    assert fixture.pass_time(2 * MINUTE) == ["log_silent"]


class HeldBack:
    """Stands for the collector of evidence: an alarm waits until the test says so."""

    def __init__(self) -> None:
        self.waiting: list[e.AlarmRaised] = []
        self.ready: list[e.AlarmRaised] = []

    def collect(self, event: e.AlarmRaised, pid: int) -> bool:
        assert pid == 7
        self.waiting.append(event)
        return True

    def take(self) -> list[e.AlarmRaised]:
        ready, self.ready = self.ready, []
        return ready


@pytest.mark.parametrize("is_at_work_again", [False, True])
def test_a_hung_job_waits_for_its_evidence(
    fixture: MonitorFixture, monkeypatch: pytest.MonkeyPatch, is_at_work_again: bool
) -> None:
    held_back = HeldBack()
    monkeypatch.setattr(fixture.monitor, "_evidence", held_back)
    job = fixture.start()
    for progress in range(1, 60):
        fixture.samples[job] = JobSample(at=0.0, progress=progress)
        fixture.pass_time(10.0, utilization=90)
    assert fixture.pass_time(11 * MINUTE, utilization=100) == []
    (alarm,) = held_back.waiting
    if is_at_work_again:
        fixture.samples[job] = JobSample(at=0.0, progress=100)
        assert fixture.pass_time(2 * module.CHECK_SECONDS, utilization=100) == []
    held_back.ready = [msgspec.structs.replace(alarm, at=fixture.scenario.now)]
    raised = fixture.pass_time(MINUTE, utilization=100)
    assert raised == ([] if is_at_work_again else ["hung"])


def test_many_jobs_are_looked_at_in_several_turns(
    fixture: MonitorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOBS_PER_TURN", 2)
    seen: list[int] = []
    monkeypatch.setattr(AlarmMonitor, "_check", lambda self, state, job, now: seen.append(job.id))
    jobs = [fixture.start(0.2) for _ in range(5)]
    fixture.collect()
    assert seen == []  # the reports are not read yet
    fixture.scenario.now += module.CHECK_SECONDS
    for expected in (jobs[:2], jobs[2:4], jobs[4:]):
        fixture.collect()
        assert seen == expected
        seen.clear()
        fixture.scenario.now += module.PAUSE_SECONDS
    fixture.collect()
    assert seen == []
    fixture.scenario.now += module.CHECK_SECONDS
    fixture.collect()
    assert seen == jobs[:2]


def test_without_jobs_no_timer_is_set(fixture: MonitorFixture) -> None:
    assert fixture.collect() == []
    assert fixture.reactor.next_due() is None
    fixture.start()
    fixture.collect()
    assert fixture.reactor.next_due() is not None


def test_advice_comes_before_the_end(fixture: MonitorFixture) -> None:
    job = fixture.start(2)
    fixture.memory[job] = {"0": 1000}
    end = e.ProcessExited(at=fixture.scenario.now, job=job, attempt=0, code=0)
    for _ in range(400):
        fixture.scenario.now += 2.0
        uses = {
            f"GPU-{n}": GpuUse(
                uuid=f"GPU-{n}", memory_used=1000 - 1000 * n, utilization=90 - 90 * n,
                temperature=40, power=1.0, processes=(), processes_known=True,
            )
            for n in range(2)
        }  # fmt: skip
        fixture.monitor.on_reading(fixture.scenario.state, "here", uses)
    end = e.ProcessExited(at=fixture.scenario.now, job=job, attempt=0, code=0)
    advice, last = fixture.monitor.before_ends([end], fixture.scenario.state)
    assert last is end
    assert isinstance(advice, e.AlarmRaised)
    assert advice.alarm.kind == "over_requested"
    failed = e.ProcessExited(at=fixture.scenario.now, job=job, attempt=0, code=1)
    assert fixture.monitor.before_ends([failed], fixture.scenario.state) == [failed]
