"""Which devices of a node a request may use."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.cluster.node import ALL_DEVICES, Device, Node
from stoker.core.model.resources import GPU, GpuRequest, ResourceRequest
from stoker.core.placement.request_shape import matches_model


def allowed_devices(node: Node, request: ResourceRequest, type: str) -> list[Device]:
    """Return the devices of a type that this request may use, free or not."""
    devices, names = node.types.get(type, []), request.allowed_devices(type)
    if names is None:
        return devices
    allowed = set(names)
    return [device for device in devices if device.name in allowed]


def usable_gpus(node: Node, gpus: GpuRequest) -> list[Device]:
    """Return the compatible GPUs of a node that may serve this request now."""
    devices = [
        device
        for device in node.types.get(GPU, ())
        if not device.removed
        and device.drained is None
        and (device.foreign_user is None or gpus.ignore_foreign_use)
    ]
    if gpus.reserved:
        devices = [each for each in devices if f"{node.name}/{each.name}" not in gpus.reserved]
    if (memory := gpus.memory) is not None:
        devices = [each for each in devices if each.memory_free - each.foreign_memory >= memory]
    names = gpus.required or gpus.allowed or gpus.avoid
    if names or gpus.allowed_models or gpus.min_vram or gpus.memory is not None:
        return [device for device in devices if is_compatible(device, gpus)]
    return devices


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
