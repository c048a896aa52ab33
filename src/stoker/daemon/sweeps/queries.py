"""GET and POST /sweeps/...: list, show and change sweeps."""

from __future__ import annotations

from stoker.core import events as e
from stoker.core.model.sweep import Sweep
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, reply_only
from stoker.daemon.rights import Access
from stoker.daemon.selectors import selected_sweep
from stoker.daemon.sweeps.stored import load_sweep
from stoker.daemon.sweeps.views import sweep_view, trial_view
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r
from stoker.schema.sweep import SweepDetail, SweepList
from stoker.store.port import JobQuery


def list_sweeps(context: RequestContext, all: bool, state: State, now: Instant) -> CommandResult:
    """Return all sweeps, or only the open ones."""
    sweeps = [sweep for sweep in state.sweeps.values() if all or sweep.is_open]
    return reply_only(
        SweepList(sweeps=[sweep_view(context, state, sweep, now) for sweep in sweeps])
    )


def show_sweep(context: RequestContext, selector: str, state: State, now: Instant) -> CommandResult:
    """Return a sweep with its definition and all of its trials, by number."""
    sweep = find_sweep(context, state, selector)
    context.require_sweep(Access.DETAILS, sweep)
    query = JobQuery(array=sweep.id, limit=max(sweep.issued, 1))
    stored = [row.job for row in context.store.find_jobs(query)]
    trials = [state.jobs.get(job.id, job) for job in stored]
    return reply_only(
        SweepDetail(
            sweep=sweep_view(context, state, sweep, now),
            definition=load_sweep(context, sweep).definition,
            trials=[trial_view(job, now) for job in trials],
        )
    )


def find_sweep(context: RequestContext, state: State, selector: str) -> Sweep:
    """Return the sweep that a selector names; reject any other selector."""
    id = selected_sweep(selector, state, context.uid)
    if id is None:
        raise CommandRejected(f"There is no sweep {selector}; see stoker sweep list.", "not_found")
    return state.sweeps[id]


def change_sweep(
    context: RequestContext, selector: str, body: r.ChangeSweep, state: State, now: Instant
) -> CommandResult:
    """Change the parallelism or the priority of a sweep, and of its unfinished trials."""
    sweep = find_sweep(context, state, selector)
    context.require_management(sweep.uid, f"Sweep {sweep.id} belongs to {sweep.user}")
    if body.max_running is None and body.priority is None:
        raise CommandRejected("Nothing to change: give max_running or priority.", "usage")
    context.check_priority(body.priority, sweep.priority)
    events: list[e.Event] = [
        e.SweepChanged(
            at=now.wall, sweep=sweep.id, max_running=body.max_running, priority=body.priority
        )
    ]
    board = state.boards.get(sweep.id)
    for id in board.trials if board is not None and body.priority is not None else ():
        job = state.jobs.get(id)
        if job is not None and not job.finished and body.priority is not None:
            events.append(
                e.JobEdited(
                    at=now.wall, job=id, spec=job.spec, name=job.name, priority=body.priority,
                    begin_at=job.begin_at,
                )
            )  # fmt: skip
    return CommandResult(
        events=events,
        reply=lambda after: sweep_view(context, after, after.sweeps[sweep.id], now),
    )
