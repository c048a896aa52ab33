"""Elastic jobs in a replay: how fast they are changes as they train, and so do their GPUs."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from stoker.simulate.replay.assumptions import ReplayAssumptions
from stoker.simulate.replay.replay import Replay
from stoker.simulate.replay.results import RunResult
from stoker.simulate.report.statistics import run_statistics
from stoker.simulate.traces.formats import pollux
from stoker.simulate.workload import Speed, TraceJob, Workload

SAMPLE = Path(__file__).parent / "traces" / "pollux" / "workloads" / "sample.csv"
RESTART = 30.0


def played(jobs: list[TraceJob], machines: int = 4, policy: str = "planner") -> RunResult:
    nodes = list(pollux.read(SAMPLE).nodes)[:machines]
    workload = Workload(title="some", jobs=jobs)
    return Replay(
        workload,
        nodes,
        policy,
        assumptions=ReplayAssumptions(restart_seconds=RESTART),
        max_segments=10_000,
    ).run()


def mean(run: RunResult) -> float:
    return sum(each.end_time - each.submit_time for each in run.results) / len(run.results)


class Linear:
    """Twice the GPUs are twice as fast."""

    def rate(self, done: float, gpus: int, machines: int, model: str) -> float:
        return gpus

    def interference(self, other: Speed, model: str) -> float:
        return 0.0


def one(elastic: bool) -> TraceJob:
    """The longest job of that kind."""
    jobs = (each for each in pollux.read(SAMPLE).jobs if (each.max_gpus is not None) is elastic)
    return max(jobs, key=lambda each: each.duration)


def test_all_epochs_together_take_what_they_take_and_so_does_the_first_start() -> None:
    job = replace(one(elastic=True), submit_time=0.0, max_gpus=None)
    assert job.epochs is not None
    assert job.speed is not None
    speeds = {job.speed.rate(at / job.epochs, 4, 1, "") for at in range(job.epochs)}
    assert len(speeds) > 1
    (result,) = played([job]).results
    assert result.end_time == pytest.approx(RESTART + job.duration)


def test_one_alone_spreads_over_machines_and_is_done_sooner() -> None:
    job = TraceJob(
        submit_time=0.0,
        duration=40_000,
        max_gpus=16,
        speed=Linear(),
        epochs=40,
        stops_immediately=True,
    )
    run = played([job])
    (result,) = run.results
    assert result.end_time < job.duration / 8
    assert len({piece.node for piece in run.segments}) > 1


def test_a_stop_for_another_number_of_gpus_is_a_resize_and_for_others_a_preemption() -> None:
    job = TraceJob(
        submit_time=0.0,
        duration=40_000,
        max_gpus=16,
        speed=Linear(),
        epochs=40,
        stops_immediately=True,
    )
    run = played([job], machines=2)
    assert [(each.preemptions, each.resizes) for each in run.results] == [(0, 1)]
    assert (run_statistics(run).preemptions, run_statistics(run).resizes) == (0.0, 1.0)
    short = TraceJob(submit_time=1000.0, duration=400, gpus=4, epochs=4)
    run = played([job, short], machines=1)
    assert [(each.preemptions, each.resizes) for each in run.results] == [(1, 0), (0, 0)]
    assert (run_statistics(run).preemptions, run_statistics(run).resizes) == (0.5, 0.0)


def test_under_the_planner_elastic_jobs_are_done_sooner_than_first_come_first_served() -> None:
    jobs = pollux.read(SAMPLE).jobs
    planned, served = played(jobs), played(jobs, policy="fifo")
    assert len(planned.results) == len(served.results) == len(jobs)
    assert mean(planned) < mean(served)


def test_the_same_comes_out_each_time() -> None:
    jobs = pollux.read(SAMPLE).jobs
    first, second = played(jobs, machines=2), played(jobs, machines=2)
    assert [(each.job, each.end_time) for each in first.results] == [
        (each.job, each.end_time) for each in second.results
    ]


def test_no_gpu_is_allocated_to_two_jobs() -> None:
    run = played(pollux.read(SAMPLE).jobs, machines=2)
    moments = sorted({piece.begin for piece in run.segments})
    for at in moments:
        held = sum(each.gpus for each in run.segments if each.begin <= at < each.end)
        assert held <= 8
