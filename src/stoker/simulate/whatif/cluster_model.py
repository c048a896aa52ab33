"""The lab as its daemon describes it: machines, queues with their rules, and its jobs."""

from __future__ import annotations

from math import ceil

import msgspec
from msgspec import Struct

from stoker.core.cluster import SLIVER, DeviceFacts, NodeFacts, Placement, Take
from stoker.core.dependency import Dependency, parse_dependency, stuck
from stoker.core.events import QueueDefined
from stoker.core.request import CPU, GPU, MEMORY, GpuAsk, Request
from stoker.core.units import THOUSAND, BadValue, parse_amount
from stoker.simulate.traces import field_parsers as cells
from stoker.simulate.traces.formats import stoker_history as history
from stoker.simulate.traces.formats.stoker_history import Trained
from stoker.simulate.traces.stoker_jobs import DurationEstimator, JobRecord, to_trace_job
from stoker.simulate.whatif.api_views import Asked, Facts, Part, View
from stoker.simulate.workload import TraceJob

PENDING, SUSPENDED = "PENDING", "SUSPENDED"


class RecordedJob(TraceJob, kw_only=True, gc=False):
    """One of the lab's own jobs."""

    id: int
    label: str
    request: Request
    dependency: str | None = None
    state: str = ""
    remaining: float
    """Seconds that it still needs."""
    started_at: float | None = None
    placement: Placement | None = None
    reports: bool = False
    """It reports epochs."""
    stated_seconds: float | None = None
    """How long it takes, by what its owner said."""
    measured_seconds: float | None = None
    """The same of its present attempt, by what is known today."""


class ClusterModel(Struct, kw_only=True):
    """Machines and rules: those of today, or changed ones."""

    nodes: list[NodeFacts]
    queues: list[QueueDefined]
    policies: dict[str, tuple[str, dict[str, float]]]


def cluster_from_facts(facts: Facts) -> ClusterModel:
    """The lab as it is today."""
    queues = [
        QueueDefined(
            at=0.0, name=each.name, max_running=each.max_running,
            max_gpus=parse_amount(each.max_gpus) if each.max_gpus else None,
            priority=each.priority, strict=each.strict, devices=each.devices,
        )
        for each in facts.queues
    ]  # fmt: skip
    policies = {
        each.queue: (each.chosen, each.changed)
        for each in facts.policies
        if each.own or each.queue == "*"
    }
    return ClusterModel(nodes=_nodes_from_facts(facts), queues=queues, policies=policies)


def _nodes_from_facts(facts: Facts) -> list[NodeFacts]:
    """Those that answer, without what is drained."""
    found = []
    for each in facts.nodes:
        if each.state in ("unreachable", "connecting"):
            continue
        types: dict[str, tuple[DeviceFacts, ...]] = {}
        for type, held in each.resources.items():
            if type == GPU:
                continue
            whole = int(held.total) if type == MEMORY else parse_amount(held.total)
            share = whole // max(len(held.devices), 1)
            types[type] = tuple(DeviceFacts(name, share) for name in held.devices)
        cards = [card for card in facts.gpus if card.node == each.name and card.drained is None]
        if cards:
            types[GPU] = tuple(
                DeviceFacts(card.id, index=card.index, model=card.model, memory=card.memory)
                for card in cards
            )
        found.append(NodeFacts(each.name, types))
    return found


def jobs_from_facts(facts: Facts) -> tuple[list[RecordedJob], list[RecordedJob], list[str]]:
    """Those of the past and the present by time of submission, those of today, and notes."""
    views = {each.id: each for each in (*facts.history, *facts.queue)}
    records = [(view, history.record_of(view)) for view in views.values()]
    likely = DurationEstimator([record for _, record in records])
    every, today = [], []
    still: set[int] = set()
    empty = guessed = paused = 0
    for view, record in sorted(records, key=lambda each: (each[1].submitted_at, each[0].id)):
        if record.is_finished and not record.run_seconds:
            empty += 1
            continue
        seconds = record.run_seconds if record.is_finished else likely.seconds(record)
        if not record.is_finished and record.time_limit:
            seconds = max(min(seconds, float(record.time_limit)), record.run_seconds + 1)
        guessed += not record.is_finished
        paused += view.state == SUSPENDED
        own = _recorded_job(view, record, seconds, facts.now)
        if not record.is_finished and not _can_start(view, facts.now, still):
            still.add(view.id)
            continue
        every.append(own)
        if not record.is_finished:
            today.append(own)
    notes = []
    if guessed:
        notes.append(
            f"{_jobs(guessed)} not finished: durations are estimated from epochs, jobs of the same"
            " name or time limits."
        )
    if paused:
        notes.append(f"{_jobs(paused)} paused: assumed to resume now.")
    if empty:
        notes.append(f"{_jobs(empty)} skipped: never ran.")
    if still:
        notes.append(
            f"{_jobs(len(still))} skipped: held, before the begin time, or dependent on such jobs."
        )
    return every, today, notes


