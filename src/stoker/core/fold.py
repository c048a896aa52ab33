"""The fold: what each fact does to the state, and what is to be done about it."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.dependency import Standing
from stoker.core.instructions import (
    AnnounceEmpty,
    AnnounceEnd,
    EndAttempt,
    Instruction,
    ResumeAttempt,
    SignalAttempt,
    StartProcess,
    SuspendAttempt,
)
from stoker.core.job import Job, Past
from stoker.core.lifecycle import HOLDING, UNHAPPY, JobState
from stoker.core.naming import name_of
from stoker.core.retry import Verdict, after_exit, after_loss
from stoker.core.state import State

Wishes = list[Instruction]
KEEP_PAST = 20


def apply(state: State, event: e.Event) -> Wishes:
    """Let a fact change the state; return what is to be done outside."""
    return _HANDLERS[type(event)](state, event)


# -- submission ---------------------------------------------------------------------------


def on_spec_recorded(state: State, event: e.SpecRecorded) -> Wishes:
    """The common part of a submission, kept once."""
    state.specs.setdefault(event.hash, event.spec)
    state.spec_users.setdefault(event.hash, 0)
    return []


def on_jobs_submitted(state: State, event: e.JobsSubmitted) -> Wishes:
    """New jobs, with the next ids."""
    spec = state.specs[event.spec]
    lines, indexes = event.lines, event.indexes
    array = event.first if indexes is not None else None
    for offset in range(event.count):
        command = lines[offset] if lines is not None else event.argv
        job = Job(
            id=event.first + offset,
            spec=event.spec,
            name=spec.name or name_of(command),
            user=spec.user,
            submitted_at=event.at,
            command=command,
            array=array,
            index=indexes[offset] if indexes is not None else None,
            priority=event.priority,
            held=event.held,
            begin_at=event.begin_at,
        )
        state.enter(job)
        _set_deadline(state, job)
        state.admit(job, event.at)
    rest = state.rest
    rest.next_id = event.first + event.count
    rest.last_first, rest.last_count = event.first, event.count
    state.rest_changed = True
    return []


# -- an attempt's life --------------------------------------------------------------------


def on_attempt_planned(state: State, event: e.AttemptPlanned) -> Wishes:
    """The planner's decision: devices are held from here on."""
    job = state.jobs[event.job]
    state.line.remove(job)
    state.hold_devices(job, event.placement)
    state.move(job, JobState.CONFIGURING)
    job.pid = None
    job.started_at, job.started_boot = None, event.boot
    job.code = job.signal = job.cause = job.note = job.ended_at = None
    job.ending, job.slack, job.paused_boot, job.warned = None, 0.0, None, False
    return [StartProcess(job.id, event.attempt, event.placement)]


def on_process_started(state: State, event: e.ProcessStarted) -> Wishes:
    """The process exists."""
    job = _current(state, event.job, event.attempt)
    if job is None or job.started_at is not None:
        return []
    job.pid, job.started_at, job.started_boot = event.pid, event.at, event.boot
    if job.state is JobState.CONFIGURING:
        state.move(job, JobState.RUNNING)
    state.touched.add(job.id)
    _wake_dependents(state, job, event.at)
    return []


def on_process_exited(state: State, event: e.ProcessExited) -> Wishes:
    """The process tree is gone; decide what its job becomes."""
    job = _current(state, event.job, event.attempt)
    if job is None:
        return []
    ran = event.at - job.started_at if job.started_at is not None else 0.0
    verdict = after_exit(job, state.spec(job), event, ran)
    job.code, job.signal, job.note = event.code, event.signal, event.note
    return _conclude(state, job, verdict, event.at)


def on_attempt_lost(state: State, event: e.AttemptLost) -> Wishes:
    """The attempt is over and left no word; its retry rule decides."""
    job = _current(state, event.job, event.attempt)
    if job is None:
        return []
    return _conclude(state, job, after_loss(job, state.spec(job), event.why), event.at)


def on_start_failed(state: State, event: e.StartFailed) -> Wishes:
    """It could not be started, and a second try would end the same way."""
    job = _current(state, event.job, event.attempt)
    if job is None:
        return []
    verdict = _ended_on_purpose(job) or Verdict(JobState.FAILED, event.why)
    return _conclude(state, job, verdict, event.at)


def on_start_called_off(state: State, event: e.StartCalledOff) -> Wishes:
    """The device was taken after all: back in line, at the old place."""
    job = _current(state, event.job, event.attempt)
    if job is None:
        return []
    verdict = _ended_on_purpose(job)
    if verdict is not None and job.ending != "time":  # it never ran, so its time is not up
        return _conclude(state, job, verdict, event.at)
    state.give_back(job)
    state.move(job, JobState.PENDING)
    job.attempt += 1
    job.started_boot = job.ending = None
    _set_deadline(state, job)
    state.admit(job, event.at)
    return []


