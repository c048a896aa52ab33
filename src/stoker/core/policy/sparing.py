"""Where somebody starts later: rather on what is in use now, so that others may use what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from stoker.core.cluster import Cluster, Node, Placement, Take
from stoker.core.policy.ground import by_name
from stoker.core.policy.place import gpus_left
from stoker.core.request import GPU, Request


def sparing(request: Request, found: Placement, later: Cluster, now: Cluster) -> Placement:
    """What was found for a request, or the same on machines and GPUs that are as good later."""
    if by_name(request):
        return found
    parts = _machines(found.parts, later, now) if found.more else found.parts
    first, *others = (
        Placement(part.node, _gpus(part.takes, later.node(part.node), now.node(part.node)))
        for part in parts
    )
    return Placement(first.node, first.takes, tuple(others))


def _machines(parts: tuple[Placement, ...], later: Cluster, now: Cluster) -> tuple[Placement, ...]:
    taken = [part.node for part in parts]
    idle = {name: gpus_left(now, name) for name in (*later.overlaid(), *taken)}

    def alike(one: str, other: str) -> bool:
        this, that = later.node(one), later.node(other)
        return this is not None and that is not None and this.layout == that.layout

    instead = _busier(taken, idle, alike)
    return tuple(Placement(instead.get(part.node, part.node), part.takes) for part in parts)


def _gpus(takes: tuple[Take, ...], later: Node | None, now: Node | None) -> tuple[Take, ...]:
    taken = [take.device for take in takes if take.type == GPU]
    if later is None or now is None or not taken:
        return takes
    idle = {device.name: device.free for device in now.types[GPU]}
    standing = {device.name: device.standing for device in later.types[GPU]}
    instead = _busier(taken, idle, lambda one, other: standing[one] == standing[other])
    return tuple(
        replace(take, device=instead.get(take.device, take.device)) if take.type == GPU else take
        for take in takes
    )


def _busier(
    taken: Iterable[str], idle: dict[str, int], alike: Callable[[str, str], bool]
) -> dict[str, str]:
    """For each of these another one that is as good, and of which less is idle, if there is."""
    taken = sorted(set(taken), key=lambda name: (-idle[name], name))
    others = sorted(idle.keys() - set(taken), key=lambda name: (idle[name], name))
    found: dict[str, str] = {}
    for name in taken:
        for other in others:
            if idle[other] >= idle[name]:
                break
            if alike(other, name):
                found[name] = other
                others.remove(other)
                break
    return found
