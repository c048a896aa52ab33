"""Sweeps as the API shows them."""

from __future__ import annotations

from typing import Any

from msgspec.json import decode

from stoker.core import events as e
from stoker.core.job import Job, Spec
from stoker.core.lifecycle import SHORT
from stoker.core.state import State
from stoker.core.sweep import CANCELLED, DONE, FAILED, RUNNING, STOPPED, WAITING, Sweep
from stoker.daemon.context import CommandHandler, RequestContext, reply_only
from stoker.daemon.sweeps.submit import kept
from stoker.daemon.views.job import estimate_view, iso
from stoker.daemon.views.placement import devices_of, machines
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r
from stoker.store.port import JobQuery

WORDS = (WAITING, RUNNING, DONE, STOPPED, FAILED, CANCELLED)
RUNS = 20
"""How many earlier trials an expectation is drawn from."""


def listed(desk: RequestContext, all: bool) -> CommandHandler:
    """Every sweep, or those that go on."""

    def decide(state: State, now: Instant) -> CommandResult:
        shown = [sweep for sweep in state.sweeps.values() if all or sweep.open]
        return reply_only({"sweeps": [sweep_view(desk, state, sweep, now) for sweep in shown]})

    return decide


def whole(desk: RequestContext, word: str) -> CommandHandler:
    """One sweep with all its trials, in the order of their numbers."""

    def decide(state: State, now: Instant) -> CommandResult:
        sweep = found(state, word)
        rows = [(row.job, row.spec) for row in desk.store.past(_all(sweep))]
        fresh = ((state.jobs.get(job.id, job), spec) for job, spec in rows)
        asked = kept(desk, sweep)
        return reply_only(
            {
                "sweep": sweep_view(desk, state, sweep, now),
                "definition": asked.definition,
                "trials": [trial_view(job, spec, now) for job, spec in fresh],
            }
        )

    return decide


def _all(sweep: Sweep) -> JobQuery:
    return JobQuery(array=sweep.id, limit=max(sweep.issued, 1))


def found(state: State, word: str) -> Sweep:
    """The sweep that is meant."""
    from stoker.core.selectors import sweep_meant

    id = sweep_meant(word, state)
    if id is None:
        raise CommandRejected(f"There is no sweep {word}; see stoker sweep list.", "not_found")
    return state.sweeps[id]


def change(desk: RequestContext, word: str, body: r.ChangeSweep) -> CommandHandler:
    """Change a sweep."""

    def decide(state: State, now: Instant) -> CommandResult:
        sweep = found(state, word)
        if body.max_running is None and body.priority is None:
            raise CommandRejected("Nothing to change: give max_running or priority.", "usage")
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
            events=events, reply=lambda after: sweep_view(desk, after, after.sweeps[sweep.id], now)
        )

    return decide


def sweep_view(desk: RequestContext, state: State, sweep: Sweep, now: Instant) -> dict[str, Any]:
    """One sweep: what it is, how far it is, what it has found."""
    told = desk.foreseen_sweep(sweep, state, now)
    end = told.end.likely if told is not None and told.end is not None else None
    return {
        "id": sweep.id,
        "label": str(sweep.id),
        "name": sweep.name,
        "user": sweep.user,
        "method": sweep.method,
        "metric": sweep.metric,
        "goal": "maximize" if sweep.maximize else "minimize",
        "state": _state(sweep),
        "counts": {word: sweep.counts.get(word, 0) for word in WORDS},
        "issued": sweep.issued,
        "total": sweep.total,
        "best": _best(desk, state, sweep),
        "max_running": sweep.max_running,
        "priority": sweep.priority,
        "held": sweep.held,
        "reading": _reading(desk, state, sweep),
        "note": sweep.note,
        "created_at": iso(sweep.created_at),
        "ended_at": iso(sweep.ended_at),
        "eta_seconds": round(end - now.wall, 3) if end is not None else None,
        "eta": iso(end),
        "foreseen": estimate_view(told) if told is not None else None,
    }


def _reading(desk: RequestContext, state: State, sweep: Sweep) -> int:
    """How many trials have ended whose figures are still being read."""
    board, reading = state.boards.get(sweep.id), desk.reading()
    return sum(id in reading for id in board.trials) if board is not None and reading else 0


def _state(sweep: Sweep) -> str:
    if not sweep.open:
        given_up = sweep.ended and sweep.counts.get(CANCELLED) and not sweep.reached
        return "CANCELLED" if given_up else "DONE"
    if sweep.counts.get(RUNNING):
        return "RUNNING"
    return "HELD" if sweep.held else "WAITING"


def _best(desk: RequestContext, state: State, sweep: Sweep) -> dict[str, Any] | None:
    if sweep.best_job is None:
        return None
    job = state.jobs.get(sweep.best_job) or desk.job_and_spec(sweep.best_job, state)[0]
    return {
        "value": sweep.best, "id": job.id, "label": job.label, "params": decode(job.params or "{}"),
    }  # fmt: skip


def trial_view(job: Job, spec: Spec, now: Instant) -> dict[str, Any]:
    """One trial: what it tries, and what came of it."""
    score, names = job.score, machines(job)
    started = job.started_at
    end = job.ended_at if job.finished else now.wall
    return {
        "id": job.id,
        "label": job.label,
        "number": job.index,
        "state": job.state.value,
        "state_code": SHORT[job.state],
        "params": decode(job.params or "{}"),
        "value": score.value if score is not None else None,
        "step": score.step if score is not None else None,
        "stopped": score is not None and score.stopped,
        "attempt": job.attempt,
        "started_at": iso(started),
        "ended_at": iso(job.ended_at) if job.finished else None,
        "elapsed": round(end - started, 3) if started is not None and end is not None else None,
        "cause": job.cause,
        "node": names[0] if names else None,
        "devices": devices_of(job),
    }