def _ended_on_purpose(job: Job) -> Verdict | None:
    """What becomes of a job that was to be ended and turns out not to run at all."""
    match job.ending:
        case "cancel":
            return Verdict(JobState.CANCELLED, "cancelled")
        case "deadline":
            return Verdict(JobState.DEADLINE, "deadline")
        case "time":
            return Verdict(JobState.TIMEOUT, "time limit")
    return None


def _set_deadline(state: State, job: Job) -> None:
    deadline = state.deadline(job)
    if deadline is not None:
        heappush(state.deadlines, (deadline, job.id))


def on_attempts_found(state: State, event: e.AttemptsFound) -> Wishes:
    """Never give the number of an attempt out twice."""
    job = state.jobs.get(event.job)
    if job is not None and not job.holding and event.attempt >= job.attempt:
        job.attempt = event.attempt + 1
        state.touched.add(job.id)
    return []


def _current(state: State, id: int, attempt: int) -> Job | None:
    """The job, unless the message is about an attempt that is already over."""
    job = state.jobs.get(id)
    if job is None or job.attempt != attempt or job.state not in HOLDING:
        return None
    return job


def _conclude(state: State, job: Job, verdict: Verdict, at: float) -> Wishes:
    """End an attempt: devices back, then another go or the end of the job."""
    state.give_back(job)
    job.ended_at, job.cause, job.pid = at, verdict.cause, None
    past = Past(job.attempt, job.started_at, at, verdict.cause, job.code)
    job.past = (*job.past, past)[-KEEP_PAST:]
    if verdict.again:
        state.move(job, JobState.PENDING)
        job.attempt += 1
        job.requeues += verdict.requeued
        job.retries += not verdict.requeued
        job.begin_at = at + verdict.delay if verdict.delay else None
        job.ending = None
        _set_deadline(state, job)  # it may have passed while the attempt was being ended
        state.admit(job, at)
        return []
    return _finish(state, job, verdict.state, at)


def _finish(state: State, job: Job, to: JobState, at: float) -> Wishes:
    state.move(job, to)
    _wake_dependents(state, job, at)
    wishes: Wishes = [AnnounceEnd(job.id)]
    if not state.live:
        wishes.append(AnnounceEmpty())
    return wishes


def _wake_dependents(state: State, job: Job, at: float) -> None:
    unchanged: dict[str, bool] = {}
    for id in sorted(state.dependents.get(job.id, ())):
        waiting = state.jobs[id]
        if waiting.spec not in unchanged:  # a bulk of them has the same answer: ask once
            how, _, wake = state.dependency_standing(waiting, at)
            dependency = state.specs[waiting.spec].dependency
            alike = dependency is not None and not (dependency.by_member or dependency.delayed)
            unchanged[waiting.spec] = alike and how is not Standing.MET and wake is None
        if id in state.line or not unchanged[waiting.spec]:
            state.admit(waiting, at)


# -- what owners do -----------------------------------------------------------------------


def on_job_cancelled(state: State, event: e.JobCancelled) -> Wishes:
    """A waiting job ends here; a running one when its last process is gone."""
    job = state.jobs[event.job]
    if job.state is JobState.PENDING:
        state.line.remove(job)
        job.ended_at, job.cause = event.at, "cancelled"
        return _finish(state, job, JobState.CANCELLED, event.at)
    if not job.holding:
        return []
    job.ending = "cancel"
    state.touched.add(job.id)
    if job.state is not JobState.COMPLETING:
        state.move(job, JobState.COMPLETING)
    return [EndAttempt(job.id, job.attempt, event.at_once)]


def on_job_held(state: State, event: e.JobHeld) -> Wishes:
    """It waits until released."""
    job = state.jobs[event.job]
    job.held = True
    state.touched.add(job.id)
    state.line.remove(job)
    return []


def on_job_released(state: State, event: e.JobReleased) -> Wishes:
    """It waits like any other again."""
    job = state.jobs[event.job]
    job.held = False
    state.touched.add(job.id)
    state.admit(job, event.at)
    return []


def on_job_paused(state: State, event: e.JobPaused) -> Wishes:
    """Its processes stop; its devices stay held."""
    job = state.jobs[event.job]
    state.move(job, JobState.SUSPENDED)
    job.paused_boot = event.boot
    return [SuspendAttempt(job.id, job.attempt)]


def on_job_resumed(state: State, event: e.JobResumed) -> Wishes:
    """Its processes go on; the pause does not count against its time."""
    job = state.jobs[event.job]
    state.move(job, JobState.RUNNING)
    job.slack += max(event.boot - (job.paused_boot or event.boot), 0.0)
    job.paused_boot = None
    return [ResumeAttempt(job.id, job.attempt)]


