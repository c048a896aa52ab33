"""ClusterModel and RecordedJob: nodes, queues and jobs as the daemon describes them."""

from __future__ import annotations

from math import ceil

import msgspec
from msgspec import Struct

from stoker.core.events import LimitsSet, QueueDefined, ReservationMade
from stoker.core.model.dependency import Dependency, parse_dependency
from stoker.core.model.resources import (
    CPU,
    GPU,
    MEMORY,
    SHARED_SLOT,
    DeviceAllocation,
    DeviceFacts,
    GpuRequest,
    NodeFacts,
    Placement,
    ResourceRequest,
)
from stoker.core.model.units import THOUSAND, BadValue, parse_amount
from stoker.schema.job import JobView, PartView, RequestView
from stoker.schema.training import TrainingView
from stoker.simulate.traces import field_parsers
from stoker.simulate.traces.files import count_jobs
from stoker.simulate.traces.formats import stoker_history
from stoker.simulate.traces.stoker_jobs import (
    DurationEstimator,
    JobRecord,
    to_trace_job,
    unfinished_note,
)
from stoker.simulate.whatif.api_views import WhatIfInput
from stoker.simulate.whatif.restrictions import limits, reservations
from stoker.simulate.workload import TraceJob

PENDING, SUSPENDED = "PENDING", "SUSPENDED"


class RecordedJob(TraceJob, kw_only=True, gc=False):
    """A job of the daemon."""

    id: int
    label: str
    request: ResourceRequest
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
    restrictions: list[LimitsSet | ReservationMade] = []
    """Limits and advance reservations, in seconds from now."""


def cluster_from_input(whatif_input: WhatIfInput) -> ClusterModel:
    """Return the current cluster."""
    queues = [
        QueueDefined(
            at=0.0, name=view.name, max_running=view.max_running,
            max_gpus=parse_amount(view.max_gpus) if view.max_gpus else None,
            priority=view.priority, strict=view.strict, devices=tuple(view.devices),
        )
        for view in whatif_input.queues
    ]  # fmt: skip
    policies = {
        view.queue: (view.chosen, view.changed)
        for view in whatif_input.policies
        if view.own or view.queue == "*"
    }
    return ClusterModel(
        nodes=_nodes_from_input(whatif_input), queues=queues, policies=policies,
        restrictions=[*limits(whatif_input), *reservations(whatif_input)],
    )  # fmt: skip


def _nodes_from_input(whatif_input: WhatIfInput) -> list[NodeFacts]:
    """Return the reachable nodes without drained devices."""
    nodes = []
    for view in whatif_input.nodes:
        if view.state in ("unreachable", "connecting"):
            continue
        types: dict[str, tuple[DeviceFacts, ...]] = {}
        for type, held in view.resources.items():
            if type == GPU:
                continue
            total = int(held.total) if type == MEMORY else parse_amount(held.total)
            share = total // max(len(held.devices), 1)
            types[type] = tuple(DeviceFacts(name, share) for name in held.devices)
        cards = [
            card for card in whatif_input.gpus if card.node == view.name and card.drained is None
        ]
        if cards:
            types[GPU] = tuple(
                DeviceFacts(card.id, index=card.index, model=card.model, memory=card.memory)
                for card in cards
            )
        end = view.allocation.end if view.allocation is not None else None
        ends_at = field_parsers.moment(end) - whatif_input.now if end is not None else None
        nodes.append(NodeFacts(view.name, types, ends_at=ends_at))
    return nodes


