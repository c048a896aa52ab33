"""Rank and queue position of a pending job, and preemption risk of a running job, in words."""

from __future__ import annotations

from itertools import islice
from math import inf, log2

from msgspec import Struct

from stoker.core.cluster.idle import idle_cluster
from stoker.core.explain.constraints import MAX_LISTED
from stoker.core.measurement import estimator
from stoker.core.model.job import Job
from stoker.core.model.resources import GPU, Placement, ResourceRequest
from stoker.core.model.units import approximate_duration, short_number
from stoker.core.placement.capacity import capacity_test
from stoker.core.placement.infeasible import infeasibility_reason
from stoker.core.placement.request_shape import request_amounts, request_shape
from stoker.core.policies import ranking as ranks
from stoker.core.policies.policy import BackfillMode, DurationSource, QueueOrder
from stoker.core.preemption.preemptor import MAX_PREEMPTORS_PER_PASS
from stoker.core.queue.pending_queue import first_jobs
from stoker.core.state.reranking import victim_key
from stoker.core.state.state import State

MAX_CONSIDERED = 64
"""Running jobs tried, the first to end first (each costs a placement search), and jobs named."""
ORDER_TEXTS = {
    QueueOrder.ARRIVAL: "arrival",
    QueueOrder.REMAINING_TIME: "remaining time",
    QueueOrder.REMAINING_SERVICE: "remaining GPU-seconds",
    QueueOrder.ATTAINED_SERVICE: "GPU-seconds used",
    QueueOrder.FAIR_SHARE: "its user's recent usage",
}
UNMEASURED, UNDECLARED = "not measured yet", "no expected duration was given"
FROM_LIMIT, FROM_DECLARATION = "from its time limit", "from its expected duration"
MAX_EXPLAINED_OVERRUN = 1 + estimator.OVERRUN_TOLERANCE / estimator.OVERRUN
"""Share of the declared duration up to which restarts may explain that it was exceeded."""


class RankExplanation(Struct, frozen=True):
    """The value by which a policy ranks a job."""

    text: str
    seconds: float | None = None
    """Its remaining time, or its attained time, depending on the policy."""
    gpus: float | None = None
    basis: str | None = None


def explain_rank(ranking: ranks.RankingInput, at: float) -> RankExplanation:
    """Return the value by which a job is ranked."""
    policy, declared = ranking.policy, ranking.spec.expected
    gpus, used = ranks.gpus_of(ranking.spec.request), estimator.attained(ranking.job, at)
    if policy.order is QueueOrder.ATTAINED_SERVICE:
        step = sum(used * gpus >= bound for bound in policy.service_levels)
        amount = _service(used, gpus) if used else "nothing"
        text = f"{amount} so far, step {step + 1} of {len(policy.service_levels) + 1}"
        return RankExplanation(text, used, gpus, "attained")
    if policy.order not in (QueueOrder.REMAINING_TIME, QueueOrder.REMAINING_SERVICE):
        return RankExplanation("")
    left, basis = ranks.remaining_time(ranking, at).seconds, _basis(ranking, at)
    counted_gpus = gpus if policy.order is QueueOrder.REMAINING_SERVICE else None
    amount = _service(left, counted_gpus)
    text = f"{amount} left, {basis}"
    if basis == FROM_LIMIT:
        allowed = max((ranking.spec.limit or 0) - used, 0.0)
        if allowed < left:  # ranks do not distinguish very short limits
            counted = approximate_duration(left)
            text = f"{_service(allowed, counted_gpus)} left, {basis}: counted as {counted}"
            left = allowed
    elif basis == FROM_DECLARATION and declared and used > declared * MAX_EXPLAINED_OVERRUN:
        ran, expected = approximate_duration(used), approximate_duration(declared)
        text = f"{amount} left: it has run {ran}, longer than the expected {expected}"
    elif basis == UNDECLARED:
        text = f"{basis}: counted as 0"
    elif basis == UNMEASURED:
        text = f"{basis}: counted as {amount}"
        if used * gpus >= ranking.first_level:
            text += f", because it has run {approximate_duration(used)}"
    return RankExplanation(text + _aging_text(ranking, at), left, gpus, basis)


