"""Who goes where when GPUs differ, or jobs share them: one pass over all who wait or can move.

Everybody is placed anew on paper, in order: those who run as if they could leave at once, but
before their turn by the policy's hysteresis, and with a preference for where they are. What comes
of it is done as far as it can be: whoever waits and finds its place free starts; whoever runs and
was placed elsewhere, or nowhere, is asked to stop. A stop takes its time, so the next pass decides
again, by the same rules and therefore mostly alike.

This is for clusters on which it matters: some family is known on several models of GPU, or beside
others. It looks at every running job, and so it is for small clusters only.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import inf, log2

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.cluster import Cluster, Device, Placement
from stoker.core.estimate import hardware
from stoker.core.events import AttemptPlanned, StopAsked, StopWithdrawn
from stoker.core.job import Job
from stoker.core.lifecycle import JobState
from stoker.core.policy import match
from stoker.core.policy.backfill import keep
from stoker.core.policy.match import Company, Option
from stoker.core.policy.order import Heads, JobClass
from stoker.core.policy.place import place
from stoker.core.policy.preempt import is_there
from stoker.core.policy.rank import OVERDUE, rank
from stoker.core.policy.rules import Knows, Policy
from stoker.core.policy.shelf import Place
from stoker.core.policy.speeds import Pace, Speeds
from stoker.core.request import GPU, Request
from stoker.core.state import State

MOST_RUNNING, MOST_MACHINES = 512, 256
"""On larger clusters the line is walked as everywhere else."""
FIRST = 256
"""So many of those who wait are thought of, in any case; the others, while there is room."""
GOES_ON = 2.0
"""For the end of all, a running job counts as so many times as long."""


class Seat(Struct, kw_only=True, eq=False):
    """One who waits or can move, and what was decided."""

    job: Job
    request: Request
    stands: Place
    pace: Pace
    found: JobClass | None = None
    """Its class, while it waits."""
    held: Placement | None = None
    model: str = ""
    """Of the GPUs that it holds."""
    to: Placement | None = None
    settled: bool = False
    put_out: int | None = None
    """Who has taken its place on paper."""

    @property
    def single(self) -> bool:
        """Whether it may share its one GPU."""
        return self.pace.gpus == 1 and self.request.gpus is not None and self.request.gpus.beside

    @property
    def best(self) -> float:
        """Seconds where it is fastest."""
        return min(self.pace.seconds.values(), default=inf)

    def moves(self, to: Placement) -> float:
        """Seconds that it loses to go there."""
        again = self.held is not None or self.job.attempt > 0
        return self.pace.restart if again and to is not self.held else 0.0


def rules_of(state: State) -> Policy | None:
    """By what everybody is assigned a place; None: the line is walked instead."""
    if not state.tells_apart() or state.elastic:
        return None
    if len(state.running) > MOST_RUNNING or len(state.cluster.nodes) > MOST_MACHINES:
        return None
    rules = state.policy("default")
    if rules.knows is not Knows.MEASURED or not (rules.preempts or rules.longest):
        return None
    queues = state.rest.queues
    alike = all(state.policy(each) == rules and not queues[each].strict for each in queues)
    return rules if alike else None


def assign(
    state: State, rules: Policy, at: float, boot: float
) -> Iterator[AttemptPlanned | StopAsked | StopWithdrawn]:
    """Yield what starts now, and who is to stop; the caller applies each before the next."""
    paper = Paper(state, rules, at)
    if rules.longest:
        paper.for_the_end_of_all()
    else:
        paper.for_short_waits()
    yield from _carried_out(state, paper, at, boot)


class Paper:
    """Where everybody would be."""

    def __init__(self, state: State, rules: Policy, at: float) -> None:
        self.state, self.rules, self.at = state, rules, at
        self.speeds = Speeds(state, at)
        self.free = state.cluster.shadow()
        """What is left when all have gone who can, but for those who were placed."""
        self.still = state.cluster.shadow()
        """What is left, besides, by those who have yet to be placed."""
        self.seats: dict[int, Seat] = {}
        self.heads = Heads(state.line)
        self.waiting = iter(self.heads)
        for job in state.running.values():
            self._runs(job)
        for stands, found, id in islice(self.waiting, FIRST):
            self._waits(stands, found, id)

    # -- who ----------------------------------------------------------------------------

    def _runs(self, job: Job) -> None:
        state, placement = self.state, job.placement
        if placement is None:
            return
        progress = job.progress
        stop = progress.stop if progress is not None else None
        listens = progress is not None and progress.listening
        if job.state is JobState.COMPLETING or (stop is not None and not listens):
            if stop is None or not stop.ignored:
                self.free.release(placement)
                self.still.release(placement)
            return
        if job.id not in state.stoppable or job.state is not JobState.RUNNING:
            return
        if (stop is not None and stop.ignored) or _is_gone(state, placement):
            return
        spec = state.spec(job)
        request = state.effective(job, spec)
        level = -inf  # for equals it does not make room
        if listens and self._had_its_time(job):
            level = rank(state.known(job), self.at)[0] - log2(self.rules.hysteresis)
            level += self.rules.fair * state.line.handicaps.get(job.user, 0.0)
        self.free.release(placement)
        self.seats[job.id] = Seat(
            job=job, request=request, stands=(-state.priority(job), level, job.order, job.id),
            pace=self.speeds.of(job, request), held=placement,
            model=hardware(state.cluster, placement)[1],
        )  # fmt: skip

    def _had_its_time(self, job: Job) -> bool:
        return job.started_at is not None and self.at - job.started_at >= self.rules.quantum

    def _waits(self, stands: Place, found: JobClass, id: int) -> Seat | None:
        if self.state.limit_reached(found):
            return None
        job = self.state.jobs[id]
        request = self.state.request(job, found)
        pace = self.speeds.of(job, request)
        seat = Seat(job=job, request=request, stands=stands, pace=pace, found=found)
        self.seats[id] = seat
        return seat

    # -- short waits --------------------------------------------------------------------

    def for_short_waits(self) -> None:
        """In order, each where its own time and the delay of others are least."""
        line = sorted(self.seats.values(), key=lambda seat: seat.stands)
        behind = float(sum(seat.pace.gpus for seat in line))
        alone: list[Seat] = []
        for seat in line:
            behind -= seat.pace.gpus
            if not self._put(seat, match.dearness(self.speeds.typical, behind, self.speeds.gpus)):
                alone.append(seat)
        for stands, found, id in self.waiting:
            last = self._waits(stands, found, id)
            if last is None or not self._put(last, {}):
                self.heads.given_up.add(found)
        self._share(alone)

    def _put(self, seat: Seat, dear: dict[str, float]) -> bool:
        options = [(self._option(seat, model, spot), spot) for model, spot in self._spots(seat)]
        best = match.choose((option for option, _ in options), seat.pace.gpus, dear)
        for option, spot in options:
            if option is best:
                self._settle(seat, spot)
                return True
        self._settle(seat, None)
        if seat.stands[1] == OVERDUE:
            self._reserve(seat)
        return False

    @staticmethod
    def _option(seat: Seat, model: str, spot: Placement) -> Option:
        return Option(model, seat.pace.seconds[model] + seat.moves(spot), spot is seat.held)

    def _spots(self, seat: Seat) -> Iterator[tuple[str, Placement]]:
        """A place on each model that has any: its own, else one that disturbs nobody."""
        for model in seat.pace.seconds:
            spot = self._spot(seat, model)
            if spot is not None:
                yield model, spot

    def _spot(self, seat: Seat, model: str) -> Placement | None:
        held = seat.held
        if held is not None and model == seat.model and self._is_its_own(held):
            return held
        request = _alone_on(seat.request, model)
        return place(self.still, request) or place(self.free, request)

    def _is_its_own(self, held: Placement) -> bool:
        """Whether nobody was placed there."""
        return is_there(self.free, held) and all(
            not take.shares or not self._device(part.node, take.device).slivers
            for part in held.parts
            for take in part.takes
        )

    def _device(self, node: str, name: str) -> Device:
        found = self.free.node(node)
        assert found is not None
        return found.by_name[GPU, name]

    def _settle(self, seat: Seat, to: Placement | None) -> None:
        """Write down where one goes, and who has to look for something else."""
        seat.settled, seat.to = True, to
        if to is not None:
            self.free.take(to)
        if to is not None and to is seat.held:
            return
        if seat.held is not None and seat.put_out is None:
            self.still.release(seat.held)
        if to is None:
            return
        if not is_there(self.still, to):
            self._put_out(seat, to)
        keep(self.still, to)

    def _put_out(self, by: Seat, to: Placement) -> None:
        """Those who have yet to be placed, and hold what was given to somebody else."""
        nodes = {part.node for part in to.parts}
        there = [
            seat
            for seat in self.seats.values()
            if not seat.settled
            and seat.held is not None
            and seat.put_out is None
            and not nodes.isdisjoint(part.node for part in seat.held.parts)
        ]
        wanted = _devices(to)
        there.sort(key=lambda seat: seat.stands, reverse=True)
        for touching in (True, False):  # first who is on the very GPUs, then for cores and memory
            for seat in there:
                if is_there(self.still, to):
                    return
                assert seat.held is not None
                if touching != wanted.isdisjoint(_devices(seat.held)) and seat.put_out is None:
                    self.still.release(seat.held)
                    seat.put_out = by.job.id

    def _reserve(self, seat: Seat) -> None:
        """Nobody behind takes what one that is overdue would have if all ended."""
        idle = self.state.cluster.shadow()
        for job in self.state.running.values():
            if job.placement is not None:
                idle.release(job.placement)
        spot = place(idle, seat.request)
        if spot is not None:
            keep(self.free, spot)
            keep(self.still, spot)

    # -- sharing ------------------------------------------------------------------------

    def _share(self, waiting: list[Seat]) -> None:
        """Who has no GPU to itself joins the one beside whom both together end soonest."""
        hosts = [seat for seat in self.seats.values() if seat.single and seat.to is not None]
        for seat in waiting:
            if not seat.single or not hosts:
                continue
            companies = [self._company(seat, host) for host in hosts]
            chosen = match.join(companies)
            if chosen is not None:
                self._join(seat, hosts.pop(chosen))

    def _company(self, seat: Seat, host: Seat) -> Company:
        model = self._model(host)
        mine = seat.pace.seconds.get(model)
        assert host.to is not None
        if mine is None:
            return Company(inf, inf, 0.0, 0.0)
        here = _together(seat, host)
        cost = 0.0 if here else seat.pace.restart * bool(seat.held or seat.job.attempt)
        share, others = self._shares(seat, host, model)
        return Company(mine + cost, host.pace.seconds.get(model, inf), share, others, here)

    def _shares(self, seat: Seat, host: Seat, model: str) -> tuple[float, float]:
        one, other = seat.pace.family, host.pace.family
        return self.speeds.share(one, other, model), self.speeds.share(other, one, model)

    def _model(self, host: Seat) -> str:
        assert host.to is not None
        return hardware(self.state.cluster, host.to)[1]

    def _join(self, seat: Seat, host: Seat) -> None:
        assert host.to is not None and seat.request.gpus is not None
        if _together(seat, host):
            seat.to = seat.held
        else:
            ask = replace(seat.request.gpus, only=tuple(host.to.names(GPU)), idle=False)
            seat.to = place(self.free, replace(seat.request, gpus=ask, nodes=(host.to.node,)))
        if seat.to is not None:
            self.free.take(seat.to)

    # -- the end of all -----------------------------------------------------------------

    def for_the_end_of_all(self) -> None:
        """The longest first, each on the model where it is cheapest."""
        for stands, found, id in self.waiting:
            self._waits(stands, found, id)
        seats = list(self.seats.values())
        line = sorted(seats, key=lambda seat: (seat.stands[0], -seat.best, seat.job.id))
        if sum(seat.pace.gpus for seat in line) <= self.speeds.gpus:
            left = [seat for seat in line if not self._put(seat, {})]
        else:
            left = self._by_price(seats)
        self._pair(left)

    def _by_price(self, seats: list[Seat]) -> list[Seat]:
        self.price = match.prices(_demands(seats), self.speeds.supply, {})
        line = sorted(
            seats,
            key=lambda seat: (
                seat.stands[0], -seat.best * (GOES_ON if seat.held else 1.0), seat.job.id
            ),
        )  # fmt: skip
        rest: list[Seat] = []
        for seat in line:
            now = seat.model if seat.held is not None else None
            home = match.home(seat.pace.seconds, self.price, now)
            spot = self._spot(seat, home) if home is not None else None
            if spot is not None:
                self._settle(seat, spot)
            else:
                rest.append(seat)
        for gpus in sorted({seat.pace.gpus for seat in rest}, reverse=True):
            self._into_what_is_left([seat for seat in rest if seat.pace.gpus == gpus])
        return [seat for seat in rest if seat.to is None]

    def _into_what_is_left(self, seats: list[Seat]) -> None:
        """Who loses least by it, first."""
        mine = {seat.job.id: self._fitness(seat) for seat in seats}
        while mine:
            some = self.seats[next(iter(mine))]
            free = [model for model in self.speeds.supply if self._spot(some, model)]
            id = match.least_loss(mine, free)
            if id is None:
                break
            seat, fitness = self.seats[id], mine.pop(id)
            model = max((each for each in free if each in fitness), key=lambda each: fitness[each])
            self._settle(seat, self._spot(seat, model))
        for id in mine:
            self._settle(self.seats[id], None)

    def _fitness(self, seat: Seat) -> dict[str, float]:
        found = match.suits(seat.pace.seconds, self.price)
        if seat.held is not None and seat.model in found:
            found[seat.model] = min(found[seat.model] / match.STAY, 1.0)
        return found

    def _pair(self, waiting: list[Seat]) -> None:
        """Those without a GPU of their own, in pairs that get the most done."""
        hosts = [seat for seat in self.seats.values() if seat.single and seat.to is not None]
        found: list[tuple[float, int, int]] = []
        for seat in waiting:
            fits = match.suits(seat.pace.seconds, self.price) if seat.single else {}
            for host in hosts if fits else ():
                model = self._model(host)
                share, others = self._shares(seat, host, model)
                theirs = match.suits(host.pace.seconds, self.price)
                gain = match.gain(share, others, fits.get(model, 0.0), theirs.get(model, 1.0))
                if gain > match.GAIN and model in fits:
                    gain = gain / match.STAY if _together(seat, host) else gain
                    found.append((-gain, seat.job.id, host.job.id))
        used: set[int] = set()
        for _, id, host_id in sorted(found):
            if id not in used and host_id not in used:
                used |= {id, host_id}
                self._join(self.seats[id], self.seats[host_id])


# ------------------------------------------------------------------------- carrying it out


def _carried_out(
    state: State, paper: Paper, at: float, boot: float
) -> Iterator[AttemptPlanned | StopAsked | StopWithdrawn]:
    for seat in paper.seats.values():
        job, stop = seat.job, seat.job.progress.stop if seat.job.progress is not None else None
        if stop is not None and seat.held is not None and seat.to is seat.held:
            yield StopWithdrawn(at=at, job=job.id, attempt=job.attempt)
    for seat in sorted(paper.seats.values(), key=lambda seat: seat.stands):
        job, to = seat.job, seat.to
        if seat.held is not None or to is None or seat.found is None:
            continue
        if not _is_free(state, paper, to) or state.limit_reached(seat.found):
            continue
        yield AttemptPlanned(at=at, job=job.id, attempt=job.attempt, placement=to, boot=boot)
    for seat in paper.seats.values():
        job = seat.job
        if seat.held is None or seat.to is seat.held:
            continue
        if job.progress is not None and job.progress.stop is not None:
            continue
        by = seat.put_out if seat.put_out in state.line else None
        yield StopAsked(
            at=at, job=job.id, attempt=job.attempt, why=_why(state, seat, by), boot=boot, by=by
        )


def _why(state: State, seat: Seat, by: int | None) -> str:
    if by is not None:
        return f"job {state.jobs[by].label} needs room"
    if seat.to is None:
        return "others need room"
    return f"it goes on with a {hardware(state.cluster, seat.to)[1] or 'GPU'} elsewhere"


def _is_free(state: State, paper: Paper, to: Placement) -> bool:
    """Whether a place can be had at once: nobody is there but those who are to be there."""
    if not is_there(state.cluster, to):
        return False
    wanted = _devices(to)
    for other in state.sharing.values():
        if other.placement is not None and not wanted.isdisjoint(_devices(other.placement)):
            seat = paper.seats.get(other.id)
            if seat is None or seat.to is None or wanted.isdisjoint(_devices(seat.to)):
                return False
    return True


def _alone_on(request: Request, model: str) -> Request:
    """The same request for GPUs of one model on which nobody is."""
    ask = request.gpus
    if ask is None or not ask.amount:
        return request
    if model:
        ask = replace(ask, model=model.lower(), models=())
    return replace(request, gpus=replace(ask, idle=True) if ask.beside else ask)


def _demands(seats: list[Seat]) -> Iterator[dict[str, float]]:
    """GPU-seconds by model, of those together who are alike."""
    kinds: dict[tuple[str, int], dict[str, float]] = {}
    for seat in seats:
        whole = kinds.setdefault((seat.pace.family, seat.pace.gpus), {})
        for model, seconds in seat.pace.seconds.items():
            whole[model] = whole.get(model, 0.0) + seconds * seat.pace.gpus
    yield from kinds.values()


def _together(seat: Seat, host: Seat) -> bool:
    """Whether they share a GPU now and go on so."""
    if seat.held is None or host.to is None or host.to is not host.held:
        return False
    return not _devices(seat.held).isdisjoint(_devices(host.to))


def _devices(placement: Placement) -> set[tuple[str, str]]:
    return {(part.node, name) for part in placement.parts for name in part.names(GPU)}


def _is_gone(state: State, placement: Placement) -> bool:
    cluster: Cluster = state.cluster
    return any(
        cluster.nodes[part.node].by_name[take.type, take.device].gone
        for part in placement.parts
        for take in part.takes
    )
