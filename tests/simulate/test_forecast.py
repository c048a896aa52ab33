"""What is foreseen: hand-worked futures of one GPU, ranges, and how often they hold."""

import subprocess
import sys
from random import Random

import msgspec
import pytest

from benchmarks.calibration import calibrate
from core.scenario import Scenario
from simulation import client as ask
from simulation.sim_fixture import SimFixture, gpus
from simulation.simulated_machine import Model
from stoker.core import events as e
from stoker.core.explain.forecast import (
    Forecast,
    ForecastInput,
    Kind,
    StartEndEstimate,
    TimeInterval,
    command_key,
    forecast_input,
    name_key,
)
from stoker.core.model.dependency import Clause, Dependency
from stoker.core.model.job import Job, JobState, PastAttempt, Progress
from stoker.core.model.profile import EpochTime, JobProfile
from stoker.core.model.resources import GpuRequest, ResourceRequest
from stoker.core.model.spec import Spec, Training
from stoker.core.state.record import ClusterRecord
from stoker.daemon.workers.estimates import interval, start_end_estimate
from stoker.simulate.forecast.durations import DurationDistribution, DurationModel, ObservedDuration
from stoker.simulate.forecast.futures import _samples, forecast
from stoker.simulate.traces.cluster_size import uniform_nodes
from stoker.simulate.workload import TraceJob, Workload

NOW, BOOT = 1_000_000.0, 5_000.0
NODE = uniform_nodes([(1, 1)])[0]


def spec(name: str, **more: object) -> Spec:
    given: dict[str, object] = {
        "kind": "argv", "user": "ana", "directory": "/", "shell": "", "environment": "",
        "request": ResourceRequest(gpus=GpuRequest(1000)), "name": name,
    }  # fmt: skip
    return Spec(**{**given, **more})  # type: ignore[arg-type]


def waiting(id: int, name: str, **more: object) -> Job:
    return Job(id=id, spec=name, name=name, user="ana", submitted_at=NOW - 10, **more)  # type: ignore[arg-type]


def running(id: int, name: str, since: float, **more: object) -> Job:
    from stoker.core.model.resources import DeviceAllocation, Placement

    held = Placement(NODE.name, (DeviceAllocation("gpu", "0", 1000),))
    return waiting(
        id, name, state=JobState.RUNNING, placement=held, pid=1,
        started_at=NOW - since, started_boot=BOOT - since, **more,
    )  # fmt: skip


def trained(id: int, name: str) -> Job:
    """Four of its ten epochs are over, the last one just now; each takes a minute."""
    progress = Progress(
        epochs=4, accepts_stop=True, epoch_started_at=NOW, epoch_time=(1, "cpu", 60.0)
    )
    return running(id, name, 240.0, progress=progress)


def asked(specs: list[Spec], jobs: list[Job], policy: str = "backfill", **more: object) -> bytes:
    rest = ClusterRecord(
        next_id=max(job.id for job in jobs) + 1,
        nodes={NODE.name: NODE},
        policies={"*": (policy, {})},
        profiles={
            f"ana: {each.name}": JobProfile(epoch_times=(EpochTime(1, "cpu", 60.0),))
            for each in specs
        },
    )
    given: dict[str, object] = {
        "at": NOW, "boot": BOOT, "record": rest, "specs": {each.name: each for each in specs},
        "jobs": jobs, "since": NOW,
    }  # fmt: skip
    return msgspec.json.encode(ForecastInput(**{**given, **more}))  # type: ignore[arg-type]


THREE = [
    spec("first", training=Training(epochs=10)),
    spec("long", training=Training(epochs=10)),
    spec("short", training=Training(epochs=5)),
]
JOBS = [trained(1, "first"), waiting(2, "long"), waiting(3, "short")]


