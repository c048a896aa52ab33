"""PilotClusterExecutor: the node that stands for a cluster; its attempts run in pilots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from stoker.core.launch.launch import Launch
from stoker.core.model.resources import NodeFacts
from stoker.executors.pilot_shape import PilotShape
from stoker.executors.port import (
    AttemptId,
    Barrier,
    Capability,
    Executor,
    ExecutorSink,
    RecoverableAttempt,
    Upload,
)
from stoker.executors.reactor import Timer


class ClusterMonitor(Protocol):
    """Polls a cluster for all its pilots."""

    timer: Timer
    """When it polls next."""

    def open(self, on_polled: Callable[[str | None], None]) -> None:
        """Poll from now on, and pass on the error of each poll."""

    def retire(self) -> None:
        """End the pilots that are left."""

    def close(self) -> None:
        """Poll no more."""


class PilotClusterReading(Struct, frozen=True):
    """A cluster that answers, and the shape of its pilots."""

    pilot: PilotShape
    cores: int = 0
    memory_total: int = 0
    memory_available: int = 0

    def node_facts(self, name: str) -> NodeFacts:
        """Return the resources of the nodes that the cluster provides."""
        return self.pilot.node_facts(name)


class PilotClusterExecutor(Executor):
    """Reports whether the cluster answers."""

    def __init__(self, monitor: ClusterMonitor, pilot: PilotShape) -> None:
        self.monitor, self.pilot = monitor, pilot
        self._sink: ExecutorSink | None = None
        self._is_reported = False
        """Whether the last poll succeeded, and that was reported."""

    @property
    def capabilities(self) -> Capability:
        """None: no attempt is started here."""
        return Capability(0)

    @property
    def address(self) -> str | None:
        """None: a cluster is no host."""
        return None

    def has_attempts(self) -> bool:
        """Return False."""
        return False

    def open(self, sink: ExecutorSink) -> None:
        """Poll the cluster from now on."""
        self._sink = sink
        self.monitor.open(self._on_polled)

    def _on_polled(self, error: str | None) -> None:
        assert self._sink is not None
        if error is not None:
            self._is_reported = False
            self._sink.node_down(error)
        elif not self._is_reported:
            self._is_reported = True
            self._sink.node_up([])
            self._sink.node_reading(PilotClusterReading(self.pilot))

    def recover(self, attempts: Sequence[RecoverableAttempt]) -> None:
        """Do nothing: no attempt was started here."""

    def start(self, launch: Launch, barrier: Barrier | None = None) -> None:
        """Never called: nothing is placed on this node."""

    def release(self, attempt: AttemptId, rank: int, environment: Mapping[str, str] | None) -> None:
        """Do nothing."""

    def terminate(self, attempt: AttemptId, grace: float) -> None:
        """Do nothing."""

    def signal(
        self,
        attempt: AttemptId,
        number: int,
        only_if_handled: bool = False,
        to_script: bool = False,
    ) -> None:
        """Do nothing."""

    def suspend(self, attempt: AttemptId) -> None:
        """Do nothing."""

    def resume(self, attempt: AttemptId) -> None:
        """Do nothing."""

    def abandon(self, attempt: AttemptId) -> None:
        """Do nothing."""

    def send_control(self, attempt: AttemptId, rank: int, name: str, text: str) -> None:
        """Do nothing."""

    def acknowledge(self, attempts: Sequence[AttemptId]) -> None:
        """Do nothing."""

    def upload_progress(self, attempt: AttemptId) -> Upload | None:
        """Return None."""
        return None

    def follow_log(self, job: int) -> None:
        """Do nothing."""

    def refresh(self) -> None:
        """Poll now, and report the result."""
        self._is_reported = False
        self.monitor.timer.request(0.0)

    def remove(self) -> None:
        """End the pilots that are left."""
        self.monitor.retire()

    def close(self) -> None:
        """Poll no more; pilots continue."""
        self.monitor.close()
