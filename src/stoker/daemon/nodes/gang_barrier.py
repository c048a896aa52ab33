"""GangBarrier: readiness of the parts of one attempt; none runs before all are ready."""

from __future__ import annotations

from enum import Enum, auto

from msgspec import Struct

from stoker.core.events.instructions import StartProcess
from stoker.core.model.job import AttemptId
from stoker.executors.port import NODE, PartHost


class PartState(Enum):
    """How far one part is."""

    WAITING = auto()
    """Nothing is known of it yet."""
    READY = auto()
    """It has claimed its attempt and waits for the others."""
    RUNNING = auto()
    """It runs, or has run."""
    FAILED = auto()
    """It does not run and will not."""


class BarrierActions(Struct):
    """What follows from the states of the parts."""

    release: list[int] = []
    """Parts that may run."""
    give_up: list[int] = []
    """Parts that wait for others that will not come, at the barrier or for a host."""
    lost: list[int] = []
    """Parts that were not started although others were."""
    cancelled: str | None = None
    """Why no part was started."""
    failed: bool = False
    """Whether another try would fail too."""
    is_over: bool = False
    """Whether the barrier has no more to do."""


class GangBarrier(Struct):
    """The states of the parts of one attempt, until all run or none does."""

    instruction: StartProcess
    parts: list[PartState]
    ports: list[int]
    """A free port on the host of each part, as far as it has reported one."""
    hosts: list[PartHost]
    why: str = ""
    failed: bool = False

    @classmethod
    def of(cls, instruction: StartProcess) -> GangBarrier:
        """Return a barrier of which nothing is known yet."""
        count = len(instruction.placement.parts)
        return cls(instruction, [PartState.WAITING] * count, [0] * count, [NODE] * count)

    @property
    def attempt(self) -> AttemptId:
        """The attempt of all parts."""
        return AttemptId(self.instruction.job, self.instruction.attempt)

    @property
    def is_delegated(self) -> bool:
        """Whether all parts are on one delegated node, which chooses their hosts."""
        return len({part.node for part in self.instruction.placement.parts}) == 1

    def set_ready(self, rank: int, port: int, host: PartHost = NODE) -> None:
        """Note that a part has claimed its attempt and waits."""
        if self.parts[rank] is PartState.WAITING:
            self.parts[rank] = PartState.READY
        self.ports[rank], self.hosts[rank] = port, host

    def set_running(self, rank: int) -> None:
        """Note that a part runs, or has run."""
        self.parts[rank] = PartState.RUNNING

    def set_failed(self, rank: int, why: str, failed: bool) -> None:
        """Note that a part does not run and will not."""
        self.parts[rank] = PartState.FAILED
        self.why = self.why or why
        self.failed = self.failed or failed

    def next_actions(self) -> BarrierActions:
        """Return what follows from the states of the parts.

        A barrier begins again after a restart of the daemon: then some parts may run already,
        because the earlier daemon had released them; the others are released too, or are lost.
        """
        actions = BarrierActions()
        if PartState.RUNNING in self.parts:
            if PartState.WAITING in self.parts:
                return actions
            actions.release = self._ranks(PartState.READY)
            actions.lost = self._ranks(PartState.FAILED)
            actions.is_over = True
        elif PartState.FAILED in self.parts:
            actions.give_up = self._ranks(PartState.READY, PartState.WAITING)
            if not actions.give_up:
                actions.cancelled, actions.failed = self.why, self.failed
                actions.is_over = True
        elif PartState.WAITING not in self.parts:
            actions.release, actions.is_over = self._ranks(PartState.READY), True
        return actions

    def _ranks(self, *states: PartState) -> list[int]:
        return [rank for rank, part in enumerate(self.parts) if part in states]
