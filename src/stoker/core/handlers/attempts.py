"""Handlers of an attempt: planned, started, ended, and what follows for its job."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.events.instructions import (
    Instructions,
    RunJobEndHook,
    RunQueueEmptyHook,
    StartProcess,
    TerminateAttempt,
)
from stoker.core.handlers import learning
from stoker.core.handlers.outcome import (
    AttemptOutcome,
    after_exit,
    after_loss,
    forced_outcome,
    is_still_saving,
)
from stoker.core.model.hardware import Placement
from stoker.core.model.job import Job, PartEnd, PastAttempt
from stoker.core.model.lifecycle import FAILED_STATES, JobState, check_transition
from stoker.core.model.sweep import trial_status
from stoker.core.state.eligibility import (
    unlink_dependency,
    update_dependents,
    update_eligibility,
)
from stoker.core.state.node_updates import count_in_flight, count_out
from stoker.core.state.reranking import (
    charge_end,
    charge_start,
    check_preemption_after_rerank,
    requeue_all,
    update_preemptible,
)
from stoker.core.state.state import State
from stoker.core.state.sweep_boards import (
    sweep_of,
    update_best,
    update_counts,
    update_sweep_finished,
)
from stoker.core.state.timers import set_deadline

MISSING_DEVICE_RETRY_SECONDS = 300.0
"""Seconds after which a node that could not run a container is tried again."""
KEEP_PAST_ATTEMPTS = 20
"""Ended attempts kept per job: enough to show, and bounded for jobs that are often requeued."""


def on_attempt_planned(state: State, event: e.AttemptPlanned) -> Instructions:
    """Allocate the devices of a planned attempt and start it."""
    job = state.jobs[event.job]
    _begin(state, job, event.placement, event.boot)
    return [StartProcess(job.id, event.attempt, event.placement)]


def _begin(state: State, job: Job, placement: Placement, boot: float) -> None:
    """Allocate devices for the current attempt of a job."""
    state.pending.remove(job)
    state.allocate(job, placement)
    transition(state, job, JobState.CONFIGURING)
    job.pid = job.external_id = None
    job.hosts = job.devices = ()
    job.started_at, job.started_boot = None, boot
    count_in_flight(state, job)
    job.code = job.signal = job.cause = job.note = job.ended_at = None
    job.ends = ()
    job.ending, job.slack, job.paused_boot, job.warned = None, 0.0, None, False
    if any(allocation.is_shared for allocation in placement.allocations):
        learning.mark_shared(state, job)


def on_attempt_recovered(state: State, event: e.AttemptRecovered) -> Instructions:
    """Set a job to an attempt that runs and that the journal does not have."""
    job = state.jobs.get(event.job)
    if job is None or event.attempt < job.attempt + (job.holding or job.finished):
        return []
    if job.holding:  # that attempt has ended, since there is a later one
        charge_end(state, job, event.at)
        _release(state, job)
    if job.state is not JobState.PENDING:
        transition(state, job, JobState.PENDING)
    job.attempt, job.seen = event.attempt, False
    _begin(state, job, event.placement, event.boot)
    return []


def on_attempt_queued(state: State, job: Job, event: e.AttemptQueued) -> Instructions:
    """Note that an attempt is pending in another scheduler's queue; its limits do not run yet."""
    if job.started_at is not None:
        return []
    job.external_id = event.external_id
    if job.state is JobState.CONFIGURING:
        transition(state, job, JobState.QUEUED)
    state.changes.job(job.id)
    return []


def on_process_started(state: State, job: Job, event: e.ProcessStarted) -> Instructions:
    """Note that an attempt runs; of a gang, that its first process runs."""
    if event.part == 0:
        job.pid = event.pid
        state.changes.job(job.id)
    if job.started_at is not None:
        return []
    if event.part is None:
        job.pid = event.pid
    job.started_at, job.started_boot = event.at, event.boot
    job.external_id = event.external_id or job.external_id
    job.hosts, job.devices = event.hosts, event.devices
    count_in_flight(state, job)
    charge_start(state, job)
    if job.state in (JobState.CONFIGURING, JobState.QUEUED):
        transition(state, job, JobState.RUNNING)
    update_preemptible(state, job, event.at)
    if job.id in state.preemptible:
        check_preemption_after_rerank(state, job)
    state.changes.job(job.id)
    update_dependents(state, job.id, event.at)
    return []


def on_process_exited(state: State, job: Job, event: e.ProcessExited) -> Instructions:
    """Decide what becomes of a job after its process tree ended."""
    if event.part is not None:
        end = PartEnd(
            event.part, event.code, event.signal, event.memory, note=event.note,
            stopped=event.stopped, failed=event.lacks,
        )  # fmt: skip
        return end_part(state, job, end, event.at)
    return _exited(state, job, event)


