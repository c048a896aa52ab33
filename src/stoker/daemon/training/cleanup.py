"""What training jobs leave behind and nobody needs any more."""

from __future__ import annotations

import _thread
import contextlib
import os
from collections.abc import Callable, Iterable

from stoker.core.contract import unique_id
from stoker.core.job import Job
from stoker.core.state import State
from stoker.daemon.metrics import store as series
from stoker.store.port import JobQuery, Store

KEEP_CHECKPOINTS = 14 * 86400.0
"""Seconds that checkpoints in our own directory outlive their job."""
GOING = ".going-"
"""Before the names of directories that are being removed."""


def attempt_of(name: str) -> tuple[int, int] | None:
    """The attempt to which a directory of this name belongs."""
    job, _, attempt = name.partition(".")
    return (int(job), int(attempt)) if job.isdecimal() and attempt.isdecimal() else None


def remove(paths: Iterable[str]) -> None:
    """Remove directories, whatever is in them, but for the figures that stand in reports."""
    from shutil import rmtree

    for path in paths:
        series.keep(path)
        if os.path.islink(path) or not os.path.isdir(path):
            with contextlib.suppress(OSError):
                os.unlink(path)
        else:
            rmtree(path, ignore_errors=True)


class ReportCleanup:
    """The directories in which attempts have left reports."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.kept: dict[int, set[int]] = {}
        """The attempts of each job that have one."""
        self.over: list[str] = []
        """Those that nobody needs once what is on record is on disk."""
        self.needed: Callable[[tuple[int, int]], bool] = lambda _: False
        """Whether what an attempt has left is still to be read, though it is over."""

    def keep(self, key: tuple[int, int]) -> None:
        """This attempt has one."""
        self.kept.setdefault(key[0], set()).add(key[1])

    def look_at(self, id: int, job: Job | None) -> None:
        """How a job stands has changed."""
        kept = self.kept.get(id)
        if kept is None:
            return
        over = {
            attempt
            for attempt in kept
            if not wanted(job, attempt) and not self.needed((id, attempt))
        }
        self.over += [f"{self.root}/{id}.{attempt}" for attempt in sorted(over)]
        kept -= over
        if not kept:
            del self.kept[id]

    def look_at_all(self, state: State) -> None:
        """Find out what earlier daemons have left."""
        for name in names_in(self.root):
            key = attempt_of(name)
            if key is not None and key[0] < state.rest.next_id:
                self.keep(key)  # later ones are of jobs that a damaged journal has lost
        for id in list(self.kept):
            self.look_at(id, state.jobs.get(id))

    def take(self) -> list[str]:
        """Those that may go as soon as what is on record is on disk."""
        over, self.over = self.over, []
        return over


def wanted(job: Job | None, attempt: int) -> bool:
    """What an attempt left is kept until the next one has ended, too."""
    return job is not None and not job.finished and attempt >= job.attempt - 1


def checkpoints(root: str, install: str, state: State, store: Store, now: float) -> list[str]:
    """Checkpoints whose jobs ended long ago, under names that are not used again."""
    prefix = unique_id(install, 0).removesuffix("0")
    old: dict[int, str] = {}
    over = []
    for name in names_in(root):
        path, number = f"{root}/{name}", name.removeprefix(prefix)
        if name.startswith(GOING):
            over.append(path)
        elif number != name and number.isdecimal() and _untouched(path, now):
            job = state.jobs.get(int(number))
            if job is None or job.finished:
                old[int(number)] = path
    for id in _ended_before(now - KEEP_CHECKPOINTS, old, state, store):
        going = f"{root}/{GOING}{id}-{os.getpid()}"
        with contextlib.suppress(OSError):
            os.rename(old[id], going)
            over.append(going)
    return over


def _ended_before(moment: float, ids: Iterable[int], state: State, store: Store) -> list[int]:
    """Those of these finished jobs that ended before; of some, nobody knows any more."""
    found = {id: state.jobs[id] for id in ids if id in state.jobs}
    asked = [id for id in ids if id not in found]
    rows = store.past(JobQuery(ids=asked, limit=len(asked))) if asked else []
    found |= {row.job.id: row.job for row in rows}
    return [id for id, job in found.items() if job.ended_at is not None and job.ended_at < moment]


def _untouched(path: str, now: float) -> bool:
    """Whether it is old enough to ask the store about: most of what is there is not."""
    try:
        return os.lstat(path).st_mtime < now - KEEP_CHECKPOINTS
    except OSError:
        return False


def names_in(root: str) -> list[str]:
    """What lies in a directory; nothing if there is none."""
    try:
        return os.listdir(root)
    except OSError:
        return []


def remove_in_background(paths: list[str]) -> None:
    """Checkpoints are large: nobody waits for them to go."""
    if paths:
        _thread.start_new_thread(remove, (paths,))
