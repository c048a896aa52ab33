"""The replayed workloads, their clusters and tasks; one task is one run.

ITP and Philly are replayed by virtual cluster, each on as many nodes with eight GPUs as have 80 %
load; Muri on the 8 × 8 GPUs of its authors.
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
MIN_JOBS = 300
"""Smaller virtual clusters are skipped."""
QUICK_JOBS = 2000
"""Maximum jobs of a workload with `--quick`."""
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
"""Names, files, and the nodes of the recording; empty: computed from the load."""
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
    """Only time limits of this kind are known, and jobs cannot be preempted."""
    restart: float = 60.0
    known_after: float = 0.05
    epoch_error: float = 0.0
    silent_share: float = 0.0
    failing_share: float = 0.0

    @property
    def assumed(self) -> ReplayAssumptions:
        """Return the assumptions of the replay."""
        given = self.limits is not None
        return ReplayAssumptions(
            restart_seconds=self.restart,
            measured_after=self.known_after,
            time_limits_only=given,
            non_preemptible=given,
            epoch_error=self.epoch_error,
            silent_share=self.silent_share,
            failing_share=self.failing_share,
        )


@dataclass(frozen=True)
class Outcome:
    """Outcome of a task; times in seconds."""

    task: Task
    jobs: int
    gpus: int
    mean: float
    p99: float
    makespan: float
    preemptions: float
    unfinished: int
    decision: float
    """Mean per event."""
    took: float
    """Wall time of the replay."""
    peak: int
    """Peak memory of this process in MiB."""
    curve: list[float] = field(default_factory=list)
    """Completion times at a hundred quantiles."""

    def plain(self) -> dict[str, Any]:
        """Return the outcome for JSON."""
        return asdict(self)


@lru_cache(maxsize=1)
def _philly(folder: Path) -> dict[str, Workload]:
    return split(read(folder / PHILLY))


@lru_cache(maxsize=4)
def workload(folder: Path, name: str) -> Workload:
    """Return a workload with its nodes."""
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
    """Return the workloads of the goals by number of jobs."""
    found = {name: workload(folder, name) for name in FILES if name[:4] in {"muri", "itp "}}
    for name, part in _philly(folder).items():
        if len(part.jobs) >= MIN_JOBS:
            found[f"philly {name}"] = part
    most = QUICK_JOBS if quick else sys.maxsize
    return sorted(
        (name for name, each in found.items() if len(each.jobs) <= most),
        key=lambda name: len(found[name].jobs),
    )


def play(task: Task, folder: Path) -> Outcome:
    """Replay a task."""
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
    """Return a workload with other time limits; `equal`: the duration of the longest job."""
    if kind != "equal":
        return with_time_limits(load, kind, SEED)
    longest = ceil(max(job.duration for job in load.jobs))
    return replace(load, jobs=[replace(job, time_limit=longest) for job in load.jobs])


def _one(given: tuple[Task, Path]) -> Outcome:
    return play(*given)


def played(tasks: Sequence[Task], folder: Path, sizes: dict[str, int]) -> Iterator[Outcome]:
    """Run all tasks, two at a time, the longest first; show the progress."""
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
    """Show one line of progress on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
    elif line:
        print(line, file=sys.stderr, flush=True)


def geometric(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return exp(fsum(map(log, values)) / len(values))


def write(path: Path, results: dict[str, Any]) -> None:
    """Write all outcomes so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1), encoding="utf-8")