def by_id(answer: Forecast) -> dict[int, StartEndEstimate]:
    """The estimates at the moment of the forecast."""
    return {
        each.job: StartEndEstimate(
            answer.at,
            interval(each.start, answer.at) if each.start is not None else None,
            interval(each.end, answer.at) if each.end is not None else None,
            each.never,
        )
        for each in answer.jobs
    }


def basis(span: TimeInterval | None) -> tuple[Kind, str] | None:
    return (span.kind, span.basis) if span is not None else None


def runs(spec: Spec, *seconds: float, command: Job | None = None) -> dict[str, object]:
    """Completed runs: of the command of the jobs, or of another one."""
    key = command_key(command, spec) if command is not None else "another"
    return {"runs": {f"ana:{spec.name}": [(key, each) for each in seconds]}}


def after(span: TimeInterval | None) -> float | None:
    """Seconds until the moment that is likely."""
    return round(span.likely - NOW, 3) if span is not None and span.likely is not None else None


def test_with_known_epochs_the_starts_are_exact() -> None:
    found = by_id(forecast(asked(THREE, JOBS), count=1))
    assert found[1].start is None
    assert after(found[1].end) == 360
    assert (after(found[2].start), after(found[2].end)) == (360, 960)
    assert (after(found[3].start), after(found[3].end)) == (960, 1260)
    assert basis(found[1].end) == (Kind.EPOCHS, "its measured epochs")
    assert basis(found[2].start) == (Kind.EPOCHS, "measured epochs of the jobs ahead")
    assert basis(found[2].end) == (Kind.SIMILAR, "measured epochs of earlier long runs")
    assert basis(found[3].start) == (Kind.SIMILAR, "runs of jobs similar to the jobs ahead")


def test_it_is_the_policy_of_the_queue_that_is_played() -> None:
    """The planner lets the short one go first."""
    found = by_id(forecast(asked(THREE, JOBS, "planner"), count=1))
    assert (after(found[3].start), after(found[3].end)) == (360, 660)
    assert after(found[2].start) == 660


def test_the_range_is_around_what_is_likely_and_a_seed_repeats_exactly() -> None:
    same = asked(THREE, JOBS)
    first, again, other = forecast(same), forecast(same), forecast(same, seed=1)
    assert first == again
    assert first != other
    assert first.plays == 9
    for each in by_id(first).values():
        for span in filter(None, (each.start, each.end)):
            assert span.likely is not None
            assert span.high is not None
            assert NOW < span.low < span.likely < span.high
    end = by_id(first)[1].end
    assert end is not None
    assert end.low < NOW + 360 < (end.high or 0)


def test_a_job_waits_for_the_one_it_depends_on() -> None:
    chain = spec("chain", limit=100, dependency=Dependency((Clause("afterok", (2,)),)))
    jobs = [trained(1, "first"), waiting(2, "short"), waiting(3, "chain")]
    found = by_id(forecast(asked([*THREE, chain], jobs), count=1))
    assert (after(found[2].start), after(found[3].start)) == (360, 660)


def test_runs_of_the_same_command_count_for_more_than_the_time_limit() -> None:
    jobs = [running(1, "plain", 50.0), waiting(2, "plain")]
    plain = spec("plain", limit=3600)
    same = runs(plain, 100.0, 120.0, 140.0, command=jobs[0])
    found = by_id(forecast(asked([plain], jobs, **same), count=1))
    assert after(found[1].end) == 70
    assert after(found[2].end) == 190
    assert basis(found[1].end) == (Kind.RUNS, "3 earlier runs of this command")
    assert basis(found[2].start) == (Kind.RUNS, "earlier runs of the jobs ahead")


def test_runs_with_other_arguments_are_a_looser_basis() -> None:
    jobs = [running(1, "plain", 50.0), waiting(2, "plain")]
    plain = spec("plain")
    found = by_id(forecast(asked([plain], jobs, **runs(plain, 100.0, 120.0, 140.0)), count=1))
    assert after(found[1].end) == 70
    assert basis(found[1].end) == (Kind.SIMILAR, "3 runs of plain with other arguments")
    assert basis(found[2].start) == (Kind.SIMILAR, "runs of jobs similar to the jobs ahead")


