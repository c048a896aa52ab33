"""Nodes, devices and the ledger of what is free on them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from enum import Enum
from heapq import heappop, heappush
from typing import Any

from msgspec import Struct

from stoker.core.policy.fragment import Ask, Typical
from stoker.core.policy.yard import Yard
from stoker.core.request import GPU, Request
from stoker.core.units import THOUSAND

FEW_WAYS = 64
"""Nodes that stand in at most so many different ways are looked at way by way."""
REMOVED = "it was removed"
SLIVER = 1
"""What a job takes of a GPU that it shares by memory: just enough that nobody gets it whole."""


POOL = "*"
"""How the names of pools begin: of a pool, a job holds an amount and no device."""
DEFAULT_MAX_IN_FLIGHT = 16
"""Attempts that a delegated node is given ahead of their start, unless it says otherwise."""


class PlacementMode(Enum):
    """What decides on which host and devices of a node an attempt runs."""

    MANAGED = "managed"
    """The planner: its placements name devices, and a start is at once."""
    DELEGATED = "delegated"
    """The scheduler of another cluster, in whose queue an attempt may wait for its start."""


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

    @property
    def make(self) -> str:
        """Model and memory: equal for GPUs between which a request can see no difference."""
        return f"{self.model or ''} {self.memory or 0}"

    @property
    def is_pool(self) -> bool:
        """Whether this is an amount of equal devices, none of which is known by name."""
        return self.name.startswith(POOL)


class NodeFacts(Struct, frozen=True, omit_defaults=True):
    """What a machine has, by resource type."""

    name: str
    types: dict[str, tuple[DeviceFacts, ...]]
    placement: PlacementMode = PlacementMode.MANAGED
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
    """On a delegated node, attempts that may be placed there at once without running yet."""


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

    @property
    def of_pool(self) -> bool:
        """Whether this is an amount of a pool, not a device."""
        return self.device.startswith(POOL)


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
        return [take.device for take in self.takes if take.type == type and not take.of_pool]

    @property
    def gpu_count(self) -> int:
        """How many GPUs an attempt sees on this machine, whole or shared."""
        return sum(
            take.amount // THOUSAND if take.of_pool else 1
            for take in self.takes
            if take.type == GPU
        )

    @property
    def gpu_amount(self) -> int:
        """Thousandths of GPUs held, on all machines together; one that is shared counts as one."""
        return sum(
            THOUSAND if take.shares else take.amount
            for part in self.parts
            for take in part.takes
            if take.type == GPU
        )


_KINDS: dict[tuple[object, ...], int] = {}


def _kind(type: str, facts: DeviceFacts) -> int:
    """A number that is equal for all devices of one make."""
    make = (type, facts.capacity, facts.memory, facts.model, facts.is_pool)
    return _KINDS.setdefault(make, len(_KINDS))


class Device:
    """One device and what is left of it. Only the ledger's take and release change `free`."""

    __slots__ = (
        "drained", "facts", "free", "gone", "kind", "memory_free", "name", "others", "slivers",
        "stranger", "stranger_memory", "type",
    )  # fmt: skip

    def __init__(self, type: str, facts: DeviceFacts) -> None:
        self.type = type
        self.facts = facts
        self.name = facts.name
        self.kind = _kind(type, facts)
        """Equal for devices between which nobody sees a difference but their names."""
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
        twin = Device.__new__(Device)
        twin.type, twin.facts, twin.name, twin.kind = self.type, self.facts, self.name, self.kind
        twin.free, twin.memory_free, twin.others = self.free, self.memory_free, self.others
        twin.stranger, twin.stranger_memory = self.stranger, self.stranger_memory
        twin.drained, twin.gone, twin.slivers = self.drained, self.gone, self.slivers
        return twin

    @property
    def left(self) -> int:
        """What neither we nor others use of it."""
        return self.free - self.others

    @property
    def available(self) -> int:
        """Return what a job could get of it now without sharing its memory with other jobs."""
        closed = self.gone or self.drained is not None or self.stranger is not None
        return 0 if closed or self.slivers else max(self.left, 0)

    @property
    def standing(self) -> tuple[int, ...]:
        """Its kind and what is left of it: equal ones serve a request equally well."""
        marks = (self.drained is not None) + 2 * (self.stranger is not None) + 4 * self.gone
        return (
            self.kind, self.free, self.memory_free, self.slivers, marks, self.others,
            self.stranger_memory,
        )  # fmt: skip

    def answers_to(self, word: str) -> bool:
        """Whether a person who types this word means this device."""
        facts = self.facts
        if word == facts.name or (facts.index is not None and word == str(facts.index)):
            return True
        return bool(facts.uuid) and len(word) >= 5 and str(facts.uuid).startswith(word)


