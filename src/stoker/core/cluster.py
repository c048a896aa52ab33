"""Nodes, devices and the ledger of what is free on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from stoker.core.request import GPU
from stoker.core.units import THOUSAND

SLIVER = 1
"""What a job takes of a GPU that it shares by memory: just enough that nobody gets it whole."""


class DeviceFacts(Struct, frozen=True, omit_defaults=True):
    """What a machine says about one of its devices."""

    name: str
    capacity: int = THOUSAND
    index: int | None = None
    uuid: str | None = None
    model: str | None = None
    memory: int | None = None
    vendor: str | None = None
    mig: bool = False


class NodeFacts(Struct, frozen=True, omit_defaults=True):
    """What a machine has, by resource type."""

    name: str
    types: dict[str, tuple[DeviceFacts, ...]]


class Take(Struct, frozen=True, array_like=True):
    """So much of one device."""

    type: str
    device: str
    amount: int
    memory: int = 0

    @property
    def shares(self) -> bool:
        """Whether this is a GPU that is shared by memory."""
        return self.amount == SLIVER and self.memory > 0 and self.type == GPU


class Placement(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Which devices of which node an attempt holds, and its other parts on other nodes."""

    node: str
    takes: tuple[Take, ...]
    more: tuple[Placement, ...] = ()

    @property
    def parts(self) -> tuple[Placement, ...]:
        """One per machine, in the order of their ranks; most attempts have just one."""
        return (self, *self.more)

    def on(self, node: str) -> Placement | None:
        """The part on this node, if there is one."""
        return next((part for part in self.parts if part.node == node), None)

    def names(self, type: str) -> list[str]:
        """The device names of one type, in the order the job sees them."""
        return [take.device for take in self.takes if take.type == type]

    @property
    def gpu_amount(self) -> int:
        """Thousandths of GPUs held, on all machines together; one that is shared counts as one."""
        return sum(
            THOUSAND if take.shares else take.amount
            for part in self.parts
            for take in part.takes
            if take.type == GPU
        )


class Device:
    """One device and what is left of it. Only the ledger's take and release change `free`."""

    __slots__ = (
        "drained", "facts", "free", "gone", "memory_free", "name", "others", "slivers",
        "stranger", "stranger_memory", "type",
    )  # fmt: skip

    def __init__(self, type: str, facts: DeviceFacts) -> None:
        self.type = type
        self.facts = facts
        self.name = facts.name
        self.free = facts.capacity
        self.memory_free = facts.memory or 0
        self.drained: str | None = None
        self.stranger: str | None = None
        """Who else is using it, in words; None when nobody is."""
        self.stranger_memory = 0
        self.others = 0
        """So much of a pool is in use by others, as far as it can be measured."""
        self.slivers = 0
        """How many jobs share it by memory."""
        self.gone = False
        """Still held by a running attempt, but the machine no longer offers it."""

    def copy(self) -> Device:
        """The same device in a ledger of its own, for what-if questions."""
        twin = Device(self.type, self.facts)
        twin.free, twin.memory_free, twin.others = self.free, self.memory_free, self.others
        twin.stranger, twin.stranger_memory = self.stranger, self.stranger_memory
        twin.drained, twin.gone, twin.slivers = self.drained, self.gone, self.slivers
        return twin

    @property
    def left(self) -> int:
        """What neither we nor others use of it."""
        return self.free - self.others

    def answers_to(self, word: str) -> bool:
        """Whether a person who types this word means this device."""
        facts = self.facts
        if word == facts.name or (facts.index is not None and word == str(facts.index)):
            return True
        return bool(facts.uuid) and len(word) >= 5 and str(facts.uuid).startswith(word)


