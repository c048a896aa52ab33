"""Alarms at each threshold, from samples alone."""

from __future__ import annotations

from typing import Any

import pytest

from core.scenario import Scenario, gpus
from stoker.core import events as e
from stoker.core.alarms.samples import GpuSample, JobSample
from stoker.core.alarms.tracker import AlarmTracker
from stoker.core.model.alarm import Alarm, AlarmRule, AlarmRules, parse_rule
from stoker.core.model.job import JobState
from stoker.core.model.spec import Spec, Training
from stoker.core.model.sweep import Sweep
from stoker.core.model.units import BadValue

STEP = 10.0
MINUTE = 60.0


class AlarmFixture:
    """A node with GPUs, jobs on them, and a tracker that is fed in virtual time."""

    def __init__(self, count: int = 1, **limits: float) -> None:
        self.scenario = Scenario(gpus=count)
        self.rules = AlarmRules(AlarmRule(kind, limit) for kind, limit in limits.items())
        self.tracker = AlarmTracker(self.rules)
        self.raised: list[Alarm] = []
        """All alarms that were ever raised."""

    def start(self, amount: float = 1, **fields: Any) -> int:
        job = self.scenario.submit(gpus(amount) if amount else None, **fields)
        self.scenario.run(job)
        return job

    def restart(self) -> None:
        """A new daemon: all that survives is the state."""
        self.tracker = AlarmTracker(self.rules)

    def read(self, gpu: int = 0, **sample: Any) -> None:
        scenario = self.scenario
        holder = next(
            (
                job
                for job in scenario.state.running.values()
                if job.placement is not None and str(gpu) in job.placement.names("gpu")
            ),
            None,
        )
        if holder is not None:
            sample.setdefault("has_process", True)
        self.tracker.observe_gpu(
            scenario.state, ("box", str(gpu)), holder, GpuSample(at=scenario.boot, **sample)
        )

    def report(self, job: int, **sample: Any) -> None:
        scenario = self.scenario
        self.tracker.observe_job(
            scenario.state, scenario.state.jobs[job], JobSample(at=scenario.boot, **sample)
        )

    def decide(self) -> None:
        scenario = self.scenario
        for event in self.tracker.events(scenario.state, scenario.now, scenario.boot):
            scenario.tell(event)
            if isinstance(event, e.AlarmRaised):
                self.raised.append(event.alarm)

    def run(self, seconds: float, job: int | None = None, log: Any = None, **sample: Any) -> None:
        """Read GPU 0 for some time; with `job`, its reports: None, or a function of the time."""
        end = self.scenario.now + seconds
        while self.scenario.now < end:
            self.scenario.now += STEP
            now = self.scenario.now
            if sample:
                self.read(**{k: v(now) if callable(v) else v for k, v in sample.items()})
            if job is not None:
                self.report(job, log_size=log(now) if callable(log) else log)
            self.decide()

    def train(self, seconds: float, job: int, every: float = STEP, **sample: Any) -> None:
        """The same with a report of a step every few seconds."""
        end = self.scenario.now + seconds
        while self.scenario.now < end:
            self.scenario.now += STEP
            self.read(**(sample or {"utilization": 80}))
            self.report(job, progress=(0, int(self.scenario.now / every)), log_size=1)
            self.decide()

    @property
    def active(self) -> list[str]:
        return sorted(alarm.kind for alarm in self.scenario.state.record.alarms.values())


# -- idle ---------------------------------------------------------------------------------


def test_a_gpu_that_is_idle_for_ten_minutes_after_the_start_raises_an_alarm() -> None:
    fixture = AlarmFixture()
    job = fixture.start()
    fixture.run(5 * MINUTE, utilization=90)
    fixture.run(14 * MINUTE + 50, utilization=1, memory=2000)
    assert fixture.active == []
    fixture.run(STEP * 2, utilization=0, memory=2000)
    assert fixture.active == ["gpu_idle"]
    (alarm,) = fixture.raised
    assert (alarm.job, alarm.node, alarm.gpu) == (job, "box", "0")
    assert "2000 MiB" in alarm.text
    assert alarm.since == pytest.approx(1000 + 5 * MINUTE, abs=2 * STEP)


