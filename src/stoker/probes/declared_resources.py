"""Declared resources: `--gpus 0,1`, `--resources '{gpu:4}'`, CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal

import msgspec

from stoker.core.model.units import THOUSAND, BadValue, parse_memory
from stoker.probes.gpu_reading import GpuFacts

POOLS = frozenset({"cpu", "mem"})
"""Types with unnamed units: a job gets an amount, not certain units."""

POOL = "pool"
"""The name of the only device of a pool."""

_MAX_DEVICES = 100_000
_MAX_AMOUNT = 10**12
_MAX_TEXT = 1 << 20
_MAX_NAME = 128
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_CANONICAL_TYPES = {"gpus": "gpu", "cpus": "cpu", "cores": "cpu", "memory": "mem", "ram": "mem"}
_EXAMPLE = "write for example '{gpu:4,cpu:16,mem:\"64G\",licence:[2]}'"


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """One resource type, its devices and their capacities."""

    type: str
    devices: tuple[tuple[str, int], ...]
    """Name and capacity in thousandths (for `mem`: thousandths of a MiB)."""
    pool: bool = False
    memory: dict[str, int] = {}
    """Declared MiB of GPUs, by name."""


def parse_gpus(text: str) -> Declared:
    """Parse `0,1,2` or `0-3=24G`: GPUs by the names that jobs see, and their memory."""
    names: list[str] = []
    memory: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = part.partition("=")
        expanded = _expand_range(name.strip())
        names += expanded
        if equals:
            memory |= dict.fromkeys(expanded, _gpu_memory(size))
    if not all(names):
        raise BadValue(
            f"--gpus {_shown(text)} has an empty name in it; write the names like 0,1,2."
        )
    seen = set()
    for name in names:
        _check_name(name, "--gpus")
        if name in seen:
            raise BadValue(f"--gpus names {name} twice; write every GPU once.")
        seen.add(name)
    devices = tuple((name, THOUSAND) for name in names)
    return Declared(type="gpu", devices=devices, memory=memory)


def _gpu_memory(size: object) -> int:
    memory = parse_memory(str(size), "GPU memory")
    if not memory:
        raise BadValue("a GPU has no memory of size 0; write 24G.")
    return memory


def _expand_range(name: str) -> list[str]:
    """Return `0-3` as four names, anything else as it is."""
    first, dash, last = name.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()):
        return [name]
    if not 0 <= int(last) - int(first) < _MAX_DEVICES:
        raise BadValue(f"--gpus {name} is not a range; write the smaller number first.")
    return [str(number) for number in range(int(first), int(last) + 1)]


def parse_resources(text: str) -> list[Declared]:
    """Parse a JSON5 object of resource types."""
    import pyjson5

    if len(text) > _MAX_TEXT:
        raise BadValue(f"--resources is longer than {_MAX_TEXT} characters.")
    try:
        value = pyjson5.decode(text, maxdepth=4)
    except (pyjson5.Json5Exception, ValueError) as error:  # ValueError: thousands of digits
        raise BadValue(f"--resources {_shown(text)} is not JSON5; {_EXAMPLE}.") from error
    if not isinstance(value, dict):
        raise BadValue(f"--resources must be an object; {_EXAMPLE}.")
    return [_declared(kind, what) for kind, what in value.items()]


def _declared(kind: object, value: object) -> Declared:
    if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
        raise BadValue(
            f"resource type {_shown(kind)} is not a word; use letters, digits, '_', '-' and '.'."
        )
    if kind.lower() in _CANONICAL_TYPES or (
        kind.lower() in {"gpu", *POOLS} and kind != kind.lower()
    ):
        meant = _CANONICAL_TYPES.get(kind.lower(), kind.lower())
        raise BadValue(f"resource type {kind} is written {meant}.")
    memory: dict[str, int] = {}
    if kind in POOLS:
        return Declared(type=kind, devices=((POOL, _pool(kind, value)),), pool=True)
    if isinstance(value, list):
        pairs = [(str(index), _capacity(kind, item)) for index, item in enumerate(value)]
    elif isinstance(value, dict):
        sized = {_device_name(kind, name): _sized(kind, item) for name, item in value.items()}
        pairs = [(name, amount) for name, (amount, _) in sized.items()]
        memory = {name: size for name, (_, size) in sized.items() if size is not None}
    else:
        pairs = [(str(index), THOUSAND) for index in range(_count(kind, value))]
    if len(pairs) > _MAX_DEVICES:
        raise BadValue(f"{kind} has more than {_MAX_DEVICES} devices.")
    return Declared(type=kind, devices=tuple(pairs), memory=memory)


def _sized(kind: str, value: object) -> tuple[int, int | None]:
    """Parse the capacity of a named device; of a GPU also `{memory:"24G"}`."""
    if not isinstance(value, dict):
        return _capacity(kind, value), None
    if kind != "gpu" or set(value) != {"memory"}:
        raise BadValue(
            f'{kind}: {_shown(value)} is not a capacity; write 1, or for a GPU {{memory:"24G"}}.'
        )
    return THOUSAND, _gpu_memory(value["memory"])


def _pool(kind: str, value: object) -> int:
    if kind == "mem" and isinstance(value, str):
        return parse_memory(value, "mem") * THOUSAND
    if isinstance(value, list | dict | str):
        example = 'mem:"64G" or mem:65536 (MiB)' if kind == "mem" else "cpu:16"
        raise BadValue(f"{kind} is one pool without named devices; write {example}.")
    amount = _capacity(kind, value)
    if kind == "mem" and amount % THOUSAND:
        raise BadValue('mem counts whole MiB; write mem:65536 or mem:"64G".')
    return amount


def _count(kind: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadValue(
            f"{kind} {_shown(value)} is not a number of devices; write {kind}:4 for four devices, "
            f"[0.5] for one of that capacity, or {{name:1}} for one with a name."
        )
    if value > _MAX_DEVICES:
        raise BadValue(
            f"{kind}:{_shown(value)} would be that many single devices; "
            f"write {kind}:[{_shown(value)}] for one device of that capacity."
        )
    return value


def _capacity(kind: str, value: object) -> int:
    """Return an exact amount in thousandths."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadValue(f"{kind}: {_shown(value)} is not a number; write 2 or 0.5.")
    if not value >= 0:  # rejects NaN, too
        raise BadValue(f"{kind}: {_shown(value)} is not a capacity; write 2 or 0.5.")
    if value > _MAX_AMOUNT:
        raise BadValue(f"{kind}: {_shown(value)} is too large; the maximum is {_MAX_AMOUNT}.")
    # repr of a float is what the user typed, so 0.1 is exactly a tenth.
    thousandths = Decimal(repr(value)) * THOUSAND
    if thousandths != int(thousandths):
        raise BadValue(
            f"{kind}: {_shown(value)} has more than three decimals; round it to thousandths."
        )
    return int(thousandths)


