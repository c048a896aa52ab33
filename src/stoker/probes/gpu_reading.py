"""What a look at the GPUs returns: what they are, and what they do right now."""

from __future__ import annotations

from typing import Literal

import msgspec


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU is; stays the same as long as the driver runs."""

    index: int
    """Place in PCI order; an instance of a MIG GPU carries the index of that GPU."""
    uuid: str
    model: str
    memory: int | None
    """MiB."""
    vendor: Literal["nvidia", "amd"]
    pci: str | None
    mig: bool = False
    """A MIG instance: CUDA sees it by UUID only."""
    parent: str | None = None
    """UUID of the GPU that a MIG instance is cut from."""


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that the driver sees on a GPU."""

    pid: int
    memory: int | None
    """MiB."""
    graphics: bool = False
    """It draws (a desktop, a browser), whether or not it computes as well."""


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU does right now; None where the driver does not say."""

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
    """False: the driver cannot list processes, so an empty list means nothing."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One look at all GPUs of the machine."""

    facts: tuple[GpuFacts, ...] = ()
    use: tuple[GpuUse, ...] = ()
    error: str | None = None
    """What went wrong, for a person; whatever could be read is there all the same."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Reading)


def encode(reading: Reading) -> bytes:
    """Write a reading as one line of JSON, without the line end."""
    return _encoder.encode(reading)


def decode(line: bytes) -> Reading:
    """Read what `encode` wrote; raises msgspec.DecodeError for anything else."""
    return _decoder.decode(line)


def merge(*readings: Reading) -> Reading:
    """Put the readings of several vendors together."""
    errors = [reading.error for reading in readings if reading.error]
    return Reading(
        facts=tuple(facts for reading in readings for facts in reading.facts),
        use=tuple(use for reading in readings for use in reading.use),
        error="; ".join(errors) or None,
    )