Standing = tuple[bool, tuple[tuple[int, ...], ...]]
_DELEGATED = (-1,)
"""In the standing of a delegated node, in place of one more device."""


class Node:
    """One machine: its devices by type."""

    __slots__ = (
        "by_name", "choices", "closed", "delegated", "name", "number", "removed", "rooms", "since",
        "types",
    )  # fmt: skip

    def __init__(self, name: str, number: int = 0) -> None:
        self.name = name
        self.number = number
        """How many had joined before it."""
        self.closed: str | None = None
        """Why nothing new is put here, although what runs here goes on."""
        self.removed = False
        """Whether it is here only until the attempts end that hold devices of it."""
        self.delegated = False
        """Whether another scheduler decides which of its devices an attempt gets, and when."""
        self.types: dict[str, list[Device]] = {}
        self.by_name: dict[tuple[str, str], Device] = {}
        self.choices: dict[object, list[Device]] = {}
        """Devices that suit a kind of request, in order: they change only with the machine."""
        self.since = 0
        """Which of all changes in the ledger was its last one."""
        self.rooms: dict[Request, tuple[int, ...] | None] = {}
        """The most that requests of a shape could ask for now."""

    def add(self, device: Device) -> None:
        """Put a device on this node."""
        self.choices.clear()
        self.types.setdefault(device.type, []).append(device)
        self.by_name[device.type, device.name] = device

    def copy(self) -> Node:
        """The same node in a ledger of its own."""
        twin = Node(self.name, self.number)
        twin.closed, twin.removed, twin.delegated = self.closed, self.removed, self.delegated
        for type, devices in self.types.items():
            twin.types[type] = copies = [device.copy() for device in devices]
            for device in copies:
                twin.by_name[type, device.name] = device
        return twin

    @property
    def standing(self) -> Standing:
        """What is left of it, whatever its devices are called."""
        found = sorted([device.standing for device in self.devices()])
        if self.delegated:
            found.append(_DELEGATED)
        return (self.closed is None, tuple(found))

    @property
    def layout(self) -> tuple[bool, list[tuple[str, tuple[int, ...]]]]:
        """What is left of each device by its name: of equal ones, a request takes the same."""
        return self.closed is None, [(each.name, each.standing) for each in self.devices()]

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

    def drop_gone(self) -> None:
        """Remove the devices that the machine no longer offers and no attempt holds."""
        for key, device in list(self.by_name.items()):
            if device.gone and device.free == device.facts.capacity:
                self.types[device.type].remove(device)
                del self.by_name[key]
                self.choices.clear()


class Alike:
    """Nodes that stand equally, found by who joined first."""

    __slots__ = ("_turns", "nodes")

    def __init__(self, *nodes: Node) -> None:
        """Some nodes, in the order in which they joined."""
        self.nodes: dict[int, Node] = {node.number: node for node in nodes}
        self._turns: list[int] = [*self.nodes]

    def add(self, node: Node) -> None:
        """One more."""
        self.nodes[node.number] = node
        if len(self._turns) > 2 * len(self.nodes) + 16:
            self._turns = sorted(self.nodes)
        else:
            heappush(self._turns, node.number)

    def first(self) -> Node:
        """The one that joined first."""
        while self._turns[0] not in self.nodes:
            heappop(self._turns)
        return self.nodes[self._turns[0]]

    def among(self, numbers: set[int]) -> set[int]:
        """Those of these that are here."""
        return numbers & self.nodes.keys()

    def __len__(self) -> int:
        return len(self.nodes)

    def __contains__(self, number: int) -> bool:
        return number in self.nodes

    def __iter__(self) -> Iterator[Node]:
        """In the order in which they joined, worked out as far as somebody asks."""
        heap, last = self._turns, -1
        turns = [(heap[0], 0)] if heap else []
        while turns:
            number, at = heappop(turns)
            for below in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heappush(turns, (heap[below], below))
            if number != last and number in self.nodes:
                last = number
                yield self.nodes[number]


