"""What a request takes of one machine: the devices that suit it, or none."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.cluster import SLIVER, Device, Node, Take
from stoker.core.policy.ground import made_for, most
from stoker.core.request import CPU, GPU, MEMORY, GpuAsk, Request
from stoker.core.units import THOUSAND, format_amount

GPUS = Request(gpus=GpuAsk(0))
"""The shape of requests for GPUs and nothing else."""
ALL = "all"
"""The word for every device of a node."""
MOST_CHOICES = 1000
"""So many choices of devices, and kinds of requests, are remembered for one machine."""


def gpus_needed(request: Request) -> int:
    """How much must be left of a machine's GPUs at least for (a part of) this request."""
    ask = request.gpus
    if ask is None or ask.beside or ask.share is not None or request.exclusive:
        return 0
    return ask.amount


def fit(node: Node, request: Request, gap: int = 0) -> tuple[Take, ...] | None:
    """What the request would take of this node now, or None when it does not fit.

    Its part of a GPU, if it can be had there, from one of which `gap` is left.
    """
    if node.closed is not None or (node.delegated and _undelegable(request) is not None):
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
    if node.closed is not None or (node.delegated and _undelegable(shape) is not None):
        return None
    gpus = () if shape.gpus is None else (_most_gpus(_able(node, shape.gpus), shape.gpus),)
    return (*gpus, *(most(offered(node, shape, type)) for type, _ in wants(shape)))


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


def on_node(ask: GpuAsk, node: str) -> GpuAsk:
    """The ask in the words of one node: `node/0` and `node/gpu:0` are its `0`."""
    if not any("/" in word or ":" in word or word == ALL for word in ask.within):
        return ask
    words = [word.removeprefix(f"{node}/").removeprefix(f"{GPU}:") for word in ask.within]
    return replace(ask, within=() if ALL in words else tuple(words))


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
        here = on_node(ask, node.name)
        suiting = [device for device in node.types.get(GPU, ()) if suits(device, here)]
        first = here.prefer or here.only or here.within
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
    if any(each.facts.capacity != THOUSAND or each.facts.is_pool for each in open_):
        fitting = [device for device in open_ if device.left >= amount]
        if not fitting:
            return None
        best = min(fitting, key=lambda device: device.left)
        return [Take(type, best.name, amount, 0 if best.facts.is_pool else memory)]
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
    open_ = [device for device in node.devices() if not device.gone]
    if any(device.free != device.facts.capacity for device in node.devices()):
        return None
    for device in open_:
        if device.drained is not None:
            return None
        stranger_matters = not (request.gpus and request.gpus.despite_strangers)
        if device.stranger is not None and stranger_matters:
            return None
    if could_ever(node, replace(request, exclusive=False)) is not None:
        return None
    return tuple(
        Take(device.type, device.name, device.free, device.facts.memory or 0)
        for device in open_
        if device.free
    )


def could_ever(node: Node, request: Request) -> str | None:
    """None when the node could serve this with nothing else on it, else what it lacks.

    Of a request for several machines, whether it could be one of them.
    """
    if request.nodes and node.name not in request.nodes:
        return "is not one of the requested nodes"
    if node.name in request.not_nodes:
        return "is excluded"
    if node.delegated and (lack := _undelegable(request)) is not None:
        return lack
    if request.gpus is not None and request.gpus.amount:
        lack = _gpu_lack(node, request.gpus)
        if lack:
            return lack
    for type, amount in wants(request):
        devices = [device for device in offered(node, request, type) if not device.gone]
        if not devices:
            return f"has no resource '{type}'"
        capacities = [device.facts.capacity for device in devices]
        unit = all(capacity == THOUSAND for capacity in capacities)
        most = sum(capacities) if unit else max(capacities)
        if amount > most:
            shown = (lambda n: f"{n} MiB") if type == MEMORY else format_amount
            split = "" if unit or len(devices) == 1 else " on one device"
            return f"has {shown(most)} {type}{split} in all, not {shown(amount)}"
    return None


def _undelegable(request: Request) -> str | None:
    """Return what another cluster's scheduler cannot be asked for, or None."""
    ask = request.gpus
    if request.machines > 1 or request.in_gang:
        return "takes only jobs that run on one node"
    if request.exclusive:
        return "gives no job a node of its own"
    if ask is not None and (ask.amount % THOUSAND or ask.beside or ask.share is not None):
        return "gives whole GPUs only"
    return None


def _gpu_lack(node: Node, ask: GpuAsk) -> str | None:
    devices = [device for device in node.types.get(GPU, ()) if not device.gone]
    if not devices:
        return "has no GPU"
    here = on_node(ask, node.name)
    fitting = [device for device in devices if suits(device, here)]
    needed = len(ask.only) if ask.share is not None else -(-ask.amount // THOUSAND)
    if all(each.facts.capacity == THOUSAND and not each.facts.is_pool for each in fitting):
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
            return "has declared GPUs whose memory size is not known"
        traits.append(f"with {ask.memory} MiB")
    if ask.only or ask.avoid or ask.within:
        traits.append("among those named")
    kind = " " + " and ".join(traits) if traits else ""
    pools = [each.facts.capacity // THOUSAND for each in fitting if each.facts.is_pool]
    count = max(pools, default=len(fitting))
    return f"has {count} GPU{'s' * (count != 1)}{kind}, not {format_amount(ask.amount)}"
