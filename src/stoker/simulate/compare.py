"""One workload under several policies."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.cluster import NodeFacts
from stoker.core.request import GPU
from stoker.simulate.arguments import PolicyVariant, SimulateArgs
from stoker.simulate.progress import ProgressLine
from stoker.simulate.replay.replay import replay
from stoker.simulate.replay.results import RunResult
from stoker.simulate.replay.time_limits import limited
from stoker.simulate.report import RunStatistics, figures_of, labels
from stoker.simulate.report.gantt import MOST_OF_ALL
from stoker.simulate.traces.cluster_size import fitted, sized
from stoker.simulate.traces.detect import read, split
from stoker.simulate.workload import Workload


class Compared(Struct, kw_only=True):
    """What became of a workload under each policy."""

    workload: str
    heading: str
    runs: list[RunResult]
    figures: list[RunStatistics]
    notes: list[str]


def workloads(asked: SimulateArgs) -> Iterator[Workload]:
    """All that is to be replayed, as it will be, each with its machines."""
    for path in asked.traces:
        whole = read(path, asked.format)
        for part in split(whole).values() if asked.by_queue else [whole]:
            yield prepared(part, asked)


def prepared(workload: Workload, asked: SimulateArgs) -> Workload:
    """The first so many jobs, with limits, on machines that can run them."""
    if asked.max_jobs is not None:
        workload = replace(workload, jobs=workload.jobs[: asked.max_jobs])
    workload = limited(workload, asked.limits, asked.seed)
    nodes: Sequence[NodeFacts] = workload.nodes
    if asked.cluster is not None:
        nodes = asked.cluster
    elif asked.size_by_load or not nodes:
        nodes = sized(workload, asked.target_load)
    return replace(fitted(workload, nodes), nodes=nodes)


def compared(workload: Workload, asked: SimulateArgs, meter: ProgressLine) -> Compared:
    """Play it under each policy; what only a page needs is kept only for one."""
    gc.freeze()  # what was read stays to the end: the collector need not look through it again
    titles = named(asked.variants)
    runs, figures = [], []
    for contender, label in zip(asked.variants, titles, strict=True):
        meter.start_run(f"{workload.title}, {label}")
        run = replay(
            workload, list(workload.nodes), contender.policy, dict(contender.parameters),
            asked.assumptions, meter.update, MOST_OF_ALL if asked.html else 0,
        )  # fmt: skip
        meter.end_run(len(workload.jobs))
        run = replace(run, notes=[])  # those of the workload are told once, for all runs
        figures.append(figures_of(run, label))
        runs.append(run if asked.html else light(run))
    return Compared(
        workload=workload.title,
        heading=heading(workload),
        runs=runs,
        figures=figures,
        notes=list(workload.notes),
    )


def light(run: RunResult) -> RunResult:
    """A run without what only its page needs: a million results take their room."""
    return replace(run, results=[], gpus_in_use=[], pending_jobs=[], segments=[])


def named(contenders: Sequence[PolicyVariant]) -> list[str]:
    """What to call each of them, so that no two are called the same."""
    return labels([
        RunResult(policy=each.policy, parameters=each.parameters, workload="", gpus=0, results=[])
        for each in contenders
    ])  # fmt: skip


def heading(workload: Workload) -> str:
    """What was replayed on what, in a line."""
    jobs, nodes = workload.jobs, workload.nodes
    gpus = sum(len(each.types.get(GPU, ())) for each in nodes)
    text = f"{workload.title}: {len(jobs):,} job{'s' * (len(jobs) != 1)}"
    text += f" on {len(nodes):,} node{'s' * (len(nodes) != 1)}"
    text += f" with {gpus:,} GPU{'s' * (gpus != 1)}"
    span = jobs[-1].submit_time - jobs[0].submit_time if jobs else 0.0
    if span and gpus:
        load = sum(job.gpus * job.duration for job in jobs) / span / gpus
        text += f", {100 * load:.0f} % load over {_long(span)}"
    return text


def _long(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} seconds"
