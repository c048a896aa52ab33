"""Machines by what is left on them, for requests that look at nothing else.

A plain request names no machine and no device, and wants amounts: then it is enough to know how
much is left of everything, and the index of that (`yard`) finds the best machine without a look at
all of them. Machines with GPUs of several makes, and delegated ones, are odd: those are looked at
one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

from stoker.core.cluster import Cluster, Device, DeviceFacts, Node
from stoker.core.policy.fragment import Ask, Room
from stoker.core.policy.yard import Yard
from stoker.core.request import CPU, GPU, MEMORY, GpuAsk, Request
from stoker.core.units import THOUSAND

NOMINAL = 0.95
"""A card sold as 24 GB may report a little less; this share of the asked size will do."""
MOST_ASKS = 4096
"""So many requests are remembered as the index sees them."""
NOWHERE = "nowhere"
"""No GPU is of that make."""


def by_name(request: Request) -> bool:
    """Whether machines and devices matter to it by their names, not only by what they have."""
    ask = request.gpus
    if request.nodes or request.not_nodes or request.among:
        return True
    return ask is not None and bool(ask.only or ask.prefer or ask.avoid or ask.within)


def is_plain(request: Request) -> bool:
    """Whether amounts and the make of GPUs decide alone where it fits."""
    if request.exclusive or by_name(request):
        return False
    ask = request.gpus
    if ask is None:
        return True
    return not (ask.beside or ask.despite_strangers) and ask.share is None and ask.memory is None


def is_coarse(request: Request) -> bool:
    """Whether it wants whole GPUs of any make and nothing else, or none at all."""
    ask = request.gpus
    if ask is None or not ask.amount:
        return True
    if request.cpus or request.memory or request.named:
        return False
    return not (ask.amount % THOUSAND or ask.model or ask.models or ask.min_vram)


def made_for(facts: DeviceFacts, ask: GpuAsk) -> bool:
    """Whether a GPU of this make is of the kind that was asked for."""
    if ask.model and ask.model not in (facts.model or "").lower():
        return False
    if ask.models and not any(each in (facts.model or "").lower() for each in ask.models):
        return False
    return not (ask.min_vram and (facts.memory or 0) < ask.min_vram * NOMINAL)


def ask_of(cluster: Cluster, request: Request) -> Ask:
    """A request, or one part of a gang, as the index sees it."""
    true = cluster.true
    found = true.asks.get(request)
    if found is None:
        if len(true.asks) >= MOST_ASKS:
            true.asks.clear()
        found = true.asks[request] = _ask(true, request)
    return found


def _ask(cluster: Cluster, request: Request) -> Ask:
    ask = request.gpus
    models: tuple[str, ...] = ()
    if ask is not None and (ask.model or ask.models or ask.min_vram):
        models = tuple(sorted(name for name, make in cluster.makes.items() if made_for(make, ask)))
        models = () if len(models) == len(cluster.makes) else models or (NOWHERE,)
    named = tuple((name, amount) for name, amount in request.named if amount)
    amount = ask.amount if ask is not None else 0
    return Ask(amount, request.cpus, request.memory, models, named)


def note(cluster: Cluster, request: Request) -> None:
    """Somebody asks for this: what is usually asked for says where it is best put."""
    if is_plain(request):
        cluster.typical.note(ask_of(cluster, request))


def yard(cluster: Cluster) -> Yard:
    """What is left on every machine of the true ledger but for the odd ones."""
    true = cluster.true
    for name in true.unseen:
        node = true.nodes.get(name)
        room = room_of(node) if node is not None else None
        true.odd.pop(name, None)
        if room is not None:
            true.yard.put(name, room)
        else:
            if true.yard.room(name) is not None:
                true.yard.drop(name)
            if node is not None and node.closed is None:
                true.odd[name] = None
    true.unseen.clear()
    return true.yard


def room_of(node: Node) -> Room | None:
    """What is left on a machine; None when it is closed, or odd."""
    if node.closed is not None or node.delegated:
        return None
    lefts, make = [], None
    for card in node.types.get(GPU, ()):
        if card.gone or card.drained is not None or card.stranger is not None:
            continue
        if make is None:
            make = card
        if card.kind != make.kind or card.facts.capacity != THOUSAND:
            return None
        lefts.append(0 if card.slivers else max(card.left, 0))
    lefts.sort(reverse=True)
    amounts = {type: max(most(node.types[type]), 0) for type in node.types if type != GPU}
    cpu, mem = amounts.pop(CPU, 0), amounts.pop(MEMORY, 0)
    named = tuple(sorted(amounts.items())) if amounts else ()
    return Room(tuple(lefts), cpu, mem, make.facts.make if make is not None else "", named)


def most(devices: list[Device]) -> int:
    """The largest amount that can be had of these now; all smaller ones can be had too."""
    whole = part = largest = 0
    unit = True
    for device in devices:
        if device.drained is None and not device.gone:
            left = device.free - device.others  # not by its property: asked very often
            unit = unit and device.facts.capacity == THOUSAND
            largest = max(largest, left)
            if left == THOUSAND:
                whole += 1
            elif left > part and not (device.type == GPU and device.slivers):
                part = left
    return whole * THOUSAND + part if unit else largest


def elsewhere(cluster: Cluster, ask: Ask, ordered: bool = True) -> Iterator[str]:
    """Machines with room of which this ledger says nothing of its own; the fullest first."""
    own, there = cluster.overlaid(), yard(cluster)
    for name in there.fitting(ask) if ordered else there.some(ask):
        if name not in own:
            yield name


def looked_at(cluster: Cluster) -> Iterator[Node]:
    """Machines that have to be looked at one by one: odd ones, and those that stand otherwise."""
    own = cluster.overlaid()
    yard(cluster)
    for name in cluster.true.odd:
        if name not in own:
            yield cluster.true.nodes[name]
    yield from own.values()
