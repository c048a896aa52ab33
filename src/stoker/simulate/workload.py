"""Workload of a simulation: jobs with their actual behaviour, and the nodes they run on.

The planner sees only what a real job reports: its request at submission, its start, its finished
epochs and its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from stoker.core.model.resources import NodeFacts


class Speed(Protocol):
    """Speed of a job on the hardware it runs on."""

    def rate(self, done: float, gpus: int, machines: int, model: str) -> float:
        """Return work per second after a share `done` of the work; 1.0 is the recorded speed."""

    def interference(self, other: Speed, model: str) -> float:
        """Return the factor of the rate while another job shares the GPUs; 0.0: both do not fit."""


class TraceJob(Struct, kw_only=True, gc=False):
    """One job of a workload."""

    submit_time: float
    """Seconds after the start of the workload."""
    duration: float
    """Seconds of work with the requested resources, alone and without interruption."""
    gpus: float = 1.0
    """GPUs on all nodes; more than one node has: several nodes. A fraction: part of one GPU."""
    user: str = ""
    name: str = ""
    """Name that similar jobs share, if known."""
    queue: str = ""
    priority: int = 0
    cpus: float = 0.0
    ram: int = 0
    """MiB."""
    gpu_memory: int | None = None
    """MiB on each GPU; if set, the job may share its GPUs."""
    time_limit: int | None = None
    """Seconds."""
    expected: int | None = None
    """Seconds that its user expects (`--expect`), known before it reports epochs."""
    gpu_models: tuple[str, ...] = ()
    """GPU models that the job can use; empty: all."""
    max_gpus: int | None = None
    """Set for an elastic job; `gpus` is then its minimum."""
    speed: Speed | None = None
    """None: the same speed everywhere, always with the requested number of GPUs."""
    steps: float | None = None
    """All work in steps that are comparable between jobs of one name; None: unknown."""
    non_preemptible: bool = False
    """The job saves no checkpoints, so it is never preempted."""
    epochs: int | None = None
    """Equal parts of the work, each with its own speed; None: unknown."""
    stops_immediately: bool = False
    """The job saves and stops on request, not at its next checkpoint."""
    first_start_costs: bool = False
    """`duration` excludes start-up, so the first start costs as much as a restart."""


class Workload(Struct, kw_only=True):
    """Jobs, and the nodes that they were recorded on, if known."""

    title: str
    jobs: list[TraceJob]
    """By submit time."""
    nodes: Sequence[NodeFacts] = ()
    profiled: bool = False
    """Jobs of one name are similar, and their speed was measured beforehand: alone on each GPU
    model, and while sharing a GPU. A planner that uses profiles gets them before the first job."""
    notes: list[str] = []
    """Remarks for the reader: skipped jobs and assumptions."""