def test_the_alarm_ends_with_the_first_work_and_may_come_again() -> None:
    fixture = AlarmFixture()
    fixture.start()
    fixture.run(30 * MINUTE, utilization=0)
    assert fixture.active == ["gpu_idle"]
    fixture.run(STEP, utilization=2)
    assert fixture.active == []
    fixture.run(11 * MINUTE, utilization=0)
    assert fixture.active == ["gpu_idle"]
    assert len(fixture.raised) == 2


def test_one_idle_gpu_of_two_raises_an_alarm() -> None:
    fixture = AlarmFixture(count=2)
    fixture.start(2)
    for _ in range(150):
        fixture.scenario.now += STEP
        fixture.read(0, utilization=99)
        fixture.read(1, utilization=0)
        fixture.decide()
    assert [(alarm.kind, alarm.gpu) for alarm in fixture.raised] == [("gpu_idle", "1")]


def test_alarms_end_with_the_attempt() -> None:
    fixture = AlarmFixture()
    job = fixture.start()
    fixture.run(30 * MINUTE, utilization=0)
    fixture.scenario.fact(e.ProcessExited, job, attempt=0, code=1)
    assert fixture.active == []
    fixture.decide()
    assert fixture.active == []


def test_gpus_without_a_job_are_never_idle() -> None:
    fixture = AlarmFixture()
    fixture.run(60 * MINUTE, utilization=0)
    assert fixture.raised == []


def test_a_share_of_a_gpu_is_never_idle() -> None:
    fixture = AlarmFixture()
    fixture.start(0.5)
    assert fixture.raised == []
    job = next(iter(fixture.scenario.state.running.values()))
    from stoker.core.alarms.tracker import whole_gpus

    assert whole_gpus(job) == []


@pytest.mark.parametrize("load", [None, 2, 50, 100])
def test_load_or_no_reading_of_it_is_not_idle(load: int | None) -> None:
    fixture = AlarmFixture()
    fixture.start()
    fixture.run(60 * MINUTE, utilization=load)
    assert fixture.raised == []


def test_a_gap_in_the_readings_begins_anew() -> None:
    fixture = AlarmFixture()
    fixture.start()
    fixture.run(19 * MINUTE, utilization=0)
    fixture.scenario.now += 61.0
    fixture.run(9 * MINUTE, utilization=0)
    assert fixture.raised == []


def test_a_paused_job_raises_nothing_and_begins_anew() -> None:
    fixture = AlarmFixture()
    job = fixture.start()
    fixture.run(15 * MINUTE, job, utilization=0)
    fixture.scenario.fact(e.JobPaused, job, boot=fixture.scenario.boot)
    assert fixture.scenario.state.jobs[job].state is JobState.SUSPENDED
    fixture.run(120 * MINUTE, job, utilization=0)
    fixture.scenario.fact(e.JobResumed, job, boot=fixture.scenario.boot)
    fixture.run(9 * MINUTE, job, utilization=0)
    assert fixture.raised == []


def test_a_restart_neither_ends_nor_repeats_an_alarm() -> None:
    fixture = AlarmFixture()
    fixture.start()
    fixture.run(30 * MINUTE, utilization=0)
    fixture.restart()
    fixture.decide()
    assert fixture.active == ["gpu_idle"]
    fixture.run(30 * MINUTE, utilization=0)
    assert fixture.active == ["gpu_idle"]
    assert len(fixture.raised) == 1
    fixture.restart()
    fixture.run(STEP, utilization=50)
    assert fixture.active == []


# -- unused -------------------------------------------------------------------------------


