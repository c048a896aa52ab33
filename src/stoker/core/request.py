"""What a job asks for, parsed once into exact, hashable values."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.units import THOUSAND, BadValue, format_amount, parse_amount, parse_memory

GPU, CPU, MEMORY = "gpu", "cpu", "mem"


class GpuAsk(Struct, frozen=True, omit_defaults=True):
    """How many GPUs, and which ones will do."""

    amount: int
    model: str | None = None
    min_vram: int | None = None
    memory: int | None = None
    """MiB that this job will use on each of its GPUs; accounted, never capped."""
    only: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    despite_strangers: bool = False
    """The devices were named by hand, so strangers on them do not matter."""
    within: tuple[str, ...] = ()
    """What its queue has, or the devices it had before: those named must be among them."""
    share: int | None = None
    """So much of every device in `only`, all of them together, in that order."""
    beside: bool = False
    """Whether other such jobs may be on the same GPUs, as long as the memory of all fits."""
    idle: bool = False
    """Of those, only GPUs on which nobody is: more of them is no gain where others compute."""
    most: int | None = None
    """An elastic job: `amount` is the least, and it may be given up to so much."""
    models: tuple[str, ...] = ()
    """Any of these will do, where several were named."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The models that will do; none: any."""
        return self.models or ((self.model,) if self.model else ())


class Request(Struct, frozen=True, omit_defaults=True):
    """Everything a job needs before it can start."""

    gpus: GpuAsk | None = None
    cpus: int = 0
    memory: int = 0
    named: tuple[tuple[str, int], ...] = ()
    """Other resources by name, amounts in thousandths, sorted by name."""
    exclusive: bool = False
    nodes: tuple[str, ...] = ()
    not_nodes: tuple[str, ...] = ()
    machines: int = 1
    """How many machines at once; all amounts are those of each."""
    among: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """For some types, the devices that alone will do (what the job's queue has)."""
    in_gang: bool = False
    """Whether this is one part of a request for several machines; set by `part` only."""

    @property
    def part(self) -> Request:
        """The request of each machine, if several are asked for."""
        return replace(self, machines=1, in_gang=True) if self.machines > 1 else self

    def will_do(self, type: str) -> tuple[str, ...] | None:
        """The devices of a type that alone will do, or None when any will."""
        if not self.among or type in (CPU, MEMORY):
            return None
        return next((names for each, names in self.among if each == type), ())

    @property
    def gpu_amount(self) -> int:
        """Thousandths of GPUs asked for, on all machines together."""
        return self.gpus.amount * self.machines if self.gpus else 0


def parse_gpus(text: str) -> GpuAsk:
    """Read `2`, `0.5`, `a100:2`, `a100|h100:2`, `24GB..:2` or a bare model name."""
    text = text.strip()
    head, colon, tail = text.rpartition(":")
    if re.fullmatch(r"[+-]?(nan|inf(inity)?|[0-9.]+e[+-]?[0-9]+)", text, re.IGNORECASE):
        raise BadValue(f"--gpus '{text}' is not an amount; write 2, 0.5 or a100:2.")
    if not colon:
        if re.fullmatch(r"[0-9.]+", text):
            return GpuAsk(amount=parse_amount(text, "--gpus"))
        head, tail = text, "1"
    if (
        (not colon and not re.search(r"[^\W\d_]", head))
        or not head
        or not re.fullmatch(r"[\w .+-]+(\|[\w .+-]+)*", head)
    ):
        raise BadValue(f"--gpus '{text}' is not an amount; write 2, 0.5 or a100:2.")
    amount = parse_amount(tail, "--gpus")
    if re.fullmatch(r"\d+(\.\d+)?\s*[KMGT]i?B?(\.\.|\+)?", head, re.IGNORECASE):
        return GpuAsk(amount=amount, min_vram=parse_memory(head.rstrip(".+"), "--gpus"))
    model, models = parse_models(head, "--gpus")
    return GpuAsk(amount=amount, model=model, models=models)


def parse_models(text: str, what: str) -> tuple[str | None, tuple[str, ...]]:
    """Read `a100` or `a100|h100`: the one model that will do, or else those that will."""
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


def describe(request: Request) -> str:
    """The request as a short phrase for people."""
    parts = []
    if request.exclusive:
        parts.append("a whole node" if request.machines == 1 else "whole machines")
    if request.gpus and request.gpus.amount:
        ask = request.gpus
        kind = f"{' or '.join(ask.kinds)} " if ask.kinds else ""
        vram = f" with {ask.min_vram} MiB" if ask.min_vram else ""
        plural = "GPU" if ask.amount <= THOUSAND else "GPUs"
        parts.append(f"{format_amount(ask.amount)} {kind}{plural}{vram}")
    if request.cpus:
        plural = "core" if request.cpus == THOUSAND else "cores"
        parts.append(f"{format_amount(request.cpus)} {plural}")
    if request.memory:
        parts.append(f"{request.memory} MiB of RAM")
    parts += [f"{format_amount(amount)} {name}" for name, amount in request.named]
    text = ", ".join(parts) or "nothing"
    return text if request.machines == 1 else f"{text} on each of {request.machines} nodes"
