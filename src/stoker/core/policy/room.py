"""What is free once all have stopped who were asked to, and for whom it is kept."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain

from stoker.core.cluster import Cluster, Placement
from stoker.core.job import Job
from stoker.core.policy import elastic
from stoker.core.policy.bars import (
    ANYBODY,
    FINE,
    NOBODY,
    Bar,
    Row,
    left_on,
    most_of,
    need_of,
)
from stoker.core.policy.fit import GPUS, fit, gpus_needed
from stoker.core.policy.fit import room as most_on
from stoker.core.policy.ground import is_coarse, is_plain
from stoker.core.policy.later import is_stopping
from stoker.core.policy.order import JobClass
from stoker.core.policy.place import gpus_left, place, place_on
from stoker.core.policy.shelf import Place
from stoker.core.request import GPU, Request
from stoker.core.state import State

MOST_ANEW = 64
"""If more machines than these have changed, all are looked at."""
MOST_ROWS = 64
"""So many machines are looked at for cores and memory, too, the highest bar first."""
MOST_MACHINES = 32
"""On so many machines it is thought of in one cycle who could stop, for all who wait."""


class Room:
    """The ledger as it will be when all who were asked have stopped, and for whom it is kept."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.kept: list[tuple[Place, int, Placement]] = []
        """Those for whom others are making room: where they stand, and what is kept for them."""
        self.looked_at = 0
        """On how many machines it has been thought of who could stop."""
        self.broken = 0
        """How often somebody lost what was kept for them."""
        self.reserved = False
        """Whether some have room and do not start, since it is reserved for others."""
        self.later = state.later
        self.asking: set[int] = set()
        """Those for whose sake somebody was asked."""
        self.counting: set[JobClass] = set()
        """Classes of which somebody counts on room that nobody keeps for it."""
        self._bar: dict[int, Bar] = {}
        self._new_bar: dict[int, Bar] = {}
        self._spare: dict[str, int] | None = None
        self._left: tuple[int, int] | None = None
        self._counted: list[tuple[str, Request]] = []
        self.look()

    def look(self) -> None:
        """Work out what is free later, and for whom it is kept."""
        state, later = self.state, self.later
        for id in [id for id in state.promises if not state.leaving or id not in state.line]:
            self._break(id)
        stopping = {
            job.id: job.placement
            for job in state.leaving.values()
            if job.placement is not None and is_stopping(job)
        }
        resized = any(_comes_back(state.leaving[id]) for id in stopping)
        if resized:
            later.doubt()
        anew = later.forget(stopping, state.promises)
        for id, placement in stopping.items() if anew else ():
            for part in _parts(placement, anew):
                later.release(part)
            if resized:
                self._come_back(state.jobs[id])
        self.asking = {by for job in state.leaving.values() if (by := _for_whom(job))}
        self.kept.clear()
        self._spare, self._counted = None, []
        if state.promises:
            self._keep_promises(anew)
        later.is_entered(stopping, state.promises, anew)
        if resized:
            later.doubt()

    def _come_back(self, job: Job) -> None:
        """One that stops only to have fewer GPUs, or more, takes those first."""
        state, gpus = self.state, _comes_back(job)
        if not gpus:
            return
        request = state.effective(job, state.spec(job))
        there = place(self.later, elastic.sized(request, gpus, elastic.machine(state)))
        if there is not None:
            self.later.take(there)

    def _keep_promises(self, anew: set[str]) -> None:
        """What was found for somebody is kept, as long as nobody more urgent has taken it."""
        state, line, promises, later = self.state, self.state.line, self.state.promises, self.later
        for seat, id in sorted((line.seat(state.jobs[id]), id) for id in promises):
            placement = promises[id]
            parts = _parts(placement, anew) if anew else []
            if all(is_there(later, part) for part in parts):
                for part in parts:
                    later.take(part)
                self.kept.append((seat, id, placement))
            else:
                for part in placement.parts:
                    if part.node not in anew:
                        later.release(Placement(part.node, part.takes))
                self._break(id)

    def _break(self, head: int) -> None:
        """Somebody gets something else than was found; others may have it."""
        self.broken += 1
        placement, line = self.state.promises.pop(head), self.state.line
        self.state.bars.anew.update((part.node, None) for part in placement.parts)
        if head in line:
            line.renew(line.where[head])

    def promise(self, seat: Place, head: int, placement: Placement) -> None:
        """Keep this for somebody, if it was made for them; others only count on it."""
        self.later.take(placement)
        self._spare = None
        if head in self.asking:
            self.state.promises[head] = placement
            insort(self.kept, (seat, head, placement))
        else:
            self.counting.add(self.state.line.where[head])

    def has_spare(self, head: int, request: Request) -> bool:
        """Whether others make room for one more than they were asked for.

        It counts on that; the ledger says so only once somebody else asks. Often many do, one
        after the other, for as long as it takes somebody to stop.
        """
        if head in self.asking or self.reserved or not _is_simple(request):
            return False
        amount, spare = request.gpu_amount, self._spares()
        enough = [(left, name) for name, left in spare.items() if left >= amount]
        if not enough:
            return False
        _, name = min(enough)
        spare[name] -= amount
        self._counted.append((name, request))
        self.counting.add(self.state.line.where[head])
        return True

    def _spares(self) -> dict[str, int]:
        """How many GPUs are left on machines where others make room."""
        if self._spare is None:
            lefts = ((name, most_on(node, GPUS)) for name, node in self.later.nodes.items())
            self._spare = {name: left[0] for name, left in lefts if left is not None}
        return self._spare

    def _settle(self) -> None:
        """Enter what is counted on."""
        counted, self._counted, self._spare = self._counted, [], None
        for name, request in counted:
            takes = fit(self.later.nodes[name], request)
            if takes is not None:
                self.later.take(Placement(name, takes))

    def find(self, seat: Place, request: Request) -> Placement | None:
        """What is free later, or kept for those who stand behind this place."""
        self._settle()
        # But for what changes there, it is known to have no room.
        if self.reserved or self._largest() >= gpus_needed(request):
            found = self._place(request, self.later.nodes)
            if found is not None:
                return found
        return self._take_over(seat, request)

    def _place(self, request: Request, on: Iterable[str]) -> Placement | None:
        """What is free later, if there can be room only on these machines."""
        if self.reserved or request.machines > 1:
            return place(self.later, request)
        return place_on(self.later, on, request)

    def _largest(self) -> int:
        """How much is left at most of the GPUs of a machine where others make room."""
        later = self.later
        if self._left is None or self._left[0] != later.changes:
            left = max([gpus_left(later, name) for name in later.nodes], default=-1)
            self._left = (later.changes, left)
        return self._left[1]

    def _take_over(self, seat: Place, request: Request) -> Placement | None:
        """What is kept for those who stand behind this place, the last of them first."""
        behind = [each[2] for each in self.kept if each[0] > seat]
        if not behind or not self._would_do(behind, request):
            return None
        robbed = []
        while self.kept and self.kept[-1][0] > seat:
            robbed.append(self.kept.pop())
            self.later.release(robbed[-1][2])
            found = self._place(request, [part.node for part in robbed[-1][2].parts])
            if found is not None:
                for _, head, _ in robbed:
                    self._break(head)
                return found
        for each in reversed(robbed):
            self.later.take(each[2])
            self.kept.append(each)
        return None

    def _would_do(self, kept: list[Placement], request: Request) -> bool:
        """Whether a machine may have enough if all this were not kept."""
        left: dict[str, int] = {}
        for part in chain.from_iterable(placement.parts for placement in kept):
            before = left.get(part.node)
            if before is None:
                before = gpus_left(self.later, part.node)
            cards = [take.amount for take in part.takes if take.type == GPU]
            left[part.node] = before + sum(cards)
        return max(left.values()) >= gpus_needed(request)

    def started(self, job: int, placement: Placement) -> None:
        """Somebody has started, wherever that was."""
        promised = self.state.promises.pop(job, None)
        if promised is not None:
            self.later.release(promised)
            self.kept[:] = [each for each in self.kept if each[1] != job]
        there = self.later.nodes  # elsewhere, what is true now is true later
        own = [Placement(each.node, each.takes) for each in placement.parts if each.node in there]
        if all(is_there(self.later, part) for part in own):
            for part in own:
                self.later.take(part)
        else:  # it stands before somebody for whom this was kept, who has to look again
            self.look()

    # -- who could make room ------------------------------------------------------------

    def bar(self, need: int) -> Bar:
        """Only whoever stands further in front than this may get so many GPUs on a machine."""
        self._refresh()
        found = self._bar.get(need)
        if found is None:
            found = self._bar[need] = self._highest(need)
        return found

    def _highest(self, need: int) -> Bar:
        own = self.later.nodes
        there = next((last for last, name in self.state.bars.down(need) if name not in own), None)
        here = next((last for last, _ in self.later.bars.down(need)), None) if own else None
        if there is None or here is None:
            last = there or here
            return last[:2] if last is not None else NOBODY
        return max(there, here)[:2]

    def new_bar(self, need: int) -> Bar:
        """The same, by machines alone on which something has changed."""
        anew = self.state.bars.anew
        if len(anew) > MOST_ANEW:
            return self.bar(need)
        self._refresh()
        found = self._new_bar.get(need)
        if found is None:
            found = self._new_bar[need] = self._of_these(anew, need)
        return found

    def bar_on(self, names: Iterable[str], need: int) -> Bar:
        """The same, by these machines alone."""
        self._refresh()
        return self._of_these(names, need)

    def _of_these(self, names: Iterable[str], need: int) -> Bar:
        base = need - need % FINE
        on = self._on if base == need else self._for_a_gang
        return max([on(name, base) for name in names], default=NOBODY)

    def _for_a_gang(self, name: str, need: int) -> Bar:
        """The bar of a machine for a part of a gang; it may be free already."""
        node = self.later.node(name)
        if node is not None and most_of(left_on(node, GPU).values()) >= need:
            return ANYBODY
        return self._on(name, need)

    def _on(self, name: str, need: int, cores: int = 0, memory: int = 0) -> Bar:
        bars = self.later.bars if name in self.later.nodes else self.state.bars
        return bars.on(name, need, cores, memory)

    def _changed(self) -> bool:
        """Whether machines stand otherwise than when bars were last worked out."""
        state = self.state
        victims = state.victims
        return bool(self.later.shifted or state.cluster.shifted or victims.moved or victims.stirred)

    def machines(self, request: Request, above: Bar, all: bool) -> Iterator[str]:
        """Machines with a higher bar than this, the highest first; all, or those that changed."""
        self._refresh()
        gpus, cores, memory = gpus_needed(request), request.cpus, request.memory
        anew = self.state.bars.anew
        if not all and len(anew) <= MOST_ANEW:
            bars = [(self._on(name, gpus, cores, memory), name) for name in anew]
            yield from [name for bar, name in sorted(bars, reverse=True) if bar > above]
            return
        highest: list[str] = []
        for last, name in self._down(need_of(request)):
            if last[:2] <= above or len(highest) == MOST_ROWS:
                break
            highest.append(name)
        coarse = not (gpus % FINE or cores or memory)
        for name in highest:
            if coarse or self._on(name, gpus, cores, memory) > above:
                yield name

    def _down(self, need: int) -> Iterator[Row]:
        true, own = self.state.bars, self.later.nodes
        if not own:
            return true.down(need)
        others = (row for row in true.down(need) if row[1] not in own)
        return merge(others, self.later.bars.down(need), reverse=True)

    def _refresh(self) -> None:
        if self._changed():
            self._bar.clear()
            self._new_bar.clear()
            victims, own, bars = self.state.victims, self.later.nodes, self.state.bars
            either = (*victims.moved, *victims.stirred)
            self.later.bars.refresh([name for name in either if name in own])
            bars.refresh(victims.moved)
            bars.anew.update(victims.stirred)
            victims.moved.clear()
            victims.stirred.clear()


def _is_simple(request: Request) -> bool:
    """Whether it wants whole GPUs of one machine, and nothing else."""
    if request.gpus is None or request.machines > 1:
        return False
    return is_coarse(request) and is_plain(request)


def _parts(placement: Placement, on: set[str]) -> list[Placement]:
    """The parts of a placement on these machines."""
    return [Placement(part.node, part.takes) for part in placement.parts if part.node in on]


def _comes_back(job: Job) -> int | None:
    """With how many GPUs it goes on at once, if it stops for other ones."""
    return job.progress.stop.gpus if job.progress is not None and job.progress.stop else None


def _for_whom(job: Job) -> int | None:
    """Who waits for what this one holds."""
    return job.progress.stop.by if job.progress is not None and job.progress.stop else None


def is_there(ledger: Cluster, placement: Placement) -> bool:
    """Whether all of a placement is free in this ledger."""
    for part in placement.parts:
        node = ledger.node(part.node)
        if node is None or node.closed is not None:
            return False
        for take in part.takes:
            device = node.by_name.get((take.type, take.device))
            if device is None or device.gone or device.drained is not None:
                return False
            if device.left < take.amount or (take.memory and device.memory_free < take.memory):
                return False
    return True