def test_the_same_command_in_another_directory_or_with_more_gpus_is_another_command() -> None:
    job = waiting(1, "plain", command=("python", "train.py"))
    here = command_key(job, spec("plain"))
    assert command_key(waiting(2, "plain", command=("python", "train.py")), spec("plain")) == here
    more = ResourceRequest(gpus=GpuRequest(2000))
    for other in (spec("plain", directory="/home"), spec("plain", request=more)):
        assert command_key(job, other) != here
    other_arguments = waiting(3, "plain", command=("python", "train.py", "1"))
    assert command_key(other_arguments, spec("plain")) != here


def test_a_run_that_has_outlived_all_earlier_ones_moves_the_jobs_behind_it() -> None:
    """Runs of 10 s with other arguments; this one has run for 100 s, and the next are like it."""
    jobs = [running(1, "plain", 100.0), waiting(2, "plain"), waiting(3, "plain")]
    plain = spec("plain")
    found = by_id(forecast(asked([plain], jobs, **runs(plain, 10.0, 10.0)), count=1))
    left = 100 * (2**0.5 - 1)
    assert after(found[1].end) == pytest.approx(left, abs=0.1)
    assert after(found[2].start) == pytest.approx(left, abs=0.1)
    assert after(found[3].start) == pytest.approx(left + 100 * 2**0.5, abs=0.2)


def test_of_time_limits_alone_the_estimate_is_the_latest_moment() -> None:
    jobs = [running(1, "plain", 60.0), waiting(2, "plain"), waiting(3, "plain")]
    found = by_id(forecast(asked([spec("plain", limit=600)], jobs)))
    assert after(found[1].end) == 540
    assert basis(found[1].end) == (Kind.LIMIT, "its time limit")
    assert after(found[3].start) == 1140
    assert basis(found[3].start) == (Kind.LIMIT, "time limits of the jobs ahead")
    start = found[3].start
    assert start is not None
    assert NOW < start.low < (start.likely or 0) == start.high


def test_without_any_basis_there_is_no_estimate() -> None:
    jobs = [running(1, "plain", 60.0), waiting(2, "plain"), waiting(3, "other")]
    specs = [spec("plain"), spec("other", limit=60)]
    answer = forecast(asked(specs, jobs))
    assert [(each.start, each.end) for each in by_id(answer).values()] == [(None, None)] * 3
    first, second, third = answer.jobs
    assert first.end is not None
    assert first.end.basis == "no earlier run of its command and no time limit"
    assert second.start is not None
    assert third.end is not None
    assert second.start.basis == "job 1 has no earlier run and no time limit"
    assert third.end.basis == "job 1 has no earlier run and no time limit"


NO_LIMIT = "job {} has no earlier run and no time limit"


def told(
    scenario: Scenario, runs: dict[str, list[tuple[str, float]]] | None = None
) -> dict[int, StartEndEstimate]:
    """The estimates of a forecast that is made now."""
    answer = forecast(
        msgspec.json.encode(forecast_input(scenario.state, scenario.now, scenario.now, runs or {}))
    )
    found = {each.job: each for each in answer.jobs}
    return {
        id: start_end_estimate(found[id], scenario.job(id), answer.at, answer.at) for id in found
    }


def test_a_start_that_depends_on_a_job_without_a_limit_has_no_bound() -> None:
    scenario = Scenario(gpus=2)
    scenario.run(scenario.submit(limit=600), unlimited := scenario.submit())
    big, small = scenario.submit(gpus(2), limit=6 * 3600), scenario.submit(limit=3600)
    found = told(scenario)
    reason = NO_LIMIT.format(unlimited)
    assert (found[big].start, found[big].end, found[big].never) == (None, None, reason)
    # If job 2 ends first, the big job starts before the small one.
    assert (found[small].start, found[small].end) == (None, None)
    assert found[small].never == f"job {big} may start before it, and {reason}"


