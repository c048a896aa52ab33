"""RequestContext: what every request handler is given."""

from __future__ import annotations

import os
from _blake2 import blake2b
from collections.abc import Callable, Collection, Container, Iterable
from typing import Any, Protocol

from msgspec import Struct
from msgspec.json import encode

from stoker.core.events import Event, GroupsRecorded, JobLoaded, SpecRecorded, TrialsLoaded
from stoker.core.explain.forecast import StartEndEstimate
from stoker.core.model.job import Job
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep, Trial, trial_of
from stoker.core.state.limits import AppliedLimits
from stoker.core.state.state import State
from stoker.daemon.identities import Identities
from stoker.daemon.rights import Access, Caller, access_to, may_manage
from stoker.daemon.selectors import NotFound, select, selected_sweep
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.faults import FaultTracker
from stoker.schema.job import UploadView
from stoker.store.port import JobQuery, Store

WHO_MAY_CHANGE = "only its user, leaders of its group and administrators may change it"

CommandHandler = Callable[[State, Instant], CommandResult]


class FileData(Protocol):
    """A part of a user's file, or why it cannot be read."""

    @property
    def data(self) -> bytes:
        """The bytes."""

    @property
    def size(self) -> int:
        """The size of the file; -1: unknown."""

    @property
    def changed_at(self) -> float:
        """When the file was written last."""

    @property
    def error(self) -> str:
        """Why it cannot be read; empty if it could."""


ReadUserFile = Callable[[int, str, int, int, Callable[[FileData], None]], None]
"""Reads a part of a file: uid, path, offset, size, and what to call with it."""


def _no_users(*_: object) -> None:
    raise CommandRejected("The files of this daemon's user are its own.", "failed")


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
    state_dir: str = ""
    """The directory of the daemon's own files; empty: where `logs` is."""
    read_user_file: ReadUserFile = _no_users
    """Has the process of a user read a file, in system mode."""
    faults: FaultTracker | None = None
    """Internal errors of this daemon."""
    identities: Identities | None = None
    """Users of the machine and their rights, in system mode; None: there is one user."""
    caller: Caller | None = None
    """The user of this request, in system mode; None: the daemon itself."""

    @property
    def directory(self) -> str:
        """The directory of the daemon's own files."""
        return self.state_dir or os.path.dirname(self.logs)

    @property
    def is_system(self) -> bool:
        """Whether the daemon serves all users of the machine."""
        return self.identities is not None

    @property
    def is_admin(self) -> bool:
        """Whether the caller may see and change everything."""
        return self.caller is None or self.caller.is_admin

    @property
    def uid(self) -> int | None:
        """The uid of the submitter; None in single-user mode."""
        return self.caller.uid if self.caller is not None else None

    @property
    def submitter(self) -> str:
        """The name of the user that submits jobs."""
        return self.caller.name if self.caller is not None else self.user

    def own_key(self, key: str) -> str:
        """Return the key of a submission, such that those of other users differ."""
        return f"{self.uid}/{key}" if key and self.uid is not None else key

    def access(self, owner: int | None) -> Access:
        """Return how much of the jobs of a user the caller may see."""
        if self.caller is None or self.identities is None:
            return Access.ALL
        return access_to(self.caller, owner, self._groups_of(owner), self.identities.private)

    def may_manage(self, owner: int | None) -> bool:
        """Return whether the caller may change the jobs of a user."""
        return self.caller is None or may_manage(self.caller, owner, self._groups_of(owner))

    def _groups_of(self, owner: int | None) -> frozenset[int]:
        """Return the groups of a user, as far as they matter."""
        if owner is None or self.identities is None or not (self.caller and self.caller.leads):
            return frozenset()
        return self.identities.user(owner).groups

    def is_own(self, spec: Spec) -> bool:
        """Return whether a job belongs to the caller."""
        return self.caller is None or spec.uid == self.caller.uid

    def require(self, access: Access, job: Job, spec: Spec) -> None:
        """Reject a request to see more of a job than the caller may."""
        if self.access(spec.uid) < access:
            raise CommandRejected(
                f"Job {job.label} belongs to {job.user}: only {job.user}, leaders of its group and"
                " administrators may see this.",
                "permission",
            )

    def require_sweep(self, access: Access, sweep: Sweep) -> None:
        """Reject a request to see more of a sweep than the caller may."""
        if self.access(sweep.uid) < access:
            raise CommandRejected(
                f"Sweep {sweep.id} belongs to {sweep.user}: only {sweep.user}, leaders of its group"
                " and administrators may see this.",
                "permission",
            )

    def require_management(self, owner: int | None, belongs: str) -> None:
        """Reject a change of what belongs to a user, as `belongs` says, if the caller may not."""
        if not self.may_manage(owner):
            raise CommandRejected(f"{belongs}; {WHO_MAY_CHANGE}.", "permission")

    def group_events(self, uid: int | None, state: State, at: float) -> list[Event]:
        """Return the event that records the groups of a user, if they have changed."""
        if uid is None or self.identities is None:
            return []
        groups = self._sorted_groups(uid)
        name, record = self.identities.user(uid).name, state.record
        if record.groups.get(f"user:{uid}") == groups and record.uids.get(name) == uid:
            return []
        return [GroupsRecorded(at=at, uid=uid, groups=groups, user=name)]

    def groups_of_users(self, state: State, at: float) -> list[Event]:
        """Return the events that record the groups of all users with jobs in memory."""
        uids = {spec.uid for spec in state.specs.values() if spec.uid is not None}
        return [event for uid in sorted(uids) for event in self.group_events(uid, state, at)]

    def _sorted_groups(self, uid: int | None) -> tuple[int, ...]:
        if uid is None or self.identities is None:
            return ()
        return tuple(sorted(self.identities.user(uid).groups))

    def limits_of(self, spec: Spec, state: State) -> list[AppliedLimits]:
        """Return the limits of a job, by the groups that its user has now."""
        return list(state.limits.of(spec, self._sorted_groups(spec.uid)))

    def require_admin(self, what: str) -> None:
        """Reject a change that only administrators may make."""
        if not self.is_admin:
            raise CommandRejected(f"Only administrators may {what}; ask one of them.", "permission")

    def check_priority(self, priority: int | None, usual: int) -> None:
        """Reject a priority above the usual one: it would delay the jobs of other users."""
        if priority is not None and priority > usual and not self.is_admin:
            raise CommandRejected(
                f"Only administrators may give a priority above {usual}; lower that of your other"
                " jobs instead.",
                "permission",
            )

    def take_alerts(self) -> list[str]:
        """Return and remove the alerts; they are for those that run the daemon."""
        if not self.is_admin:
            return []
        alerts = self.alerts[:]
        self.alerts.clear()
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
        user = self.caller.name if self.caller is not None else None
        rows = self.store.find_jobs(JobQuery(name=name, user=user, limit=1))
        return [rows[-1].job.id] if rows else []

    def resolve(self, selectors: list[str], state: State) -> list[int]:
        """Return the ids that selectors name; reject a selector that names no job."""
        try:
            return select(
                selectors, state, self.load_job, self.by_name, self.store.members, self.uid
            )
        except NotFound as error:
            raise CommandRejected(str(error), "not_found") from None

    def resolve_one(self, selector: str, state: State) -> int:
        """Return the first job that a selector names; reject a sweep without trials."""
        ids = self.resolve([selector], state)
        if not ids:
            sweep = state.sweeps.get(selected_sweep(selector, state, self.uid) or 0)
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