class Others(Alike):
    """Nodes that stand equally, but for some of them."""

    __slots__ = ("_all", "_but")

    def __init__(self, all: Alike, but: set[int]) -> None:
        super().__init__()
        self._all, self._but = all, but

    def first(self) -> Node:
        """The one that joined first."""
        return next(iter(self))

    def among(self, numbers: set[int]) -> set[int]:
        """Those of these that are here."""
        return self._all.among(numbers) - self._but

    def __len__(self) -> int:
        return len(self._all) - len(self._but)

    def __contains__(self, number: int) -> bool:
        return number in self._all and number not in self._but

    def __iter__(self) -> Iterator[Node]:
        """In the order in which they joined, worked out as far as somebody asks."""
        return (node for node in self._all if node.number not in self._but)


class Cluster:
    """All nodes, and the one ledger over them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.verdicts: dict[Hashable, dict[Standing, Any]] = {}
        """What is known of nodes that stand in some way, by the question that was asked."""
        self._alike: dict[Standing, Alike] = {}
        self._standing: dict[str, tuple[Standing, int]] = {}
        self._stale: dict[str, None] = {}
        self._joined = 0
        self.yard = Yard()
        """What is left on every machine, but for the odd ones; it lags behind by the unseen."""
        self.unseen: dict[str, None] = {}
        self.odd: dict[str, None] = {}
        """Machines of which the yard knows nothing, since their GPUs are not of one make."""
        self.makes: dict[str, DeviceFacts] = {}
        """GPUs of each make that was ever here."""
        self.asks: dict[Request, Ask] = {}
        """Requests as the yard sees them."""
        self.typical = Typical()
        """What is usually asked for; learned anew after a restart."""
        self.grown: dict[str, None] = {}
        """Machines that may have more room than when everybody who waits was last looked at."""
        self.shifted: dict[str, None] = {}
        """Machines that stand otherwise than when it was last worked out who makes room there."""
        self.vacant: Shadow | None = None
        """All machines as if nothing ran, once somebody has asked; it lags behind by these."""
        self.since_vacant: dict[str, None] = {}
        self._many = False
        self._changes = 0

    @property
    def true(self) -> Cluster:
        """The ledger of what is, not of what could be."""
        return self

    def overlaid(self) -> dict[str, Node]:
        """The nodes that stand otherwise here than in the true ledger."""
        return {}

    def is_coarse(self) -> bool:
        """Whether all GPUs are of one make, and nodes stand in few different ways."""
        if len(self.makes) > 1 or self._many:
            return False
        self._shelve_all()
        self._many = len(self._alike) > FEW_WAYS
        return not self._many

    def shadow(self) -> Shadow:
        """A ledger of its own over the same devices, for what-if questions."""
        return Shadow(self)

    def names(self) -> Iterable[str]:
        """All nodes by name."""
        return self.nodes

    def node(self, name: str) -> Node | None:
        """The node of this name, to be looked at."""
        return self.nodes.get(name)

    def alike(self) -> Iterable[tuple[Standing, Alike]]:
        """The nodes, those that stand equally together."""
        self._shelve_all()
        return self._alike.items()

    def changed(self, name: str) -> None:
        """A node stands otherwise than before."""
        self._stale[name] = self.unseen[name] = self.grown[name] = self.shifted[name] = None
        self.since_vacant[name] = None
        if (node := self.nodes.get(name)) is not None:
            self._changes += 1
            node.since = self._changes
            node.rooms.clear()

    def _shelve_all(self) -> None:
        if self._stale:
            for name in self._stale:
                self._shelve(name)
            self._stale.clear()

    def _shelve(self, name: str) -> None:
        node, before = self.nodes.get(name), self._standing.pop(name, None)
        if before is not None:
            standing, number = before
            shelf = self._alike[standing]
            del shelf.nodes[number]
            if not shelf.nodes:
                del self._alike[standing]
        if node is not None:
            standing = node.standing
            self._standing[name] = (standing, node.number)
            self._alike.setdefault(standing, Alike()).add(node)

    def join(self, facts: NodeFacts, held: Iterable[Placement]) -> None:
        """A machine says what it has; attempts that run there keep what they hold."""
        before = self.nodes.get(facts.name)
        if before is not None and before.removed:
            del self.nodes[facts.name]  # it joins as the last one, as after a restart
            before = None
        node = Node(facts.name, before.number if before is not None else self._joined)
        self._joined += before is None
        node.delegated = facts.placement is PlacementMode.DELEGATED
        for type, devices in facts.types.items():
            for each in devices:
                device = Device(type, each)
                old = before.by_name.get((type, each.name)) if before else None
                if old is not None:
                    device.drained = old.drained
                    device.stranger, device.stranger_memory = old.stranger, old.stranger_memory
                node.add(device)
                if type == GPU and each.make not in self.makes:
                    self.makes[each.make] = each
                    self.asks.clear()
        for placement in held:
            self._keep(node, before, placement)
        self.nodes[facts.name] = node
        self.yard.enrol(facts.name)
        self.changed(facts.name)

    def leave(self, name: str, held: Iterable[Placement] = ()) -> None:
        """Remove a machine, now or when the last attempt ends that holds devices of it."""
        known = self.nodes.pop(name, None) is not None
        held = list(held)
        if held:
            self.join(NodeFacts(name, {}), held)
            node = self.nodes[name]
            node.removed, node.closed = True, REMOVED
        elif known:
            self.changed(name)

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
            self.changed(part.node)

    def release(self, placement: Placement) -> None:
        """Give a placement back."""
        for part in placement.parts:
            node = self.nodes[part.node]
            node.release(part.takes)
            # Only here: a what-if ledger keeps the devices of the ledger that it is compared with.
            node.drop_gone()
            if node.removed and not node.by_name:
                del self.nodes[part.node]
            self.changed(part.node)

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


class Shadow(Cluster):
    """A ledger in which something else is true of a few nodes; of all others, what is true."""

    def __init__(self, beneath: Cluster) -> None:
        self.nodes = {}
        self.beneath = beneath
        self.verdicts = beneath.verdicts
        self.typical = beneath.typical
        self._alike = {}
        self._standing = {}
        self._stale = {}
        self.shifted = {}
        self._true = beneath.true

    @property
    def true(self) -> Cluster:
        """The ledger of what is, not of what could be."""
        return self._true

    def overlaid(self) -> dict[str, Node]:
        """The nodes that stand otherwise here than in the true ledger."""
        below = self.beneath.overlaid()
        return {**below, **self.nodes} if below else self.nodes

    def is_coarse(self) -> bool:
        """Whether all GPUs are of one make, and nodes stand in few different ways."""
        return self._true.is_coarse()

    def changed(self, name: str) -> None:
        """A node stands otherwise than before."""
        self._stale[name] = self.shifted[name] = None
        self.nodes[name].rooms.clear()

    def names(self) -> Iterable[str]:
        """All nodes by name."""
        return self.beneath.names()

    def node(self, name: str) -> Node | None:
        """The node of this name, to be looked at."""
        return self.nodes.get(name) or self.beneath.node(name)

    def own(self, name: str) -> Node:
        """The node of this name, to be changed."""
        node = self.nodes.get(name)
        if node is None:
            true = self.beneath.node(name)
            assert true is not None
            node = self.nodes[name] = true.copy()
        self.changed(name)
        return node

    def alike(self) -> Iterable[tuple[Standing, Alike]]:
        """The nodes, those that stand equally together."""
        mine = {node.number for node in self.nodes.values()}
        for standing, found in self.beneath.alike():
            but = found.among(mine)
            if not but:
                yield standing, found
            elif len(but) < len(found):
                yield standing, Others(found, but)
        yield from super().alike()

    def take(self, placement: Placement) -> None:
        """Enter a placement in the ledger."""
        for part in placement.parts:
            self.own(part.node).take(part.takes)

    def release(self, placement: Placement) -> None:
        """Give a placement back."""
        for part in placement.parts:
            self.own(part.node).release(part.takes)
