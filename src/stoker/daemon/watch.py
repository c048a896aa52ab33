"""Keeping an eye on real GPUs: who else is on them, asked only while somebody cares."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from stoker.core.cluster import Device
from stoker.core.events import Event, ForeignUseChanged
from stoker.core.foreign import Thresholds, Verdict, Watch
from stoker.core.state import State
from stoker.executors.holds import Holds
from stoker.executors.tree import TOKEN
from stoker.probes.process import ProbeProcess
from stoker.probes.readings import Reading
from stoker.probes.samples import samples

INTERVAL = 2.0
FRESH = 4.0
"""A look at a GPU older than this is no reason to put a job there."""
HUNG = 10.0
"""A driver that has not answered for so long is given up on."""
SETTLE = 5.0
"""For so long after an attempt of ours, memory on its GPU may still be its own."""
INTEREST = 10.0


class GpuWatch:
    """Asks the probe process, judges strangers, and reports changes as facts."""

    def __init__(
        self,
        node: str,
        first: Reading,
        install: str,
        thresholds: Thresholds,
        holds: Holds,
        register: Callable[[int, Callable[[], None]], None],
        unregister: Callable[[int], None],
    ) -> None:
        self.node, self.install, self.holds = node, install, holds
        self.register, self.unregister = register, unregister
        self.enabled = bool(first.facts)
        self.process = ProbeProcess()
        self.registered = (-1, -1)
        self.thresholds = thresholds
        self.watches: dict[str, Watch] = {}
        self.latest: dict[str, dict[str, Any]] = {}
        self.note = first.error
        self.when = time.monotonic()
        self.wanted_until = 0.0
        self.busy_until: dict[str, float] = {}
        self.pending: Reading | None = first if self.enabled else None

    def look(self) -> None:
        """Somebody wants current figures for a while."""
        self.wanted_until = time.monotonic() + INTEREST

    def limits(self) -> dict[str, Any]:
        """From when on a GPU counts as used by others."""
        limits = self.thresholds
        return {"load": limits.load, "memory": limits.memory, "processes": limits.processes}

    def set_limits(
        self, load: float | None, memory: float | None, processes: bool | None
    ) -> dict[str, Any]:
        """Change that, and look again before anything is put on a GPU."""
        given = {"load": load, "memory": memory, "processes": processes}
        known = {name: value for name, value in given.items() if value is not None}
        self.thresholds = replace(self.thresholds, **known)
        for watch in self.watches.values():
            watch.thresholds = self.thresholds
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
                self.note = f"the GPU driver has not answered for {HUNG:.0f} s"
                self.when = now  # go by the last verdicts rather than stop for ever
            return 1.0
        if now - self.when >= INTERVAL:
            self._ask()
            return 1.0
        return max(INTERVAL - (now - self.when), 0.05)

    def _ask(self) -> None:
        try:
            self.process.ask()
        except OSError as error:
            self.note = f"the GPU probe cannot be started: {error.strerror}"
            self.when = time.monotonic()
            return
        self.process.reap()
        current = (self.process.fileno(), self.process.generation)
        if current != self.registered:
            self._forget_descriptor()
            self.registered = current
            self.register(current[0], self._answer)

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
        self.note = reading.error
        node = state.cluster.nodes.get(self.node)
        if node is None:
            return []
        ours = self._ours(state)
        found = samples(reading, ours)
        power = {use.uuid: use for use in reading.use}
        events: list[Event] = []
        for device in node.types.get("gpu", ()):
            uuid = device.facts.uuid
            if uuid is None:
                continue
            sample = found.get(uuid)
            if sample is None:
                self.latest.pop(uuid, None)
                why = "nobody: the driver lost it" if reading.facts or reading.error else None
                events += self._change(device, why, 0)
                continue
            watch = self.watches.setdefault(uuid, Watch(self.thresholds))
            verdict = watch.observe(sample, self.when, self._settling(uuid, device))
            use = power[uuid]
            self.latest[uuid] = {
                "memory_used": use.memory_used,
                "utilization": use.utilization,
                "temperature": use.temperature,
                "power": use.power,
                "foreign": [
                    {"pid": s.pid, "user": s.user, "command": s.command, "memory": s.memory}
                    for s in verdict.strangers
                ],
            }
            holder = None if device.free < device.facts.capacity else self.holds.holder(uuid)
            stranger = f"the stoker of {holder}" if holder else _named(verdict)
            memory = sum(s.memory or 0 for s in sample.strangers)
            events += self._change(device, stranger, memory)
        return events

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

    def _settling(self, uuid: str, device: Device) -> bool:
        now = time.monotonic()
        if device.free < device.facts.capacity:
            self.busy_until[uuid] = now + SETTLE
        return self.busy_until.get(uuid, 0.0) > now

    def _ours(self, state: State) -> Callable[[int], bool]:
        sessions = {job.pid for job in state.running.values() if job.pid is not None}
        mark = f"{TOKEN}={self.install}.".encode()

        def is_ours(pid: int) -> bool:
            try:
                if os.getsid(pid) in sessions:
                    return True
                with open(f"/proc/{pid}/environ", "rb") as file:
                    return any(entry.startswith(mark) for entry in file.read().split(b"\0"))
            except OSError:
                return False

        return is_ours

    def close(self) -> None:
        """Let the probe process go."""
        self._forget_descriptor()
        self.process.close()


def _named(verdict: Verdict) -> str | None:
    """Who it is, in words that stay the same while it is the same one."""
    if not verdict.busy:
        return None
    for stranger in verdict.strangers:
        name = stranger.command.split(" ")[0].rpartition("/")[2] or "a process"
        return f"{stranger.user or 'somebody'}'s {name} (pid {stranger.pid})"
    return verdict.why or "somebody else"
