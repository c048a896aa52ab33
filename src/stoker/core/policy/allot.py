"""How many GPUs each elastic job has: they go where they add the most speed for the work left.

One pass over all elastic jobs at once, because what one job gains another gives up:

1. Every job gets the least it runs with, in the order in which the shares are given; who comes
   after the last GPU waits.
2. The other GPUs go, step by step, to the job for which the step is worth most per GPU. A step is
   worth the speed that it adds over the square root of the job's work left. By speed alone the
   GPUs would all go to the jobs that scale best, however long they take; by speed over work left,
   which is shortest first, long jobs would creep and the GPUs be used badly. The root is between.
3. A change costs a restart. It counts as the speed that the job would have on average until its
   end if it lost several restarts now: so nothing is changed that does not repay itself several
   times over, and a job close to its end is left alone. Several, because the work left is a guess,
   and since whoever changed now may be changed again.

Steps lead from one rung of a ladder to a higher one, not only to the next: a job that two machines
slow down and four speed up gets from one to four at once.

What is not measured is guessed: between two measurements by the power law through them, beyond
them by one that holds for most. Nobody is sent to more than twice as many GPUs as were measured, or
to more than one machine before anything was: the guess is put to the test before more is built
on it.

The speed of a training job that adapts its batch changes as it goes on: at first more GPUs are
wasted on it, later they are not. Measurements are therefore told apart by the stage of training.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import log, sqrt

from msgspec import Struct

STAGES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Shares of a job's epochs where a new stage begins: what changes does so early."""
SCALING = 0.9
"""Without a measurement, twice the GPUs are taken to be 2 ** 0.9 times as fast: rather too much,
since a hope that fails is found out by one epoch, and one that nobody has by none."""
REACH = 2
"""How many times the GPUs that were measured are tried next."""
REPAID = 6.0
"""How many times a change must bring in the restart that it costs."""
UNKNOWN = 600.0
"""GPU-seconds that a job of which nothing is known has left, or as many as it has had already."""
FINE = 3
"""Numbers of machines differ in their first so many binary digits: 1 to 8, 10 to 16, 20 to 32."""
REMEMBERED = 4096
"""Curves that are not worked out anew."""


class Share(Struct, frozen=True, kw_only=True, gc=False):
    """An elastic job that runs or could start."""

    id: int
    least: int
    most: int
    now: int = 0
    """GPUs that it has; none, while it waits."""
    left: float | None = None
    """Epochs to go, if they are counted; parts of one count too."""
    paces: tuple[tuple[int, float], ...] = ()
    """GPUs and seconds per epoch as measured, by number of GPUs; see `measured`."""
    attained: float = 0.0
    """GPU-seconds that it has had: all that is known of a job before it is measured."""
    cost: float = 30.0
    """Seconds that it loses by a restart."""
    weight: float = 1.0
    """What its speed counts for, against that of others."""
    fixed: bool = False
    """It keeps what it has: it cannot be restarted, or has yet to show what it does with it."""


def allot(shares: Iterable[Share], gpus: int, machine: int) -> dict[int, int]:
    """How many of so many GPUs each has, those first that come first; 0: it waits.

    `gpus` are those that are free and those that these jobs hold. A machine has `machine` of them:
    jobs have parts of one that are powers of two, or several whole ones.
    """
    held: dict[int, int] = {}
    started: list[Share] = []
    shares = list(shares)
    for share in shares:
        if share.fixed and share.now:
            held[share.id] = share.now
            gpus -= share.now
    for share in shares:
        if share.id in held:
            continue
        held[share.id] = share.least if 0 < share.least <= gpus else 0
        gpus -= held[share.id]
        if held[share.id]:
            started.append(share)
    climbers = [_Climber(share, ladder(share, machine)) for share in started] if gpus > 0 else []
    steps = [step for at, each in enumerate(climbers) if (step := each.step(at, gpus)) is not None]
    heapify(steps)
    while steps:
        _, at, rung = heappop(steps)
        climber = climbers[at]
        if climber.more(rung) <= gpus:
            gpus -= climber.more(rung)
            climber.at = rung
            held[climber.id] = climber.rungs[rung]
        # What no longer fits is tried again as the best step that does.
        if (step := climber.step(at, gpus)) is not None:
            heappush(steps, step)
    return held


