"""What is to be simulated: jobs as they really are, and the machines they meet.

The planner never sees any of this. It sees what a real job would tell it: what it asks for when
it is submitted, that it has begun, its epochs as they are done, and that it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from stoker.core.cluster import NodeFacts


class Speed(Protocol):
    """How fast a job is where it runs."""

    def rate(self, done: float, gpus: int, machines: int, model: str) -> float:
        """Work per second, when a share `done` of it is behind; 1.0 is as it was recorded."""

    def interference(self, other: Speed, model: str) -> float:
        """What is left of that rate when another job shares its GPUs; 0.0: they do not fit."""


class TraceJob(Struct, kw_only=True, gc=False):
    """One job of a workload."""

    submit_time: float
    """Seconds from the beginning to its submission."""
    duration: float
    """What it takes with what it asks for, alone, never stopped."""
    gpus: float = 1.0
    """In all. More than a machine has: as many machines as that takes. A fraction: of one GPU."""
    user: str = ""
    name: str = ""
    """What it has in common with its like, if that is known."""
    queue: str = ""
    priority: int = 0
    cpus: float = 0.0
    ram: int = 0
    """MiB."""
    gpu_memory: int | None = None
    """MiB of each GPU; one that says it may share its GPUs."""
    time_limit: int | None = None
    """Seconds that its owner allowed it."""
    gpu_models: tuple[str, ...] = ()
    """GPU models on which alone it runs; none: on any."""
    max_gpus: int | None = None
    """An elastic job: `gpus` is the least, and this the most that it makes use of."""
    speed: Speed | None = None
    """None: it is as fast anywhere, and knows only the number of GPUs that it asks for."""
    steps: float | None = None
    """What it does in all, in steps that are the same for all of its name; None: unknown."""
    non_preemptible: bool = False
    """It saves nothing on its way, so that it is never stopped."""
    epochs: int | None = None
    """Equal shares of its work, in each of which it may be differently fast; None: unknown."""
    stops_immediately: bool = False
    """It saves and stops as soon as it is asked to, not only at its next checkpoint."""
    first_start_costs: bool = False
    """What it takes to start it is not in `seconds`: the first start costs as any other does."""


class Workload(Struct, kw_only=True):
    """Jobs, and the machines they were recorded on, if those are known."""

    title: str
    jobs: list[TraceJob]
    """By time of submission."""
    nodes: Sequence[NodeFacts] = ()
    profiled: bool = False
    """Jobs of one name are alike, and how fast they are was measured before: alone on each model
    of GPU, and beside each other. A planner that learns such things is told so at the beginning."""
    notes: list[str] = []
    """What a reader should know: what was left out, and what was assumed."""
