"""GPU readings: constant facts and current use of every GPU."""

from __future__ import annotations

from typing import Literal

import msgspec


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a GPU; constant while the driver runs."""

    index: int
    """Index in PCI order; a MIG instance has the index of its GPU."""
    uuid: str
    model: str
    memory: int | None
    """MiB."""
    vendor: Literal["nvidia", "amd"]
    mig: bool = False
    """A MIG instance: CUDA sees it by UUID only."""
    parent: str | None = None
    """UUID of the GPU of a MIG instance."""
    minor: int | None = None
    """N of the device file /dev/nvidiaN; None if the driver does not tell."""


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that the driver lists on a GPU."""

    pid: int
    memory: int | None
    """MiB."""
    graphics: bool = False
    """It uses graphics (a desktop, a browser), whether or not it computes as well."""


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """Current use of a GPU; None where the driver reports nothing."""

    uuid: str
    memory_used: int | None
    """MiB."""
    utilization: int | None
    """Percent."""
    temperature: int | None
    """Degrees Celsius."""
    power: float | None
    """Watts."""
    processes: tuple[GpuProcess, ...]
    processes_known: bool
    """False if the driver cannot list processes; then an empty list means nothing."""
    slowdown: int | None = None
    """The temperature at which it slows down."""
    is_slowed: bool | None = None
    """Whether heat slows it down now, where that temperature is not known."""
    ecc_errors: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    xid: int | None = None
    """Its last fault (Xid) since the probe began to listen."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of all GPUs of a node."""

    facts: tuple[GpuFacts, ...] = ()
    use: tuple[GpuUse, ...] = ()
    error: str | None = None
    """What went wrong, for users; what could be read is present nevertheless."""


def merge(*readings: Reading) -> Reading:
    """Merge the readings of several vendors."""
    errors = [reading.error for reading in readings if reading.error]
    return Reading(
        facts=tuple(gpu for reading in readings for gpu in reading.facts),
        use=tuple(use for reading in readings for use in reading.use),
        error="; ".join(errors) or None,
    )
