"""Share of a cluster's GPUs that can be allocated to jobs that are not known beforehand.

The experiment of FGD (USENIX ATC '23) with stoker's placement: pods of Alibaba's `openb` traces are
sampled with replacement until they request 130 % of the cluster's GPUs, and arrive one after
another. None ends; a pod that does not fit is rejected. The result is the share of all GPUs that
is allocated when the arrived pods request as many GPUs as there are.
`python -m benchmarks.placement DIRECTORY [--quick]` runs this benchmark alone; the directory holds
the tables of pods and of nodes.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import median, percentile, table
from stoker.core.cluster import Cluster, NodeFacts
from stoker.core.policy.ground import note
from stoker.core.policy.place import place
from stoker.core.request import GPU, GpuAsk, Request
from stoker.core.units import THOUSAND
from stoker.simulate.traces.formats import openb
from stoker.simulate.workload import TraceJob

SEEDS = 10
FGD = 95.23
"""Per cent, as published for FGD on the same traces."""
TOTAL_REQUEST = 1.3
"""Total request as a multiple of the cluster's GPUs."""


@dataclass(frozen=True)
class ArrivalResult:
    """Result of one order of arrival."""

    seed: int
    allocated: float
    """Per cent of all GPUs allocated when as many have been requested as there are."""
    in_the_end: float
    turned_away: int
    median_us: float
    p99_us: float


def measure(directory: Path, seeds: int = SEEDS) -> dict[str, Any]:
    """Measure several orders of arrival, and their mean."""
    pods, machines = read(directory)
    print(f"\nPlacement: {len(pods)} pods to draw from, {len(machines)} machines\n")
    rounds = [arrivals(pods, machines, seed) for seed in range(seeds)]
    head = ["seed", "allocated %", "in the end %", "turned away", "median µs", "p99 µs"]
    print(table(head, [row(each) for each in rounds]))
    mean = sum(each.allocated for each in rounds) / len(rounds)
    print(f"mean of {len(rounds)}: {mean:.2f} % (FGD, as published: {FGD} %)")
    return {"rounds": [asdict(each) for each in rounds], "mean": mean, "fgd": FGD}


def row(each: ArrivalResult) -> list[str]:
    """Return a row of the table."""
    return [
        str(each.seed), f"{each.allocated:.2f}", f"{each.in_the_end:.2f}", str(each.turned_away),
        f"{each.median_us:.0f}", f"{each.p99_us:.0f}",
    ]  # fmt: skip


def read(directory: Path) -> tuple[list[Request], list[NodeFacts]]:
    """Read the requests of pods, and the nodes."""
    tables = sorted(directory.rglob("*pod_list*.csv*"))
    if len(tables) != 1:
        raise SystemExit(f"{directory} must hold one table of pods (*pod_list*.csv).")
    workload = openb.read(tables[0])
    return [request(load) for load in workload.jobs], list(workload.nodes)


def request(load: TraceJob) -> Request:
    """Return the request of a pod."""
    models = tuple(model.lower() for model in load.gpu_models)
    ask = GpuAsk(round(load.gpus * THOUSAND), models=models)
    return Request(
        gpus=ask if ask.amount else None, cpus=round(load.cpus * THOUSAND), memory=load.ram
    )


def arrivals(pods: list[Request], machines: list[NodeFacts], seed: int) -> ArrivalResult:
    """Submit pods in one random order until the total request is reached."""
    cluster = Cluster()
    for facts in machines:
        cluster.join(facts, ())
    capacity = THOUSAND * sum(len(facts.types.get(GPU, ())) for facts in machines)
    arrived = given = refused = 0
    allocated: float | None = None
    samples = []
    for each in sample_pods(pods, random.Random(seed), TOTAL_REQUEST * capacity):
        begin = time.perf_counter()
        note(cluster, each)
        found = place(cluster, each)
        if found is not None:
            cluster.take(found)
        samples.append((time.perf_counter() - begin) * 1e6)
        given += each.gpu_amount if found is not None else 0
        refused += found is None
        arrived += each.gpu_amount
        if arrived >= capacity and allocated is None:
            allocated = 100 * given / capacity
    assert allocated is not None
    return ArrivalResult(
        seed, allocated, 100 * given / capacity, refused, median(samples), percentile(samples, 99)
    )


def sample_pods(pods: list[Request], dice: random.Random, gpus: float) -> Iterator[Request]:
    """Yield random pods with replacement until this many GPUs are requested."""
    chosen, asked = [], 0
    while asked < gpus:
        chosen.append(dice.choice(pods))
        asked += chosen[-1].gpu_amount
    dice.shuffle(chosen)
    yield from chosen


def main() -> int:
    """Run this benchmark alone."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement", description=__doc__)
    parser.add_argument("directory", type=Path, help="where the tables are")
    parser.add_argument("--quick", action="store_true", help="only one order of arrival")
    options = parser.parse_args()
    measure(options.directory, 1 if options.quick else SEEDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
