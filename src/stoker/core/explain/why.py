"""Why a job is pending: the short reason of lists, and the full explanation."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.explain import constraints, position
from stoker.core.explain.forecast import MAX_PENDING_JOBS
from stoker.core.explain.unblock import EndEstimate, unblocks
from stoker.core.measurement.estimator import estimate, hardware
from stoker.core.model.dependency import DependencyStatus
from stoker.core.model.job import Job, JobState, StopRequest
from stoker.core.model.resources import GPU, ResourceRequest, describe
from stoker.core.model.units import approximate_duration, format_duration
from stoker.core.placement.infeasible import infeasibility_reason, max_parts
from stoker.core.placement.placer import find_placement
from stoker.core.queue.job_class import JobClass
from stoker.core.queue.pending_queue import first_jobs
from stoker.core.state.eligibility import dependency_status_of
from stoker.core.state.record import NOT_REACHED_YET
from stoker.core.state.state import State

MIN_QUEUED_SECONDS = 60.0
"""Time in the queue of another scheduler after which it is shown."""


LIMIT_CODES = {
    "max_gpus": "AssocGrpGRES",
    "max_running": "AssocGrpJobsLimit",
    "max_job_gpus": "AssocMaxGRESPerJob",
    "max_time": "AssocMaxWallDurationPerJobLimit",
    "gpu_hours": "AssocGrpGRESMinutes",
    "gpu_memory": "AssocGrpMemLimit",
}
"""Slurm's words for limits of users, groups and queues."""


class Explanation(Struct, frozen=True):
    """Why a job is in its state, and what would let it start."""

    reason: str | None
    text: str
    ahead_labels: tuple[str, ...] = ()
    nodes: tuple[constraints.NodeView, ...] = ()
    pending_preemptions: tuple[str, ...] = ()
    """Running jobs that stop for it, and when, in words."""
    queue_position: position.QueuePosition | None = None
    """Its position in the queue, and what determines it."""
    ahead: tuple[position.Ahead, ...] = ()
    """The first jobs ahead of it, each with the reason."""
    unblocks: tuple[str, ...] = ()
    """What would let it start."""
    preemption_risk: tuple[str, ...] = ()
    """Of a running job: for which jobs it is, or may be, preempted."""


def reason(state: State, job: Job, now: float) -> tuple[str | None, str | None]:
    """Return the reason as Slurm's word and a phrase; cheap enough for every row of a list."""
    if job.state is not JobState.PENDING:
        return _not_running(state, job, now)
    status, others, wake = dependency_status_of(state, job, now)
    listed = ", ".join(str(other) for other in others[:5])
    if status is DependencyStatus.NEVER:
        never = f"job {listed} cannot end in the state that the dependency requires"
        return "DependencyNeverSatisfied", never
    if status is DependencyStatus.OPEN and wake is not None:
        return "Dependency", f"begins {format_duration(wake - now)} from now, after job {listed}"
    if status is DependencyStatus.OPEN:
        return "Dependency", f"waits for job{'s' * (len(others) > 1)} {listed}"
    if job.held:
        return "JobHeldUser", f"held; stoker release {job.label}"
    if job.begin_at is not None:
        what, note = ("tries again", job.note) if job.attempt else ("begins", None)
        when = f"{what} in {format_duration(max(job.begin_at - now, 0))}"
        return "BeginTime", f"{when}: {note}" if note else when
    job_class = state.pending.class_of.get(job.id)
    if job_class is None:
        return "Priority", "waiting for its turn"
    limit = state.quota_reason(job_class)
    if limit:
        return _limit_code(state, job_class, limit), limit
    request = state.class_request(job, job_class)
    if request.nodes and not {*state.cluster.nodes, *state.record.remotes} & {*request.nodes}:
        gone = ", ".join(request.nodes)
        return "ReqNodeNotAvail", f"{gone} was removed; stoker edit {job.label} -w NODE"
    if state.record.unreachable and (text := _unreachable_text(state, request, now)):
        return "NodeUnreachable", text
    if text := _allocation_text(state, job, request):
        return "Resources", text
    first = position.job_ahead(state, job, now)
    if first is not None and not position.can_start(state, first, now):
        which = "which no available node can run and which blocks its queue"
        return "Priority", f"behind job {first.label}, {which}"
    if find_placement(state.cluster, request) is not None:
        return _fitting_reason(state, job, request, now)
    if first is None:
        return "Resources", f"needs {describe(request)}"
    return "Priority", f"behind job {first.label}"


