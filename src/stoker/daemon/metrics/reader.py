"""The figures of sweeps' trials, point by point: none is skipped, however many there are.

What a trial has reported is read on its own, beside what its attempt says of epochs and stops: the
reader of those may leap to the end of a long report, this one must not. An attempt's end is told
at once, and whatever is left of its points afterwards, in pieces, so that the loop never waits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from stoker.core.events import Event
from stoker.core.job import Job
from stoker.core.state import State
from stoker.daemon.metrics.store import kept
from stoker.daemon.reports.attempt_report import Key
from stoker.daemon.reports.format import LONGEST, Point, open_regular, points_of
from stoker.daemon.training.cleanup import attempt_of, names_in

PIECE = 128 * 1024
"""Bytes of one report that are read at a time."""
TURN = 4 * PIECE
"""Bytes of all reports together that are read in one turn of the loop."""
TOLD = "told"
"""A file beside a report: its end was told, so that the next daemon need not."""


class Scores(Protocol):
    """Who wants to know the figures of trials."""

    def news(self, job: Job, key: Key, points: list[Point], again: bool) -> list[Event]:
        """These came next. `again`: an earlier daemon may have told them, or some of them."""

    def over(self, job: Job, key: Key) -> list[Event]:
        """The attempt has ended, and that was all. A new daemon may say so once more."""


class Scrapes(Protocol):
    """Who finds the figures of jobs that do not report them."""

    def watch(self, job: Job, attempt: int, began: float | None = None) -> None:
        """Look for those of this attempt from now on; nothing older than its beginning is its."""

    def finish(self, job: Job, attempt: int) -> None:
        """It has ended: look at the rest, then say so."""

    def take_finished(self) -> list[Key]:
        """Those of which all was found, since the last time."""


class MetricsFile(Struct):
    """A file that holds points, and how far it has been read."""

    path: str
    again: int
    """Up to here an earlier daemon may have read it."""
    offset: int = 0
    rest: bytes = b""
    """The beginning of a line whose end has not come."""
    end: int | None = None
    """How long it was when its attempt was over: what is added to it later is not of that."""

    @property
    def read_through(self) -> bool:
        """Whether there is nothing more to come."""
        return self.end is not None and self.offset >= min(self.end, size_of(self.path))

    def read(self, most: int) -> tuple[list[Point], bool]:
        """The next points, and whether there is more."""
        fd = open_regular(self.path)
        if fd is None:
            return [], False
        try:
            size = os.fstat(fd).st_size
            if size < self.offset:  # somebody has cut it short
                self.offset, self.rest = 0, b""
            if self.end is not None:
                size = min(size, self.end)
            data = os.pread(fd, min(most, max(size - self.offset, 0)), self.offset)
        except OSError:
            return [], False
        finally:
            os.close(fd)
        self.offset += len(data)
        whole, _, self.rest = (self.rest + data).rpartition(b"\n")
        if len(self.rest) > LONGEST:  # its end will be no line of ours either
            self.rest = self.rest[: LONGEST + 1]
        return points_of(whole), bool(data) and self.offset < size


class AttemptMetrics(Struct):
    """One attempt whose points somebody wants, or that is still being searched for some."""

    job: Job
    key: Key
    places: list[MetricsFile]
    ended: bool = False
    searched: bool = True
    """Whether nobody is going to add to it any more, once it has ended."""

    @property
    def read_through(self) -> bool:
        """Whether all of its points were told."""
        return self.ended and self.searched and all(place.read_through for place in self.places)

    def settle(self) -> None:
        """Nothing that matters is added from now on."""
        for place in self.places:
            place.end = size_of(place.path)


class MetricsReader:
    """Reads the points of all trials that run, and of those that have just ended."""

    def __init__(
        self, home: str, state: Callable[[], State], release: Callable[[Key], None]
    ) -> None:
        self.home, self.state, self.release = home, state, release
        self.scores: Scores | None = None
        self.scrapes: Scrapes | None = None
        self.trails: dict[Key, AttemptMetrics] = {}
        self.behind: dict[Key, None] = {}
        """Those with more to read, the one that has waited longest first."""
        self.begun = False
        """Until then, what there is was there for an earlier daemon, too."""
        self._unmarked: list[Key] = []
        self._closed: set[Key] = set()
        """Those that were closed before we had looked around."""

    # -- who has one --------------------------------------------------------------------

    def begin(self) -> None:
        """Go on where the last daemon was: also with what it had not read of ended attempts."""
        running = {(job.id, job.attempt) for job in self.state().running.values()}
        for name in names_in(f"{self.home}/training"):
            key = attempt_of(name)
            job = self.state().jobs.get(key[0]) if key is not None else None
            if key is None or job is None or key in running or key[1] > job.attempt:
                continue
            if key in self._closed:
                continue
            if self._concerns(job) and not os.path.lexists(f"{self._directory(key)}/{TOLD}"):
                self._leave(self._trail(job, key))
        for job in self.state().running.values():
            self.started(job)
            if job.params is not None:
                self._trail(job, (job.id, job.attempt))
        self.begun = True

    def started(self, job: Job, at: float | None = None) -> None:
        """An attempt runs: if its figures must be searched for, that begins."""
        if self.scrapes is not None and self._source(job):
            self.scrapes.watch(job, job.attempt, at)

    def _concerns(self, job: Job) -> bool:
        return job.params is not None or self._source(job)

    def _source(self, job: Job) -> bool:
        return self.state().spec(job).source is not None

    def _directory(self, key: Key) -> str:
        return f"{self.home}/training/{key[0]}.{key[1]}"

    def _trail(self, job: Job, key: Key) -> AttemptMetrics:
        trail = self.trails.get(key)
        if trail is None:
            paths = (f"{self._directory(key)}/report", kept(self.home, key))
            places = [MetricsFile(path, 0 if self.begun else size_of(path)) for path in paths]
            searched = self.scrapes is None or not self._source(job)
            if job.params is None or self.scores is None:
                places = []  # nobody asks
            trail = self.trails[key] = AttemptMetrics(job, key, places, searched=searched)
        return trail

    # -- reading ------------------------------------------------------------------------

    def hear(self, job: Job) -> list[Event]:
        """There may be more of a running attempt."""
        if job.params is None or self.scores is None:
            return []
        return self._read(self._trail(job, (job.id, job.attempt)))

    def end(self, job: Job) -> list[Event]:
        """Its attempt is over: what is left of it now, if that is little."""
        if not self._concerns(job):
            return []
        trail = self._trail(job, (job.id, job.attempt))
        self._leave(trail)
        told: list[Event] = []
        for _ in range(TURN // PIECE):
            told += self._read(trail)
            if trail.key not in self.behind:
                break
        return told + self._close(trail) if trail.read_through else told

    def _leave(self, trail: AttemptMetrics) -> None:
        trail.ended = True
        if trail.searched:
            trail.settle()
        elif self.scrapes is not None:
            self.scrapes.finish(trail.job, trail.key[1])
        self.behind[trail.key] = None

    def turn(self) -> list[Event]:
        """Go on with those that have more, a bounded piece of it."""
        for key in self.scrapes.take_finished() if self.scrapes is not None else ():
            if key in self.trails:
                self.trails[key].searched = True
                self.trails[key].settle()
                self.behind[key] = None
        told: list[Event] = []
        for key in list(self.behind)[: TURN // PIECE]:
            trail = self.trails.get(key)
            if trail is None:
                del self.behind[key]
                continue
            told += self._read(trail)
            if trail.read_through:
                told += self._close(trail)
        return told

    def wait(self) -> float | None:
        """Seconds until a turn is wanted; None: something has to happen first."""
        return 0.0 if self.behind else None

    def _read(self, trail: AttemptMetrics) -> list[Event]:
        told: list[Event] = []
        self.behind.pop(trail.key, None)
        for place in trail.places:
            again = place.offset < place.again
            points, more = place.read(PIECE)
            if points and self.scores is not None and trail.job.params is not None:
                told += self.scores.news(self._job(trail), trail.key, points, again)
            if more:
                self.behind[trail.key] = None
        return told

    def _close(self, trail: AttemptMetrics) -> list[Event]:
        """All was told: its files may go when their time has come."""
        key = trail.key
        del self.trails[key]
        self.behind.pop(key, None)
        self._unmarked.append(key)
        if not self.begun:
            self._closed.add(key)
        job = self._job(trail)
        told = [] if self.scores is None or job.params is None else self.scores.over(job, key)
        self.release(key)
        return told

    def _job(self, trail: AttemptMetrics) -> Job:
        return self.state().jobs.get(trail.key[0], trail.job)

    def mark(self) -> None:
        """A turn begins: what was told in the one before is on record, and is not told again."""
        marked, self._unmarked = self._unmarked, []
        for key in marked:
            job = self.state().jobs.get(key[0])
            if job is not None and not job.finished:  # else the whole directory goes
                with contextlib.suppress(OSError):
                    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                    os.close(os.open(f"{self._directory(key)}/{TOLD}", flags, 0o600))

    def keeps(self, key: Key) -> bool:
        """Whether what this attempt has left is still needed."""
        return key in self.trails

    def reading(self) -> set[int]:
        """Jobs that are over, or have another attempt, and of whose figures some are to come."""
        return {key[0] for key, trail in self.trails.items() if trail.ended}

    def gone(self, job: int) -> None:
        """Forget attempts that are no more; what has been told as ended is closed by itself."""
        for key in [key for key in self.trails if key[0] == job]:
            found = self.state().jobs.get(job)
            current = found is not None and found.holding and found.attempt == key[1]
            if not current and not self.trails[key].ended:
                del self.trails[key]


def size_of(path: str) -> int:
    """Bytes of a file; none where there is none."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
