"""Options of a Slurm cluster: how it is reached, and what its pilots are."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from msgspec import Struct

from stoker.core.events import NodeAdded
from stoker.core.model.hardware import POOL_PREFIX, DeviceFacts, NodeFacts
from stoker.core.model.resources import CPU, GPU, MEMORY
from stoker.core.model.units import (
    THOUSAND,
    BadValue,
    approximate_duration,
    parse_duration,
    parse_memory,
)
from stoker.core.placement.horizon import END_GRACE_SECONDS
from stoker.executors.ssh.address import parse_address

SCHEME = "slurm://"
MIN_AHEAD, MAX_AHEAD = 8, 200
"""Attempts that may wait in Slurm's queue."""
START_SECONDS = 60
"""Time that is allowed for from the begin of an allocation until a job starts in it."""
MIN_SECONDS = 300
"""The shortest time limit of an allocation that is of use."""
DEFAULT_IDLE_SECONDS, DEFAULT_MAX_PILOTS = 300, 1
OWN_OPTIONS = (
    "-J", "--job-name", "-a", "--array", "-d", "--dependency", "-o", "--output", "-e", "--error",
    "-N", "--nodes", "-n", "--ntasks", "--requeue", "--wrap", "-W", "--wait", "--parsable",
)  # fmt: skip
"""Options of sbatch that stoker sets itself."""


class PilotShape(Struct, frozen=True):
    """One allocation that joins as a node, and how many of them there may be."""

    gpus: int = 0
    model: str = ""
    cores: int = 1
    memory: int = 0
    """MiB; 0: what the cluster gives by default."""
    seconds: int = 0
    """Time limit of an allocation."""
    max_pilots: int = DEFAULT_MAX_PILOTS
    idle_seconds: int = DEFAULT_IDLE_SECONDS
    """An allocation without jobs is released after this time."""
    vram: int = 0
    """Memory of each GPU in MiB; 0: not known until an allocation joins."""

    @property
    def usable_seconds(self) -> int:
        """The longest time limit of a job that can start in a new allocation."""
        return int(self.seconds - END_GRACE_SECONDS - START_SECONDS)

    def sbatch_options(self) -> list[str]:
        """Return the options of sbatch for such an allocation."""
        words = ["--nodes=1", "--ntasks=1", f"--cpus-per-task={self.cores}"]
        if self.gpus:
            model = f"{self.model}:" if self.model else ""
            words.append(f"--gres=gpu:{model}{self.gpus}")
        if self.memory:
            words.append(f"--mem={self.memory}M")
        return [*words, f"--time={-(-self.seconds // 60)}"]

    def node_facts(self, name: str) -> NodeFacts:
        """Return the resources that such a node has, as far as they are declared."""
        types: dict[str, tuple[DeviceFacts, ...]] = {
            CPU: (DeviceFacts(POOL_PREFIX, self.cores * THOUSAND),)
        }
        if self.memory:
            types[MEMORY] = (DeviceFacts(POOL_PREFIX, self.memory),)
        if self.gpus:
            types[GPU] = tuple(
                DeviceFacts(
                    str(index), index=index, model=self.model or None, memory=self.vram or None
                )
                for index in range(self.gpus)
            )
        limit = max(self.usable_seconds, 1)
        return NodeFacts(name, types, on_demand=self.max_pilots, max_seconds=limit)


class SlurmOptions(Struct, frozen=True):
    """What a user says of a Slurm cluster."""

    pilot: PilotShape
    login: str = ""
    """The login node over SSH; empty: Slurm's commands run on this host."""
    sbatch: tuple[str, ...] = ()
    """Options that every sbatch gets."""
    ahead: int | None = None
    """Attempts that may wait in Slurm's queue; None: about twice as many as run there."""

    @property
    def has_pilots(self) -> bool:
        """Whether allocations are requested that join as nodes."""
        return self.pilot.max_pilots > 0

    @property
    def hands_over(self) -> bool:
        """Whether attempts become Slurm jobs: all, or those that no pilot can run."""
        return not self.has_pilots or self.ahead is not None


