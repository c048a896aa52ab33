"""Resources: what jobs request, what nodes report, and placements.

Requests are exact, hashable values; their parsers are here too.
"""

from __future__ import annotations

import re
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from stoker.core.model.units import THOUSAND, BadValue, format_amount, parse_amount, parse_memory

GPU, CPU, MEMORY = "gpu", "cpu", "mem"
SHARED_SLOT = 1
"""Thousandths allocated of a GPU that is shared by memory: not zero, so that it is not idle."""
POOL_PREFIX = "*"
"""Prefix of pool names: a job is allocated an amount of a pool, not a device."""


class GpuRequest(Struct, frozen=True, omit_defaults=True):
    """Number of GPUs requested, and which ones are acceptable."""

    amount: int
    model: str | None = None
    min_vram: int | None = None
    memory: int | None = None
    """MiB that the job uses on each of its GPUs; accounted, not enforced."""
    required: tuple[str, ...] = field(default=(), name="only")
    prefer: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    ignore_foreign_use: bool = field(default=False, name="despite_strangers")
    """Whether to use the named devices even if foreign processes use them."""
    allowed: tuple[str, ...] = field(default=(), name="within")
    """Devices of its queue, or of its previous attempt: `required` is restricted to them."""
    fixed_share: int | None = field(default=None, name="share")
    """Thousandths of every device in `required`, all of which are allocated in that order."""
    shareable: bool = field(default=False, name="beside")
    """Whether it may share GPUs with other such jobs, as long as the memory of all fits."""
    on_idle_gpus: bool = field(default=False, name="idle")
    """Whether only idle GPUs count: growing onto GPUs that others use gains nothing."""
    max_amount: int | None = field(default=None, name="most")
    """Elastic job: the most it may get; `amount` is the least."""
    models: tuple[str, ...] = ()
    """Acceptable models, if several were named."""
    reserved: tuple[str, ...] = ()
    """GPUs as `node/name` that are reserved for others while the job would run."""

    @property
    def allowed_models(self) -> tuple[str, ...]:
        """Acceptable models; empty: any."""
        return self.models or ((self.model,) if self.model else ())


class ResourceRequest(Struct, frozen=True, omit_defaults=True):
    """The resources that a job needs to start."""

    gpus: GpuRequest | None = None
    cpus: int = 0
    memory: int = 0
    named: tuple[tuple[str, int], ...] = ()
    """Other resources by name, amounts in thousandths, sorted by name."""
    exclusive: bool = False
    nodes: tuple[str, ...] = ()
    not_nodes: tuple[str, ...] = ()
    node_count: int = field(default=1, name="machines")
    """Number of nodes; all amounts are per node."""
    queue_devices: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), name="among")
    """Resource types of the queue, and the devices of each to which the job is restricted."""
    in_gang: bool = False
    """Whether this is one part of a request for several nodes; set by `part` only."""

    @property
    def part(self) -> ResourceRequest:
        """The request on each node, if several nodes are requested."""
        return replace(self, node_count=1, in_gang=True) if self.node_count > 1 else self

    def allowed_devices(self, type: str) -> tuple[str, ...] | None:
        """Return the devices of a type to which the job is restricted; None: any device."""
        if not self.queue_devices or type in (CPU, MEMORY):
            return None
        return next((names for key, names in self.queue_devices if key == type), ())

    @property
    def gpu_amount(self) -> int:
        """Thousandths of GPUs requested on all nodes together."""
        return self.gpus.amount * self.node_count if self.gpus else 0

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """Acceptable models of GPUs; empty: any."""
        return self.gpus.allowed_models if self.gpus else ()


def parse_gpus(text: str) -> GpuRequest:
    """Read `2`, `0.5`, `a100:2`, `a100|h100:2`, `24GB..:2` or a bare model name."""
    text = text.strip()
    head, colon, tail = text.rpartition(":")
    if not colon:
        if re.fullmatch(r"[0-9.]+", text):
            return GpuRequest(amount=parse_amount(text, "--gpus"))
        head, tail = text, "1"
    is_number = re.fullmatch(r"[+-]?(nan|inf(inity)?|[0-9.]+e[+-]?[0-9]+)", text, re.IGNORECASE)
    has_letter = colon or re.search(r"[^\W\d_]", head)
    if is_number or not has_letter or not re.fullmatch(r"[\w .+-]+(\|[\w .+-]+)*", head):
        raise BadValue(f"--gpus '{text}' is not an amount; write 2, 0.5 or a100:2.")
    amount = parse_amount(tail, "--gpus")
    if re.fullmatch(r"\d+(\.\d+)?\s*[KMGT]i?B?(\.\.|\+)?", head, re.IGNORECASE):
        return GpuRequest(amount=amount, min_vram=parse_memory(head.rstrip(".+"), "--gpus"))
    model, models = parse_models(head, "--gpus")
    return GpuRequest(amount=amount, model=model, models=models)


def parse_models(text: str, what: str) -> tuple[str | None, tuple[str, ...]]:
    """Read `a100` or `a100|h100`: a single model, or the tuple of acceptable models."""
    models = tuple(dict.fromkeys(name.strip() for name in text.lower().split("|")))
    if not all(models):
        raise BadValue(f"{what} '{text}' has an empty model; write a100 or a100|h100.")
    return (models[0], ()) if len(models) == 1 else (None, models)


def parse_names(text: str, what: str) -> tuple[str, ...]:
    """Read a list of devices: `0,2`, `0-3,7` or UUIDs."""
    names: list[str] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", part)
        if match and int(match[1]) <= int(match[2]):
            names += [str(number) for number in range(int(match[1]), int(match[2]) + 1)]
        elif match:
            raise BadValue(f"{what} '{part}' is reversed; write {match[2]}-{match[1]}.")
        else:
            names.append(part)
    if not names:
        raise BadValue(f"{what} names no device; write a list such as 0,1.")
    return tuple(dict.fromkeys(names))


def describe(request: ResourceRequest) -> str:
    """Return the request as a short phrase for users."""
    parts = []
    if request.exclusive:
        parts.append("a whole node" if request.node_count == 1 else "whole machines")
    if request.gpus and request.gpus.amount:
        gpus = request.gpus
        models = f"{' or '.join(gpus.allowed_models)} " if gpus.allowed_models else ""
        vram = f" with {gpus.min_vram} MiB" if gpus.min_vram else ""
        plural = "GPU" if gpus.amount <= THOUSAND else "GPUs"
        parts.append(f"{format_amount(gpus.amount)} {models}{plural}{vram}")
    if request.cpus:
        plural = "core" if request.cpus == THOUSAND else "cores"
        parts.append(f"{format_amount(request.cpus)} {plural}")
    if request.memory:
        parts.append(f"{request.memory} MiB of RAM")
    parts += [f"{format_amount(amount)} {name}" for name, amount in request.named]
    text = ", ".join(parts) or "nothing"
    return text if request.node_count == 1 else f"{text} on each of {request.node_count} nodes"


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
    minor: int | None = None
    """Of an NVIDIA GPU whose device file has another number than its index."""

    @property
    def nvidia_minor(self) -> int | None:
        """N of the device file /dev/nvidiaN; of a GPU that was only declared, its name."""
        if self.vendor == "amd":
            return None
        declared = int(self.name) if self.name.isdecimal() else None
        return next((n for n in (self.minor, self.index, declared) if n is not None), None)

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
