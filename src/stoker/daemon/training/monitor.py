"""TrainingMonitor: decides which reports to read when, and for how long.

The training library writes `report` and `steps` into the attempt's report directory; the daemon
replies with control files. A report is append-only and read again from its start by the next
daemon: events are published only for content that is not on record.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from stoker.core import events as e
from stoker.core.alarms.samples import JobSample
from stoker.core.launch import training_env as contract
from stoker.core.model.job import AttemptId, Job
from stoker.core.state.state import State
from stoker.core.state.sweep_boards import sweep_of
from stoker.daemon.metrics.reader import MetricsReader
from stoker.daemon.metrics.scorer import TrialScorer
from stoker.daemon.metrics.store import append_remote_report
from stoker.daemon.reports.attempt_report import AttemptReport, current_report
from stoker.daemon.reports.format import CHUNK, MAX_BACKLOG, read_steps, seconds
from stoker.daemon.training.cleanup import ReportCleanup
from stoker.daemon.training.report_events import new_events, overdue_stops, with_stop_flag
from stoker.daemon.training.stop_requests import RemoteControl, StopRequests, is_local
from stoker.daemon.workers.scraper_client import ScraperClient
from stoker.executors.linux.report_watcher import ReportWatcher
from stoker.executors.reactor import Reactor, Timer

READ_INTERVAL_SECONDS = 0.25
"""Minimum time between two reads of one report, however much is written to it."""


class TrainingMonitor:
    """Reads the reports of running attempts and publishes their content as events."""

    def __init__(
        self,
        home: str,
        reactor: Reactor,
        remote: RemoteControl,
        state: Callable[[], State],
        trial_metrics: TrialScorer,
    ) -> None:
        self.home, self.state = home, state
        root = f"{home}/training"
        self.reports: dict[int, AttemptReport] = {}
        """By job: only the current attempt is read."""
        self.dirty: set[int] = set()
        """Jobs with reports that may have grown."""
        self.watcher = ReportWatcher(root, reactor, self)
        self.scraper = ScraperClient(home, reactor, state)
        self.metrics = MetricsReader(
            home, state, self.scraper, trial_metrics, self._on_metrics_complete
        )
        self.cleanup = ReportCleanup(root, self.metrics.is_pending)
        self.stops = StopRequests(home, remote, state, self.reports, self.cleanup.add)
        self._wakeup = Timer(reactor, lambda: None)
        """Wakes the loop, so that `enrich_events` is called."""

    @property
    def is_reading_ended(self) -> bool:
        """Return True while metrics of attempts that have ended are still being read."""
        return bool(self.metrics.jobs_being_read())

    # -- reports ------------------------------------------------------------------------

    def start(self) -> None:
        """Read reports from now on, also of attempts that an earlier daemon started."""
        self.watcher.start()
        self.metrics.start()
        for job in self.state().running.values():
            self._find_report(job)
            progress = job.progress
            if progress.accepts_stop and progress.stop is not None:
                self.stops.send(job.id, job.attempt)

    def on_created(self, job: int) -> None:
        """Handle a new directory that, by its name, belongs to this job."""
        running = self.state().running.get(job)
        if running is not None:
            self._find_report(running)

    def on_changed(self, job: int) -> None:
        """Handle a possible change of a job's report."""
        self.dirty.add(job)

    def on_overflow(self) -> None:
        """Handle lost notifications: any report may have changed."""
        for job in self.state().running.values():
            self._find_report(job)

    def _find_report(self, job: Job) -> AttemptReport | None:
        """Start to read the report of a job's current attempt if there is one."""
        current = current_report(self.reports, job)
        if current is None or (current.local_copy is None and self._is_scraped(job)):
            path = contract.report_directory(self.home, job)
            local = is_local(job, self.state())
            if os.path.isdir(path) and (local or self._is_scraped(job)):
                current = current or self._add_report(job, path if local else None)
                current.local_copy = None if local else path
                self.cleanup.add(current.key)
        if current is not None and (current.path or current.local_copy) is not None:
            self.dirty.add(job.id)
        return current

    def _is_scraped(self, job: Job) -> bool:
        """Return True if metrics are scraped from its output, so that there is a local report."""
        return self.state().spec(job).source is not None

    def _add_report(self, job: Job, path: str | None) -> AttemptReport:
        current = self.reports[job.id] = AttemptReport(AttemptId(job.id, job.attempt), path)
        self.cleanup.add(current.key)
        return current

    def on_report_data(self, key: AttemptId, part: int | None, data: bytes, offset: int) -> None:
        """Handle bytes that were appended to a report on a remote node, at this offset."""
        job = self.state().running.get(key[0])
        if job is None or job.attempt != key[1] or part or is_local(job, self.state()):
            return
        current = current_report(self.reports, job) or self._add_report(job, None)
        report = current.report
        append_remote_report(self.home, key, data, offset)
        if offset < report.offset:
            data = data[report.offset - offset :]
        elif offset > report.offset:
            report.continue_at(offset)
        report.feed(data)
        self.dirty.add(job.id)

    def on_http_report(
        self, key: AttemptId, rank: int, data: bytes, offset: int
    ) -> tuple[int, int]:
        """Handle bytes that an attempt on another node has sent, which its log does not have.

        Return where it has to continue, and how many bytes are on record: published in this cycle
        at the latest. The report is that of the first part.
        """
        job = self.state().running.get(key[0])
        if rank or job is None or job.attempt != key[1]:
            return offset + len(data), offset + len(data)
        current = current_report(self.reports, job) or self._add_report(job, None)
        if data and offset <= current.report.offset:
            self.on_report_data(key, None, data, offset)
            self._wakeup.request(0.0)
        return current.report.offset, current.published_offset

    # -- events -------------------------------------------------------------------------

    def enrich_events(self, events: list[e.Event]) -> list[e.Event]:
        """Return the events with those from reports added, of an ended attempt before its end."""
        try:
            return self._enrich(events)
        finally:
            wait = self._seconds_until_due()
            if wait is not None:
                self._wakeup.request(wait)

    def _enrich(self, events: list[e.Event]) -> list[e.Event]:
        self.metrics.mark_published()
        enriched: list[e.Event] = []
        started: dict[AttemptId, float] = {}
        for event in events:
            match event:
                case e.ProcessStarted():
                    started.setdefault(AttemptId(event.job, event.attempt), event.at)
                    self._start_scraping(event)
                case e.ProcessExited() | e.AttemptLost():
                    enriched += self._final_events(
                        event, started.get(AttemptId(event.job, event.attempt))
                    )
                    continue
            enriched.append(event)
        now = time.monotonic()
        self.watcher.poll_if_due()
        for id in [id for id in self.dirty if self._seconds_until_read(id, now) <= 0]:
            self.dirty.discard(id)
            job = self.state().running.get(id)
            current = current_report(self.reports, job) if job is not None else None
            if job is None or current is None:
                continue
            if job.started_at is None and current.key not in started:
                current.read_at = now  # its first report came before the event of its start
                self.dirty.add(id)
                continue
            self._read(current, now)
            enriched += self.metrics.read_running(job)
            enriched += self._new_events(job, current, started.get(current.key))
            current.published_offset = current.report.offset - len(current.report.partial)
        enriched += self.metrics.read_backlog()
        return enriched + overdue_stops(self.reports.values(), self.state(), now)

    def _start_scraping(self, event: e.ProcessStarted) -> None:
        """Start to scrape metrics of an attempt that has started, if its job says where."""
        job = self.state().running.get(event.job)
        if job is not None and job.attempt == event.attempt and self._is_scraped(job):
            self.cleanup.add(AttemptId(job.id, job.attempt))
            self.metrics.start_scraping(job, event.at)

    def _seconds_until_read(self, id: int, now: float) -> float:
        current = self.reports.get(id)
        return current.read_at + READ_INTERVAL_SECONDS - now if current is not None else 0.0

    def _read(self, current: AttemptReport, now: float) -> None:
        """Read the next chunk of a report."""
        current.read_at = now
        path = current.path or current.local_copy
        if path is not None:
            self.watcher.watch_job(current.key[0], path)
            if current.read():
                self.dirty.add(current.key[0])

    def _final_events(
        self, end: e.ProcessExited | e.AttemptLost, started_at: float | None
    ) -> list[e.Event]:
        """Return the end of an attempt or part, preceded by what was not published yet."""
        job = self.state().running.get(end.job)
        if job is None or job.attempt != end.attempt:
            return [end]
        current = self._find_report(job)
        trial_events = self.metrics.end_attempt(job) if not end.part else []
        if current is None:
            return [*trial_events, end]
        for _ in range(MAX_BACKLOG // CHUNK + 2):
            if not current.read():
                break
        if end.part is None:
            self.dirty.discard(job.id)
        events = self._new_events(job, current, started_at, end)
        if isinstance(end, e.ProcessExited):
            end = with_stop_flag(end, current.report)
        return [*events, *trial_events, end]

    def _new_events(
        self,
        job: Job,
        current: AttemptReport,
        started_at: float | None,
        end: e.Event | None = None,
    ) -> list[e.Event]:
        self.stops.forward_stop_epoch(job, current)
        training = self.state().spec(job).training
        max_epochs = training.epochs if training is not None else None
        return new_events(job, current, max_epochs, started_at, end)

    def _seconds_until_due(self) -> float | None:
        """Return the seconds until a report is to be read."""
        now = time.monotonic()
        waits = [max(self._seconds_until_read(id, now), 0.0) for id in self.dirty]
        deadlines = (current.stop_deadline for current in self.reports.values())
        waits += [max(at - now, 0.0) for at in deadlines if at is not None and at < inf]
        if self.state().running and (wait := self.watcher.seconds_until_poll()) is not None:
            waits.append(wait)
        if self.metrics.backlog:
            return 0.0
        return min(waits) if waits else None

    def live(self, job: int) -> dict[str, Any]:
        """Return the current epoch, step and metrics of a job; empty without a report."""
        current = self.reports.get(job)
        if current is None:
            return {}
        report = current.report
        metrics = current.local_metrics.metrics | report.metrics
        if not report.hello and not metrics:
            return {}
        view: dict[str, Any] = {"epoch": report.epoch, "metrics": metrics}
        steps = read_steps(f"{current.path}/steps") if current.path is not None else None
        if steps is not None and steps.e is not None and steps.e >= (report.epoch or 0):
            view |= {"epoch": steps.e, "step": steps.n, "step_seconds": seconds(steps.s)}
        return view

    def sample(self, job: int) -> JobSample | None:
        """Return what a job has reported by now, None without a report."""
        current = self.reports.get(job)
        if current is None:
            return None
        report, local = current.report, current.local_metrics
        steps = self.live(job).get("step")
        total = report.total
        running = self.state().running.get(job)
        sweep = sweep_of(self.state(), running) if running is not None else None
        metrics = local.numeric_metrics | report.numeric_metrics if sweep is not None else {}
        return JobSample(
            at=0.0,
            progress=(report.offset, steps, local.offset) if report.hello or local.offset else None,
            is_done=total is not None and report.finished >= total,
            nan_metrics=report.nan_metrics + local.nan_metrics,
            objective=metrics.get(sweep.metric or "") if sweep is not None else None,
        )

    # -- ended attempts -----------------------------------------------------------------

    def on_events(self, events: Sequence[e.Event]) -> None:
        """Drop the reports of attempts that have ended, and mark their directories removable."""
        if not self.reports and self.cleanup.is_empty:
            return
        ids = (getattr(event, "job", None) for event in events)
        for id in {id for id in ids if type(id) is int}:
            job, report = self.state().jobs.get(id), self.reports.get(id)
            is_current = (
                job is not None and job.holding and current_report(self.reports, job) is not None
            )
            if report is not None and not is_current:
                del self.reports[id]
                self.dirty.discard(id)
                self.watcher.forget(id)
            self.metrics.forget_stale(id)
            self.cleanup.update(id, job)

    def _on_metrics_complete(self, key: AttemptId) -> None:
        """Handle the end of reading: all metric points of an ended attempt were published."""
        self.cleanup.update(key[0], self.state().jobs.get(key[0]))

    def close(self) -> None:
        """Stop reading; the files stay for the next daemon."""
        self.watcher.close()
        self.scraper.close()
