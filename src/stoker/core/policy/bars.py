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
    return exactly(request) // FINE * FINE + (GANG if request.machines > 1 else 0)


def exactly(request: Request) -> int:
    """The same, to the thousandth."""
    ask = request.gpus
    if ask is None or ask.beside or ask.share is not None or request.exclusive:
        return 0
    return ask.amount


class Bars:
    """The bars of the machines in a ledger, per amount."""

    def __init__(
        self,
        ledger: Cluster,
        victims: Victims,
        can_stop: Callable[[int], bool] = lambda job: True,
    ) -> None:
        """If not all of those can be asked, `can_stop` says who."""
        self.ledger, self.victims, self.can_stop = ledger, victims, can_stop
        self._steps: dict[str, Steps] = {}
        self._tables: dict[int, _Table] = {}
        self.anew: dict[str, None] = {}
        """Machines on which something has changed since all who wait were last looked at."""

    def refresh(self) -> None:
        """Work out what has changed."""
        stale = self.ledger.shifted
        if self.ledger.true is self.ledger and self.victims.moved:
            stale.update(self.victims.moved)
            self.victims.moved.clear()
        self.anew.update(stale)
        for name in stale:
            steps = self._climb(name)
            for need, table in self._tables.items():
                table.put(name, _last(steps, need))
            if steps:
                self._steps[name] = steps
            else:
                self._steps.pop(name, None)
        stale.clear()

    def down(self, need: int) -> Iterator[Row]:
        """Machines, the highest bar first. Nothing may change meanwhile."""
        need -= need % FINE
        table = self._tables.get(need)
        if table is None:
            if len(self._tables) >= MOST_AMOUNTS:
                self._tables.clear()
            table = self._tables[need] = _Table()
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
        left, pools = left_on(node, GPU), {type: left_on(node, type) for type in (CPU, MEMORY)}
        cores, memory = (sum(pool.values()) for pool in pools.values())
        steps: Steps = []
        for seat in self.victims.worst_on(name):
            if not self.can_stop(seat[3]):
                continue
            for take in here[seat[3]]:
                if take.type == GPU:
                    if take.device in left:  # it may share by now what it had for itself
                        most = node.by_name[GPU, take.device].facts.capacity
                        left[take.device] = min(left[take.device] + take.amount, most)
                elif take.type == CPU:
                    cores += take.amount
                elif take.type == MEMORY:
                    memory += take.amount
            steps.append((most_of(left.values()), cores, memory, seat))
        return steps


def left_on(node: Node, type: str) -> dict[str, int]:
    """What is left of the devices of a type that can be had."""
    devices = node.types.get(type, ())
    return {each.name: each.left for each in devices if not each.gone and each.drained is None}


def most_of(lefts: Iterable[int]) -> int:
    """The largest amount that can be had of GPUs of which so much is left."""
    whole = part = 0
    for left in lefts:
        if left == THOUSAND:
            whole += THOUSAND
        elif left > part:
            part = left
    return whole + part


def _last(steps: Steps, need: int, cores: int = 0, memory: int = 0) -> Seat | None:
    """The last who has to stop for so much."""
    for left, free_cores, free_memory, seat in steps:
        if left >= need and free_cores >= cores and free_memory >= memory:
            return seat
    return None


class _Table:
    """Machines in the order of their bars."""

    __slots__ = ("_row", "rows")

    def __init__(self) -> None:
        self.rows: Rows[Row] = Rows()
        self._row: dict[str, Row] = {}

    def put(self, name: str, last: Seat | None) -> None:
        row = (last, name) if last is not None else None
        before = self._row.get(name)
        if before == row:
            return
        if before is not None:
            self.rows.remove(before)
            del self._row[name]
        if row is not None:
            self.rows.add(row)
            self._row[name] = row
