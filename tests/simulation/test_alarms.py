"""Modelled trainings for a day: each alarm once, and no false one, whatever happens meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec import Struct

from simulation import client as ask
from simulation.sim_fixture import SimFixture, gpus
from simulation.simulated_machine import Model
from stoker.core.alarms.samples import GpuSample, JobSample
from stoker.core.alarms.tracker import AlarmTracker, whole_gpus
from stoker.core.events import AlarmCleared, AlarmRaised
from stoker.core.model.alarm import AlarmRules
from stoker.core.model.job import Job, JobState

HOUR, MINUTE, STEP = 3600.0, 60.0, 15.0
DAY = 24 * HOUR


class Doing(Struct):
    """What a training does at one moment."""

    load: int | None = 90
    steps: int | None = None
    """Steps that it has reported."""
    log: int = 0
    nan: bool = False
    has_context: bool = True


Training = Callable[[float, Random], Doing]
"""What a training does at a number of seconds after its start."""


def healthy(t: float, random: Random) -> Doing:
    return Doing(random.randint(60, 100), int(t / 3), int(t))


def loads_data(t: float, random: Random) -> Doing:
    """Each hour it loads data for nine minutes, and prints nothing."""
    if t % HOUR < 9 * MINUTE:
        return Doing(0, int(t // HOUR * HOUR / 3), int(t // HOUR))
    return Doing(random.randint(60, 100), int(t / 3), int(t // HOUR) + 1)


def saves(t: float, random: Random) -> Doing:
    """Every two hours it writes a checkpoint for nine minutes: the GPU and the output wait."""
    begin = t // (2 * HOUR) * 2 * HOUR
    if t - begin < 9 * MINUTE:
        return Doing(0, int(begin / 3), int(begin))
    return healthy(t, random)


def validates(t: float, random: Random) -> Doing:
    """Half of each hour is a validation without steps or output."""
    steps = t if t % HOUR < HOUR / 2 else t // HOUR * HOUR + HOUR / 2
    return Doing(random.randint(20, 100), int(steps / 3), int(steps))


def starts_slowly(t: float, random: Random) -> Doing:
    if t < 19 * MINUTE:
        return Doing(0, None, 1)
    return healthy(t, random)


def without_reports(t: float, random: Random) -> Doing:
    return Doing(random.randint(5, 100), None, int(t / (2 * HOUR)))


def prints_only(t: float, random: Random) -> Doing:
    return Doing(100, None, int(t / (20 * MINUTE)))


def unreadable(t: float, random: Random) -> Doing:
    return Doing(None, None, 1)


def idle_later(t: float, random: Random) -> Doing:
    return healthy(t, random) if t < 5 * HOUR else Doing(random.randint(0, 1), int(t / 3), 1)


def never_uses_it(t: float, random: Random) -> Doing:
    return Doing(0, None, int(t), has_context=False)


def hangs_spinning(t: float, random: Random) -> Doing:
    return healthy(t, random) if t < 5 * HOUR else Doing(100, int(5 * HOUR / 3), int(5 * HOUR))


def hangs_silently(t: float, random: Random) -> Doing:
    return Doing(random.randint(50, 90), None, int(t)) if t < 5 * HOUR else Doing(100, None, 7)


def diverges(t: float, random: Random) -> Doing:
    return Doing(random.randint(60, 100), int(t / 3), int(t), nan=t > 5 * HOUR)


FINE = (healthy, loads_data, saves, validates, starts_slowly, without_reports, prints_only,
        unreadable)  # fmt: skip
WRONG = {idle_later: "gpu_idle", never_uses_it: "gpu_unused", hangs_spinning: "hung",
         hangs_silently: "hung", diverges: "nan"}  # fmt: skip


class AlarmSimulation:
    """A simulated daemon, whose readings come from the models."""

    def __init__(self, seed: int, count: int) -> None:
        self.sim = SimFixture(gpus=count, seed=seed)
        self.random = Random(seed)
        self.trainings: dict[int, Training] = {}
        self.begins: dict[int, float] = {}
        self.alarms: list[tuple[str, str]] = []
        """Name of the training, and the kind of each alarm that was raised; `-` cleared."""
        self.tracker = AlarmTracker(AlarmRules())

    def start(self, training: Training, request: Any = None, **fields: Any) -> int:
        job = self.sim.submit(request or gpus(1), models=(Model(seconds=2 * DAY),), **fields)
        self.trainings[job] = training
        self.sim.run(1)
        assert self.sim.job(job).state is JobState.RUNNING
        self.begins[job] = self.sim.world.time
        return job

    def crash(self) -> None:
        self.sim.driver.crash()
        self.tracker = AlarmTracker(AlarmRules())

    def step(self) -> None:
        self.sim.world.advance(STEP)
        self.sim.driver.turn()
        now, state = self.sim.world.moment(), self.sim.state
        for job in list(state.running.values()):
            self.observe(job, now.boot)
        events = self.tracker.events(state, now.wall, now.boot)
        for event in events:
            if isinstance(event, AlarmRaised | AlarmCleared):
                self.note(event)
        driver = self.sim.driver
        driver._act_on(driver.engine.cycle(events))

    def observe(self, job: Job, boot: float) -> None:
        doing = self.trainings[job.id](self.sim.world.time - self.begins[job.id], self.random)
        state = self.sim.state
        for gpu in whole_gpus(job):
            sample = GpuSample(
                at=boot, utilization=doing.load, has_process=doing.has_context,
                memory=8000 * doing.has_context,
            )  # fmt: skip
            self.tracker.observe_gpu(state, gpu, job, sample)
        sample = JobSample(
            at=boot, progress=doing.steps, log_size=doing.log,
            nan_metrics=("loss",) if doing.nan else (),
        )  # fmt: skip
        self.tracker.observe_job(state, job, sample)

    def note(self, event: AlarmRaised | AlarmCleared) -> None:
        sign = "-" if isinstance(event, AlarmCleared) else ""
        assert event.alarm.job is not None
        name = self.trainings[event.alarm.job].__name__
        self.alarms.append((name, sign + event.alarm.kind))

    def run(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        for _ in range(int(seconds / STEP)):
            self.step()
            meanwhile()


def test_each_alarm_once_and_no_false_one_in_a_day() -> None:
    simulation = AlarmSimulation(0, len(FINE) + len(WRONG))
    for training in (*FINE, *WRONG):
        simulation.start(training)
    simulation.start(healthy, machine_without_gpus())
    simulation.start(unreadable, machine_without_gpus())
    simulation.run(DAY)
    expected = Counter((training.__name__, kind) for training, kind in WRONG.items())
    assert Counter(simulation.alarms) == expected
    simulation.sim.check()


def machine_without_gpus() -> Any:
    from stoker.core.model.resources import ResourceRequest

    return ResourceRequest(cpus=1000)


@pytest.mark.parametrize("seed", range(2))
def test_crashes_pauses_and_jumps_of_the_clock_raise_nothing_new(seed: int) -> None:
    simulation = AlarmSimulation(seed, 4)
    for training in (healthy, validates, idle_later, diverges):
        simulation.start(training)
    paused = next(job for job, training in simulation.trainings.items() if training is healthy)
    random, sim = Random(seed), simulation.sim

    def meanwhile() -> None:
        chance = random.random()
        if chance < 0.002:
            simulation.crash()
        elif chance < 0.003:
            sim.world.jump(random.choice((-2 * HOUR, 3 * HOUR)))
        elif chance < 0.005 and sim.job(paused).state is JobState.RUNNING:
            sim.do(ask.pause(paused))
        elif chance < 0.010 and sim.job(paused).state is JobState.SUSPENDED:
            sim.do(ask.resume(paused))

    simulation.run(DAY, meanwhile)
    assert sim.driver.crashes > 3
    kinds = Counter(simulation.alarms)
    assert kinds == {("idle_later", "gpu_idle"): 1, ("diverges", "nan"): 1}
    active = {alarm.kind for alarm in sim.state.record.alarms.values()}
    assert active == {"gpu_idle", "nan"}


def test_alarms_end_with_the_work_and_with_the_job() -> None:
    simulation = AlarmSimulation(0, 2)
    busy = simulation.start(idle_later)
    other = simulation.start(never_uses_it)
    simulation.run(6 * HOUR)
    simulation.trainings[busy] = lambda t, random: Doing(80, None, int(t))
    simulation.trainings[busy].__name__ = "busy"
    simulation.run(MINUTE)
    assert ("busy", "-gpu_idle") in simulation.alarms
    simulation.sim.do(ask.cancel(other))
    simulation.sim.run(60)
    assert simulation.sim.state.record.alarms == {}


@pytest.mark.parametrize("seed", range(2))
def test_a_day_of_actions_ends_what_is_wrong_and_nothing_else(seed: int) -> None:
    simulation = AlarmSimulation(seed, 9)
    sim, random = simulation.sim, Random(seed)
    fine = [
        simulation.start(training, alarm=f"{kind}={action}")
        for training, kind, action in (
            (healthy, "idle", "cancel"), (loads_data, "hung", "retry"),
            (validates, "hung", "cancel"), (starts_slowly, "unused", "preempt_if_waiting"),
            (prints_only, "nan", "cancel"),
        )
    ]  # fmt: skip
    diverging = simulation.start(diverges, alarm="nan=cancel")
    hanging = simulation.start(hangs_spinning, alarm="hung=retry")
    idle = simulation.start(idle_later, alarm="idle=preempt_if_waiting")
    marked = simulation.start(never_uses_it, alarm="unused=mark")
    simulation.run(8 * HOUR, lambda: simulation.crash() if random.random() < 0.002 else None)
    assert [sim.job(job).state for job in (*fine, idle, marked)] == [JobState.RUNNING] * 7
    assert sim.job(diverging).cause == "cancelled: loss is not a number"
    assert sim.job(hanging).past[0].cause.startswith("stopped: hung for ")
    assert (sim.job(hanging).attempt, sim.job(hanging).state) == (3, JobState.RUNNING)
    waiting = [sim.submit(gpus(1), models=(Model(seconds=HOUR),)) for _ in range(2)]
    simulation.trainings |= dict.fromkeys(waiting, healthy)
    simulation.begins |= dict.fromkeys(waiting, sim.world.time)
    simulation.run(10 * MINUTE)
    # One has the GPU of the cancelled job, the other that of the idle one.
    assert {sim.job(job).state for job in waiting} == {JobState.RUNNING}
    assert sim.job(idle).past[-1].cause.startswith("stopped: GPU idle for ")
    assert "needs its GPUs" in sim.job(idle).past[-1].cause
    simulation.run(2 * HOUR)
    assert [sim.job(job).state for job in (*waiting, idle)] == [
        JobState.COMPLETED, JobState.COMPLETED, JobState.RUNNING,
    ]  # fmt: skip
    sim.check()
