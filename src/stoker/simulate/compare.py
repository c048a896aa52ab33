"""Replay one workload under several policies."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.model.resources import GPU, NodeFacts
from stoker.core.model.units import approximate_duration
from stoker.simulate.arguments import SimulateArgs
from stoker.simulate.progress import ProgressLine
from stoker.simulate.replay.replay import replay
from stoker.simulate.replay.results import RunResult
from stoker.simulate.replay.time_limits import with_time_limits
from stoker.simulate.report.gantt import MAX_SEGMENTS
from stoker.simulate.report.statistics import RunStatistics, run_labels, run_statistics
from stoker.simulate.traces.cluster_size import fit_workload, nodes_for_load
from stoker.simulate.traces.detect import read, split
from stoker.simulate.workload import Workload


class Comparison(Struct, kw_only=True):
    """The runs of one workload, one per policy variant."""

    workload: str
    heading: str
    runs: list[RunResult]
    statistics: list[RunStatistics]
    notes: list[str]


def workloads(args: SimulateArgs) -> Iterator[Workload]:
    """Yield every workload to replay, prepared, with its nodes."""
    for path in args.traces:
        workload = read(path, args.format, args.time_unit)
        for part in split(workload).values() if args.by_queue else [workload]:
            yield prepare(part, args)


def prepare(workload: Workload, args: SimulateArgs) -> Workload:
    """Return a workload cut to --first, with time limits and nodes, without jobs that never fit."""
    if args.max_jobs is not None:
        workload = replace(workload, jobs=workload.jobs[: args.max_jobs])
    workload = with_time_limits(workload, args.limits, args.seed)
    nodes: Sequence[NodeFacts] = workload.nodes
    if args.cluster is not None:
        nodes = args.cluster
    elif args.size_by_load or not nodes:
        nodes = nodes_for_load(workload, args.target_load)
    return replace(fit_workload(workload, nodes), nodes=nodes)


def compare(workload: Workload, args: SimulateArgs, progress: ProgressLine) -> Comparison:
    """Replay a workload under each policy; keep the data of the page only if one is written."""
    gc.freeze()  # the jobs live to the end: exclude them from garbage collection
    runs, statistics = [], []
    for variant, label in zip(args.variants, run_labels(args.variants), strict=True):
        progress.start_run(f"{workload.title}, {label}")
        run = replay(
            workload, list(workload.nodes), variant.policy, dict(variant.parameters),
            args.assumptions, progress.update, MAX_SEGMENTS if args.html else 0,
        )  # fmt: skip
        progress.end_run(len(workload.jobs))
        run = replace(run, notes=[])  # the notes of the workload are printed once for all runs
        statistics.append(run_statistics(run, label))
        runs.append(run if args.html else without_page_data(run))
    return Comparison(
        workload=workload.title,
        heading=heading(workload),
        runs=runs,
        statistics=statistics,
        notes=list(workload.notes),
    )


def without_page_data(run: RunResult) -> RunResult:
    """Return a run without the data of its page, which is large."""
    return replace(run, results=[], gpus_in_use=[], pending_jobs=[], segments=[])


def heading(workload: Workload) -> str:
    """Return one line with the jobs, the nodes and the load of a workload."""
    jobs, nodes = workload.jobs, workload.nodes
    gpus = sum(len(node.types.get(GPU, ())) for node in nodes)
    text = f"{workload.title}: {len(jobs):,} job{'s' * (len(jobs) != 1)}"
    text += f" on {len(nodes):,} node{'s' * (len(nodes) != 1)}"
    text += f" with {gpus:,} GPU{'s' * (gpus != 1)}"
    span = jobs[-1].submit_time - jobs[0].submit_time if jobs else 0.0
    if span and gpus:
        load = sum(job.gpus * job.duration for job in jobs) / span / gpus
        text += f", {100 * load:.0f} % load over {approximate_duration(span)}"
    return text
