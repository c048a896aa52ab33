"""Which devices of a node a request may use."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.cluster.cluster import ALL_DEVICES
from stoker.core.cluster.node import Device, Node
from stoker.core.model.resources import GPU, GpuRequest, ResourceRequest
from stoker.core.placement.request_shape import matches_model


def allowed_devices(node: Node, request: ResourceRequest, type: str) -> list[Device]:
    """Return the devices of a type that this request may use, free or not."""
    devices, names = node.types.get(type, []), request.allowed_devices(type)
    if names is None:
        return devices
    allowed = set(names)
    return [device for device in devices if device.name in allowed]


def is_available(device: Device, gpus: GpuRequest) -> bool:
    """Whether a compatible GPU may serve this request now."""
    return (
        not device.removed
        and device.drained is None
        and (device.foreign_user is None or gpus.ignore_foreign_use)
        and (gpus.memory is None or device.memory_free - device.foreign_memory >= gpus.memory)
    )


def is_compatible(device: Device, gpus: GpuRequest) -> bool:
    """Whether a GPU has the requested properties and name, free or not."""
    facts = device.facts
    if not matches_model(facts, gpus):
        return False
    if gpus.memory is not None and (facts.memory or 0) < gpus.memory:
        return False
    if gpus.required and not any(map(device.answers_to, gpus.required)):
        return False
    if gpus.allowed and not any(map(device.answers_to, gpus.allowed)):
        return False
    return not (gpus.avoid and any(map(device.answers_to, gpus.avoid)))


def for_node(gpus: GpuRequest, node: str) -> GpuRequest:
    """Return the request with device names local to a node: `node/0` and `node/gpu:0` are `0`."""
    if not any("/" in word or ":" in word or word == ALL_DEVICES for word in gpus.allowed):
        return gpus
    words = [word.removeprefix(f"{node}/").removeprefix(f"{GPU}:") for word in gpus.allowed]
    return replace(gpus, allowed=() if ALL_DEVICES in words else tuple(words))
