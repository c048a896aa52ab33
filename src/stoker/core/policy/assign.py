"""Who goes where when GPUs differ, or jobs share them: one pass over all who wait or can move.

Everybody is placed anew on paper, in order: those who run as if they could leave at once, but
before their turn by the policy's hysteresis, and with a preference for where they are. What comes
of it is done as far as it can be: whoever waits and finds its place free starts; whoever runs and
was placed elsewhere, or nowhere, is asked to stop. A stop takes its time, so the next pass decides
again, by the same rules and with a preference for what was decided before.

This is for clusters on which it matters: some family is known on several models of GPU, or beside
others. It looks at every running job, and so it is for small clusters only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from math import log2

from stoker.core.cluster import Placement
from stoker.core.estimate import hardware
from stoker.core.events import AttemptPlanned, StopAsked, StopWithdrawn
from stoker.core.policy import company, match
from stoker.core.policy.paper import Paper, Seat, devices_of
from stoker.core.policy.room import is_there
from stoker.core.policy.rules import Knows, Policy
from stoker.core.request import Request
from stoker.core.state import State

MOST_RUNNING, MOST_MACHINES = 512, 256
"""On larger clusters the line is walked as everywhere else."""
GOES_ON = 2.0
"""For the end of all, a running job counts as so many times as long."""

Decisions = Iterator[AttemptPlanned | StopAsked | StopWithdrawn]


def rules_of(state: State) -> Policy | None:
    """By what everybody is assigned a place; None: the line is walked instead."""
    if not state.tells_apart() or state.elastic or state.flexible:
        return None
    if len(state.running) > MOST_RUNNING or len(state.cluster.nodes) > MOST_MACHINES:
        return None
    rules = state.policy("default")
    if rules.knows is not Knows.MEASURED or not (rules.preempts or rules.longest):
        return None
    queues = state.rest.queues
    alike = all(state.policy(each) == rules and not queues[each].strict for each in queues)
    return rules if alike else None


def assign(state: State, rules: Policy, at: float, boot: float) -> Decisions:
    """Yield what starts now, and who is to stop; the caller applies each before the next."""
    paper = Paper(state, rules, at)
    if rules.longest:
        _for_the_end_of_all(paper)
    else:
        _for_short_waits(paper)
    state.line.settled = False  # whoever walks the line next looks at everybody
    state.line.fresh.clear()
    state.promises.clear()
    for seat in paper.seats.values():
        if seat.to is not None and seat.to is not seat.held:
            state.promises[seat.job.id] = seat.to
    yield from _carried_out(state, paper, at, boot)


# ----------------------------------------------------------------------------- short waits


def _for_short_waits(paper: Paper) -> None:
    """In order, each where its own time and the delay of others are least."""
    turns = [(seat.stands, seat) for seat in paper.seats.values()]
    heapify(turns)
    behind = float(sum(seat.pace.gpus for _, seat in turns))
    left: list[Seat] = []
    while turns:
        _, seat = heappop(turns)
        if seat.put_out is not None and not seat.back:
            # Whoever has lost its place is like one that waits: it does not put out the next.
            priority, level, *rest = seat.stands
            seat.stands = (priority, level + log2(paper.rules.hysteresis), *rest)
            seat.back = True
            heappush(turns, (seat.stands, seat))
            continue
        behind -= seat.pace.gpus
        dear = match.dearness(paper.speeds.typical, behind, paper.speeds.gpus)
        if not paper.put(seat, dear):
            left.append(seat)
    paper.put_others()
    company.share(paper, left)


# -------------------------------------------------------------------------- the end of all


def _for_the_end_of_all(paper: Paper) -> None:
    """The longest first, each on the model where it is cheapest; at last, where it ends first."""
    seats = list(paper.seats.values())
    price = match.prices(_demands(seats), paper.speeds.supply, {})
    if sum(seat.pace.gpus for seat in seats) <= paper.speeds.gpus:
        seats.sort(key=lambda seat: (seat.stands[0], -seat.best, seat.job.id))
        left = [seat for seat in seats if not paper.put(seat, {})]
    else:
        left = _by_price(paper, seats, price)
    paper.put_others()
    company.pair(paper, left, price)


def _demands(seats: list[Seat]) -> Iterator[dict[str, float]]:
    """GPU-seconds by model, of those together who are alike."""
    kinds: dict[tuple[str, int], dict[str, float]] = {}
    for seat in seats:
        whole = kinds.setdefault((seat.pace.family, seat.pace.gpus), {})
        for model, seconds in seat.pace.seconds.items():
            whole[model] = whole.get(model, 0.0) + seconds * seat.pace.gpus
    yield from kinds.values()


def _by_price(paper: Paper, seats: list[Seat], price: Mapping[str, float]) -> list[Seat]:
    """Those without a place, when all have got one who find it where they are cheapest."""

    def turn(seat: Seat) -> tuple[float, float, int]:
        return seat.stands[0], -seat.best * (GOES_ON if seat.home else 1.0), seat.job.id

    rest: list[Seat] = []
    for seat in sorted(seats, key=turn):
        now = seat.model if seat.home is not None else None
        model = now if seat.young else match.home(seat.pace.seconds, price, now)
        spot = paper.spot(seat, model) if model is not None else None
        if spot is not None:
            paper.settle(seat, spot)
        else:
            rest.append(seat)
    for gpus in sorted({seat.pace.gpus for seat in rest}, reverse=True):
        _into_what_is_left(paper, [seat for seat in rest if seat.pace.gpus == gpus], price)
    return [seat for seat in rest if seat.to is None]


def _into_what_is_left(paper: Paper, seats: list[Seat], price: Mapping[str, float]) -> None:
    """Who loses least by it, first."""
    waiting = {seat.job.id: _fitness(seat, price) for seat in seats}
    while waiting:
        spots = _spots(paper, waiting)
        able = {
            id: {model: fit for model, fit in fitness.items() if model in spots[id]}
            for id, fitness in waiting.items()
        }
        first = match.least_loss(able, paper.speeds.supply)
        if first is None:
            break
        del waiting[first]
        fitness = able[first]
        model = max(fitness, key=lambda each: fitness[each])
        paper.settle(paper.seats[first], spots[first][model])
    for id in waiting:
        paper.settle(paper.seats[id], None)


def _spots(paper: Paper, ids: Iterable[int]) -> dict[int, dict[str, Placement]]:
    """Places by model; all who have none yet and ask for the same could have the same."""
    found: dict[int, dict[str, Placement]] = {}
    alike: dict[Request, dict[str, Placement]] = {}
    for id in ids:
        seat = paper.seats[id]
        known = alike.get(seat.request) if seat.home is None else None
        if known is None:
            known = dict(paper.spots(seat))
            if seat.home is None:
                alike[seat.request] = known
        found[id] = known
    return found


def _fitness(seat: Seat, price: Mapping[str, float]) -> dict[str, float]:
    found = match.suits(seat.pace.seconds, price) or dict.fromkeys(seat.pace.seconds, 1.0)
    if seat.home is not None and seat.model in found:
        found[seat.model] = min(found[seat.model] / match.STAY, 1.0)
    return found


# ------------------------------------------------------------------------- carrying it out


def _carried_out(state: State, paper: Paper, at: float, boot: float) -> Decisions:
    for seat in paper.seats.values():
        if seat.leaves and seat.to is seat.held:
            yield StopWithdrawn(at=at, job=seat.job.id, attempt=seat.job.attempt)
    for seat in sorted(paper.seats.values(), key=lambda seat: seat.stands):
        job, to = seat.job, seat.to
        if seat.found is None or to is None or not _is_free(state, paper, to):
            continue
        if state.limit_reached(seat.found):
            continue
        state.promises.pop(job.id, None)
        yield AttemptPlanned(at=at, job=job.id, attempt=job.attempt, placement=to, boot=boot)
    for seat in paper.seats.values():
        if seat.held is not None and seat.to is not seat.held and not seat.leaves:
            by = seat.put_out if seat.put_out is not None and seat.put_out in state.line else None
            yield StopAsked(
                at=at, job=seat.job.id, attempt=seat.job.attempt, why=_why(state, seat, by),
                boot=boot, by=by,
            )  # fmt: skip


def _why(state: State, seat: Seat, by: int | None) -> str:
    if by is not None:
        return f"job {state.jobs[by].label} needs its resources"
    if seat.to is None:
        return "other jobs need its resources"
    return f"it continues with {hardware(state.cluster, seat.to)[1] or 'another GPU'}"


def _is_free(state: State, paper: Paper, to: Placement) -> bool:
    """Whether a place can be had at once: nobody is there but those who are to be there."""
    if not is_there(state.cluster, to):
        return False
    wanted = devices_of(to)
    for other in state.sharing.values():
        if other.placement is not None and not wanted.isdisjoint(devices_of(other.placement)):
            seat = paper.seats.get(other.id)
            if seat is None or seat.to is None or wanted.isdisjoint(devices_of(seat.to)):
                return False
    return True
