"""Named queues."""

from __future__ import annotations

from msgspec import convert
from msgspec.structs import asdict

from stoker.core.events import QueueDefined
from stoker.core.model.units import THOUSAND, format_amount
from stoker.core.state.state import State
from stoker.schema.queue import QueueDevice, QueueView


def queue_view(queue: QueueDefined, state: State) -> QueueView:
    """Return a named queue, its limits, and what is free of its devices."""
    local = f"{next(iter(state.record.nodes), '')}/"  # local devices are shown without their node
    derived = {
        "max_gpus": _amount(queue.max_gpus),
        "max_job_gpus": _amount(queue.max_job_gpus),
        "running": state.quotas.queue_running.get(queue.name, 0),
        "resources": [
            QueueDevice(
                type=type,
                device=name.removeprefix(local),
                capacity=format_amount(capacity),
                free=format_amount(max(_free(state, type, name), 0)),
            )
            for type, name, capacity in _own_devices(state, queue)
        ],
    }
    return convert(asdict(queue) | derived, QueueView)


def _own_devices(state: State, queue: QueueDefined) -> list[tuple[str, str, int]]:
    """Return the devices of a queue on the present nodes: type, name and capacity."""
    sizes = {(type, name): capacity for type, name, capacity in queue.resources}
    return [
        (type, name, sizes.get((type, name), THOUSAND))
        for type, names in state.queue_devices[queue.name]
        for name in names
    ]


def _amount(amount: int | None) -> str | None:
    return format_amount(amount) if amount is not None else None


def _free(state: State, type: str, name: str) -> int:
    """Return what is free of a device; without a node in the name, on the node that has most."""
    devices = [
        node.by_name.get((type, name.removeprefix(f"{node.name}/")))
        for node in state.cluster.nodes.values()
    ]
    return max((device.unallocated for device in devices if device is not None), default=0)