def _basis(ranking: ranks.RankingInput, at: float) -> str:
    """Return the basis of the remaining time, in words."""
    job, spec, source = ranking.job, ranking.spec, ranking.policy.durations
    if source is DurationSource.DECLARED:
        return UNDECLARED if spec.expected is None else FROM_DECLARATION
    if source is DurationSource.MEASURED:
        epochs = estimator.epochs_of(job, spec)
        if job.progress.epoch_time is not None and epochs is not None:
            return "as measured"
        likely = estimator.estimate(ranking.profiles, ranking.cluster, job, spec, at)
        if likely.epoch_seconds is not None and epochs is not None:
            return "from measurements of similar jobs"
        if likely.remaining_seconds is not None:
            return FROM_DECLARATION
    return FROM_LIMIT if spec.limit is not None else UNMEASURED


def _aging_text(ranking: ranks.RankingInput, at: float) -> str:
    """Return the aging bonus in words; empty if it is small."""
    left, waits = ranks.remaining_time(ranking, at), ranks.wait_time(ranking.job, at)
    if ranking.policy.longest_first or left.ageing == inf:
        return ""
    times = 1 + waits / (left.ageing * max(left.seconds, ranks.MIN_SECONDS))
    if times < ranking.policy.grain:  # less than a step of the rank
        return ""
    pending = approximate_duration(waits)
    return f"; reduced {short_number(times)} times because it has been pending for {pending}"


def overdue_in(ranking: ranks.RankingInput, at: float) -> float:
    """Return the seconds until a pending job is overdue; `inf` if the policy has no bound."""
    bound = ranks.starvation_bound(ranking.policy, ranks.remaining_time(ranking, at).seconds)
    return max(bound - ranks.wait_time(ranking.job, at), 0.0)


def _service(seconds: float, gpus: float | None) -> str:
    """Return a time and, with a number of GPUs, the product of both, in words."""
    if gpus is None:
        return approximate_duration(seconds)
    if gpus == 1:
        return f"{approximate_duration(seconds)} on 1 GPU"
    return f"{approximate_duration(seconds)} × {gpus_in_words(gpus)} = {_gpu_time(seconds * gpus)}"


def gpus_in_words(count: float) -> str:
    """Return `1 GPU`, `0.5 GPUs`."""
    return f"{count:g} GPU{'s' * (count != 1)}"


def _gpu_time(seconds: float) -> str:
    for unit, size in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= size * (2 if unit == "day" else 1):
            count = short_number(seconds / size)
            return f"{count} GPU-{unit}{'s' * (count != '1')}"
    return f"{short_number(seconds)} GPU-seconds"


class QueuePosition(Struct, frozen=True):
    """Position of a pending job in its queue, and what determines it."""

    policy: str
    by: str
    position: int | None
    """None: too far back to be counted."""
    of: int
    rank: RankExplanation
    overdue_in: float | None = None


class Ahead(Struct, frozen=True):
    """A job ahead in the queue, and why it is ahead."""

    label: str
    why: str


def queue_position(state: State, job: Job, position: int | None, at: float) -> QueuePosition:
    """Return the queue position of an eligible pending job."""
    ranking = state.ranking_input(job)
    policy = ranking.policy
    by = ORDER_TEXTS[policy.order] + (", largest first" if policy.longest_first else "")
    if len({job_class.priority for job_class in state.pending.classes.values()}) > 1:
        by = f"priority, then {by}"
    rank, overdue = explain_rank(ranking, at), overdue_in(ranking, at)
    return QueuePosition(
        policy.name, by, position, len(state.pending), rank, overdue if overdue < inf else None
    )


def ahead(state: State, other: Job, job: Job, at: float) -> Ahead:
    """Return why another pending job is ahead of this one."""
    return Ahead(other.label, _why_ahead(state, other, job, at))


def _why_ahead(state: State, other: Job, job: Job, at: float) -> str:
    if other.priority != job.priority:
        return f"priority {other.priority}, not {job.priority}"
    pending, ranking = state.pending, state.ranking_input(other)
    rank_text = explain_rank(ranking, at).text
    if pending.sort_key(other)[1] == pending.sort_key(job)[1]:
        text = "came first" if other.id < job.id else "was moved ahead of it"
        return f"equal, and {text}" if rank_text else text
    rank = pending.rank_of.get(other.id, 0.0)
    if rank == ranks.OVERDUE_RANK:
        return "it has been pending too long: no job may start ahead of it"
    if rank < pending.rank_of.get(job.id, 0.0):
        return rank_text or f"its queue is ordered by {ORDER_TEXTS[ranking.policy.order]}"
    return "its user has used less recently"


