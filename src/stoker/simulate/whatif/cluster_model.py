"""ClusterModel and RecordedJob: nodes, queues and jobs as the daemon describes them."""

from __future__ import annotations

from math import ceil

import msgspec
from msgspec import Struct

from stoker.core.cluster import SLIVER, DeviceFacts, NodeFacts, Placement, Take
from stoker.core.dependency import Dependency, parse_dependency, stuck
from stoker.core.events import QueueDefined
from stoker.core.request import CPU, GPU, MEMORY, GpuAsk, Request
from stoker.core.units import THOUSAND, BadValue, parse_amount
from stoker.schema.job import JobView, PartView, RequestView
from stoker.schema.training import TrainingView
from stoker.simulate.traces import field_parsers
from stoker.simulate.traces.formats import stoker_history
from stoker.simulate.traces.stoker_jobs import DurationEstimator, JobRecord, to_trace_job
from stoker.simulate.whatif.api_views import Facts
from stoker.simulate.workload import TraceJob

PENDING, SUSPENDED = "PENDING", "SUSPENDED"


class RecordedJob(TraceJob, kw_only=True, gc=False):
    """A job of the daemon."""

    id: int
    label: str
    request: Request
    dependency: str | None = None
    state: str = ""
    remaining: float
    """Remaining seconds."""
    started_at: float | None = None
    placement: Placement | None = None
    reports: bool = False
    """The job reports epochs."""
    stated_seconds: float | None = None
    """Duration stated by the user."""
    measured_seconds: float | None = None
    """Duration of the current attempt by its measured epochs."""


class ClusterModel(Struct, kw_only=True):
    """Nodes, queues and policies, current or changed."""

    nodes: list[NodeFacts]
    queues: list[QueueDefined]
    policies: dict[str, tuple[str, dict[str, float]]]


