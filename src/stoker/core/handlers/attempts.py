"""Handlers of an attempt: planned, started, ended, and what follows for its job."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.events import instructions as do
from stoker.core.handlers import learning
from stoker.core.handlers import outcome as outcomes
from stoker.core.model.job import NO_PROGRESS, NO_USAGE, Job, JobState, PartEnd, PastAttempt
from stoker.core.model.resources import Placement
from stoker.core.model.sweep import trial_status
from stoker.core.state import eligibility, reranking
from stoker.core.state import sweep_boards as boards
from stoker.core.state.node_updates import update_delegated_capacity
from stoker.core.state.state import State


def on_attempt_planned(state: State, job: Job, event: e.AttemptPlanned) -> do.Instructions:
    """Allocate the devices of a planned attempt and start it."""
    _begin(state, job, event.placement, event.at, event.boot)
    return [do.StartProcess(job.id, event.attempt, event.placement)]


def _begin(state: State, job: Job, placement: Placement, at: float, boot: float) -> None:
    """Allocate devices for the current attempt of a job."""
    state.pending.remove(job)
    state.allocate(job, placement)
    transition(state, job, JobState.CONFIGURING)
    job.pid = job.external_id = job.queue_start = None
    job.hosts = job.devices = ()
    job.started_at, job.started_boot = None, boot
    job.allocated_at, job.measured = at, NO_USAGE
    update_delegated_capacity(state, job.placement)
    job.code = job.signal = job.cause = job.note = job.ended_at = job.advice = None
    job.ends = ()
    job.ending, job.ending_cause = None, None
    job.slack, job.paused_boot, job.warned = 0.0, None, False
    if any(allocation.is_shared for allocation in placement.allocations):
        learning.mark_shared(state, job)


def on_attempt_recovered(state: State, job: Job, event: e.AttemptRecovered) -> None:
    """Set a job to an attempt that runs and that the journal does not have."""
    if event.attempt < job.attempt + (job.holding or job.finished):
        return
    if job.holding:  # that attempt has ended, since there is a later one
        reranking.charge_end(state, job, event.at)
        job.usage += learning.end_usage(state, job, event.at, None) or NO_USAGE
        _release(state, job)
    if job.state is not JobState.PENDING:
        transition(state, job, JobState.PENDING)
    job.attempt, job.seen = event.attempt, False
    _begin(state, job, event.placement, event.at, event.boot)


def on_attempt_queued(state: State, job: Job, event: e.AttemptQueued) -> None:
    """Note that an attempt is pending in another scheduler's queue; its limits do not run yet."""
    if job.started_at is not None:
        return
    job.external_id, job.note = event.external_id, event.reason or None
    job.queue_start = event.start
    if job.state is JobState.CONFIGURING:
        transition(state, job, JobState.QUEUED)


def on_process_started(state: State, job: Job, event: e.ProcessStarted) -> None:
    """Note that an attempt runs; of a gang, that its first process runs."""
    if event.part == 0:
        job.pid = event.pid
    if job.started_at is not None:
        # Of a gang, each part has its own host on a delegated node.
        job.hosts += tuple(host for host in event.hosts if host not in job.hosts)
        return
    if event.part is None:
        job.pid = event.pid
    job.started_at, job.started_boot = event.at, event.boot
    job.external_id = event.external_id or job.external_id
    job.hosts, job.devices = event.hosts, event.devices
    update_delegated_capacity(state, job.placement)
    reranking.charge_start(state, job)
    if job.state in (JobState.CONFIGURING, JobState.QUEUED):
        transition(state, job, JobState.RUNNING)
        job.note = None
    reranking.update_preemptible(state, job, event.at)
    reranking.check_preemption(state, job)
    eligibility.update_dependents(state, job.id, event.at)


