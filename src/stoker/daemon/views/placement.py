"""Nodes, devices, GPU UUIDs and log paths of a job, part by part."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.launch.launch import log_paths
from stoker.core.model.job import Job
from stoker.core.model.resources import GPU, Placement
from stoker.core.model.spec import Spec
from stoker.core.state.state import State
from stoker.schema.job import PartView


def node_names(job: Job) -> list[str]:
    """Return the nodes of a job's parts, by rank: where it runs, else where it ran last."""
    if job.placement is not None:
        return [part.node for part in job.placement.parts]
    return [job.last_node, *job.last_others] if job.last_node is not None else []


def parts_view(job: Job, spec: Spec, state: State | None, logs: str) -> list[PartView]:
    """Return every part of a multi-node job; for any other job an empty list."""
    names = node_names(job)
    if len(names) < 2:
        return []
    placements = job.placement.parts if job.placement is not None else ()
    parts = []
    for rank, name in enumerate(names):
        out, err = last_logs(job, spec, name, logs, rank)
        devices, uuids = ({} if rank else devices_of(job)), []
        if placements:
            devices = devices_in(placements[rank])
            uuids = gpu_uuids(placements[rank], state)
        parts.append(PartView(node=name, devices=devices, gpu_uuids=uuids, log=out, error_log=err))
    return parts


def open_logs(job: Job, spec: Spec, node: str, logs: str, rank: int = 0) -> list[str]:
    """Return the output files of the last attempt that the daemon may open itself.

    In system mode these are none: a user may have put a link or a pipe there.
    """
    if spec.uid is not None:
        return []
    return [path for path in last_logs(job, spec, node, logs, rank) if path]


def last_logs(job: Job, spec: Spec, node: str, logs: str, rank: int = 0) -> tuple[str, str | None]:
    """Return the log paths of a part; between two attempts, those of the ended one."""
    if job.started_at is None and job.past:
        job = replace(job, attempt=job.past[-1].attempt)
    return log_paths(job, spec, node, logs, rank)


def devices_of(job: Job) -> dict[str, list[str]]:
    """Return the devices that a job has or had on its first node, by type.

    GPUs that the scheduler of a cluster chose are known when the job runs.
    """
    devices = devices_in(job.placement) if job.placement is not None else {}
    gpus = job.devices or (job.last_devices if job.placement is None else ())
    return {**devices, GPU: list(gpus)} if gpus else devices


def devices_in(part: Placement) -> dict[str, list[str]]:
    """Return the devices of one part, by type."""
    devices: dict[str, list[str]] = {}
    for take in part.allocations:
        if take.is_pooled:
            continue
        devices.setdefault(take.type, []).append(take.device)
    return devices


def gpu_uuids(part: Placement, state: State | None) -> list[str]:
    """Return the UUIDs of the GPUs of one part, as far as they are known."""
    node = state.cluster.nodes.get(part.node) if state is not None else None
    if node is None:
        return []
    devices = [node.by_name.get((GPU, name)) for name in part.names(GPU)]
    return [device.facts.uuid for device in devices if device and device.facts.uuid]
