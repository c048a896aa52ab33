"""Devices and nodes as they are reported, and placements on them."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from stoker.core.model.resources import GPU
from stoker.core.model.units import THOUSAND

SHARED_SLOT = 1
"""Thousandths allocated of a GPU that is shared by memory: not zero, so that it is not idle."""


POOL_PREFIX = "*"
"""Prefix of pool names: a job is allocated an amount of a pool, not a device."""


class PlacementMode(Enum):
    """What decides on which host and devices of a node an attempt runs."""

    MANAGED = "managed"
    """The planner: its placements name devices, and a start is at once."""
    DELEGATED = "delegated"
    """The scheduler of another cluster; an attempt may wait in its queue."""


class DeviceFacts(Struct, frozen=True, omit_defaults=True):
    """One device as a node reports it."""

    name: str
    capacity: int = THOUSAND
    index: int | None = None
    uuid: str | None = None
    model: str | None = None
    memory: int | None = None
    vendor: str | None = None
    mig: bool = False

    @property
    def model_key(self) -> str:
        """Model and memory: equal for GPUs between which a request can see no difference."""
        return f"{self.model or ''} {self.memory or 0}"

    @property
    def is_pool(self) -> bool:
        """Whether this is an amount of equal devices without names."""
        return self.name.startswith(POOL_PREFIX)


class NodeFacts(Struct, frozen=True, omit_defaults=True):
    """The devices of a node by resource type, as it reports them."""

    name: str
    types: dict[str, tuple[DeviceFacts, ...]]
    placement: PlacementMode = PlacementMode.MANAGED
    max_in_flight: int = 16
    """On a delegated node, attempts that may be queued there before they run."""
    on_demand: int = 0
    """The number of nodes like this that are added when jobs need them; 0: it is a node itself."""
    ends_at: float | None = None
    """When the node ends by itself, as an allocation does (wall clock); None: it stays."""
    max_seconds: int = 0
    """The longest time for which a job can need such a node; 0: any."""
    takes_gangs: bool = False
    """On a delegated node: whether it also runs jobs of several nodes."""
    pilot: NodeFacts | None = None
    """On a delegated node: the nodes that are added for jobs that they can run; a job that they
    cannot run is placed here."""


class DeviceAllocation(Struct, frozen=True, array_like=True):
    """An amount of one device."""

    type: str
    device: str
    amount: int
    memory: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether the GPU is shared by memory."""
        return self.amount == SHARED_SLOT and self.memory > 0 and self.type == GPU

    @property
    def is_pooled(self) -> bool:
        """Whether it is an amount of a pool instead of a device."""
        return self.device.startswith(POOL_PREFIX)


class Placement(Struct, frozen=True, array_like=True, omit_defaults=True):
    """The devices of an attempt on one node, and its other parts.

    These are on other nodes, or all on one delegated node, which chooses a host for each.
    """

    node: str
    allocations: tuple[DeviceAllocation, ...]
    other_parts: tuple[Placement, ...] = ()

    @property
    def parts(self) -> tuple[Placement, ...]:
        """All parts by rank; most attempts have one."""
        return (self, *self.other_parts)

    def on(self, node: str) -> Placement | None:
        """Return the part on this node, if there is one."""
        return next((part for part in self.parts if part.node == node), None)

    def names(self, type: str) -> list[str]:
        """Return the device names of one type, in the order the job sees them."""
        return [
            item.device for item in self.allocations if item.type == type and not item.is_pooled
        ]

    @property
    def gpu_count(self) -> int:
        """Number of GPUs that the attempt sees on this node, whole or shared."""
        return sum(
            item.amount // THOUSAND if item.is_pooled else 1
            for item in self.allocations
            if item.type == GPU
        )

    @property
    def gpu_amount(self) -> int:
        """Thousandths of GPUs allocated on all nodes; a shared GPU counts as one."""
        return sum(
            THOUSAND if item.is_shared else item.amount
            for part in self.parts
            for item in part.allocations
            if item.type == GPU
        )
