"""Running jobs that can make room, by who does so first; all of them, and machine by machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stoker.core.cluster import Placement
from stoker.core.policy.rows import Rows
from stoker.core.request import CPU, GPU, MEMORY

Seat = tuple[int, float, float, int]
"""Minus its priority, where its policy puts it, when it started, and the id: the largest makes
room first."""
Gives = tuple[tuple[tuple[str, int], ...], int, int]
"""What one would give back on a machine: of which GPUs how much, and cores and memory."""


class Victims:
    """Those who can stop and go on later, in the order of their places."""

    def __init__(self) -> None:
        self._seats: Rows[Seat] = Rows()
        self._seat: dict[int, Seat] = {}
        self._until: dict[int, float] = {}
        self._nodes: dict[int, list[str]] = {}
        self.on: dict[str, dict[int, Gives]] = {}
        """Those on each machine, and what each would give back there."""
        self.moved: dict[str, None] = {}
        """Machines on which somebody stands elsewhere since this was last cleared."""
        self.stirred: dict[str, None] = {}
        """Machines on which somebody may make room who could not before, wherever it stands."""

    def put(
        self,
        job: int,
        placement: Placement | None,
        priority: int,
        level: float,
        started: float,
        until: float,
    ) -> None:
        """Enter a job, or move it. From that moment on it may stand further in front."""
        self._until[job] = until
        seat = (-priority, level, started, job)
        before = self._seat.get(job)
        if before == seat:
            return
        if before is not None:
            self._seats.remove(before)
        else:
            self._settle(job, placement.parts if placement is not None else ())
        self._seats.add(seat)
        self._seat[job] = seat
        self._move(job)

    def stir(self, job: int) -> None:
        """It may be more likely to make room than before, though it stands where it stood."""
        for name in self._nodes.get(job, ()):
            self.stirred[name] = None

    def _move(self, job: int) -> None:
        for name in self._nodes[job]:
            self.moved[name] = None

    def _settle(self, job: int, parts: Iterable[Placement]) -> None:
        self._nodes[job] = nodes = []
        for part in parts:
            nodes.append(part.node)
            self.on.setdefault(part.node, {})[job] = _gives(part)

    def holds(self, job: int, at: float) -> bool:
        """Whether it stands where it should at this moment."""
        return at < self._until[job]

    def seat(self, job: int) -> Seat:
        """Where a job stands."""
        return self._seat[job]

    def level(self, job: int) -> float:
        """Where its policy puts a job."""
        return self._seat[job][1]

    def drop(self, job: int) -> None:
        """It does not run any more."""
        seat = self._seat.pop(job, None)
        if seat is None:
            return
        del self._until[job]
        self._seats.remove(seat)
        self._move(job)
        for name in self._nodes.pop(job):
            del self.on[name][job]
            if not self.on[name]:
                del self.on[name]

    def worst(self) -> Seat | None:
        """Where the one stands who makes room first."""
        return self._seats.last()

    def worst_on(self, node: str) -> Iterator[Seat]:
        """Those on a machine who make room first, first."""
        here = self.on.get(node, ())
        return iter(sorted([self._seat[job] for job in here], reverse=True))

    def __len__(self) -> int:
        return len(self._seat)

    def __contains__(self, job: int) -> bool:
        return job in self._seat


def _gives(part: Placement) -> Gives:
    amounts = {CPU: 0, MEMORY: 0}
    for take in part.takes:
        if take.type in amounts:
            amounts[take.type] += take.amount
    cards = tuple((take.device, take.amount) for take in part.takes if take.type == GPU)
    return cards, amounts[CPU], amounts[MEMORY]