def test_a_gpu_without_a_process_for_ten_minutes_is_unused() -> None:
    fixture = AlarmFixture()
    fixture.start()
    fixture.run(10 * MINUTE, utilization=0, has_process=False)
    assert fixture.active == []
    fixture.run(2 * STEP, utilization=0, has_process=False)
    assert fixture.active == ["gpu_unused"]


def test_a_gpu_that_was_used_once_is_not_unused() -> None:
    fixture = AlarmFixture(gpu_idle=0)
    fixture.start()
    fixture.run(STEP, utilization=0, has_process=True)
    fixture.run(60 * MINUTE, utilization=0, has_process=False)
    assert fixture.raised == []


def test_use_that_an_earlier_daemon_measured_counts() -> None:
    fixture = AlarmFixture(gpu_idle=0)
    job = fixture.start()
    fixture.scenario.fact(e.MemoryMeasured, job, attempt=0, memory=3000)
    fixture.restart()
    fixture.run(60 * MINUTE, utilization=0, has_process=False)
    assert fixture.raised == []


# -- hung ---------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0, 100])
def test_a_training_without_reports_for_ten_minutes_is_hung(load: int) -> None:
    fixture = AlarmFixture(gpu_idle=0)
    job = fixture.start()
    fixture.train(20 * MINUTE, job)
    last = fixture.tracker._jobs[job, 0].last
    for _ in range(int(10 * MINUTE / STEP)):
        fixture.scenario.now += STEP
        fixture.read(utilization=load)
        fixture.report(job, progress=last.progress, log_size=1)
        fixture.decide()
    assert fixture.raised == []
    fixture.scenario.now += 2 * STEP
    fixture.read(utilization=load)
    fixture.report(job, progress=last.progress, log_size=1)
    fixture.decide()
    assert fixture.active == ["hung"]
    assert f"{load} %" in fixture.raised[0].text
    fixture.report(job, progress="another", log_size=1)
    fixture.decide()
    assert fixture.active == []


def silent(fixture: AlarmFixture, job: int, seconds: float, **sample: Any) -> None:
    """Readings without another report."""
    progress = fixture.tracker._jobs[job, 0].last.progress
    end = fixture.scenario.now + seconds
    while fixture.scenario.now < end:
        fixture.scenario.now += STEP
        if sample:
            fixture.read(**sample)
        fixture.report(job, progress=progress, log_size=1)
        fixture.decide()


def test_usual_times_between_reports_count() -> None:
    fixture = AlarmFixture(gpu_idle=0)
    job = fixture.start()
    fixture.train(60 * MINUTE, job, every=200)
    silent(fixture, job, 16 * MINUTE, utilization=100)
    assert fixture.raised == []
    silent(fixture, job, 2 * MINUTE, utilization=100)
    assert fixture.active == ["hung"]


def test_a_long_validation_is_not_hung() -> None:
    fixture = AlarmFixture()
    job = fixture.start()
    fixture.train(20 * MINUTE, job)
    for n in range(120):
        silent(fixture, job, STEP, utilization=40 + n % 50)
    assert fixture.raised == []


def test_saving_after_the_last_epoch_is_not_hung() -> None:
    fixture = AlarmFixture(gpu_idle=0)
    job = fixture.start(0)
    for n in range(100):
        fixture.scenario.now += STEP
        fixture.report(job, progress=n, is_done=n == 99)
    for _ in range(200):
        fixture.scenario.now += STEP
        fixture.report(job, progress=99, is_done=True)
        fixture.decide()
    assert fixture.raised == []


def test_a_training_on_cpus_is_hung_without_reports() -> None:
    fixture = AlarmFixture()
    job = fixture.start(0)
    for n in range(100):
        fixture.scenario.now += STEP
        fixture.report(job, progress=n, log_size=1)
    silent(fixture, job, 11 * MINUTE)
    assert fixture.active == ["hung"]


def test_a_job_that_only_computes_on_cpus_raises_nothing() -> None:
    fixture = AlarmFixture()
    job = fixture.start(0)
    fixture.run(600 * MINUTE, job, log=1)
    assert fixture.raised == []


