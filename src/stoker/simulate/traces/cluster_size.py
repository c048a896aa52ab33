"""Machines for a workload: as somebody types them, or as many as keep it busy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from math import ceil

from msgspec.structs import replace

from stoker.core.cluster import DeviceFacts, NodeFacts
from stoker.core.request import CPU, GPU, MEMORY
from stoker.core.units import THOUSAND, BadValue, parse_memory
from stoker.simulate.traces.feasibility import FeasibilityChecker, smallest_request_text
from stoker.simulate.traces.files import count_jobs
from stoker.simulate.workload import TraceJob, Workload

POOL = "pool"
"""The one device of a machine's cores, and of its memory."""
MOST_GPUS, MOST_MACHINES = 1_000_000, 100_000
"""More than anybody has, and few enough that a simulation begins within seconds."""
_CORES = 64
"""Of each machine, where jobs ask for nothing but cores."""
_GROUP = re.compile(r"([0-9]+)\s*[x×]\s*([0-9]+)(?::([^,:+]+))?", re.IGNORECASE)
_EXAMPLE = "write for example 8x8, or 2x4:v100+4x4:p100,cpus=64,ram=512G"
_OPTIONS = ("cpus", "ram", "memory")


def box(
    name: str, gpus: int, model: str | None = None, cpus: float = 0, ram: int = 0, memory: int = 0
) -> NodeFacts:
    """One machine; what is 0 it does not account for. Memory in MiB."""
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


def boxes(
    groups: Iterable[tuple[int, int]], model: str | None = None, cpus: float = 0, ram: int = 0
) -> list[NodeFacts]:
    """Several kinds of machines: how many of each, and GPUs in each."""
    return _named([(count, box("", gpus, model, cpus, ram)) for count, gpus in groups])


def _named(groups: Sequence[tuple[int, NodeFacts]]) -> list[NodeFacts]:
    """So many of each, numbered through; machines of a kind share what is said of their devices."""
    total = sum(count for count, _ in groups)
    width = max(len(str(total)), 4)
    kinds = (kind for count, kind in groups for _ in range(count))
    return [NodeFacts(f"node{n:0{width}d}", kind.types) for n, kind in enumerate(kinds, 1)]


def machines(text: str, what: str = "--cluster") -> list[NodeFacts]:
    """Read `8x8` or `2x4:v100+4x4:p100,cpus=64,ram=512G`.

    What stands behind the last kind holds for all that do not say it themselves.
    """
    groups = [_group(part.strip(), text, what) for part in text.split("+")]
    _bearable(
        sum(count for count, _, _, _ in groups), sum(count * gpus for count, gpus, _, _ in groups),
        f"{what} '{text}'", _EXAMPLE,
    )  # fmt: skip
    common = groups[-1][3]
    kinds = []
    for count, gpus, model, own in groups:
        said = {**common, **own}
        kind = box("", gpus, model, said.get("cpus", 0), said.get("ram", 0), said.get("memory", 0))
        if not kind.types:
            raise BadValue(f"{what} '{text}' has nodes without resources; {_EXAMPLE}.")
        kinds.append((count, kind))
    return _named(kinds)


def _bearable(machines: int, gpus: int, what: str, instead: str) -> None:
    """Refuse what would keep everybody waiting before the first job has come."""
    for count, most, unit in (
        (machines, MOST_MACHINES, "nodes"), (gpus, MOST_GPUS, "GPUs"),
    ):  # fmt: skip
        if count > most:
            raise BadValue(f"{what} has more than {most:,} {unit}; {instead}.")


def _group(part: str, text: str, what: str) -> tuple[int, int, str | None, dict[str, int]]:
    first, *options = [each.strip() for each in part.split(",")]
    match = _GROUP.fullmatch(first)
    if match is None or not _count(match[1]):
        raise BadValue(f"{what} '{text}' is not NODESxGPUS; {_EXAMPLE}.")
    said = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or name not in _OPTIONS:
            raise BadValue(
                f"{what} '{text}': unknown option '{option}' (known: cpus=, ram=, "
                f"memory=); {_EXAMPLE}."
            )
        said[name] = _cores(value, text, what) if name == "cpus" else parse_memory(value, name)
    return _count(match[1]), _count(match[2]), match[3] and match[3].strip(), said


def _count(digits: str) -> int:
    """A number; of one that is far too large it counts only that it is."""
    return int(digits[:20])  # Python refuses to read thousands of digits


def _cores(value: str, text: str, what: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 7):
        raise BadValue(f"{what} '{text}': cpus={value} is not a number of cores; {_EXAMPLE}.")
    return int(value)


