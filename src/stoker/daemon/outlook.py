"""When jobs will start and end: foreseen in a process of its own, when somebody asks, and kept.

Made for the epoll loop: nothing here waits. The process gets a copy of the state, plays it on
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
from stoker.core.explain import how_it_ended
from stoker.core.job import Job
from stoker.core.outlook import Foreseen, Outlook, Span, name_key, question
from stoker.core.policy.order import in_order
from stoker.core.state import State
from stoker.daemon.desk import Decide, Desk, answered
from stoker.daemon.helper_process import HelperProcess
from stoker.daemon.views import iso
from stoker.engine import Decision, Moment, Refusal
from stoker.executors.ssh.link import Poller

logger = logging.getLogger(__name__)

COMMAND = ("-P", "-m", "stoker.simulate.ahead")
PATIENCE = 90.0
"""Seconds after which the process has hung."""
FRESH = 30.0
"""Seconds for which an answer is good, if nothing has happened."""
KEPT = 600.0
"""Seconds for which an answer is better than none, in a list that does not ask for a new one."""
FIRST, NEXT = 20, 4
"""Seconds that one waits for the very first answer, and for a newer one than there is."""
QUICK, REST = 3.0, 4.0
"""An answer that took more seconds than that is good for so many times as long as it took."""
NAMES, RUNS = 64, 10
"""Of how many names earlier runs are looked up, and how many of each."""
QUIET = (
    e.EpochsCounted, e.MemoryMeasured, e.TrialMeasured, e.NodeMeasured, e.ForeignUseChanged,
    e.JobsSeen, e.JobsForgotten, e.TrialsForgotten, e.RecordsCleared,
)  # fmt: skip
"""What leaves a forecast as good as it was."""


class Outlooks:
    """The last answer, and the process that works on the next one."""

    def __init__(self, desk: Desk, poller: Poller) -> None:
        self.desk, self.poller = desk, poller
        self.latest: Outlook | None = None
        self.jobs: dict[int, Foreseen] = {}
        self.changed = True
        """Whether something has happened since the moment that it was played on from."""
        self.trouble: str | None = None
        """Why the last one has no answer."""
        self.failed = 0
        """How many of the last ones in a row have none."""
        self.process: HelperProcess | None = None
        self.leaving: list[HelperProcess] = []
        self.since = self.took = self.ended = 0.0
        self.waiting: list[Callable[[], None]] = []
        """Called when the process has answered or failed."""

    def look(self, state: State, now: Moment, done: Callable[[], None] | None = None) -> bool:
        """Have it worked out, unless what there is will do; return whether there is an answer.

        `done` is called when the newest answer is there, which may be at once.
        """
        if self.process is None and not self._will_do(now):
            self._start(state, now)
        if done is not None:
            self.waiting.append(done)
        if self.process is None:
            self._notify()
        return self.latest is not None

    def _notify(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done()

    def _will_do(self, now: Moment) -> bool:
        if self.latest is None or self.failed == 1:
            return False  # one that died is started anew at once; if that dies too, it is its fault
        if self.took > QUICK and time.monotonic() < self.ended + REST * self.took:
            return True
        return not self.changed and 0 <= now.at - self.latest.at < FRESH

    def after(self, events: Sequence[e.Event]) -> None:
        """Something has happened."""
        self.changed = self.changed or any(type(event) not in QUIET for event in events)

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

    def _start(self, state: State, now: Moment) -> None:
        self.changed, self.since = False, time.monotonic()
        try:
            self.process = HelperProcess(self.poller, self._heard, self._died, COMMAND)
        except OSError as error:
            self._died(f"it cannot be started: {os.strerror(error.errno or 0)}")
            return
        asked = question(state, now.at, now.boot, self._runs(state))
        self.process.send(msgspec.json.encode(asked) + b"\n")

    def _runs(self, state: State) -> dict[str, list[float]]:
        """How long earlier jobs of the same names took."""
        named: dict[str, Job] = {}
        for job in (*state.running.values(), *in_order(state.line, state.jobs, 500)):
            if len(named) < NAMES:
                named.setdefault(name_key(job), job)
        found = ((key, self._durations(job)) for key, job in named.items())
        return {key: runs for key, runs in found if runs}

    def _durations(self, job: Job) -> list[float]:
        return self.desk.store.durations(job.user, job.name, RUNS)

    def _heard(self, line: bytes) -> None:
        try:
            self.latest = msgspec.json.decode(line, type=Outlook)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._died(f"it answered {line[:80]!r}")
            return
        self.jobs = {each.job: each for each in self.latest.jobs}
        self.trouble, self.failed = None, 0
        self._let_go()

    def _died(self, why: str) -> None:
        self.trouble = f"the forecast process failed: {why}"
        logger.warning("the forecast process failed: %s", why)
        self.failed += 1
        self.changed = True  # what it was asked about is still unanswered
        self._let_go()

    def _let_go(self) -> None:
        process, self.process = self.process, None
        self.ended = time.monotonic()
        self.took = self.ended - self.since
        if process is not None:
            process.close()
            if not process.reap():
                self.leaving.append(process)
        self._notify()

    # -- what is told -------------------------------------------------------------------

    def of(self, id: int, state: State, now: Moment) -> dict[str, Any] | None:
        """What was foreseen of a job, unless that is too long ago."""
        found, job = self.jobs.get(id), state.jobs.get(id)
        if found is None or job is None or job.finished or self.latest is None:
            return None
        if not 0 <= now.at - self.latest.at < KEPT:
            return None
        at = iso(self.latest.at)
        if job.held:
            return {"at": at, "start": None, "end": None, "basis": None, "never": "it is held"}
        waits = job.placement is None
        return {
            "at": at,
            "start": _span(found.start) if waits else None,
            "end": _span(found.end),
            "basis": found.basis or None,
            "never": found.never,
        }


def told(outlooks: Outlooks, desk: Desk, words: list[str], limit: int) -> Decide:
    """What was foreseen, of all jobs or of some: who runs before who waits, the first first."""

    def decide(state: State, now: Moment) -> Decision:
        trouble, latest = outlooks.trouble, outlooks.latest
        if latest is None:
            text = trouble or "the forecast is being computed; try again in a moment"
            code = "failed" if trouble else "unavailable"
            raise Refusal(f"There is no forecast yet: {text}.", code)
        if outlooks.failed == 1:
            outlooks.look(state, now)
        if words:
            ids = desk.ids(words, state)
        else:
            ids = [id for id in outlooks.jobs if id in state.jobs and not state.jobs[id].finished]
        shown = [_view(outlooks, desk, id, state, now) for id in ids]
        if not words:
            shown.sort(key=_place)
        more = max((len(ids) if words else state.live) - limit, 0)
        return answered(
            {
                "jobs": shown[:limit],
                "more": more if words else max(more, state.live - len(shown)),
                "at": iso(latest.at),
                "age": round(max(now.at - latest.at, 0.0), 3),
                "futures": latest.plays,
                "horizon": iso(latest.horizon),
                "newer": outlooks.process is not None,
                "trouble": trouble,
            }
        )

    return decide


def _view(outlooks: Outlooks, desk: Desk, id: int, state: State, now: Moment) -> dict[str, Any]:
    job, _ = desk.either(id, state)
    found = outlooks.of(id, state, now) or {"start": None, "end": None, "basis": None}
    if job.finished:
        found["never"] = how_it_ended(job)
    return {
        "id": job.id, "label": job.label, "name": job.name, "user": job.user,
        "state": job.state.value, "never": None, **found,
    }  # fmt: skip


def _place(view: dict[str, Any]) -> tuple[bool, bool, str, int]:
    span = view["start"] or view["end"] or {}
    likely = span.get("likely")
    return view["state"] == "PENDING", likely is None, likely or "", view["id"]


def _span(span: Span | None) -> dict[str, Any] | None:
    if span is None:
        return None
    return {"low": iso(span.low), "likely": iso(span.likely), "high": iso(span.high)}