@pytest.mark.parametrize(("load", "is_hung"), [(0, True), (100, True), (60, False), (None, False)])
def test_without_reports_output_and_load_decide(load: int | None, is_hung: bool) -> None:
    fixture = AlarmFixture(gpu_idle=0)
    job = fixture.start()
    fixture.run(5 * MINUTE, job, log=int, utilization=50)
    fixture.run(29 * MINUTE, job, log=7, utilization=load)
    assert fixture.raised == []
    fixture.run(2 * MINUTE, job, log=7, utilization=load)
    assert fixture.active == (["hung"] if is_hung else [])


def test_output_shows_that_a_job_is_at_work() -> None:
    fixture = AlarmFixture(gpu_idle=0)
    job = fixture.start()
    fixture.run(120 * MINUTE, job, log=lambda now: int(now / 900), utilization=100)
    assert fixture.raised == []


def test_a_restart_keeps_a_hung_job_until_it_reports() -> None:
    fixture = AlarmFixture(gpu_idle=0)
    job = fixture.start()
    fixture.train(20 * MINUTE, job)
    silent(fixture, job, 11 * MINUTE, utilization=100)
    fixture.restart()
    fixture.decide()
    for progress in (None, "read again", "read again"):
        fixture.scenario.now += STEP
        fixture.read(utilization=100)
        fixture.report(job, progress=progress, log_size=None if progress is None else 1)
        fixture.decide()
    assert fixture.active == ["hung"]
    assert len(fixture.raised) == 1
    fixture.report(job, progress="more", log_size=1)
    fixture.decide()
    assert fixture.active == []


# -- NaN, GPUs, advice --------------------------------------------------------------------


@pytest.mark.parametrize("sample", [{"nan_metrics": ("loss",)}, {"log_has_nan": True}])
def test_a_loss_that_is_not_a_number_raises_an_alarm(sample: dict[str, Any]) -> None:
    fixture = AlarmFixture()
    job = fixture.start()
    fixture.report(job, progress=1)
    fixture.decide()
    assert fixture.active == []
    fixture.report(job, progress=2, **sample)
    fixture.decide()
    assert fixture.active == ["nan"]
    assert "loss" in fixture.raised[0].text
    fixture.report(job, progress=3)
    fixture.decide()
    assert fixture.active == []


def test_a_gpu_is_hot_after_five_minutes_at_its_limit() -> None:
    fixture = AlarmFixture()
    fixture.run(5 * MINUTE, temperature=90, slowdown=90)
    assert fixture.active == []
    fixture.run(2 * STEP, temperature=91, slowdown=90)
    assert fixture.active == ["hot"]
    fixture.run(STEP, temperature=89, slowdown=90)
    assert fixture.active == []
    fixture.run(60 * MINUTE, temperature=99)
    assert fixture.active == []
    fixture.run(6 * MINUTE, temperature=80, is_slowed=True)
    assert fixture.raised[-1].text == "80 °C; heat slows it down"
    fixture.run(STEP, temperature=99, is_slowed=False)
    assert fixture.active == []


def test_memory_errors_and_faults_of_a_gpu_are_alarms() -> None:
    fixture = AlarmFixture()
    fixture.run(STEP, ecc_errors=0)
    assert fixture.active == []
    fixture.run(STEP, ecc_errors=2, xid=79)
    assert fixture.active == ["ecc", "xid"]
    fixture.run(STEP, ecc_errors=0, xid=31)  # 31: an error of the program
    assert fixture.active == []


def test_alarms_of_a_gpu_that_is_gone_end() -> None:
    fixture = AlarmFixture()
    fixture.run(STEP, ecc_errors=2)
    fixture.scenario.state.record.alarms["x"] = Alarm(
        kind="ecc", since=0.0, text="", node="gone", gpu="0"
    )
    fixture.scenario.now += 600.0
    events = fixture.tracker.events(
        fixture.scenario.state, fixture.scenario.now, fixture.scenario.boot
    )
    assert [event.alarm.node for event in events if isinstance(event, e.AlarmCleared)] == ["gone"]