def sized(workload: Workload, load: float = 0.8, per_node: int = 8) -> list[NodeFacts]:
    """As many machines as are busy for such a share of the time in which the jobs arrive.

    There are at least as many as the largest job needs, and no more than all jobs at once could
    use; where jobs name GPU models, some of each.
    """
    jobs = workload.jobs
    span = (jobs[-1].submit_time - jobs[0].submit_time) or max(job.duration for job in jobs)
    by_model: dict[str | None, list[TraceJob]] = {}
    for job in jobs:
        by_model.setdefault(_best(job), []).append(job)
    anywhere = by_model.pop(None, [])
    if not by_model:
        by_model[None] = []
    # Those that run anywhere count where there is most to do anyway.
    busiest = max(by_model, key=lambda model: (_work(by_model[model]), model or ""))
    by_model[busiest] = by_model[busiest] + anywhere
    kinds = [
        (group, model, *_enough(group, span * load, per_node))
        for model, group in sorted(by_model.items(), key=lambda item: item[0] or "")
    ]
    total = sum(count for _, _, count, _ in kinds)
    _bearable(
        total, sum(count * gpus for _, _, count, gpus in kinds),
        f"{workload.title}: a cluster large enough for these jobs",
        "check the times of the jobs, or give the nodes, as in --cluster 8x8",
    )  # fmt: skip
    cores = _each(jobs, lambda job: job.cpus, span * load, total, per_node)
    ram = _each(jobs, lambda job: job.ram, span * load, total, per_node)
    memory = max((job.gpu_memory or 0 for job in jobs), default=0)
    return _named(
        [(count, box("", gpus, model, cores, ram, memory)) for _, model, count, gpus in kinds]
    )


def _best(job: TraceJob) -> str | None:
    """Of the models that will do, the one on which it is fastest, or else the one named first."""
    speed = job.speed
    if speed is None or len(job.gpu_models) < 2:
        return job.gpu_models[0] if job.gpu_models else None
    return max(job.gpu_models, key=lambda model: speed.rate(0.0, ceil(job.gpus), 1, model))


def _work(jobs: Iterable[TraceJob]) -> float:
    return sum(job.gpus * job.duration for job in jobs)


def _enough(jobs: Sequence[TraceJob], time: float, per_node: int) -> tuple[int, int]:
    """How many machines, and with how many GPUs each."""
    work = _work(jobs)
    if not work:
        cores = sum(job.cpus * job.duration for job in jobs) / time
        return max(ceil(min(cores, sum(job.cpus for job in jobs)) / _CORES), 1), 0
    largest, all_of_them = max(job.gpus for job in jobs), sum(job.gpus for job in jobs)
    return ceil(max(min(work / time, all_of_them), largest) / per_node), per_node


def _each(
    jobs: Sequence[TraceJob],
    amount: Callable[[TraceJob], float],
    time: float,
    total: int,
    per_node: int,
) -> int:
    """What each of the machines must have of something: the usual, and enough for any job."""
    mean = sum(amount(job) * job.duration for job in jobs) / time / total
    largest = max(amount(job) / max(ceil(job.gpus / per_node), 1) for job in jobs)
    return ceil(max(mean, largest))


def fitted(workload: Workload, nodes: Sequence[NodeFacts]) -> Workload:
    """The workload as these machines can run it, with notes of what had to be passed over.

    Where no machine says how many cores, how much memory or which model it has, no job asks; jobs
    that could not run even if nothing else did are left out.
    """
    types = {name for node in nodes for name in node.types}
    cards = [facts for node in nodes for facts in node.types.get(GPU, ())]
    models = any(facts.model for facts in cards)
    vram = any(facts.memory for facts in cards)
    lacking = [
        (field, nothing, words)
        for field, nothing, words, known in (
            ("cpus", 0.0, "cores", CPU in types),
            ("ram", 0, "memory", MEMORY in types),
            ("gpu_memory", None, "GPU memory", vram),
            ("gpu_models", (), "GPU models", models),
        )
        if not known and any(getattr(job, field) for job in workload.jobs)
    ]
    changes = {field: nothing for field, nothing, _ in lacking}
    jobs = [replace(job, **changes) for job in workload.jobs] if changes else workload.jobs
    room = FeasibilityChecker(nodes)
    kept = [job for job in jobs if room.may_run(job)]
    if len(kept) == len(jobs) and not changes:
        return workload
    notes = [f"Requested {words} ignored: no node specifies any." for *_, words in lacking]
    if not kept:
        notes = [_none_fits(workload, nodes)]
    elif len(kept) < len(jobs):
        notes.append(f"{count_jobs(len(jobs) - len(kept))} skipped: this cluster cannot run them.")
    return replace(workload, jobs=kept, nodes=nodes, notes=[*workload.notes, *notes])


def _none_fits(workload: Workload, nodes: Sequence[NodeFacts]) -> str:
    gpus = sum(len(node.types.get(GPU, ())) for node in nodes)
    return (
        f"no job fits on {len(nodes):,} node{'s' * (len(nodes) != 1)} with {gpus:,} "
        f"GPU{'s' * (gpus != 1)}: the smallest of {count_jobs(len(workload.jobs))} requests "
        f"{smallest_request_text(workload.jobs)}; choose larger nodes, as in --cluster "
        "8x8,cpus=64,ram=512G."
    )
