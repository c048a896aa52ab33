"""VirtualClock: wall and boot clock of the daemon's machine, and a heap of timers."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from random import Random

from stoker.engine import Instant

EPOCH = 1_700_000_000.0
"""The wall-clock time at which every simulation begins."""


class VirtualClock:
    """Virtual time, as the clocks of the daemon's machine show it."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.time = 0.0
        """True seconds since the beginning, which no clock of the machine shows."""
        self.boots = 1
        self._wall_ahead = EPOCH
        self._booted_at = -1000.0
        self._coming: list[tuple[float, int, Callable[[], None], bool]] = []
        self._made = 0

    def moment(self) -> Instant:
        """Now, as the machine's clocks tell it."""
        return self.moment_of(self.time)

    def moment_of(self, time: float) -> Instant:
        """Another moment, as the machine's clocks would have told it if they had always run so."""
        return Instant(wall=time + self._wall_ahead, boot=time - self._booted_at)

    @property
    def boot_id(self) -> str:
        """Which start of the machine this is."""
        return f"boot-{self.boots}"

    def after(self, seconds: float, action: Callable[[], None], afar: bool = False) -> None:
        """Call something later, on this machine or another one; equal times keep their order."""
        self._made += 1
        heappush(self._coming, (self.time + max(seconds, 0.0), self._made, action, afar))

    def until_next(self) -> float | None:
        """Seconds until the next timer; None if there is none."""
        return max(self._coming[0][0] - self.time, 0.0) if self._coming else None

    def advance(self, seconds: float) -> None:
        """Let time pass, and run the timers that are due by then, in order."""
        end = self.time + max(seconds, 0.0)
        while self._coming and self._coming[0][0] <= end:
            self.time, _, action, _ = heappop(self._coming)
            action()
        self.time = end

    def jump(self, seconds: float) -> None:
        """Set the wall clock; durations are not affected."""
        self._wall_ahead += seconds

    def reboot(self) -> None:
        """Restart the machine: its timers do not run."""
        self._coming = [coming for coming in self._coming if coming[3]]
        heapify(self._coming)
        self.boots += 1
        self._booted_at = self.time
