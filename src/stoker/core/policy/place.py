"""Where a job goes: the devices of one node that satisfy a request, or none."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import Any

from msgspec.structs import replace

from stoker.core.cluster import SLIVER, Alike, Cluster, Device, Node, Placement, Standing, Take
from stoker.core.policy.fragment import Ask, cost
from stoker.core.policy.ground import (
    ask_of,
    by_name,
    elsewhere,
    is_coarse,
    is_plain,
    looked_at,
    made_for,
    most,
    yard,
)
from stoker.core.policy.shelf import Amounts, Enough, content, within_any
from stoker.core.request import CPU, GPU, MEMORY, GpuAsk, Request
from stoker.core.units import THOUSAND, format_amount

GPUS = Request(gpus=GpuAsk(0))
"""The shape of requests for GPUs and nothing else."""
MOST_CHOICES = 1000
MOST_OVERLAID = 256
"""If a ledger says of more machines than these that they stand otherwise, all are looked at."""
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
    each = request if count == 1 else replace(request, machines=1)
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


def gpus_needed(request: Request) -> int:
    """How much must be left of a machine's GPUs at least for (a part of) this request."""
    ask = request.gpus
    if ask is None or ask.beside or ask.share is not None or request.exclusive:
        return 0
    return ask.amount


def gpus_left(cluster: Cluster, name: str) -> int:
    """How much is left of all GPUs of a machine together."""
    node = cluster.node(name)
    left = 0
    for card in node.types.get(GPU, ()) if node is not None else ():
        left += card.free - card.others  # not by its property: asked very often
    return left