def jobs_from_input(
    whatif_input: WhatIfInput,
) -> tuple[list[RecordedJob], list[RecordedJob], list[str]]:
    """Return all jobs by submit time, the unfinished ones, and notes."""
    views = {pair.id: pair for pair in (*whatif_input.history, *whatif_input.queue)}
    records = [(view, stoker_history.record_of(view)) for view in views.values()]
    durations = DurationEstimator([record for _, record in records])
    jobs, live = [], []
    blocked: set[int] = set()
    never_ran = estimated = paused = 0
    for view, record in sorted(records, key=lambda pair: (pair[1].submitted_at, pair[0].id)):
        if record.is_finished and not record.run_seconds:
            never_ran += 1
            continue
        seconds = record.run_seconds if record.is_finished else durations.seconds(record)
        if not record.is_finished and record.time_limit:
            seconds = max(min(seconds, float(record.time_limit)), record.run_seconds + 1)
        estimated += not record.is_finished
        paused += view.state == SUSPENDED
        job = _recorded_job(view, record, seconds, whatif_input.now)
        if not record.is_finished and not _can_start(view, whatif_input.now, blocked):
            blocked.add(view.id)
            continue
        jobs.append(job)
        if not record.is_finished:
            live.append(job)
    notes = []
    if estimated:
        notes.append(unfinished_note(estimated))
    if paused:
        notes.append(f"{count_jobs(paused)} paused: assumed to resume now.")
    if never_ran:
        notes.append(f"{count_jobs(never_ran)} skipped: never ran.")
    if blocked:
        notes.append(
            f"{count_jobs(len(blocked))} skipped: held, before the begin time, or dependent on such"
            " jobs."
        )
    return jobs, live, notes


def _can_start(view: JobView[str], now: float, blocked: set[int]) -> bool:
    """Return True if a job waits only for resources or for jobs that will run."""
    if view.state != PENDING:
        return True
    if view.reason is not None and view.reason.startswith("JobHeld"):
        return False
    if view.begin_at is not None and field_parsers.moment(view.begin_at) > now:
        return False
    depends = parse_job_dependency(view.depends)
    return depends is None or not depends.stays_open(blocked)


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


def request_of(request_view: RequestView, held: int | None) -> ResourceRequest:
    """Return the request of a job; of an elastic job with the GPUs it has."""
    amount = parse_amount(request_view.gpus) if request_view.gpus else 0
    machines = request_view.machines or 1
    if held:
        amount = max(amount, ceil(held / machines) * THOUSAND)
    gpu_request = GpuRequest(
        amount, model=request_view.model, min_vram=request_view.min_vram,
        memory=request_view.gpu_memory,
        required=tuple(request_view.use_gpus), avoid=tuple(request_view.avoid_gpus),
        shareable=request_view.gpu_memory is not None,
    )  # fmt: skip
    return ResourceRequest(
        gpus=gpu_request if amount else None,
        cpus=parse_amount(request_view.cpus) if request_view.cpus else 0,
        memory=request_view.memory or 0,
        named=tuple(
            sorted((name, parse_amount(text)) for name, text in request_view.resources.items())
        ),
        exclusive=request_view.exclusive,
        nodes=tuple(request_view.nodelist),
        not_nodes=tuple(request_view.not_nodes),
        node_count=machines,
    )


def _placement(view: JobView[str], request: ResourceRequest) -> Placement | None:
    """Return the placement of a running job."""
    if view.state == PENDING or view.node is None:
        return None
    parts = view.parts or [PartView(node=view.node, devices=view.devices)]
    placed = [Placement(part.node, _allocations(part.devices, request)) for part in parts]
    return Placement(placed[0].node, placed[0].allocations, tuple(placed[1:]))


def _allocations(
    devices: dict[str, list[str]], request: ResourceRequest
) -> tuple[DeviceAllocation, ...]:
    amounts = {CPU: request.cpus, MEMORY: request.memory, **dict(request.named)}
    takes = []
    for type, names in devices.items():
        left = amounts.get(type, 0)
        for name in names:
            if type == GPU:
                takes.append(_gpu_allocation(name, request.gpus))
                continue
            takes.append(
                DeviceAllocation(type, name, left if len(names) == 1 else min(left, THOUSAND))
            )
            left -= takes[-1].amount
    return tuple(takes)


def _gpu_allocation(name: str, gpu_request: GpuRequest | None) -> DeviceAllocation:
    if gpu_request is None:
        return DeviceAllocation(GPU, name, THOUSAND)
    if gpu_request.shareable and gpu_request.memory:
        return DeviceAllocation(GPU, name, SHARED_SLOT, gpu_request.memory)
    return DeviceAllocation(GPU, name, min(gpu_request.amount, THOUSAND))


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