class _Climber:
    """A job on its way up: the rung it has reached, and what each of them is worth to it."""

    __slots__ = ("at", "id", "rungs", "worth")

    def __init__(self, share: Share, rungs: tuple[int, ...]) -> None:
        self.id = share.id
        self.at = 0
        self.rungs = rungs
        amount, epochs = work(share)
        whole = share.weight * sqrt(amount) / share.least
        self.worth = []
        for gpus, each in zip(rungs, _curve(share.paces, rungs), strict=True):
            seconds = epochs * each
            if gpus != share.now:
                seconds += REPAID * share.cost
            # Its speed, as a multiple of that with its least, over the root of its work.
            self.worth.append(whole / seconds)

    def more(self, rung: int) -> int:
        """How many GPUs the step to a rung takes."""
        return self.rungs[rung] - self.rungs[self.at]

    def step(self, at: int, gpus: int) -> tuple[float, int, int] | None:
        """The step of at most so many GPUs that is worth most for each, as an entry of a heap."""
        best, found = 0.0, 0
        for rung in range(self.at + 1, len(self.rungs)):
            more = self.more(rung)
            if more > gpus:
                break
            value = (self.worth[rung] - self.worth[self.at]) / more
            if value > best:
                best, found = value, rung
        return (-best, at, found) if found else None


def work(share: Share) -> tuple[float, float]:
    """GPU-seconds left with the least it runs with, and the epochs that this is."""
    each = pace(share.paces, share.least) * share.least
    if share.left is None or not share.paces:
        amount = max(UNKNOWN, share.attained)
        return amount, amount / each
    epochs = max(share.left, 1e-3)
    return max(epochs * each, 1e-3), epochs


def ladder(share: Share, machine: int) -> tuple[int, ...]:
    """The numbers of GPUs that a job may have now, from the least on."""
    reach = REACH * share.paces[-1][0] if share.paces else machine
    found = rungs(share.least, min(max(reach, share.now), share.most), machine)
    if share.now <= share.least or share.now in found:
        return found
    return tuple(sorted((*found, share.now)))  # it may stay, however it came by so many


@lru_cache(maxsize=REMEMBERED)
def rungs(least: int, top: int, machine: int) -> tuple[int, ...]:
    """Parts of a machine that are powers of two, and several whole ones, from the least on."""
    found = [least]
    part = 1
    while part < machine and part <= top:
        found.append(part)
        part *= 2
    machines = 1
    while machines * machine <= top:
        found.append(machines * machine)
        machines += max(1 << machines.bit_length() >> FINE, 1)
    return tuple(gpus for at, gpus in enumerate(found) if gpus > least or at == 0)


@lru_cache(maxsize=REMEMBERED)
def _curve(paces: tuple[tuple[int, float], ...], rungs: tuple[int, ...]) -> tuple[float, ...]:
    """Seconds per epoch on every rung: the same for all of a kind, until it is measured again."""
    return tuple(pace(paces, gpus) for gpus in rungs)


def pace(paces: tuple[tuple[int, float], ...], gpus: int) -> float:
    """Seconds per epoch on so many GPUs: measured, or as others let expect."""
    if not paces:
        return float(gpus**-SCALING)
    above = bisect_right(paces, gpus, key=lambda each: each[0])
    if above == 0 or above == len(paces):
        near, seconds = paces[min(above, len(paces) - 1)]
        return seconds if near == gpus else float(seconds * (near / gpus) ** SCALING)
    (low, slow), (high, fast) = paces[above - 1], paces[above]
    part = log(gpus / low) / log(high / low)
    return float(slow * (fast / slow) ** part)


def stage(done: float) -> int:
    """The stage of training of a job that has done this share of its epochs."""
    return bisect_right(STAGES, done)


def measured(known: Mapping[int, Mapping[int, float]], at: int) -> tuple[tuple[int, float], ...]:
    """The paces that hold at a stage, of those known by stage and number of GPUs.

    Numbers of GPUs that were not measured at this stage are as much faster or slower than others
    as at a later one. Without any of this stage, those of the nearest hold; but of one before it
    only the fastest: how little more GPUs helped then says nothing of now.
    """
    found = dict(known.get(at, {}))
    if not found:
        return _nearest(known, at)
    for each in range(at + 1, len(STAGES) + 1):
        later = known.get(each, {})
        alike = sorted(later.keys() & found.keys())
        for gpus in sorted(later.keys() - found.keys()) if alike else ():
            near = min(alike, key=lambda other: abs(log(other / gpus)))
            found[gpus] = later[gpus] * found[near] / later[near]
    return tuple(sorted(found.items()))


def _nearest(known: Mapping[int, Mapping[int, float]], at: int) -> tuple[tuple[int, float], ...]:
    for away in range(1, len(STAGES) + 1):
        if later := known.get(at + away):
            return tuple(sorted(later.items()))
        if earlier := known.get(at - away):
            return (min(earlier.items(), key=lambda each: (each[1], each[0])),)
    return ()
