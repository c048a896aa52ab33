"""What there is besides jobs and specs: machines, queues, policies, and what was learned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from stoker.core.cluster import DeviceFacts, NodeFacts
from stoker.core.estimate import Families
from stoker.core.events import NodeAdded, QueueDefined
from stoker.core.request import GPU
from stoker.core.units import THOUSAND
from stoker.core.usage import Had

Among = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of devices by type; `node/name` is that device of that node, `name` one of any node."""


class Away(Struct, frozen=True, omit_defaults=True):
    """Since when a machine does not answer, and why."""

    since: float
    boot: float | None
    """By the boot clock; None while nobody has tried to reach it."""
    why: str


class Rest(Struct, omit_defaults=True):
    """What there is besides jobs and specs: small, and saved whole when it changed."""

    next_id: int = 1
    last_first: int = 0
    """The newest submission: what people mean by `last`."""
    last_count: int = 0
    boot: str = ""
    term: int = 0
    nodes: dict[str, NodeFacts] = {}
    drained: dict[str, str] = {}
    """Reasons by `node/type:device`."""
    strangers: dict[str, tuple[str, int]] = {}
    queues: dict[str, QueueDefined] = {}
    cleared: dict[str, float] = {}
    """When the history of a front door was last wiped."""
    remotes: dict[str, NodeAdded] = {}
    """Machines over SSH."""
    away: dict[str, Away] = {}
    """Those of them that do not answer."""
    closed: dict[str, str] = {}
    """Machines that answer but take nothing new, and why."""
    others: dict[str, tuple[int, int]] = {}
    """What others use of a machine's cores and memory."""
    strays: dict[str, tuple[tuple[int, int], ...]] = {}
    """Attempts that were restarted elsewhere and may still run, by machine."""
    families: Families = {}
    """What was learned about kinds of training jobs, the one heard of last at the end."""
    policies: dict[str, tuple[str, dict[str, float]]] = {}
    """What each queue goes by, and with which parameters; `*`: those for whom nothing is said."""
    policies_since: dict[str, float] = {}
    """When that was last chosen for each, or given up for what all others go by."""
    usage: dict[str, Had] = {}
    """What users have had, where that counts."""
    lacking: dict[str, dict[str, float]] = {}
    """By image: nodes on which its container could not be run, and when that was found."""
    reporting: dict[str, None] = {}
    """Queues of which some job has reported epochs."""


def among(queue: QueueDefined, nodes: Mapping[str, NodeFacts]) -> Among:
    """The devices that a queue has, by type."""
    sizes: dict[str, dict[str, int]] = {}
    for type, name, capacity in queue.resources:
        sizes.setdefault(type, {})[name] = capacity
    return tuple(
        (type, (counted_gpus(each, nodes) if type == GPU else ()) or tuple(each))
        for type, each in sizes.items()
    )


def counted_gpus(sizes: Mapping[str, int], nodes: Mapping[str, NodeFacts]) -> tuple[str, ...]:
    """The GPUs of a queue that has a number of them (`0` to `3` of capacity 1) over several nodes.

    Those of the first node come first. Empty: the names count, or no node has a GPU.
    """
    names = map(str, range(len(sizes)))
    if len(nodes) < 2 or list(sizes) != list(names) or set(sizes.values()) != {THOUSAND}:
        return ()
    found = [
        f"{facts.name}/{device.name}"
        for facts in nodes.values()
        for device in facts.types.get(GPU, ())
        if device.capacity == THOUSAND
    ]
    return tuple(found[: len(sizes)])


def brought(
    queues: Iterable[QueueDefined], facts: NodeFacts, nodes: Mapping[str, NodeFacts]
) -> dict[str, tuple[DeviceFacts, ...]]:
    """Devices of types that the node itself does not have. Equal names are one device.

    GPUs only if no node has any: a queue's jobs run where the GPUs are.
    """
    has_gpus = any(each.types.get(GPU) for each in nodes.values())
    found: dict[str, dict[str, int]] = {}
    for queue in queues:
        for type, name, capacity in queue.resources:
            if type not in facts.types and not (type == GPU and (has_gpus or "/" in name)):
                found.setdefault(type, {}).setdefault(name, capacity)
    return {
        type: tuple(DeviceFacts(name, capacity=capacity) for name, capacity in devices.items())
        for type, devices in found.items()
    }
