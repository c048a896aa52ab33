"""Probed hardware -> devices of the core."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core.model.resources import CPU, MEMORY, DeviceFacts
from stoker.core.model.units import THOUSAND
from stoker.probes.declared_resources import POOL
from stoker.probes.gpu_reading import GpuFacts


def pools(cores: int, memory: int) -> dict[str, tuple[DeviceFacts, ...]]:
    """Return the cores and the memory (MiB) of a node, by resource type."""
    return {
        CPU: (DeviceFacts(POOL, cores * THOUSAND),),
        MEMORY: (DeviceFacts(POOL, memory),),
    }


def gpus(readings: Iterable[GpuFacts]) -> list[DeviceFacts]:
    """Return the GPUs that a driver reported, named as jobs see them."""
    readings = tuple(readings)
    vendors = {gpu.vendor for gpu in readings}
    devices = []
    for gpu in readings:
        name = gpu.uuid if gpu.mig else str(gpu.index)
        if gpu.vendor == "amd" and len(vendors) > 1:
            name = f"amd{gpu.index}"  # both vendors count from 0
        index = None if gpu.mig else gpu.index
        minor = gpu.index if gpu.minor is None else gpu.minor
        devices.append(
            DeviceFacts(
                name=name, index=index, uuid=gpu.uuid, model=gpu.model, memory=gpu.memory,
                vendor=gpu.vendor, mig=gpu.mig,
                minor=minor if gpu.vendor == "nvidia" and minor != index else None,
            )
        )  # fmt: skip
    return devices
