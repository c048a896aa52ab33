"""ChangeCollector: what has changed since the last frame of the live stream.

It exists in the daemon's thread only: commits are noted there, and commands take what was noted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.state.record import ChangeSet
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, reply_only
from stoker.daemon.control.publisher import Publisher
from stoker.daemon.handlers.job_list import expected_times
from stoker.daemon.handlers.queries import counts
from stoker.daemon.views.alarm import alarm_views
from stoker.daemon.views.job_columns import job_rows
from stoker.engine import CommandResult, Instant
from stoker.schema.alarm import AlarmView
from stoker.schema.live import CountsFrame, JobsFrame

MAX_CHANGED_JOBS = 2000
"""If more jobs change between two frames, clients load the columns again."""


class Update(Struct):
    """What has changed between two frames; None if nothing did."""

    seq: int
    jobs: JobsFrame | None = None
    counts: CountsFrame | None = None
    sweeps: list[int] = []
    has_nodes: bool = False
    alarms: list[AlarmView] | None = None


class ChangeCollector:
    """Collects ids of what changes, and looks at it when a frame is due."""

    def __init__(
        self, context: RequestContext, publisher: Publisher, on_change: Callable[[], None]
    ) -> None:
        """`on_change` is called at the first change after each frame."""
        self._context, self._publisher, self._on_change = context, publisher, on_change
        self._seq = 0
        self._changes = ChangeSet()
        self._has_changed = False
        self._has_overflown = False
        self._reorder_count = 0
        self._counts: dict[str, int] = {}
        self._alarms: list[AlarmView] = []

    def start(self, seq: Callable[[], int], state: State, now: Instant) -> CommandResult:
        """Note changes from now on."""
        self._seq, self._changes = seq(), ChangeSet()
        self._has_changed = self._has_overflown = False
        self._reorder_count, self._counts = state.pending.reorder_count, counts(state)
        self._alarms = self._alarms_now(state)
        self._publisher.add_observer(self._observe)
        return reply_only(None)

    def stop(self, state: State, now: Instant) -> CommandResult:
        """Note no more changes."""
        self._publisher.remove_observer(self._observe)
        return reply_only(None)

    def _observe(self, seq: int, changes: ChangeSet) -> None:
        self._seq = seq
        if not self._has_overflown:
            self._changes.add(changes)
            size = len(self._changes.jobs) + len(self._changes.unloaded)
            if size > MAX_CHANGED_JOBS:
                self._has_overflown = True
                self._changes.jobs, self._changes.unloaded = set(), []
        else:
            self._changes.sweeps |= changes.sweeps
        if not self._has_changed:
            self._has_changed = True
            self._on_change()

    def take(self, topics: Collection[str], state: State, now: Instant) -> CommandResult:
        """Return what has changed since the last call, as far as these topics need it."""
        changes, self._changes = self._changes, ChangeSet()
        has_overflown, self._has_overflown = self._has_overflown, False
        self._has_changed = False
        update = Update(self._seq)
        if "jobs" in topics:
            if has_overflown:
                update.jobs = JobsFrame(seq=self._seq, reset=True)
            else:
                update.jobs = self._jobs_frame(changes, state, now)
        numbers = counts(state)
        if numbers != self._counts:
            self._counts = numbers
            update.counts = CountsFrame(seq=self._seq, counts=numbers)
        if changes.has_record and (alarms := self._alarms_now(state)) != self._alarms:
            self._alarms = update.alarms = alarms
        update.sweeps, update.has_nodes = sorted(changes.sweeps), changes.has_record
        return reply_only(update)

    def _alarms_now(self, state: State) -> list[AlarmView]:
        alarms = alarm_views(state)
        if not self._context.is_system:
            return alarms
        # The frames are the same for all users; each may ask for the evidence of its own.
        return [replace(alarm, evidence="", action="") for alarm in alarms]

    def _jobs_frame(self, changes: ChangeSet, state: State, now: Instant) -> JobsFrame | None:
        ids = sorted(changes.jobs | set(changes.unloaded))
        jobs = [job for job in map(state.jobs.get, ids) if job is not None]
        reordered = self._reorder_count != state.pending.reorder_count
        self._reorder_count = state.pending.reorder_count
        if not ids and not reordered:
            return None
        shown = {job.id for job in jobs if not job.finished or job.id in state.unacknowledged}
        return JobsFrame(
            seq=self._seq,
            changed=job_rows(jobs, state.specs, expected_times(self._context, state, now)),
            gone=[id for id in ids if id not in shown],
            reorder=reordered,
        )
