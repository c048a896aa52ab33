"""Nodes."""

from __future__ import annotations

from msgspec import Struct


class ResourceView(Struct, kw_only=True):
    """An amount of one type of resource."""

    total: str
    free: str = "0"
    """Neither held by jobs nor used by other processes."""
    held: str = "0"
    """What jobs hold."""
    devices: list[str] = []


class MeasuredGpu(Struct, kw_only=True):
    """A GPU in a measurement of a node."""

    index: int | None
    uuid: str | None
    model: str | None
    memory: int | None
    memory_used: int | None
    utilization: float | None


class NodeMeasurement(Struct, kw_only=True):
    """The last measurement of a remote node; memory in MiB."""

    cores: int
    load: float | None
    free_cores: float | None
    memory: int | None
    memory_available: int | None
    disk_free: int | None
    tools: list[str]
    gpus: list[MeasuredGpu]


class AllocationView(Struct, kw_only=True):
    """What another scheduler says of a node that it provides for a time."""

    id: str
    """Its id there: a hint for users."""
    reason: str | None = None
    """Why it waits, as that scheduler calls it."""
    start: str | None = None
    """When it started; if it waits, when it is expected to."""
    end: str | None = None
    """When it ends at the latest."""


class PilotCounts(Struct, kw_only=True):
    """The allocations of a cluster that are nodes."""

    running: int
    queued: int


class NodeView(Struct, frozen=True, kw_only=True):
    """A node."""

    name: str
    kind: str = "ssh"
    """local, ssh, slurm or kubernetes (clusters), slurm-pilot or kubernetes-pilot (part of one)."""
    cluster: str | None = None
    """The cluster of which it is an allocation."""
    pilots: PilotCounts | None = None
    """Of a cluster."""
    shape: str | None = None
    """Of a cluster: what it provides, in words."""
    allocation: AllocationView | None = None
    state: str
    """up, drained, connecting, queued or unreachable."""
    why: str | None = None
    """Why it does not answer."""
    notes: list[str] = []
    address: str | None = None
    """None for the daemon's own machine."""
    key: str | None = None
    shared: bool = False
    """Whether it has the same file system as the daemon's machine."""
    configured: bool = False
    """Whether the configuration file defines it."""
    resources: dict[str, ResourceView] = {}
    jobs: int = 0
    since: str | None = None
    measured: NodeMeasurement | None = None


class NodeList(Struct, kw_only=True):
    """Reply of `GET /nodes` and `POST /nodes/refresh`."""

    nodes: list[NodeView]


class CheckView(Struct, kw_only=True):
    """One thing that was checked."""

    what: str
    state: str
    """ok, unknown or failed."""
    text: str


class NodeCheck(Struct, kw_only=True):
    """Reply of `POST /nodes/check`."""

    name: str
    checks: list[CheckView]
    rbac: str | None = None
    """A role with the rights that are missing, as YAML."""


class NodeAdded(Struct, kw_only=True):
    """Reply of `POST /nodes`."""

    name: str
    address: str
    new: bool
    changed: bool
    configured: bool


class NodeRemoved(Struct, kw_only=True):
    """Reply of `POST /nodes/remove`."""

    name: str
    lost: list[int]
    """Jobs that were abandoned there."""
    configured: bool


class DrainReply(Struct, frozen=True, kw_only=True):
    """Reply of `POST /drain` and `POST /undrain`."""

    devices: list[str] = []
    machines: list[str] = []
    """Nodes that were named as a whole."""
    running: list[int] = []
    """Jobs that still run on the devices."""
    labels: list[str] = []
    """Their labels."""
