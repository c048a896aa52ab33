"""Change the queue order of pending jobs."""

from __future__ import annotations

from stoker.core import events as e
from stoker.core.model.job import RANK_STEP, Job, JobState
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r
from stoker.schema.job import ActionReply, ActionView


def move(context: RequestContext, body: r.Move, state: State, now: Instant) -> CommandResult:
    """Move pending jobs to the front, to the back, or next to another job."""
    ids = context.resolve(body.select, state) if body.select else []
    if not ids:
        raise CommandRejected("No job was named. Use an id, a range or a name.", "usage")
    pending: list[Job] = []
    done, skipped = [], []
    for id in ids:
        job, spec = context.job_and_spec(id, state)
        context.require_management(spec.uid, f"Job {job.label} belongs to {job.user}")
        if job.state is JobState.PENDING:
            pending.append(job)
            done.append(ActionView(id=id, label=job.label, state=job.state.value))
        else:
            skipped.append(ActionView(id=id, label=job.label, why="it is not pending"))
    moves = _moves if context.is_admin else _moves_among_own
    events = moves(context, body, pending, state, now) if pending else []
    return CommandResult(events=events, reply=lambda _: ActionReply(done=done, skipped=skipped))


def _moves(
    context: RequestContext, body: r.Move, jobs: list[Job], state: State, now: Instant
) -> list[e.Event]:
    moved = {job.id for job in jobs}
    others = sorted(
        (
            job
            for job in state.jobs.values()
            if job.state is JobState.PENDING and job.id not in moved
        ),
        key=lambda job: (-job.priority, job.order),
    )
    position, priority = _target(context, body, jobs, others, state)
    same = [job for job in others if job.priority == priority]
    before = others[position - 1] if position and others[position - 1] in same else None
    after = others[position] if position < len(others) and others[position] in same else None
    low = before.order if before else (after.order if after else 0) - RANK_STEP * (len(jobs) + 1)
    high = after.order if after else low + RANK_STEP * (len(jobs) + 1)
    gap = (high - low) // (len(jobs) + 1)
    if gap < 1:
        raise CommandRejected(
            "There is no position left between those two jobs; use --first.", "failed"
        )
    return [
        e.JobMoved(at=now.wall, job=job.id, priority=priority, rank=low + gap * n)
        for n, job in enumerate(jobs, 1)
    ]


def _moves_among_own(
    context: RequestContext, body: r.Move, jobs: list[Job], state: State, now: Instant
) -> list[e.Event]:
    """Return the moves that exchange the positions of jobs of one user: no other job waits longer.

    Only jobs of equal priority are exchanged.
    """
    owner, priority = state.spec(jobs[0]).uid, jobs[0].priority
    own = [
        job
        for job in state.jobs.values()
        if job.state is JobState.PENDING
        and job.priority == priority
        and state.spec(job).uid == owner
    ]
    own.sort(key=lambda job: job.order)
    moved = {job.id for job in jobs}
    others = [job for job in own if job.id not in moved]
    if len(others) + len(jobs) != len(own):
        raise CommandRejected("Name jobs of one user and of equal priority.", "usage")
    position = 0 if body.where == "first" else len(others)
    if body.where in ("before", "after"):
        named = context.resolve([body.other], state) if body.other else []
        ids = [job.id for job in others]
        if len(named) != 1 or named[0] not in ids:
            raise CommandRejected(
                f"'{body.other}' is not another pending job of this user with this priority.",
                "usage",
            )
        position = ids.index(named[0]) + (body.where == "after")
    reordered = [*others[:position], *jobs, *others[position:]]
    return [
        e.JobMoved(at=now.wall, job=job.id, priority=priority, rank=place.order)
        for job, place in zip(reordered, own, strict=True)
        if job.order != place.order
    ]


def _target(
    context: RequestContext, body: r.Move, jobs: list[Job], others: list[Job], state: State
) -> tuple[int, int]:
    """Return the position among the other pending jobs, and the priority to get there."""
    if body.where in ("before", "after"):
        named = context.resolve([body.other], state) if body.other else []
        ids = [job.id for job in others]
        if len(named) != 1 or named[0] not in ids:
            raise CommandRejected(f"'{body.other}' is not another pending job.", "usage")
        position = ids.index(named[0])
        return position + (body.where == "after"), others[position].priority
    first = body.where == "first"
    edge = others[0 if first else -1] if others else jobs[0]
    pick = max if first else min
    priority = pick(edge.priority, *(job.priority for job in jobs))
    return 0 if first else len(others), priority
