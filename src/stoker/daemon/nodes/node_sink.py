"""NodeSink: receives the reports of one node's executor for the registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.core.events import Event
from stoker.core.model.job import AttemptId
from stoker.executors.port import NODE, NodeReading, PartHost

if TYPE_CHECKING:
    from stoker.daemon.nodes.registry import ExecutorRegistry


class NodeSink:
    """Passes reports on together with the name of their node."""

    def __init__(self, registry: ExecutorRegistry, name: str) -> None:
        self._registry, self._name = registry, name

    def event(self, event: Event) -> None:
        """Queue an event."""
        self._registry.on_event(self._name, event)

    def report_data(self, attempt: AttemptId, rank: int | None, offset: int, data: bytes) -> None:
        """Pass on new data of a training report."""
        self._registry.on_report_data(attempt, rank, data, offset)

    def node_up(self, ended: Sequence[AttemptId]) -> None:
        """Note that all attempts on the node are accounted for."""
        self._registry.on_node_up(self._name, ended)

    def node_down(self, why: str) -> None:
        """Note that the node does not answer."""
        self._registry.on_node_down(self._name, why)

    def node_gone(self, why: str) -> None:
        """Remove the node, and lose the attempts on it."""
        self._registry.on_node_gone(self._name, why)

    def node_reading(self, reading: NodeReading) -> None:
        """Store a measurement."""
        self._registry.on_node_reading(self._name, reading)

    def reading_failed(self, error: str | None) -> None:
        """Note that the GPU driver did not answer."""
        self._registry.on_reading_failed(self._name, error)

    def ready(self, attempt: AttemptId, rank: int, port: int, host: PartHost = NODE) -> None:
        """Note that a part of a gang is ready."""
        self._registry.gangs.on_ready(self._name, attempt, rank, port, host)

    def checkpoints_left_behind(self, attempt: AttemptId) -> None:
        """Note that a job can resume on this node only."""
        self._registry.on_checkpoints_left_behind(self._name, attempt)
