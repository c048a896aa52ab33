"""GpuMonitor: polls the probe process while fresh readings are needed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from stoker.core.events import Event
from stoker.core.measurement.foreign_use import Thresholds
from stoker.core.state.state import State
from stoker.daemon.gpus.foreign_usage import (
    ForeignUsageDetector,
    ForeignUsageThresholds,
    OnReading,
)
from stoker.daemon.gpus.memory import GpuMemoryTracker, sessions_on
from stoker.daemon.gpus.probe_client import ProbeClient
from stoker.daemon.gpus.process_owners import ProcessOwners
from stoker.daemon.gpus.recorder import GpuRecorder
from stoker.executors.linux.gpu_locks import GpuLocks
from stoker.executors.reactor import Reactor, Timer
from stoker.probes.gpu_reading import Reading
from stoker.schema import requests as r
from stoker.schema.gpu import Thresholds as ThresholdsView

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0
CHECK_SECONDS = 0.5
"""Between checks whether the driver has answered: pending jobs wait a second for a reading."""
STALE_SECONDS = 4.0
"""No job is started on a GPU with an older reading."""
DRIVER_TIMEOUT_SECONDS = 10.0
KEEP_FRESH_SECONDS = 10.0
"""How long polling continues after a request for readings."""


class GpuMonitor:
    """Reads the GPUs of this node and publishes changes as events."""

    def __init__(
        self,
        node: str,
        first: Reading,
        install: str,
        thresholds: Thresholds,
        locks: GpuLocks,
        reactor: Reactor,
        recorder: GpuRecorder,
        on_reading: OnReading | None = None,
    ) -> None:
        """`on_reading` is called with every reading; default: the recorder."""
        self.recorder = recorder
        self.owners = ProcessOwners(install)
        self.enabled = bool(first.facts)
        self.probe = ProbeClient(reactor, self._on_reading)
        self.thresholds = ForeignUsageThresholds(thresholds)
        self.memory = GpuMemoryTracker()
        """GPU memory of attempts on all nodes."""
        self.detector = ForeignUsageDetector(
            node, self.thresholds, self.memory, locks.holder, on_reading or recorder.record
        )
        self.note = first.error
        """What is wrong with the GPUs or the driver."""
        self.read_at = time.monotonic()
        self._keep_fresh_until = 0.0
        self._has_jobs = False
        """Whether jobs are pending or running, so that readings are needed."""
        self._timer = Timer(reactor, self._poll)
        self._pending: Reading | None = first if self.enabled else None
        self._waiting: list[Callable[[], None]] = []
        """Called after the next reading."""

    def keep_fresh(self, on_fresh: Callable[[], None]) -> None:
        """Poll for a while even if no job needs it; call back when the readings are fresh."""
        self._keep_fresh_until = time.monotonic() + KEEP_FRESH_SECONDS
        self._timer.request(0.0)
        if self.is_stale() or (self.enabled and not self.detector.latest):
            self._waiting.append(on_fresh)
        else:
            on_fresh()

    def set_thresholds(self, change: r.Thresholds) -> ThresholdsView:
        """Change when a GPU counts as used by others; requires a new reading before a start."""
        self.thresholds.change(change)
        self.read_at -= STALE_SECONDS
        self._timer.request(0.0)
        return self.thresholds.view()

    def on_state(self, state: State) -> None:
        """Poll while jobs are pending or running."""
        self._has_jobs = bool(len(state.pending) or state.running)
        if self.enabled and self._has_jobs and not self._timer.is_set:
            self._timer.request(0.0)

    def is_stale(self) -> bool:
        """Return True if a GPU must be read again before a job may start on it."""
        return self.enabled and time.monotonic() - self.read_at > STALE_SECONDS

    def _poll(self) -> float | None:
        """Poll when it is time; return the seconds until the next check."""
        now = time.monotonic()
        if not self.enabled or not (self._has_jobs or now < self._keep_fresh_until):
            return None
        requested_at = self.probe.requested_at
        if requested_at is not None:
            if now - requested_at > DRIVER_TIMEOUT_SECONDS:
                self.probe.abandon()
                self._set_note(
                    f"the GPU driver has not answered for {DRIVER_TIMEOUT_SECONDS:.0f} s"
                )
                self.read_at = now  # use the last reading rather than block all starts
            return CHECK_SECONDS
        if now - self.read_at >= POLL_SECONDS:
            self.probe.ask()
            return CHECK_SECONDS
        return max(POLL_SECONDS - (now - self.read_at), 0.05)

    def _set_note(self, note: str | None) -> None:
        if note != self.note:
            logger.warning("%s", note or "the GPU probe works again")
        self.note = note

    def _on_reading(self, reading: Reading) -> None:
        self._pending = reading

    @property
    def has_reading(self) -> bool:
        """Return True if there is a reading that `take_events` has not processed."""
        return self._pending is not None

    def take_events(self, state: State) -> list[Event]:
        """Return the events that a new reading causes."""
        reading, self._pending = self._pending, None
        if reading is None:
            return []
        self.read_at = time.monotonic()
        self._set_note(reading.error)
        owner_of = self.owners.lookup(sessions_on(state, self.detector.node))
        events = self.detector.update(state, reading, owner_of)
        waiting, self._waiting = self._waiting, []
        for on_fresh in waiting:
            on_fresh()
        return events

    def close(self) -> None:
        """End the probe process."""
        self.probe.close()
        self.recorder.close()