def test_a_job_without_a_limit_that_is_not_in_the_way_changes_no_bound() -> None:
    scenario = Scenario(gpus=2)
    scenario.run(scenario.submit(limit=600), scenario.submit())
    first, second = scenario.submit(limit=100), scenario.submit(limit=100)
    found = told(scenario)
    starts = [found[first].start, found[second].start]
    assert [span and span.likely for span in starts] == [scenario.now + 600, scenario.now + 700]
    assert basis(found[second].end) == (Kind.LIMIT, "its time limit")


def test_a_bound_of_a_job_that_passes_another_includes_the_end_of_that_job() -> None:
    """The small one fits before the big one only while job 2 uses more of its limit than job 1."""
    scenario = Scenario(gpus=2)
    scenario.run(scenario.submit(limit=600), scenario.submit(limit=3600))
    big, small = scenario.submit(gpus(2), limit=7200), scenario.submit(limit=1800)
    found = told(scenario)
    assert basis(found[big].start) == (Kind.LIMIT, "time limits of the jobs ahead")
    bounds = [found[big].start, found[small].start, found[small].end]
    latest = [scenario.now + seconds for seconds in (3600, 10800, 12600)]
    assert [span and span.likely for span in bounds] == latest


def test_a_start_after_a_limit_and_a_measured_job_is_no_bound() -> None:
    """Both have to end: the last one by its limit, the other one as earlier runs did."""
    scenario = Scenario(gpus=2)
    scenario.run(scenario.submit(limit=6000), seen := scenario.submit(name="seen"))
    big = scenario.submit(gpus(2), limit=100)
    job = scenario.job(seen)
    runs = {name_key(job): [(command_key(job, scenario.state.spec(job)), 300.0)]}
    assert basis(told(scenario, runs)[seen].end) == (Kind.RUNS, "1 earlier run of this command")
    assert basis(told(scenario, runs)[big].start) == (
        Kind.SIMILAR, "time limits and earlier runs of the jobs ahead",
    )  # fmt: skip


@pytest.mark.parametrize(("latest", "kind"), [(300.0, Kind.LIMIT), (250.0, Kind.SIMILAR)])
def test_a_bound_that_a_simulated_future_exceeds_is_an_estimate(latest: float, kind: Kind) -> None:
    found = _samples([100.0, None, 300.0], 400.0, Kind.LIMIT, "time limits", latest)
    assert found.kind is kind
    assert found.latest == (latest if kind is Kind.LIMIT else None)
    assert found.at == [100.0, None, 300.0]


def test_no_job_outlasts_its_time_limit() -> None:
    jobs = [running(1, "plain", 50.0), waiting(2, "plain")]
    plain = spec("plain", limit=60)
    found = by_id(forecast(asked([plain], jobs, **runs(plain, 10_000.0, command=jobs[0]))))
    first, second = found[1].end, found[2].end
    assert first is not None
    assert second is not None
    assert first.high is not None
    assert first.high <= NOW + 10.1
    assert second.high is not None
    assert second.high <= NOW + 70.2


def test_of_held_and_paused_jobs_nothing_can_be_foreseen() -> None:
    paused = msgspec.structs.replace(
        running(1, "first", 50.0), state=JobState.SUSPENDED, paused_boot=BOOT
    )
    jobs = [paused, waiting(2, "long", held=True), waiting(3, "short")]
    found = by_id(forecast(asked(THREE, jobs)))
    assert found[1].never == "it is paused"
    assert found[2].never == "it is held"
    assert found[3].start is None, "it waits for the GPU of the one that is paused"