def on_process_exited(state: State, job: Job, event: e.ProcessExited) -> do.Instructions:
    """Decide what becomes of a job after its process tree ended."""
    if not any(end.part == event.part for end in job.ends):
        cpu, rss = job.measured.cpu + (event.cpu_seconds or 0.0), event.rss_peak or 0
        job.measured = replace(job.measured, cpu=cpu, rss=max(job.measured.rss, rss))
    end = PartEnd(
        event.part or 0, event.code, event.signal, event.memory, failed=event.lacks,
        note=event.note, stopped=event.stopped, uncaught=event.uncaught,
    )  # fmt: skip
    return end_part(state, job, end, event.at, is_whole=event.part is None)


def _retry_elsewhere(
    state: State, job: Job, missing: str, node: str, at: float
) -> outcomes.AttemptOutcome | None:
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
        delay = outcomes.MAX_BACKOFF_SECONDS
    eligibility.requeue_all(state, None, at)
    return outcomes.AttemptOutcome(
        JobState.FAILED, f"{node}: {missing}", again=True, delay=delay, preempted=True
    )


def on_attempt_lost(state: State, job: Job, event: e.AttemptLost) -> do.Instructions:
    """Apply the retry rule to an attempt that ended without an exit code."""
    if event.with_files:
        learning.discard_unsaved(job)
    end = PartEnd(event.part or 0, lost=event.why, preempted=event.preempted)
    return end_part(state, job, end, event.at, is_whole=event.part is None)


def on_start_failed(state: State, job: Job, event: e.StartFailed) -> do.Instructions:
    """Fail a job that could not be started; a retry would fail in the same way."""
    end = PartEnd(event.part or 0, failed=event.why)
    return end_part(state, job, end, event.at, is_whole=event.part is None)


def end_part(
    state: State, job: Job, end: PartEnd, at: float, is_whole: bool = False
) -> do.Instructions:
    """Note the end of one part of a gang; terminate the others unless it ended well.

    `is_whole`: it is the end of the attempt with all its parts.
    """
    if is_whole:
        job.ends = ()
        return _end_attempt(state, job, end, at)
    if any(part_end.part == end.part for part_end in job.ends):
        return []
    job.ends = (*job.ends, end)
    if len(job.ends) < len(job.parts):
        is_ending = job.state is JobState.COMPLETING
        if end.is_success or is_ending or outcomes.is_still_saving(job, end):
            return []
        return terminate(state, job, job.ending)
    decisive = next((part_end for part_end in job.ends if not part_end.is_success), end)
    decisive = next((part_end for part_end in job.ends if part_end.stopped), decisive)
    return _end_attempt(state, job, decisive, at)


def _end_attempt(state: State, job: Job, end: PartEnd, at: float) -> do.Instructions:
    """Conclude an attempt by its end, or by the decisive one of its parts."""
    spec, nodes = state.spec(job), [part.node for part in job.parts]
    node = nodes[end.part] if nodes else ""
    where = f" ({node})" if job.ends else ""
    if end.away:
        outcome = outcomes.after_abandonment(job, node)
    elif end.lost is not None:
        outcome = outcomes.after_loss(job, spec, f"{end.lost}{where}", end.preempted)
    elif end.failed is not None and (job.ends or end.code is None):
        outcome = outcomes.after_failed_start(job, f"{end.failed}{where}")
    else:
        runtime = at - job.started_at if job.started_at is not None else 0.0
        outcome = outcomes.after_exit(job, spec, end, runtime)
        if outcome.state is JobState.OUT_OF_MEMORY and end.memory == "cuda":
            outcome = learning.oom_outcome(state, job, at) or outcome
        job.code, job.signal, job.note = end.code, end.signal, _note_of(job, end, nodes)
    if end.failed is not None and end.code is not None and outcome.state is JobState.FAILED:
        outcome = _retry_elsewhere(state, job, end.failed, node, at) or outcome
        # While it is pending again, its note says what the node is missing.
        job.note = outcome.cause if outcome.again and not job.ends else job.note
    return conclude(state, job, outcome, at)