# -- objectives of sweeps, silent logs ----------------------------------------------------


def trial_fixture(maximize: bool = False, **rules: float) -> tuple[AlarmFixture, int]:
    """A running trial of a sweep with the objective `loss`."""
    fixture = AlarmFixture(hung=0, gpu_idle=0, **rules)
    scenario = fixture.scenario
    sweep = Sweep(
        id=1, name="s", user="ada", identity="i", definition="d", method="grid",
        created_at=scenario.now, metric="loss", maximize=maximize,
    )  # fmt: skip
    scenario.tell(e.SweepDefined(at=scenario.now, sweep=sweep))
    hash = "trial"
    spec = Spec(
        kind="line", user="ada", directory="/", shell="sh", environment="e", request=gpus(1),
        name="t",
    )  # fmt: skip
    scenario.tell(e.SpecRecorded(at=scenario.now, hash=hash, spec=spec))
    scenario.tell(
        e.JobsSubmitted(
            at=scenario.now, first=2, count=1, spec=hash, sweep=1, trials=(("{}", "true"),)
        )
    )
    scenario.run(2)
    return fixture, 2


def reports(fixture: AlarmFixture, job: int, seconds: float, value: float) -> None:
    end = fixture.scenario.now + seconds
    while fixture.scenario.now < end:
        fixture.scenario.now += STEP
        fixture.report(job, progress=fixture.scenario.now, objective=value)
        fixture.decide()


@pytest.mark.parametrize("sign", [1, -1])
def test_an_objective_that_does_not_get_better_is_flat(sign: int) -> None:
    fixture, job = trial_fixture(maximize=sign < 0, loss_flat=600)
    reports(fixture, job, 9 * MINUTE, sign * 2.0)
    reports(fixture, job, 10 * MINUTE, sign * 1.0)
    assert fixture.raised == []
    reports(fixture, job, 2 * STEP, sign * 0.9999)  # less than a thousandth better
    assert fixture.active == ["loss_flat"]
    fixture.restart()
    reports(fixture, job, 20 * MINUTE, sign * 1.0)
    assert (fixture.active, len(fixture.raised)) == (["loss_flat"], 1)
    reports(fixture, job, STEP, sign * 0.5)
    assert fixture.active == []


def test_an_objective_worse_than_its_first_value_diverges() -> None:
    fixture, job = trial_fixture(diverged=600)
    reports(fixture, job, STEP, 2.3)
    reports(fixture, job, 9 * MINUTE, 7.0)
    reports(fixture, job, STEP, 2.3)
    reports(fixture, job, 10 * MINUTE, 7.0)
    assert fixture.raised == []
    reports(fixture, job, 2 * STEP, float("inf"))
    assert fixture.active == ["diverged"]
    fixture.restart()
    reports(fixture, job, 20 * MINUTE, 7.0)
    assert (fixture.active, len(fixture.raised)) == (["diverged"], 1)
    reports(fixture, job, STEP, 6.9)
    assert fixture.active == []


def test_objectives_raise_nothing_by_default_or_without_a_sweep() -> None:
    fixture, job = trial_fixture()
    reports(fixture, job, 120 * MINUTE, 2.0)
    assert fixture.raised == []
    fixture = AlarmFixture(hung=0, gpu_idle=0, loss_flat=600)
    job = fixture.start()
    reports(fixture, job, 60 * MINUTE, 2.0)
    assert fixture.raised == []


def test_a_job_without_output_is_silent_if_that_is_asked_for() -> None:
    fixture = AlarmFixture()
    job = fixture.start(0, alarms=(parse_rule("log_silent=30m", "--alarm"),))
    fixture.run(20 * MINUTE, job, log=1)
    fixture.run(30 * MINUTE, job, log=2)
    assert fixture.raised == []
    fixture.run(2 * STEP, job, log=2)
    assert fixture.active == ["log_silent"]
    fixture.restart()
    fixture.run(10 * MINUTE, job, log=2)
    assert (fixture.active, len(fixture.raised)) == (["log_silent"], 1)
    fixture.run(STEP, job, log=3)
    assert fixture.active == []


