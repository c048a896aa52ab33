"""Who could be where, on paper: places are given out and taken away without anybody noticing.

Two ledgers are kept. In one, all have left who can, and only those who were placed are there. In
the other, those who have yet to be placed are still where they are: what is free there is taken
first, so that nobody is put out without need.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import inf, log2

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.cluster import Device, Placement
from stoker.core.estimate import NO_GPU, hardware
from stoker.core.job import Job
from stoker.core.lifecycle import JobState
from stoker.core.policy import match
from stoker.core.policy.backfill import keep
from stoker.core.policy.heads import Heads
from stoker.core.policy.match import Option
from stoker.core.policy.order import LONG_AGO, JobClass
from stoker.core.policy.place import place
from stoker.core.policy.rank import rank
from stoker.core.policy.room import is_there
from stoker.core.policy.rules import Policy
from stoker.core.policy.shelf import Place
from stoker.core.policy.speeds import Pace, Speeds
from stoker.core.request import GPU, Request
from stoker.core.state import State

FIRST = 256
"""So many of those who wait are thought of, in any case; the others, while there is room."""
REPAID = 5.0
"""An attempt goes on for so many times what a restart costs, before it moves for its own good."""


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
    home: Placement | None = None
    """Where it is, or was to go by the last pass: it goes there unless another place is better."""
    young: bool = False
    """It has hardly begun, and does not move for its own good."""
    to: Placement | None = None
    settled: bool = False
    put_out: int | None = None
    """Who has taken its place on paper."""
    back: bool = False
    """It stands further back for that."""

    @property
    def leaves(self) -> bool:
        """Whether it runs, and was asked to stop."""
        return self.job.progress is not None and self.job.progress.stop is not None

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
        self._alone: dict[tuple[Request, str], Request] = {}
        self._full: set[Request] = set()
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
        if (stop is not None and stop.ignored) or _is_closed(state, placement):
            return
        spec = state.spec(job)
        request = state.effective(job, spec)
        level, home = -inf, placement  # for equals it does not make room
        if listens and self._had_its_time(job):
            level = rank(state.known(job), self.at)[0] - log2(self.rules.hysteresis)
            level += self.rules.fair * state.line.handicaps.get(job.user, 0.0)
        if stop is not None:
            home = state.promises.get(job.id, placement)
        pace = self.speeds.of(job, request)
        if hardware(state.cluster, placement)[1] not in pace.seconds:
            return
        self.free.release(placement)
        began = job.started_at if job.started_at is not None else self.at
        self.seats[job.id] = Seat(
            job=job, request=request, stands=(-job.priority, level, job.order, job.id),
            pace=pace, held=placement, home=home, model=hardware(state.cluster, home)[1],
            young=stop is None and self.at - began < REPAID * pace.restart,
        )  # fmt: skip

    def _had_its_time(self, job: Job) -> bool:
        return job.started_at is not None and self.at - job.started_at >= self.rules.quantum

    def _waits(self, stands: Place, found: JobClass, id: int) -> Seat | None:
        if self.state.limit_reached(found):
            return None
        job = self.state.jobs[id]
        request = self.state.request(job, found)
        seat = Seat(
            job=job, request=request, stands=stands, pace=self.speeds.of(job, request), found=found
        )
        home = self.state.promises.get(id)
        if home is not None:
            priority, level, *rest = stands
            seat.stands = (priority, level - log2(self.rules.hysteresis), *rest)
            seat.home, seat.model = home, hardware(self.state.cluster, home)[1]
        self.seats[id] = seat
        return seat

    # -- short waits --------------------------------------------------------------------
    def put_others(self) -> None:
        """Those further behind, as long as there is room for their like."""
        for stands, found, id in self.waiting:
            seat = self._waits(stands, found, id)
            if seat is None or not self.put(seat, {}):
                self.heads.given_up.add(found)

    def put(self, seat: Seat, dear: dict[str, float]) -> bool:
        options = [(self._option(seat, model, spot), spot) for model, spot in self.spots(seat)]
        best = match.choose((option for option, _ in options), seat.pace.gpus, dear)
        for option, spot in options:
            if option is best:
                self.settle(seat, spot)
                return True
        self.settle(seat, None)
        if seat.stands[1] <= LONG_AGO:
            self._reserve(seat)
        return False

    @staticmethod
    def _option(seat: Seat, model: str, spot: Placement) -> Option:
        return Option(model, seat.pace.seconds[model] + seat.moves(spot), spot is seat.home)

    def spots(self, seat: Seat) -> Iterator[tuple[str, Placement]]:
        """A place on each model that has any: its own, else one that disturbs nobody."""
        models = list(seat.pace.seconds)
        if seat.young and seat.held is not None and self._is_its_own(seat.held):
            models = [seat.model]
        for model in models:
            spot = self.spot(seat, model)
            if spot is None:
                continue
            there = hardware(self.state.cluster, spot)[1]  # a name may be a part of another one
            if there in seat.pace.seconds:
                yield there, spot

    def spot(self, seat: Seat, model: str) -> Placement | None:
        home = seat.home
        if home is not None and model == seat.model and self._is_its_own(home):
            return home
        request = self._alone.get((seat.request, model))
        if request is None:
            request = self._alone[seat.request, model] = _alone_on(seat.request, model)
        if request in self._full:
            return None
        spot = place(self.still, request)
        if spot is None or not is_there(self.free, spot):  # some of it may be reserved
            spot = place(self.free, request)
        if spot is None:
            self._full.add(request)  # during a pass, there is never more room than before
        return spot

    def _is_its_own(self, held: Placement) -> bool:
        """Whether nobody was placed there."""
        return is_there(self.free, held) and all(
            not take.shares or not self.device(part.node, take.device).slivers
            for part in held.parts
            for take in part.takes
        )

    def device(self, node: str, name: str) -> Device:
        found = self.free.node(node)
        assert found is not None
        return found.by_name[GPU, name]

    def settle(self, seat: Seat, to: Placement | None) -> None:
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
        wanted = devices_of(to)
        there.sort(key=lambda seat: seat.stands, reverse=True)
        for touching in (True, False):  # first who is on the very GPUs, then for cores and memory
            for seat in there:
                if is_there(self.still, to):
                    return
                assert seat.held is not None
                if touching != wanted.isdisjoint(devices_of(seat.held)) and seat.put_out is None:
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


def _alone_on(request: Request, model: str) -> Request:
    """The same request for GPUs of one model on which nobody is."""
    ask = request.gpus
    if ask is None or not ask.amount:
        return request
    if model != NO_GPU:
        ask = replace(ask, model=model.lower(), models=())
    return replace(request, gpus=replace(ask, idle=True) if ask.beside else ask)


def devices_of(placement: Placement) -> set[tuple[str, str]]:
    """The GPUs of a placement."""
    return {(part.node, name) for part in placement.parts for name in part.names(GPU)}


def _is_closed(state: State, placement: Placement) -> bool:
    """Whether it could not be placed where it is: then it is left alone."""
    nodes = state.cluster.nodes
    devices = (
        nodes[part.node].by_name[take.type, take.device]
        for part in placement.parts
        for take in part.takes
    )
    return any(nodes[part.node].closed is not None for part in placement.parts) or any(
        device.gone or device.drained is not None for device in devices
    )