def _note_of(job: Job, end: PartEnd, nodes: list[str]) -> str | None:
    """Return the note about the end of an attempt: of a gang, those of all its parts."""
    if not job.ends:
        return end.note
    first = f"its part {end.part} on {nodes[end.part]} ended first"
    noted = (part_end for part_end in job.ends if part_end.note)
    notes = [f"{part_end.note} ({nodes[part_end.part]})" for part_end in noted]
    return "; ".join(notes if end.is_success else [first, *notes]) or None


def on_start_cancelled(state: State, job: Job, event: e.StartCancelled) -> do.Instructions:
    """Requeue a job after its start was cancelled, with its old rank and after a delay if given."""
    outcome = outcomes.forced_outcome(job)
    if outcome is not None and job.ending != "time":  # it never ran for its time limit
        return conclude(state, job, outcome, event.at)
    _release(state, job)
    job.started_boot = job.pid = None
    job.ends = ()
    if event.delay:
        job.note = event.why
    return _requeue(state, job, event.delay, event.at)


def _requeue(state: State, job: Job, delay: float, at: float) -> do.Instructions:
    """Let a job wait for its next attempt, which starts after a delay at the earliest."""
    transition(state, job, JobState.PENDING)
    job.attempt += 1
    job.begin_at = at + delay if delay else None
    job.ending = None
    eligibility.update_eligibility(state, job, at)
    return []


def on_orphan_attempts_found(state: State, job: Job, event: e.OrphanAttemptsFound) -> None:
    """Raise the attempt number above that of an orphan, so that no number is used twice."""
    if not job.holding and event.attempt >= job.attempt:
        job.attempt = event.attempt + 1


def terminate(
    state: State, job: Job, ending: str | None, immediately: bool = False
) -> do.Instructions:
    """Let an attempt end for this reason; what follows is decided when its processes ended."""
    job.ending = ending
    if job.state is not JobState.COMPLETING:
        transition(state, job, JobState.COMPLETING)
    return [do.TerminateAttempt(job.id, job.attempt, immediately)]


def _release(state: State, job: Job) -> None:
    placement = job.placement
    learning.clear_job_alarms(state, job)
    state.release(job)
    update_delegated_capacity(state, placement)


def conclude(
    state: State, job: Job, outcome: outcomes.AttemptOutcome, at: float
) -> do.Instructions:
    """End an attempt: release its devices, then requeue or finish the job."""
    reranking.charge_end(state, job, at)
    usage = learning.end_usage(state, job, at, outcome)
    if job.progress is not NO_PROGRESS:
        learning.close_attempt(state, job, at, outcome.preempted)
    _release(state, job)
    job.ended_at, job.cause, job.pid = at, outcome.cause, None
    past = PastAttempt(job.attempt, job.started_at, at, outcome.cause, job.code, usage)
    job.usage += usage or NO_USAGE
    job.past = (*job.past, past)[-learning.MAX_KEPT :]
    if outcome.again:
        if job.score is not None:
            job.score = replace(job.score, final=False)
        job.requeues += outcome.requeued
        job.retries += not (outcome.requeued or outcome.preempted)
        return _requeue(state, job, outcome.delay, at)
    return finish(state, job, outcome.state, at)


def finish(state: State, job: Job, to: JobState, at: float) -> do.Instructions:
    """Finish a job and update the jobs that depend on it."""
    transition(state, job, to)
    sweep = boards.sweep_of(state, job)
    if sweep is not None:
        boards.update_sweep_finished(state, sweep, at)
    eligibility.update_dependents(state, job.id, at)
    instructions: do.Instructions = [do.RunJobEndHook(job.id)]
    if not state.live:
        instructions.append(do.RunQueueEmptyHook())
    return instructions


def transition(state: State, job: Job, to: JobState) -> None:
    """Change the state of a job along the lifecycle, and the indexes by state."""
    job.state.check_transition(to)
    before = trial_status(job.state, job.score) if job.params is not None else ""
    if job.state is JobState.PENDING:
        eligibility.unlink_dependency(state, job)
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
            state.pending.request_planning()
    if job.finished:
        state.index_finished(job)
        state.uncount_demand(job)
    if before:
        boards.update_trial(state, job, before)
