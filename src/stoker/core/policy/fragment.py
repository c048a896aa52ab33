"""How much of a machine's GPUs is lost to those who come later, when a request is put on it.

A GPU is lost in one of two ways. What is left of it is smaller than what people ask for: with
0.81 of it taken, the rest waits for somebody who wants 0.19 or less. Or the cores or the memory
beside it are gone: four free GPUs and one core serve nobody who wants four cores for each. Both
are foreseen from what has been asked for lately, and a request goes where it adds the least to
what is foreseen to be lost. Differences that do not matter are rounded away, so that among
machines that are about as good the fullest one is taken, and whole machines stay whole.

Everything here works on small values, never on the ledger, so that it can be kept and looked up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from stoker.core.units import THOUSAND

STEP = 100
"""Losses are told apart in steps of a tenth of a GPU; what is less is left to best fit."""
PATIENCE = 40
"""Who would fill a gap is expected among so many of those who come next, or not at all."""
WINDOW = 1000
"""About so many of the latest requests count."""
CLASSES = 256
"""So many different requests are told apart; the rarest are forgotten first."""
GRAIN = 10
"""What is left of a GPU is looked up in steps of a hundredth."""

Named = tuple[tuple[str, int], ...]


class Ask(NamedTuple):
    """What one machine is asked for."""

    gpus: int = 0
    """Thousandths: whole GPUs, and a part of one more."""
    cpu: int = 0
    mem: int = 0
    models: tuple[str, ...] = ()
    """GPU models that will do; none: any."""
    more: Named = ()
    """Other amounts, by name."""


class Room(NamedTuple):
    """What is left on one machine."""

    gpus: tuple[int, ...] = ()
    """Thousandths left of each GPU, largest first."""
    cpu: int = 0
    mem: int = 0
    model: str = ""
    more: Named = ()

    @property
    def whole(self) -> int:
        """How many GPUs nobody uses."""
        return self.gpus.count(THOUSAND)

    @property
    def most(self) -> int:
        """The largest amount of GPUs that can be had; all smaller ones can be had too."""
        whole = self.whole
        return whole * THOUSAND + (self.gpus[whole] if whole < len(self.gpus) else 0)


def fits(room: Room, ask: Ask) -> bool:
    """Whether there is enough of everything."""
    if ask.cpu > room.cpu or ask.mem > room.mem or (ask.gpus and ask.gpus > room.most):
        return False
    if ask.models and room.model not in ask.models:
        return False
    if not ask.more:
        return True
    there = dict(room.more)
    return all(there.get(name, 0) >= amount for name, amount in ask.more)


def gaps(room: Room, ask: Ask) -> list[int]:
    """How much is left of the GPUs of which the ask's part of a GPU could be taken."""
    whole, part = divmod(ask.gpus, THOUSAND)
    if not part:
        return []
    return sorted({left for left in room.gpus[whole:] if left >= part})


def take(room: Room, ask: Ask, gap: int = 0) -> Room:
    """What is left of a room when a request that fits has been put there.

    Its part of a GPU comes from one of which `gap` is left, by default the smallest that will do.
    """
    whole, part = divmod(ask.gpus, THOUSAND)
    lefts = list(room.gpus)
    lefts[:whole] = []
    if part:
        gap = gap or gaps(room, ask)[0]
        lefts.remove(gap)
        lefts.append(gap - part)
    lefts += [0] * whole
    asked = dict(ask.more)
    return Room(
        tuple(sorted(lefts, reverse=True)),
        room.cpu - ask.cpu,
        room.mem - ask.mem,
        room.model,
        tuple((name, amount - asked.get(name, 0)) for name, amount in room.more),
    )


# --------------------------------------------------------------------- what is asked for


