"""SweepView and TrialView: sweeps and trials as the API shows them."""

from __future__ import annotations

from msgspec import convert
from msgspec.json import decode
from msgspec.structs import asdict

from stoker.core.model.job import Job
from stoker.core.model.sweep import CANCELLED, DONE, FAILED, RUNNING, STOPPED, WAITING, Sweep
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext
from stoker.daemon.views.format import estimate_view, iso
from stoker.daemon.views.job import STATE_CODES
from stoker.daemon.views.placement import devices_of, node_names
from stoker.daemon.views.visible import limit_sweep
from stoker.engine import Instant
from stoker.schema.sweep import BestTrial, SweepView, TrialView

TRIAL_STATUSES = (WAITING, RUNNING, DONE, STOPPED, FAILED, CANCELLED)


def sweep_view(context: RequestContext, state: State, sweep: Sweep, now: Instant) -> SweepView[str]:
    """Return a sweep: settings, progress, best trial, forecast."""
    forecast = context.forecast_sweep(sweep, state, now)
    end = forecast.end.likely if forecast is not None and forecast.end is not None else None
    derived = {
        "label": str(sweep.id),
        "goal": "maximize" if sweep.maximize else "minimize",
        "state": _sweep_state(sweep),
        "counts": {status: sweep.counts.get(status, 0) for status in TRIAL_STATUSES},
        "best": _best(context, state, sweep),
        "reading": _trials_being_read(context, state, sweep),
        "created_at": iso(sweep.created_at),
        "ended_at": iso(sweep.ended_at),
        "eta_seconds": round(end - now.wall, 3) if end is not None else None,
        "eta": iso(end),
        "foreseen": estimate_view(forecast) if forecast is not None else None,
    }
    view = convert(asdict(sweep) | derived, SweepView[str], from_attributes=True)
    return limit_sweep(view, context.access(sweep.uid))


def _trials_being_read(context: RequestContext, state: State, sweep: Sweep) -> int:
    """Return how many ended trials have metric points that are still being read."""
    board, reading = state.boards.get(sweep.id), context.jobs_being_read()
    return sum(id in reading for id in board.trials) if board is not None and reading else 0


def _sweep_state(sweep: Sweep) -> str:
    if not sweep.is_open:
        cancelled = sweep.ended and sweep.counts.get(CANCELLED) and not sweep.target_reached
        return "CANCELLED" if cancelled else "DONE"
    if sweep.counts.get(RUNNING):
        return "RUNNING"
    return "HELD" if sweep.held else "WAITING"


def _best(context: RequestContext, state: State, sweep: Sweep) -> BestTrial | None:
    if sweep.best_job is None:
        return None
    job = state.jobs.get(sweep.best_job) or context.job_and_spec(sweep.best_job, state)[0]
    params = decode(job.params or "{}")
    return BestTrial(value=sweep.best, id=job.id, label=job.label, params=params)


def trial_view(job: Job, now: Instant) -> TrialView[str]:
    """Return a trial: parameters, state, result."""
    score, names = job.score, node_names(job)
    started = job.started_at
    end = job.ended_at if job.finished else now.wall
    return TrialView(
        id=job.id,
        label=job.label,
        number=job.index,
        state=job.state.value,
        state_code=STATE_CODES[job.state],
        params=decode(job.params or "{}"),
        value=score.value if score is not None else None,
        step=score.step if score is not None else None,
        stopped=score is not None and score.stopped,
        attempt=job.attempt,
        started_at=iso(started),
        ended_at=iso(job.ended_at) if job.finished else None,
        elapsed=round(end - started, 3) if started is not None and end is not None else None,
        cause=job.cause,
        node=names[0] if names else None,
        devices=devices_of(job),
    )
