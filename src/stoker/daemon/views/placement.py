"""What jobs hold or held, part by part, and where the output of each part is."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from stoker.core.cluster import Placement
from stoker.core.job import Job, Spec
from stoker.core.launch import log_paths
from stoker.core.request import GPU
from stoker.core.state import State


def machines(job: Job) -> list[str]:
    """The machines of its parts, by rank: where it runs, else where it ran last."""
    if job.placement is not None:
        return [part.node for part in job.placement.parts]
    return [job.last_node, *job.last_others] if job.last_node is not None else []


def parts_view(job: Job, spec: Spec, state: State | None, logs: str) -> list[dict[str, Any]]:
    """Every part of a job on several machines; of any other job, none."""
    names = machines(job)
    if len(names) < 2:
        return []
    held = job.placement.parts if job.placement is not None else ()
    shown = []
    for rank, name in enumerate(names):
        out, err = logs_of(job, spec, name, logs, rank)
        devices, uuids = ({} if rank else devices_of(job)), []
        if held:
            devices, uuids = devices_in(held[rank]), gpu_uuids(held[rank], state)
        shown.append(
            {"node": name, "devices": devices, "gpu_uuids": uuids, "log": out, "error_log": err}
        )
    return shown


def logs_of(job: Job, spec: Spec, node: str, logs: str, rank: int = 0) -> tuple[str, str | None]:
    """Where its output is; between two attempts, the last one's."""
    if job.started_at is None and job.past:
        job = replace(job, attempt=job.past[-1].attempt)
    return log_paths(job, spec, node, logs, rank)


def devices_of(job: Job) -> dict[str, list[str]]:
    """What it has, or had, of the first machine."""
    if job.devices:
        return {GPU: list(job.devices)}
    if job.placement is None:
        return {GPU: list(job.last_devices)} if job.last_devices else {}
    return devices_in(job.placement)


def devices_in(part: Placement) -> dict[str, list[str]]:
    """The devices of one part, by type."""
    found: dict[str, list[str]] = {}
    for take in part.takes:
        if not take.of_pool:
            found.setdefault(take.type, []).append(take.device)
    return found


def gpu_uuids(part: Placement, state: State | None) -> list[str]:
    """The real GPUs of one part, as far as they are known."""
    node = state.cluster.nodes.get(part.node) if state is not None else None
    if node is None:
        return []
    devices = [node.by_name.get((GPU, name)) for name in part.names(GPU)]
    return [device.facts.uuid for device in devices if device and device.facts.uuid]
