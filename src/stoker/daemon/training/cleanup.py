"""ReportCleanup: removes report and checkpoint directories that are no longer needed."""

from __future__ import annotations

import _thread
import contextlib
import os
from collections.abc import Callable, Iterable

from stoker.core.launch.training_env import unique_id
from stoker.core.model.job import AttemptId, Job
from stoker.core.state.state import State
from stoker.daemon.metrics.store import archive_metrics
from stoker.daemon.reports.paths import list_directory, parse_attempt_name
from stoker.store.port import JobQuery, Store

CHECKPOINT_RETENTION_SECONDS = 14 * 86400.0
"""How long checkpoints in stoker's own directory outlive their job."""
REMOVING_PREFIX = ".going-"
"""Prefix of directories that are being removed."""


def remove(paths: Iterable[str]) -> None:
    """Remove directories with their content, except the metrics in reports."""
    from shutil import rmtree

    for path in paths:
        archive_metrics(path)
        if os.path.islink(path) or not os.path.isdir(path):
            with contextlib.suppress(OSError):
                os.unlink(path)
        else:
            rmtree(path, ignore_errors=True)


class ReportCleanup:
    """Tracks report directories and which of them may be removed."""

    def __init__(self, root: str, is_in_use: Callable[[AttemptId], bool]) -> None:
        """`is_in_use`: whether an attempt's report is still to be read, though it has ended."""
        self.root, self.is_in_use = root, is_in_use
        self._attempts: dict[int, set[int]] = {}
        """Attempts with a directory, by job."""
        self._removable: list[str] = []

    @property
    def is_empty(self) -> bool:
        """Return True if no report directory is known."""
        return not self._attempts

    @property
    def has_removable(self) -> bool:
        """Return True if there is something to remove after the next sync."""
        return bool(self._removable)

    def add(self, key: AttemptId) -> None:
        """Record that an attempt has a report directory."""
        self._attempts.setdefault(key[0], set()).add(key[1])

    def update(self, id: int, job: Job | None) -> None:
        """Mark directories of a job removable that its current state no longer needs."""
        attempts = self._attempts.get(id)
        if attempts is None:
            return
        unneeded = {
            attempt
            for attempt in attempts
            if not _is_needed(job, attempt) and not self.is_in_use(AttemptId(id, attempt))
        }
        self._removable += [f"{self.root}/{AttemptId(id, attempt)}" for attempt in sorted(unneeded)]
        attempts -= unneeded
        if not attempts:
            del self._attempts[id]

    def scan(self, state: State) -> None:
        """Find the directories that earlier daemons have left."""
        for name in list_directory(self.root):
            key = parse_attempt_name(name)
            if key is not None and key[0] < state.record.next_id:
                self.add(key)  # higher ids belong to jobs that a damaged journal has lost
        for id in list(self._attempts):
            self.update(id, state.jobs.get(id))

    def take_removable(self) -> list[str]:
        """Return and forget the directories that may be removed after the next sync."""
        removable, self._removable = self._removable, []
        return removable


def _is_needed(job: Job | None, attempt: int) -> bool:
    """Return True until the attempt after this one has ended, too."""
    return job is not None and not job.finished and attempt >= job.attempt - 1


def expired_checkpoints(
    root: str, install: str, state: State, store: Store, now: float
) -> list[str]:
    """Rename checkpoint directories of jobs that ended long ago, and return the new paths."""
    prefix = unique_id(install, 0).removesuffix("0")
    candidates: dict[int, str] = {}
    expired = []
    for name in list_directory(root):
        path, number = f"{root}/{name}", name.removeprefix(prefix)
        if name.startswith(REMOVING_PREFIX):
            expired.append(path)
        elif number != name and number.isdecimal() and _is_old(path, now):
            job = state.jobs.get(int(number))
            if job is None or job.finished:
                candidates[int(number)] = path
    for id in _ended_before(now - CHECKPOINT_RETENTION_SECONDS, candidates, state, store):
        path = f"{root}/{REMOVING_PREFIX}{id}-{os.getpid()}"
        with contextlib.suppress(OSError):
            os.rename(candidates[id], path)
            expired.append(path)
    return expired


def _ended_before(time: float, ids: Iterable[int], state: State, store: Store) -> list[int]:
    """Return those of these finished jobs that ended before a time; unknown jobs are left out."""
    jobs = {id: state.jobs[id] for id in ids if id in state.jobs}
    unloaded = [id for id in ids if id not in jobs]
    rows = store.find_jobs(JobQuery(ids=unloaded, limit=len(unloaded))) if unloaded else []
    jobs |= {row.job.id: row.job for row in rows}
    return [id for id, job in jobs.items() if job.ended_at is not None and job.ended_at < time]


def _is_old(path: str, now: float) -> bool:
    """Return True if a directory was not changed lately; only then is the store queried."""
    try:
        return os.lstat(path).st_mtime < now - CHECKPOINT_RETENTION_SECONDS
    except OSError:
        return False


def remove_in_background(paths: list[str]) -> None:
    """Remove directories in a thread: checkpoints are large."""
    if paths:
        _thread.start_new_thread(remove, (paths,))
