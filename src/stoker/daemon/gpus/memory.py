"""How much GPU memory attempts use, on all machines: now for people, at most for the planner.

A look every two seconds misses what comes and goes between two of them. The driver would keep
the true peak of each process, but only where root has switched its accounting on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from stoker.core.cluster import Device
from stoker.core.events import Event, MemoryMeasured
from stoker.core.request import GPU
from stoker.core.state import State
from stoker.probes.gpu_samples import Key, Seen

WORTH, SHARE = 64, 0.05
"""A rise of so many MiB, or of this share, is worth telling."""
SETTLE = 5.0
"""For so long after an attempt has left a GPU, memory there may still be its own."""
CONTEXT = 64
"""MiB: nobody computes on a GPU with less."""

Used = dict[Key, dict[str, int]]
"""MiB by attempt and GPU."""


class GpuMemoryTracker:
    """What every running attempt uses: one object for all machines."""

    def __init__(self) -> None:
        self._now: dict[Key, dict[str, dict[str, int]]] = {}
        """MiB by attempt, machine and GPU."""
        self._told: dict[Key, int] = {}

    def now(self, job: int) -> dict[str, int]:
        """MiB by GPU at the last look; on several machines, a GPU is called MACHINE/GPU."""
        found: dict[str, int] = {}
        for (id, _), nodes in self._now.items():
            if id == job:
                for devices in nodes.values():
                    found.update(devices)
        return found

    def total(self, job: int) -> int | None:
        """MiB on all its GPUs together; None: it has not been seen on any."""
        found = self.now(job)
        return sum(found.values()) if found else None

    def clear(self, node: str) -> None:
        """Nothing is known any more about a machine."""
        for nodes in self._now.values():
            nodes.pop(node, None)

    def take(self, state: State, node: str, used: Used) -> list[Event]:
        """A machine was looked at: what of it is news to the core."""
        self.clear(node)
        keys = {(job.id, job.attempt) for job in state.running.values()}
        self._now = {key: nodes for key, nodes in self._now.items() if key in keys and nodes}
        self._told = {key: told for key, told in self._told.items() if key in keys}
        events: list[Event] = []
        for key, devices in used.items():
            if key in keys and devices and _asks_for_gpus(state, key):
                self._now.setdefault(key, {})[node] = _named(state, node, key, devices)
                events += self._news(state, key, max(devices.values()))
        return events

    def _news(self, state: State, key: Key, peak: int) -> list[Event]:
        job, attempt = key
        progress = state.jobs[job].progress
        # What the journal says was told, perhaps by a daemon before us.
        on_record = (progress.peak or 0) if progress is not None else 0
        told = max(self._told.get(key, 0), on_record)
        if not worth_telling(told, peak):
            return []
        self._told[key] = peak
        return [MemoryMeasured(at=time.time(), job=job, attempt=attempt, memory=peak)]


class NodeMemoryMeter:
    """Reads the gauges of one machine."""

    def __init__(self, node: str, gauges: GpuMemoryTracker) -> None:
        self.node, self.gauges = node, gauges
        self._tenants: dict[str, tuple[frozenset[Key], float]] = {}
        """Who holds a GPU, and since when that has been so."""
        self._idle: dict[str, int] = {}
        """MiB in use on a GPU while no attempt held it."""

    def facts(self, state: State, seen: Mapping[str, Seen], now: float) -> list[Event]:
        """What a look at the GPUs says about the attempts on them."""
        holders = _holders(state, self.node)
        used: Used = {}
        for device in state.cluster.nodes[self.node].types.get(GPU, ()):
            found = seen.get(device.facts.uuid or "")
            if found is not None:
                tenants = frozenset(holders.get(device.name, ()))
                for key, memory in self._of(device, found, tenants, now).items():
                    used.setdefault(key, {})[device.name] = memory
        return self.gauges.take(state, self.node, used)

    def _of(
        self, device: Device, seen: Seen, tenants: frozenset[Key], now: float
    ) -> dict[Key, int]:
        """MiB by attempt on one GPU."""
        whole = self._whole(device, seen, tenants, now)
        known = {key: memory for key, memory in seen.shares.items() if memory is not None}
        return {**known, **whole}

    def _whole(
        self, device: Device, seen: Seen, tenants: frozenset[Key], now: float
    ) -> dict[Key, int]:
        """All that is in use, when the driver does not say by whom and it can be one only."""
        sample = seen.sample
        before, since = self._tenants.get(sample.uuid, (None, now))
        if before != tenants:
            since = now
        self._tenants[sample.uuid] = tenants, since
        if sample.memory_used is None or now - since < SETTLE:
            return {}
        if not tenants:
            self._idle[sample.uuid] = sample.memory_used
        all_keys = tenants | seen.shares.keys()
        if len(all_keys) != 1 or sample.strangers or device.stranger is not None:
            return {}
        (key,) = all_keys
        if key in seen.shares:
            return {key: sample.memory_used} if seen.shares[key] is None else {}
        # Its processes are not listed: it has none there, or we cannot see them from where we are.
        risen = sample.memory_used - self._idle.get(sample.uuid, 0)
        return {key: sample.memory_used} if risen >= CONTEXT else {}


def worth_telling(told: int, peak: int) -> bool:
    """Whether a peak is so much above the one that was told."""
    rise = peak - told
    return rise > 0 and (rise >= WORTH or rise >= told * SHARE)


def _asks_for_gpus(state: State, key: Key) -> bool:
    return state.spec(state.jobs[key[0]]).request.gpus is not None


def _named(state: State, node: str, key: Key, devices: dict[str, int]) -> dict[str, int]:
    placement = state.jobs[key[0]].placement
    if placement is None or not placement.more:
        return devices
    return {f"{node}/{name}": memory for name, memory in devices.items()}


def _holders(state: State, node: str) -> dict[str, set[Key]]:
    """Which attempts hold the GPUs of a machine."""
    found: dict[str, set[Key]] = {}
    for job in state.running.values():
        part = job.placement.on(node) if job.placement is not None else None
        for name in part.names(GPU) if part is not None else ():
            found.setdefault(name, set()).add((job.id, job.attempt))
    return found


def sessions_on(state: State, node: str) -> dict[int, Key]:
    """The attempts that run on a machine, by the session of their first part."""
    return {
        job.pid: (job.id, job.attempt)
        for job in state.running.values()
        if job.pid is not None and job.placement is not None and job.placement.node == node
    }
