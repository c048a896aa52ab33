"""GpuRecorder: readings of all nodes become GPU history and the usage of attempts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from msgspec import Struct

from stoker.core.cluster.node import Node
from stoker.core.events import (
    AttemptAbandoned,
    AttemptLost,
    Event,
    ProcessExited,
    StartFailed,
    UsageMeasured,
)
from stoker.core.model.alarm import IDLE_KINDS
from stoker.core.model.job import AttemptId, GpuUsage, Job
from stoker.core.model.resources import GPU, DeviceAllocation
from stoker.core.model.units import THOUSAND
from stoker.core.state.state import State
from stoker.daemon.gpus.history import GpuHistory
from stoker.probes.gpu_reading import GpuUse

MAX_GAP_SECONDS = 15.0
"""A longer time between two readings counts as not measured."""
PUBLISH_SECONDS = 600.0
"""How often the usage of a running attempt is journalled, besides at its end."""
SAVE_SECONDS = 600.0
ENDS = (ProcessExited, AttemptLost, AttemptAbandoned, StartFailed)


class _Measured(Struct):
    """GPU-seconds and joules of an attempt so far."""

    seconds: float
    busy: float
    energy: float
    wasted: float
    published_at: float


class GpuRecorder:
    """Adds every reading to the history, and to the usage of the attempts on each GPU."""

    def __init__(self, history: GpuHistory) -> None:
        self.history = history
        self.energy: dict[str, float] = {}
        """Joules of each GPU since the start of the daemon, by UUID."""
        self._measured: dict[AttemptId, _Measured] = {}
        self._read_at: dict[str, float] = {}
        """When each node was last read, by the monotonic clock."""
        self._saved_at = time.monotonic()

    def record(
        self, state: State, node: str, uses: Mapping[str, GpuUse], now: float
    ) -> list[Event]:
        """Take a reading of a node; return the usage of attempts that is due for the journal."""
        gap = now - self._read_at.get(node, now - MAX_GAP_SECONDS * 2)
        self._read_at[node] = now
        holders = _holders(state.running.values(), state.cluster.nodes[node])
        wall = time.time()
        idle = {
            (alarm.job, alarm.attempt, alarm.gpu)
            for alarm in state.record.alarms.values()
            if alarm.kind in IDLE_KINDS and alarm.node == node
        }
        for device in state.cluster.nodes[node].types.get(GPU, ()):
            use = uses.get(device.facts.uuid or "")
            if use is None:
                continue
            jobs = holders.get(device.name, [])
            holder = jobs[0][0].id if jobs else None
            self.history.add(
                f"{node}/{device.name}", wall, use.utilization, use.memory_used, use.power, holder
            )
            if gap <= MAX_GAP_SECONDS:
                if use.power is not None:
                    self.energy[use.uuid] = self.energy.get(use.uuid, 0.0) + gap * use.power
                for job, share in jobs:
                    is_idle = (job.id, job.attempt, device.name) in idle
                    self._measure(job, share, use, gap, now, wall, is_idle)
        if now - self._saved_at > SAVE_SECONDS:
            self._saved_at = now
            self.history.save(wall)
        return self._due(state, now, wall)

    def _measure(
        self, job: Job, share: float, use: GpuUse, gap: float, now: float, wall: float,
        is_idle: bool,
    ) -> None:  # fmt: skip
        """Add the time since the last reading to an attempt on a GPU, by its share."""
        measured = self._of(job, now)
        # Not the time before it got the GPU.
        held = wall - job.allocated_at if job.allocated_at is not None else 0.0
        part = min(gap, max(held, 0.0)) * share
        measured.seconds += part
        measured.busy += part * (use.utilization or 0) / 100
        measured.energy += part * (use.power or 0.0)
        measured.wasted += part * is_idle

    def _of(self, job: Job, now: float) -> _Measured:
        key = AttemptId(job.id, job.attempt)
        if key not in self._measured:
            before = job.measured  # by an earlier daemon
            self._measured[key] = _Measured(
                before.measured, before.busy, before.energy, before.wasted, now
            )
        return self._measured[key]

    def _due(self, state: State, now: float, wall: float) -> list[Event]:
        running = state.running
        events: list[Event] = []
        for key, measured in list(self._measured.items()):
            job = running.get(key.job)
            if job is None or job.attempt != key.attempt:
                del self._measured[key]
            elif now - measured.published_at > PUBLISH_SECONDS:
                measured.published_at = now
                events.append(_event(key, measured, wall))
        return events

    def measured(self, job: int, attempt: int) -> GpuUsage | None:
        """Return what was measured of a running attempt: GPU-seconds and joules."""
        found = self._measured.get(AttemptId(job, attempt))
        if found is None:
            return None
        return GpuUsage(
            wasted=found.wasted, measured=found.seconds, busy=found.busy, energy=found.energy
        )

    def before_ends(self, events: list[Event], state: State) -> list[Event]:
        """Return events of executors, the usage of an attempt before its end."""
        if not self._measured:
            return events
        result: list[Event] = []
        for event in events:
            if isinstance(event, ENDS):
                measured = self._measured.get(AttemptId(event.job, event.attempt))
                if measured is not None and measured.seconds:
                    key = AttemptId(event.job, event.attempt)
                    result.append(_event(key, measured, time.time()))
            result.append(event)
        return result

    def close(self) -> None:
        """Keep the history for the next daemon."""
        self.history.save(time.time())


def _event(key: AttemptId, measured: _Measured, at: float) -> UsageMeasured:
    return UsageMeasured(
        at=at, job=key.job, attempt=key.attempt, measured=round(measured.seconds, 3),
        busy=round(measured.busy, 3), energy=round(measured.energy, 1),
        wasted=round(measured.wasted, 3),
    )  # fmt: skip


def _holders(running: Iterable[Job], node: Node) -> dict[str, list[tuple[Job, float]]]:
    """Return the jobs on each GPU of a node, with their shares of it."""
    holders: dict[str, list[tuple[Job, float]]] = {}
    for job in running:
        part = job.placement.on(node.name) if job.placement is not None else None
        for take in part.allocations if part is not None else ():
            if take.type == GPU and not take.is_pooled:
                holders.setdefault(take.device, []).append((job, _share(node, take)))
    return holders


def _share(node: Node, take: DeviceAllocation) -> float:
    """Return the share of a GPU; of one that is shared by memory, the part of the memory."""
    if not take.is_shared:
        return take.amount / THOUSAND
    device = node.by_name.get((GPU, take.device))
    memory = device.facts.memory if device is not None else None
    return min(take.memory / memory, 1.0) if memory else 1.0
