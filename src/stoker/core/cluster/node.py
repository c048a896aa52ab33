"""A node and its devices, with what is allocated on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stoker.core.model.hardware import DeviceAllocation, DeviceFacts
from stoker.core.model.resources import GPU
from stoker.core.model.units import THOUSAND

MIN_UUID_PREFIX = 5
"""Characters of a UUID that identify a device: fewer could also be an index or a name."""


class Device:
    """One device and its free amounts; only methods of Device and Node change them."""

    __slots__ = (
        "drained",
        "facts",
        "foreign_memory",
        "foreign_user",
        "kind",
        "memory_free",
        "name",
        "removed",
        "sharers",
        "type",
        "unallocated",
        "used_by_others",
    )  # fmt: skip

    def __init__(self, type: str, facts: DeviceFacts) -> None:
        self.type = type
        self.facts = facts
        self.name = facts.name
        self.kind = (type, facts.capacity, facts.memory, facts.model, facts.is_pool)
        """Equal for devices that differ in nothing but their names."""
        self.unallocated = facts.capacity
        self.memory_free = facts.memory or 0
        self.drained: str | None = None
        """Why no new job may use it; None: it is not drained."""
        self.foreign_user: str | None = None
        """Description of the foreign processes that use it; None: there are none."""
        self.foreign_memory = 0
        """MiB that foreign processes use."""
        self.used_by_others = 0
        """Amount of a pool that foreign processes use, as far as it is measured."""
        self.sharers = 0
        """Number of jobs that share it by memory."""
        self.removed = False
        """Whether the node no longer offers it, and only a running attempt still holds it."""

    def copy(self) -> Device:
        """Return a copy for an overlay."""
        twin = self.emptied()
        twin.unallocated, twin.memory_free = self.unallocated, self.memory_free
        twin.removed, twin.sharers = self.removed, self.sharers
        return twin

    def emptied(self) -> Device:
        """Return a copy without allocations; drains and foreign use stay."""
        twin = Device.__new__(Device)
        twin.type, twin.facts, twin.name, twin.kind = self.type, self.facts, self.name, self.kind
        twin.unallocated, twin.memory_free = self.facts.capacity, self.facts.memory or 0
        twin.removed, twin.sharers = False, 0
        twin.copy_marks(self)
        return twin

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


class Node:
    """One node: its devices by type and by name."""

    __slots__ = (
        "by_name",
        "delegated",
        "join_index",
        "name",
        "on_demand",
        "removed",
        "types",
        "unavailable_reason",
    )  # fmt: skip

    def __init__(self, name: str, join_index: int = 0) -> None:
        self.name = name
        self.join_index = join_index
        """Number of nodes that joined before it."""
        self.unavailable_reason: str | None = None
        """Why no job may start here, although running jobs continue; None: it is available."""
        self.removed = False
        """Whether it stays only until the attempts end that hold devices of it."""
        self.delegated = False
        """Whether another scheduler decides which devices an attempt gets, and when."""
        self.on_demand = 0
        """Number of nodes like this that are added when jobs need them; 0: it is a node."""
        self.types: dict[str, list[Device]] = {}
        self.by_name: dict[tuple[str, str], Device] = {}

    def add(self, device: Device) -> None:
        """Add a device."""
        self.types.setdefault(device.type, []).append(device)
        self.by_name[device.type, device.name] = device

    def copy(self) -> Node:
        """Return a copy for an overlay."""
        twin = Node(self.name, self.join_index)
        twin.unavailable_reason = self.unavailable_reason
        twin.removed, twin.delegated = self.removed, self.delegated
        twin.on_demand = self.on_demand
        for device in self.devices():
            twin.add(device.copy())
        return twin

    def emptied(self) -> Node:
        """Return a copy without allocations, and without devices that it no longer offers."""
        twin = Node(self.name, self.join_index)
        twin.unavailable_reason = self.unavailable_reason
        for device in self.devices():
            if not device.removed:
                twin.add(device.emptied())
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
            device = self.device(allocation)
            device.allocate(allocation)
            if device.unallocated < 0:
                raise AssertionError(f"{self.name} {device.type} {device.name} is over-committed")

    def release(self, allocations: Iterable[DeviceAllocation]) -> None:
        """Release allocations; releasing twice is a bug."""
        for allocation in allocations:
            device = self.device(allocation)
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
    """Return the largest amount that these devices can serve now; all smaller ones fit too."""
    whole = part = largest = 0
    unit = True
    for device in devices:
        if device.drained is None and not device.removed:
            # Not `device.available`: the call would be a third of the cost of this loop.
            left = device.unallocated - device.used_by_others
            unit = unit and device.facts.capacity == THOUSAND
            largest = max(largest, left)
            if left == THOUSAND:
                whole += 1
            elif left > part and not (device.type == GPU and device.sharers):
                part = left
    return whole * THOUSAND + part if unit else largest