def test_nor_of_jobs_that_depend_on_them() -> None:
    def after(*ids: int, any: bool = False) -> Dependency:
        return Dependency(tuple(Clause("afterok", (id,)) for id in ids), any)

    specs = [
        spec("free", limit=60), spec("after 1", dependency=after(1)),
        spec("after 2", dependency=after(2)),
        spec("either", dependency=after(1, 4, any=True)),
    ]  # fmt: skip
    jobs = [
        waiting(1, "free", held=True), waiting(2, "after 1"), waiting(3, "after 2"),
        waiting(4, "free"), waiting(5, "either"),
    ]  # fmt: skip
    found = by_id(forecast(asked(specs, jobs)))
    assert [found[id].never for id in (1, 4, 5)] == ["it is held", None, None]
    assert found[2].never == found[3].never == "a job that it depends on is held or paused"
    assert found[5].start is not None


def test_new_jobs_that_may_start_first_are_expected() -> None:
    """Every five minutes somebody has come with a job of two: they will go on to."""
    minute = spec("minute", training=Training(epochs=2))
    past = [
        Job(
            id=10 + n, spec="minute", name="minute", user="ben", submitted_at=NOW - 86400 + n * 300,
            state=JobState.COMPLETED, ended_at=NOW - 86400 + n * 300 + 120,
            past=(PastAttempt(0, NOW - 86400 + n * 300, NOW - 86400 + n * 300 + 120, "done", 0),),
        )
        for n in range(250)
    ]  # fmt: skip
    busy = asked([*THREE, minute], [*JOBS, *past], "planner", since=NOW - 86400)
    alone = by_id(forecast(asked(THREE, JOBS, "planner")))[2].start
    among = by_id(forecast(busy))[2].start
    assert alone is not None
    assert alone.likely is not None
    assert among is not None
    assert among.likely is not None
    assert among.likely > alone.likely + 120


def starts(scenario: Scenario) -> dict[int, float | None]:
    """Seconds until each pending job starts, if every job uses its whole time limit."""
    asked = forecast_input(scenario.state, scenario.now, scenario.now, {})
    found = forecast(msgspec.json.encode(asked), count=1)
    at = {each.job: each.start.at[0] for each in found.jobs if each.start is not None}
    return {
        job: None if when is None else round(when - scenario.now, 3) for job, when in at.items()
    }


def test_backfill_is_part_of_a_forecast() -> None:
    scenario = Scenario(gpus=2)
    scenario.run(scenario.submit(limit=1000))
    big, small = scenario.submit(gpus(2), limit=100), scenario.submit(limit=200)
    long = scenario.submit(limit=5000)
    assert starts(scenario) == {big: 1000.0, small: 0.0, long: 1100.0}


@pytest.mark.parametrize(
    ("policy", "small", "long"), [("fifo", 1100.0, 1100.0), ("skip", 0.0, 200.0)]
)
def test_a_forecast_follows_the_policy(policy: str, small: float, long: float) -> None:
    scenario = Scenario(gpus=2)
    scenario.tell(e.PolicyChosen(at=scenario.now, queue="*", name=policy))
    scenario.run(scenario.submit(limit=1000))
    scenario.submit(gpus(2), limit=100)
    others = scenario.submit(limit=200), scenario.submit(limit=5000)
    found = starts(scenario)
    assert [found[job] for job in others] == [small, long]


def test_the_members_of_an_array_with_a_limit_start_one_after_the_other() -> None:
    scenario = Scenario(gpus=4)
    array = scenario.submit(count=3, array=True, array_limit=1, limit=60)
    scenario.plan()
    scenario.started(array)
    assert starts(scenario) == {array + 1: 60.0, array + 2: 120.0}