def parse_options(options: Mapping[str, str]) -> SlurmOptions:
    """Parse the options of a node of the kind `slurm`; raise BadValue."""
    unknown = sorted(set(options) - {"pilot", "ahead", "ssh", "sbatch"})
    if unknown:
        known = "pilot, ahead, ssh or sbatch"
        raise BadValue(f"A Slurm cluster has no option '{unknown[0]}': {known}.")
    try:
        words = tuple(shlex.split(options.get("sbatch", "")))
    except ValueError:
        raise BadValue("The options of sbatch have an unclosed quote.") from None
    for word in words:
        name = word.partition("=")[0]
        if name in OWN_OPTIONS:
            raise BadValue(f"stoker sets {name} itself; leave it out of the options of sbatch.")
    pilot = parse_pilot(options["pilot"]) if "pilot" in options else PilotShape(max_pilots=0)
    ahead = parse_ahead(options["ahead"]) if "ahead" in options else None
    return SlurmOptions(pilot, options.get("ssh", ""), words, ahead)


def parse_ahead(text: str) -> int:
    """Parse the number of attempts that may wait in Slurm's queue; raise BadValue."""
    if not text.isdecimal() or not 0 < int(text) <= MAX_AHEAD:
        raise BadValue(f"--ahead takes a whole number from 1 to {MAX_AHEAD}, not '{text}'.")
    return int(text)


def cluster_addition(
    name: str, options: Mapping[str, str], shared: bool, at: float, configured: bool = False
) -> NodeAdded:
    """Return the event that adds a cluster; raise BadValue.

    Without a login node, its commands are here, and so are its files.
    """
    parsed = parse_options(options)
    if 0 < parsed.pilot.seconds < MIN_SECONDS:
        least = approximate_duration(MIN_SECONDS)
        raise BadValue(f"--pilot: time= must be at least {least}: no job starts near the end.")
    if parsed.login:
        parse_address(parsed.login)
    return NodeAdded(
        at=at, name=name, address=SCHEME, executor="slurm", options=dict(options),
        shared=shared or not parsed.login, configured=configured,
    )  # fmt: skip


def parse_pilot(text: str) -> PilotShape:
    """Parse `gpus=2 time=8h max=4 idle=5m cores=8 mem=32G vram=40G`; raise BadValue."""
    values: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or not value or name not in ("gpus", *_PARSERS):
            known = ", ".join(("gpus", *_PARSERS))
            raise BadValue(f"--pilot: '{word}' is not one of {known}, each with =VALUE.")
        if name in values:
            raise BadValue(f"--pilot: {name} is given twice.")
        values[name] = value
    if "time" not in values:
        raise BadValue("--pilot needs time=, the time limit of an allocation, such as time=8h.")
    model, _, gpus = values.pop("gpus", "0").rpartition(":")
    fields = {
        field: parse(values[name], name)
        for name, (field, parse) in _PARSERS.items()
        if name in values
    }
    return PilotShape(0 if gpus == "0" else _count(gpus, "gpus"), model, **fields)


def _count(text: str, name: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 4096:
        raise BadValue(f"--pilot: {name} takes a whole number from 1 on, not '{text}'.")
    return int(text)


def _seconds(text: str, name: str) -> int:
    seconds = int(parse_duration(text, name))
    if seconds < 60:
        raise BadValue(f"--pilot: {name}={text} is too short; write at least {name}=1m.")
    return seconds


def _idle(text: str, name: str) -> int:
    return int(parse_duration(text, name))


_PARSERS: dict[str, tuple[str, Callable[[str, str], int]]] = {
    "time": ("seconds", _seconds),
    "max": ("max_pilots", _count),
    "idle": ("idle_seconds", _idle),
    "cores": ("cores", _count),
    "mem": ("memory", parse_memory),
    "vram": ("vram", parse_memory),
}


def describe(options: SlurmOptions) -> str:
    """Return what a cluster provides as a phrase."""
    waiting = options.ahead or f"{MIN_AHEAD} to {MAX_AHEAD}"
    if not options.has_pilots:
        return f"one Slurm job per attempt, at most {waiting} of them waiting"
    shape = options.pilot
    parts = [f"{shape.gpus} {shape.model} GPU{'s' * (shape.gpus != 1)}".replace("  ", " ")]
    parts = parts if shape.gpus else []
    parts.append(f"{shape.cores} core{'s' * (shape.cores != 1)}")
    parts += [f"{shape.memory} MiB of memory"] if shape.memory else []
    limit, idle = approximate_duration(shape.seconds), approximate_duration(shape.idle_seconds)
    count = f"{shape.max_pilots} allocation{'s' * (shape.max_pilots != 1)}"
    text = f"up to {count} of {', '.join(parts)} for {limit}, released after {idle} without jobs"
    if options.hands_over:
        text += f"; a Slurm job for each attempt that these cannot run, at most {waiting} waiting"
    return text
