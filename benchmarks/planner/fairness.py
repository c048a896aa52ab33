"""Goals of finish-time fairness on workloads as in the Shockwave study (NSDI'23).

The finish-time fairness ratio of a job is its JCT divided by the time that it would need with an
equal share of the cluster: its run time alone × the contention, at least 1. The published figures
of the study use one contention for all jobs: the jobs of the workload ÷ the GPUs of the cluster.
For comparison, a second ratio uses the mean of the GPUs requested by all unfinished jobs while the
job is in the system, ÷ the GPUs of the cluster. It is stricter for jobs that end early.
"""

from bisect import bisect_right
from itertools import pairwise
from math import ceil
from random import Random
from statistics import fmean

from benchmarks.planner.goals import HOUR, Section, Verdict
from stoker.simulate.replay.replay import replay
from stoker.simulate.replay.results import JobResult
from stoker.simulate.traces.cluster_size import parse_cluster
from stoker.simulate.workload import Speed, TraceJob, Workload

CLUSTER, GPUS = "8x4", 32
JOBS, SEEDS = 120, 10
ARRIVAL_SECONDS = 40.0
"""Mean time between two submissions."""
MEDIAN_SECONDS, DEVIATION = 3000.0, 0.75
SHORTEST, LONGEST = 0.2 * HOUR, 5 * HOUR
SIZES, WEIGHTS = (1, 2, 4, 8), (72, 21, 6.3, 0.7)
"""GPUs of a job. The study draws 60 : 30 : 9 : 1, but 30 % of its jobs train a model that runs on
one GPU only. Its trace of 120 jobs has 77 %, 17 %, 7 % and none."""
EPOCHS, EPOCH_SECONDS = 20, 600.0
"""Minimum epochs of a job, maximum seconds of an epoch."""
UNFAIR = 1.05
"""A job is treated unfairly above this ratio, as in the study."""


class GrowingBatch:
    """Speed of a job whose batch size grows: faster from certain shares of its work on."""

    def __init__(self, rates: tuple[tuple[float, float], ...]) -> None:
        self.rates = rates
        """(share of the work, speed from there on)."""

    def rate(self, done: float, gpus: int, machines: int, model: str) -> float:
        """Return the speed after a share of the work."""
        return next(rate for share, rate in reversed(self.rates) if done >= share - 1e-9)

    def interference(self, other: Speed, model: str) -> float:
        """Return 0.0: no two of these jobs fit on one GPU."""
        return 0.0


def dynamic_workload(seed: int) -> Workload:
    """Return 120 jobs whose batch size grows once or twice; users expect the initial speed."""
    random = Random(seed)
    at, jobs = 0.0, []
    for _ in range(JOBS):
        seconds = MEDIAN_SECONDS * random.lognormvariate(0.0, DEVIATION)
        seconds = min(max(seconds, SHORTEST), LONGEST)
        once = random.random() < 0.5
        rates = (
            ((0.0, 1.0), (random.uniform(0.2, 0.5), 1.7)) if once
            else ((0.0, 1.0), (0.3, 1.4), (0.6, 1.9))
        )  # fmt: skip
        jobs.append(
            TraceJob(
                submit_time=at,
                duration=seconds,
                gpus=random.choices(SIZES, WEIGHTS)[0],
                expected=ceil(seconds),
                speed=GrowingBatch(rates),
                epochs=max(EPOCHS, ceil(seconds / EPOCH_SECONDS)),
            )
        )
        at += random.expovariate(1 / ARRIVAL_SECONDS)
    return Workload(title=f"dynamic {seed}", jobs=jobs, nodes=parse_cluster(CLUSTER))


def fairness(quick: bool, policy: str = "planner") -> Section:
    """Measure the worst ratio and the share of jobs that are treated unfairly."""
    rows: list[list[str]] = []
    values: list[tuple[float, ...]] = []
    for seed in range(2 if quick else SEEDS):
        workload = dynamic_workload(seed)
        results = replay(workload, list(workload.nodes), policy).results
        ratios = fairness_ratios(workload, results, GPUS)
        mean_ratios = mean_contention_ratios(workload, results, GPUS)
        mean = fmean(result.completion_time for result in results) / HOUR
        values.append((
            max(ratios), unfair_percent(ratios), max(mean_ratios), unfair_percent(mean_ratios), mean
        ))  # fmt: skip
        rows.append([str(seed), *(f"{value:.2f}" for value in values[-1])])
    means = [fmean(column) for column in zip(*values, strict=True)]
    rows.append(["mean", *(f"{value:.2f}" for value in means)])
    return Section(
        f"Finish-time fairness: {JOBS} jobs with growing batch sizes on {GPUS} GPUs",
        ["seed", "worst ratio", f"above {UNFAIR} %", "by mean contention: worst",
         f"above {UNFAIR} %", "mean JCT h"],
        rows,
        [
            Verdict("fairness", "worst ratio, mean of seeds", means[0], 1.8),
            Verdict("fairness", "jobs treated unfairly, mean of seeds", means[1], 5.0, "%"),
        ],
        ["Shockwave publishes 1.78 and 5.0 % for such a workload of its own."],
    )  # fmt: skip


def unfair_percent(ratios: list[float]) -> float:
    """Return the percentage of jobs that are treated unfairly."""
    return 100 * fmean(ratio > UNFAIR for ratio in ratios)


def fairness_ratios(workload: Workload, results: list[JobResult], gpus: int) -> list[float]:
    """Return the finish-time fairness ratio of every job, by the jobs of the whole workload."""
    contention = max(len(workload.jobs) / gpus, 1.0)
    return [
        result.completion_time / run_time_alone(workload.jobs[result.job]) / contention
        for result in results
    ]


def mean_contention_ratios(workload: Workload, results: list[JobResult], gpus: int) -> list[float]:
    """Return the ratio of every job by the GPUs requested while it is in the system."""
    demand = _Demand(results)
    return [
        result.completion_time
        / run_time_alone(workload.jobs[result.job])
        / max(demand.mean(result.submit_time, result.end_time) / gpus, 1.0)
        for result in results
    ]


def run_time_alone(job: TraceJob) -> float:
    """Return the seconds that a job takes with its GPUs and without preemption."""
    if job.speed is None or job.epochs is None:
        return job.duration
    rates = (
        job.speed.rate(epoch / job.epochs, round(job.gpus), 1, "") for epoch in range(job.epochs)
    )
    return sum(job.duration / job.epochs / rate for rate in rates)


class _Demand:
    """GPUs that unfinished jobs request, over time."""

    def __init__(self, results: list[JobResult]) -> None:
        steps = sorted(
            step
            for result in results
            for step in ((result.submit_time, result.gpus), (result.end_time, -result.gpus))
        )
        self.times = [at for at, _ in steps]
        self.levels, level = [], 0.0
        for _, change in steps:
            level += change
            self.levels.append(level)
        self.totals = [0.0]
        """GPU-seconds requested up to each time."""
        for (begin, end), held in zip(pairwise(self.times), self.levels, strict=False):
            self.totals.append(self.totals[-1] + held * (end - begin))

    def _total(self, at: float) -> float:
        index = bisect_right(self.times, at) - 1
        return self.totals[index] + self.levels[index] * (at - self.times[index])

    def mean(self, begin: float, end: float) -> float:
        """Return the mean over a period."""
        return (self._total(end) - self._total(begin)) / (end - begin)