def _exited(state: State, job: Job, event: e.ProcessExited) -> Instructions:
    runtime = event.at - job.started_at if job.started_at is not None else 0.0
    outcome = after_exit(job, state.spec(job), event, runtime)
    if outcome.state is JobState.OUT_OF_MEMORY and event.memory == "cuda":
        outcome = learning.oom_outcome(state, job, event.at) or outcome
    if outcome.state is JobState.FAILED and event.lacks is not None and job.placement is not None:
        outcome = _retry_elsewhere(state, job, event.lacks, job.placement.node, event.at) or outcome
    job.code, job.signal = event.code, event.signal
    # While it is pending again, its note says what the node is missing.
    job.note = outcome.cause if outcome.again and event.lacks is not None else event.note
    return conclude(state, job, outcome, event.at)


def _retry_elsewhere(
    state: State, job: Job, missing: str, node: str, at: float
) -> AttemptOutcome | None:
    """Return the outcome of a container that a node cannot run: another node, or a later retry.

    None if there is only one node: then it fails.
    """
    container = state.spec(job).container
    if container is None or len(state.record.nodes) < 2:
        return None
    state.record.missing_devices.setdefault(container.image, {})[node] = at
    state.changes.record()
    delay = 0.0
    if node not in state.effective_request(job, state.spec(job)).not_nodes:
        del state.record.missing_devices[container.image]  # no node can run it: try all again
        delay = MISSING_DEVICE_RETRY_SECONDS
    requeue_all(state, None, at)
    return AttemptOutcome(
        JobState.FAILED, f"{node}: {missing}", again=True, delay=delay, preempted=True
    )


def on_attempt_lost(state: State, job: Job, event: e.AttemptLost) -> Instructions:
    """Apply the retry rule to an attempt that ended without an exit code."""
    if event.with_files:
        learning.discard_unsaved(job)
    if event.part is not None:
        end = PartEnd(event.part, lost=event.why, preempted=event.preempted)
        return end_part(state, job, end, event.at)
    outcome = after_loss(job, state.spec(job), event.why, event.preempted)
    return conclude(state, job, outcome, event.at)


def end_part(state: State, job: Job, end: PartEnd, at: float) -> Instructions:
    """Note the end of one part of a gang; terminate the others unless it ended well."""
    if job.placement is None or any(part_end.part == end.part for part_end in job.ends):
        return []
    job.ends = (*job.ends, end)
    state.changes.job(job.id)
    if len(job.ends) < len(job.placement.parts):
        if end.is_success or job.state is JobState.COMPLETING or is_still_saving(job, end):
            return []
        return terminate(state, job, job.ending)
    decisive = next((part_end for part_end in job.ends if not part_end.is_success), end)
    decisive = next((part_end for part_end in job.ends if part_end.stopped), decisive)
    node = job.placement.parts[decisive.part].node
    if decisive.away:
        reason = f"{node} was unreachable"
        outcome = forced_outcome(job) or AttemptOutcome(
            JobState.NODE_FAIL, f"lost: {reason}", again=True
        )
        return conclude(state, job, outcome, at)
    if decisive.lost is not None:
        reason = f"{decisive.lost} ({node})"
        outcome = after_loss(job, state.spec(job), reason, decisive.preempted)
        return conclude(state, job, outcome, at)
    if decisive.failed is not None:
        outcome = forced_outcome(job) or AttemptOutcome(
            JobState.FAILED, f"{decisive.failed} ({node})"
        )
        if outcome.state is JobState.FAILED and decisive.code is not None:
            outcome = _retry_elsewhere(state, job, decisive.failed, node, at) or outcome
        return conclude(state, job, outcome, at)
    notes = [] if decisive.is_success else [f"its part {decisive.part} on {node} ended first"]
    parts = job.placement.parts
    notes += [
        f"{part_end.note} ({parts[part_end.part].node})" for part_end in job.ends if part_end.note
    ]
    return _exited(
        state,
        job,
        e.ProcessExited(
            at=at, job=job.id, attempt=job.attempt, code=decisive.code, signal=decisive.signal,
            memory=decisive.memory, note="; ".join(notes) or None, stopped=decisive.stopped,
        ),
    )  # fmt: skip


def on_start_failed(state: State, job: Job, event: e.StartFailed) -> Instructions:
    """Fail a job that could not be started; a retry would fail in the same way."""
    if event.part is not None:
        return end_part(state, job, PartEnd(event.part, failed=event.why), event.at)
    outcome = forced_outcome(job) or AttemptOutcome(JobState.FAILED, event.why)
    return conclude(state, job, outcome, event.at)


