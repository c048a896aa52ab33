"""GPUs, and the resources of nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.core.cluster.node import Device, Node
from stoker.core.measurement.foreign_use import UNAVAILABLE
from stoker.core.model.resources import GPU, SHARED_SLOT
from stoker.core.model.units import format_amount
from stoker.core.state.state import State
from stoker.schema.gpu import GpuJob, GpuView
from stoker.schema.node import ResourceView

LIVE_READINGS = ("utilization", "memory_used", "temperature", "power")


def gpu_view(
    node: Node, device: Device, state: State, boot: float, reading: dict[str, Any]
) -> GpuView:
    """Return a GPU: what it is, its last reading, and the jobs on it."""
    facts = device.facts
    jobs = _jobs_on(node, device, state, boot)
    return GpuView(
        node=node.name,
        id=device.name,
        index=facts.index,
        uuid=facts.uuid,
        model=facts.model,
        memory=facts.memory,
        state=device_state(node, device, bool(jobs)),
        drained=device.drained,
        free=format_amount(device.allocatable if node.unavailable_reason is None else 0),
        held=format_amount(_held(device)),
        memory_left=device.memory_free - device.foreign_memory if facts.memory else None,
        gpu_jobs=jobs,
        foreign_process=device.foreign_user,
        **reading,
    )


def gpu_rows(state: State, readings: Callable[[str], dict[str, dict[str, Any]]]) -> list[list[Any]]:
    """Return the use of every GPU in short; `readings` returns those of a node, by UUID."""
    holders: dict[tuple[str, str], list[list[Any]]] = {}
    for job in state.running.values():
        for part in job.parts:
            for take in part.allocations:
                if take.type == GPU:
                    share = "1" if take.amount == SHARED_SLOT else format_amount(take.amount)
                    row = [job.id, share, take.memory or None]
                    holders.setdefault((part.node, take.device), []).append(row)
    rows = []
    for node in state.cluster.nodes.values():
        if node.on_demand or node.delegated:
            continue
        use = readings(node.name)
        for device in node.types.get(GPU, ()):
            reading = use.get(device.facts.uuid or "", {})
            jobs = holders.get((node.name, device.name), [])
            rows.append(
                [f"{node.name}/{device.name}", *map(reading.get, LIVE_READINGS),
                 device_state(node, device, bool(jobs)), jobs]
            )  # fmt: skip
    return rows


def _jobs_on(node: Node, device: Device, state: State, boot: float) -> list[GpuJob]:
    jobs = []
    for job in state.running.values():
        part = job.placement.on(node.name) if job.placement is not None else None
        if part is None:
            continue
        takes = [
            take for take in part.allocations if take.type == GPU and take.device == device.name
        ]
        share = sum(take.amount for take in takes)
        if share:
            started = job.started_boot
            jobs.append(
                GpuJob(
                    id=job.id,
                    label=job.label,
                    name=job.name,
                    user=job.user,
                    share="1" if share == SHARED_SLOT else format_amount(share),
                    memory=max(take.memory for take in takes) or None,
                    elapsed=round(boot - started, 3) if started is not None else None,
                    state=job.state.value,
                )
            )
    return jobs


def device_state(node: Node, device: Device, has_jobs: bool) -> str:
    """Return what a GPU can be used for now, in one word."""
    if node.unavailable_reason is not None:
        return "unreachable"
    if device.drained is not None or device.removed:
        return "drained"
    if has_jobs:
        return "busy" if device.unallocated == 0 else "shared"
    if device.foreign_user is None:
        return "free"
    return "unavailable" if device.foreign_user.startswith(UNAVAILABLE) else "foreign"


def resources_view(node: Node) -> dict[str, ResourceView]:
    """Return the resources of a node by type, and what is free of them."""
    resources = {}
    for type, devices in node.types.items():
        text = str if type == "mem" else format_amount
        resources[type] = ResourceView(
            total=text(sum(device.facts.capacity for device in devices)),
            free=text(sum(device.allocatable for device in devices)),
            held=text(max(sum(map(_held, devices)), 0)),
            devices=[device.name for device in devices],
        )
    return resources


def _held(device: Device) -> int:
    """Return the amount that jobs hold; all of a GPU that is shared by memory."""
    return device.facts.capacity - (0 if device.sharers else device.unallocated)
