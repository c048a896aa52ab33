"""A probe client with its own event loop."""

import time
from collections.abc import Mapping

from stoker.daemon.gpus.probe_client import ProbeClient
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.probes.gpu_reading import Reading

TIMEOUT = 30


class ProbeLoop:
    """Asks the real probe process and waits for its readings."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.reactor = EpollReactor()
        self.readings: list[Reading] = []
        self.probe = ProbeClient(self.reactor, self.readings.append, env)
        self.pids: set[int] = set()
        """Every process that was asked."""

    @property
    def pid(self) -> int:
        return self.probe.process.pid

    def ask(self) -> None:
        self.probe.ask()
        self.pids.add(self.pid)

    def wait(self, timeout: float = TIMEOUT) -> Reading | None:
        """Return the reading that arrives next, None if there is none in time."""
        deadline = time.monotonic() + timeout
        while not self.readings and time.monotonic() < deadline:
            self.reactor.wait(0.05)
        return self.readings.pop() if self.readings else None

    def read(self) -> Reading:
        """Ask and return the answer."""
        self.ask()
        reading = self.wait()
        assert reading is not None
        return reading

    def close(self) -> None:
        self.probe.close()