# -- actions ------------------------------------------------------------------------------


def idle_job(
    action: str, count: int = 1, amount: float = 1, **fields: Any
) -> tuple[AlarmFixture, int]:
    """A job whose GPU has been idle for ten minutes."""
    fixture = AlarmFixture(count)
    job = fixture.start(amount, alarms=(parse_rule(f"idle={action}", "--alarm"),), **fields)
    fixture.run(20 * MINUTE, utilization=0)
    while not fixture.raised:
        fixture.run(STEP, utilization=0)
    return fixture, job


def test_an_action_follows_when_the_alarm_is_in_the_journal() -> None:
    fixture, job = idle_job("cancel")
    assert fixture.scenario.is_(job) == "RUNNING"
    fixture.run(STEP, utilization=0)
    assert fixture.scenario.is_(job) == "COMPLETING"
    fixture.scenario.exited(job, code=None, signal=15)
    ended = fixture.scenario.job(job)
    assert (ended.state.value, ended.cause) == ("CANCELLED", "cancelled: GPU idle for 20 min")
    assert fixture.active == []


@pytest.mark.parametrize("action", ["tell", "mark"])
def test_other_actions_end_nothing(action: str) -> None:
    fixture, job = idle_job(action)
    fixture.run(60 * MINUTE, utilization=0)
    assert fixture.scenario.is_(job) == "RUNNING"
    assert [alarm.action for alarm in fixture.raised] == [action]


def test_a_job_is_repeated_at_most_three_times() -> None:
    fixture = AlarmFixture()
    job = fixture.start(alarms=(parse_rule("idle=retry", "--alarm"),))
    scenario = fixture.scenario
    for attempt in range(4):
        fixture.run(20 * MINUTE + 3 * STEP, utilization=0)
        if attempt < 3:
            assert scenario.is_(job) == "COMPLETING"
            scenario.exited(job, code=None, signal=15)
            assert scenario.job(job).past[-1].cause == "stopped: GPU idle for 20 min"
            scenario.run(job)
    assert scenario.is_(job) == "RUNNING"
    assert (scenario.job(job).attempt, scenario.job(job).retries) == (3, 0)
    assert fixture.active == ["gpu_idle"]


def test_a_gpu_is_given_back_only_if_a_job_waits_for_it() -> None:
    fixture, job = idle_job("preempt_if_waiting")
    scenario = fixture.scenario
    fixture.run(10 * MINUTE, utilization=0)
    too_large = scenario.submit(gpus(2))
    held = scenario.submit(gpus(1), held=True)
    scenario.plan()
    fixture.run(10 * MINUTE, utilization=0)
    assert (scenario.is_(job), scenario.is_(too_large)) == ("RUNNING", "PENDING")
    scenario.fact(e.JobReleased, held)
    scenario.plan()
    fixture.run(STEP, utilization=0)
    assert scenario.is_(job) == "COMPLETING"
    scenario.exited(job, code=None, signal=15)
    assert "GPU idle for 40 min, and job 3 needs its GPUs" in str(scenario.job(job).past[-1].cause)
    # It ranks before the job that waits, which starts all the same.
    assert scenario.plan() == [held]
    scenario.wait(61)
    scenario.plan()
    assert (scenario.is_(held), scenario.is_(job)) == ("CONFIGURING", "PENDING")
    scenario.started(held)
    scenario.exited(held)
    assert scenario.plan() == [job]


def test_a_gpu_that_is_free_or_gets_free_needs_no_other() -> None:
    fixture, job = idle_job("preempt_if_waiting", count=2)
    scenario = fixture.scenario
    other = scenario.submit(gpus(1))
    scenario.run(other)
    scenario.fact(e.JobCancelled, other)  # its processes end
    scenario.submit(gpus(1))
    fixture.run(10 * MINUTE, utilization=0)
    assert scenario.is_(job) == "RUNNING"