def _device_name(kind: str, name: object) -> str:
    if not isinstance(name, str):
        raise BadValue(f"{kind}: device name {_shown(name)} is not text; put it in quotes.")
    _check_name(name, kind)
    return name


def _check_name(name: str, where: str) -> None:
    # A comma or a space would break CUDA_VISIBLE_DEVICES and every printed list.
    if not name.isprintable() or any(char.isspace() or char == "," for char in name) or not name:
        raise BadValue(
            f"{where}: device name {_shown(name)} must be one word without spaces and commas."
        )
    if len(name) > _MAX_NAME:
        raise BadValue(
            f"{where}: device name {_shown(name)} is longer than {_MAX_NAME} characters."
        )


def _shown(value: object) -> str:
    try:
        text = repr(value) if not isinstance(value, str) else f"'{value}'"
    except ValueError:  # Python rejects numbers of thousands of digits
        return "a number that long"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 60 else text[:57] + "..."


def inherited_limit(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs in CUDA_VISIBLE_DEVICES, as named there; None without a limit."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    names = []
    for name in map(str.strip, value.split(",")):
        if not name or name == "-1" or name.lower() == "nodevfiles":
            break  # as CUDA does: entries after an invalid one are ignored
        names.append(name)
    return tuple(names)


def limit(gpus: Iterable[GpuFacts], names: Iterable[str]) -> tuple[GpuFacts, ...]:
    """Return the named GPUs in that order, as CUDA would: up to the first invalid name.

    A name is an index in PCI order or a unique prefix of a UUID. The name of a GPU in MIG mode
    means all its instances.
    """
    offered = tuple(gpus)
    chosen: list[GpuFacts] = []
    for name in names:
        matching = [gpu for gpu in offered if _is_named(gpu, name)]
        physical = {gpu.parent or gpu.uuid for gpu in matching}
        if len(physical) != 1 or any(gpu in chosen for gpu in matching):
            break
        chosen += matching
    return tuple(chosen)


def _is_named(gpu: GpuFacts, name: str) -> bool:
    if name.isdecimal() and len(name) < 10:
        return gpu.index == int(name)
    start = name.lower()
    return gpu.uuid.lower().startswith(start) or (gpu.parent or "").lower().startswith(start)