def machines_for(cluster: Cluster, request: Request) -> int:
    """On how many machines a part of this request fits now; no more than it asks for."""
    each = replace(request, machines=1)
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
    others go where the least is going on.
    """
    gpus = 0
    if request.gpus is not None and request.gpus.amount:
        gpus = sum(
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
    each = replace(request, machines=1)
    chosen: list[Node] = []
    for _, _, alike in sorted(_fitting(cluster, each), key=lambda found: found[:2]):
        chosen += islice(alike, request.machines - len(chosen))
        if len(chosen) == request.machines:
            break
    else:
        return None
    parts = [Placement(node.name, fit(node, each) or ()) for node in chosen]
    return replace(parts[0], more=tuple(parts[1:]))


def fit(node: Node, request: Request, gap: int = 0) -> tuple[Take, ...] | None:
    """What the request would take of this node now, or None when it does not fit.

    Its part of a GPU, if it can be had there, from one of which `gap` is left.
    """
    if node.closed is not None:
        return None
    if request.nodes and node.name not in request.nodes:
        return None
    if node.name in request.not_nodes:
        return None
    if request.exclusive:
        return _everything(node, request)
    takes: list[Take] = []
    ask = request.gpus
    if ask is not None and ask.amount:
        chosen = choose_gpus(node, ask, gap)
        if chosen is None:
            return None
        takes = chosen
    for type, amount in wants(request):
        found = _choose(offered(node, request, type), type, amount)
        if found is None:
            return None
        takes += found
    return tuple(takes)


def offered(node: Node, request: Request, type: str) -> list[Device]:
    """The devices of a type that this request may use, free or not."""
    devices, names = node.types.get(type, []), request.will_do(type)
    if names is None:
        return devices
    found = node.choices.get((type, names))
    if found is None:
        among = set(names)
        found = _kept(node, (type, names), [each for each in devices if each.name in among])
    return found


def room(node: Node, shape: Request) -> tuple[int, ...] | None:
    """The most that a request of this shape could ask for now, in the order of `amounts`.

    One that asks for no more in any of them fits, and any other does not.
    """
    found = node.rooms.get(shape, ())
    if found == ():
        if len(node.rooms) > MOST_CHOICES:
            node.rooms.clear()
        found = node.rooms[shape] = _room(node, shape)
    return found


def _room(node: Node, shape: Request) -> tuple[int, ...] | None:
    if (shape.nodes and node.name not in shape.nodes) or node.name in shape.not_nodes:
        return None
    if node.closed is not None:
        return None
    gpus = () if shape.gpus is None else (_most_gpus(_able(node, shape.gpus), shape.gpus),)
    return (*gpus, *(most(offered(node, shape, type)) for type, _ in wants(shape)))


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
    In `never` are amounts that are not there, and what is found of such is entered.
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

    def enough(asked: Amounts) -> bool:
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


def amounts(request: Request) -> tuple[int, ...]:
    """How much is asked for, of each kind that is asked for."""
    gpus = (request.gpu_amount,) if request.gpu_amount else ()
    return (*gpus, *(amount for _, amount in wants(request)))


def shape_of(request: Request) -> Request:
    """A request but for its amounts: what is equal for all who differ in nothing else."""
    ask = request.gpus
    return replace(
        request,
        gpus=replace(ask, amount=0) if ask is not None and ask.amount else None,
        cpus=min(request.cpus, 1),
        memory=min(request.memory, 1),
        named=tuple((name, 1) for name, amount in request.named if amount),
    )


def wants(request: Request) -> list[tuple[str, int]]:
    """The asked amounts other than GPUs."""
    asked = [(CPU, request.cpus), (MEMORY, request.memory), *request.named]
    return [(type, amount) for type, amount in asked if amount]


def usable(device: Device, ask: GpuAsk) -> bool:
    """Whether this GPU of the right kind may serve this request now."""
    return (
        not device.gone
        and device.drained is None
        and (device.stranger is None or ask.despite_strangers)
        and (ask.memory is None or device.memory_free - device.stranger_memory >= ask.memory)
    )


def suits(device: Device, ask: GpuAsk) -> bool:
    """Whether this GPU is of the kind that was asked for, free or not."""
    facts = device.facts
    if not made_for(facts, ask):
        return False
    if ask.memory is not None and (facts.memory or 0) < ask.memory:
        return False
    if ask.only and not any(map(device.answers_to, ask.only)):
        return False
    if ask.within and not any(map(device.answers_to, ask.within)):
        return False
    return not (ask.avoid and any(map(device.answers_to, ask.avoid)))


def choose_gpus(node: Node, ask: GpuAsk, gap: int = 0) -> list[Take] | None:
    """GPUs for an ask: whole ones in order, a fraction where it wastes the least."""
    able = _able(node, ask)
    if ask.share is not None:
        return _a_share_of_each(able, ask, ask.share)
    if ask.beside:
        return _beside_others(able, ask)
    return _choose(able, GPU, ask.amount, ask.memory or 0, bool(ask.prefer or ask.only), gap)


def _able(node: Node, ask: GpuAsk) -> list[Device]:
    """The GPUs that may serve now, in the order in which they are wanted."""
    suiting = node.choices.get(ask)
    if suiting is None:
        suiting = [device for device in node.types.get(GPU, ()) if suits(device, ask)]
        first = ask.prefer or ask.only or ask.within
        if first:
            suiting.sort(key=lambda device: _position(device, first))
        _kept(node, ask, suiting)
    return [device for device in suiting if usable(device, ask)]


def _kept(node: Node, key: object, devices: list[Device]) -> list[Device]:
    """Keep a choice that is made again and again."""
    if len(node.choices) > MOST_CHOICES:
        node.choices.clear()
    node.choices[key] = devices
    return devices


def _a_share_of_each(devices: list[Device], ask: GpuAsk, share: int) -> list[Take] | None:
    fitting = [device for device in devices if device.free >= share]
    if len(fitting) < len(ask.only):
        return None
    return [Take(GPU, device.name, share, ask.memory or 0) for device in fitting]


def _beside_others(devices: list[Device], ask: GpuAsk) -> list[Take] | None:
    """GPUs on which all say how much memory they need: idle ones, then the least crowded."""
    count = ask.amount // THOUSAND
    open_ = [
        device
        for device in devices
        if _open_to_sharing(device) and not (ask.idle and device.slivers)
    ]
    if len(open_) < count:
        return None
    if not (ask.prefer or ask.only):
        open_.sort(key=lambda device: (device.slivers, device.memory_free))
    return [Take(GPU, device.name, SLIVER, ask.memory or 0) for device in open_[:count]]


def _open_to_sharing(device: Device) -> bool:
    return device.left == THOUSAND - device.slivers * SLIVER


def _most_gpus(devices: list[Device], ask: GpuAsk) -> int:
    if ask.beside:
        return THOUSAND * sum(map(_open_to_sharing, devices))
    return most(devices)


def _position(device: Device, words: tuple[str, ...]) -> int:
    for position, word in enumerate(words):
        if device.answers_to(word):
            return position
    return len(words)


def _choose(
    devices: list[Device],
    type: str,
    amount: int,
    memory: int = 0,
    keep_order: bool = False,
    gap: int = 0,
) -> list[Take] | None:
    """Take an amount from devices: split over unit devices, never over larger ones."""
    open_ = [device for device in devices if device.drained is None and not device.gone]
    if any(device.facts.capacity != THOUSAND for device in open_):
        fitting = [device for device in open_ if device.left >= amount]
        if not fitting:
            return None
        best = min(fitting, key=lambda device: device.left)
        return [Take(type, best.name, amount, memory)]
    whole, part = divmod(amount, THOUSAND)
    chosen = [device for device in open_ if device.left == THOUSAND][:whole]
    if len(chosen) < whole:
        return None
    takes = [Take(type, device.name, THOUSAND, memory) for device in chosen]
    if part:
        sharing = [
            each
            for each in open_
            if each.left >= part and each not in chosen and not (type == GPU and each.slivers)
        ]
        if not sharing:
            return None
        # The fullest device that still has room, so that whole ones stay whole, unless a wish says
        # more.
        wished = [each for each in sharing if each.left == gap]
        best = sharing[0] if keep_order else min(wished or sharing, key=lambda each: each.left)
        takes.append(Take(type, best.name, part, memory))
    return takes


def _everything(node: Node, request: Request) -> tuple[Take, ...] | None:
    """The whole machine, when nothing of it is in use."""
    for device in node.devices():
        if device.free != device.facts.capacity or device.gone or device.drained is not None:
            return None
        stranger_matters = not (request.gpus and request.gpus.despite_strangers)
        if device.stranger is not None and stranger_matters:
            return None
    if could_ever(node, replace(request, exclusive=False)) is not None:
        return None
    return tuple(
        Take(device.type, device.name, device.free, device.facts.memory or 0)
        for device in node.devices()
        if device.free
    )


def could_ever(node: Node, request: Request) -> str | None:
    """None when the node could serve this with nothing else on it, else what it lacks.

    Of a request for several machines, whether it could be one of them.
    """
    if request.nodes and node.name not in request.nodes:
        return "is not one of the machines asked for"
    if node.name in request.not_nodes:
        return "is excluded"
    if request.gpus is not None and request.gpus.amount:
        lack = _gpu_lack(node, request.gpus)
        if lack:
            return lack
    for type, amount in wants(request):
        devices = [device for device in offered(node, request, type) if not device.gone]
        if not devices:
            return f"has no resource called '{type}'"
        capacities = [device.facts.capacity for device in devices]
        unit = all(capacity == THOUSAND for capacity in capacities)
        most = sum(capacities) if unit else max(capacities)
        if amount > most:
            shown = (lambda n: f"{n} MiB") if type == MEMORY else format_amount
            split = "" if unit or len(devices) == 1 else " on one device"
            return f"has {shown(most)} {type}{split} in all, not {shown(amount)}"
    return None


def _gpu_lack(node: Node, ask: GpuAsk) -> str | None:
    devices = [device for device in node.types.get(GPU, ()) if not device.gone]
    if not devices:
        return "has no GPU"
    fitting = [device for device in devices if suits(device, ask)]
    needed = len(ask.only) if ask.share is not None else -(-ask.amount // THOUSAND)
    if all(device.facts.capacity == THOUSAND for device in fitting):
        if len(fitting) >= needed:
            return None
    elif any(device.facts.capacity >= ask.amount for device in fitting):
        return None
    traits = []
    if ask.kinds:
        traits.append(f"of model {' or '.join(ask.kinds)}")
    if ask.min_vram:
        traits.append(f"with {ask.min_vram} MiB")
    if ask.memory is not None:
        if all(device.facts.memory is None for device in devices):
            return "has GPUs that were only declared, so the size of their memory is not known"
        traits.append(f"with {ask.memory} MiB")
    if ask.only or ask.avoid or ask.within:
        traits.append("among those named")
    kind = " " + " and ".join(traits) if traits else ""
    return (
        f"has {len(fitting)} GPU{'s' * (len(fitting) != 1)}{kind}, not {format_amount(ask.amount)}"
    )
