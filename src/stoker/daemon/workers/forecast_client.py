"""Forecasts of starts and ends: computed in a helper process when a command needs one, and kept.

Made for the epoll loop: nothing here blocks. The process gets a copy of the state, simulates it
and answers once; if it takes too long, it is ended.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stoker.core import events as e
from stoker.core.job import Job
from stoker.core.outlook import (
    OUT_OF_DATE,
    Foreseen,
    Outlook,
    Told,
    command_key,
    interval,
    last_of,
    name_key,
    question,
    run_seconds,
    told_of,
)
from stoker.core.policy.order import in_order
from stoker.core.state import State
from stoker.core.sweep import Sweep
from stoker.daemon.context import CommandHandler, RequestContext, reply_only
from stoker.daemon.runtime.line_subprocess import LineSubprocess
from stoker.daemon.views.job import estimate_view, iso
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.executors.agent.session.session import Poller
from stoker.store.port import JobQuery

logger = logging.getLogger(__name__)

COMMAND = ("-P", "-m", "stoker.simulate.forecast.futures")
PATIENCE = 90.0
"""Seconds after which the process is taken to hang."""
FRESH = 30.0
"""Seconds for which a forecast is used if nothing has happened."""
KEPT = 600.0
"""Seconds for which a forecast is better than none."""
FIRST, NEXT = 20.0, 4.0
"""Seconds that `eta` waits for the very first forecast, and for a newer one than there is."""
LIST_WAIT, LIST_EVERY = 2.0, 2.0
"""Seconds that other commands wait for a forecast, and the least time between two for them."""
QUICK, REST = 3.0, 4.0
"""A forecast that took longer than QUICK is used for REST times as long as it took."""
NAMES, RUNS = 64, 50
"""Of how many names completed runs are looked up, and how many of each."""
QUIET = (
    e.EpochsCounted, e.MemoryMeasured, e.TrialMeasured, e.NodeMeasured, e.ForeignUseChanged,
    e.JobsSeen, e.JobsForgotten, e.TrialsForgotten, e.RecordsCleared,
)  # fmt: skip
"""Events that leave a forecast as good as it was."""


class ForecastClient:
    """The latest forecast, and the process that works on the next one."""

    def __init__(self, desk: RequestContext, poller: Poller) -> None:
        self.desk, self.poller = desk, poller
        self.latest: Outlook | None = None
        self.jobs: dict[int, Foreseen] = {}
        self.changed = True
        """Whether something has happened since the moment of the latest forecast."""
        self.incomplete = True
        """Whether jobs were submitted since then."""
        self.edited: dict[int, float] = {}
        """Jobs edited after the moment of the latest forecast: when, by the monotonic clock."""
        self.trouble: str | None = None
        """Why the last one has no answer."""
        self.failed = 0
        """How many of the last ones in a row have none."""
        self.process: LineSubprocess | None = None
        self.leaving: list[LineSubprocess] = []
        self.since = self.took = self.ended = 0.0
        self.waiting: list[Callable[[], None]] = []
        """Called when the process has answered or failed."""

    def look(self, state: State, now: Instant, done: Callable[[], None] | None = None) -> float:
        """Start a forecast unless the latest one will do; return the seconds to wait for it.

        `done` is called when the newest forecast is there, which may be at once. A process that
        works on jobs that were edited since is replaced.
        """
        if self.process is not None and self._has_edits():
            self._drop_process()
        if self.process is None and not self._will_do(now):
            self._start(state, now)
        if done is not None:
            self.waiting.append(done)
        if self.process is None:
            self._notify()
            return 0.0
        return FIRST if self.latest is None else NEXT

    def look_for_a_list(self, state: State, now: Instant, done: Callable[[], None]) -> float:
        """Do the same for a command that shows a forecast but is not about it: wait for less."""
        recent = time.monotonic() < self.since + LIST_EVERY and not self._has_edits()
        if not state.live or (recent and not self.incomplete and self.process is None):
            return 0.0
        slow = self.latest is not None and self.took > LIST_WAIT  # so it will not be in time
        seconds = self.look(state, now, None if slow else done)
        return 0.0 if slow else min(seconds, LIST_WAIT)

    def _notify(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done()

    def _has_edits(self) -> bool:
        """Return True if a job was edited after the last process was started."""
        return any(at > self.since for at in self.edited.values())

    def _will_do(self, now: Instant) -> bool:
        if self._has_edits():
            return False
        if self.latest is None or self.failed == 1:
            return False  # one that died is started anew at once; if that dies too, it is its fault
        if self.took > QUICK and time.monotonic() < self.ended + REST * self.took:
            return True
        return not self.changed and 0 <= now.wall - self.latest.at < FRESH

    def after(self, events: Sequence[e.Event]) -> None:
        """Something has happened."""
        self.changed = self.changed or any(type(event) not in QUIET for event in events)
        self.incomplete = self.incomplete or any(type(each) is e.JobsSubmitted for each in events)
        edited = [each.job for each in events if type(each) is e.JobEdited]
        self.edited.update(dict.fromkeys(edited, time.monotonic()))

    def tick(self) -> float | None:
        """Give up on a process that has hung; seconds until the next look."""
        self.leaving = [process for process in self.leaving if not process.reap()]
        if self.process is None:
            return 1.0 if self.leaving else None
        left = self.since + PATIENCE - time.monotonic()
        if left <= 0:
            self._died(f"it took longer than {PATIENCE:.0f} s")
            return None
        return left

    def close(self) -> None:
        """Nothing more is foreseen here."""
        self._let_go()

    # -- the process --------------------------------------------------------------------

    def _start(self, state: State, now: Instant) -> None:
        self.changed, self.incomplete, self.since = False, False, time.monotonic()
        try:
            self.process = LineSubprocess(self.poller, self._heard, self._died, COMMAND)
        except OSError as error:
            self._died(f"it cannot be started: {os.strerror(error.errno or 0)}")
            return
        asked = question(state, now.wall, now.boot, self._runs(state))
        self.process.send(msgspec.json.encode(asked) + b"\n")

    def _runs(self, state: State) -> dict[str, list[tuple[str, float]]]:
        """Return completed runs of the names of unfinished jobs, newest first."""
        named: dict[str, Job] = {}
        for job in (*state.running.values(), *in_order(state.line, state.jobs, 500)):
            if len(named) < NAMES:
                named.setdefault(name_key(job), job)
        return {key: runs for key, job in named.items() if (runs := self._runs_of(job))}

    def _runs_of(self, job: Job) -> list[tuple[str, float]]:
        wanted = JobQuery(user=job.user, name=job.name, states=["COMPLETED"], limit=RUNS)
        found = reversed(self.desk.store.past(wanted))
        timed = ((command_key(run.job, run.spec), run_seconds(run.job)) for run in found)
        return [(command, seconds) for command, seconds in timed if seconds is not None]

    def _heard(self, line: bytes) -> None:
        try:
            self.latest = msgspec.json.decode(line, type=Outlook)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._died(f"it answered {line[:80]!r}")
            return
        self.jobs = {each.job: each for each in self.latest.jobs}
        self.edited = {id: at for id, at in self.edited.items() if at > self.since}
        self.trouble, self.failed = None, 0
        self._let_go()

    def _died(self, why: str) -> None:
        self.trouble = f"the forecast process failed: {why}"
        logger.warning("the forecast process failed: %s", why)
        self.failed += 1
        self.changed = True  # what it was asked about is still unanswered
        self._let_go()

    def _let_go(self) -> None:
        self.ended = time.monotonic()
        self.took = self.ended - self.since
        self._drop_process()
        self._notify()

    def _drop_process(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.close()
            if not process.reap():
                self.leaving.append(process)

    # -- estimates -----------------------------------------------------------------------

    def of(self, id: int, state: State, now: Instant) -> Told | None:
        """Return the estimate of an unfinished job, if there is a forecast that is not too old."""
        found, job = self.jobs.get(id), state.jobs.get(id)
        latest = self._usable(now)
        if found is None or job is None or job.finished or latest is None:
            return None
        if id in self.edited:
            return Told(latest.at, never=OUT_OF_DATE)
        return told_of(found, job, latest.at, now.wall)

    def of_sweep(self, sweep: Sweep, state: State, now: Instant) -> Told | None:
        """Return when the last trial of a sweep ends; trials without a forecast count pro rata."""
        latest = self._usable(now)
        if not sweep.open or sweep.held or sweep.total is None or latest is None:
            return None
        trials = [id for id in state.boards[sweep.id].trials if not _is_over(state, id)]
        ends = [found.end for id in trials if (found := self.jobs.get(id)) and found.end]
        left = len(trials) + max(sweep.total - sweep.issued, 0)
        whole = last_of(ends, left / len(ends), latest.at) if ends else None
        return Told(latest.at, end=interval(whole, now.wall)) if whole is not None else None

    def _usable(self, now: Instant) -> Outlook | None:
        """Return the latest forecast unless it is too old."""
        latest = self.latest
        return latest if latest is not None and 0 <= now.wall - latest.at < KEPT else None


def _is_over(state: State, id: int) -> bool:
    return id not in state.jobs or state.jobs[id].finished


def told(
    outlooks: ForecastClient, desk: RequestContext, words: list[str], limit: int
) -> CommandHandler:
    """Return the estimates of all jobs or some: running jobs first, then by their start."""

    def decide(state: State, now: Instant) -> CommandResult:
        trouble, latest = outlooks.trouble, outlooks.latest
        if latest is None:
            text = trouble or "the forecast is being computed; try again in a moment"
            code = "failed" if trouble else "unavailable"
            raise CommandRejected(f"There is no forecast yet: {text}.", code)
        if outlooks.failed == 1:
            outlooks.look(state, now)
        if words:
            ids = desk.resolve(words, state)
        else:
            ids = [id for id in outlooks.jobs if id in state.jobs and not state.jobs[id].finished]
        shown = [_view(outlooks, desk, id, state, now) for id in ids]
        if not words:
            shown.sort(key=_place)
        more = max((len(ids) if words else state.live) - limit, 0)
        return reply_only(
            {
                "jobs": shown[:limit],
                "more": more if words else max(more, state.live - len(shown)),
                "at": iso(latest.at),
                "age": round(max(now.wall - latest.at, 0.0), 3),
                "futures": latest.plays,
                "horizon": iso(latest.horizon),
                "newer": outlooks.process is not None,
                "trouble": trouble,
            }
        )

    return decide


def _view(
    outlooks: ForecastClient, desk: RequestContext, id: int, state: State, now: Instant
) -> dict[str, Any]:
    job, _ = desk.job_and_spec(id, state)
    found = outlooks.of(id, state, now)
    view = {
        "id": job.id, "label": job.label, "name": job.name, "user": job.user,
        "state": job.state.value, **estimate_view(found or Told(now.wall)),
    }  # fmt: skip
    return {**view, "never": "it has ended"} if job.finished else view


def _place(view: dict[str, Any]) -> tuple[bool, bool, str, int]:
    span = view["start"] or view["end"] or {}
    likely = span.get("likely")
    return view["state"] == "PENDING", likely is None, likely or "", view["id"]
