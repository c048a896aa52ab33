"""Training jobs and containers, as part of a job."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class StopView(Struct, kw_only=True):
    """A pending request to stop at the next checkpoint."""

    why: str
    by: str | None = None
    """The job that needs the resources."""
    ignored: bool = False
    """Whether the time to stop has passed."""


class TrainingView(Struct, kw_only=True):
    """Progress and measurements of a training job; memory in MiB on one GPU."""

    uuid: str = ""
    epochs_done: int = 0
    epochs: int | None = None
    batch_size: int | None = None
    training_set_size: int | None = None
    snapshots: str | None = None
    checkpoints: str | None = None
    """The directory that all attempts share."""
    listening: bool = False
    """Whether it reacts to stop requests."""
    preemptions: int = 0
    stopping: StopView | None = None
    overran: bool = False
    """Whether it takes more than twice the expected time."""
    ran_seconds: float | None = None
    """Run time over all attempts."""
    epoch_seconds: float | None = None
    step_seconds: float | None = None
    expected_seconds: float | None = None
    """As submitted."""
    estimate_seconds: float | None = None
    """Estimated total."""
    remaining_seconds: float | None = None
    memory_reserved: int | None = None
    memory_peak: int | None = None
    memory_now: int | None = None
    shortages: int = 0
    """Number of GPU out-of-memory errors."""
    elastic: list[int | None] | None = None
    """Minimum and maximum number of GPUs; a maximum of None is no limit."""
    gpus_wanted: int | None = None
    """The number of GPUs that the planner wants it to have."""
    shares: bool = False
    """Whether other jobs may use its GPUs."""
    family: str = ""
    """Jobs with the same family share their measurements."""
    speedups: list[list[float | None]] = []
    """Number of GPUs and seconds per epoch, as measured."""
    epoch: int | None = None
    step: float | None = None
    metrics: dict[str, Any] = {}


class MountView(Struct, kw_only=True):
    """A directory of the host that a container sees."""

    source: str
    target: str
    read_only: bool = False
    optional: bool = False


class ContainerView(Struct, kw_only=True):
    """The image in which a job runs."""

    image: str
    mounts: list[MountView] = []
    ports: list[list[int]] = []
    """Pairs of host port and container port."""


class ReportReply(Struct, kw_only=True):
    """What the daemon has of a training report."""

    offset: int
    """Where the report has to be continued."""
    saved: int
    """Bytes that are on record: they need not be kept."""
    wait: float
    """Seconds until the next request."""
    control: dict[str, str] = {}
    """Control files to write."""