def _limit_code(state: State, job_class: JobClass, text: str) -> str:
    """Return Slurm's word for the limit that keeps a class from starting."""
    hit = state.quotas.limit_hit(job_class)
    if hit is not None and hit.text == text:
        return LIMIT_CODES[hit.limit]
    return "JobArrayTaskLimit" if job_class.array else "QOSMaxJobsLimit"


def _allocation_text(state: State, job: Job, request: ResourceRequest) -> str | None:
    """Return which allocation a job waits for, or that those of a cluster are too short for it."""
    for name, added in state.record.remotes.items():
        cluster = state.cluster.nodes.get(added.cluster or "")
        if cluster is None or name not in state.record.unreachable or name in state.cluster.nodes:
            continue
        if infeasibility_reason(cluster, request) is None:
            return constraints.allocation_text(state, job, cluster)
    for name, cluster in state.cluster.nodes.items():
        if cluster.on_demand and (text := constraints.limit_text(state, job, name)) is not None:
            others = (node for node in state.cluster.nodes.values() if node is not cluster)
            if not any(infeasibility_reason(node, request) is None for node in others):
                return text
    return None


def _fitting_reason(
    state: State, job: Job, request: ResourceRequest, now: float
) -> tuple[str, str]:
    """Return the reason of a job for which devices are free."""
    if find_placement(state.cluster, state.within_horizon(job, request, now)) is not None:
        return "Priority", "the free devices are reserved for a job ahead of it"
    if text := constraints.reserved_text(state, job, now):
        return "Reservation", text
    texts = (constraints.end_text(state, job, name, now) for name in state.cluster.node_ends)
    return "Resources", "; ".join([*filter(None, texts)][: constraints.MAX_LISTED])


def unreachable_since(state: State, job: Job) -> dict[str, float]:
    """Return the unreachable nodes of a running job, and since when."""
    since = _since_when(state)
    return {part.node: since[part.node] for part in job.parts if part.node in since}


def _since_when(state: State) -> dict[str, float]:
    """Return since when nodes have been unreachable that were reached before."""
    entries = state.record.unreachable.items()
    return {name: entry.since for name, entry in entries if entry.reason != NOT_REACHED_YET}


def _unreachable_text(state: State, request: ResourceRequest, now: float) -> str | None:
    """Return the unreachable nodes that a job waits for, if too few others could run it."""
    parts = {node.name: max_parts(node, request) for node in state.cluster.nodes.values()}
    since_when = _since_when(state)
    unreachable = [name for name in parts if parts[name] and name in since_when]
    able = sum(parts[name] for name in parts if name not in unreachable)
    if not unreachable or able >= request.node_count:
        return None
    since = min(since_when[name] for name in unreachable)
    listed = ", ".join(unreachable[:3]) + (" and others" if len(unreachable) > 3 else "")
    return f"waits for {listed}, unreachable for {format_duration(max(now - since, 0))}"


def _not_running(state: State, job: Job, now: float) -> tuple[str | None, str | None]:
    """Return what keeps a placed job from running: the queue of its node, or no answer."""
    unreachable = unreachable_since(state, job)
    if not unreachable and job.state is JobState.QUEUED and job.placement is not None:
        details = [": ".join(filter(None, (job.external_id, job.note)))]
        if job.queue_start is not None and job.queue_start > now:
            details.append(f"expected start in {approximate_duration(job.queue_start - now)}")
        if job.allocated_at is not None and now - job.allocated_at >= MIN_QUEUED_SECONDS:
            details.append(f"handed over {approximate_duration(now - job.allocated_at)} ago")
        text = "; ".join(filter(None, details))
        return "Queued", f"queued on {job.placement.node}" + (f" ({text})" if text else "")
    if not unreachable:
        return None, None
    texts = [
        f"{name} has been unreachable for {format_duration(max(now - since, 0))}"
        f" ({state.record.unreachable[name].reason})"
        for name, since in unreachable.items()
    ]
    return "NodeUnreachable", "; ".join(texts)


