"""Share of a cluster's GPUs that can be allocated to jobs that are not known beforehand.

The experiment of FGD (USENIX ATC '23) with stoker's placement: pods of one of Alibaba's `openb`
lists are sampled with replacement until they request 130 % of the cluster's GPUs, and arrive one
after another. None ends; a pod that does not fit is rejected. The result is the share of all GPUs
that is allocated when the arrived pods request as many GPUs as there are.
`python -m benchmarks.placement DIRECTORY [--quick]` runs this benchmark alone; the directory holds
the tables of pods and of nodes.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.openb_lists import read_list
from benchmarks.report import median, percentile, table
from stoker.core.cluster.cluster import Cluster
from stoker.core.model.resources import GPU, GpuRequest, NodeFacts, ResourceRequest
from stoker.core.model.units import THOUSAND
from stoker.core.placement.node_lookup import demand_of
from stoker.core.placement.placer import find_placement
from stoker.simulate.traces.formats import openb
from stoker.simulate.workload import TraceJob

SEEDS = 10
FGD = {
    "default": 95.23, "multigpu50": 97.09, "gpuspec33": 87.84, "gpushare40": 93.95,
    "gpushare100": 86.65,
}  # fmt: skip
"""Per cent, as published for FGD, by list of pods."""
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


@dataclass(frozen=True)
class ListResult:
    """Result of one list of pods."""

    name: str
    fgd: float
    rounds: list[ArrivalResult]

    def mean(self, field: str = "allocated") -> float:
        """Return the mean of a figure over all orders of arrival."""
        return fmean(float(getattr(each, field)) for each in self.rounds)


def measure(directory: Path, seeds: int = SEEDS) -> list[ListResult]:
    """Measure several orders of arrival of each list."""
    (default,) = directory.rglob("*pod_list_default.csv*")
    nodes = list(openb.read(default).nodes)
    print(f"\nPlacement: {len(nodes)} nodes, {seeds} orders of arrival\n")
    results = [measure_list(directory, nodes, name, seeds) for name in FGD]
    head = ["pods", "allocated %", "FGD %", "in the end %", "turned away", "median µs", "p99 µs"]
    print(table(head, [row(each) for each in results]))
    return results


def measure_list(directory: Path, nodes: list[NodeFacts], name: str, seeds: int) -> ListResult:
    """Measure several orders of arrival of one list."""
    pods = [request(load) for load in read_list(directory, name)]
    return ListResult(name, FGD[name], [arrivals(pods, nodes, seed) for seed in range(seeds)])


def row(each: ListResult) -> list[str]:
    """Return a row of the table."""
    return [
        each.name, f"{each.mean():.2f}", f"{each.fgd}", f"{each.mean('in_the_end'):.2f}",
        f"{each.mean('turned_away'):.0f}", f"{each.mean('median_us'):.0f}",
        f"{each.mean('p99_us'):.0f}",
    ]  # fmt: skip


def request(load: TraceJob) -> ResourceRequest:
    """Return the request of a pod."""
    models = tuple(model.lower() for model in load.gpu_models)
    ask = GpuRequest(round(load.gpus * THOUSAND), models=models)
    return ResourceRequest(
        gpus=ask if ask.amount else None, cpus=round(load.cpus * THOUSAND), memory=load.ram
    )


def arrivals(pods: list[ResourceRequest], machines: list[NodeFacts], seed: int) -> ArrivalResult:
    """Submit pods in one random order until the total request is reached."""
    cluster = Cluster()
    for facts in machines:
        cluster.add_node(facts, ())
    capacity = THOUSAND * sum(len(facts.types.get(GPU, ())) for facts in machines)
    arrived = given = refused = 0
    allocated: float | None = None
    samples = []
    for each in sample_pods(pods, random.Random(seed), TOTAL_REQUEST * capacity):
        begin = time.perf_counter()
        cluster.demand_histogram.count(demand_of(cluster, each), +1)
        found = find_placement(cluster, each)
        if found is not None:
            cluster.allocate(found)
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


def sample_pods(
    pods: list[ResourceRequest], dice: random.Random, gpus: float
) -> Iterator[ResourceRequest]:
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
    parser.add_argument("--quick", action="store_true", help="one order of arrival per list")
    options = parser.parse_args()
    measure(options.directory, 1 if options.quick else SEEDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
