"""Results of a replay: per job, per placement and for the whole run."""

from __future__ import annotations

from msgspec import Struct, field


class Segment(Struct, gc=False, array_like=True):
    """GPUs of one node held by one attempt, for the Gantt chart."""

    job: int
    node: int
    """Index of the node."""
    gpu: int
    """Index of the first GPU."""
    gpus: float
    begin: float
    end: float


class JobResult(Struct, kw_only=True, gc=False):
    """Result of one job. Times in seconds after the start of the workload."""

    job: int
    """Index in the workload."""
    submit_time: float
    gpus: float
    start_time: float
    """First start."""
    end_time: float
    run_time: float
    """Seconds in which the job held GPUs."""
    gpu_seconds: float
    """GPUs times seconds held."""
    preemptions: int = 0
    """Preemptions, without resizes."""
    resizes: int = 0
    """Restarts with another number of GPUs."""
    user: str = ""
    queue: str = ""

    @property
    def completion_time(self) -> float:
        """Return the job completion time (JCT): from submission to end."""
        return self.end_time - self.submit_time


class RunCost(Struct, kw_only=True):
    """Time spent in the planner."""

    events: int = 0
    seconds: float = 0.0
    """Total wall time; differs from run to run."""
    median: float = 0.0
    """Seconds per event."""
    p99: float = 0.0


class RunResult(Struct, kw_only=True):
    """One workload under one policy."""

    policy: str
    parameters: dict[str, float] = {}
    workload: str
    gpus: int
    """GPUs of the whole cluster."""
    node_names: list[str] = []
    """Node names by index."""
    results: list[JobResult]
    unfinished: int = 0
    gpus_in_use: list[tuple[float, float]] = []
    """(time, GPUs held from then on), reduced to some thousand points."""
    pending_jobs: list[tuple[float, int]] = []
    """(time, pending jobs from then on), reduced likewise."""
    segments: list[Segment] = []
    """The first segments, if they were requested."""
    cost: RunCost = field(default_factory=RunCost)
    notes: list[str] = []
