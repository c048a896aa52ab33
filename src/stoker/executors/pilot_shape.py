"""PilotShape: what `--pilot` says of the nodes that a cluster provides; its parser.

Each kind of cluster has a table of its words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from msgspec import Struct

from stoker.core.model.resources import CPU, GPU, MEMORY, POOL_PREFIX, DeviceFacts, NodeFacts
from stoker.core.model.units import (
    THOUSAND,
    BadValue,
    approximate_duration,
    parse_duration,
    parse_memory,
)
from stoker.core.placement.horizon import END_GRACE_SECONDS

MIN_AHEAD, MAX_AHEAD = 8, 200
"""Attempts that may wait in the queue of a cluster."""
START_SECONDS = 60
"""Time that is allowed for from the begin of a pilot until a job starts in it."""
MIN_SECONDS = 300
"""The shortest time limit of a pilot that is of use."""
DEFAULT_IDLE_SECONDS, DEFAULT_MAX_PILOTS = 300, 1
MAX_COUNT = 4096
"""Of GPUs, cores and pilots."""


class PilotShape(Struct, frozen=True):
    """One allocation or pod that joins as a node, and how many of them there may be."""

    gpus: int = 0
    model: str = ""
    cores: int = 1
    memory: int = 0
    """MiB; 0: what the cluster gives by default."""
    seconds: int = 0
    """Time limit of a pilot; 0: none."""
    max_pilots: int = DEFAULT_MAX_PILOTS
    idle_seconds: int = DEFAULT_IDLE_SECONDS
    """A pilot without jobs is released after this time."""
    gpu_memory: int = 0
    """Memory of each GPU in MiB; 0: not known until a pilot joins."""

    @property
    def usable_seconds(self) -> float:
        """The longest time limit of a job that can start in a new pilot."""
        return self.seconds - END_GRACE_SECONDS - START_SECONDS if self.seconds else inf

    def node_facts(self, name: str) -> NodeFacts:
        """Return the resources that such a node has, as far as they are declared."""
        types: dict[str, tuple[DeviceFacts, ...]] = {
            CPU: (DeviceFacts(POOL_PREFIX, self.cores * THOUSAND),)
        }
        if self.memory:
            types[MEMORY] = (DeviceFacts(POOL_PREFIX, self.memory),)
        if self.gpus:
            model, memory = self.model or None, self.gpu_memory or None
            types[GPU] = tuple(
                DeviceFacts(str(index), index=index, model=model, memory=memory)
                for index in range(self.gpus)
            )
        limit = max(int(self.usable_seconds), 1) if self.seconds else 0
        return NodeFacts(name, types, on_demand=self.max_pilots, max_seconds=limit)

    def describe(self) -> str:
        """Return its resources and its time limit as a phrase."""
        parts = [f"{self.cores} core{'s' * (self.cores != 1)}"]
        if self.gpus:
            model = f" {self.model}" if self.model else ""
            parts.insert(0, f"{self.gpus}{model} GPU{'s' * (self.gpus != 1)}")
        if self.memory:
            parts.append(f"{self.memory} MiB of memory")
        limit = f" for {approximate_duration(self.seconds)}" if self.seconds else ""
        return f"{', '.join(parts)}{limit}"


def parse_ahead(text: str) -> int:
    """Parse the number of attempts that may wait in the queue of a cluster; raise BadValue."""
    if not text.isdecimal() or not 0 < int(text) <= MAX_AHEAD:
        raise BadValue(f"--ahead takes a whole number from 1 to {MAX_AHEAD}, not '{text}'.")
    return int(text)


def parse_priorities(text: str, key: str) -> tuple[tuple[int, str], ...]:
    """Parse the JSON of values by the least priority that gets them; return it in that order."""
    found = []
    for least, value in parse_json(text, key, dict).items():
        if not isinstance(value, str) or not least.removeprefix("-").isdecimal():
            raise BadValue(f'{key}: \'{least}\' is not a priority; write "10" = "high".')
        found.append((int(least), value))
    return tuple(sorted(found))


def parse_json(text: str, key: str, kind: type) -> Any:
    """Return a map or a list that is stored as JSON; raise BadValue."""
    try:
        value = json.loads(text)
    except ValueError:
        raise BadValue(f"{key} is not valid JSON.") from None
    if not isinstance(value, kind):
        raise BadValue(f"{key} must be a {'table' if kind is dict else 'list'}.")
    return value


# -- words of --pilot ---------------------------------------------------------------------

WordTable = Mapping[str, tuple[str, Callable[[str, str], Any]]]
"""The field of each word, and what parses its value; the second argument is the word."""


def parse_words(text: str, table: WordTable) -> dict[str, Any]:
    """Parse `gpus=a100:2 time=8h` into fields of a shape; raise BadValue."""
    values: dict[str, str] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name in table and not value:
            raise BadValue(f"--pilot: {name} needs a value; write {name}=VALUE.")
        if name not in table:
            known = ", ".join(table)
            raise BadValue(f"--pilot: '{word}' is not one of {known}, each with =VALUE.")
        if name in values:
            raise BadValue(f"--pilot: {name} is given twice.")
        values[name] = value
    fields = {table[name][0]: table[name][1](value, name) for name, value in values.items()}
    fields["gpus"], fields["model"] = fields.get("gpus", (0, ""))
    return fields


def check_time_limit(shape: PilotShape, is_required: bool = False) -> None:
    """Raise BadValue if no job could start in such a pilot; 0 is no limit unless one is needed."""
    if (is_required or shape.seconds) and shape.seconds < MIN_SECONDS:
        least = approximate_duration(MIN_SECONDS)
        raise BadValue(f"--pilot: time= must be at least {least}: no job starts near the end.")


def _gpus(text: str, name: str) -> tuple[int, str]:
    model, _, gpus = text.rpartition(":")
    return 0 if gpus == "0" else _count(gpus, name), model


def _count(text: str, name: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MAX_COUNT:
        raise BadValue(f"--pilot: {name} takes a whole number from 1 to {MAX_COUNT}, not '{text}'.")
    return int(text)


def _seconds(text: str, name: str) -> int:
    return int(parse_duration(text, name))


COMMON_WORDS: WordTable = {
    "gpus": ("gpus", _gpus),
    "time": ("seconds", _seconds),
    "max": ("max_pilots", _count),
    "idle": ("idle_seconds", _seconds),
    "cores": ("cores", _count),
    "mem": ("memory", parse_memory),
    "vram": ("gpu_memory", parse_memory),
}
