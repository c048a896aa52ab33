"""What became of a workload under one policy."""

from __future__ import annotations

from msgspec import Struct, field


class Segment(Struct, gc=False, array_like=True):
    """One stretch of one job on one machine, for the picture of the cluster."""

    job: int
    node: int
    """The number of the machine."""
    gpu: int
    """The first of its GPUs."""
    gpus: float
    begin: float
    end: float


class JobResult(Struct, kw_only=True, gc=False):
    """What became of one job. Times in seconds from the beginning."""

    job: int
    """Its number in the workload, from 0."""
    submit_time: float
    """Submitted."""
    gpus: float
    start_time: float
    """Started for the first time."""
    end_time: float
    run_time: float
    """Seconds in which it held GPUs."""
    gpu_seconds: float
    """GPU-seconds that it held."""
    preemptions: int = 0
    """Stops at which it left all that it had to others."""
    resizes: int = 0
    """Stops after which it was to go on with another number of GPUs."""
    user: str = ""
    queue: str = ""

    @property
    def completion_time(self) -> float:
        """From submission to end: its job completion time."""
        return self.end_time - self.submit_time

    @property
    def wait_time(self) -> float:
        """Seconds in which it held nothing."""
        return self.completion_time - self.run_time


class RunCost(Struct, kw_only=True):
    """What deciding has cost."""

    events: int = 0
    seconds: float = 0.0
    """In all, on this machine: nothing that repeats exactly."""
    median: float = 0.0
    """Seconds per event."""
    p99: float = 0.0


class RunResult(Struct, kw_only=True):
    """A workload under one policy."""

    policy: str
    parameters: dict[str, float] = {}
    workload: str
    gpus: int
    """Of the whole cluster."""
    node_names: list[str] = []
    """Names by number."""
    results: list[JobResult]
    unfinished: int = 0
    gpus_in_use: list[tuple[float, float]] = []
    """GPUs held from this moment on; thinned out to at most some thousand points."""
    pending_jobs: list[tuple[float, int]] = []
    """Jobs that wait from this moment on; thinned out likewise."""
    segments: list[Segment] = []
    """For the first so many, as long as somebody asked for them."""
    cost: RunCost = field(default_factory=RunCost)
    notes: list[str] = []