class Typical:
    """What has been asked for lately: a tally by kind of request, in which older ones fade."""

    def __init__(self, asks: Iterable[Ask] = ()) -> None:
        self.version = 0
        """Grows when the foresight below has changed."""
        self._weights: dict[Ask, float] = {}
        self._since = 0
        self._noted = 0
        self._foresights: dict[str | None, Foresight] = {}
        self._picky = False
        for ask in asks:
            self.note(ask)

    def note(self, ask: Ask) -> None:
        """Somebody asks for this."""
        self._weights[ask] = self._weights.get(ask, 0.0) + 1.0
        self._noted += 1
        self._since += 1
        if self._noted % (WINDOW // 2) == 0 or len(self._weights) > 2 * CLASSES:
            self._fade()
        # Often in the beginning, when every request tells something new; later now and then.
        if self._since * 2 >= min(self._noted, WINDOW):
            self._renew()

    def _fade(self) -> None:
        heaviest = sorted(self._weights.items(), key=lambda each: (-each[1], each[0]))
        self._weights = {ask: weight / 2 for ask, weight in heaviest[:CLASSES] if weight > 0.1}

    def _renew(self) -> None:
        self._since = 0
        self.version += 1
        self._picky = any(ask.models for ask in self._weights)
        self._foresights.clear()

    def foresight(self, model: str) -> Foresight:
        """What is to be expected of GPUs of this model."""
        key = model if self._picky else None
        found = self._foresights.get(key)
        if found is None:
            found = self._foresights[key] = Foresight(self._weights, model)
        return found


class Foresight:
    """What will be lost of what is left, when those come who usually come."""

    def __init__(self, weights: dict[Ask, float], model: str) -> None:
        able = [
            (ask, weight)
            for ask, weight in sorted(weights.items())
            if not ask.models or model in ask.models
        ]
        asked = sum(ask.gpus * weight for ask, weight in weights.items()) or 1.0
        picky = sum(ask.gpus * weight for ask, weight in able if ask.models)
        self.wanted = picky / asked
        """The share of the GPUs asked for that must be of a kind such as this."""
        self._gaps = _gap_losses(able, sum(weights.values()) or 1.0)
        self._cpu = _Shortage((ask.gpus, ask.cpu, weight) for ask, weight in able)
        self._mem = _Shortage((ask.gpus, ask.mem, weight) for ask, weight in able)

    def gap(self, left: int) -> float:
        """What is lost of a GPU of which so much is left."""
        return self._gaps[left // GRAIN]

    def beside(self, gpus: int, cpu: int, mem: int) -> float:
        """What is lost of so many GPUs for want of cores or memory."""
        return max(self._cpu.lost(gpus, cpu), self._mem.lost(gpus, mem))

    def lost(self, room: Room) -> float:
        """Thousandths of GPUs that nobody will use, of what is left in a room."""
        return sum(map(self.gap, room.gpus)) + self.beside(sum(room.gpus), room.cpu, room.mem)


def _gap_losses(able: list[tuple[Ask, float]], all: float) -> list[float]:
    """What is lost of a GPU, by how much is left of it.

    A gap is filled by one of those who fit, as often as they come, and then the rest of it by
    another; if within our patience none is expected, all of it is lost.
    """
    sizes: dict[int, float] = {}
    for ask, weight in able:
        if ask.gpus:
            size = -(-min(ask.gpus, THOUSAND) // GRAIN)
            sizes[size] = sizes.get(size, 0.0) + weight / all
    often = sorted(sizes.items())
    lost: list[float] = []
    for left in range(THOUSAND // GRAIN + 1):
        chance = rest = 0.0
        for size, share in often:
            if size > left:
                break
            chance += share
            rest += share * lost[left - size]
        none = max(1.0 - chance, 0.0) ** PATIENCE
        filled = (1.0 - none) * rest / chance if chance else 0.0
        lost.append(none * left * GRAIN + filled)
    return lost


class _Shortage:
    """What is lost of GPUs when there is little of something else beside them.

    If all who come were of one kind, the GPUs for which there is too little would be lost; this
    is the mean of that over all kinds, each weighted by the GPUs that it asks for.
    """

    def __init__(self, asks: Iterable[tuple[int, int, float]]) -> None:
        kinds = sorted(
            ((other / gpus, gpus * weight) for gpus, other, weight in asks if gpus),
            key=itemgetter(0),
        )
        all = sum(weight for _, weight in kinds) or 1.0
        kinds = [(ratio, weight / all) for ratio, weight in kinds if ratio]
        self._ratios = [ratio for ratio, _ in kinds]
        # By how many kinds from the end: their share, and what of it one unit for a GPU serves.
        self._share = [0.0, *accumulate(weight for _, weight in reversed(kinds))]
        self._served = [0.0, *accumulate(weight / ratio for ratio, weight in reversed(kinds))]

    def lost(self, gpus: int, other: int) -> float:
        if not gpus:
            return 0.0
        wanting = len(self._ratios) - bisect_right(self._ratios, other / gpus)
        return gpus * self._share[wanting] - other * self._served[wanting]


# -------------------------------------------------------------------------- the decision

Cost = tuple[int, int, int]
"""Smaller is better: steps of loss, then GPUs and then cores left there."""


def cost(room: Room, ask: Ask, typical: Typical) -> tuple[Cost, int]:
    """What it costs to put a request into a room where it fits, and from which gap it takes."""
    foresight = typical.foresight(room.model)
    total = sum(room.gpus)
    beside = loss_beside(foresight, ask, total, room.cpu, room.mem)
    after = (total - ask.gpus, room.cpu - ask.cpu)
    found = [
        (steps(beside + loss_of_gap(foresight, ask, gap)), gap) for gap in gaps(room, ask) or [0]
    ]
    least, gap = min(found)
    return (least, *after), gap


def loss_beside(foresight: Foresight, ask: Ask, gpus: int, cpu: int, mem: int) -> float:
    """How much more is lost for want of cores and memory, and to those who want this model."""
    before = foresight.beside(gpus, cpu, mem)
    after = foresight.beside(gpus - ask.gpus, cpu - ask.cpu, mem - ask.mem)
    wanted = 0.0 if ask.models else foresight.wanted * ask.gpus
    return after - before + wanted


def loss_of_gap(foresight: Foresight, ask: Ask, gap: int) -> float:
    """How much more is lost in gaps when the part of a GPU is taken where so much is left."""
    whole, part = divmod(ask.gpus, THOUSAND)
    lost = -whole * foresight.gap(THOUSAND)
    return lost + foresight.gap(gap - part) - foresight.gap(gap) if part else lost


def steps(loss: float) -> int:
    """A loss in steps, so that what hardly differs is equal."""
    return int((loss + STEP / 2) // STEP)
