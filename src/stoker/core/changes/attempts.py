"""An attempt's life: planned, started, ended, and what follows for its job."""

from __future__ import annotations

from heapq import heappush

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.admission import admit, as_seen, dependency_standing
from stoker.core.changes import lessons
from stoker.core.changes.step import move
from stoker.core.cluster import Placement
from stoker.core.dependency import Standing
from stoker.core.instructions import (
    AnnounceEmpty,
    AnnounceEnd,
    EndAttempt,
    Instruction,
    StartProcess,
)
from stoker.core.job import Job, PartEnd, Past
from stoker.core.lifecycle import HOLDING, JobState
from stoker.core.policy.share import after_shortage
from stoker.core.retry import REQUEUE_ME, Verdict, after_exit, after_loss, stopped, stopped_early
from stoker.core.standings import (
    laid_down,
    look_whether_stoppable,
    look_who_may_displace,
    readmit,
    took_up,
)
from stoker.core.state import State
from stoker.core.sweep import Sweep
from stoker.core.trials import look_whether_best, sweep_of

Wishes = list[Instruction]

LACKING_SECONDS = 300.0
"""When a container is tried again that no node could run, and each of them for a new job."""
KEEP_PAST = 20
"""Attempts that a job remembers."""


def on_attempt_planned(state: State, event: e.AttemptPlanned) -> Wishes:
    """The planner's decision: devices are held from here on."""
    job = state.jobs[event.job]
    _begin(state, job, event.placement, event.boot)
    return [StartProcess(job.id, event.attempt, event.placement)]


def _begin(state: State, job: Job, placement: Placement, boot: float) -> None:
    """Hold devices for the current attempt of a job."""
    state.line.remove(job)
    state.hold_devices(job, placement)
    move(state, job, JobState.CONFIGURING)
    job.pid = job.external_id = None
    job.hosts = job.devices = ()
    job.started_at, job.started_boot = None, boot
    state.count_in_flight(job)
    job.code = job.signal = job.cause = job.note = job.ended_at = None
    job.ends = ()
    job.ending, job.slack, job.paused_boot, job.warned = None, 0.0, None, False
    if any(take.shares for take in placement.takes):
        lessons.moved_in(state, job)


def on_attempt_recovered(state: State, event: e.AttemptRecovered) -> Wishes:
    """What the journal knew of this job is out of date: it is at this attempt."""
    job = state.jobs.get(event.job)
    if job is None or event.attempt < job.attempt + (job.holding or job.finished):
        return []
    if job.holding:  # that attempt must be over, or there would be no later one
        laid_down(state, job, event.at)
        _give_back(state, job)
    if job.state is not JobState.PENDING:
        move(state, job, JobState.PENDING)
    job.attempt, job.seen = event.attempt, False
    _begin(state, job, event.placement, event.boot)
    return []


def on_attempt_queued(state: State, event: e.AttemptQueued) -> Wishes:
    """It waits in another queue; its time does not count yet."""
    job = current(state, event.job, event.attempt)
    if job is None or job.started_at is not None:
        return []
    job.external_id = event.external_id
    if job.state is JobState.CONFIGURING:
        move(state, job, JobState.QUEUED)
    state.touched.add(job.id)
    return []


def on_process_started(state: State, event: e.ProcessStarted) -> Wishes:
    """The process exists; of an attempt on several machines, the first one does."""
    job = current(state, event.job, event.attempt)
    if job is not None and event.part == 0:
        job.pid = event.pid
        state.touched.add(job.id)
    if job is None or job.started_at is not None:
        return []
    if event.part is None:
        job.pid = event.pid
    job.started_at, job.started_boot = event.at, event.boot
    job.external_id = event.external_id or job.external_id
    job.hosts, job.devices = event.hosts, event.devices
    state.count_in_flight(job)
    took_up(state, job)
    if job.state in (JobState.CONFIGURING, JobState.QUEUED):
        move(state, job, JobState.RUNNING)
    look_whether_stoppable(state, job, event.at)
    if job.id in state.stoppable:
        look_who_may_displace(state, job)
    state.touched.add(job.id)
    wake_dependents(state, job.id, event.at)
    return []


def on_process_exited(state: State, event: e.ProcessExited) -> Wishes:
    """The process tree is gone; decide what its job becomes."""
    job = current(state, event.job, event.attempt)
    if job is None:
        return []
    if event.part is not None:
        end = PartEnd(
            event.part, event.code, event.signal, event.memory, note=event.note,
            stopped=event.stopped, failed=event.lacks,
        )  # fmt: skip
        return part_over(state, job, end, event.at)
    return _exited(state, job, event)


def _exited(state: State, job: Job, event: e.ProcessExited) -> Wishes:
    ran = event.at - job.started_at if job.started_at is not None else 0.0
    verdict = after_exit(job, state.spec(job), event, ran)
    if verdict.state is JobState.OUT_OF_MEMORY and event.memory == "cuda":
        verdict = _more_memory(state, job, event.at) or verdict
    if verdict.state is JobState.FAILED and event.lacks is not None and job.placement is not None:
        verdict = _elsewhere(state, job, event.lacks, job.placement.node, event.at) or verdict
    job.code, job.signal = event.code, event.signal
    # What its node lacks is said while it waits for its next try.
    job.note = verdict.cause if verdict.again and event.lacks is not None else event.note
    return conclude(state, job, verdict, event.at)