def test_a_training_gives_its_gpu_back_at_a_checkpoint_if_it_can() -> None:
    fixture, job = idle_job("preempt_if_waiting", training=Training(epochs=10))
    scenario = fixture.scenario
    scenario.about(e.TrainingBegan, job)
    scenario.submit(gpus(1))
    fixture.run(STEP, utilization=0)
    stop = scenario.job(job).progress.stop
    assert stop is not None
    assert (scenario.is_(job), stop.delay) == ("RUNNING", 60.0)
    scenario.about(e.PreemptionTimedOut, job)
    fixture.run(STEP, utilization=0)
    assert scenario.is_(job) == "COMPLETING"


@pytest.mark.parametrize(
    ("fields", "state"), [({"non_preemptible": True}, "RUNNING"), ({"pty": True}, "COMPLETING")]
)
def test_jobs_that_cannot_go_on_later(fields: dict[str, Any], state: str) -> None:
    fixture, job = idle_job("preempt_if_waiting", **fields)
    fixture.scenario.submit(gpus(1))
    fixture.run(MINUTE, utilization=0)
    assert fixture.scenario.is_(job) == state
    assert fixture.scenario.job(job).ending == ("cancel" if "pty" in fields else None)


def test_a_decision_that_cannot_be_written_is_made_once() -> None:
    fixture, _ = idle_job("cancel")
    scenario = fixture.scenario
    events = [fixture.tracker.events(scenario.state, scenario.now, scenario.boot) for _ in range(3)]
    assert [[type(event) for event in found] for found in events] == [[e.JobCancelled], [], []]


def advice(fixture: AlarmFixture, job: int) -> str | None:
    state = fixture.scenario.state
    alarm = fixture.tracker.advice(state, state.jobs[job], fixture.scenario.now)
    return alarm.text if alarm is not None else None


def two_gpus(loads: tuple[int, int], minutes: float = 11) -> tuple[AlarmFixture, int]:
    fixture = AlarmFixture(count=2)
    job = fixture.start(2)
    for _ in range(int(minutes * MINUTE / STEP)):
        fixture.scenario.now += STEP
        for gpu, load in enumerate(loads):
            fixture.read(gpu, utilization=load, has_process=load > 0)
    return fixture, job


def test_half_of_the_gpus_is_too_much_to_ask_for() -> None:
    fixture, job = two_gpus((90, 0))
    assert advice(fixture, job) == "it used 1 of 2 GPUs: --gpus 1"
    alarm = fixture.tracker.advice(
        fixture.scenario.state, fixture.scenario.state.jobs[job], fixture.scenario.now
    )
    assert alarm is not None
    fixture.scenario.tell(e.AlarmRaised(at=fixture.scenario.now, alarm=alarm))
    fixture.scenario.fact(e.ProcessExited, job, attempt=0, code=0)
    assert fixture.scenario.state.jobs[job].advice == alarm.text
    assert fixture.active == []


def test_used_gpus_and_short_attempts_get_no_advice() -> None:
    assert advice(*two_gpus((90, 5))) is None
    assert advice(*two_gpus((90, 0), minutes=9)) is None
    assert advice(*two_gpus((0, 0))) is None  # an alarm was about that


@pytest.mark.parametrize(("peak", "is_advised"), [(5999, True), (6000, False)])
def test_a_quarter_of_the_memory_is_enough(peak: int, is_advised: bool) -> None:
    fixture = AlarmFixture()
    job = fixture.start()
    fixture.run(11 * MINUTE, utilization=90)
    fixture.scenario.fact(e.MemoryMeasured, job, attempt=0, memory=peak)
    assert (advice(fixture, job) is not None) is is_advised


# -- limits -------------------------------------------------------------------------------


