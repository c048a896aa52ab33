"""GPUs."""

from __future__ import annotations

from msgspec import Struct


class GpuJob(Struct, kw_only=True):
    """A job on a GPU."""

    id: int
    label: str
    name: str
    user: str
    share: str
    memory: int | None = None
    """MiB that are reserved for it."""
    elapsed: float | None = None
    state: str = ""


class ForeignProcess(Struct, kw_only=True):
    """A process on a GPU that belongs to no job."""

    pid: int | None = None
    user: str | None = None
    command: str | None = None
    memory: int | None = None


class GpuView(Struct, frozen=True, kw_only=True, rename={"gpu_jobs": "jobs"}):
    """A GPU; memory in MiB."""

    node: str
    id: str
    index: int | None = None
    uuid: str | None = None
    model: str | None = None
    memory: int | None = None
    memory_used: int | None = None
    utilization: float | None = None
    temperature: float | None = None
    power: float | None = None
    state: str
    """free, busy, shared, foreign, unavailable, drained or unreachable."""
    drained: str | None = None
    free: str = "0"
    """What a job could get now."""
    held: str = "0"
    """What jobs of this daemon hold."""
    memory_left: int | None = None
    gpu_jobs: list[GpuJob] = []
    foreign: list[ForeignProcess] = []
    foreign_process: str | None = None
    """What else uses it, or why it is unavailable."""


class GpuList(Struct, kw_only=True):
    """Reply of `GET /gpus`."""

    gpus: list[GpuView]
    machines: list[str]
    """All nodes, also those without GPUs."""
    note: str | None


class GpuSeries(Struct, kw_only=True):
    """The use of one GPU over time; None where nothing was measured."""

    utilization: list[int | None]
    utilization_max: list[int | None]
    memory: list[int | None]
    power: list[int | None]
    jobs: list[int | None]
    """The job that held the GPU; of several, the first."""


class GpuHistoryReply(Struct, kw_only=True):
    """Reply of `GET /gpus/history`."""

    t: int
    """Unix time of the first value."""
    step: int
    gpus: dict[str, GpuSeries]


class UsageView(Struct, kw_only=True):
    """GPU time of an attempt, or of all attempts of a job."""

    attempt: int | None = None
    seconds: float | None = None
    """From its start to its end."""
    gpu_seconds: float = 0.0
    wasted_gpu_seconds: float = 0.0
    measured_seconds: float = 0.0
    """GPU-seconds in which the GPUs were read."""
    busy_gpu_seconds: float = 0.0
    energy_joules: float | None = None
    utilization: float | None = None
    """Mean, in percent."""
    memory_peak: int | None = None
    cpu_seconds: float | None = None
    """Of ended attempts: of all processes that were waited for."""
    rss_peak: int | None = None
    """MiB of the largest process."""


class UsageReply(Struct, kw_only=True):
    """Reply of `GET /jobs/{selector}/usage`."""

    id: int
    label: str
    attempts: list[UsageView]
    total: UsageView


class Thresholds(Struct, kw_only=True):
    """From which use on a GPU counts as used by foreign processes."""

    load: float
    memory: float
    processes: bool