def on_start_cancelled(state: State, job: Job, event: e.StartCancelled) -> Instructions:
    """Requeue a job after its start was cancelled, with its old rank and after a delay if given."""
    outcome = forced_outcome(job)
    if outcome is not None and job.ending != "time":  # it never ran for its time limit
        return conclude(state, job, outcome, event.at)
    _release(state, job)
    transition(state, job, JobState.PENDING)
    job.attempt += 1
    job.started_boot = job.ending = job.pid = None
    job.ends = ()
    if event.delay:
        job.begin_at, job.note = event.at + event.delay, event.why
    set_deadline(state, job)
    update_eligibility(state, job, event.at)
    return []


def on_orphan_attempts_found(state: State, event: e.OrphanAttemptsFound) -> Instructions:
    """Raise the attempt number above that of an orphan, so that no number is used twice."""
    job = state.jobs.get(event.job)
    if job is not None and not job.holding and event.attempt >= job.attempt:
        job.attempt = event.attempt + 1
        state.changes.job(job.id)
    return []


def terminate(
    state: State, job: Job, ending: str | None, immediately: bool = False
) -> Instructions:
    """Let an attempt end for this reason; what follows is decided when its processes ended."""
    job.ending = ending
    state.changes.job(job.id)
    if job.state is not JobState.COMPLETING:
        transition(state, job, JobState.COMPLETING)
    return [TerminateAttempt(job.id, job.attempt, immediately)]


def _release(state: State, job: Job) -> None:
    """Release the devices; keep the nodes of other parts, where their output is."""
    other_parts = job.placement.other_parts if job.placement is not None else ()
    job.last_others = tuple(part.node for part in other_parts) if other_parts else ()
    node = job.placement.node if job.placement is not None else None
    state.release(job)
    if node in state.in_flight:
        count_out(state, job, node)


def conclude(state: State, job: Job, outcome: AttemptOutcome, at: float) -> Instructions:
    """End an attempt: release its devices, then requeue or finish the job."""
    charge_end(state, job, at)
    if job.progress is not None:
        learning.close_attempt(state, job, at, outcome.preempted)
    _release(state, job)
    job.ended_at, job.cause, job.pid = at, outcome.cause, None
    past = PastAttempt(job.attempt, job.started_at, at, outcome.cause, job.code)
    job.past = (*job.past, past)[-KEEP_PAST_ATTEMPTS:]
    if outcome.again:
        if job.score is not None:
            job.score = replace(job.score, final=False)
        transition(state, job, JobState.PENDING)
        job.attempt += 1
        job.requeues += outcome.requeued
        job.retries += not (outcome.requeued or outcome.preempted)
        job.begin_at = at + outcome.delay if outcome.delay else None
        job.ending = None
        set_deadline(state, job)  # it may have passed while the attempt was being ended
        update_eligibility(state, job, at)
        return []
    return finish(state, job, outcome.state, at)


def finish(state: State, job: Job, to: JobState, at: float) -> Instructions:
    """Finish a job and update the jobs that depend on it."""
    transition(state, job, to)
    sweep = sweep_of(state, job)
    if sweep is not None:
        update_best(state, job)
        update_sweep_finished(state, sweep, at)
    update_dependents(state, job.id, at)
    instructions: Instructions = [RunJobEndHook(job.id)]
    if not state.live:
        instructions.append(RunQueueEmptyHook())
    return instructions


def transition(state: State, job: Job, to: JobState) -> None:
    """Change the state of a job along the lifecycle, and the indexes by state."""
    check_transition(job.state, to)
    before = trial_status(job.state, job.score) if job.params is not None else ""
    if job.state is JobState.PENDING:
        unlink_dependency(state, job)
        state.never_eligible.discard(job.id)
    if job.finished:
        state.finished.pop(job.id, None)
        state.unacknowledged.pop(job.id, None)
        state.count_demand(job)
    job.state = to
    state.victims.mark_changed(job.id)
    if to is JobState.COMPLETING:
        state.stopping[job.id] = job
        if job.ending != "stop" and state.preemptible:
            # Together with what it frees, a preemption may help that did not help before.
            state.pending.mark_all_unchecked()
            state.pending.request_planning()
    if job.finished:
        state.finished[job.id] = None
        state.uncount_demand(job)
        if to in FAILED_STATES and not job.seen:
            state.unacknowledged[job.id] = None
    state.changes.job(job.id)
    if before:
        update_counts(state, job, before)