def _more_memory(state: State, job: Job, at: float) -> Verdict | None:
    """A job that shares a GPU by memory and ran out of it goes on otherwise, if there is a way."""
    beside = lessons.neighbours(state, job)
    shortage = after_shortage(job, state.spec(job), state.cluster, beside)
    if shortage is None:
        return None
    job.progress = shortage.progress
    if shortage.learned is not None:
        lessons.learned_need(state, job, shortage.learned, at)
    return Verdict(JobState.OUT_OF_MEMORY, shortage.words, again=True, preempted=True)


def _elsewhere(state: State, job: Job, lacks: str, node: str, at: float) -> Verdict | None:
    """Try a container on another node than one that cannot run it; on none, again later.

    None where there is only one node: then it fails.
    """
    container = state.spec(job).container
    if container is None or len(state.rest.nodes) < 2:
        return None
    state.rest.lacking.setdefault(container.image, {})[node] = at
    state.rest_changed = True
    delay = 0.0
    if node not in state.effective(job, state.spec(job)).not_nodes:
        del state.rest.lacking[container.image]  # all of them: look at every one again
        delay = LACKING_SECONDS
    readmit(state, None, at)
    return Verdict(JobState.FAILED, f"{node}: {lacks}", again=True, delay=delay, preempted=True)


def on_attempt_lost(state: State, event: e.AttemptLost) -> Wishes:
    """The attempt is over and left no word; its retry rule decides."""
    job = current(state, event.job, event.attempt)
    if job is None:
        return []
    if event.with_files:
        lessons.work_lost(job)
    if event.part is not None:
        return part_over(state, job, PartEnd(event.part, lost=event.why), event.at)
    return conclude(state, job, after_loss(job, state.spec(job), event.why), event.at)


def part_over(state: State, job: Job, end: PartEnd, at: float) -> Wishes:
    """One of several parts is over. When it did not end well, the others are ended, too."""
    if job.placement is None or any(each.part == end.part for each in job.ends):
        return []
    job.ends = (*job.ends, end)
    state.touched.add(job.id)
    if len(job.ends) < len(job.placement.parts):
        if end.well or job.state is JobState.COMPLETING or _saves_still(job, end):
            return []
        move(state, job, JobState.COMPLETING)
        return [EndAttempt(job.id, job.attempt)]
    decisive = next((each for each in job.ends if not each.well), end)
    decisive = next((each for each in job.ends if each.stopped), decisive)
    node = job.placement.parts[decisive.part].node
    if decisive.away:
        why = f"{node} was unreachable"
        verdict = ended_on_purpose(job) or Verdict(JobState.NODE_FAIL, f"lost: {why}", again=True)
        return conclude(state, job, verdict, at)
    if decisive.lost is not None:
        why = f"{decisive.lost} ({node})"
        return conclude(state, job, after_loss(job, state.spec(job), why), at)
    if decisive.failed is not None:
        verdict = ended_on_purpose(job) or Verdict(JobState.FAILED, f"{decisive.failed} ({node})")
        if verdict.state is JobState.FAILED and decisive.code is not None:
            verdict = _elsewhere(state, job, decisive.failed, node, at) or verdict
        return conclude(state, job, verdict, at)
    notes = [] if decisive.well else [f"its part {decisive.part} on {node} ended first"]
    parts = job.placement.parts
    notes += [f"{each.note} ({parts[each.part].node})" for each in job.ends if each.note]
    return _exited(
        state,
        job,
        e.ProcessExited(
            at=at, job=job.id, attempt=job.attempt, code=decisive.code, signal=decisive.signal,
            memory=decisive.memory, note="; ".join(notes) or None, stopped=decisive.stopped,
        ),
    )  # fmt: skip


def _saves_still(job: Job, end: PartEnd) -> bool:
    """Asked to stop, one part has; the first one, which writes the checkpoint, may need a while."""
    asked = job.progress is not None and job.progress.stop is not None
    return asked and end.code == REQUEUE_ME and end.part != 0


def on_start_failed(state: State, event: e.StartFailed) -> Wishes:
    """It could not be started, and a second try would end the same way."""
    job = current(state, event.job, event.attempt)
    if job is None:
        return []
    if event.part is not None:
        return part_over(state, job, PartEnd(event.part, failed=event.why), event.at)
    verdict = ended_on_purpose(job) or Verdict(JobState.FAILED, event.why)
    return conclude(state, job, verdict, event.at)


def on_start_called_off(state: State, event: e.StartCalledOff) -> Wishes:
    """It was not to be: back in line, at the old place, perhaps after a while."""
    job = current(state, event.job, event.attempt)
    if job is None:
        return []
    verdict = ended_on_purpose(job)
    if verdict is not None and job.ending != "time":  # it never ran, so its time is not up
        return conclude(state, job, verdict, event.at)
    _give_back(state, job)
    move(state, job, JobState.PENDING)
    job.attempt += 1
    job.started_boot = job.ending = job.pid = None
    job.ends = ()
    if event.delay:
        job.begin_at, job.note = event.at + event.delay, event.why
    set_deadline(state, job)
    admit(state, job, event.at)
    return []


