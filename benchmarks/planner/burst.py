"""Goals for the other users of a small cluster while one user submits hundreds of jobs at once."""

from random import Random
from statistics import fmean

from benchmarks.planner.goals import HOUR, Section, Verdict
from stoker.simulate.replay.replay import replay
from stoker.simulate.replay.results import JobResult
from stoker.simulate.traces.cluster_size import parse_cluster
from stoker.simulate.workload import TraceJob, Workload

MINUTE, DAY = 60.0, 86400.0
CLUSTER, GPUS = "2x8", 16
STEADY_USERS, BURST_USER = 7, "burst"
BURST_JOBS, BURST_AT = 300, DAY
SPAN = 3 * DAY
"""Seconds in which the steady users submit jobs."""
STEADY_LOAD = 0.7
"""Share of the GPUs that the steady users need."""
MEDIAN_SECONDS, DEVIATION = HOUR, 1.2
SIZES, WEIGHTS = (1, 2, 4), (70, 20, 10)
SEEDS = 10
SHORT_GPU_SECONDS = 30 * MINUTE
MEAN_BEFORE_HOURS = 12.77
"""Mean JCT of all jobs, 10 seeds, with the first defaults (`fair=0.5`, `hysteresis=4.5`)."""


def burst_workload(seed: int) -> Workload:
    """Return three days of seven steady users; after the first day, 300 jobs of one more."""
    random = Random(seed)

    def job(at: float, user: str) -> TraceJob:
        seconds = MEDIAN_SECONDS * random.lognormvariate(0.0, DEVIATION)
        gpus = random.choices(SIZES, WEIGHTS)[0]
        seconds = min(max(seconds, MINUTE), DAY)
        return TraceJob(submit_time=at, duration=seconds, gpus=gpus, user=user)

    jobs, work = [], 0.0
    while work < STEADY_LOAD * SPAN * GPUS:
        jobs.append(job(random.uniform(0.0, SPAN), f"steady {random.randrange(STEADY_USERS)}"))
        work += jobs[-1].duration * jobs[-1].gpus
    jobs += [job(BURST_AT, BURST_USER) for _ in range(BURST_JOBS)]
    jobs.sort(key=lambda each: each.submit_time)
    return Workload(title=f"burst {seed}", jobs=jobs, nodes=parse_cluster(CLUSTER))


def burst(quick: bool, policy: str = "planner") -> Section:
    """Measure slowdown and waits of the steady users, and the mean JCT of all jobs."""
    rows, slowdowns, means = [], [], []
    waits: list[float] = []
    for seed in range(2 if quick else SEEDS):
        workload = burst_workload(seed)
        results = replay(workload, list(workload.nodes), policy).results
        slowdowns.append(others_slowdown(workload, results))
        seed_waits = short_waits(workload, results)
        waits += seed_waits
        means.append(fmean(result.completion_time for result in results) / HOUR)
        stopped = sum(result.preemptions for result in results) / len(results)
        rows.append([
            str(seed), f"{len(results):,}", f"{slowdowns[-1]:.2f}",
            f"{p95(seed_waits) / MINUTE:.1f}", f"{means[-1]:.2f}", f"{stopped:.2f}",
        ])  # fmt: skip
    wait, mean = p95(waits) / MINUTE, fmean(means)
    rows.append(["all", "", f"{fmean(slowdowns):.2f}", f"{wait:.1f}", f"{mean:.2f}", ""])
    return Section(
        "A burst of 300 jobs by one of eight users on 16 GPUs",
        ["seed", "jobs", "others' slowdown", "short jobs wait p95 min", "mean JCT h", "preempted"],
        rows,
        [
            Verdict("burst", "others' mean slowdown", fmean(slowdowns), 2.0),
            Verdict("burst", "others' jobs < 30 GPU-min: wait, p95", wait, 15.0, "min"),
            Verdict("burst", "mean JCT × the first defaults", mean / MEAN_BEFORE_HOURS, 1.05),
        ],
        ["others: the jobs of the seven steady users that are submitted after the burst."],
    )


def others_slowdown(workload: Workload, results: list[JobResult]) -> float:
    """Return the mean of JCT ÷ duration of the steady users' jobs after the burst."""
    return fmean(
        result.completion_time / workload.jobs[result.job].duration
        for result in _others(results)
    )  # fmt: skip


def short_waits(workload: Workload, results: list[JobResult]) -> list[float]:
    """Return the seconds until each of their short jobs first starts."""
    return [
        result.start_time - result.submit_time
        for result in _others(results)
        if workload.jobs[result.job].duration * result.gpus < SHORT_GPU_SECONDS
    ]


def p95(values: list[float]) -> float:
    """Return the 95th percentile."""
    return sorted(values)[int(len(values) * 0.95)] if values else 0.0


def _others(results: list[JobResult]) -> list[JobResult]:
    return [
        result for result in results
        if result.user != BURST_USER and result.submit_time >= BURST_AT
    ]  # fmt: skip
