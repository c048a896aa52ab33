"""Advance reservations: devices reserved for some users, groups or queues for a time."""

from __future__ import annotations

from collections.abc import Container, Iterable

from msgspec import Struct

from stoker.core.model.limits import Subject
from stoker.core.model.resources import GPU, Placement


class AdvanceReservation(Struct, frozen=True, omit_defaults=True):
    """GPUs, or whole nodes, on which only jobs of its subjects may run from its begin to its end.

    Times are on the wall clock.
    """

    name: str
    begin: float
    end: float
    gpus: tuple[str, ...] = ()
    """GPUs as `node/name`."""
    nodes: tuple[str, ...] = ()
    """Nodes that are reserved with all that they have."""
    subjects: tuple[Subject, ...] = ()
    """What its jobs belong to; empty: no job may run there."""
    user: str = ""
    """The user that made it."""
    created: float = 0.0

    def admits(self, keys: Container[str]) -> bool:
        """Whether a job with these keys of user, groups and queue may use it."""
        return any(subject.key in keys for subject in self.subjects)

    def overlaps(self, begin: float, end: float) -> bool:
        """Whether it and this time have a moment in common; the begin always counts."""
        return self.begin < max(end, begin + 1e-6) and begin < self.end

    def has_gpu(self, node: str, gpu: str) -> bool:
        """Whether it has a GPU."""
        return node in self.nodes or f"{node}/{gpu}" in self.gpus

    def holds(self, parts: Iterable[Placement]) -> bool:
        """Whether it has a node or a GPU of these parts of an attempt."""
        return any(
            part.node in self.nodes or any(self.has_gpu(part.node, gpu) for gpu in part.names(GPU))
            for part in parts
        )