def explain_job(state: State, job: Job, at: float, boot: float, ends: EndEstimate) -> Explanation:
    """Return the full explanation of a job."""
    code, phrase = reason(state, job, at)
    if job.state is not JobState.PENDING:
        text = _not_pending_text(job, phrase, list(unreachable_since(state, job)))
        risk = position.preemption_risk(state, job, at, boot) if job.holding else ()
        return Explanation(code, text, preemption_risk=risk)
    request = state.effective_request(job, state.spec(job))
    nodes = constraints.node_constraints(state, job, request, at, boot)
    unmet = [constraint for node in nodes for constraint in node.constraints]
    lacking = {GPU if constraint.name == "gpus" else constraint.name for constraint in unmet}
    explanation = Explanation(
        code, phrase or "", nodes=nodes, pending_preemptions=_pending_preemptions(state, job, at),
        unblocks=unblocks(state, job, lacking, at, boot, ends),
    )  # fmt: skip
    if code not in ("Resources", "Priority", "NodeUnreachable") or job.id not in state.pending:
        return explanation
    queue = first_jobs(state.pending, state.jobs, MAX_PENDING_JOBS)
    place = next((n for n, other in enumerate(queue, 1) if other.id == job.id), None)
    others = queue[: place - 1] if place else queue
    labels = tuple(other.label for other in others) if place else ()
    text = f"needs {describe(request)}"
    if unmet:
        text += "; " + "; ".join(constraint.text for constraint in unmet[: constraints.MAX_LISTED])
    elif code == "Priority":
        text += f"; {phrase}"
    if labels:
        text += f"; {len(labels)} ahead of it"
    ahead = [position.ahead(state, other, job, at) for other in others[: constraints.MAX_LISTED]]
    return replace(
        explanation, text=text, ahead_labels=labels[:position.MAX_CONSIDERED], ahead=tuple(ahead),
        queue_position=position.queue_position(state, job, place, at),
    )  # fmt: skip


def _pending_preemptions(state: State, job: Job, at: float) -> tuple[str, ...]:
    """Return the jobs that stop for this job, and when, in words."""
    stops = ((other, other.progress.stop) for _, other in sorted(state.stopping.items()))
    return tuple(
        f"job {other.label} {_stop_progress(state, other, stop, at)}"
        for other, stop in stops
        if stop is not None and stop.preemptor == job.id
    )


def _stop_progress(state: State, job: Job, stop: StopRequest, at: float) -> str:
    """Return when a job that was requested to stop should stop, in words."""
    if job.state is JobState.COMPLETING:
        return "is ending"
    if stop.timed_out:
        return "was asked to stop for this job but has not stopped"
    if job.state is JobState.SUSPENDED:
        return "is paused; it stops for this job when it is resumed"
    if not job.progress.accepts_stop:
        return "was asked to stop for this job"
    text, when = "stops for this job at the end of its epoch", "about"
    if job.placement is not None and hardware(state.cluster, job.placement)[0] > 1:
        # Its processes must agree where they stop: if few steps are left, after the next epoch.
        text, when = f"{text}, or of the next", "at the earliest in about"
    likely = estimate(state.record.profiles, state.cluster, job, state.spec(job), at)
    started_at = job.progress.epoch_started_at
    if likely.epoch_seconds is not None and started_at is not None:
        left = likely.epoch_seconds - max(at - started_at, 0.0)
        text += f", {when} {approximate_duration(left)}" if left > 0 else ", any moment"
    return text


def how_it_ended(job: Job) -> str:
    """Return the cause of the end; empty if the state is sufficient."""
    return "" if job.state is JobState.COMPLETED and job.cause == "done" else job.cause or ""


def _not_pending_text(job: Job, phrase: str | None, unreachable: list[str]) -> str:
    """Return the state of a job that is not pending; `phrase` is why it does not run."""
    if job.finished:
        return how_it_ended(job)
    if phrase is None and job.state is JobState.SUSPENDED:
        return f"it is paused; to continue it: stoker resume {job.label}"
    if phrase is None:
        return "it is not waiting for anything"
    if not unreachable:
        return phrase
    they_answer = f"{' and '.join(unreachable)} answer{'s' * (len(unreachable) == 1)}"
    give_up = f"stoker nodes remove {' '.join(unreachable)} --force"
    if job.state is JobState.COMPLETING:
        return f"{phrase}; it ends when {they_answer}. To abandon it now: {give_up}"
    return (
        f"{phrase}; whether it runs is known when {they_answer}; until then it keeps its resources."
        f" To run it on another node, abandon it with {give_up}, then stoker retry {job.label};"
        " or submit with --if-unreachable restart:1h"
    )