def ended_on_purpose(job: Job) -> Verdict | None:
    """What becomes of a job that was to be ended and turns out not to run at all."""
    match job.ending:
        case "cancel":
            return Verdict(JobState.CANCELLED, "cancelled")
        case "deadline":
            return Verdict(JobState.DEADLINE, "deadline")
        case "time":
            return Verdict(JobState.TIMEOUT, "time limit")
        case "stop":
            return stopped(job)
        case "early":
            return stopped_early(job)
    return None


def set_deadline(state: State, job: Job) -> None:
    """Have the clock look at a job's deadline."""
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


def current(state: State, id: int, attempt: int) -> Job | None:
    """The job, unless the message is about an attempt that is already over."""
    job = state.jobs.get(id)
    if job is None or job.attempt != attempt or job.state not in HOLDING:
        return None
    return job


def _give_back(state: State, job: Job) -> None:
    """Devices back; where its other parts were is kept for those who look for their output."""
    more = job.placement.more if job.placement is not None else ()
    job.last_others = tuple(part.node for part in more) if more else ()
    state.give_back(job)


def conclude(state: State, job: Job, verdict: Verdict, at: float) -> Wishes:
    """End an attempt: devices back, then another go or the end of the job."""
    laid_down(state, job, at)
    if job.progress is not None:
        lessons.ended(state, job, at, verdict.preempted)
    _give_back(state, job)
    job.ended_at, job.cause, job.pid = at, verdict.cause, None
    past = Past(job.attempt, job.started_at, at, verdict.cause, job.code)
    job.past = (*job.past, past)[-KEEP_PAST:]
    if verdict.again:
        if job.score is not None:
            job.score = replace(job.score, final=False)
        move(state, job, JobState.PENDING)
        job.attempt += 1
        job.requeues += verdict.requeued
        job.retries += not (verdict.requeued or verdict.preempted)
        job.begin_at = at + verdict.delay if verdict.delay else None
        job.ending = None
        set_deadline(state, job)  # it may have passed while the attempt was being ended
        admit(state, job, at)
        return []
    return finish(state, job, verdict.state, at)


def finish(state: State, job: Job, to: JobState, at: float) -> Wishes:
    """End a job for good, and tell whoever waits for it."""
    move(state, job, to)
    sweep = sweep_of(state, job)
    if sweep is not None:
        look_whether_best(state, job)
        look_whether_over(state, sweep, at)
    wake_dependents(state, job.id, at)
    wishes: Wishes = [AnnounceEnd(job.id)]
    if not state.live:
        wishes.append(AnnounceEmpty())
    return wishes


def look_whether_over(state: State, sweep: Sweep, at: float) -> None:
    """A sweep may have come to its end, or go on again: tell whoever waits for all of it."""
    before = sweep.ended_at is None
    sweep.look_whether_over(at)
    if before != (sweep.ended_at is None):
        wake_dependents(state, sweep.id, at)


def wake_dependents(state: State, other: int, at: float) -> None:
    """Look again at the jobs that wait for this one, or for this sweep."""
    if other not in state.dependents:
        return
    settled: dict[str, tuple[bool, bool]] = {}
    """By spec: whether they go on waiting, and whether for ever."""
    for id in sorted(state.dependents[other]):
        waiting = state.jobs[id]
        if waiting.spec not in settled:  # a bulk of them has the same answer: ask once
            if _waits_for_more(state, waiting, other):
                settled[waiting.spec] = (True, id in state.doomed)
                continue
            how, others, wake = dependency_standing(state, waiting, at)
            if others:
                state.blockers[waiting.spec] = others[-1]
            dependency = state.specs[waiting.spec].dependency
            alike = dependency is not None and not (dependency.by_member or dependency.delayed)
            waits = alike and how is not Standing.MET and wake is None
            settled[waiting.spec] = (waits, how is Standing.NEVER)
        waits, doomed = settled[waiting.spec]
        if id in state.line or not waits or doomed != (id in state.doomed):
            before = id in state.line
            admit(state, waiting, at)
            if id in state.line and not before:
                waiting.ready_at = at
                state.touched.add(id)


def _waits_for_more(state: State, waiting: Job, other: int) -> bool:
    """Whether a job waits for yet another one, so that this one cannot have changed anything.

    Of a large array, each member that ends would otherwise be a look at all of them.
    """
    blocker = state.blockers.get(waiting.spec)
    dependency = state.specs[waiting.spec].dependency
    if blocker is None or blocker == other or dependency is None or dependency.any:
        return False
    if any(clause.kind not in ("afterok", "afterany") for clause in dependency.clauses):
        return False
    this, that = as_seen(state, other), as_seen(state, blocker)
    if this is None or that is None or that.finished or that.doomed or this.doomed:
        return False
    return not this.finished or this.ok or all(c.kind == "afterany" for c in dependency.clauses)