def cluster_from_facts(facts: Facts) -> ClusterModel:
    """Return the current cluster."""
    queues = [
        QueueDefined(
            at=0.0, name=each.name, max_running=each.max_running,
            max_gpus=parse_amount(each.max_gpus) if each.max_gpus else None,
            priority=each.priority, strict=each.strict, devices=tuple(each.devices),
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
    """Return the reachable nodes without drained devices."""
    nodes = []
    for view in facts.nodes:
        if view.state in ("unreachable", "connecting"):
            continue
        types: dict[str, tuple[DeviceFacts, ...]] = {}
        for type, held in view.resources.items():
            if type == GPU:
                continue
            whole = int(held.total) if type == MEMORY else parse_amount(held.total)
            share = whole // max(len(held.devices), 1)
            types[type] = tuple(DeviceFacts(name, share) for name in held.devices)
        cards = [card for card in facts.gpus if card.node == view.name and card.drained is None]
        if cards:
            types[GPU] = tuple(
                DeviceFacts(card.id, index=card.index, model=card.model, memory=card.memory)
                for card in cards
            )
        nodes.append(NodeFacts(view.name, types))
    return nodes


def jobs_from_facts(facts: Facts) -> tuple[list[RecordedJob], list[RecordedJob], list[str]]:
    """Return all jobs by submit time, the unfinished ones, and notes."""
    views = {each.id: each for each in (*facts.history, *facts.queue)}
    records = [(view, stoker_history.record_of(view)) for view in views.values()]
    durations = DurationEstimator([record for _, record in records])
    jobs, live = [], []
    blocked: set[int] = set()
    never_ran = estimated = paused = 0
    for view, record in sorted(records, key=lambda each: (each[1].submitted_at, each[0].id)):
        if record.is_finished and not record.run_seconds:
            never_ran += 1
            continue
        seconds = record.run_seconds if record.is_finished else durations.seconds(record)
        if not record.is_finished and record.time_limit:
            seconds = max(min(seconds, float(record.time_limit)), record.run_seconds + 1)
        estimated += not record.is_finished
        paused += view.state == SUSPENDED
        job = _recorded_job(view, record, seconds, facts.now)
        if not record.is_finished and not _can_start(view, facts.now, blocked):
            blocked.add(view.id)
            continue
        jobs.append(job)
        if not record.is_finished:
            live.append(job)
    notes = []
    if estimated:
        notes.append(
            f"{_jobs(estimated)} not finished: durations are estimated from epochs, jobs of the"
            " same name or time limits."
        )
    if paused:
        notes.append(f"{_jobs(paused)} paused: assumed to resume now.")
    if never_ran:
        notes.append(f"{_jobs(never_ran)} skipped: never ran.")
    if blocked:
        notes.append(
            f"{_jobs(len(blocked))} skipped: held, before the begin time, or dependent on such"
            " jobs."
        )
    return jobs, live, notes


def _jobs(count: int) -> str:
    return f"{count:,} job{'s' * (count != 1)}"


def _can_start(view: JobView[str], now: float, blocked: set[int]) -> bool:
    """Return True if a job waits only for resources or for jobs that will run."""
    if view.state != PENDING:
        return True
    if view.reason is not None and view.reason.startswith("JobHeld"):
        return False
    if view.begin_at is not None and field_parsers.moment(view.begin_at) > now:
        return False
    depends = parse_job_dependency(view.depends)
    return depends is None or not stuck(depends, blocked)


def _recorded_job(view: JobView[str], record: JobRecord, seconds: float, now: float) -> RecordedJob:
    trace_job = to_trace_job(record, seconds)
    # A non-preemptible job restarts from zero.
    done = record.run_seconds if view.state != PENDING or not trace_job.non_preemptible else 0.0
    request = request_of(view.request, record.last_gpus)
    left, training = max(seconds - done, 1.0), view.training
    started = field_parsers.moment(view.started_at) - now if view.started_at else None
    return RecordedJob(
        **{
            name: getattr(trace_job, name)
            for name in TraceJob.__struct_fields__
            if name != "submit_time"
        },
        submit_time=trace_job.submit_time - now,
        id=view.id,
        label=view.label or str(view.id),
        request=request,
        dependency=view.depends,
        state=view.state,
        remaining=left,
        started_at=started,
        placement=_placement(view, request) if view.ended_at is None else None,
        reports=stoker_history.counts_epochs(training),
        stated_seconds=training.expected_seconds if training is not None else None,
        measured_seconds=left - min(started or 0.0, 0.0) if _is_known(training) else None,
    )


def _is_known(training: TrainingView | None) -> bool:
    return training is not None and training.remaining_seconds is not None


def request_of(asked: RequestView, held: int | None) -> Request:
    """Return the request of a job; of an elastic job with the GPUs it has."""
    amount = parse_amount(asked.gpus) if asked.gpus else 0
    machines = asked.machines or 1
    if held:
        amount = max(amount, ceil(held / machines) * THOUSAND)
    ask = GpuAsk(
        amount, model=asked.model, min_vram=asked.min_vram, memory=asked.gpu_memory,
        only=tuple(asked.use_gpus), avoid=tuple(asked.avoid_gpus),
        beside=asked.gpu_memory is not None,
    )  # fmt: skip
    return Request(
        gpus=ask if amount else None,
        cpus=parse_amount(asked.cpus) if asked.cpus else 0,
        memory=asked.memory or 0,
        named=tuple(sorted((name, parse_amount(text)) for name, text in asked.resources.items())),
        exclusive=asked.exclusive,
        nodes=tuple(asked.nodelist),
        not_nodes=tuple(asked.not_nodes),
        machines=machines,
    )


def _placement(view: JobView[str], request: Request) -> Placement | None:
    """Return the placement of a running job."""
    if view.state == PENDING or view.node is None:
        return None
    parts = view.parts or [PartView(node=view.node, devices=view.devices)]
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
    """Parse a dependency with job ids; None if there is none or it is invalid."""
    if not text:
        return None
    try:
        return parse_dependency(text, lambda word: [int(word)] if word.isdecimal() else [], list)
    except BadValue:
        return None


def dependency_of(text: str | None, known: dict[int, int]) -> Dependency | None:
    """Return a dependency with the ids of a replay; finished jobs count as satisfied."""
    dependency = parse_job_dependency(text)
    if dependency is None:
        return None
    clauses = []
    for clause in dependency.clauses:
        jobs = tuple(known[job] for job in clause.jobs if job in known)
        if jobs and clause.kind in ("afterok", "afterany") and not clause.delay:
            clauses.append(msgspec.structs.replace(clause, jobs=jobs))
        elif dependency.any:
            return None
    return msgspec.structs.replace(dependency, clauses=tuple(clauses)) if clauses else None
