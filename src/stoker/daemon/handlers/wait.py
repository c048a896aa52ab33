"""POST /wait: requests that get their reply when jobs have finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stoker.core.events import Event, JobsSubmitted
from stoker.core.explain.why import reason
from stoker.core.model.dependency import DependencyStatus
from stoker.core.model.job import JobState
from stoker.core.state.eligibility import dependency_status_of
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext
from stoker.daemon.selectors import selected_sweep
from stoker.daemon.views.visible import visible_view
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.executors.reactor import Reactor, Timer
from stoker.schema.job import StuckJob, WaitReply

MAX_VIEWS = 10_000
"""The reply about more jobs than this has the view of the one with the highest exit code only."""


class JobWaiter:
    """One wait request: a command that registers itself with JobWaiters once it is handled."""

    def __init__(
        self, waiters: JobWaiters, context: RequestContext, selectors: list[str], any: bool,
        timeout: float | None,
        on_done: Callable[[Any, CommandRejected | None], None],
    ) -> None:  # fmt: skip
        self.waiters, self.context, self.selectors, self.any = waiters, context, selectors, any
        self.timeout, self.on_done = timeout, on_done
        self.deadline_boot: float | None = None
        self.ids: list[int] = []
        self.unfinished: set[int] = set()
        self.sweeps: list[int] = []
        """Sweeps that are selected as a whole and still get trials."""
        self.compares_trials = False
        """Whether a selected sweep has a metric, so that its end needs all metric points."""
        self.disconnected = False

    def handle(self, state: State, now: Instant) -> CommandResult:
        """Resolve the selectors."""
        if not self.selectors:
            raise CommandRejected(
                "No job was named. Use an id, a range, a name, last or all.", "usage"
            )
        self.ids = self.context.resolve(self.selectors, state)
        self.unfinished = {
            id for id in self.ids if id in state.jobs and not state.jobs[id].finished
        }
        uid = self.context.uid
        sweeps = [selected_sweep(selector, state, uid) for selector in self.selectors]
        sweep_ids = [id for id in sweeps if id is not None]
        self.sweeps = [id for id in sweep_ids if state.sweeps[id].asks]
        self.compares_trials = any(state.sweeps[id].metric is not None for id in sweep_ids)
        if self.timeout is not None:
            self.deadline_boot = now.boot + self.timeout
        return CommandResult()

    def reply(self, value: Any) -> None:
        """Register with JobWaiters, which sends the reply later."""
        self.waiters.add(self)

    def reject(self, rejection: CommandRejected) -> None:
        """Send the rejection at once."""
        self.on_done(None, rejection)

    def disconnect(self) -> None:
        """The client has closed the connection: send no reply."""
        self.disconnected = True

    def reads_metrics(self) -> bool:
        """Return True if metric points of the jobs are still being read."""
        reading = self.context.jobs_being_read()
        return any(id in reading for id in self.ids) if reading else False

    def add_new_trials(self, state: State, events: Sequence[Event]) -> bool:
        """Add trials submitted since; return True if the sweeps may get more of them."""
        for event in events:
            if isinstance(event, JobsSubmitted) and event.sweep in self.sweeps:
                added = range(event.first, event.first + event.count)
                self.ids += added
                self.unfinished |= {id for id in added if not state.jobs[id].finished}
        return any(state.sweeps[id].needs_trials for id in self.sweeps)

    def blocked_sweeps(self, state: State) -> list[str]:
        """Return a message per sweep that wants more trials and cannot get them."""
        sweeps = [state.sweeps[id] for id in self.sweeps]
        return [
            f"sweep {sweep.id} cannot continue: {sweep.note}"
            for sweep in sweeps
            if sweep.needs_trials and sweep.note
        ]

    def never_starting(self, state: State, at: float) -> list[StuckJob]:
        """Return jobs with a dependency that can no longer be met, and the reason."""
        never = []
        for id in self.unfinished:
            job = state.jobs[id]
            depends = job.state is JobState.PENDING and state.spec(job).dependency is not None
            if depends and dependency_status_of(state, job, at)[0] is DependencyStatus.NEVER:
                never.append(StuckJob(id=id, text=f"{reason(state, job, at)[1]}"))
        return never


class JobWaiters:
    """All wait requests without a reply."""

    def __init__(self, reactor: Reactor) -> None:
        self.waiting: list[JobWaiter] = []
        self._added: list[JobWaiter] = []
        self._reactor = reactor
        self._deadline = Timer(reactor, self._seconds_until_deadline)
        """Wakes the loop, so that `check` is called."""

    def add(self, waiter: JobWaiter) -> None:
        """Register a request; the next check covers all of its jobs."""
        self.waiting.append(waiter)
        self._added.append(waiter)
        if waiter.timeout is not None:
            self._deadline.request(waiter.timeout)

    def _seconds_until_deadline(self) -> float | None:
        """Return the seconds until the next deadline that is not over."""
        now = self._reactor.time()
        deadlines = [w.deadline_boot for w in self.waiting if w.deadline_boot is not None]
        return min((at - now for at in deadlines if at > now), default=None)

    def check(self, state: State, now: Instant, events: Sequence[Event]) -> None:
        """Reply to requests with jobs that have finished or never start, and to overdue ones."""
        if not self.waiting:
            return
        added, self._added = self._added, []
        changed = {
            id for id in (getattr(event, "job", None) for event in events) if type(id) is int
        }
        dependency_ended = any(
            id in state.jobs and state.jobs[id].finished and state.dependents.get(id)
            for id in changed
        )
        for waiter in self.waiting[:]:
            is_new = waiter in added
            more = waiter.add_new_trials(state, events) if waiter.sweeps else False
            waiter.unfinished -= {
                id
                for id in (waiter.unfinished if is_new else waiter.unfinished & changed)
                if id not in state.jobs or state.jobs[id].finished
            }
            done = not waiter.unfinished
            more = more or (waiter.compares_trials and done and waiter.reads_metrics())
            notes = waiter.blocked_sweeps(state) if waiter.sweeps and done else []
            never = waiter.never_starting(state, now.wall) if is_new or dependency_ended else []
            finished = (done and not more) or (
                waiter.any and len(waiter.unfinished) < len(waiter.ids)
            )
            deadline = waiter.deadline_boot
            timed_out = deadline is not None and now.boot >= deadline
            all_stuck = bool(never) and len(never) == len(waiter.unfinished)
            if finished or timed_out or waiter.disconnected or notes or all_stuck:
                self.waiting.remove(waiter)
                if not waiter.disconnected:
                    waiter.on_done(_reply(waiter, state, now, never, finished, notes), None)


def _reply(
    waiter: JobWaiter, state: State, now: Instant, never: list[StuckJob], finished: bool,
    notes: list[str],
) -> WaitReply:  # fmt: skip
    context, ids = waiter.context, waiter.ids
    if len(ids) > MAX_VIEWS:
        ids = [max(ids, key=lambda job: context.job_and_spec(job, state)[0].result or 0)]
    jobs = [context.job_and_spec(id, state) for id in ids]
    views = [visible_view(context, job, spec, state, now) for job, spec in jobs]
    return WaitReply(finished=finished, count=len(waiter.ids), jobs=views, stuck=never, notes=notes)
