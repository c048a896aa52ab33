"""Machines by what is left on them, so that the best one for a request is found at once.

Machines with about the same left stand in one cell: the same gap in a GPU (or number of whole
GPUs), and about as many GPUs, cores and memory in all. A request looks at cells, not at machines,
and only at some of them, where it is likely to cost least, so that it hardly matters how many
machines there are. What it costs in a cell is kept until what is typical has changed; for one
machine of each of the few best cells it is then worked out exactly.

The cells say where to look first. Whether there is room at all is known exactly: every machine
also stands on a shelf, which finds the fullest one that has enough of everything.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, nsmallest
from operator import itemgetter

from stoker.core.policy.fragment import (
    GRAIN,
    Ask,
    Cost,
    Foresight,
    Room,
    Typical,
    cost,
    fits,
    loss_beside,
    loss_of_gap,
    steps,
)
from stoker.core.policy.shelf import START, Amounts, Place, Shelf, within
from stoker.core.units import THOUSAND

LOOKS = 16
"""So many machines of a cell are tried that turn out not to have enough."""
CELLS = 128
"""A request looks at about so many cells."""
CLOSER = 6
"""Of so many machines, from the cells that promise most, the costs are compared exactly."""
KEPT = 256
"""For so many different requests what they cost is kept."""
GAPS = 6
"""A part of a GPU is looked for in so many sizes of gaps, the most promising ones."""
WHOLE = 4
"""Whole GPUs are looked for where there are few, in so many numbers of them."""

_Where = tuple[int, int, int]
"""About how many GPUs, cores and MiB are left."""
_Stand = tuple[int, int, int]
"""The order in a cell: GPUs left, cores left, number of the machine."""
_Kind = tuple[str, tuple[str, ...]]
"""Machines that differ in nothing but amounts: the model, and what else they have."""


class _Cell:
    """Machines with about the same left."""

    __slots__ = ("stands",)

    def __init__(self) -> None:
        self.stands: list[_Stand] = []


_GPU_STEP = THOUSAND
_CPU_FINE = 1
_MEM_FINE = 0
"""Cells are so wide: one GPU, half a doubling of cores, a doubling of memory."""


class _Slot:
    """The cells of machines with the same gap, or number of whole GPUs."""

    __slots__ = ("cells", "order")

    def __init__(self) -> None:
        self.cells: dict[_Where, _Cell] = {}
        self.order: list[_Where] = []
        """Those with the fewest GPUs left first."""

    def some(self, least: _Where, most: int) -> list[_Where]:
        """Cells that may have enough: all, or so many from all over."""
        order = self.order
        start = bisect_left(order, least)
        if len(order) - start <= most:
            return order[start:]
        # Half of them where best fit looks, the others evenly from the rest.
        near = start + most // 2
        return order[start:near] + order[near :: -(-(len(order) - near) // (most - most // 2))]


class _Group:
    """All machines of one kind."""

    def __init__(self, more: tuple[str, ...]) -> None:
        self.more = more
        """What they have besides GPUs, cores and memory."""
        self.slots: dict[int, _Slot] = {}
        """By gap in a GPU, or whole GPUs in thousandths; 0: for those who want none."""
        self.shelf: Shelf[int] = Shelf()


class Yard:
    """What is left on every machine."""

    def __init__(self) -> None:
        self._groups: dict[_Kind, _Group] = {}
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._rooms: dict[int, Room] = {}
        self._costs: dict[tuple[Ask, str], _Costs] = {}
        self._version: tuple[Typical, int] | None = None

    def enrol(self, name: str) -> int:
        """A machine is known from now on; among equals, whoever was known first is taken."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
        return number

    def put(self, name: str, room: Room) -> None:
        """A machine has this left now."""
        number = self.enrol(name)
        if number in self._rooms:
            if self._rooms[number] == room:
                return
            self._leave(number)
        self._rooms[number] = room
        kind = _kind(room)
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = _Group(kind[1])
        stand = _stand(number, room)
        where = _where(room)
        for key in _slots(room):
            slot = group.slots.setdefault(key, _Slot())
            cell = slot.cells.get(where)
            if cell is None:
                cell = slot.cells[where] = _Cell()
                insort(slot.order, where)
            insort(cell.stands, stand)
        group.shelf.put(stand, _scarcity(room), number)

    def drop(self, name: str) -> None:
        """A machine is gone, or closed; when it comes back it stands where it stood."""
        number = self._numbers[name]
        self._leave(number)
        del self._rooms[number]

    def _leave(self, number: int) -> None:
        room = self._rooms[number]
        kind = _kind(room)
        group, stand, where = self._groups[kind], _stand(number, room), _where(room)
        for key in _slots(room):
            slot = group.slots[key]
            stands = slot.cells[where].stands
            del stands[bisect_left(stands, stand)]
            if not stands:
                del slot.cells[where]
                del slot.order[bisect_left(slot.order, where)]
                if not slot.order:
                    del group.slots[key]
        group.shelf.take(stand, _scarcity(room))
        if not group.shelf:
            del self._groups[kind]

    def room(self, name: str) -> Room | None:
        """What is left on a machine, if it is here."""
        return self._rooms.get(self._numbers.get(name, -1))

    def __len__(self) -> int:
        return len(self._rooms)

    def fitting(self, ask: Ask) -> Iterator[str]:
        """All machines with room, as far as somebody asks; of each kind the fullest first."""
        for number in self._any(ask, self._able(ask)):
            yield self._names[number]

    def some(self, ask: Ask) -> Iterator[str]:
        """All machines with room in any order, as far as somebody asks: sooner found."""
        for _, group in self._able(ask):
            for number in group.shelf.some(within(self._way(group, ask))):
                yield self._names[number]

    def _able(self, ask: Ask) -> list[tuple[str, _Group]]:
        """Machines of the kinds that will do."""
        return [
            (model, group)
            for (model, more), group in sorted(self._groups.items(), key=itemgetter(0))
            if (not ask.models or model in ask.models)
            and all(name in more for name, amount in ask.more if amount)
        ]

    def best(self, ask: Ask, typical: Typical, count: int = 1) -> list[str]:
        """The machines where the request costs the least, one part on each; none: no room."""
        groups = self._able(ask)
        found: dict[int, None] = {}
        most = count if count > 1 else CLOSER
        for number in self._promising(ask, typical, groups, alone=count == 1):
            found[number] = None
            if len(found) == most:
                break
        if len(found) < count:
            # The shelves know of every machine; they are in the order of best fit.
            for number in self._any(ask, groups):
                found[number] = None
                if len(found) == count:
                    break
            else:
                return []
        if count == 1 < len(found):
            return [self._names[min(found, key=lambda each: self._exactly(each, ask, typical))]]
        return [self._names[number] for number in found]

    def _exactly(self, number: int, ask: Ask, typical: Typical) -> tuple[Cost, int]:
        return cost(self._rooms[number], ask, typical)[0], number

    def _promising(
        self, ask: Ask, typical: Typical, groups: list[tuple[str, _Group]], alone: bool
    ) -> Iterator[int]:
        """Machines with room, cell by cell, from where it costs least; `alone`: one of each."""
        heap: list[tuple[Cost, int, int, _Cell]] = []
        least = (ask.gpus // _GPU_STEP, _level(ask.cpu, _CPU_FINE), _level(ask.mem, _MEM_FINE))
        for model, group in groups:
            foresight = typical.foresight(model)
            costs = self._kept(ask, model, typical)
            keys = costs.serving(group, ask, foresight)
            share = max(CELLS // (len(groups) * max(len(keys), 1)), 3)
            for key in keys:
                slot, lost = group.slots[key], costs.of_gap(key, ask, foresight)
                for where in slot.some(least, share):
                    beside = costs.beside.get(where)
                    if beside is None:
                        beside = costs.work_out(ask, foresight, where, least)
                    loss, gpus, cpu = beside
                    if gpus >= 0:
                        cell = slot.cells[where]
                        found = (steps(lost + loss), gpus, cpu)
                        heap.append((found, cell.stands[0][2], key, cell))
        heapify(heap)
        while heap:
            for number in self._fitting(ask, heappop(heap)[3]):
                yield number
                if alone:
                    break

    def _fitting(self, ask: Ask, cell: _Cell) -> Iterator[int]:
        """The machines of a cell that have enough, unless those are hard to find in there."""
        misses = 0
        for _, _, number in cell.stands:
            if fits(self._rooms[number], ask):
                yield number
            else:
                misses += 1
                if misses == LOOKS:
                    break

    def _any(self, ask: Ask, groups: list[tuple[str, _Group]]) -> Iterator[int]:
        """All machines with room."""
        for _, group in groups:
            after: Place = START
            enough = within(self._way(group, ask))
            while (found := group.shelf.first(after, enough)) is not None:
                after = found[0]
                yield found[2]

    def _way(self, group: _Group, ask: Ask) -> Amounts:
        """A request as the shelf of this group counts."""
        asked = dict(ask.more) if group.more else {}
        amounts = (ask.gpus, ask.cpu, ask.mem, *(asked.get(name, 0) for name in group.more))
        return tuple(map(_scarce, amounts))

    def _kept(self, ask: Ask, model: str, typical: Typical) -> _Costs:
        version = self._version
        if version is None or version[0] is not typical or version[1] != typical.version:
            self._version = (typical, typical.version)
            self._costs.clear()
        found = self._costs.get((ask, model))
        if found is None:
            if len(self._costs) >= KEPT:
                self._costs.clear()
            found = self._costs[ask, model] = _Costs()
        return found


_Beside = tuple[float, int, int]
"""What is lost for want of cores and memory, and the GPUs and cores that are left."""
_NEVER: _Beside = (0.0, -1, -1)
"""No machine there has enough."""


class _Costs:
    """What one request costs, as far as it has been worked out."""

    __slots__ = ("beside", "gaps")

    def __init__(self) -> None:
        self.gaps: dict[int, float] = {}
        self.beside: dict[_Where, _Beside] = {}

    def serving(self, group: _Group, ask: Ask, foresight: Foresight) -> list[int]:
        """In which slots to look for what is asked for."""
        if not ask.gpus:
            return [0]
        least = ask.gpus // GRAIN * GRAIN
        if least >= THOUSAND:
            least = least // THOUSAND * THOUSAND
            return nsmallest(WHOLE, [key for key in group.slots if key >= least])
        whole = nsmallest(WHOLE, [key for key in group.slots if key >= THOUSAND])
        gaps = [key for key in group.slots if least <= key < THOUSAND and key]
        if len(gaps) > GAPS:
            gaps = nsmallest(GAPS, gaps, lambda key: (self.of_gap(key, ask, foresight), key))
        return gaps + whole

    def of_gap(self, key: int, ask: Ask, foresight: Foresight) -> float:
        """What is lost in the gaps of the GPUs of a slot."""
        lost = self.gaps.get(key)
        if lost is None:
            gap = max(min(key, THOUSAND), ask.gpus % THOUSAND)
            lost = self.gaps[key] = loss_of_gap(foresight, ask, gap)
        return lost

    def work_out(self, ask: Ask, foresight: Foresight, where: _Where, least: _Where) -> _Beside:
        """What is lost on a machine that has the least that all in a cell have."""
        found = _NEVER
        if where[0] >= least[0] and where[1] >= least[1] and where[2] >= least[2]:
            gpus, cpu, mem = _corner(where)
            gpus, cpu, mem = max(gpus, ask.gpus), max(cpu, ask.cpu), max(mem, ask.mem)
            loss = loss_beside(foresight, ask, gpus, cpu, mem)
            found = (loss, gpus - ask.gpus, cpu - ask.cpu)
        self.beside[where] = found
        return found


def _kind(room: Room) -> _Kind:
    return room.model, tuple(name for name, _ in room.more)


def _stand(number: int, room: Room) -> _Stand:
    return sum(room.gpus), room.cpu, number


def _slots(room: Room) -> set[int]:
    slots = {left // GRAIN * GRAIN for left in room.gpus if left < THOUSAND}
    slots.add(room.whole * THOUSAND)
    slots.add(0)
    return slots


def _where(room: Room) -> _Where:
    return sum(room.gpus) // _GPU_STEP, _level(room.cpu, _CPU_FINE), _level(room.mem, _MEM_FINE)


def _corner(where: _Where) -> tuple[int, int, int]:
    return where[0] * _GPU_STEP, _least(where[1], _CPU_FINE), _least(where[2], _MEM_FINE)


def _level(amount: int, fine: int) -> int:
    """Where an amount is on a scale with 2 to the power of `fine` steps to the doubling."""
    shift = max(amount.bit_length() - fine - 1, 0)
    return (amount >> shift) + (shift << fine)


def _least(level: int, fine: int) -> int:
    """The least amount on a step of that scale."""
    shift = max((level >> fine) - 1, 0)
    return (level - (shift << fine)) << shift


def _scarcity(room: Room) -> Amounts:
    return tuple(
        map(_scarce, (room.most, room.cpu, room.mem, *(amount for _, amount in room.more)))
    )


def _scarce(amount: int) -> float:
    """The less there is the more, so that the shelf, which finds the modest, finds the roomy.

    Exact: different whole numbers below 2 to the power of 50 never become equal.
    """
    return (1 << 40) / amount if amount > 0 else float("inf")