def on_job_signalled(state: State, event: e.JobSignalled) -> Wishes:
    """Pass the signal on."""
    job = state.jobs[event.job]
    return [SignalAttempt(job.id, job.attempt, event.signal)]


def on_job_retried(state: State, event: e.JobRetried) -> Wishes:
    """Another attempt of a finished job; jobs that wait for it have hope again."""
    job = state.jobs[event.job]
    state.move(job, JobState.PENDING)
    job.attempt += 1
    job.retries = job.requeues = 0
    job.begin_at, job.ended_at, job.cause = None, None, None
    job.code = job.signal = job.note = job.started_at = job.started_boot = None
    job.ending, job.seen, job.held = None, False, False
    job.same_devices = event.same_devices
    deadline = state.deadline(job)
    job.late = job.late or (deadline is not None and deadline <= event.at)
    _set_deadline(state, job)
    state.admit(job, event.at)
    _wake_dependents(state, job, event.at)
    return []


def on_job_edited(state: State, event: e.JobEdited) -> Wishes:
    """A waiting job asks for something else now."""
    job = state.jobs[event.job]
    state.line.remove(job)
    if event.spec != job.spec:
        state.unlink(job)
        state.spec_users[event.spec] = state.spec_users.get(event.spec, 0) + 1
        state.drop_spec(job.spec)
        job.spec, job.delay_over = event.spec, False
        _set_deadline(state, job)
    job.name, job.priority, job.begin_at = event.name, event.priority, event.begin_at
    state.touched.add(job.id)
    state.admit(job, event.at)
    return []


def on_job_moved(state: State, event: e.JobMoved) -> Wishes:
    """A waiting job has another place in line."""
    job = state.jobs[event.job]
    state.line.remove(job)
    job.priority, job.rank = event.priority, event.rank
    state.touched.add(job.id)
    state.admit(job, event.at)
    return []


# -- time ---------------------------------------------------------------------------------


def on_time_limit_reached(state: State, event: e.TimeLimitReached) -> Wishes:
    """Its time is up."""
    job = _current(state, event.job, event.attempt)
    if job is None or job.state is JobState.COMPLETING:
        return []
    job.ending = "time"
    state.move(job, JobState.COMPLETING)
    return [EndAttempt(job.id, job.attempt)]


def on_time_limit_near(state: State, event: e.TimeLimitNear) -> Wishes:
    """It asked to be told before its time is up."""
    job = _current(state, event.job, event.attempt)
    warning = state.spec(job).warning if job else None
    if job is None or warning is None or job.warned:
        return []
    job.warned = True
    state.touched.add(job.id)
    return [SignalAttempt(job.id, job.attempt, warning.signal)]


def on_wait_over(state: State, event: e.WaitOver) -> Wishes:
    """Its begin time has come."""
    job = state.jobs.get(event.job)
    if job is not None and job.state is JobState.PENDING:
        if job.begin_at is not None and job.begin_at <= event.at:
            job.begin_at = None
        state.touched.add(job.id)
        state.admit(job, event.at)
    return []


def on_deadline_passed(state: State, event: e.DeadlinePassed) -> Wishes:
    """Too late: a waiting job ends, a running one is ended."""
    job = state.jobs.get(event.job)
    if job is None or job.finished or job.state is JobState.COMPLETING:
        return []
    if job.state is JobState.PENDING:
        state.line.remove(job)
        job.ended_at, job.cause = event.at, "deadline"
        return _finish(state, job, JobState.DEADLINE, event.at)
    job.ending = "deadline"
    state.move(job, JobState.COMPLETING)
    return [EndAttempt(job.id, job.attempt)]


# -- machines and devices -----------------------------------------------------------------


def on_daemon_started(state: State, event: e.DaemonStarted) -> Wishes:
    """Another driver, perhaps another boot of the machine, that looks for strangers anew."""
    state.rest.term, state.rest.boot = event.term, event.boot
    for key in state.rest.strangers:
        for device in state.cluster.named(key):
            device.stranger, device.stranger_memory = None, 0
    state.rest.strangers = {}
    state.rest_changed = True
    return []


def on_node_joined(state: State, event: e.NodeJoined) -> Wishes:
    """A machine says what it has; running attempts keep what they hold."""
    state.line.stirred = True
    facts = event.facts
    held = [
        job.placement
        for job in state.running.values()
        if job.placement is not None and job.placement.node == facts.name
    ]
    state.cluster.join(facts, held)
    state.rest.nodes[facts.name] = facts
    state.mark_devices()
    state.rest_changed = True
    return []


