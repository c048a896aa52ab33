"""A node and its devices, with what is allocated on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from stoker.core.cluster.fragmentation import max_request_amount
from stoker.core.model.resources import DeviceAllocation, DeviceFacts
from stoker.core.model.units import THOUSAND

ALL_DEVICES = "all"
"""The word of users for every device."""
MIN_UUID_PREFIX = 5
"""Characters of a UUID that identify a device: fewer could also be an index or a name."""


class Device(Struct, eq=False, gc=False):
    """One device and its free amounts; only methods of Device and Node change them."""

    type: str
    facts: DeviceFacts
    name: str = ""
    kind: tuple[object, ...] = ()
    """Equal for devices that differ in nothing but their names."""
    is_unit: bool = False
    """Whether requests are split over several such devices."""
    unallocated: int = 0
    memory_free: int = 0
    drained: str | None = None
    """Why no new job may use it; None: it is not drained."""
    foreign_user: str | None = None
    """Description of the foreign processes that use it; None: there are none."""
    foreign_memory: int = 0
    """MiB that foreign processes use."""
    used_by_others: int = 0
    """Amount of a pool that foreign processes use, as far as it is measured."""
    sharers: int = 0
    """Number of jobs that share it by memory."""
    removed: bool = False
    """Whether the node no longer offers it, and only a running attempt still holds it."""

    def __post_init__(self) -> None:
        facts = self.facts
        self.name, self.unallocated = facts.name, facts.capacity
        self.memory_free = facts.memory or 0
        self.kind = (self.type, facts.capacity, facts.memory, facts.model, facts.is_pool)
        self.is_unit = facts.capacity == THOUSAND and not facts.is_pool

    def copy_marks(self, other: Device) -> None:
        """Take over drain and foreign use of another record of this device."""
        self.drained, self.used_by_others = other.drained, other.used_by_others
        self.foreign_user, self.foreign_memory = other.foreign_user, other.foreign_memory

    @property
    def available(self) -> int:
        """The amount that neither jobs nor foreign processes use."""
        return self.unallocated - self.used_by_others

    @property
    def allocatable(self) -> int:
        """The amount that a job could get now without sharing the memory of this device."""
        closed = self.removed or self.drained is not None or self.foreign_user is not None
        return 0 if closed or self.sharers else max(self.available, 0)

    @property
    def free_signature(self) -> tuple[object, ...]:
        """Kind and free amounts: devices with equal signatures serve a request equally well."""
        marks = (self.drained is not None, self.foreign_user is not None, self.removed)
        free = (self.unallocated, self.memory_free, self.sharers)
        return (self.kind, free, marks, self.used_by_others, self.foreign_memory)

    def allocate(self, allocation: DeviceAllocation) -> None:
        """Subtract an allocation, without a check that it is free."""
        self.unallocated -= allocation.amount
        self.memory_free -= allocation.memory
        self.sharers += allocation.is_shared

    def release(self, allocation: DeviceAllocation) -> None:
        """Add an allocation again."""
        self.unallocated += allocation.amount
        self.memory_free += allocation.memory
        self.sharers -= allocation.is_shared

    def withhold(self, amount: int, memory: int) -> None:
        """Subtract amounts as far as they are free."""
        self.unallocated -= min(amount, max(self.unallocated, 0))
        self.memory_free -= min(memory, max(self.memory_free, 0))

    def limit_to(self, other: Device) -> None:
        """Reduce what is free to what is also free in another record of this device."""
        if other.unallocated < self.unallocated:
            self.unallocated, self.sharers = other.unallocated, other.sharers
        self.memory_free = min(self.memory_free, other.memory_free)

    def answers_to(self, word: str) -> bool:
        """Whether a word that a user types means this device: its name, index or UUID."""
        facts = self.facts
        if word == facts.name or (facts.index is not None and word == str(facts.index)):
            return True
        return len(word) >= MIN_UUID_PREFIX and (facts.uuid or "").startswith(word)


_copy_device: Callable[[Device], Device] = Device.__copy__  # type: ignore[attr-defined]
"""Copies a device without a call in Python: a plan copies hundreds."""


class Node(Struct, eq=False):
    """One node: its devices by type and by name."""

    name: str
    join_index: int = 0
    """Number of nodes that joined before it."""
    unavailable_reason: str | None = None
    """Why no job may start here, although running jobs continue; None: it is available."""
    removed: bool = False
    """Whether it stays only until the attempts end that hold devices of it."""
    delegated: bool = False
    """Whether another scheduler decides which devices an attempt gets, and when."""
    on_demand: int = 0
    """Number of nodes like this that are added when jobs need them; 0: it is a node."""
    takes_gangs: bool = False
    """Whether it is delegated and also runs jobs of several nodes."""
    types: dict[str, list[Device]] = field(default_factory=dict)
    by_name: dict[tuple[str, str], Device] = field(default_factory=dict)

    def add(self, device: Device) -> None:
        """Add a device."""
        self.types.setdefault(device.type, []).append(device)
        self.by_name[device.type, device.name] = device

    def copy(self) -> Node:
        """Return a copy for an overlay."""
        copies = map(_copy_device, self.by_name.values())
        by_name = dict(zip(self.by_name, copies, strict=True))
        types: dict[str, list[Device]] = {type: [] for type in self.types}
        for device in by_name.values():
            types[device.type].append(device)
        return replace(self, types=types, by_name=by_name)

    def emptied(self) -> Node:
        """Return a copy without allocations, and without devices that it no longer offers."""
        twin = Node(self.name, self.join_index, self.unavailable_reason)
        for device in self.devices():
            if not device.removed:
                twin.add(empty := Device(device.type, device.facts))
                empty.copy_marks(device)
        return twin

    @property
    def named_signature(self) -> tuple[bool, list[tuple[str, tuple[object, ...]]]]:
        """Availability and the signature of each device: equal nodes serve a request equally."""
        signatures = [(device.name, device.free_signature) for device in self.devices()]
        return self.unavailable_reason is None, signatures

    def devices(self) -> Iterator[Device]:
        """Yield every device of every type."""
        for devices in self.types.values():
            yield from devices

    def device(self, allocation: DeviceAllocation) -> Device:
        """Return the device of an allocation."""
        return self.by_name[allocation.type, allocation.device]

    def allocate(self, allocations: Iterable[DeviceAllocation]) -> None:
        """Enter allocations; over-commitment is a bug of the planner."""
        for allocation in allocations:
            device = self.by_name[allocation.type, allocation.device]
            device.allocate(allocation)
            if device.unallocated < 0:
                raise AssertionError(f"{self.name} {device.type} {device.name} is over-committed")

    def release(self, allocations: Iterable[DeviceAllocation]) -> None:
        """Release allocations; releasing twice is a bug."""
        for allocation in allocations:
            device = self.by_name[allocation.type, allocation.device]
            device.release(allocation)
            if device.unallocated > device.facts.capacity:
                raise AssertionError(f"{self.name} {device.type} {device.name} given back twice")

    def drop_removed(self) -> None:
        """Delete the devices that the node no longer offers and no attempt holds."""
        for key, device in list(self.by_name.items()):
            if device.removed and device.unallocated == device.facts.capacity:
                self.types[device.type].remove(device)
                del self.by_name[key]


def max_amount(devices: list[Device]) -> int:
    """Return the largest amount of other resources than GPUs that these devices can serve now."""
    usable = [device for device in devices if device.drained is None and not device.removed]
    # Not `device.available`: the call would be a third of the cost of this loop.
    amounts = [device.unallocated - device.used_by_others for device in usable]
    if len(usable) > 1 and all(device.facts.capacity == THOUSAND for device in usable):
        return max_request_amount(amounts)
    return max([0, *amounts])
