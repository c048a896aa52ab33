"""Who shares a GPU with whom: only those who get clearly more done together than in turns.

What two cost each other is measured when they share, or was told before. Of whom nothing is known,
nothing is held against: memory alone decides, until the first epochs say more. If they say that it
does not pay, the next pass parts the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.estimate import hardware
from stoker.core.policy import match
from stoker.core.policy.match import Company
from stoker.core.policy.paper import Paper, Seat, devices_of
from stoker.core.policy.place import place
from stoker.core.policy.room import is_there
from stoker.core.request import GPU


class Host(Struct, eq=False):
    """One with a GPU that others may share, and those who do."""

    seat: Seat
    model: str
    guests: list[Seat]


def share(paper: Paper, waiting: list[Seat]) -> None:
    """Who has no GPU to itself joins the one beside whom both together end soonest."""
    hosts = _hosts(paper)
    for seat in waiting:
        able = [host for host in hosts if _fits(paper, seat, host)] if seat.single else []
        chosen = match.join([_company(paper, seat, host) for host in able])
        if chosen is not None:
            _join(paper, seat, able[chosen])


def pair(paper: Paper, waiting: list[Seat], price: Mapping[str, float]) -> None:
    """Who has no GPU to itself, in those pairs that get the most done, by what GPUs cost."""
    hosts = _hosts(paper)
    found: list[tuple[float, int, int]] = []
    gains: dict[tuple[str, str, str], float] = {}
    for seat in waiting if hosts else ():
        for number, host in enumerate(hosts if seat.single else ()):
            kinds = (seat.pace.family, host.seat.pace.family, host.model)
            gain = gains.get(kinds)
            if gain is None:
                gain = gains[kinds] = _gain(paper, seat, host, price)
            if gain > match.GAIN:
                gain = gain / match.STAY if _together(seat, host) else gain
                found.append((-gain, seat.job.id, number))
    for _, id, number in sorted(found):
        seat, host = paper.seats[id], hosts[number]
        if seat.to is None and not host.guests and _fits(paper, seat, host):
            _join(paper, seat, host)


def _hosts(paper: Paper) -> list[Host]:
    cluster = paper.state.cluster
    return [
        Host(seat, hardware(cluster, seat.to)[1], [])
        for seat in paper.seats.values()
        if seat.single and seat.to is not None
    ]


def _fits(paper: Paper, seat: Seat, host: Host) -> bool:
    """Whether the memory of the host's GPU is enough for one more."""
    to, ask = host.seat.to, seat.request.gpus
    assert to is not None
    assert ask is not None
    device = paper.device(to.node, to.names(GPU)[0])
    return device.memory_free - device.stranger_memory >= (ask.memory or 0)


def _company(paper: Paper, seat: Seat, host: Host) -> Company:
    """What a job and those who are on a GPU already would make of it."""
    mine = seat.pace.seconds.get(host.model)
    if mine is None:
        return Company(inf, inf, 0.0, 0.0)
    here = _together(seat, host)
    cost = 0.0 if here else seat.pace.restart * bool(seat.held or seat.job.attempt)
    left, theirs = 1.0, 1.0
    for other in (host.seat, *host.guests):
        one, another = _shares(paper, seat, other, host.model)
        left, theirs = left * one, min(theirs, another)
    seconds = host.seat.pace.seconds.get(host.model, inf)
    return Company(mine + cost, seconds, left, theirs, here)


def _gain(paper: Paper, seat: Seat, host: Host, price: Mapping[str, float]) -> float:
    """What a GPU does more with both of them on it."""
    mine = match.suits(seat.pace.seconds, price).get(host.model)
    theirs = match.suits(host.seat.pace.seconds, price).get(host.model, 1.0)
    one, another = _shares(paper, seat, host.seat, host.model)
    return match.gain(one, another, mine, theirs) if mine is not None else -inf


def _shares(paper: Paper, seat: Seat, other: Seat, model: str) -> tuple[float, float]:
    one, another = seat.pace.family, other.pace.family
    return paper.speeds.share(one, another, model), paper.speeds.share(another, one, model)


def _together(seat: Seat, host: Host) -> bool:
    """Whether they share a GPU now, or were to, and go on so."""
    if seat.home is None or host.seat.to is None:
        return False
    return not devices_of(seat.home).isdisjoint(devices_of(host.seat.to))


def _join(paper: Paper, seat: Seat, host: Host) -> None:
    to = host.seat.to
    assert to is not None
    assert seat.request.gpus is not None
    if seat.home is not None and _together(seat, host) and is_there(paper.free, seat.home):
        seat.to = seat.home
    else:
        ask = replace(seat.request.gpus, only=tuple(to.names(GPU)), idle=False)
        seat.to = place(paper.free, replace(seat.request, gpus=ask, nodes=(to.node,)))
    if seat.to is not None:
        paper.free.take(seat.to)
        host.guests.append(seat)