def can_start(state: State, job: Job, at: float) -> bool:
    """Whether the available nodes could run an eligible job if no job ran; if not, it delays none.

    In a queue of strict order, it delays all jobs behind it nevertheless.
    """
    request = state.startable_request(job, state.pending.class_of[job.id], at)
    test = idle_cluster(state.cluster).capacity_test(request_shape(request), capacity_test)
    return test(request_amounts(request))


def job_ahead(state: State, job: Job, at: float) -> Job | None:
    """Return the job that keeps an eligible one from starting; None: it only lacks resources."""
    pending, jobs, queue = state.pending, state.jobs, state.spec(job).queue
    if state.backfill_mode(queue) is BackfillMode.STRICT:
        classes = (job_class for _, job_class in pending.order if job_class.queue == queue)
        head = next((each.head for each in classes if not state.quota_reason(each)), job.id)
        if head != job.id:
            return jobs[head]
    if not can_start(state, job, at):
        return None
    first = pending.head(
        jobs, lambda each: state.quota_reason(each) or not can_start(state, jobs[each.head], at)
    )
    return first if first is not job else None


# ----------------------------------------------------------------- running jobs


def preemption_risk(state: State, job: Job, at: float, boot: float) -> tuple[str, ...]:
    """Return for which jobs a running job is, or may be, preempted."""
    stop = job.progress.stop
    if stop is not None:
        outcome = "it is requeued"
        if stop.timed_out:
            outcome = "it has not stopped, and is no longer counted on to stop"
        elif stop.resize_to is not None:
            outcome = f"it continues with {gpus_in_words(stop.resize_to)}"
        age = approximate_duration(max(boot - stop.requested_boot, 0.0))
        return (f"it was asked to stop {age} ago: {stop.reason}; {outcome}",)
    if not len(state.pending):
        return ()
    if job.id not in state.preemptible:
        if not state.preempts(job):
            return ()
        if state.spec(job).training is not None and not job.progress.accepts_stop:
            return ("it has not reported yet that it can be preempted and resumed",)
        return ("it cannot be preempted and resumed, so it keeps its resources until it ends",)
    others = first_jobs(state.pending, state.jobs, MAX_PREEMPTORS_PER_PASS)
    texts = (_preemption_text(state, job, other, at) for other in others)
    return tuple(islice((text for text in texts if text is not None), MAX_LISTED))


def _preemption_text(state: State, job: Job, other: Job, at: float) -> str | None:
    """Return why and when a running job may be preempted for another one; None if it may not."""
    job_class = state.pending.class_of[other.id]
    if state.quota_reason(job_class):
        return None
    request = state.class_request(other, job_class)
    if not frees_needed(state, job.placement, request, {GPU} if request.gpu_amount else None):
        return None
    wait = seconds_until_preemption(state, other, job, at)
    if wait is None:
        return None
    text = f"it may be preempted for job {other.label}"
    if other.priority > job.priority:
        return f"{text} (priority {other.priority}, not {job.priority})"
    text += f" ({explain_rank(state.ranking_input(other), at).text})"
    return f"{text}, not within the next {approximate_duration(wait)}" if wait > 0 else text


def frees_needed(
    state: State, placement: Placement | None, request: ResourceRequest, lacking: set[str] | None
) -> bool:
    """Whether a placement has a lacking resource type on a node that could run the request.

    `lacking` may be None: any type, or contain "exclusive": the whole node.
    """
    for part in placement.parts if placement is not None else ():
        node, held = state.cluster.nodes.get(part.node), {item.type for item in part.allocations}
        if node is None or node.unavailable_reason is not None:
            continue
        is_useful = lacking is None or "exclusive" in lacking or not held.isdisjoint(lacking)
        if is_useful and infeasibility_reason(node, request) is None:
            return True
    return False


def seconds_until_preemption(state: State, preemptor: Job, running: Job, at: float) -> float | None:
    """Return in how many seconds a pending job may preempt a running one; None: never."""
    if preemptor.priority != running.priority:
        return 0.0 if preemptor.priority > running.priority else None
    policy = state.policy_of(state.spec(preemptor).queue)
    if not policy.preempts or not state.preempts(running):
        return None
    threshold = state.pending.sort_key(preemptor)[1] + log2(policy.hysteresis)
    if victim_key(state, running, at)[0][1] <= threshold:
        return None
    quantum = state.policy_of(state.spec(running).queue).quantum
    started_at = running.started_at if running.started_at is not None else at
    return max(started_at + quantum - at, 0.0)
