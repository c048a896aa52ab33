"""Requests that are answered when jobs have finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from stoker.core.admission import dependency_standing
from stoker.core.dependency import Standing
from stoker.core.events import Event, JobsSubmitted
from stoker.core.explain import reason
from stoker.core.lifecycle import JobState
from stoker.core.selectors import sweep_meant
from stoker.core.state import State
from stoker.daemon.context import RequestContext, system_clock
from stoker.daemon.views.job import job_view
from stoker.engine import CommandRejected, CommandResult, Instant

SHOWN = 10_000
"""A wait over more jobs than this is answered with the worst of them only."""


class JobWaiter:
    """Somebody waits for these jobs. Registered by the turn that reads the selectors."""

    def __init__(
        self, waits: JobWaiters, desk: RequestContext, words: list[str], any: bool,
        timeout: float | None,
        done: Callable[[Any, CommandRejected | None], None],
    ) -> None:  # fmt: skip
        self.waits, self.desk, self.words, self.any = waits, desk, words, any
        self.until = time.monotonic() + timeout if timeout is not None else None
        self.done = done
        self.ids: list[int] = []
        self.left: set[int] = set()
        self.sweeps: list[int] = []
        """Sweeps meant as a whole, also with the trials that they do not have yet."""
        self.judged = False
        """Whether a sweep is meant whose trials are compared."""
        self.gone = False

    def handle(self, state: State, now: Instant) -> CommandResult:
        """Find out who is meant."""
        if not self.words:
            raise CommandRejected(
                "No job was named. Use an id, a range, a name, last or all.", "usage"
            )
        self.ids = self.desk.resolve(self.words, state)
        self.left = {id for id in self.ids if id in state.jobs and not state.jobs[id].finished}
        meant = (sweep_meant(word, state) for word in self.words)
        whole = [id for id in meant if id is not None]
        self.sweeps = [id for id in whole if state.sweeps[id].asks]
        self.judged = any(state.sweeps[id].metric is not None for id in whole)
        return CommandResult()

    def reads(self, desk: RequestContext) -> bool:
        """Whether figures are still to come: a sweep is over when it is known who is the best."""
        reading = desk.reading()
        return any(id in reading for id in self.ids) if reading else False

    def look_for_more(self, state: State, events: Sequence[Event]) -> bool:
        """Trials that were thought of meanwhile; whether there may be more of them."""
        for event in events:
            if isinstance(event, JobsSubmitted) and event.sweep in self.sweeps:
                fresh = range(event.first, event.first + event.count)
                self.ids += fresh
                self.left |= {id for id in fresh if not state.jobs[id].finished}
        return any(state.sweeps[id].wanting for id in self.sweeps)

    def notes(self, state: State) -> list[str]:
        """Why sweeps cannot go on that would have to."""
        sweeps = [state.sweeps[id] for id in self.sweeps]
        return [
            f"sweep {sweep.id} cannot continue: {sweep.note}"
            for sweep in sweeps
            if sweep.wanting and sweep.note
        ]

    def reply(self, value: Any) -> None:
        """From here on the list of waits looks after it."""
        self.waits.waiting.append(self)
        self.waits.fresh.append(self)

    def reject(self, rejection: CommandRejected) -> None:
        """Nobody is meant."""
        self.done(None, rejection)


class JobWaiters:
    """Everybody who waits."""

    def __init__(self) -> None:
        self.waiting: list[JobWaiter] = []
        self.fresh: list[JobWaiter] = []

    def timeout(self) -> float | None:
        """Seconds until somebody's patience ends."""
        ends = [wait.until for wait in self.waiting if wait.until is not None]
        return max(min(ends) - time.monotonic(), 0.0) if ends else None

    def check(self, state: State, desk: RequestContext, events: Sequence[Event]) -> None:
        """Answer whoever need not wait any longer."""
        if not self.waiting:
            return
        fresh, self.fresh = self.fresh, []
        touched = {
            id for id in (getattr(event, "job", None) for event in events) if type(id) is int
        }
        failed = {
            id
            for id in touched
            if id in state.jobs and state.jobs[id].finished and state.dependents.get(id)
        }
        now = time.monotonic()
        for wait in self.waiting[:]:
            more = wait.look_for_more(state, events) if wait.sweeps else False
            wait.left -= {
                id
                for id in (wait.left if wait in fresh else wait.left & touched)
                if id not in state.jobs or state.jobs[id].finished
            }
            more = more or (wait.judged and not wait.left and wait.reads(desk))
            notes = wait.notes(state) if wait.sweeps and not wait.left else []
            stuck = self._stuck(wait, state, wait in fresh or bool(failed))
            over = not (wait.left or more) or (wait.any and len(wait.left) < len(wait.ids))
            timed_out = wait.until is not None and now >= wait.until
            if over or timed_out or wait.gone or notes or (stuck and len(stuck) == len(wait.left)):
                self.waiting.remove(wait)
                if not wait.gone:
                    wait.done({**_result(wait, state, desk, stuck, over), "notes": notes}, None)

    @staticmethod
    def _stuck(wait: JobWaiter, state: State, look: bool) -> list[tuple[int, str]]:
        """Jobs that can never start, because what they wait for ended the wrong way."""
        found = []
        for id in wait.left if look else ():
            job = state.jobs[id]
            waits = job.state is JobState.PENDING and state.spec(job).dependency is not None
            if waits and dependency_standing(state, job, system_clock().wall)[0] is Standing.NEVER:
                found.append((id, f"{reason(state, job, system_clock().wall)[1]}"))
        return found


def _result(
    wait: JobWaiter, state: State, desk: RequestContext, stuck: list[tuple[int, str]], over: bool
) -> dict[str, Any]:
    now = system_clock()
    shown = wait.ids
    found = [desk.job_and_spec(id, state) for id in shown] if len(shown) <= SHOWN else []
    worst = None
    if not found:
        # Too many to show: what matters is the highest code and who had it.
        for id in shown:
            job, spec = desk.job_and_spec(id, state)
            if worst is None or (job.result or 0) > (worst[0].result or 0):
                worst = (job, spec)
        found = [worst] if worst else []
    return {
        "finished": over,
        "count": len(shown),
        "jobs": [job_view(job, spec, state, now, desk.logs) for job, spec in found],
        "stuck": [{"id": id, "text": text} for id, text in stuck],
    }
