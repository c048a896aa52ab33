"""GpuMemoryTracker: GPU memory per attempt, current and peak, on all nodes.

Readings every two seconds miss short peaks. The driver keeps the true peak of each process only
if root has enabled its accounting.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from stoker.core.cluster.node import Device
from stoker.core.events import Event, MemoryMeasured
from stoker.core.model.job import AttemptId
from stoker.core.model.resources import GPU
from stoker.core.state.state import State
from stoker.probes.gpu_samples import GpuSample

SIGNIFICANT_MIB, SIGNIFICANT_FRACTION = 64, 0.05
"""A higher peak is published if it exceeds the last one by either."""
SETTLE_SECONDS = 5.0
"""For so long after an attempt has left a GPU, memory there may still be its own."""
MIN_CONTEXT_MIB = 64
"""No process computes on a GPU with less."""

Used = dict[AttemptId, dict[str, int]]
"""MiB by attempt and GPU."""


class GpuMemoryTracker:
    """GPU memory of every running attempt: one object for all nodes."""

    def __init__(self) -> None:
        self._current: dict[AttemptId, dict[str, dict[str, int]]] = {}
        """MiB by attempt, node and GPU."""
        self._published: dict[AttemptId, int] = {}

    def current(self, job: int) -> dict[str, int]:
        """Return MiB by GPU at the last reading; for multi-node jobs, by NODE/GPU."""
        used: dict[str, int] = {}
        for (id, _), nodes in self._current.items():
            if id == job:
                for devices in nodes.values():
                    used.update(devices)
        return used

    def clear(self, node: str) -> None:
        """Forget the readings of a node."""
        for nodes in self._current.values():
            nodes.pop(node, None)

    def update(self, state: State, node: str, used: Used) -> list[Event]:
        """Store a node's reading; return events for peaks that are significantly higher."""
        self.clear(node)
        keys = {AttemptId(job.id, job.attempt) for job in state.running.values()}
        self._current = {
            key: nodes for key, nodes in self._current.items() if key in keys and nodes
        }
        self._published = {key: peak for key, peak in self._published.items() if key in keys}
        events: list[Event] = []
        for key, devices in used.items():
            if key in keys and devices and state.spec(state.jobs[key[0]]).request.gpus is not None:
                self._current.setdefault(key, {})[node] = _qualified(state, node, key, devices)
                events += self._new_peak(state, key, max(devices.values()))
        return events

    def _new_peak(self, state: State, key: AttemptId, peak: int) -> list[Event]:
        job, attempt = key
        # An earlier daemon may have published a peak: that is in the journal.
        recorded = state.jobs[job].progress.peak or 0
        if not is_significant(max(self._published.get(key, 0), recorded), peak):
            return []
        self._published[key] = peak
        return [MemoryMeasured(at=time.time(), job=job, attempt=attempt, memory=peak)]


class NodeMemoryMeter:
    """Attributes the memory in use on one node's GPUs to attempts."""

    def __init__(self, node: str, tracker: GpuMemoryTracker) -> None:
        self.node, self.tracker = node, tracker
        self._attempts: dict[str, tuple[frozenset[AttemptId], float]] = {}
        """The attempts on a GPU, and since when."""
        self._idle: dict[str, int] = {}
        """MiB in use on a GPU while no attempt was on it."""

    def update(self, state: State, samples: Mapping[str, GpuSample], now: float) -> list[Event]:
        """Process a reading of the node's GPUs; return events for new peaks."""
        attempts_by_gpu = _attempts_by_gpu(state, self.node)
        used: Used = {}
        for device in state.cluster.nodes[self.node].types.get(GPU, ()):
            sample = samples.get(device.facts.uuid or "")
            if sample is not None:
                attempts = frozenset(attempts_by_gpu.get(device.name, ()))
                known = {key: memory for key, memory in sample.shares.items() if memory is not None}
                inferred = self._infer(device, sample, attempts, now)
                for key, memory in (known | inferred).items():
                    used.setdefault(key, {})[device.name] = memory
        return self.tracker.update(state, self.node, used)

    def _infer(
        self, device: Device, gpu_sample: GpuSample, attempts: frozenset[AttemptId], now: float
    ) -> dict[AttemptId, int]:
        """Attribute all memory to the only attempt if the driver does not list its processes."""
        sample = gpu_sample.sample
        before, since = self._attempts.get(sample.uuid, (None, now))
        if before != attempts:
            since = now
        self._attempts[sample.uuid] = attempts, since
        if sample.memory_used is None or now - since < SETTLE_SECONDS:
            return {}
        if not attempts:
            self._idle[sample.uuid] = sample.memory_used
        candidates = attempts | gpu_sample.shares.keys()
        if len(candidates) != 1 or sample.foreign_processes or device.foreign_user is not None:
            return {}
        (key,) = candidates
        if key in gpu_sample.shares:
            return {key: sample.memory_used} if gpu_sample.shares[key] is None else {}
        # Its processes are not listed: there are none, or they are in another pid namespace.
        increase = sample.memory_used - self._idle.get(sample.uuid, 0)
        return {key: sample.memory_used} if increase >= MIN_CONTEXT_MIB else {}


def is_significant(published: int, peak: int) -> bool:
    """Return True if a peak is so much above the published one that the core should know."""
    increase = peak - published
    return increase > 0 and (
        increase >= SIGNIFICANT_MIB or increase >= published * SIGNIFICANT_FRACTION
    )


def _qualified(state: State, node: str, key: AttemptId, devices: dict[str, int]) -> dict[str, int]:
    placement = state.jobs[key[0]].placement
    if placement is None or not placement.other_parts:
        return devices
    return {f"{node}/{name}": memory for name, memory in devices.items()}


def _attempts_by_gpu(state: State, node: str) -> dict[str, set[AttemptId]]:
    attempts: dict[str, set[AttemptId]] = {}
    for job in state.running.values():
        part = job.placement.on(node) if job.placement is not None else None
        for name in part.names(GPU) if part is not None else ():
            attempts.setdefault(name, set()).add(AttemptId(job.id, job.attempt))
    return attempts


def sessions_on(state: State, node: str) -> dict[int, AttemptId]:
    """Return the attempts on a node by the session id of their first part."""
    return {
        job.pid: AttemptId(job.id, job.attempt)
        for job in state.running.values()
        if job.pid is not None and job.placement is not None and job.placement.node == node
    }