def test_limits_of_a_job_replace_the_configured_ones() -> None:
    fixture = AlarmFixture()
    fixture.start(alarms=(parse_rule("idle=off", "--alarm"),))
    fixture.run(60 * MINUTE, utilization=0)
    assert fixture.raised == []
    fixture = AlarmFixture()
    fixture.start(alarms=(parse_rule("idle=1h", "--alarm"),))
    fixture.run(69 * MINUTE, utilization=0)
    assert fixture.raised == []
    fixture.run(2 * MINUTE, utilization=0)
    assert fixture.active == ["gpu_idle"]


@pytest.mark.parametrize(
    "text", ["idle", "idle=", "idle=soon", "sleepy=1m", "", "idle=cancel,retry"]
)
def test_limits_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadValue):
        parse_rule(text, "--alarm")


@pytest.mark.parametrize(
    ("text", "kind", "limit", "action"),
    [("nan=on", "nan", 1.0, ""), ("over-requested=off", "over_requested", 0.0, ""),
     ("idle=cancel", "gpu_idle", None, "cancel"), ("Hung=1h,retry", "hung", 3600.0, "retry"),
     ("idle=1h 30m preempt-if-waiting", "gpu_idle", 5400.0, "preempt_if_waiting"),
     ("loss_flat=on", "loss_flat", 3600.0, ""), ("log-silent=off,mark", "log_silent", 0.0, "mark"),
     ("unused=0-01:00", "gpu_unused", 3600.0, ""), ("ecc=mark", "ecc", None, "mark")],
)  # fmt: skip
def test_rules_as_they_are_written(text: str, kind: str, limit: float | None, action: str) -> None:
    assert parse_rule(text, "--alarm") == AlarmRule(kind, limit, action)


@pytest.mark.parametrize("kind", ["hot", "ecc", "xid", "over_requested"])
def test_what_is_about_no_running_job_ends_none(kind: str) -> None:
    with pytest.raises(BadValue, match="no running job"):
        parse_rule(f"{kind}=cancel", "--alarm")


def test_rules_of_a_job_come_before_those_of_its_queue_and_the_general_ones() -> None:
    general = AlarmRules([parse_rule("idle=30m,mark", ""), parse_rule("hung=off", "")])
    queue = AlarmRules([parse_rule("idle=1h", "")], general)
    job = AlarmRules([parse_rule("hung=retry", ""), parse_rule("diverged=cancel", "")], queue)
    assert (job.limit("gpu_idle"), job.action("gpu_idle")) == (3600.0, "mark")
    assert (job.limit("hung"), job.action("hung")) == (600.0, "retry")
    assert (job.limit("diverged"), queue.limit("diverged")) == (600.0, 0.0)
    assert (general.limit("hung"), general.action("nan")) == (0.0, "tell")


def test_events_of_an_attempt_that_has_ended_raise_nothing() -> None:
    fixture = AlarmFixture()
    job = fixture.start()
    alarm = Alarm(kind="nan", since=1.0, text="", job=job, attempt=1)
    fixture.scenario.tell(e.AlarmRaised(at=1.0, alarm=alarm))
    assert fixture.active == []


def test_while_nothing_can_be_written_an_alarm_is_raised_once() -> None:
    fixture = AlarmFixture()
    fixture.read(ecc_errors=1)
    scenario = fixture.scenario
    events = [fixture.tracker.events(scenario.state, scenario.now, scenario.boot) for _ in range(3)]
    assert [len(found) for found in events] == [1, 0, 0]
    fixture.read(ecc_errors=0)
    assert fixture.tracker.events(scenario.state, scenario.now, scenario.boot) == []
    fixture.read(ecc_errors=1)
    assert len(fixture.tracker.events(scenario.state, scenario.now, scenario.boot)) == 1


def test_one_option_is_about_one_kind() -> None:
    with pytest.raises(BadValue, match="write --alarm once for each kind"):
        parse_rule("nan=cancel,idle=off", "--alarm")
