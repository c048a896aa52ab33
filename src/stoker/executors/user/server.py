"""UserServer: carries out what the system daemon asks of one user's process."""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stoker.core.events import (
    AttemptLost,
    Event,
    ForeignUseChanged,
    ProcessExited,
)
from stoker.core.model.job import AttemptId
from stoker.executors.launch.command import write_script
from stoker.executors.launch.paths import ExecutorPaths
from stoker.executors.linux import control_files
from stoker.executors.linux.cgroup import Cgroups
from stoker.executors.linux.epoll_reactor import EpollReactor
from stoker.executors.linux.gpu_locks import GpuLocks
from stoker.executors.linux.thread_pool import TransferPool
from stoker.executors.local.executor import LocalExecutor
from stoker.executors.local.recovery import mark_complete, renew_mark
from stoker.executors.local.supervisor_client import SupervisorClient
from stoker.executors.port import NODE, NodeReading, PartHost
from stoker.executors.user import wire
from stoker.executors.user.directories import UserDirectories, read_boot
from stoker.executors.user.report_tail import ReportTail

MAX_READ_BYTES = 1 << 18
"""Of a file, for one request."""

logger = logging.getLogger(__name__)


class LoggedFaults:
    """Logs the errors of callbacks."""

    def record(self, what: str, error: Exception) -> None:
        """Log an error."""
        logger.error("internal error: %s failed", what, exc_info=error)

    def contain(self, what: str, default: Any, call: Callable[..., Any], /) -> Any:
        """Call a function and return its result; if it fails, log that and return `default`."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - containing is the purpose
            self.record(what, error)
            return default


class UserServer:
    """One user's attempts: a LocalExecutor behind a socket, and its sink."""

    def __init__(
        self,
        sock: socket.socket,
        directories: UserDirectories,
        supervisors: list[SupervisorClient],
    ) -> None:
        self.directories, self._supervisors = directories, supervisors
        self.reactor = EpollReactor(LoggedFaults())
        self._is_running = True
        self._environments: dict[str, bytes] = {}
        self._local: LocalExecutor | None = None
        self.reports = ReportTail(directories.training, self.reactor, self._send_report)
        self._readers = TransferPool(self.reactor)
        self._boot = read_boot()
        self._handlers: dict[type[wire.Message], Callable[[Any], object]] = {
            wire.Configure: self._configure,
            wire.KeepEnvironment: self._keep_environment,
            wire.ForgetEnvironment: lambda m: self._environments.pop(m.hash, None),
            wire.KeepScript: self._keep_script,
            wire.Recover: self._recover,
            wire.DropProofs: self._drop_proofs,
            wire.Start: self._start,
            wire.CancelStart: lambda m: self.local.cancel_start(m.attempt, m.why),
            wire.Release: lambda m: self.local.release(m.attempt, m.rank, m.environment),
            wire.Terminate: lambda m: self.local.terminate(m.attempt, m.grace),
            wire.Signal: lambda m: self.local.signal(
                m.attempt, m.number, m.only_if_handled, m.to_script
            ),
            wire.Suspend: lambda m: self.local.suspend(m.attempt),
            wire.Resume: lambda m: self.local.resume(m.attempt),
            wire.Control: self._write_control,
            wire.Acknowledge: self._acknowledge,
            wire.ReadFile: self._read_file,
        }
        self.connection = wire.Connection(
            sock, self.reactor, wire.ToProcess, wire.MAX_TO_PROCESS, self._handle, self._on_closed
        )

    @property
    def local(self) -> LocalExecutor:
        """The executor, which the first message configures."""
        if self._local is None:
            raise wire.InvalidMessage("the process is not configured yet")
        return self._local

    def run(self) -> None:
        """Serve until the daemon closes the socket."""
        while self._is_running:
            self.reactor.wait()
            self.connection.flush()
        self._readers.close()
        self.reports.close()
        if self._local is not None:
            self._local.close()

    def _on_closed(self, why: str) -> None:
        self._is_running = False

    def _handle(self, message: wire.Message) -> None:
        """Carry out one message; an error concerns this message only."""
        try:
            self._handlers[type(message)](message)
        except Exception as error:
            logger.exception("internal error: message %s failed", type(message).__name__)
            if isinstance(message, wire.Start) and self._local is not None:
                self._local.cancel_start(message.launch.id, f"internal error: {error!r}")

    # -- from the daemon ----------------------------------------------------------------

    def _configure(self, message: wire.Configure) -> None:
        if self._local is not None:
            raise wire.InvalidMessage("the process is configured already")
        paths = self.directories
        self._local = LocalExecutor(
            ExecutorPaths(paths.run, paths.exits, paths.scripts, paths.run),
            message.install, self._supervisors, self.reactor, self._environments.get,
            lambda _: None, message.grace, Cgroups.find(),
            # All users' jobs hold the locks of the daemon's user, which shares GPUs among them.
            GpuLocks(message.locks, message.locks_uid, is_system=True), message.engine,
        )  # fmt: skip
        self._local.open(self)
        self.reports.start()

    def _keep_environment(self, message: wire.KeepEnvironment) -> None:
        self._environments[message.hash] = message.values

    def _keep_script(self, message: wire.KeepScript) -> None:
        path = f"{self.directories.scripts}/{os.path.basename(message.hash)}"
        if not os.path.exists(path):
            write_script(path, message.text)

    def _recover(self, message: wire.Recover) -> None:
        renew_mark(self.directories.run, self._boot)
        for attempt in message.attempts:
            self.reports.add(attempt.id)
        self.local.recover(message.attempts)
        mark_complete(self.directories.run, self._boot)

    def _drop_proofs(self, message: wire.DropProofs) -> None:
        local = self.local
        kept = {*local.attempts, *local.unacknowledged}
        local.drop_proofs(message.next_id, kept)
        self.reports.remove_others(kept)

    def _start(self, message: wire.Start) -> None:
        self.reports.add(message.launch.id)
        self.local.start(message.launch, message.barrier)

    def _write_control(self, message: wire.Control) -> None:
        directory = f"{self.directories.training}/{message.attempt}"
        name = os.path.basename(message.name)
        control_files.write(directory, name, message.text, str(message.attempt.job))

    def _acknowledge(self, message: wire.Acknowledge) -> None:
        self.local.acknowledge(message.attempts)
        for attempt in message.attempts:
            self.reports.remove(attempt)

    def _read_file(self, message: wire.ReadFile) -> None:
        # In a thread: the file may be on a file system that does not answer.
        self._readers.submit(partial(read_part, message), self._on_read)

    def _on_read(self, result: Any) -> None:
        if isinstance(result, wire.FileData):
            self.connection.queue(result)
        else:
            logger.error("a file cannot be read", exc_info=result)

    # -- the sink of the executor -------------------------------------------------------

    def event(self, event: Event) -> None:
        """Report an event, and before an end the rest of its training report."""
        if isinstance(event, ForeignUseChanged):
            return  # the daemon looks at the locks itself
        if isinstance(event, ProcessExited | AttemptLost):
            self.reports.finish(AttemptId(event.job, event.attempt))
        self.connection.queue(wire.Happened(event))  # type: ignore[arg-type]

    def ready(self, attempt: AttemptId, rank: int, port: int, host: PartHost = NODE) -> None:
        """Report that a part waits at its barrier."""
        self.connection.queue(wire.Ready(attempt, rank, port))

    def _send_report(self, attempt: AttemptId, offset: int, data: bytes) -> None:
        self.connection.queue(wire.ReportData(attempt, offset, data))

    def report_data(self, attempt: AttemptId, rank: int | None, offset: int, data: bytes) -> None:
        """Do nothing: `reports` reads them."""

    def node_up(self, ended: Sequence[AttemptId]) -> None:
        """Do nothing: this node is always up."""

    def node_down(self, why: str) -> None:
        """Do nothing: this node is always up."""

    def node_gone(self, why: str) -> None:
        """Do nothing: this node is always up."""

    def node_reading(self, reading: NodeReading) -> None:
        """Do nothing: the daemon measures the node."""

    def reading_failed(self, error: str | None) -> None:
        """Do nothing: the daemon measures the node."""

    def checkpoints_left_behind(self, attempt: AttemptId) -> None:
        """Do nothing: checkpoints stay on this node."""


def read_part(message: wire.ReadFile) -> wire.FileData:
    """Read a part of a regular file with the rights of this process."""
    try:
        fd = os.open(message.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        return _unreadable(message, error.strerror or str(error))
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return _unreadable(message, "not a regular file")
        offset = message.offset if message.offset >= 0 else max(status.st_size + message.offset, 0)
        data = os.pread(fd, min(message.size, MAX_READ_BYTES), offset)
    except OSError as error:
        return _unreadable(message, error.strerror or str(error))
    finally:
        os.close(fd)
    return wire.FileData(message.request, offset, data, status.st_size, status.st_mtime)


def _unreadable(message: wire.ReadFile, why: str) -> wire.FileData:
    return wire.FileData(message.request, 0, b"", -1, 0.0, why)
