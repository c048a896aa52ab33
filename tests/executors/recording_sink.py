"""A sink that keeps what an executor reports."""

from collections.abc import Sequence

from stoker.core.events import Event
from stoker.executors.port import NODE, AttemptId, NodeReading, PartHost


class RecordingSink:
    """Keeps events and everything else that is reported, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.reports: list[tuple[AttemptId, int | None, int, bytes]] = []
        self.ups: list[list[AttemptId]] = []
        self.downs: list[str] = []
        self.gone: list[str] = []
        self.readings: list[NodeReading] = []
        self.errors: list[str | None] = []
        self.ready_parts: list[tuple[AttemptId, int, int]] = []
        self.hosts: dict[int, PartHost] = {}
        """Of parts that were ready, by rank."""
        self.left_behind: list[AttemptId] = []

    def event(self, event: Event) -> None:
        self.events.append(event)

    def report_data(self, attempt: AttemptId, rank: int | None, offset: int, data: bytes) -> None:
        self.reports.append((attempt, rank, offset, data))

    def node_up(self, ended: Sequence[AttemptId]) -> None:
        self.ups.append(list(ended))

    def node_down(self, why: str) -> None:
        self.downs.append(why)

    def node_gone(self, why: str) -> None:
        self.gone.append(why)

    def node_reading(self, reading: NodeReading) -> None:
        self.readings.append(reading)

    def reading_failed(self, error: str | None) -> None:
        self.errors.append(error)

    def ready(self, attempt: AttemptId, rank: int, port: int, host: PartHost = NODE) -> None:
        self.ready_parts.append((attempt, rank, port))
        self.hosts[rank] = host

    def checkpoints_left_behind(self, attempt: AttemptId) -> None:
        self.left_behind.append(attempt)
