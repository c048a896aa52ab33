"""EventPipeline: what executors, reports and GPU readings tell becomes events for the engine."""

from __future__ import annotations

import time
from collections.abc import Callable

from stoker.core.events import Event
from stoker.core.state.state import State
from stoker.daemon.alarms.monitor import AlarmMonitor
from stoker.daemon.gpus.monitor import GpuMonitor
from stoker.daemon.nodes.container_failures import mark_container_failures
from stoker.daemon.nodes.registry import ExecutorRegistry
from stoker.daemon.training.monitor import TrainingMonitor
from stoker.faults import FaultTracker

READING_TIMEOUT_SECONDS = 1.0
"""Pending jobs wait this long for a fresh reading of the GPUs."""
NODE_EVENTS = "events of the nodes"
"""While these cannot be collected, they are tried once per turn."""


class EventPipeline:
    """Collects events: executors, then gangs, then training, and GPU readings before them all."""

    def __init__(
        self,
        registry: ExecutorRegistry,
        training: TrainingMonitor,
        gpus: GpuMonitor,
        alarms: AlarmMonitor,
        state: Callable[[], State],
        logs: str,
        faults: FaultTracker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self._training = registry, training
        self._gpus, self._alarms, self._state, self._logs = gpus, alarms, state, logs
        self._faults, self._clock = faults, clock
        self._reading_awaited_since: float | None = None

    @property
    def has_events(self) -> bool:
        """Whether executors have reported something that was not collected."""
        return self._registry.pending

    @property
    def is_failing(self) -> bool:
        """Whether events of executors cannot be collected, because of an internal error."""
        return self._faults.is_failing(NODE_EVENTS)

    def collect(self) -> list[Event]:
        """Return and remove what has happened."""
        state, contain = self._state(), self._faults.contain
        nothing: list[Event] = []
        events = contain(NODE_EVENTS, nothing, self._registry.collect, state)
        events = contain(
            "container logs", events, mark_container_failures, events, state, self._logs
        )
        events = contain("training reports", events, self._training.enrich_events, events)
        usage = self._gpus.recorder.before_ends
        events = contain("usage of GPUs", events, usage, events, state)
        advice = self._alarms.before_ends
        events = contain("advice on ended jobs", events, advice, events, state)
        if self._gpus.has_reading:
            # Readings come first: they tell which process used the memory that ran out.
            events = contain("GPU readings", nothing, self._gpus.take_events, state) + events
            self._reading_awaited_since = None
        return contain("alarms", nothing, self._alarms.collect, state) + events

    def gpus_fresh(self, has_commands: bool) -> bool:
        """Return whether GPUs may be given out: their last reading is recent, or overdue."""
        if not self._gpus.is_stale():
            return True
        if not len(self._state().pending):
            return not has_commands  # what is submitted now starts after the next reading
        now = self._clock()
        if self._reading_awaited_since is None:
            self._reading_awaited_since = now
        return now - self._reading_awaited_since > READING_TIMEOUT_SECONDS
