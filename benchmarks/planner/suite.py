"""Which recorded workloads are replayed, on what, and how: one run is one task.

ITP and Philly are worked off by virtual cluster, as they were, each on as many machines with
eight GPUs as are busy for 80 % of the time; Muri on the 8 × 8 GPUs of its authors.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from math import ceil, exp, fsum, log
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

from msgspec.structs import replace

from benchmarks.planner.synthetic import synthetic
from stoker.simulate.replay.assumptions import ReplayAssumptions
from stoker.simulate.replay.replay import replay
from stoker.simulate.replay.time_limits import with_time_limits
from stoker.simulate.traces.cluster_size import fit_workload, nodes_for_load, parse_cluster
from stoker.simulate.traces.detect import read, split
from stoker.simulate.workload import Workload

TRACES = Path(__file__).resolve().parent.parent / "traces"
WORKERS = 2
LEAST_JOBS = 300
"""Virtual clusters with fewer say nothing."""
QUICK_JOBS = 2000
"""With `--quick`, only workloads with at most so many."""
SEED = 7
FILES = {
    "muri 1": ("muri/trace1.csv.gz", "8x8"),
    "muri 2": ("muri/trace2.csv.gz", "8x8"),
    "itp 1": ("itp/cluster01.csv.gz", ""),
    "itp 2": ("itp/cluster02.csv.gz", ""),
    "itp 3": ("itp/cluster03.csv.gz", ""),
    "itp 4": ("itp/cluster04.csv.gz", ""),
    "gavel continuous": ("gavel/max_min_fairness.trace.gz", "2x4:v100+4x4:p100+6x4:k80"),
    "gavel static": ("gavel/minimize_makespan.trace.gz", "2x4:v100+4x4:p100+6x4:k80"),
    "pollux 1": ("pollux/workloads/workload-1.csv.gz", "16x4"),
    "pollux 2": ("pollux/workloads/workload-2.csv.gz", "16x4"),
    "pollux 3": ("pollux/workloads/workload-3.csv.gz", "16x4"),
}
"""Names, files, and the machines they were recorded on; none: sized."""
PHILLY = "philly/philly.csv.gz"
MILLION = "synthetic"
POINTS = 100


@dataclass(frozen=True)
class Task:
    """One workload under one policy."""

    trace: str
    policy: str
    parameters: tuple[tuple[str, float], ...] = ()
    limits: str | None = None
    """Nothing but time limits of this kind is known, and nobody can be stopped."""
    restart: float = 60.0
    known_after: float = 0.05

    @property
    def assumed(self) -> ReplayAssumptions:
        """What the workload does not say."""
        given = self.limits is not None
        return ReplayAssumptions(
            restart_seconds=self.restart,
            measured_after=self.known_after,
            time_limits_only=given,
            non_preemptible=given,
        )


@dataclass(frozen=True)
class Outcome:
    """What became of it. Seconds."""

    task: Task
    jobs: int
    gpus: int
    mean: float
    p99: float
    makespan: float
    preemptions: float
    unfinished: int
    decision: float
    """Per event, the mean."""
    took: float
    """Of our own time."""
    peak: int
    """MiB of our own memory, with all that this process did before."""
    curve: list[float] = field(default_factory=list)
    """Completion times of a hundred equal shares of the jobs, the shortest first."""

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@lru_cache(maxsize=1)
def _philly(folder: Path) -> dict[str, Workload]:
    return split(read(folder / PHILLY))


@lru_cache(maxsize=4)
def workload(folder: Path, name: str) -> Workload:
    """A workload with its machines."""
    if name == MILLION:
        return synthetic()
    if name == "philly":
        whole, cluster = read(folder / PHILLY), ""
        whole = replace(whole, jobs=[replace(job, queue="") for job in whole.jobs])
    elif name.startswith("philly "):
        whole, cluster = _philly(folder)[name.removeprefix("philly ")], ""
    else:
        file, cluster = FILES[name]
        whole = read(folder / file)
    nodes = parse_cluster(cluster) if cluster else nodes_for_load(whole)
    return replace(fit_workload(whole, nodes), nodes=nodes, title=name)


def names(folder: Path, quick: bool) -> list[str]:
    """The workloads of the goals, by their number of jobs."""
    found = {name: workload(folder, name) for name in FILES if name[:4] in {"muri", "itp "}}
    for name, part in _philly(folder).items():
        if len(part.jobs) >= LEAST_JOBS:
            found[f"philly {name}"] = part
    most = QUICK_JOBS if quick else sys.maxsize
    return sorted(
        (name for name, each in found.items() if len(each.jobs) <= most),
        key=lambda name: len(found[name].jobs),
    )


def play(task: Task, folder: Path) -> Outcome:
    """Replay it."""
    load = workload(folder, task.trace)
    if task.limits is not None:
        load = with_limits(load, task.limits)
    began = time.perf_counter()
    run = replay(load, list(load.nodes), task.policy, dict(task.parameters), task.assumed)
    took = time.perf_counter() - began
    times = sorted(each.completion_time for each in run.results)
    count = len(times)
    return Outcome(
        task=task,
        jobs=count,
        gpus=run.gpus,
        mean=fsum(times) / count,
        p99=times[min(int(count * 0.99), count - 1)],
        makespan=max(each.end_time for each in run.results)
        - min(each.submit_time for each in run.results),
        preemptions=sum(each.preemptions for each in run.results) / count,
        unfinished=run.unfinished,
        decision=run.cost.seconds / max(run.cost.events, 1),
        took=took,
        peak=getrusage(RUSAGE_SELF).ru_maxrss // 1024,
        curve=[times[min(int((n + 0.5) / POINTS * count), count - 1)] for n in range(POINTS)],
    )


def with_limits(load: Workload, kind: str) -> Workload:
    """The same jobs with other time limits; `equal`: all as long as the longest of them takes."""
    if kind != "equal":
        return with_time_limits(load, kind, SEED)
    longest = ceil(max(job.duration for job in load.jobs))
    return replace(load, jobs=[replace(job, time_limit=longest) for job in load.jobs])


def _one(given: tuple[Task, Path]) -> Outcome:
    return play(*given)


def played(tasks: Sequence[Task], folder: Path, sizes: dict[str, int]) -> Iterator[Outcome]:
    """All of them, two at a time, the longest first, as they come; it shows how far it is."""
    tasks = sorted(set(tasks), key=lambda task: -sizes.get(task.trace, 0))
    began, total = time.monotonic(), len(tasks)
    with get_context("spawn").Pool(WORKERS, maxtasksperchild=8) as pool:
        given = [(task, folder) for task in tasks]
        for done, outcome in enumerate(pool.imap_unordered(_one, given), 1):
            task = outcome.task
            limits = f", {task.limits} limits" if task.limits else ""
            told(
                f"[{done}/{total}, {time.monotonic() - began:.0f} s] {task.trace}, "
                f"{task.policy}{limits}: {outcome.took:.1f} s"
            )
            yield outcome
    told("")


def told(line: str) -> None:
    """One line of progress that the next one replaces, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
    elif line:
        print(line, file=sys.stderr, flush=True)


def geometric(values: Sequence[float]) -> float:
    """The geometric mean."""
    return exp(fsum(map(log, values)) / len(values))


def write(path: Path, results: dict[str, Any]) -> None:
    """Write all that is known so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1), encoding="utf-8")
