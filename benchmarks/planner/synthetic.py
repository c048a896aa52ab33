"""Synthetic workload of any size."""

from random import Random

from stoker.simulate.traces.cluster_size import parse_cluster
from stoker.simulate.workload import TraceJob, Workload

MACHINES, EACH, JOBS = 12_500, 8, 1_000_000
SIZES = (1, 2, 4, 8, 16)
WEIGHTS = (70, 10, 10, 8, 2)
MEDIAN, SPREAD = 1800.0, 1.5
LOAD = 0.8


def synthetic(jobs: int = JOBS, nodes: int = MACHINES) -> Workload:
    """Return many jobs for many nodes: lognormal durations, random arrivals."""
    chance = Random(1)
    sizes = chance.choices(SIZES, WEIGHTS, k=jobs)
    seconds = [MEDIAN * chance.lognormvariate(0.0, SPREAD) for _ in range(jobs)]
    work = sum(size * each for size, each in zip(sizes, seconds, strict=True))
    span = work / (nodes * EACH * LOAD)
    at = sorted(chance.uniform(0, span) for _ in range(jobs))
    loads = [
        TraceJob(submit_time=when, duration=each, gpus=size)
        for when, each, size in zip(at, seconds, sizes, strict=True)
    ]
    return Workload(title="synthetic", jobs=loads, nodes=parse_cluster(f"{nodes}x{EACH}"))