def test_a_machine_in_the_middle_of_its_work() -> None:
    """Arrays, a job that is being ended, one that is paused: each has an answer, or a reason."""
    box = SimFixture(gpus=4)
    box.submit(models=(Model(seconds=40),), count=6)
    stubborn = box.submit(gpus(1), models=(Model(seconds=1000, ignores_term=True),))
    waits = box.submit(gpus(4), models=(Model(seconds=100),))
    box.run(45)
    box.do(ask.cancel(stubborn))
    box.run(1)
    state, now = box.driver.engine.state, box.world.moment()
    live = [job for job in state.jobs.values() if not job.finished]
    assert state.jobs[stubborn].state is JobState.COMPLETING
    answer = forecast(msgspec.json.encode(forecast_input(state, now.wall, now.boot, {})))
    found = by_id(answer)
    assert set(found) == {job.id for job in live}
    end = found[stubborn].end
    assert end is not None
    assert end.likely == pytest.approx(now.wall + 5, abs=1)
    (samples,) = [each.start for each in answer.jobs if each.job == waits]
    assert samples is not None
    assert min(at or 0.0 for at in samples.at) >= end.low


def test_running_jobs_count_as_longer_than_their_age() -> None:
    plain = DurationDistribution(map(ObservedDuration, [10.0, 20.0, 30.0, 40.0]))
    assert plain.total_duration(0.0, 0.5) == 20
    assert plain.total_duration(25.0, 0.5) == 30
    going = DurationDistribution(
        [
            *map(ObservedDuration, [10.0, 20.0]),
            ObservedDuration(30.0, ended=False),
            ObservedDuration(40.0, ended=False),
        ]
    )
    assert going.total_duration(0.0, 0.5) == 20
    assert going.total_duration(0.0, 0.25) > 20
    assert plain.total_duration(100.0, 0.5) == pytest.approx(100 * 2**0.5)


def test_jobs_that_started_before_the_observation_count_from_their_entry() -> None:
    """Of three that were seen from their beginning, two were short; a long one ran before."""
    late = [ObservedDuration(1000.0, ended=True, entry=900.0)] * 3
    seen = DurationDistribution(
        [ObservedDuration(10.0), ObservedDuration(10.0), ObservedDuration(1000.0), *late]
    )
    assert seen.survival_at(10.0) == pytest.approx(1 / 3)


def test_a_cancelled_job_only_counts_as_longer_than_its_age() -> None:
    scenario = Scenario(gpus=1)
    gone, whole = scenario.submit(), scenario.submit()
    for job in (gone, whole):
        scenario.plan()
        scenario.started(job)
        scenario.now += 5.0
        if job == gone:
            scenario.fact(e.JobCancelled, job)
        scenario.exited(job)
    known = DurationModel(
        forecast_input(scenario.state, scenario.now, scenario.boot, {}), scenario.state
    )
    assert known.all_durations.total_duration(0.0, 0.5) == pytest.approx(5.0)
    ends = {job: known._observe(scenario.job(job)) for job in (gone, whole)}
    assert {job: life.ended for job, life in ends.items() if life} == {gone: False, whole: True}


def test_the_process_answers_one_question_with_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "stoker.simulate.forecast"],
        input=asked(THREE, JOBS) + b"\n", capture_output=True, check=True, timeout=50,
    )  # fmt: skip
    assert done.stdout.endswith(b"\n")
    answer = msgspec.json.decode(done.stdout, type=Forecast)
    assert answer == forecast(asked(THREE, JOBS))


@pytest.mark.parametrize("policy", ["backfill", "planner"])
def test_the_truth_is_in_the_range_about_as_often_as_it_should_be(policy: str) -> None:
    """A lab of eight GPUs whose jobs last as jobs do: a few of them very long."""
    random, at, jobs = Random(8), 0.0, []
    for _ in range(120):
        at += random.expovariate(1 / 900.0)
        seconds = min(random.lognormvariate(7.3, 1.2), 40_000.0)
        jobs.append(
            TraceJob(submit_time=at, duration=seconds, gpus=random.choice((1.0, 1.0, 2.0, 4.0)))
        )
    lab = Workload(title="lab", jobs=jobs)
    scores = calibrate(lab, uniform_nodes([(2, 4)]), policy, forecasts=4)
    count = sum(score.count for score in scores)
    within = sum(score.count * score.within for score in scores) / count
    assert count > 20
    assert 0.6 <= within <= 1.0