class Node:
    """One machine: its devices by type."""

    __slots__ = ("by_name", "choices", "closed", "name", "types")

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed: str | None = None
        """Why nothing new is put here, although what runs here goes on."""
        self.types: dict[str, list[Device]] = {}
        self.by_name: dict[tuple[str, str], Device] = {}
        self.choices: dict[object, list[Device]] = {}
        """Devices that suit a kind of request, in order: they change only with the machine."""

    def add(self, device: Device) -> None:
        """Put a device on this node."""
        self.choices.clear()
        self.types.setdefault(device.type, []).append(device)
        self.by_name[device.type, device.name] = device

    def copy(self) -> Node:
        """The same node in a ledger of its own."""
        twin = Node(self.name)
        twin.closed = self.closed
        for device in self.devices():
            twin.add(device.copy())
        return twin

    def devices(self) -> Iterator[Device]:
        """Every device of every type."""
        for devices in self.types.values():
            yield from devices

    def take(self, takes: Iterable[Take]) -> None:
        """Enter takes in the ledger; giving out what is not there is a bug of ours."""
        for take in takes:
            device = self.by_name[take.type, take.device]
            device.free -= take.amount
            device.memory_free -= take.memory
            device.slivers += take.shares
            if device.free < 0:
                raise AssertionError(f"{self.name} {take.type} {take.device} is over-committed")

    def release(self, takes: Iterable[Take]) -> None:
        """Give takes back."""
        for take in takes:
            device = self.by_name[take.type, take.device]
            device.free += take.amount
            device.memory_free += take.memory
            device.slivers -= take.shares
            if device.free > device.facts.capacity:
                raise AssertionError(f"{self.name} {take.type} {take.device} given back twice")
            if device.gone and device.free == device.facts.capacity:
                self.types[take.type].remove(device)
                del self.by_name[take.type, take.device]
                self.choices.clear()


class Cluster:
    """All nodes, and the one ledger over them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}

    def copy(self) -> Cluster:
        """A ledger of its own over the same devices, for what-if questions."""
        twin = Cluster()
        twin.nodes = {name: node.copy() for name, node in self.nodes.items()}
        return twin

    def join(self, facts: NodeFacts, held: Iterable[Placement]) -> None:
        """A machine says what it has; attempts that run there keep what they hold."""
        before = self.nodes.get(facts.name)
        node = Node(facts.name)
        for type, devices in facts.types.items():
            for each in devices:
                device = Device(type, each)
                old = before.by_name.get((type, each.name)) if before else None
                if old is not None:
                    device.drained = old.drained
                    device.stranger, device.stranger_memory = old.stranger, old.stranger_memory
                node.add(device)
        for placement in held:
            self._keep(node, before, placement)
        self.nodes[facts.name] = node

    @staticmethod
    def _keep(node: Node, before: Node | None, placement: Placement) -> None:
        for take in placement.takes:
            key = (take.type, take.device)
            device = node.by_name.get(key)
            if device is None:
                # The machine no longer offers it: it stays, closed to others, until the
                # attempts that hold it are over.
                old = before.by_name.get(key) if before else None
                known = old.facts if old else DeviceFacts(take.device, capacity=take.amount)
                device = Device(take.type, known)
                device.gone = True
                node.add(device)
            # A device that shrank under its attempts is less than empty until they end.
            device.free -= take.amount
            device.memory_free -= take.memory
            device.slivers += take.shares

    def take(self, placement: Placement) -> None:
        """Enter a placement in the ledger."""
        for part in placement.parts:
            self.nodes[part.node].take(part.takes)

    def release(self, placement: Placement) -> None:
        """Give a placement back."""
        for part in placement.parts:
            self.nodes[part.node].release(part.takes)

    def named(self, key: str) -> list[Device]:
        """The device of exactly this key (`node/type:name`), or none."""
        node_name, _, rest = key.partition("/")
        type, _, name = rest.partition(":")
        node = self.nodes.get(node_name)
        device = node.by_name.get((type, name)) if node else None
        return [device] if device is not None else []

    def find(self, word: str) -> list[tuple[Node, Device]]:
        """The devices that a person means by `0`, `gpu:0`, `box/gpu:0`, a UUID or `all`."""
        node_name, slash, rest = word.rpartition("/")
        if rest == "all":
            return [
                (node, device)
                for node in self.nodes.values()
                if not slash or node.name == node_name
                for device in node.devices()
                if not device.gone
            ]
        type, colon, name = rest.partition(":")
        if not colon:
            type, name = GPU, rest
        return [
            (node, device)
            for node in self.nodes.values()
            if not slash or node.name == node_name
            for device in node.types.get(type, ())
            if not device.gone and (name == "all" or device.answers_to(name))
        ]
