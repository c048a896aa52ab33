"""Nodes of a simulated cluster: as given by --cluster, or computed from the load."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from math import ceil

from msgspec.structs import replace

from stoker.core.model.resources import CPU, GPU, MEMORY, DeviceFacts, NodeFacts
from stoker.core.model.units import THOUSAND, BadValue, parse_memory
from stoker.simulate.traces.feasibility import FeasibilityChecker, smallest_request_text
from stoker.simulate.traces.files import count_jobs
from stoker.simulate.workload import TraceJob, Workload

POOL = "pool"
"""Name of the single device for the cores, and for the memory, of a node."""
MAX_GPUS, MAX_NODES = 1_000_000, 100_000
"""Limits that let a simulation start within seconds."""
_CORES_PER_NODE = 64
"""Cores of each node if no job requests GPUs."""
_GROUP = re.compile(r"([0-9]+)\s*[x×]\s*([0-9]+)(?::([^,:+]+))?", re.IGNORECASE)
_EXAMPLE = "write for example 8x8, or 2x4:v100+4x4:p100,cpus=64,ram=512G"
_OPTIONS = ("cpus", "ram", "memory")


def node_facts(
    name: str, gpus: int, model: str | None = None, cpus: float = 0, ram: int = 0, memory: int = 0
) -> NodeFacts:
    """Return one node; resources that are 0 are not accounted. Memory in MiB."""
    types: dict[str, tuple[DeviceFacts, ...]] = {}
    if cpus:
        types[CPU] = (DeviceFacts(POOL, round(cpus * THOUSAND)),)
    if ram:
        types[MEMORY] = (DeviceFacts(POOL, ram),)
    if gpus:
        types[GPU] = tuple(
            DeviceFacts(name=str(n), index=n, model=model, memory=memory or None)
            for n in range(gpus)
        )
    return NodeFacts(name, types)


def uniform_nodes(groups: Iterable[tuple[int, int]]) -> list[NodeFacts]:
    """Return nodes by (number of nodes, GPUs per node)."""
    return _numbered_nodes([(count, node_facts("", gpus)) for count, gpus in groups])


def _numbered_nodes(groups: Sequence[tuple[int, NodeFacts]]) -> list[NodeFacts]:
    """Return numbered nodes; nodes of a kind share their device facts."""
    total = sum(count for count, _ in groups)
    width = max(len(str(total)), 4)
    kinds = (kind for count, kind in groups for _ in range(count))
    return [NodeFacts(f"node{n:0{width}d}", kind.types) for n, kind in enumerate(kinds, 1)]


def parse_cluster(text: str, what: str = "--cluster") -> list[NodeFacts]:
    """Parse `8x8` or `2x4:v100+4x4:p100,cpus=64,ram=512G`.

    Options of the last kind hold for all kinds that do not have them.
    """
    groups = [_group(part.strip(), text, what) for part in text.split("+")]
    _check_size(
        sum(count for count, _, _, _ in groups), sum(count * gpus for count, gpus, _, _ in groups),
        f"{what} '{text}'", _EXAMPLE,
    )  # fmt: skip
    common = groups[-1][3]
    kinds = []
    for count, gpus, model, specific in groups:
        options = {**common, **specific}
        kind = node_facts(
            "", gpus, model, options.get("cpus", 0), options.get("ram", 0), options.get("memory", 0)
        )
        if not kind.types:
            raise BadValue(f"{what} '{text}' has nodes without resources; {_EXAMPLE}.")
        kinds.append((count, kind))
    return _numbered_nodes(kinds)


def _check_size(nodes: int, gpus: int, what: str, instead: str) -> None:
    """Reject clusters that would take long to set up."""
    for count, maximum, unit in (
        (nodes, MAX_NODES, "nodes"), (gpus, MAX_GPUS, "GPUs"),
    ):  # fmt: skip
        if count > maximum:
            raise BadValue(f"{what} has more than {maximum:,} {unit}; {instead}.")


def _group(part: str, text: str, what: str) -> tuple[int, int, str | None, dict[str, int]]:
    first, *options = [field.strip() for field in part.split(",")]
    match = _GROUP.fullmatch(first)
    if match is None or not _count(match[1]):
        raise BadValue(f"{what} '{text}' is not NODESxGPUS; {_EXAMPLE}.")
    values = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or name not in _OPTIONS:
            raise BadValue(
                f"{what} '{text}': unknown option '{option}' (known: cpus=, ram=, "
                f"memory=); {_EXAMPLE}."
            )
        values[name] = _cores(value, text, what) if name == "cpus" else parse_memory(value, name)
    return _count(match[1]), _count(match[2]), match[3] and match[3].strip(), values


def _count(digits: str) -> int:
    """Parse a number; only the first 20 digits count."""
    return int(digits[:20])  # Python rejects thousands of digits


def _cores(value: str, text: str, what: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 7):
        raise BadValue(f"{what} '{text}': cpus={value} is not a number of cores; {_EXAMPLE}.")
    return int(value)


def nodes_for_load(
    workload: Workload, load: float = 0.8, gpus_per_node: int = 8
) -> list[NodeFacts]:
    """Return as many nodes as have this load while jobs are submitted.

    At least as many as the largest job needs, and no more than all jobs together could use; if
    jobs name GPU models, some of each.
    """
    jobs = workload.jobs
    span = (jobs[-1].submit_time - jobs[0].submit_time) or max(job.duration for job in jobs)
    by_model: dict[str | None, list[TraceJob]] = {}
    for job in jobs:
        by_model.setdefault(_best(job), []).append(job)
    anywhere = by_model.pop(None, [])
    if not by_model:
        by_model[None] = []
    # Jobs that run on any model count for the model with the most work.
    busiest = max(by_model, key=lambda model: (_work(by_model[model]), model or ""))
    by_model[busiest] = by_model[busiest] + anywhere
    kinds = [
        (group, model, *_node_count(group, span * load, gpus_per_node))
        for model, group in sorted(by_model.items(), key=lambda item: item[0] or "")
    ]
    total = sum(count for _, _, count, _ in kinds)
    _check_size(
        total, sum(count * gpus for _, _, count, gpus in kinds),
        f"{workload.title}: a cluster large enough for these jobs",
        "check the times of the jobs, or give the nodes, as in --cluster 8x8",
    )  # fmt: skip
    cores = _amount_gpus_per_node(jobs, lambda job: job.cpus, span * load, total, gpus_per_node)
    ram = _amount_gpus_per_node(jobs, lambda job: job.ram, span * load, total, gpus_per_node)
    memory = max((job.gpu_memory or 0 for job in jobs), default=0)
    return _numbered_nodes([
        (count, node_facts("", gpus, model, cores, ram, memory)) for _, model, count, gpus in kinds
    ])  # fmt: skip


def _best(job: TraceJob) -> str | None:
    """Return the GPU model on which a job is fastest, else its first one."""
    speed = job.speed
    if speed is None or len(job.gpu_models) < 2:
        return job.gpu_models[0] if job.gpu_models else None
    return max(job.gpu_models, key=lambda model: speed.rate(0.0, ceil(job.gpus), 1, model))


def _work(jobs: Iterable[TraceJob]) -> float:
    return sum(job.gpus * job.duration for job in jobs)


def _node_count(jobs: Sequence[TraceJob], time: float, gpus_per_node: int) -> tuple[int, int]:
    """Return the number of nodes, and of GPUs per node."""
    work = _work(jobs)
    if not work:
        cores = sum(job.cpus * job.duration for job in jobs) / time
        return max(ceil(min(cores, sum(job.cpus for job in jobs)) / _CORES_PER_NODE), 1), 0
    largest, all_gpus = max(job.gpus for job in jobs), sum(job.gpus for job in jobs)
    return ceil(max(min(work / time, all_gpus), largest) / gpus_per_node), gpus_per_node


def _amount_gpus_per_node(
    jobs: Sequence[TraceJob],
    amount: Callable[[TraceJob], float],
    time: float,
    total: int,
    gpus_per_node: int,
) -> int:
    """Return the amount of a resource per node: the mean demand, and enough for every job."""
    mean = sum(amount(job) * job.duration for job in jobs) / time / total
    largest = max(amount(job) / max(ceil(job.gpus / gpus_per_node), 1) for job in jobs)
    return ceil(max(mean, largest))


def fit_workload(workload: Workload, nodes: Sequence[NodeFacts]) -> Workload:
    """Return the workload as these nodes can run it, with notes on what was ignored.

    Requests for a resource that no node specifies are ignored; jobs that could not run on the idle
    cluster are skipped.
    """
    types = {name for node in nodes for name in node.types}
    cards = [card for node in nodes for card in node.types.get(GPU, ())]
    models = any(card.model for card in cards)
    vram = any(card.memory for card in cards)
    ignored = [
        (field, default, label)
        for field, default, label, known in (
            ("cpus", 0.0, "cores", CPU in types),
            ("ram", 0, "memory", MEMORY in types),
            ("gpu_memory", None, "GPU memory", vram),
            ("gpu_models", (), "GPU models", models),
        )
        if not known and any(getattr(job, field) for job in workload.jobs)
    ]
    changes = {field: default for field, default, _ in ignored}
    jobs = [replace(job, **changes) for job in workload.jobs] if changes else workload.jobs
    checker = FeasibilityChecker(nodes)
    kept = [job for job in jobs if checker.may_run(job)]
    if len(kept) == len(jobs) and not changes:
        return workload
    notes = [f"Requested {label} ignored: no node specifies any." for *_, label in ignored]
    if not kept:
        notes = [_nothing_fits_note(workload, nodes)]
    elif len(kept) < len(jobs):
        notes.append(f"{count_jobs(len(jobs) - len(kept))} skipped: this cluster cannot run them.")
    return replace(workload, jobs=kept, nodes=nodes, notes=[*workload.notes, *notes])


def _nothing_fits_note(workload: Workload, nodes: Sequence[NodeFacts]) -> str:
    gpus = sum(len(node.types.get(GPU, ())) for node in nodes)
    return (
        f"no job fits on {len(nodes):,} node{'s' * (len(nodes) != 1)} with {gpus:,} "
        f"GPU{'s' * (gpus != 1)}: the smallest of {count_jobs(len(workload.jobs))} requests "
        f"{smallest_request_text(workload.jobs)}; choose larger nodes, as in --cluster "
        "8x8,cpus=64,ram=512G."
    )