def _jobs(count: int) -> str:
    return f"{count:,} job{'s' * (count != 1)}"


def _can_start(view: View, now: float, still: set[int]) -> bool:
    """Whether nothing keeps it from running but who is before it, or who is going to run."""
    if view.state != PENDING:
        return True
    if view.reason is not None and view.reason.startswith("JobHeld"):
        return False
    if view.begin_at is not None and cells.moment(view.begin_at) > now:
        return False
    depends = parse_job_dependency(view.depends)
    return depends is None or not stuck(depends, still)


def _recorded_job(view: View, record: JobRecord, seconds: float, now: float) -> RecordedJob:
    load = to_trace_job(record, seconds)
    # One that cannot be stopped begins anew whenever it has to.
    done = record.run_seconds if view.state != PENDING or not load.non_preemptible else 0.0
    request = request_of(view.request, record.last_gpus)
    left, training = max(seconds - done, 1.0), view.training
    started = cells.moment(view.started_at) - now if view.started_at else None
    return RecordedJob(
        **{
            name: getattr(load, name)
            for name in TraceJob.__struct_fields__
            if name != "submit_time"
        },
        submit_time=load.submit_time - now,
        id=view.id,
        label=view.label or str(view.id),
        request=request,
        dependency=view.depends,
        state=view.state,
        remaining=left,
        started_at=started,
        placement=_placement(view, request) if view.ended_at is None else None,
        reports=training is not None and training.saves,
        stated_seconds=training.expected_seconds if training is not None else None,
        measured_seconds=left - min(started or 0.0, 0.0) if _is_known(training) else None,
    )


def _is_known(training: Trained | None) -> bool:
    return training is not None and training.remaining_seconds is not None


def request_of(asked: Asked, held: int | None) -> Request:
    """What it asks for; an elastic one, what it has."""
    amount = parse_amount(asked.gpus) if asked.gpus else 0
    machines = asked.machines or 1
    if held:
        amount = max(amount, ceil(held / machines) * THOUSAND)
    ask = GpuAsk(
        amount, model=asked.model, min_vram=asked.min_vram, memory=asked.gpu_memory,
        only=asked.use_gpus, avoid=asked.avoid_gpus, beside=asked.gpu_memory is not None,
    )  # fmt: skip
    return Request(
        gpus=ask if amount else None,
        cpus=parse_amount(asked.cpus) if asked.cpus else 0,
        memory=asked.memory or 0,
        named=tuple(sorted((name, parse_amount(text)) for name, text in asked.resources.items())),
        exclusive=asked.exclusive,
        nodes=asked.nodelist,
        not_nodes=asked.not_nodes,
        machines=machines,
    )


def _placement(view: View, request: Request) -> Placement | None:
    """Where it runs, if it does."""
    if view.state == PENDING or view.node is None:
        return None
    parts = view.parts or [Part(view.node, view.devices)]
    placed = [Placement(part.node, _allocations(part.devices, request)) for part in parts]
    return Placement(placed[0].node, placed[0].takes, tuple(placed[1:]))


def _allocations(devices: dict[str, list[str]], request: Request) -> tuple[Take, ...]:
    amounts = {CPU: request.cpus, MEMORY: request.memory, **dict(request.named)}
    takes = []
    for type, names in devices.items():
        left = amounts.get(type, 0)
        for name in names:
            if type == GPU:
                takes.append(_gpu_allocation(name, request.gpus))
                continue
            takes.append(Take(type, name, left if len(names) == 1 else min(left, THOUSAND)))
            left -= takes[-1].amount
    return tuple(takes)


def _gpu_allocation(name: str, ask: GpuAsk | None) -> Take:
    if ask is None:
        return Take(GPU, name, THOUSAND)
    if ask.beside and ask.memory:
        return Take(GPU, name, SLIVER, ask.memory)
    return Take(GPU, name, min(ask.amount, THOUSAND))


def parse_job_dependency(text: str | None) -> Dependency | None:
    """What a job waits for, by the ids of jobs."""
    if not text:
        return None
    try:
        return parse_dependency(text, lambda word: [int(word)] if word.isdecimal() else [], list)
    except BadValue:
        return None


def dependency_of(text: str | None, known: dict[int, int]) -> Dependency | None:
    """What a job waits for, by the numbers that jobs have in a replay; what is over is met."""
    found = parse_job_dependency(text)
    if found is None:
        return None
    clauses = []
    for clause in found.clauses:
        jobs = tuple(known[job] for job in clause.jobs if job in known)
        if jobs and clause.kind in ("afterok", "afterany") and not clause.delay:
            clauses.append(msgspec.structs.replace(clause, jobs=jobs))
        elif found.any:
            return None
    return msgspec.structs.replace(found, clauses=tuple(clauses)) if clauses else None
