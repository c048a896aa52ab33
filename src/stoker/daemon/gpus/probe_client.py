"""ProbeClient: GPU readings from the probe process, so that a driver that hangs blocks only that.

Stuck in a driver, a process may survive SIGKILL for hours; it is abandoned then and reaped later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.linux.line_subprocess import LineSubprocess
from stoker.executors.reactor import Reactor
from stoker.probes.gpu_reading import Reading

COMMAND = ("-P", "-m", "stoker.probes.probe_main")
"""-P: modules in the daemon's working directory must not be imported."""


class ProbeClient:
    """Asks one probe process for readings; starts it on demand and again after it has ended."""

    def __init__(
        self,
        reactor: Reactor,
        on_reading: Callable[[Reading], None],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.on_reading = on_reading
        self.process = LineSubprocess(reactor, self._on_line, self._on_exit, env)
        self.requested_at: float | None = None
        """When the pending reading was requested (monotonic); None without one."""

    def ask(self) -> None:
        """Have `on_reading` called with a new reading, unless a question is open."""
        if self.requested_at is not None:
            return
        self.requested_at = time.monotonic()
        if self.process.is_running:
            if self.process.send(b"read\n"):
                return
            self.process.stop()  # it has ended since the last answer
        if self.process.start(COMMAND):
            self.process.send(b"read\n")

    def _on_line(self, line: bytes) -> None:
        if self.requested_at is None:  # a line without a question: it is out of step
            self.process.stop()
            return
        try:
            reading = msgspec.json.decode(line, type=Reading)
        except msgspec.DecodeError as error:
            self.process.stop()
            reading = _failure(f"sent an invalid answer: {error}")
        self._answer(reading)

    def _on_exit(self, reason: str) -> None:
        if self.requested_at is not None:
            self._answer(_failure(f"ended without an answer: {reason}"))

    def _answer(self, reading: Reading) -> None:
        self.requested_at = None
        self.on_reading(reading)

    def abandon(self) -> None:
        """Kill the process without waiting for its end; an open question gets no answer."""
        self.requested_at = None
        self.process.stop()

    def close(self) -> None:
        """End the process; one that does not end at once is left to init."""
        self.abandon()
        self.process.reap()


def _failure(what: str) -> Reading:
    return Reading(error=f"the process that reads the GPUs {what}")


def read_once(timeout: float, env: Mapping[str, str] | None = None) -> Reading:
    """Return one reading; block at most `timeout` seconds for the driver."""
    readings: list[Reading] = []
    reactor, deadline = EpollReactor(), time.monotonic() + timeout
    probe = ProbeClient(reactor, readings.append, env)
    probe.ask()
    while not readings and (left := deadline - time.monotonic()) > 0:
        reactor.wait(left)
    probe.close()
    reactor.close()
    if readings:
        return readings[0]
    return Reading(error=f"the NVIDIA driver did not answer within {timeout:g} s")
