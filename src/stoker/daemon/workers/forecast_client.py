"""ForecastClient: has start and end times predicted, caches the answer.

Made for the epoll loop: nothing here blocks. A process gets a copy of the state, simulates it and
answers once; if it takes too long, it is killed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import asdict

from stoker.core import events as e
from stoker.core.explain.forecast import (
    CLUSTER_DECIDES,
    ExpectedNode,
    Forecast,
    JobForecast,
    StartEndEstimate,
    command_key,
    forecast_input,
    name_key,
)
from stoker.core.model.job import Job, JobState
from stoker.core.model.sweep import Sweep
from stoker.core.placement.infeasible import infeasibility_reason
from stoker.core.queue.pending_queue import first_jobs
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, reply_only
from stoker.daemon.views.format import estimate_view, iso
from stoker.daemon.workers.estimates import (
    OUT_OF_DATE,
    interval,
    last_of,
    queued_estimate,
    start_end_estimate,
)
from stoker.daemon.workers.restart_policy import RestartPolicy
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.executors.linux.line_subprocess import LineSubprocess
from stoker.executors.reactor import Reactor, Timer
from stoker.schema.estimate import EstimateList, JobEstimate
from stoker.store.port import JobQuery

logger = logging.getLogger(__name__)

COMMAND = ("-P", "-m", "stoker.simulate.forecast")
TIMEOUT_SECONDS = 90.0
FRESH_SECONDS = 30.0
"""How long a forecast is used if nothing has happened."""
MAX_AGE_SECONDS = 600.0
"""How long a forecast is better than none."""
FIRST_WAIT_SECONDS, NEXT_WAIT_SECONDS = 20.0, 4.0
"""How long `eta` waits for the very first forecast, and for a newer one than the latest."""
LIST_WAIT_SECONDS, LIST_INTERVAL_SECONDS = 2.0, 2.0
"""How long other commands wait for a forecast, and the least time between two for them."""
QUICK_SECONDS, REUSE_FACTOR = 3.0, 4.0
"""A forecast that took longer than QUICK_SECONDS is used for REUSE_FACTOR times as long."""
MAX_NAMES, MAX_RUNS_PER_NAME = 64, 50
"""For how many job names completed runs are looked up, and how many of each."""
RESTART_DELAYS = (0.0,)
IRRELEVANT_EVENTS = (
    e.EpochsCounted, e.MemoryMeasured, e.TrialMeasured, e.NodeLoadMeasured, e.ForeignUseChanged,
    e.FailuresDismissed, e.JobsUnloaded, e.TrialsUnloaded, e.HistoryCleared,
)  # fmt: skip
"""Events that do not change a forecast."""


class ForecastClient:
    """The latest forecast, and the process that computes the next one."""

    def __init__(
        self,
        context: RequestContext,
        reactor: Reactor,
        expected_nodes: Callable[[], list[ExpectedNode]] = list,
    ) -> None:
        """`expected_nodes` returns the nodes that other schedulers have announced."""
        self.context, self.expected_nodes = context, expected_nodes
        self.latest: Forecast | None = None
        self.jobs: dict[int, JobForecast] = {}
        self.is_outdated = True
        """Whether something has happened since the latest forecast was started."""
        self.is_incomplete = True
        """Whether jobs were submitted since then."""
        self.edited: dict[int, float] = {}
        """Jobs edited since then: when, by the monotonic clock."""
        self.error: str | None = None
        """Why the last process gave no forecast."""
        self.restarts = RestartPolicy(RESTART_DELAYS)
        self.process = LineSubprocess(reactor, self._on_reply, self._on_exit)
        self._timeout = Timer(reactor, self._check_duration)
        self.started_at = self.ended_at = self.duration = 0.0
        self.waiting: list[Callable[[], None]] = []
        """Called when the process has answered or failed."""

    def refresh(
        self, state: State, now: Instant, on_ready: Callable[[], None] | None = None
    ) -> float:
        """Start a forecast unless the latest one is fresh; return the seconds to wait for it.

        `on_ready` is called when the newest forecast is there, which may be at once. A process
        that computes a forecast without the latest edits is replaced.
        """
        if self.process.is_running and self._has_edits():
            self.process.stop()
        if not self.process.is_running and not self._is_fresh(now):
            self._start(state, now)
        if on_ready is not None:
            self.waiting.append(on_ready)
        if not self.process.is_running:
            self._notify()
            return 0.0
        return FIRST_WAIT_SECONDS if self.latest is None else NEXT_WAIT_SECONDS

    def refresh_for_list(self, state: State, now: Instant, on_ready: Callable[[], None]) -> float:
        """Do the same for a command that shows more than a forecast: start less, wait less."""
        is_recent = (
            time.monotonic() < self.started_at + LIST_INTERVAL_SECONDS and not self._has_edits()
        )
        is_current = is_recent and not self.is_incomplete and not self.process.is_running
        if not state.live or is_current:
            return 0.0
        is_slow = self.latest is not None and self.duration > LIST_WAIT_SECONDS
        seconds = self.refresh(state, now, None if is_slow else on_ready)
        return 0.0 if is_slow else min(seconds, LIST_WAIT_SECONDS)

    def _notify(self) -> None:
        waiting, self.waiting = self.waiting, []
        for on_ready in waiting:
            on_ready()

    def _has_edits(self) -> bool:
        """Return True if a job was edited after the last process was started."""
        return any(at > self.started_at for at in self.edited.values())

    def _is_fresh(self, now: Instant) -> bool:
        if self.latest is None or self._has_edits() or self.restarts.may_restart:
            return False
        reuse_until = self.ended_at + REUSE_FACTOR * self.duration
        if self.duration > QUICK_SECONDS and time.monotonic() < reuse_until:
            return True
        return not self.is_outdated and 0 <= now.wall - self.latest.at < FRESH_SECONDS

    def on_events(self, events: Sequence[e.Event]) -> None:
        """Note what these events change for the latest forecast."""
        for event in events:
            self.is_outdated = self.is_outdated or type(event) not in IRRELEVANT_EVENTS
            self.is_incomplete = self.is_incomplete or type(event) is e.JobsSubmitted
            if type(event) is e.JobEdited:
                self.edited[event.job] = time.monotonic()

    # -- the process --------------------------------------------------------------------

    def _check_duration(self) -> float | None:
        """Kill a process that takes too long; return the seconds until then."""
        if not self.process.is_running:
            return None
        left = self.started_at + TIMEOUT_SECONDS - time.monotonic()
        if left > 0:
            return left
        self.process.fail(f"it took longer than {TIMEOUT_SECONDS:.0f} s")
        return None

    def _start(self, state: State, now: Instant) -> None:
        self.is_outdated, self.is_incomplete = False, False
        self.started_at = time.monotonic()
        self._timeout.request(TIMEOUT_SECONDS)
        if self.process.start(COMMAND):
            request = forecast_input(
                state, now.wall, now.boot, self._runs(state), self.expected_nodes()
            )
            self.process.send(msgspec.json.encode(request) + b"\n")

    def _runs(self, state: State) -> dict[str, list[tuple[str, float]]]:
        """Return completed runs of the names of unfinished jobs, newest first."""
        named: dict[str, Job] = {}
        for job in (*state.running.values(), *first_jobs(state.pending, state.jobs, 500)):
            if len(named) < MAX_NAMES:
                named.setdefault(name_key(job), job)
        return {key: runs for key, job in named.items() if (runs := self._runs_of(job))}

    def _runs_of(self, job: Job) -> list[tuple[str, float]]:
        query = JobQuery(
            user=job.user, name=job.name, states=["COMPLETED"], limit=MAX_RUNS_PER_NAME
        )
        runs = reversed(self.context.store.find_jobs(query))
        timed = ((command_key(run.job, run.spec), _run_seconds(run.job)) for run in runs)
        return [(command, seconds) for command, seconds in timed if seconds is not None]

    def _on_reply(self, line: bytes) -> None:
        try:
            self.latest = msgspec.json.decode(line, type=Forecast)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.process.fail(f"it answered {line[:80]!r}")
            return
        self.jobs = {forecast.job: forecast for forecast in self.latest.jobs}
        self.edited = {id: at for id, at in self.edited.items() if at > self.started_at}
        self.error = None
        self.restarts.reset()
        self.close()

    def _on_exit(self, reason: str) -> None:
        self.error = f"the forecast process failed: {reason}"
        logger.warning("the forecast process failed: %s", reason)
        self.restarts.record_failure()
        self.is_outdated = True  # the request of this process has no answer
        self.close()

    def close(self) -> None:
        """Stop the process and call back all that wait for it."""
        self.ended_at = time.monotonic()
        self.duration = self.ended_at - self.started_at
        self.process.stop()
        self._notify()

    # -- estimates -----------------------------------------------------------------------

    def forecast(self, id: int, state: State, now: Instant) -> StartEndEstimate | None:
        """Return the estimate of an unfinished job, if there is a forecast that is not too old."""
        forecast, job = self.jobs.get(id), state.jobs.get(id)
        latest = self._usable(now)
        if forecast is None or job is None or job.finished or latest is None:
            return None
        if id in self.edited:
            return StartEndEstimate(latest.at, never=OUT_OF_DATE)
        if job.state is JobState.QUEUED:
            return queued_estimate(forecast, job, latest.at, now.wall)
        if job.state is JobState.PENDING and not job.held and _may_be_delegated(state, job):
            return StartEndEstimate(latest.at, never=CLUSTER_DECIDES)
        return start_end_estimate(forecast, job, latest.at, now.wall)

    def forecast_sweep(self, sweep: Sweep, state: State, now: Instant) -> StartEndEstimate | None:
        """Return when the last trial of a sweep ends; trials without a forecast count pro rata."""
        latest = self._usable(now)
        if not sweep.is_open or sweep.held or sweep.total is None or latest is None:
            return None
        trials = [id for id in state.boards[sweep.id].trials if not _is_over(state, id)]
        forecasts = (self.jobs.get(id) for id in trials)
        ends = [forecast.end for forecast in forecasts if forecast and forecast.end]
        left = len(trials) + max(sweep.total - sweep.issued, 0)
        sweep_end = last_of(ends, left / len(ends), latest.at) if ends else None
        return (
            StartEndEstimate(latest.at, end=interval(sweep_end, now.wall))
            if sweep_end is not None
            else None
        )

    def _usable(self, now: Instant) -> Forecast | None:
        """Return the latest forecast unless it is too old."""
        latest = self.latest
        return (
            latest if latest is not None and 0 <= now.wall - latest.at < MAX_AGE_SECONDS else None
        )


def _run_seconds(job: Job) -> float | None:
    """Return how long a completed job ran, in all attempts if it was preempted and resumed."""
    if job.ended_at is None or job.started_at is None:
        return None
    before = job.progress.previous_runtime
    return max(job.ended_at - job.started_at - job.slack + before, 0.0)


def _may_be_delegated(state: State, job: Job) -> bool:
    """Whether another scheduler may decide when a job starts."""
    delegated = [node for node in state.cluster.nodes.values() if node.delegated]
    if not delegated:
        return False
    request = state.effective_request(job, state.spec(job))
    return any(infeasibility_reason(node, request) is None for node in delegated)


def _is_over(state: State, id: int) -> bool:
    return id not in state.jobs or state.jobs[id].finished


def handle_eta(
    forecasts: ForecastClient, selectors: list[str], limit: int, state: State, now: Instant
) -> CommandResult:
    """Return the estimates of all jobs or some: running jobs first, then by their start."""
    error, latest = forecasts.error, forecasts.latest
    if latest is None:
        text = error or "the forecast is being computed; try again in a moment"
        code = "failed" if error else "unavailable"
        raise CommandRejected(f"There is no forecast yet: {text}.", code)
    if forecasts.restarts.may_restart:
        forecasts.refresh(state, now)
    if selectors:
        ids = forecasts.context.resolve(selectors, state)
    else:
        ids = [id for id in forecasts.jobs if id in state.jobs and not state.jobs[id].finished]
    shown = [_view(forecasts, id, state, now) for id in ids]
    if not selectors:
        shown.sort(key=_sort_key)
    more = max((len(ids) if selectors else state.live) - limit, 0)
    return reply_only(
        EstimateList(
            jobs=shown[:limit],
            more=more if selectors else max(more, state.live - len(shown)),
            at=iso(latest.at),
            age=round(max(now.wall - latest.at, 0.0), 3),
            futures=latest.plays,
            horizon=iso(latest.horizon),
            newer=forecasts.process.is_running,
            trouble=error,
        )
    )


def _view(forecasts: ForecastClient, id: int, state: State, now: Instant) -> JobEstimate:
    job, _ = forecasts.context.job_and_spec(id, state)
    forecast = forecasts.forecast(id, state, now)
    estimate = estimate_view(forecast or StartEndEstimate(now.wall))
    if job.finished:
        estimate.never = "it has ended"
    return JobEstimate(
        id=job.id, label=job.label, name=job.name, user=job.user, state=job.state.value,
        **asdict(estimate),
    )  # fmt: skip


def _sort_key(view: JobEstimate) -> tuple[bool, bool, str, int]:
    span = view.start or view.end
    likely = span.likely if span is not None else None
    return view.state == "PENDING", likely is None, likely or "", view.id
