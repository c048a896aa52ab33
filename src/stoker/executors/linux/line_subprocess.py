"""LineSubprocess: a child that talks in lines over non-blocking pipes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from stoker import places
from stoker.executors.reactor import Reactor, Timer

CHUNK = 1 << 16
MAX_CHUNKS = 16
"""Chunks of stderr read after the end; a pipe holds no more."""
MAX_STDERR = 4096
MAX_LINE = 256 << 20
REAP_SECONDS = 1.0
"""Between tries to reap a killed child: stuck in a driver, it may live on for hours."""
_RESET = [
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGPIPE,
]  # fmt: skip


class LineSubprocess:
    """A Python child process, started on demand and again after it has ended. Never blocks."""

    def __init__(
        self,
        reactor: Reactor,
        on_line: Callable[[bytes], None],
        on_exit: Callable[[str], None],
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`on_line` gets every line; `on_exit` the reason when the child ends by itself."""
        self.reactor, self.on_line, self.on_exit, self.env = reactor, on_line, on_exit, env
        self.pid = 0
        self._stdin = self._stdout = self._stderr = -1
        self._unsent = b""
        self._line = bytearray()
        self._errors = b""
        self._killed: list[int] = []
        """Children that were killed and have not been reaped yet."""
        self._reaping = Timer(reactor, lambda: None if self.reap() else REAP_SECONDS)

    @property
    def is_running(self) -> bool:
        """Return True between `start` and the end of the child."""
        return self.pid != 0

    def start(self, command: Sequence[str]) -> bool:
        """Start `python COMMAND`; after a failure, `on_exit` is called and False returned."""
        child_stdin, self._stdin = os.pipe()
        self._stdout, child_stdout = os.pipe()
        self._stderr, child_stderr = os.pipe()
        for fd in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(fd, False)
        actions: list[tuple[int, int] | tuple[int, int, int]] = [
            (os.POSIX_SPAWN_CLOSE, fd) for fd in places.inheritable_descriptors()
        ]
        actions += [
            (os.POSIX_SPAWN_DUP2, child_stdin, 0),
            (os.POSIX_SPAWN_DUP2, child_stdout, 1),
            (os.POSIX_SPAWN_DUP2, child_stderr, 2),
        ]
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, *command],
                os.environ if self.env is None else self.env,
                file_actions=actions,
                setsid=True,  # a ^C at the daemon's terminal is not meant for the child
                setsigmask=(),
                setsigdef=_RESET,
            )
        except OSError as error:
            self._close_pipes()
            self.on_exit(f"it cannot be started: {os.strerror(error.errno or 0)}")
            return False
        finally:
            for fd in (child_stdin, child_stdout, child_stderr):
                os.close(fd)
        self._unsent, self._line, self._errors = b"", bytearray(), b""
        self.reactor.add_reader(self._stdout, self._read_stdout)
        self.reactor.add_reader(self._stderr, self._read_stderr)
        return True

    def send(self, data: bytes) -> bool:
        """Write what the pipe takes now, the rest later; return False if the child is gone."""
        has_backlog = bool(self._unsent)
        self._unsent += data
        return has_backlog or self._write()

    def _write(self) -> bool:
        if not self.pid:
            return False
        try:
            sent = os.write(self._stdin, self._unsent)
        except BlockingIOError:
            sent = 0
        except BrokenPipeError:
            return False  # the end of its stdout gives the reason
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self.reactor.add_writer(self._stdin, self._write)
        return True

    def _read_stdout(self) -> None:
        try:
            chunk = os.read(self._stdout, CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self.fail(self._exit_reason())
            return
        head, *tail = chunk.split(b"\n")
        self._line += head
        if len(self._line) > MAX_LINE:
            self.fail("it sent too much data")
        if not tail:
            return
        lines, self._line = [bytes(self._line), *tail[:-1]], bytearray(tail[-1])
        pid = self.pid
        for line in lines:
            if pid and self.pid == pid:  # else a line before has ended this child
                self.on_line(line)

    def _read_stderr(self) -> bool:
        """Keep the last bytes of stderr; return True if there were any."""
        try:
            chunk = os.read(self._stderr, CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self.reactor.remove_reader(self._stderr)
        self._errors = (self._errors + chunk)[-MAX_STDERR:]
        return bool(chunk)

    def _exit_reason(self) -> str:
        """Return the last line of stderr, or the signal that has ended the child."""
        for _ in range(MAX_CHUNKS):
            if not self._read_stderr():
                break
        lines = self._errors.decode(errors="replace").split("\n")
        reason = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if not reason and (number := _ending_signal(self.pid)):
            reason = f"it was killed by {signal.Signals(number).name}"
        return reason or "it ended without an error message"

    def fail(self, reason: str) -> None:
        """Kill the child and report it as ended for this reason."""
        self.stop()
        self.on_exit(reason)

    def stop(self) -> None:
        """Kill the child, if there is one, without waiting for its end; no callback follows."""
        pid, self.pid = self.pid, 0
        if not pid:
            return
        self._close_pipes()
        # A child that was not reaped keeps its pid, so the signal cannot hit another process.
        if not _reap(pid):
            os.kill(pid, signal.SIGKILL)
            self._killed.append(pid)
            self._reaping.request(REAP_SECONDS)

    def reap(self) -> bool:
        """Collect killed children without waiting; return True if none is left."""
        self._killed = [pid for pid in self._killed if not _reap(pid)]
        return not self._killed

    def close(self, timeout: float = 1.0) -> None:
        """Stop the child and wait for its end for a while; it may be stuck in a driver."""
        self.stop()
        deadline = time.monotonic() + timeout
        while not self.reap() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _close_pipes(self) -> None:
        for fd in (self._stdin, self._stdout, self._stderr):
            self.reactor.remove_reader(fd)
            os.close(fd)
        self._stdin = self._stdout = self._stderr = -1


def _reap(pid: int) -> bool:
    """Collect a child if it has ended; return True if it is gone."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _ending_signal(pid: int) -> int:
    """Return the signal that a child was killed by, 0 for none; does not collect the child."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    killed = (os.CLD_KILLED, os.CLD_DUMPED)
    return result.si_status if result is not None and result.si_code in killed else 0
