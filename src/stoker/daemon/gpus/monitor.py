"""Keeping an eye on real GPUs: who else is on them, asked only while somebody cares."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from stoker.core.events import Event
from stoker.core.foreign import Thresholds
from stoker.core.state import State
from stoker.daemon.gpus.foreign_usage import ForeignUsageDetector, ForeignUsageThresholds
from stoker.daemon.gpus.memory import GpuMemoryTracker, sessions_on
from stoker.daemon.gpus.process_owners import ProcessOwners
from stoker.executors.linux.gpu_locks import GpuLocks
from stoker.probes.gpu_reading import Reading
from stoker.probes.probe_client import ProbeProcess

logger = logging.getLogger(__name__)

INTERVAL = 2.0
FRESH = 4.0
"""A look at a GPU older than this is no reason to put a job there."""
HUNG = 10.0
"""A driver that has not answered for so long is given up on."""
INTEREST = 10.0


class GpuMonitor:
    """Asks the probe process, has its answers judged, and reports changes as facts."""

    def __init__(
        self,
        node: str,
        first: Reading,
        install: str,
        thresholds: Thresholds,
        holds: GpuLocks,
        register: Callable[[int, Callable[[], None]], None],
        unregister: Callable[[int], None],
    ) -> None:
        self.owners = ProcessOwners(install)
        self.register, self.unregister = register, unregister
        self.enabled = bool(first.facts)
        self.process = ProbeProcess()
        self.registered = (-1, -1)
        self.rules = ForeignUsageThresholds(thresholds)
        self.gauges = GpuMemoryTracker()
        """The GPU memory of attempts on all machines."""
        self.judge = ForeignUsageDetector(node, self.rules, self.gauges, holds.holder)
        self.note = first.error
        self.when = time.monotonic()
        self.wanted_until = 0.0
        self.at_once = False
        self.pending: Reading | None = first if self.enabled else None
        self.waiting: list[Callable[[], None]] = []
        """Called after the next reading."""

    def look(self, done: Callable[[], None]) -> None:
        """Keep the figures current for a while; `done` is called when they are."""
        self.wanted_until = time.monotonic() + INTEREST
        if self.stale() or (self.enabled and not self.latest):
            self.waiting.append(done)
        else:
            done()

    def look_now(self) -> None:
        """Something has happened on the GPUs: do not wait for the next look to be due."""
        self.at_once = self.enabled

    @property
    def latest(self) -> dict[str, dict[str, Any]]:
        """The last figures of every GPU, by UUID."""
        return self.judge.latest

    def limits(self) -> dict[str, Any]:
        """From when on a GPU counts as used by others."""
        return self.rules.view()

    def set_limits(
        self, load: float | None, memory: float | None, processes: bool | None
    ) -> dict[str, Any]:
        """Change that, and look again before anything is put on a GPU."""
        self.rules.change(load, memory, processes)
        self.when -= FRESH
        return self.limits()

    def cares(self, state: State) -> bool:
        """Whether the figures matter now."""
        if not self.enabled:
            return False
        return bool(len(state.line) or state.running) or time.monotonic() < self.wanted_until

    def stale(self) -> bool:
        """Whether a GPU must be looked at again before it is given to anybody."""
        return self.enabled and time.monotonic() - self.when > FRESH

    def tick(self, state: State) -> float | None:
        """Ask when it is time; seconds until the next look."""
        if not self.cares(state):
            return None
        now = time.monotonic()
        since = self.process.waiting_since
        if since is not None:
            if now - since > HUNG:
                self._forget_descriptor()
                self.process.abandon()
                self._set_note(f"the GPU driver has not answered for {HUNG:.0f} s")
                self.when = now  # go by the last verdicts rather than stop for ever
            return 1.0
        if self.at_once or now - self.when >= INTERVAL:
            self._ask()
            return 1.0
        return max(INTERVAL - (now - self.when), 0.05)

    def _ask(self) -> None:
        self.at_once = False
        try:
            self.process.ask()
        except OSError as error:
            self._set_note(f"the GPU probe cannot be started: {error.strerror}")
            self.when = time.monotonic()
            return
        self.process.reap()
        current = (self.process.fileno(), self.process.generation)
        if current != self.registered:
            self._forget_descriptor()
            self.registered = current
            self.register(current[0], self._answer)

    def _set_note(self, note: str | None) -> None:
        if note != self.note:
            logger.warning("%s", note or "the GPU probe works again")
        self.note = note

    def _forget_descriptor(self) -> None:
        if self.registered[0] >= 0:
            self.unregister(self.registered[0])
            self.registered = (-1, -1)

    def _answer(self) -> None:
        fd = self.registered[0]
        reading = self.process.receive()
        if self.process.fileno() != fd:
            self._forget_descriptor()
        if reading is not None:
            self.pending = reading

    def facts(self, state: State) -> list[Event]:
        """What a new reading changes."""
        reading, self.pending = self.pending, None
        if reading is None:
            return []
        self.when = time.monotonic()
        self._set_note(reading.error)
        whose = self.owners.whose(sessions_on(state, self.judge.node))
        facts = self.judge.facts(state, reading, whose)
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done()
        return facts

    def close(self) -> None:
        """Let the probe process go."""
        self._forget_descriptor()
        self.process.close()
