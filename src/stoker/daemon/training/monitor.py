"""Training jobs and the daemon leave each other word in files: what is read, and what follows.

An attempt's library writes `report` and `steps` in a directory of its own; the daemon answers with
`stop` and `stop_at`. A report is only ever added to, and read again from its start by the next
daemon: facts come of it only where it says more than what is on record.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from stoker.core import contract
from stoker.core import events as e
from stoker.core.job import Job, Progress
from stoker.core.lifecycle import JobState
from stoker.core.state import State
from stoker.daemon.metrics.reader import MetricsReader, Scores
from stoker.daemon.metrics.store import mirror
from stoker.daemon.reports.attempt_report import (
    AttemptReport,
    Key,
    Messengers,
    leave_word,
    take_back,
)
from stoker.daemon.reports.format import CHUNK, LEAP, moment, read_steps, seconds
from stoker.daemon.reports.watcher import ReportWatcher
from stoker.daemon.training.cleanup import ReportCleanup
from stoker.daemon.workers.scraper_client import ScraperClient
from stoker.executors.agent.session.session import Poller

PAUSE = 0.25
"""Seconds between two looks at one report, however much is written to it."""
STOPS = 75
"""How processes exit that stop because they were asked to."""
LINGER = 30.0
"""Seconds within which an attempt is over that has said that it stops: a wrapper may go on."""


class TrainingMonitor:
    """Listens to training attempts and speaks to them."""

    def __init__(
        self, home: str, poller: Poller, fleet: Messengers, state: Callable[[], State]
    ) -> None:
        self.home, self.root = home, f"{home}/training"
        self.fleet, self.state = fleet, state
        self.hearings: dict[int, AttemptReport] = {}
        """By job: only its current attempt has a say."""
        self.dirty: set[int] = set()
        """Jobs whose reports may have grown."""
        self.ears = ReportWatcher(self.root, poller, self)
        self.left = ReportCleanup(self.root)
        self.trails = MetricsReader(home, state, self._all_told)
        self.scraper = self.trails.scrapes = ScraperClient(home, poller, state)
        self.left.needed = self.trails.keeps

    @property
    def scores(self) -> Scores | None:
        """Who wants to know the figures of trials."""
        return self.trails.scores

    @scores.setter
    def scores(self, scores: Scores | None) -> None:
        self.trails.scores = scores

    @property
    def busy(self) -> bool:
        """Whether attempts that are over are still being read."""
        return any(trail.ended for trail in self.trails.trails.values())

    # -- listening ----------------------------------------------------------------------

    def begin(self) -> None:
        """Listen from now on, also to what an earlier daemon started."""
        self.ears.begin()
        self.trails.begin()
        for job in self.state().running.values():
            self._find(job)
            progress = job.progress
            if progress is not None and progress.listening and progress.stop is not None:
                self.ask_to_stop(job.id, job.attempt)

    def appeared(self, job: int) -> None:
        """There is a directory that seems to be of this job."""
        found = self.state().running.get(job)
        if found is not None:
            self._find(found)

    def grew(self, job: int) -> None:
        """There may be something new in its report."""
        self.dirty.add(job)

    def look_around(self) -> None:
        """Anything may have happened."""
        for job in self.state().running.values():
            self._find(job)

    def _find(self, job: Job) -> AttemptReport | None:
        """Listen to a job's current attempt, if that has anything to say."""
        hearing = self._hearing(job)
        if hearing is None or (hearing.beside is None and self._searched(job)):
            path = contract.reports(self.home, job)
            here = self._here(job)
            if os.path.isdir(path) and (here or self._searched(job)):
                hearing = hearing or self._listen_to(job, path if here else None)
                hearing.beside = None if here else path
                self.left.keep(hearing.key)
        if hearing is not None and (hearing.path or hearing.beside) is not None:
            self.dirty.add(job.id)
        return hearing

    def _searched(self, job: Job) -> bool:
        """Whether its figures are searched for, so that there are some here in any case."""
        return self.state().spec(job).source is not None

    def _hearing(self, job: Job) -> AttemptReport | None:
        hearing = self.hearings.get(job.id)
        return hearing if hearing is not None and hearing.key[1] == job.attempt else None

    def _listen_to(self, job: Job, path: str | None) -> AttemptReport:
        hearing = self.hearings[job.id] = AttemptReport((job.id, job.attempt), path)
        self.left.keep(hearing.key)
        return hearing

    def _here(self, job: Job) -> bool:
        """Whether the part that speaks for all of it is on this machine."""
        return job.placement is not None and job.placement.node not in self.state().rest.remotes

    def heard(self, key: Key, part: int | None, data: bytes, offset: int | None = None) -> None:
        """This was added to a report on another machine, at this place in it."""
        job = self.state().running.get(key[0])
        if job is None or job.attempt != key[1] or part or self._here(job):
            return
        hearing = self._hearing(job) or self._listen_to(job, None)
        report = hearing.report
        mirror(self.home, key, data, report.offset if offset is None else offset)
        if offset is not None and offset < report.offset:
            data = data[report.offset - offset :]
        elif offset is not None and offset > report.offset:
            report.continue_at(offset)
        report.take(data)
        self.dirty.add(job.id)

    # -- facts --------------------------------------------------------------------------

    def heed(self, facts: list[e.Event]) -> list[e.Event]:
        """Add what reports say; of an attempt that is over, before its end."""
        self.trails.mark()
        told: list[e.Event] = []
        started: dict[Key, float] = {}
        for fact in facts:
            match fact:
                case e.ProcessStarted():
                    started.setdefault((fact.job, fact.attempt), fact.at)
                    self._search(fact)
                case e.ProcessExited() | e.AttemptLost():
                    told += self._last_words(fact, started.get((fact.job, fact.attempt)))
                    continue
            told.append(fact)
        now = time.monotonic()
        self.ears.look_if_due()
        for id in [id for id in self.dirty if self._wait(id, now) <= 0]:
            self.dirty.discard(id)
            job = self.state().running.get(id)
            hearing = self._hearing(job) if job is not None else None
            if job is None or hearing is None:
                continue
            if job.started_at is None and hearing.key not in started:
                hearing.read_at = now  # it was faster than the word of its start
                self.dirty.add(id)
                continue
            self._read(hearing, now)
            told += self.trails.hear(job)
            told += self._news(job, hearing, started.get(hearing.key))
        return told + self.trails.turn() + self._lingering(now)

    def _search(self, fact: e.ProcessStarted) -> None:
        """An attempt has begun: if its figures are to be searched for, that begins, too."""
        job = self.state().running.get(fact.job)
        if job is not None and job.attempt == fact.attempt and self._searched(job):
            self.left.keep((job.id, job.attempt))
            self.trails.started(job, fact.at)

    def _lingering(self, now: float) -> list[e.Event]:
        """Attempts that have stopped and saved, of which something runs on nevertheless."""
        told: list[e.Event] = []
        for hearing in self.hearings.values():
            job = self.state().running.get(hearing.key[0])
            if job is None or hearing.due is None or now < hearing.due:
                continue
            if job.attempt == hearing.key[1] and job.state is JobState.RUNNING and self._near(job):
                hearing.due = inf
                told.append(
                    e.StopOverdue(at=time.time(), job=job.id, attempt=job.attempt, has_saved=True)
                )
            else:  # paused, or out of reach: it cannot end now
                hearing.due = now + LINGER
        return told

    def _near(self, job: Job) -> bool:
        """Whether all of its machines answer."""
        away, placement = self.state().rest.away, job.placement
        return placement is not None and not any(part.node in away for part in placement.parts)

    def _wait(self, id: int, now: float) -> float:
        hearing = self.hearings.get(id)
        return hearing.read_at + PAUSE - now if hearing is not None else 0.0

    def _read(self, hearing: AttemptReport, now: float) -> None:
        """Take a piece of its report."""
        hearing.read_at = now
        path = hearing.path or hearing.beside
        if path is not None:
            self.ears.attend(hearing.key[0], path)
            if hearing.read():
                self.dirty.add(hearing.key[0])

    def _last_words(
        self, fact: e.ProcessExited | e.AttemptLost, started: float | None
    ) -> list[e.Event]:
        """The end of an attempt or of a part of it, after what it said before."""
        job = self.state().running.get(fact.job)
        if job is None or job.attempt != fact.attempt:
            return [fact]
        hearing = self._find(job)
        points = self.trails.end(job) if not fact.part else []
        if hearing is None:
            return [*points, fact]
        report = hearing.report
        for _ in range(LEAP // CHUNK + 2):
            if not hearing.read():
                break
        if fact.part is None:
            self.dirty.discard(job.id)
        told = self._news(job, hearing, started, fact)
        if isinstance(fact, e.ProcessExited):
            named = report.stopped or report.stop_at is not None
            stopped = (named and fact.code == STOPS) if fact.part else report.stopped
            fact = replace(fact, stopped=stopped) if stopped else fact
        return [*told, *points, fact]

    def _news(
        self, job: Job, hearing: AttemptReport, started: float | None, end: e.Event | None = None
    ) -> list[e.Event]:
        """What a report says that is not on record."""
        report, progress = hearing.report, job.progress or Progress()
        self._pass_on(job, hearing)
        told: list[e.Event] = []
        if report.epoch is not None and not (hearing.began or progress.listening):
            # Not before: one that never begins an epoch cannot stop at one either.
            hearing.began = True
            told.append(e.TrainingBegan(at=time.time(), job=job.id, attempt=job.attempt))
        if report.stopped and hearing.due is None:
            hearing.due = time.monotonic() + LINGER
        done = report.counted
        if isinstance(end, e.ProcessExited) and end.code == 0 and not (end.part or report.stopped):
            done = max(done, report.finished)  # a clean end: its saving code has run
        training = self.state().spec(job).training
        if training is not None and training.epochs is not None:
            done = min(done, training.epochs)
        before = max(progress.epochs, hearing.told)
        figures = progress.metrics if hearing.figures is None else hearing.figures
        latest = hearing.aside.figures | report.figures
        metrics = latest if latest and latest != figures else None
        if done <= before and (metrics is None or end is None):
            return told
        if metrics is not None:
            hearing.figures = metrics
        more, done = done > before, max(done, before)
        hearing.told = done
        epoch, step = report.lately(before, done)
        began = job.started_at if job.started_at is not None else started
        warmup = None
        if more and before <= progress.since and began is not None and report.first is not None:
            warmup = seconds(report.first - began)
        told.append(
            e.EpochsCounted(
                at=time.time(), job=job.id, attempt=job.attempt, done=done, seconds=epoch,
                step=step, warmup=warmup, metrics=metrics,
                total=report.total if report.total != progress.total else None,
            )
        )  # fmt: skip
        return told

    def tick(self) -> float | None:
        """Seconds until a report is to be read, unless something happens."""
        now = time.monotonic()
        waits = [max(self._wait(id, now), 0.0) for id in self.dirty]
        dues = (hearing.due for hearing in self.hearings.values())
        waits += [max(due - now, 0.0) for due in dues if due is not None and due < inf]
        if self.state().running and (wait := self.ears.wait()) is not None:
            waits.append(wait)
        waits += [wait for wait in (self.trails.wait(), self.scraper.tick()) if wait is not None]
        return min(waits) if waits else None

    def live(self, job: int) -> dict[str, Any]:
        """How far an attempt is at this moment; nothing when it has said nothing."""
        hearing = self.hearings.get(job)
        if hearing is None:
            return {}
        report = hearing.report
        metrics = hearing.aside.metrics | report.metrics
        if not report.hello and not metrics:
            return {}
        found: dict[str, Any] = {
            "epoch": report.epoch, "step": None, "step_seconds": None,
            "metrics": metrics, "at": report.at or hearing.aside.at,
        }  # fmt: skip
        steps = read_steps(f"{hearing.path}/steps") if hearing.path is not None else None
        if steps is not None and steps.e is not None and steps.e >= (report.epoch or 0):
            at = max(moment(steps.t) or 0.0, report.at or 0.0) or None
            found |= {"epoch": steps.e, "step": steps.n, "at": at}
            found["step_seconds"] = seconds(steps.s)
        return found

    # -- speaking -----------------------------------------------------------------------

    def ask_to_stop(self, id: int, attempt: int) -> None:
        """Ask an attempt to stop at its next safe point; asking twice is asking once."""
        job = self.state().running.get(id)
        if job is None or job.attempt != attempt:
            return
        stop = job.progress.stop if job.progress is not None else None
        why = " ".join(stop.why.split()) if stop is not None else "asked to stop"
        if self._here(job):
            self._leave_word(job, "stop", why)
        else:
            self.fleet.ask_to_stop((id, attempt), why)

    def let_go_on(self, id: int, attempt: int) -> None:
        """Take the wish back, unless its processes have agreed by now where they stop.

        On another machine it stays: what stops there without need goes on at once.
        """
        job = self.state().running.get(id)
        if job is None or job.attempt != attempt or not self._here(job):
            return
        hearing = self._hearing(job)
        if hearing is None or hearing.report.stop_at is None:
            take_back(contract.reports(self.home, job))

    def _pass_on(self, job: Job, hearing: AttemptReport) -> None:
        """The first part has said before which epoch all stop: tell those on other machines."""
        epoch = hearing.report.stop_at
        if epoch is None or epoch == hearing.named or job.placement is None:
            return
        hearing.named = epoch
        remotes = self.state().rest.remotes
        for rank, part in enumerate(job.placement.more, 1):
            if part.node in remotes:
                self.fleet.name_stop(hearing.key, rank, epoch)
            else:
                self._leave_word(job, "stop_at", str(epoch))

    def _leave_word(self, job: Job, name: str, text: str) -> None:
        leave_word(contract.reports(self.home, job), name, text, job.label)
        self.left.keep((job.id, job.attempt))

    # -- what is over -------------------------------------------------------------------

    def after(self, events: Sequence[e.Event]) -> None:
        """Keep up with what was decided."""
        if not self.hearings and not self.left.kept:
            return
        told = (getattr(event, "job", None) for event in events)
        for id in {id for id in told if type(id) is int}:
            job, hearing = self.state().jobs.get(id), self.hearings.get(id)
            current = job is not None and job.holding and self._hearing(job) is not None
            if hearing is not None and not current:
                del self.hearings[id]
                self.dirty.discard(id)
                self.ears.forget(id)
            self.trails.gone(id)
            self.left.look_at(id, job)

    def _all_told(self, key: Key) -> None:
        """All points of an attempt that is over were told."""
        self.left.look_at(key[0], self.state().jobs.get(key[0]))

    def close(self) -> None:
        """Stop listening; the files stay for the next daemon."""
        self.ears.close()
        self.scraper.close()
