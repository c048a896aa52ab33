"""What every request handler has at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from msgspec import Struct

from stoker.core.events import Event, JobRecalled, TrialsRecalled
from stoker.core.job import Job, Spec
from stoker.core.outlook import Told
from stoker.core.selectors import NotFound, select, sweep_meant
from stoker.core.state import State
from stoker.core.sweep import Sweep, Trial, trial_of
from stoker.core.units import BadValue
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.faults import FaultTracker
from stoker.store.port import JobQuery, Store

CommandHandler = Callable[[State, Instant], CommandResult]


class RequestContext(Struct):
    """The store, the places and the settings, without the state: that comes with each turn."""

    store: Store
    logs: str
    node: str
    user: str
    place: str = ""
    """What the store is called, without a password."""
    engine: str = ""
    """The container engine to use; empty: podman or docker."""
    alerts: list[str] = []
    """What went wrong before: told once to whoever submits next."""
    live: Callable[[int], dict[str, Any]] = lambda _: {}
    """What is seen of a running job but not kept: its step, its metrics, its memory."""
    uploads: Callable[[Job], list[dict[str, Any]]] = lambda _: []
    """The uploads of a job's files to nodes, while they are under way."""
    foreseen: Callable[[int, State, Instant], Told | None] = lambda *_: None
    """When a job starts and ends, if there is a forecast."""
    foreseen_sweep: Callable[[Sweep, State, Instant], Told | None] = lambda *_: None
    """When the last trial of a sweep ends, if there is a forecast."""
    reading: Callable[[], Collection[int]] = tuple
    """Jobs that are over and whose figures are still being read."""
    faults: FaultTracker | None = None
    """Internal errors of this daemon."""
    remembered: dict[int, tuple[Job, Spec]] = {}
    """Finished jobs read back from the store, for the length of one request."""

    def recall(self, id: int) -> Job | None:
        """A job that has left memory."""
        found = self.found(id)
        return found[0] if found else None

    def found(self, id: int) -> tuple[Job, Spec] | None:
        """A job and its spec from the store."""
        if id not in self.remembered:
            if len(self.remembered) > 1000:
                self.remembered.clear()
            rows = self.store.past(JobQuery(ids=[id], limit=1))
            if not rows:
                return None
            self.remembered[id] = (rows[0].job, rows[0].spec)
        return self.remembered[id]

    def by_name(self, name: str) -> list[int]:
        """The newest finished job of this name."""
        rows = self.store.past(JobQuery(name=name, limit=1))
        return [rows[-1].job.id] if rows else []

    def ids(self, words: list[str], state: State) -> list[int]:
        """The ids that selectors mean; refuses what means nothing."""
        self.remembered.clear()
        try:
            return select(words, state, self.recall, self.by_name, self.store.members)
        except NotFound as error:
            raise CommandRejected(str(error), "not_found") from None
        except BadValue as error:
            raise CommandRejected(str(error), "usage") from None

    def one(self, word: str, state: State) -> int:
        """The first of the jobs that a selector means; a sweep may have none yet."""
        ids = self.ids([word], state)
        if not ids:
            note = next(
                (s.note for s in state.sweeps.values() if s.id == sweep_meant(word, state)), None
            )
            raise CommandRejected(
                f"Sweep {word} has no trials yet{f': {note}' if note else ''}.", "not_found"
            )
        return ids[0]

    def either(self, id: int, state: State) -> tuple[Job, Spec]:
        """A job from memory or from the store."""
        job = state.jobs.get(id)
        if job is not None:
            return job, state.spec(job)
        found = self.found(id)
        if found is None:
            raise CommandRejected(f"There is no job {id}.", "not_found")
        return found

    def boards(self, sweeps: Iterable[int | None], state: State, at: float) -> list[Event]:
        """The facts that bring the trials of these sweeps back to memory."""
        events: list[Event] = []
        for id in sweeps:
            if id is not None and id in state.sweeps and id not in state.boards:
                trials = tuple(self.trials(state.sweeps[id], state))
                events.append(TrialsRecalled(at=at, sweep=id, trials=trials))
        return events

    def trials(self, sweep: Sweep, state: State) -> list[Trial]:
        """All trials of a sweep, also when they have left memory."""
        board = state.boards.get(sweep.id)
        if board is not None:
            return list(board.trials.values())
        rows = self.store.past(JobQuery(array=sweep.id, limit=max(sweep.issued, 1)))
        return [trial_of(row.job) for row in rows]

    def recalled(self, ids: list[int], state: State, at: float) -> list[Event]:
        """The facts that bring finished jobs back to memory."""
        events: list[Event] = []
        for id in ids:
            if id not in state.jobs and id not in state.sweeps:
                job, spec = self.either(id, state)
                events.append(JobRecalled(at=at, job=job, spec=spec))
        return events


def daemon_stopping() -> CommandRejected:
    """The answer to whoever asks a daemon that has just ended."""
    return CommandRejected("The daemon has just ended. Try again.", "daemon_stopping")


def reply_only(value: Any) -> CommandResult:
    """An answer that changes nothing."""
    return CommandResult(reply=lambda _: value)


def system_clock() -> Instant:
    """The real time."""
    return Instant(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))
