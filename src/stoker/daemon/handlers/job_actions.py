"""Act on selected jobs: cancel, kill, pause, resume, hold, release, retry, dismiss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET

from stoker.core import events as e
from stoker.core.explain.why import unreachable_since
from stoker.core.model.job import FAILED_STATES, HOLDING, Job, JobState
from stoker.core.options.submit import parse_signal
from stoker.core.state.state import State
from stoker.daemon.context import WHO_MAY_CHANGE, RequestContext, reply_only
from stoker.daemon.handlers.queries import parse_iso_time
from stoker.daemon.selectors import selected_sweep
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r
from stoker.schema.job import ActionReply, ActionView
from stoker.store.port import JobQuery

MAX_FAILURES_RETRIED = 100_000

JobStep = Callable[[Job], list[e.Event] | str]
"""Returns the events for one job, or why the action does not apply to it."""
SweepStep = Callable[[int], e.Event]
"""Returns the event for a sweep that is selected as a whole."""


def for_each_job(
    context: RequestContext, selectors: list[str], state: State, now: Instant, step: JobStep,
    sweep_step: SweepStep | None = None,
) -> CommandResult:  # fmt: skip
    """Apply a step to each selected job; jobs that it does not apply to are skipped."""
    if not selectors:
        raise CommandRejected("No job was named. Use an id, a range, a name, last or all.", "usage")
    sweeps = _selected_sweeps(context, selectors, state) if sweep_step is not None else []
    ids = context.resolve(selectors, state)
    result = _apply_to_jobs(context, ids, state, now, step, sweeps=sweeps)
    if sweep_step is not None:
        result.events += [sweep_step(sweep) for sweep in sweeps]
    return result


def _selected_sweeps(context: RequestContext, selectors: list[str], state: State) -> list[int]:
    """Return the sweeps that are selected as a whole, including trials still to be submitted."""
    uid = context.uid
    if "all" in selectors:
        sweeps = state.sweeps.values()
        return [each.id for each in sweeps if each.is_open and uid in (None, each.uid)]
    parts = [part.strip() for selector in selectors for part in selector.split(",")]
    found = (selected_sweep(part, state, uid) for part in [*selectors, *parts])
    ids = dict.fromkeys(id for id in found if id is not None)
    return [id for id in ids if context.may_manage(state.sweeps[id].uid)]


def _apply_to_jobs(
    context: RequestContext, ids: list[int], state: State, now: Instant, step: JobStep,
    restore: bool = False, sweeps: Sequence[int] = (),
) -> CommandResult:  # fmt: skip
    """Apply a step to jobs; with `restore`, finished jobs are loaded from the store for it."""
    events: list[e.Event] = []
    done: list[int] = []
    skipped: list[ActionView] = []
    denied: list[Job] = []
    boards: dict[int | None, None] = {}
    for id in ids:
        job, spec = context.job_and_spec(id, state)
        if not context.may_manage(spec.uid):
            skipped.append(ActionView(id=id, label=job.label, why=f"it belongs to {job.user}"))
            denied.append(job)
            continue
        outcome = step(job)
        if id not in state.jobs and not restore and not isinstance(outcome, str):
            outcome = "it has ended"
        if isinstance(outcome, str):
            skipped.append(ActionView(id=id, label=job.label, why=outcome))
            continue
        if id not in state.jobs:
            events.append(e.JobLoaded(at=now.wall, job=job, spec=spec))
        if job.params is not None and outcome:
            boards[job.array] = None
        events += outcome
        done.append(id)
    if denied and len(denied) == len(ids):
        which = f"Job {denied[0].label} belongs" if len(denied) == 1 else "These jobs belong"
        owner = denied[0].user if len({job.user for job in denied}) == 1 else "other users"
        raise CommandRejected(f"{which} to {owner}; {WHO_MAY_CHANGE}.", "permission")
    events = [*context.restore_trials(boards, state, now.wall), *events]
    open_sweeps = [id for id in sweeps if state.sweeps[id].is_open]

    def reply(after: State) -> ActionReply:
        views = [_action_view(after, after.jobs[id]) for id in done]
        return ActionReply(done=views, skipped=skipped, sweeps=open_sweeps if sweeps else UNSET)

    return CommandResult(events=events, reply=reply)


def _action_view(state: State, job: Job) -> ActionView:
    """Return a job after the action, with the nodes that cannot learn of it yet."""
    unreachable = list(unreachable_since(state, job)) or UNSET
    return ActionView(id=job.id, label=job.label, state=job.state.value, unreachable=unreachable)


def _skip_reason(state: State, job: Job, body: r.End) -> str | None:
    """Return why the filters of a request exclude a selected job, or None."""
    spec = state.specs.get(job.spec)
    if body.client is not None and (spec is None or spec.client != body.client):
        return f"it was not submitted with {body.client}"
    if body.only == "waiting" and job.holding:
        return "it is running"
    if body.only == "running" and job.state is JobState.PENDING:
        return "it is not running"
    return None


def cancel(context: RequestContext, body: r.Cancel, state: State, now: Instant) -> CommandResult:
    """Cancel jobs."""

    def step(job: Job) -> list[e.Event] | str:
        if not job.finished and (excluded := _skip_reason(state, job, body)):
            return excluded
        if job.finished:
            return f"it has already ended ({job.cause or job.state.value.lower()})"
        return [e.JobCancelled(at=now.wall, job=job.id)]

    def sweep_step(sweep: int) -> e.Event:
        return e.SweepChanged(at=now.wall, sweep=sweep, ended=True)

    has_filter = body.only is not None or body.client is not None
    return for_each_job(context, body.select, state, now, step, None if has_filter else sweep_step)


def kill(context: RequestContext, body: r.Kill, state: State, now: Instant) -> CommandResult:
    """Send a signal to running jobs; without a signal, end jobs at once."""
    number = parse_signal(body.signal) if body.signal else None

    def step(job: Job) -> list[e.Event] | str:
        if not job.finished and (excluded := _skip_reason(state, job, body)):
            return excluded
        if number is None:
            if job.finished:
                return "it has already ended"
            return [e.JobCancelled(at=now.wall, job=job.id, at_once=True)]
        if job.state not in HOLDING:
            return "it is not running"
        return [e.JobSignalled(at=now.wall, job=job.id, signal=number, to_script=body.to_script)]

    return for_each_job(context, body.select, state, now, step)


def pause(context: RequestContext, body: r.Pause, state: State, now: Instant) -> CommandResult:
    """Suspend running jobs."""

    def step(job: Job) -> list[e.Event] | str:
        if job.state is JobState.QUEUED:
            return f"it is not running ({_state_text(job)})"
        if job.state is not JobState.RUNNING:
            return f"it is not running ({_state_text(job)}); to keep it from starting: hold"
        return [e.JobPaused(at=now.wall, job=job.id, boot=now.boot)]

    return for_each_job(context, body.select, state, now, step)


def _state_text(job: Job) -> str:
    """Return the state of a job; of one in the queue of a cluster, also where it is."""
    if job.state is JobState.QUEUED and job.placement is not None:
        return f"queued on {job.placement.node}: only cancel keeps it from starting"
    return job.state.value.lower()


def resume(context: RequestContext, body: r.Resume, state: State, now: Instant) -> CommandResult:
    """Continue suspended jobs."""

    def step(job: Job) -> list[e.Event] | str:
        if job.state is not JobState.SUSPENDED:
            return f"it is not paused ({job.state.value.lower()})"
        return [e.JobResumed(at=now.wall, job=job.id, boot=now.boot)]

    return for_each_job(context, body.select, state, now, step)


def hold(context: RequestContext, body: r.Hold, state: State, now: Instant) -> CommandResult:
    """Hold pending jobs."""

    def step(job: Job) -> list[e.Event] | str:
        if job.state is not JobState.PENDING:
            return f"it is not pending ({_state_text(job)})"
        return [] if job.held else [e.JobHeld(at=now.wall, job=job.id)]

    def sweep_step(sweep: int) -> e.Event:
        return e.SweepChanged(at=now.wall, sweep=sweep, held=True)

    return for_each_job(context, body.select, state, now, step, sweep_step)


def release(context: RequestContext, body: r.Release, state: State, now: Instant) -> CommandResult:
    """Release held jobs."""

    def step(job: Job) -> list[e.Event] | str:
        if not job.held or job.state is not JobState.PENDING:
            return "it is not held"
        return [e.JobReleased(at=now.wall, job=job.id)]

    def sweep_step(sweep: int) -> e.Event:
        return e.SweepChanged(at=now.wall, sweep=sweep, held=False, note="")

    return for_each_job(context, body.select, state, now, step, sweep_step)


def retry(context: RequestContext, body: r.Retry, state: State, now: Instant) -> CommandResult:
    """Requeue jobs; of a sweep that is selected as a whole, only those that failed."""
    sweeps: list[int] = []
    if body.select:
        ids = context.resolve(body.select, state)
        sweeps = _selected_sweeps(context, body.select, state)
    elif body.failed:
        ids = _failed_jobs(context, state, body)
    else:
        raise CommandRejected(
            "No job was named. Use an id, a range, a name, last or --failed.", "usage"
        )

    def step(job: Job) -> list[e.Event] | str:
        if body.running and job.state is JobState.RUNNING:
            return [
                e.PreemptionRequested(
                    at=now.wall, job=job.id, attempt=job.attempt, why="it was requeued by hand",
                    boot=now.boot, at_once=True,
                )
            ]  # fmt: skip
        if not job.finished:
            return f"it has not ended ({job.state.value.lower()})"
        if body.failed and job.state is JobState.COMPLETED:
            return "it succeeded"
        if job.array in sweeps and job.state is JobState.COMPLETED:
            return "it succeeded; to requeue it, name it"
        return [e.JobRetried(at=now.wall, job=job.id, same_devices=body.same_gpus)]

    result = _apply_to_jobs(context, ids, state, now, step, restore=True)
    return reply_only(ActionReply(count=len(ids))) if body.dry_run else result


def _failed_jobs(context: RequestContext, state: State, body: r.Retry) -> list[int]:
    """Return the failures that were not dismissed, or all of a period, without interactive jobs."""
    if not (body.all or body.since):
        failed = ((id, state.spec(state.jobs[id])) for id in state.unacknowledged)
        return sorted(id for id, spec in failed if not spec.pty and context.is_own(spec))
    since = parse_iso_time(body.since, "since")
    states = [job_state.value for job_state in FAILED_STATES]
    rows = context.store.find_jobs(JobQuery(states=states, since=since, limit=MAX_FAILURES_RETRIED))
    jobs = {row.job.id: (row.job, row.spec) for row in rows}
    jobs |= {id: (job, state.spec(job)) for id, job in state.jobs.items()}
    return sorted(
        id
        for id, (job, spec) in jobs.items()
        if job.state in FAILED_STATES
        and not spec.pty
        and context.is_own(spec)
        and (job.ended_at or 0.0) >= (since or 0.0)
    )


def dismiss(context: RequestContext, body: r.Dismiss, state: State, now: Instant) -> CommandResult:
    """Dismiss failures of the caller; without a selector, all of them."""
    ids = context.resolve(body.select, state) if body.select else list(state.unacknowledged)
    failures = tuple(
        id for id in ids
        if id in state.unacknowledged and context.is_own(state.spec(state.jobs[id]))
    )  # fmt: skip
    jobs = [state.jobs[id] for id in failures]
    done = [ActionView(id=job.id, label=job.label, state=job.state.value) for job in jobs]
    events: list[e.Event] = [e.FailuresDismissed(at=now.wall, jobs=failures)] if failures else []
    return CommandResult(events=events, reply=lambda _: ActionReply(done=done, skipped=[]))
