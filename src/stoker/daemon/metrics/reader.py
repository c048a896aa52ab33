"""MetricsReader: every metric point of running and just-ended trials, in bounded pieces.

Points are read separately from epochs and stops: that reader may skip to the end of a long
report, this one must not. The end of an attempt is published at once, the remaining points in
pieces afterwards, so that the loop never waits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from msgspec import Struct

from stoker.core.events import Event
from stoker.core.model.job import AttemptId, Job
from stoker.core.state.state import State
from stoker.daemon.metrics.scorer import TrialScorer
from stoker.daemon.metrics.store import archived_report
from stoker.daemon.reports.format import LineFile, metric_points
from stoker.daemon.reports.paths import list_directory, parse_attempt_name, report_directory
from stoker.daemon.workers.scraper_client import ScraperClient
from stoker.places import file_size

PIECE = 128 * 1024
"""Bytes of one report that are read at a time."""
MAX_PER_TURN = 4 * PIECE
"""Bytes of all reports together that are read in one turn of the loop."""
PUBLISHED_MARK = "told"
"""A file beside a report: all of its points were published, so the next daemon skips it."""


class MetricsFile(LineFile):
    """A file with metric points; its end is set when the attempt has ended."""

    @property
    def is_complete(self) -> bool:
        """Return True if everything was read and nothing more counts."""
        return self.end is not None and self.offset >= min(self.end, file_size(self.path))


class AttemptMetrics(Struct):
    """One attempt with points to read, or that is still being scraped."""

    job: Job
    key: AttemptId
    files: list[MetricsFile]
    ended: bool = False
    scraped: bool = True
    """False while the scraper may still append points."""

    @property
    def is_complete(self) -> bool:
        """Return True if all points of an ended attempt were read."""
        return self.ended and self.scraped and all(file.is_complete for file in self.files)

    def freeze(self) -> None:
        """Ignore what is appended to its files from now on."""
        for file in self.files:
            file.end = file_size(file.path)


class MetricsReader:
    """Reads the points of all running trials, and of those that have just ended."""

    def __init__(
        self,
        home: str,
        state: Callable[[], State],
        scraper: ScraperClient,
        trial_metrics: TrialScorer,
        on_complete: Callable[[AttemptId], None],
    ) -> None:
        """`on_complete` is called when all points of an ended attempt were published."""
        self.home, self.state, self.scraper = home, state, scraper
        self.trial_metrics, self.on_complete = trial_metrics, on_complete
        self.attempts: dict[AttemptId, AttemptMetrics] = {}
        self.backlog: dict[AttemptId, None] = {}
        """Attempts with more to read, the one that was read longest ago first."""
        self.started = False
        """Whether `start` was called: attempts closed before that are not read again by it."""
        self._unmarked: list[AttemptId] = []
        self._closed_before_start: set[AttemptId] = set()

    # -- attempts -----------------------------------------------------------------------

    def start(self) -> None:
        """Continue where the last daemon was, also with what it had not read of ended attempts."""
        running = {AttemptId(job.id, job.attempt) for job in self.state().running.values()}
        for name in list_directory(f"{self.home}/training"):
            key = parse_attempt_name(name)
            job = self.state().jobs.get(key[0]) if key is not None else None
            if key is None or job is None or key in running or key[1] > job.attempt:
                continue
            if key in self._closed_before_start:
                continue
            if self._has_metrics(job) and not os.path.lexists(self._mark(key)):
                self._end(self._attempt(job, key))
        for job in self.state().running.values():
            self.start_scraping(job)
            if job.params is not None:
                self._attempt(job, AttemptId(job.id, job.attempt))
        self.started = True

    def start_scraping(self, job: Job, started_at: float | None = None) -> None:
        """Start to scrape a running attempt if its job says where its metrics are."""
        if self._is_scraped(job):
            self.scraper.watch(job, job.attempt, started_at)

    def _has_metrics(self, job: Job) -> bool:
        return job.params is not None or self._is_scraped(job)

    def _is_scraped(self, job: Job) -> bool:
        return self.state().spec(job).source is not None

    def _mark(self, key: AttemptId) -> str:
        return f"{report_directory(self.home, key)}/{PUBLISHED_MARK}"

    def _attempt(self, job: Job, key: AttemptId) -> AttemptMetrics:
        attempt = self.attempts.get(key)
        if attempt is None:
            paths = (f"{report_directory(self.home, key)}/report", archived_report(self.home, key))
            files = [MetricsFile(path=path) for path in paths if job.params is not None]
            scraped = not self._is_scraped(job)
            attempt = self.attempts[key] = AttemptMetrics(job, key, files, scraped=scraped)
        return attempt

    # -- reading ------------------------------------------------------------------------

    def read_running(self, job: Job) -> list[Event]:
        """Read the next points of a running attempt."""
        if job.params is None:
            return []
        return self._read(self._attempt(job, AttemptId(job.id, job.attempt)))

    def end_attempt(self, job: Job) -> list[Event]:
        """Handle the end of a job's attempt: read the remaining points if they are few."""
        if not self._has_metrics(job):
            return []
        attempt = self._attempt(job, AttemptId(job.id, job.attempt))
        self._end(attempt)
        events: list[Event] = []
        for _ in range(MAX_PER_TURN // PIECE):
            events += self._read(attempt)
            if attempt.key not in self.backlog:
                break
        return events + self._close(attempt) if attempt.is_complete else events

    def _end(self, attempt: AttemptMetrics) -> None:
        attempt.ended = True
        if attempt.scraped:
            attempt.freeze()
        else:
            self.scraper.finish(attempt.job, attempt.key[1])
        self.backlog[attempt.key] = None

    def read_backlog(self) -> list[Event]:
        """Read a bounded piece of the attempts with more to read."""
        for key in self.scraper.take_finished():
            if key in self.attempts:
                self.attempts[key].scraped = True
                self.attempts[key].freeze()
                self.backlog[key] = None
        events: list[Event] = []
        for key in list(self.backlog)[: MAX_PER_TURN // PIECE]:
            attempt = self.attempts.get(key)
            if attempt is None:
                del self.backlog[key]
                continue
            events += self._read(attempt)
            if attempt.is_complete:
                events += self._close(attempt)
        return events

    def _read(self, attempt: AttemptMetrics) -> list[Event]:
        events: list[Event] = []
        self.backlog.pop(attempt.key, None)
        for file in attempt.files:
            lines, more = file.read(PIECE)
            if points := metric_points(lines):
                job = self._latest_job(attempt)
                events += self.trial_metrics.on_points(job, attempt.key, points)
            if more:
                self.backlog[attempt.key] = None
        return events

    def _close(self, attempt: AttemptMetrics) -> list[Event]:
        """Drop an attempt with all points published, so that its files may be removed."""
        key = attempt.key
        del self.attempts[key]
        self.backlog.pop(key, None)
        self._unmarked.append(key)
        if not self.started:
            self._closed_before_start.add(key)
        job = self._latest_job(attempt)
        events = self.trial_metrics.on_end(job, key) if job.params is not None else []
        self.on_complete(key)
        return events

    def _latest_job(self, attempt: AttemptMetrics) -> Job:
        return self.state().jobs.get(attempt.key[0], attempt.job)

    def mark_published(self) -> None:
        """Mark attempts closed in the turn before, which is on record now, as published."""
        unmarked, self._unmarked = self._unmarked, []
        for key in unmarked:
            job = self.state().jobs.get(key[0])
            if job is not None and not job.finished:  # else the whole directory is removed
                with contextlib.suppress(OSError):
                    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                    os.close(os.open(self._mark(key), flags, 0o600))

    def is_pending(self, key: AttemptId) -> bool:
        """Return True if files of this attempt are still to be read."""
        return key in self.attempts

    def jobs_being_read(self) -> set[int]:
        """Return jobs with an ended attempt that has metrics still to be read."""
        return {key[0] for key, attempt in self.attempts.items() if attempt.ended}

    def forget_stale(self, job: int) -> None:
        """Drop attempts of a job that no longer exist; ended ones close by themselves."""
        for key in [key for key in self.attempts if key[0] == job]:
            latest = self.state().jobs.get(job)
            is_current = latest is not None and latest.holding and latest.attempt == key[1]
            if not is_current and not self.attempts[key].ended:
                del self.attempts[key]
