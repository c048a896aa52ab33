"""NodeReadings: asks the agent for measurements of its node and parses them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from stoker.executors.agent.session.framing import ProtocolError
from stoker.executors.agent.session.reconnecting import ReconnectingSession
from stoker.executors.port import AttemptRecords, ExecutorSink, NodeReading
from stoker.executors.reactor import Timer

BUSY_SECONDS, IDLE_SECONDS = 3.0, 10.0
"""Between measurements of a node, while there are jobs and otherwise."""
MAX_READING_BYTES = 512 << 10
"""Bytes that a node may report about itself at once."""


class AgentReading(NodeReading, Protocol):
    """What the agent measured on its node."""

    @property
    def complete(self) -> bool:
        """Whether the measurement is complete."""

    @property
    def hung(self) -> bool:
        """Whether the GPU driver did not answer."""

    @property
    def driver_error(self) -> str | None:
        """The message of the GPU driver."""

    @property
    def home(self) -> str:
        """The home directory on the node."""

    @property
    def tools(self) -> frozenset[str]:
        """The programs that the node has."""


class NodeReadings:
    """Measurements of one node."""

    def __init__(
        self,
        connection: ReconnectingSession,
        parse: Callable[[bytes], AgentReading],
        records: AttemptRecords,
    ) -> None:
        self.connection, self.parse, self.records = connection, parse, records
        self.home: str | None = None
        """The home directory on the node, known after the first measurement."""
        self.has_bash = True
        self.timer = Timer(connection.reactor, self._request)
        self._is_pending = False
        """Whether a measurement was requested that has not arrived."""
        self._lines: list[str] = []
        """The lines of it that have."""
        self._size = 0
        self._has_reading = False

    def forget(self) -> None:
        """Forget what is known of the node: its connection is lost."""
        self.home, self._has_reading = None, False
        self.timer.cancel()

    def restart(self) -> None:
        """Measure over a new connection."""
        self._is_pending = False
        self._request()

    def measure_soon(self) -> None:
        """Measure in a moment, if there is a connection."""
        if self.connection.is_up:
            self.timer.request(0.0)

    def _request(self) -> None:
        if not self._is_pending:
            self._is_pending, self._lines, self._size = True, [], 0
        self.connection.request(None, "measure")

    def add_line(self, line: str) -> None:
        """Take one line of a measurement; ignore what was not requested."""
        if not self._is_pending:
            return
        self._size += len(line) + 1
        if self._size > MAX_READING_BYTES:
            raise ProtocolError(f"a node report of more than {MAX_READING_BYTES} bytes")
        self._lines.append(line)

    def finish(self, sink: ExecutorSink) -> AgentReading | None:
        """Return a measurement that has arrived, if it can be used; plan the next one."""
        if not self._is_pending:
            return None
        self._is_pending = False
        text, self._lines = "\n".join(self._lines), []
        reading = self.parse(os.fsencode(text))
        if not reading.complete:
            self.timer.request(BUSY_SECONDS)
            return None
        if reading.hung:
            # The earlier reading of the GPUs stays valid: they would be lost otherwise.
            sink.reading_failed(reading.driver_error)
            self.timer.request(IDLE_SECONDS)
            if self._has_reading:
                return None
        self.home, self.has_bash = reading.home, "bash" in reading.tools
        self._has_reading = True
        self.timer.request(BUSY_SECONDS if self.records.has_work() else IDLE_SECONDS)
        return reading
