"""Where a job goes: the machine, or machines, where a request fits and disturbs least."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import Any

from msgspec.structs import replace

from stoker.core.cluster import Alike, Cluster, Device, Node, Placement, Standing, Take
from stoker.core.policy.fit import GPUS, fit, gpus_needed, room, wants
from stoker.core.policy.fragment import Ask, cost
from stoker.core.policy.ground import (
    ask_of,
    by_name,
    elsewhere,
    is_coarse,
    is_plain,
    looked_at,
    yard,
)
from stoker.core.policy.shelf import Amounts, Enough, content, within_any
from stoker.core.request import CPU, GPU, MEMORY, Request
from stoker.core.units import THOUSAND

MOST_OVERLAID = 256
"""If a ledger says of more machines than these that they stand otherwise, all are looked at."""
LAST_RESORT = 1 << 40
"""More GPUs than any node has free: what ranks a node behind all others."""
MOST_QUESTIONS, MOST_STANDINGS = 4096, 65536
"""So many questions, and so many kinds of machines for each, are remembered with their answer."""


def place(cluster: Cluster, request: Request) -> Placement | None:
    """Devices for this request that are free now, on the machine where it disturbs least."""
    if _by_the_index(cluster, request):
        return _by_amounts(cluster, request)
    if request.machines > 1:
        return _together(cluster, request)
    best = min(_fitting(cluster, request), default=None, key=lambda found: found[:2])
    if best is None:
        return None
    node = best[2].first()
    takes = fit(node, request)
    return Placement(node.name, takes) if takes is not None else None


def place_on(cluster: Cluster, names: Iterable[str], request: Request) -> Placement | None:
    """The same on one of these machines."""
    best: tuple[Rank, int, Node, tuple[Take, ...]] | None = None
    plain, needed = is_plain(request), gpus_needed(request)
    for name in names:
        node = cluster.node(name)
        if node is None or (plain and needed and _gpus(node) < needed):
            continue
        takes = fit(node, request)
        if takes is not None:
            found = (_rank(node, request), node.number, node, takes)
            if best is None or found[:2] < best[:2]:
                best = found
    return Placement(best[2].name, best[3]) if best is not None else None


def _gpus(node: Node) -> int:
    """How many GPUs a request can have on a machine at most, if it asks for nothing else."""
    found = room(node, GPUS)
    return found[0] if found is not None else -1


def _by_the_index(cluster: Cluster, request: Request) -> bool:
    """Whether machines are found by what is left on them, not by looking at all kinds of them."""
    if len(cluster.true.nodes) == 1 or not is_plain(request):
        return False
    if len(cluster.overlaid()) > MOST_OVERLAID:
        return False
    return not (is_coarse(request) and cluster.is_coarse())


def _by_amounts(cluster: Cluster, request: Request) -> Placement | None:
    """Machines found by what is left on them: where the least is lost to those who come later.

    In a ledger of what could be, simply the fullest ones that will do.
    """
    ask, count = ask_of(cluster, request), request.machines
    each = request.part
    if cluster.true is cluster:
        names = yard(cluster).best(ask, cluster.typical, count)
        nodes = [cluster.nodes[name] for name in names]
    else:
        nodes = [found for name in islice(elsewhere(cluster, ask), count)
                 if (found := cluster.node(name)) is not None]  # fmt: skip
    others = [] if nodes and cluster.true is cluster else looked_at(cluster)
    if fitting := [node for node in others if fit(node, each) is not None]:
        nodes = sorted(nodes + fitting, key=lambda node: (_rank(node, each), node.number))
    if len(nodes) < count:
        return None
    parts = [Placement(node.name, _fit_well(cluster, node, each, ask)) for node in nodes[:count]]
    return parts[0] if count == 1 else replace(parts[0], more=tuple(parts[1:]))


def _fit_well(cluster: Cluster, node: Node, request: Request, ask: Ask) -> tuple[Take, ...]:
    """What the request takes of a machine where it fits: its part of a GPU of the best one."""
    gap = 0
    if ask.gpus % THOUSAND and cluster.true is cluster:
        room = cluster.yard.room(node.name)
        gap = cost(room, ask, cluster.typical)[1] if room is not None else 0
    takes = fit(node, request, gap)
    assert takes is not None
    return takes


def could_hold(cluster: Cluster, name: str, request: Request) -> bool:
    """Whether a machine may have GPUs enough for (a part of) this request: quickly told."""
    needed = gpus_needed(request)
    return not needed or gpus_left(cluster, name) >= needed


def gpus_left(cluster: Cluster, name: str) -> int:
    """How much is left of all GPUs of a machine together."""
    node = cluster.node(name)
    left = 0
    for card in node.types.get(GPU, ()) if node is not None else ():
        left += card.free - card.others  # not by its property: asked very often
    return left


def machines_for(cluster: Cluster, request: Request) -> int:
    """On how many machines a part of this request fits now; no more than it asks for."""
    each = request.part
    if _by_the_index(cluster, request):
        count = request.machines
        others = elsewhere(cluster, ask_of(cluster, request), ordered=False)
        found = sum(fit(node, each) is not None for node in looked_at(cluster))
        return min(found + sum(1 for _ in islice(others, count)), count)
    return min(sum(len(alike) for _, _, alike in _fitting(cluster, each)), request.machines)


def _fitting(cluster: Cluster, request: Request) -> Iterator[tuple[Rank, int, Alike]]:
    """Machines on which this request fits now, those that are alike together, and how well.

    Among equals, whoever joined first: this machine.
    """
    if by_name(request):
        for name in cluster.names():
            node = cluster.node(name)
            if node is not None and fit(node, request) is not None:
                yield _rank(node, request), node.number, Alike(node)
        return
    known = verdicts(cluster, request)
    for standing, alike in cluster.alike():
        found = known.get(standing, known)
        if found is known:
            node = alike.first()
            found = _rank(node, request) if fit(node, request) is not None else None
            known[standing] = found
        if found is not None:
            yield found, alike.first().number, alike


def verdicts(cluster: Cluster, question: Hashable) -> dict[Standing, Any]:
    """What was answered before to this question, by how a machine stands."""
    known = cluster.verdicts.get(question)
    if known is None or len(known) > MOST_STANDINGS:
        if len(cluster.verdicts) > MOST_QUESTIONS:
            cluster.verdicts.clear()
        known = cluster.verdicts[question] = {}
    return known


Rank = tuple[int, float]


def _rank(node: Node, request: Request) -> Rank:
    """Smaller is better. GPU jobs fill machines up, so that large ones find whole machines;
    others go where the least is going on. Nodes on which a start waits in another queue come last.
    """
    gpus = LAST_RESORT if node.delegated else 0
    if request.gpus is not None and request.gpus.amount:
        gpus += sum(
            device.free
            for device in node.types.get(GPU, ())
            if device.stranger is None and device.drained is None and not device.gone
        )
    return gpus, max(map(_crowded, node.devices()), default=0.0)


def _crowded(device: Device) -> float:
    if device.type not in (CPU, MEMORY) or not device.facts.capacity:
        return 0.0
    return 1 - device.left / device.facts.capacity


def _together(cluster: Cluster, request: Request) -> Placement | None:
    """One part on each of several machines, or nothing."""
    each = request.part
    chosen: list[Node] = []
    for _, _, alike in sorted(_fitting(cluster, each), key=lambda found: found[:2]):
        chosen += islice(alike, request.machines - len(chosen))
        if len(chosen) == request.machines:
            break
    else:
        return None
    parts = [Placement(node.name, fit(node, each) or ()) for node in chosen]
    return replace(parts[0], more=tuple(parts[1:]))


def rooms(cluster: Cluster, shape: Request) -> list[tuple[int, ...]]:
    """The most that requests of this shape could ask for, machine by machine; none needlessly."""
    found: dict[tuple[int, ...], None] = {}
    if by_name(shape):
        nodes = [node for name in cluster.names() if (node := cluster.node(name)) is not None]
        found = {left: None for node in nodes if (left := room(node, shape)) is not None}
        return list(found)
    known = verdicts(cluster, (shape, "room"))
    for standing, alike in cluster.alike():
        left = known.get(standing, known)
        if left is known:
            left = known[standing] = room(alike.first(), shape)
        if left is not None:
            found[left] = None
    return list(found)


def has_room(
    cluster: Cluster,
    shape: Request,
    among: Iterable[str] | None = None,
    never: set[Amounts] | None = None,
) -> Enough:
    """Whether requests of a shape fit that ask for so much; if said so, on one of these machines.

    Of a request for several machines, one of its parts must fit there, and all of them somewhere.
    In `never` are amounts that are not there, and what is found of such is entered. What is asked
    for besides amounts, such as a time, does not count.
    """
    count = shape.machines
    if among is not None:
        nodes = [node for name in among if (node := cluster.node(name)) is not None]
        there = {left: None for node in nodes if (left := room(node, shape)) is not None}
        near = within_any(there)
        if count == 1:
            return near
        anywhere = has_room(cluster, shape, never=never)
        return lambda asked: near(_part(asked, shape)) and anywhere(asked)
    if not _by_the_index(cluster, shape):
        return within_any(rooms(cluster, shape)) if count == 1 else _several(cluster, shape)
    own = [left for node in looked_at(cluster) if (left := room(node, shape)) is not None]
    known: set[Amounts] = set()
    less = never if never is not None else set()
    kinds = len(wants(shape)) + (shape.gpus is not None)

    def enough(asked: Amounts) -> bool:
        asked = asked[:kinds]
        if asked in less:
            return False
        if asked not in known:
            found = _is_there(cluster, shape, _part(asked, shape), own)
            (known if found else less).add(asked)
            return found
        return True

    return enough


def _is_there(cluster: Cluster, shape: Request, part: Amounts, own: list[tuple[int, ...]]) -> bool:
    """Whether so much is left on as many machines as are asked for."""
    count = shape.machines
    for there in own:
        if content(part, there):
            count -= 1
            if not count:
                return True
    ask = ask_of(cluster, shape)._replace(**_as_ask(shape, part))
    return sum(1 for _ in islice(elsewhere(cluster, ask, ordered=False), count)) == count


def _as_ask(shape: Request, part: Amounts) -> dict[str, Any]:
    """Amounts in the order of `amounts`, by what they are of."""
    left = iter(part)
    gpus = next(left) if shape.gpus is not None else 0
    named = {type: next(left) for type, _ in wants(shape)}
    cpu, mem = named.pop(CPU, 0), named.pop(MEMORY, 0)
    return {"gpus": gpus, "cpu": cpu, "mem": mem, "more": tuple(named.items())}


def _part(asked: Amounts, shape: Request) -> Amounts:
    """What one machine is asked for; GPUs are counted on all of them together."""
    if shape.machines == 1 or shape.gpus is None:
        return asked
    return (asked[0] // shape.machines, *asked[1:])


def _several(cluster: Cluster, shape: Request) -> Enough:
    """Whether there is so much on as many machines as are asked for, kind by kind of them."""
    found: list[tuple[tuple[int, ...], int]] = []
    known = verdicts(cluster, (shape, "room"))
    for standing, alike in cluster.alike():
        left = known.get(standing, known)
        if left is known:
            left = known[standing] = room(alike.first(), shape)
        if left is not None:
            found.append((left, len(alike)))

    def enough(asked: Amounts) -> bool:
        part = _part(asked, shape)
        return sum(count for left, count in found if content(part, left)) >= shape.machines

    return enough
