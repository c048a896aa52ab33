"""Who else is on a machine's GPUs: from a reading to verdicts, here or over SSH."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from stoker.core.cluster import Device
from stoker.core.events import Event, ForeignUseChanged
from stoker.core.foreign import Sample, Thresholds, Verdict, Watch
from stoker.core.state import State
from stoker.daemon.gpus.memory import SETTLE, GpuMemoryTracker, NodeMemoryMeter
from stoker.probes.gpu_reading import GpuUse, Reading
from stoker.probes.gpu_samples import Identify, Whose, identify_here, samples


class ForeignUsageThresholds:
    """From when on a GPU counts as used by others: one object for the judges of all machines."""

    def __init__(self, thresholds: Thresholds) -> None:
        self.thresholds = thresholds

    def view(self) -> dict[str, Any]:
        """What a person may change."""
        now = self.thresholds
        return {"load": now.load, "memory": now.memory, "processes": now.processes}

    def change(self, load: float | None, memory: float | None, processes: bool | None) -> None:
        """Change what is given; every judge goes by it from the next reading on."""
        given = {"load": load, "memory": memory, "processes": processes}
        known = {name: value for name, value in given.items() if value is not None}
        self.thresholds = replace(self.thresholds, **known)


class ForeignUsageDetector:
    """What is known about strangers, and our own, on the GPUs of one machine."""

    def __init__(
        self,
        node: str,
        rules: ForeignUsageThresholds,
        gauges: GpuMemoryTracker,
        holder: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """`holder` returns what keeps this user from an idle GPU, where that can be known."""
        self.node, self.rules, self.holder = node, rules, holder
        self.meter = NodeMemoryMeter(node, gauges)
        self.latest: dict[str, dict[str, Any]] = {}
        """The last figures of every GPU, by UUID."""
        self._watches: dict[str, Watch] = {}
        self._busy_until: dict[str, float] = {}

    def facts(
        self, state: State, reading: Reading, whose: Whose, identify: Identify = identify_here
    ) -> list[Event]:
        """What a new reading changes."""
        node = state.cluster.nodes.get(self.node)
        if node is None:
            return []
        now = time.monotonic()
        found = samples(reading, whose, identify)
        uses = {use.uuid: use for use in reading.use}
        events: list[Event] = []
        for device in node.types.get("gpu", ()):
            uuid = device.facts.uuid
            if uuid is None:
                continue
            seen = found.get(uuid)
            if seen is None:
                self.latest.pop(uuid, None)
                why = "unavailable: the driver lost it" if reading.facts or reading.error else None
                events += self._change(device, why, 0)
                continue
            sample = seen.sample
            verdict = self._observe(device, sample, now)
            self.latest[uuid] = _figures(uses[uuid], verdict)
            holder = None if device.free < device.facts.capacity else self.holder(uuid)
            stranger = holder or _named(verdict)
            memory = sum(s.memory or 0 for s in sample.strangers)
            events += self._change(device, stranger, memory)
        return events + self.meter.facts(state, found, now)

    def _observe(self, device: Device, sample: Sample, now: float) -> Verdict:
        uuid, thresholds = sample.uuid, self.rules.thresholds
        watch = self._watches.setdefault(uuid, Watch(thresholds))
        watch.thresholds = thresholds
        if device.free < device.facts.capacity:
            self._busy_until[uuid] = now + SETTLE
        return watch.observe(sample, now, settling=self._busy_until.get(uuid, 0.0) > now)

    def _change(self, device: Device, stranger: str | None, memory: int) -> list[Event]:
        same_memory = abs(memory - device.stranger_memory) < 64
        if stranger == device.stranger and same_memory:
            return []
        if (stranger is None) == (device.stranger is None) and same_memory:
            device_says_enough = stranger is None or stranger.split(" (")[0] in device.stranger  # type: ignore[operator]
            if device_says_enough:
                return []
        return [
            ForeignUseChanged(
                at=time.time(), node=self.node, device=device.name, stranger=stranger, memory=memory
            )
        ]


def _figures(use: GpuUse, verdict: Verdict) -> dict[str, Any]:
    return {
        "memory_used": use.memory_used,
        "utilization": use.utilization,
        "temperature": use.temperature,
        "power": use.power,
        "foreign": [
            {"pid": s.pid, "user": s.user, "command": s.command, "memory": s.memory}
            for s in verdict.strangers
        ],
    }


def _named(verdict: Verdict) -> str | None:
    """Name the user of a GPU in words that stay the same while it is the same process."""
    if not verdict.busy:
        return None
    for stranger in verdict.strangers:
        name = stranger.command.split(" ")[0].rpartition("/")[2] or "a process"
        owner = f"{stranger.user}'s " if stranger.user else ""
        return f"{owner}{name} (pid {stranger.pid})"
    return verdict.why or "another process"
