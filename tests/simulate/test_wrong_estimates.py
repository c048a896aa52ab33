"""Jobs that report wrong epoch times, report nothing or fail, and the goals measured with them."""

import pytest

from benchmarks.planner.burst import BURST_JOBS, BURST_USER, burst_workload
from benchmarks.planner.fairness import (
    dynamic_workload,
    fairness_ratios,
    mean_contention_ratios,
    run_time_alone,
)
from stoker.core import events as e
from stoker.simulate.replay.assumptions import ReplayAssumptions
from stoker.simulate.replay.replay import Replay
from stoker.simulate.replay.results import JobResult
from stoker.simulate.traces.cluster_size import parse_cluster
from stoker.simulate.workload import TraceJob, Workload

JOBS = [TraceJob(submit_time=float(at), duration=1000.0 + at) for at in range(200)]


class RecordingReplay(Replay):
    """A replay that keeps what jobs reported and how they exited."""

    def __init__(self, jobs: list[TraceJob], assumptions: ReplayAssumptions) -> None:
        workload = Workload(title="", jobs=jobs)
        super().__init__(workload, parse_cluster("1x8"), "planner", {}, assumptions)
        self.epoch_seconds: dict[int, set[float]] = {}
        self.exit_codes: dict[int, int | None] = {}

    def _apply(self, event: e.Event) -> list[object]:
        if isinstance(event, e.EpochsCounted) and event.seconds is not None:
            self.epoch_seconds.setdefault(event.job, set()).add(event.seconds)
        if isinstance(event, e.ProcessExited) and not event.stopped:
            self.exit_codes[event.job] = event.code
        return super()._apply(event)


def test_all_epoch_times_of_a_job_are_wrong_by_its_factor() -> None:
    assumptions = ReplayAssumptions(epoch_error=1.6)
    replay = RecordingReplay(JOBS, assumptions)
    assert replay.run().unfinished == 0
    factors = []
    for id, reported in replay.epoch_seconds.items():
        job = JOBS[id - 1]
        true_seconds = job.duration / assumptions.epoch_count(job)
        factor = assumptions.epoch_factor(job)
        assert sorted(reported) == pytest.approx([true_seconds * factor] * len(reported))
        factors.append(factor)
    assert len(factors) == len(JOBS)
    assert min(factors) < 0.5
    assert max(factors) > 2.0


def test_a_share_of_the_jobs_reports_nothing_and_still_ends() -> None:
    replay = RecordingReplay(JOBS, ReplayAssumptions(silent_share=0.5))
    assert replay.run().unfinished == 0
    assert 70 < len(replay.epoch_seconds) < 130


def test_a_share_of_the_jobs_fails_before_its_work_is_done() -> None:
    assumptions = ReplayAssumptions(failing_share=0.2, restart_seconds=0.0)
    replay = RecordingReplay(JOBS, assumptions)
    results = replay.run().results
    failed = [id for id, code in replay.exit_codes.items() if code]
    assert 20 < len(failed) < 60
    for result in results:
        job = JOBS[result.job]
        work = assumptions.work_until_end(job)
        assert result.run_time == pytest.approx(work)
        assert (work < job.duration) == (result.job + 1 in failed)


def test_an_expected_duration_is_known_before_the_first_report() -> None:
    jobs = [TraceJob(submit_time=0.0, duration=5000.0, expected=5000, gpus=8),
            TraceJob(submit_time=0.0, duration=50.0, expected=50, gpus=8)]  # fmt: skip
    run = RecordingReplay(jobs, ReplayAssumptions()).run()
    assert [result.start_time for result in run.results] == [50.0, 0.0]


def test_the_burst_is_the_same_for_the_same_seed() -> None:
    first, second = (burst_workload(3) for _ in range(2))
    assert first.jobs == second.jobs
    assert sum(job.user == BURST_USER for job in first.jobs) == BURST_JOBS
    assert burst_workload(4).jobs != first.jobs


def test_the_fairness_ratio_compares_with_an_equal_share_of_the_cluster() -> None:
    jobs = [TraceJob(submit_time=0.0, duration=100.0) for _ in range(2)]
    ends = (100.0, 200.0)
    results = [
        JobResult(job=job, submit_time=0.0, gpus=1.0, start_time=0.0, end_time=end,
                  run_time=100.0, gpu_seconds=100.0)
        for job, end in enumerate(ends)
    ]  # fmt: skip
    workload = Workload(title="", jobs=jobs)
    # The first job has a contention of 2 all the time, the second of 1.5 on average.
    assert fairness_ratios(workload, results, gpus=1) == pytest.approx([0.5, 1.0])
    assert fairness_ratios(workload, results, gpus=2) == pytest.approx([1.0, 2.0])
    assert mean_contention_ratios(workload, results, gpus=1) == pytest.approx([0.5, 200 / 150])
    assert mean_contention_ratios(workload, results, gpus=2) == pytest.approx([1.0, 2.0])


def test_a_growing_batch_size_shortens_a_job() -> None:
    for job in dynamic_workload(0).jobs:
        assert job.duration / 2 < run_time_alone(job) < job.duration
