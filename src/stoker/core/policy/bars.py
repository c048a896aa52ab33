"""Machines by how urgent one must be to be made room for there.

For so many GPUs on a machine, those stop first who stand furthest back, until there are enough.
Where the last of them stands is the bar of that machine: only who stands further in front gets
over it. Per amount, machines are kept in the order of their bars, and only those are worked out
anew on which something has changed. So it is known at once whether somebody can make room for a
job at all, and where those stop who can wait best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf

from stoker.core.cluster import Cluster, Node
from stoker.core.policy.fit import gpus_needed
from stoker.core.policy.rows import Rows
from stoker.core.policy.victims import Seat, Victims
from stoker.core.request import CPU, GPU, MEMORY, Request
from stoker.core.units import THOUSAND

Bar = tuple[float, float]
"""Minus the priority, and where its policy puts the last who would have to stop."""
NOBODY: Bar = (-inf, -inf)
"""Nobody gets over this."""
ANYBODY: Bar = (inf, inf)
"""There is room already."""
Row = tuple[Seat, str]
"""Where the last stands who would have to stop, and on which machine."""
Steps = list[tuple[int, int, int, Seat]]
"""What is left of GPUs, cores and memory if this one stops, and all who stand further back."""
FINE = THOUSAND // 4
"""Amounts are told apart in quarters of a GPU."""
GANG = 1
"""What is added to a need if several machines are asked for: others may be free already."""
MOST_AMOUNTS = 64
"""Of so many amounts the order is kept."""


def need_of(request: Request | None) -> int:
    """What must be left of a machine's GPUs at least for (a part of) this, in steps."""
    if request is None:
        return 0
    return gpus_needed(request) // FINE * FINE + (GANG if request.machines > 1 else 0)


class Bars:
    """The bars of the machines in a ledger, per amount."""

    def __init__(
        self,
        ledger: Cluster,
        victims: Victims,
        can_stop: Callable[[int], bool] | None = None,
    ) -> None:
        """If not all of those can be asked, `can_stop` says who."""
        self.ledger, self.victims, self.can_stop = ledger, victims, can_stop
        self._steps: dict[str, Steps] = {}
        self._tables: dict[int, _Table] = {}
        """By amounts, the smallest first."""
        self.anew: dict[str, None] = {}
        """Machines on which something has changed since all who wait were last looked at."""

    def refresh(self, moved: Iterable[str] = ()) -> None:
        """Work out what has changed in the ledger, and where somebody stands elsewhere."""
        stale = self.ledger.shifted
        stale.update(dict.fromkeys(moved))
        self.anew.update(stale)
        for name in stale:
            steps = self._climb(name)
            at, end = 0, len(steps)
            for need, table in self._tables.items():
                while at < end and steps[at][0] < need:  # what is left becomes more by every step
                    at += 1
                table.put(name, steps[at][3] if at < end else None)
            if steps:
                self._steps[name] = steps
            else:
                self._steps.pop(name, None)
        stale.clear()

    def drop(self, name: str) -> None:
        """Nothing is known of a machine any more."""
        if self._steps.pop(name, None):
            for table in self._tables.values():
                table.put(name, None)

    def down(self, need: int) -> Iterator[Row]:
        """Machines, the highest bar first. Nothing may change meanwhile."""
        need -= need % FINE
        table = self._tables.get(need)
        if table is None:
            if len(self._tables) >= MOST_AMOUNTS:
                self._tables.clear()
            table = self._tables[need] = _Table()
            self._tables = dict(sorted(self._tables.items()))
            for name, steps in self._steps.items():
                table.put(name, _last(steps, need))
        return reversed(table.rows)

    def on(self, name: str, need: int, cores: int = 0, memory: int = 0) -> Bar:
        """The bar of one machine, also for cores and memory."""
        last = _last(self._steps.get(name, []), need, cores, memory)
        return last[:2] if last is not None else NOBODY

    def _climb(self, name: str) -> Steps:
        here = self.victims.on.get(name)
        node = self.ledger.node(name) if here else None
        if here is None or node is None or node.closed is not None:
            return []
        left = left_on(node, GPU)
        cores, memory = _sum_on(node, CPU), _sum_on(node, MEMORY)
        whole, part = _whole_and_part(left.values())
        steps: Steps = []
        for seat in self.victims.worst_on(name):
            if self.can_stop is not None and not self.can_stop(seat[3]):
                continue
            cards, its_cores, its_memory = here[seat[3]]
            cores += its_cores
            memory += its_memory
            for device, gives in cards:
                before = left.get(device)
                if before is None:
                    continue
                amount = gives
                if before or gives != THOUSAND:  # it may share by now what it had for itself
                    amount = min(before + gives, node.by_name[GPU, device].facts.capacity)
                left[device] = amount
                if before and (before == part or before >= THOUSAND):
                    whole, part = _whole_and_part(left.values())
                elif amount == THOUSAND:
                    whole += THOUSAND
                elif amount > part:
                    part = amount
            steps.append((whole + part, cores, memory, seat))
        return steps


def left_on(node: Node, type: str) -> dict[str, int]:
    """What is left of the devices of a type that can be had."""
    return {
        each.name: each.free - each.others  # not by its property: asked very often
        for each in node.types.get(type, ())
        if not each.gone and each.drained is None
    }


def _sum_on(node: Node, type: str) -> int:
    return sum(left_on(node, type).values()) if type in node.types else 0


def most_of(lefts: Iterable[int]) -> int:
    """The largest amount that can be had of GPUs of which so much is left."""
    return sum(_whole_and_part(lefts))


def _whole_and_part(lefts: Iterable[int]) -> tuple[int, int]:
    whole = part = 0
    for left in lefts:
        if left == THOUSAND:
            whole += THOUSAND
        elif left > part:
            part = left
    return whole, part


def _last(steps: Steps, need: int, cores: int = 0, memory: int = 0) -> Seat | None:
    """The last who has to stop for so much."""
    for left, free_cores, free_memory, seat in steps:
        if left >= need and free_cores >= cores and free_memory >= memory:
            return seat
    return None


class _Table:
    """Machines in the order of their bars."""

    __slots__ = ("_last", "rows")

    def __init__(self) -> None:
        self.rows: Rows[Row] = Rows()
        self._last: dict[str, Seat] = {}

    def put(self, name: str, last: Seat | None) -> None:
        before = self._last.get(name)
        if before == last:
            return
        if before is not None:
            self.rows.remove((before, name))
            del self._last[name]
        if last is not None:
            self.rows.add((last, name))
            self._last[name] = last
