"""Parts of one attempt on several machines: none runs before all are ready."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.instructions import StartProcess

Key = tuple[int, int]

WAITING, READY, LIVE, NONE = "waiting", "ready", "live", "none"


class BarrierActions(Struct):
    """What is to be done about a muster now."""

    go: list[int] = []
    release: list[int] = []
    lost: list[int] = []
    """Parts that were not started although others were."""
    off: str | None = None
    """Why nothing was started anywhere."""
    failed: bool = False
    """Whether another try would end the same way."""
    over: bool = False
    """Whether the muster has done its work."""


class GangBarrier(Struct):
    """How the parts of one attempt stand, until all run or none does."""

    wish: StartProcess
    parts: list[str]
    ports: list[int]
    """A free port on the machine of each, as far as it has said so."""
    why: str = ""
    failed: bool = False

    @classmethod
    def of(cls, wish: StartProcess) -> GangBarrier:
        """Nothing is known of anybody yet."""
        count = len(wish.placement.parts)
        return cls(wish, [WAITING] * count, [0] * count)

    @property
    def key(self) -> Key:
        """The job and the number of its attempt."""
        return self.wish.job, self.wish.attempt

    def ready(self, part: int, port: int) -> None:
        """A part has claimed its attempt and waits."""
        if self.parts[part] == WAITING:
            self.parts[part] = READY
        self.ports[part] = port

    def live(self, part: int) -> None:
        """A part runs, or has run."""
        self.parts[part] = LIVE

    def none(self, part: int, why: str, failed: bool) -> None:
        """A part does not run and will not."""
        self.parts[part] = NONE
        self.why = self.why or why
        self.failed = self.failed or failed

    def orders(self) -> BarrierActions:
        """What follows from how they stand.

        A muster begins anew when a driver comes back: then some may run already, because the
        one before had said `go` to them, and the others are told the same, or are lost.
        """
        found = BarrierActions()
        if LIVE in self.parts:
            if WAITING in self.parts:
                return found
            found.go = self._which(READY)
            found.lost = self._which(NONE)
            found.over = True
        elif NONE in self.parts:
            found.release = self._which(READY)
            if WAITING not in self.parts and not found.release:
                found.off, found.failed, found.over = self.why, self.failed, True
        elif WAITING not in self.parts:
            found.go, found.over = self._which(READY), True
        return found

    def _which(self, state: str) -> list[int]:
        return [number for number, part in enumerate(self.parts) if part == state]
