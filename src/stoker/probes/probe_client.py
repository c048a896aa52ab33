"""The daemon's end of the helper process: ask, go on working, receive; abandon it when it hangs.

Made for an epoll loop: nothing here blocks except `read_once`. The heavy imports are the child's.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Mapping

import msgspec

from stoker.probes.gpu_reading import Reading, decode

_LONGEST_LINE = 16 << 20
_RESET = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1]


class ProbeProcess:
    """One helper process, started when first asked and again whenever it has ended."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = env
        self._pid = 0
        self._to_child = -1
        self._from_child = -1
        self._buffer = b""
        self._abandoned: list[int] = []
        self.waiting_since: float | None = None
        """When the outstanding question was asked (monotonic); None when none is."""
        self.generation = 0
        """Grows with every start: `fileno()` then is a new pipe, even under an old number."""

    @property
    def running(self) -> bool:
        """Tell whether there is a child to ask."""
        return self._pid != 0

    def start(self) -> None:
        """Start the child, unless it runs."""
        if self._pid:
            return
        child_in, self._to_child = os.pipe()
        self._from_child, child_out = os.pipe()
        os.set_blocking(self._to_child, False)
        os.set_blocking(self._from_child, False)
        # -P: the directory where the daemon happens to stand must not lend us its modules.
        argv = [sys.executable, "-P", "-m", "stoker.probes.probe_main"]
        actions: list[tuple[int, int] | tuple[int, int, int] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable()
        ]
        actions += [
            (os.POSIX_SPAWN_DUP2, child_in, 0),
            (os.POSIX_SPAWN_DUP2, child_out, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                argv,
                os.environ if self._env is None else self._env,
                file_actions=actions,
                setsid=True,  # a ^C at our terminal is not meant for it
                setsigmask=(),  # the daemon blocks what it reads from a signalfd
                setsigdef=_RESET,
            )
        except OSError:
            self._close_pipes()
            raise
        finally:
            os.close(child_in)
            os.close(child_out)
        self._buffer = b""
        self.generation += 1

    def ask(self) -> None:
        """Send a question, unless one is outstanding; OSError when no child can be started."""
        if self.waiting_since is not None:
            return
        self.start()
        try:
            os.write(self._to_child, b"read\n")
        except BrokenPipeError:  # it ended since the last answer
            self._forget()
            self.start()
            os.write(self._to_child, b"read\n")
        self.waiting_since = time.monotonic()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable with an answer; -1 while no child runs."""
        return self._from_child

    def receive(self) -> Reading | None:
        """Return the answer if it is there in full; call it when `fileno()` is readable."""
        while self._from_child >= 0:
            try:
                data = os.read(self._from_child, 65536)
            except BlockingIOError:
                return None
            if not data:
                return self._ended("the process that reads the GPUs ended without an answer")
            self._buffer += data
            line, end, rest = self._buffer.partition(b"\n")
            if end:
                self._buffer = rest
                return self._answer(line)
            if len(self._buffer) > _LONGEST_LINE:
                return self._ended("the process that reads the GPUs sent too much data")
        return None

    def abandon(self) -> None:
        """Kill the child and forget it at once: stuck in the driver, it may not die for hours."""
        self._forget()

    def reap(self) -> None:
        """Collect abandoned children that have died meanwhile; never waits."""
        self._abandoned = [pid for pid in self._abandoned if _alive(pid)]

    def close(self) -> None:
        """End the child; what does not die at once is left to `reap` or to init."""
        self._forget()
        self.reap()

    def _answer(self, line: bytes) -> Reading | None:
        if self.waiting_since is None:  # nobody asked: it is out of step with us
            return self._ended("")
        try:
            reading = decode(line)
        except msgspec.DecodeError as error:
            return self._ended(f"the process that reads the GPUs sent an invalid answer: {error}")
        self.waiting_since = None
        return reading

    def _ended(self, why: str) -> Reading | None:
        asked = self.waiting_since is not None
        self._forget()
        return Reading(error=why) if asked else None

    def _forget(self) -> None:
        self._close_pipes()
        self.waiting_since = None
        self._buffer = b""
        pid, self._pid = self._pid, 0
        # Asking first makes the kill safe: a pid that is still our child was not given away.
        if pid and _alive(pid):
            os.kill(pid, signal.SIGKILL)
            self._abandoned.append(pid)

    def _close_pipes(self) -> None:
        for fd in (self._to_child, self._from_child):
            if fd >= 0:
                os.close(fd)
        self._to_child = self._from_child = -1


def read_once(timeout: float, env: Mapping[str, str] | None = None) -> Reading:
    """Look at the GPUs once, waiting at most `timeout` seconds for the driver."""
    probe = ProbeProcess(env)
    deadline = time.monotonic() + timeout
    poller = select.poll()
    try:
        probe.ask()
        poller.register(probe.fileno(), select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if poller.poll(left * 1000):
                reading = probe.receive()
                if reading is not None:
                    return reading
    except OSError as error:
        return Reading(error=f"the process that reads the GPUs cannot be started: {error}")
    finally:
        probe.close()
    return Reading(error=f"the NVIDIA driver did not answer within {timeout:g} s")


def _alive(pid: int) -> bool:
    """Tell whether this child of ours has not died; collects it when it has."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def _inheritable() -> list[int]:
    """Return the descriptors above stderr that a child would inherit (locks held for shims)."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if fd > 2 and os.get_inheritable(fd):
                found.append(fd)
        except OSError:
            pass  # the descriptor of this very listing
    return found