def on_devices_drained(state: State, event: e.DevicesDrained) -> Wishes:
    """What runs there goes on; nothing new starts."""
    for node, type, name in event.devices:
        state.rest.drained[f"{node}/{type}:{name}"] = event.reason
        device = state.cluster.nodes[node].by_name.get((type, name))
        if device is not None:
            device.drained = event.reason
    state.rest_changed = True
    return []


def on_devices_undrained(state: State, event: e.DevicesUndrained) -> Wishes:
    """Open again."""
    state.line.stirred = True
    for node, type, name in event.devices:
        state.rest.drained.pop(f"{node}/{type}:{name}", None)
        device = state.cluster.nodes[node].by_name.get((type, name))
        if device is not None:
            device.drained = None
    state.rest_changed = True
    return []


def on_foreign_use_changed(state: State, event: e.ForeignUseChanged) -> Wishes:
    """A stranger came to a GPU, or left it."""
    state.line.stirred = True
    node = state.cluster.nodes.get(event.node)
    device = node.by_name.get(("gpu", event.device)) if node else None
    key = f"{event.node}/gpu:{event.device}"
    state.rest.strangers.pop(key, None)
    if device is not None:
        device.stranger, device.stranger_memory = event.stranger, event.memory
        if event.stranger is not None or event.memory:
            state.rest.strangers[key] = (event.stranger or "", event.memory)
    state.rest_changed = True
    return []


def on_queue_defined(state: State, event: e.QueueDefined) -> Wishes:
    """A named queue, new or changed."""
    state.line.stirred = True
    state.rest.queues[event.name] = event
    state.rest_changed = True
    _readmit(state, event.name, event.at)
    return []


def on_queue_deleted(state: State, event: e.QueueDeleted) -> Wishes:
    """A named queue's limits are gone; its jobs go on."""
    state.line.stirred = True
    state.rest.queues.pop(event.name, None)
    state.rest_changed = True
    _readmit(state, event.name, event.at)
    return []


def _readmit(state: State, queue: str, at: float) -> None:
    for id in list(state.line.where):
        job = state.jobs[id]
        if state.specs[job.spec].queue == queue:
            state.admit(job, at)


# -- memory -------------------------------------------------------------------------------


def on_jobs_seen(state: State, event: e.JobsSeen) -> Wishes:
    """Somebody looked at how these ended."""
    for id in event.jobs:
        job = state.jobs.get(id)
        if job is not None:
            job.seen = True
            state.unseen.pop(id, None)
            state.touched.add(id)
    return []


def on_jobs_forgotten(state: State, event: e.JobsForgotten) -> Wishes:
    """Finished jobs make room."""
    for id in event.jobs:
        job = state.jobs.get(id)
        if job is not None:
            state.leave(job)
    return []


def on_job_recalled(state: State, event: e.JobRecalled) -> Wishes:
    """A finished job is needed again."""
    if event.job.id not in state.jobs:
        job = replace(event.job)  # a copy: the event is a fact, and the job goes on changing
        state.specs.setdefault(job.spec, event.spec)
        state.spec_users.setdefault(job.spec, 0)
        state.enter(job)
        state.finished[job.id] = None
        if job.state in UNHAPPY and not job.seen:
            state.unseen[job.id] = None
    return []


_HANDLERS: dict[type, Callable[[State, Any], Wishes]] = {
    e.DaemonStarted: on_daemon_started,
    e.NodeJoined: on_node_joined,
    e.SpecRecorded: on_spec_recorded,
    e.JobsSubmitted: on_jobs_submitted,
    e.AttemptPlanned: on_attempt_planned,
    e.ProcessStarted: on_process_started,
    e.ProcessExited: on_process_exited,
    e.AttemptLost: on_attempt_lost,
    e.StartFailed: on_start_failed,
    e.StartCalledOff: on_start_called_off,
    e.AttemptsFound: on_attempts_found,
    e.JobCancelled: on_job_cancelled,
    e.JobHeld: on_job_held,
    e.JobReleased: on_job_released,
    e.JobPaused: on_job_paused,
    e.JobResumed: on_job_resumed,
    e.JobSignalled: on_job_signalled,
    e.JobRetried: on_job_retried,
    e.JobEdited: on_job_edited,
    e.JobMoved: on_job_moved,
    e.TimeLimitReached: on_time_limit_reached,
    e.TimeLimitNear: on_time_limit_near,
    e.WaitOver: on_wait_over,
    e.DeadlinePassed: on_deadline_passed,
    e.DevicesDrained: on_devices_drained,
    e.DevicesUndrained: on_devices_undrained,
    e.ForeignUseChanged: on_foreign_use_changed,
    e.QueueDefined: on_queue_defined,
    e.QueueDeleted: on_queue_deleted,
    e.JobsSeen: on_jobs_seen,
    e.JobsForgotten: on_jobs_forgotten,
    e.JobRecalled: on_job_recalled,
}
