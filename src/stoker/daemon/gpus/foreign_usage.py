"""ForeignUsageDetector: readings -> ForeignUseChanged events, with hysteresis."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import convert
from msgspec.structs import asdict, replace

from stoker.core.cluster.node import Device
from stoker.core.events import Event, ForeignUseChanged
from stoker.core.measurement.foreign_use import ForeignUse, ForeignUseDetector, Sample, Thresholds
from stoker.core.state.state import State
from stoker.daemon.gpus.memory import SETTLE_SECONDS, GpuMemoryTracker, NodeMemoryMeter
from stoker.probes.gpu_reading import GpuUse, Reading
from stoker.probes.gpu_samples import Identify, OwnerOf, build_samples, identify_local
from stoker.schema import requests as r
from stoker.schema.gpu import ForeignProcess
from stoker.schema.gpu import Thresholds as ThresholdsView

OnReading = Callable[[State, str, Mapping[str, GpuUse], float], list[Event]]
"""Takes the use of a node's GPUs by UUID and the monotonic time; returns further events."""


class ForeignUsageThresholds:
    """When a GPU counts as used by others: one object for the detectors of all nodes."""

    def __init__(self, thresholds: Thresholds) -> None:
        self.thresholds = thresholds

    def view(self) -> ThresholdsView:
        """Return the thresholds that users can change."""
        return convert(self.thresholds, ThresholdsView, from_attributes=True)

    def change(self, change: r.Thresholds) -> None:
        """Change the given thresholds; every detector uses them from the next reading on."""
        changed = {name: value for name, value in asdict(change).items() if value is not None}
        self.thresholds = replace(self.thresholds, **changed)


class ForeignUsageDetector:
    """Tracks foreign processes, and the memory of our own, on the GPUs of one node."""

    def __init__(
        self,
        node: str,
        thresholds: ForeignUsageThresholds,
        memory: GpuMemoryTracker,
        holder: Callable[[str], str | None] = lambda _: None,
        on_reading: OnReading = lambda *_: [],
    ) -> None:
        """`holder` returns what holds the lock of an idle GPU, where that can be known.

        `on_reading` is called with every reading.
        """
        self.on_reading = on_reading
        self.node, self.thresholds, self.holder = node, thresholds, holder
        self.meter = NodeMemoryMeter(node, memory)
        self.latest: dict[str, dict[str, Any]] = {}
        """The latest statistics of every GPU, by UUID."""
        self._detectors: dict[str, ForeignUseDetector] = {}
        self._busy_until: dict[str, float] = {}

    def update(
        self,
        state: State,
        reading: Reading,
        owner_of: OwnerOf,
        identify: Identify = identify_local,
    ) -> list[Event]:
        """Process a new reading; return the events that it causes."""
        node = state.cluster.nodes.get(self.node)
        if node is None:
            return []
        now = time.monotonic()
        samples_by_uuid = build_samples(reading, owner_of, identify)
        uses = {use.uuid: use for use in reading.use}
        events: list[Event] = []
        for device in node.types.get("gpu", ()):
            uuid = device.facts.uuid
            if uuid is None:
                continue
            gpu_sample = samples_by_uuid.get(uuid)
            if gpu_sample is None:
                self.latest.pop(uuid, None)
                is_lost = bool(reading.facts or reading.error)
                reason = "unavailable: the driver lost it" if is_lost else None
                events += self._change(device, reason, 0)
                continue
            sample = gpu_sample.sample
            verdict = self._observe(device, sample, now)
            self.latest[uuid] = _statistics(uses[uuid], verdict)
            holder = None if device.unallocated < device.facts.capacity else self.holder(uuid)
            foreign_user = holder or _describe(verdict)
            memory = sum(process.memory or 0 for process in sample.foreign_processes)
            events += self._change(device, foreign_user, memory)
        events += self.meter.update(state, samples_by_uuid, now)
        return events + self.on_reading(state, self.node, uses, now)

    def _observe(self, device: Device, sample: Sample, now: float) -> ForeignUse:
        uuid, thresholds = sample.uuid, self.thresholds.thresholds
        detector = self._detectors.setdefault(uuid, ForeignUseDetector(thresholds))
        detector.thresholds = thresholds
        if device.unallocated < device.facts.capacity:
            self._busy_until[uuid] = now + SETTLE_SECONDS
        return detector.observe(sample, now, settling=self._busy_until.get(uuid, 0.0) > now)

    def _change(self, device: Device, foreign_user: str | None, memory: int) -> list[Event]:
        same_memory = abs(memory - device.foreign_memory) < 64
        if foreign_user == device.foreign_user and same_memory:
            return []
        if foreign_user is not None and device.foreign_user is not None and same_memory:
            is_same_program = foreign_user.split(" (")[0] in device.foreign_user
            if is_same_program:
                return []
        return [
            ForeignUseChanged(
                at=time.time(), node=self.node, device=device.name, foreign_user=foreign_user,
                memory=memory,
            )
        ]  # fmt: skip


def _statistics(use: GpuUse, verdict: ForeignUse) -> dict[str, Any]:
    return {
        "memory_used": use.memory_used,
        "utilization": use.utilization,
        "temperature": use.temperature,
        "power": use.power,
        "foreign": convert(verdict.foreign_processes, list[ForeignProcess], from_attributes=True),
    }


def _describe(verdict: ForeignUse) -> str | None:
    """Describe the foreign user of a GPU by text that is constant for one process."""
    if not verdict.busy:
        return None
    for process in verdict.foreign_processes:
        name = process.command.split(" ")[0].rpartition("/")[2] or "a process"
        owner = f"{process.user}'s " if process.user else ""
        return f"{owner}{name} (pid {process.pid})"
    return verdict.reason or "another process"
