"""RequestContext: what every request handler is given."""

from __future__ import annotations

from _blake2 import blake2b
from collections.abc import Callable, Collection, Container, Iterable
from typing import Any

from msgspec import Struct
from msgspec.json import encode

from stoker.core.events import Event, JobLoaded, SpecRecorded, TrialsLoaded
from stoker.core.explain.forecast import StartEndEstimate
from stoker.core.model.job import Job
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep, Trial, trial_of
from stoker.core.state.state import State
from stoker.daemon.selectors import NotFound, select, selected_sweep
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.faults import FaultTracker
from stoker.schema.job import UploadView
from stoker.store.port import JobQuery, Store

CommandHandler = Callable[[State, Instant], CommandResult]


class RequestContext(Struct):
    """Store, paths and services; the state is an argument of each handler."""

    store: Store
    logs: str
    node: str
    user: str
    store_name: str = ""
    """The store for users, without its password."""
    container_engine: str = ""
    """The container engine to use; empty: podman or docker."""
    alerts: list[str] = []
    """Warnings of the start, shown with the next submission."""
    live: Callable[[int], dict[str, Any]] = lambda _: {}
    """Returns step, metrics and memory of a running job, which are not stored."""
    uploads: Callable[[Job], list[UploadView]] = lambda _: []
    """Returns the uploads of a job's files that are under way."""
    forecast: Callable[[int, State, Instant], StartEndEstimate | None] = lambda *_: None
    """Returns when a job starts and ends, if there is a forecast."""
    forecast_sweep: Callable[[Sweep, State, Instant], StartEndEstimate | None] = lambda *_: None
    """Returns when the last trial of a sweep ends, if there is a forecast."""
    predicted_jobs: Callable[[], Container[int]] = tuple
    """Returns the jobs of the last forecast."""
    configured_nodes: Callable[[], Collection[str]] = tuple
    """Returns the names of the nodes in config.toml."""
    jobs_being_read: Callable[[], Collection[int]] = tuple
    """Returns the finished jobs with metrics that are still being read."""
    notify_targets: Callable[[], Collection[str]] = tuple
    """Returns the names of the targets of notifications."""
    sends_mail: Callable[[], bool] = lambda: True
    """Returns whether this machine can send e-mail."""
    faults: FaultTracker | None = None
    """Internal errors of this daemon."""

    def take_alerts(self) -> list[str]:
        """Return and remove the alerts."""
        alerts, self.alerts = self.alerts, []
        return alerts

    def load_job(self, id: int) -> Job | None:
        """Return a finished job from the store."""
        stored = self.load_finished(id)
        return stored[0] if stored else None

    def load_finished(self, id: int) -> tuple[Job, Spec] | None:
        """Return a finished job and its spec from the store."""
        rows = self.store.find_jobs(JobQuery(ids=[id], limit=1))
        return (rows[0].job, rows[0].spec) if rows else None

    def by_name(self, name: str) -> list[int]:
        """Return the id of the newest finished job of this name."""
        rows = self.store.find_jobs(JobQuery(name=name, limit=1))
        return [rows[-1].job.id] if rows else []

    def resolve(self, selectors: list[str], state: State) -> list[int]:
        """Return the ids that selectors name; reject a selector that names no job."""
        try:
            return select(selectors, state, self.load_job, self.by_name, self.store.members)
        except NotFound as error:
            raise CommandRejected(str(error), "not_found") from None

    def resolve_one(self, selector: str, state: State) -> int:
        """Return the first job that a selector names; reject a sweep without trials."""
        ids = self.resolve([selector], state)
        if not ids:
            sweep = state.sweeps.get(selected_sweep(selector, state) or 0)
            note = f": {sweep.note}" if sweep is not None and sweep.note else ""
            raise CommandRejected(f"Sweep {selector} has no trials yet{note}.", "not_found")
        return ids[0]

    def job_and_spec(self, id: int, state: State) -> tuple[Job, Spec]:
        """Return a job and its spec, from memory or from the store."""
        job = state.jobs.get(id)
        if job is not None:
            return job, state.spec(job)
        stored = self.load_finished(id)
        if stored is None:
            raise CommandRejected(f"There is no job {id}.", "not_found")
        return stored

    def restore_trials(self, sweeps: Iterable[int | None], state: State, at: float) -> list[Event]:
        """Return the events that load the trials of these sweeps into memory."""
        events: list[Event] = []
        for id in sweeps:
            if id is not None and id in state.sweeps and id not in state.boards:
                trials = tuple(self.trials(state.sweeps[id], state))
                events.append(TrialsLoaded(at=at, sweep=id, trials=trials))
        return events

    def trials(self, sweep: Sweep, state: State) -> list[Trial]:
        """Return all trials of a sweep, from memory or from the store."""
        board = state.boards.get(sweep.id)
        if board is not None:
            return list(board.trials.values())
        rows = self.store.find_jobs(JobQuery(array=sweep.id, limit=max(sweep.issued, 1)))
        return [trial_of(row.job) for row in rows]

    def restore_jobs(self, ids: list[int], state: State, at: float) -> list[Event]:
        """Return the events that load finished jobs into memory."""
        events: list[Event] = []
        for id in ids:
            if id not in state.jobs and id not in state.sweeps:
                job, spec = self.job_and_spec(id, state)
                events.append(JobLoaded(at=at, job=job, spec=spec))
        return events


def content_hash(data: bytes) -> str:
    """Return the hash under which specs, scripts and environments are stored."""
    return blake2b(data, digest_size=16).hexdigest()


def record_spec(state: State, spec: Spec, at: float) -> tuple[str, list[Event]]:
    """Return the hash of a spec, and the event that records it unless it is known."""
    hash = content_hash(encode(spec))
    return hash, [] if hash in state.specs else [SpecRecorded(at=at, hash=hash, spec=spec)]


def daemon_stopping() -> CommandRejected:
    """Return the rejection of commands that reach a daemon that has just ended."""
    return CommandRejected("The daemon has just ended. Try again.", "stopping")


def reply_only(value: Any) -> CommandResult:
    """An answer that changes nothing."""
    return CommandResult(reply=lambda _: value)
