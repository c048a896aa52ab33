"""One scheduling cycle, as a recipe."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from functools import cached_property, partial
from math import inf

from stoker.core.cluster import Cluster, Placement
from stoker.core.events import AttemptPlanned, StopAsked, StopWithdrawn
from stoker.core.job import Job
from stoker.core.policy.assign import assign, rules_of
from stoker.core.policy.backfill import LONGEST, Ends, Gate
from stoker.core.policy.bars import GANG, left_on, most_of
from stoker.core.policy.conservative import Calendar, Waiting
from stoker.core.policy.heads import Heads
from stoker.core.policy.order import LONG_AGO, Group, JobClass
from stoker.core.policy.preempt import Makers
from stoker.core.policy.room import Room
from stoker.core.policy.rounds import deal
from stoker.core.policy.rules import POLICIES, Gaps
from stoker.core.policy.shelf import Amounts, Enough, Place
from stoker.core.policy.walk import Walk, before
from stoker.core.policy.ways import ways
from stoker.core.request import GPU, Request
from stoker.core.state import State

MOST_FRESH = 64
"""If more classes than these are new, all are looked at."""
Kept = list[tuple[Place, int, Placement]]
"""What is kept for those who wait, and where they stand."""


def plan(
    state: State, at: float, boot: float
) -> Iterator[AttemptPlanned | StopAsked | StopWithdrawn]:
    """Yield what starts now, and who is to stop; the caller applies each before the next.

    0. If it is time for it, elastic jobs are dealt GPUs anew; who is to have fewer is asked.
    1. Walk the line: priority first, then as the policy of the queue says, one head per class.
    2. Pass over classes at the limit of their queue or array, and those with no room.
    3. A head that fits starts, unless what it needs is kept for somebody before it, for whom
       others are making room; if it could never be stopped for one before it, that one is seen
       to first. The next of its class takes its place in the walk.
    4. The first that does not fit gets a reservation, where the policy gives any; where nobody
       may pass it, the queue stops.
    5. Behind it, only what cannot delay that reservation starts (backfill).
    6. If somebody who runs can make room for those without any, it is asked to.

    Where it is known on which GPUs jobs are fast, or in whose company, all this is decided in
    another way: see `assign`.
    """
    assigned = rules_of(state)
    if assigned is not None:
        yield from assign(state, assigned, at, boot)
        return

    room = Room(state) if state.stoppable else None
    if state.elastic or state.flexible:
        yield from _dealt(state, room, at, boot)
    this = Pass(state, boot, room.kept if room is not None else [])
    makers = Makers(state, room, this, at, boot) if room is not None else None
    for job, found in this.candidates():
        if room is not None and makers is not None and makers.may_be_asked_before(job, this.at):
            there = this.gate.room_for(state.request(job, found))
            if there is not None:
                kept = this.kept.copy()
                room.reserved = this.gate.is_reserved or this.may_be_held_up(this.at)
                yield from makers.asked_before(this.at, [part.node for part in there.parts])
                if this.kept != kept:
                    this.forget()
        placement = this.find(job, found)
        if placement is not None:
            yield AttemptPlanned(
                at=at, job=job.id, attempt=job.attempt, placement=placement, boot=boot
            )
            if room is not None:
                room.started(job.id, placement)
            this.walk.again(found)
    if room is not None and makers is not None:
        room.reserved, broken = this.gate.is_reserved, room.broken
        yield from makers.asked()
        # What was kept when all were looked at, somebody may have now.
        state.line.stirred |= room.broken > broken
    this.settle()


def _dealt(state: State, room: Room | None, at: float, boot: float) -> Iterator[StopAsked]:
    """A round of dealing GPUs out to elastic jobs, if it is time for one."""
    asked = list(deal(state, room.later if room is not None else state.cluster, at, boot))
    yield from asked
    if asked and room is not None:
        room.look()


def _is_careful(state: State) -> bool:
    """Whether some queue is worked off so that nobody delays anybody before it."""
    names = (name for name, _ in state.rest.policies.values())
    return any(POLICIES[name].gaps is Gaps.CONSERVATIVE for name in names if name in POLICIES)


def _ahead(state: State, calendar: Calendar, but: Container[int] = ()) -> Iterator[Waiting]:
    """Those before this place whom nobody may delay; where that is EASY, only the first."""
    for seat, found, id in Heads(state.line):
        if seat >= calendar.at:
            return
        if id in but:
            continue
        every = state.gaps(found.queue) is Gaps.CONSERVATIVE
        if not (every or not calendar.booked) or not _holds_its_place(state, found):
            continue
        if not state.limit_reached(found):
            job = state.jobs[id]
            yield seat, state.request(job, found), state.specs[job.spec].limit


def _holds_its_place(state: State, found: JobClass) -> bool:
    """Whether nobody behind it may delay the head of this class."""
    overdue, limited = found.place[1] <= LONG_AGO, found.key[4] is not None
    return state.policies.holds(found.queue, overdue, limited)


class Pass:
    """One walk over the line."""

    def __init__(self, state: State, boot: float, kept: Kept) -> None:
        self.state, self.kept = state, kept
        self.stopped: set[str] = set()
        """Queues in which nobody passes one that had no room."""
        self.careful = _is_careful(state)
        self.gate: Gate
        if self.careful:
            self.gate = calendar = Calendar(
                state.cluster, state.ends, lambda: _ahead(state, calendar), boot, kept
            )
        else:
            self.gate = Gate(state.cluster, state.ends, self._passed, boot, kept)
        gate, news = self.gate, News(state, kept)

        def near(group: Group) -> Enough | None:
            if news.among(group) is None:
                return None
            return _nothing if group.least > news.most else ways(group)

        def ways(group: Group) -> Enough:
            return _within(state, group, gate, news.among(group))

        def no_news(group: Group) -> bool:
            among = news.among(group)
            return among is not None and not among

        self.news = news
        self.walk = Walk(state.line, state.jobs, ways, news.fresh, near, no_news)

    @property
    def at(self) -> Place:
        """Where in line we are."""
        return self.walk.at

    def candidates(self) -> Iterator[tuple[Job, JobClass]]:
        """Who may start now, in order; the caller finds room for each before the next one."""
        while (candidate := self.walk.next()) is not None:
            self.gate.at = self.walk.at
            queue = candidate[1].queue
            if queue not in self.stopped and not self.state.limit_reached(candidate[1]):
                yield candidate

    def find(self, job: Job, found: JobClass) -> Placement | None:
        """Where a candidate starts; the caller takes that. None: it is passed over."""
        state, limit = self.state, self.state.specs[job.spec].limit
        for request in ways(state, job, state.request(job, found)):
            placement = self.gate.find(request, limit)
            if placement is not None:
                return placement
        self.walk.unfit(found)
        if state.gaps(found.queue) is Gaps.NOBODY:
            self.stopped.add(found.queue)
        return None

    def forget(self) -> None:
        """Something else is kept than before."""
        self.gate.forget()
        self.walk.known.clear()

    def settle(self) -> None:
        """All were looked at: from now on, only changes count, if nothing is reserved."""
        if not self.careful and not self.gate.is_reserved:
            self.news.settle(self.kept)
        self.gate.passed = tuple  # no circle is left for the garbage collector

    def may_be_held_up(self, seat: Place) -> bool:
        """Whether one who stands there may have to wait for those before it, room or not."""
        return self._somebody_holds and next(self._holders(seat), None) is not None

    @cached_property
    def _somebody_holds(self) -> bool:
        line, passing = self.state.line, (Gaps.ANYBODY, Gaps.OVERDUE)
        if line.limited or line.overdue:
            return True
        return not all(self.state.gaps(queue) in passing for queue in line.queues)

    def lets_in(self, seat: Place, job: Job, request: Request, ledger: Cluster, ends: Ends) -> bool:
        """Whether one who stands there could start, if this were free now and these still ran."""
        state, now = self.state, self.gate.now
        gate = Gate(ledger, ends, lambda: self._holders(seat), now)
        if self.careful:
            gate = calendar = Calendar(
                ledger, ends, lambda: _ahead(state, calendar, state.promises), now, []
            )
        gate.at = seat
        return gate.find(request, state.spec(job).limit) is not None

    def _holders(self, end: Place) -> Iterator[Request]:
        """Those before a place whom nobody behind them may delay, if nobody makes room for them."""
        state = self.state
        for job, found in before(state.line, state.jobs, end, partial(_may_hold, state)):
            if job.id in state.promises or state.limit_reached(found):
                continue
            if _holds_its_place(state, found):
                yield state.request(job, found)

    def _passed(self) -> Iterator[Request]:
        """Those whom nobody behind them may delay."""
        state = self.state
        for job, found in self.walk.passed(lambda group: _will_hold(state, group, self.gate)):
            if _holds_its_place(state, found):
                yield state.request(job, found)


class News:
    """What has changed since everybody who waits was looked at, so that others may fit now."""

    def __init__(self, state: State, kept: Kept) -> None:
        self.state, line = state, state.line
        self.known = line.settled and len(line.fresh) <= MOST_FRESH
        """Whether nobody but the fresh ones has room elsewhere than on machines that changed."""
        self.fresh = list(line.fresh.values()) if self.known else []
        line.settled = False  # unless this pass comes to its end
        self._nodes = _nodes_of(kept)

    def among(self, group: Group) -> Collection[str] | None:
        """The machines on which alone jobs of a group may have room; None: any."""
        if not self.known or not self.state.policies.only_machines_count(group.queue):
            return None
        ask = group.shape.gpus
        if ask is not None and ask.most is not None:
            return None  # how many an elastic job may have depends on others
        return self.state.cluster.grown

    @cached_property
    def most(self) -> int:
        """How many GPUs one of those machines has at most, and the mark of a gang."""
        cluster = self.state.cluster
        nodes = (cluster.nodes.get(name) for name in cluster.grown)
        left = [most_of(left_on(node, GPU).values()) for node in nodes if node is not None]
        return max(left, default=-1) + GANG

    def settle(self, kept: Kept) -> None:
        """Everybody was looked at, and there was no room but what is kept for somebody."""
        state = self.state
        state.cluster.grown.clear()
        state.cluster.grown.update(self._nodes | _nodes_of(kept))
        state.line.fresh.clear()
        state.line.settled = True


def _nodes_of(kept: Kept) -> dict[str, None]:
    return {part.node: None for _, _, placement in kept for part in placement.parts}


def _within(state: State, group: Group, gate: Gate, among: Iterable[str] | None) -> Enough:
    """What there is for a group's jobs, as far as the limits of their queue allow it."""
    gpus, shape = state.gpus_left(group.queue), group.shape
    if gpus is None or gpus < 0:
        return _nothing
    there = gate.ways(shape, among)
    if gpus == inf or shape.gpus is None:
        return there
    return lambda asked: asked[0] <= gpus and there(asked)


def _will_hold(state: State, group: Group, gate: Gate) -> Enough:
    """Who of a group holds its place before others; those who are overdue are known anyway."""
    may, someday = _may_hold(state, group), gate.someday(group.shape)
    return lambda asked: may(asked) and someday(asked)


def _may_hold(state: State, group: Group) -> Enough:
    """The same, whether or not there will ever be room for it."""
    gpus, gaps = state.gpus_left(group.queue), state.gaps(group.queue)
    if gpus is None or gpus < 0 or gaps is Gaps.ANYBODY:
        return _nothing
    limit = LONGEST if gaps is Gaps.OVERDUE else inf
    least = gpus if group.shape.gpus is not None else inf
    return lambda asked: asked[-1] <= limit and asked[0] <= least


def _nothing(_: Amounts) -> bool:
    return False
