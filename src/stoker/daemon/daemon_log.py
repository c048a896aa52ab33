"""The daemon's log: set-up of `logging`, a file that rotates, a line per notable event."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from stoker.core import events as e
from stoker.core.measurement.foreign_use import in_words

MAX_BYTES = 4 << 20
BACKUPS = 3
"""Earlier files that are kept: daemon.log.1 is the newest of them."""
REPEAT_SECONDS = 60.0
"""A message that repeats the one before it is written at most once in this time."""

logger = logging.getLogger(__name__)


class LineFormatter(logging.Formatter):
    """A record starts a line; what follows (a traceback) is indented. No control characters."""

    default_msec_format = "%s.%03d"

    def __init__(self, form: str = "%(asctime)s %(levelname)s %(name)s: %(message)s") -> None:
        super().__init__(form)

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of one record."""
        return "\n  ".join(_printable(line) for line in super().format(record).split("\n"))


class DaemonLogHandler(logging.Handler):
    """Appends to the log file and rotates it by size. A line that cannot be written is counted.

    Whatever the daemon's stderr receives (a crash in native code, a helper process) goes to
    the same file, also after a rotation, when stderr was the log at the beginning.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.setFormatter(LineFormatter())
        self._fd = -1
        self._lost = 0
        self._last: tuple[str, int, str] | None = None
        self._last_at = 0.0
        self._repeats = 0
        self.is_stderr = _same_file(2, path)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless it repeats the one before."""
        message = (record.name, record.levelno, record.getMessage())
        if message == self._last and record.created - self._last_at < REPEAT_SECONDS:
            self._repeats += 1
            return
        self._last, self._last_at = message, record.created
        self._write(self._notes() + self.format(record) + "\n")

    def _notes(self) -> str:
        """Return notes about lines that were repeated or could not be written."""
        repeats, self._repeats = self._repeats, 0
        notes = f"  the line above was repeated {repeats} times\n" if repeats else ""
        if self._lost:
            notes += f"  {self._lost} lines could not be written here\n"
        return notes

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        try:
            self._prepare()
            if os.write(self._fd, data) < len(data):
                self._lost += 1
            else:
                self._lost = 0
        except OSError:  # disk full, directory gone: the daemon goes on
            self._lost += 1

    def _prepare(self) -> None:
        """Have the file open: a new one if it was removed or has grown too large."""
        try:
            file = os.stat(self.path)
            if file.st_size >= MAX_BYTES:
                self._rotate()
            elif self._fd >= 0 and os.path.samestat(file, os.fstat(self._fd)):
                return
        except FileNotFoundError:
            pass
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        if self.is_stderr:
            os.dup2(fd, 1)
            os.dup2(fd, 2)

    def _rotate(self) -> None:
        for number in range(BACKUPS - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{self.path}.{number}", f"{self.path}.{number + 1}")
        os.rename(self.path, f"{self.path}.1")

    def close(self) -> None:
        """Write the pending note, and close the file."""
        if self._repeats:
            self._write(self._notes())
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        super().close()


class StderrHandler(logging.StreamHandler[Any]):
    """Shows records on the terminal of a daemon in the foreground, without blocking."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record unless that would block: a terminal may be stopped, a pipe full."""
        with contextlib.suppress(OSError, ValueError):
            if select.select([], [2], [], 0)[1]:
                super().emit(record)


def configure(path: str, stderr_level: int = logging.NOTSET) -> None:
    """Send all records to the log file, and to stderr too unless that is the same file."""
    logging.raiseExceptions = False  # the daemon does not fail because its log does
    handler = DaemonLogHandler(path)
    root = logging.getLogger()
    root.handlers = [handler]
    if not handler.is_stderr:
        shown = StderrHandler()
        shown.setLevel(stderr_level)
        shown.setFormatter(LineFormatter("stoker: %(message)s"))
        root.addHandler(shown)
    set_level("info")
    threading.excepthook = lambda args: _uncaught(
        args, f"thread {args.thread and args.thread.name}"
    )
    sys.unraisablehook = lambda args: _uncaught(args, args.err_msg or repr(args.object))
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # stderr may be closed
        faulthandler.enable()


def set_level(name: str) -> None:
    """Log records of stoker from this level on; those of other packages from warning on."""
    logging.getLogger("stoker").setLevel(name.upper())


def _uncaught(args: Any, where: str) -> None:
    logger.error(
        "uncaught exception in %s",
        where,
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )


def _printable(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


# -- events ---------------------------------------------------------------------------------


def _devices(devices: Iterable[tuple[str, str, str]]) -> str:
    return ", ".join(f"{node}/{device}" for node, _, device in devices)


def _node_closed(event: e.NodeCordoned) -> str:
    if event.why is None:
        return f"node {event.node} accepts jobs again"
    return f"node {event.node} accepts no new jobs: {event.why}"


def _foreign_use(event: e.ForeignUseChanged) -> str:
    use = in_words(event.foreign_user) if event.foreign_user else "is free of foreign processes"
    return f"GPU {event.node}/{event.device} {use}"


INFO, WARNING = logging.INFO, logging.WARNING
_LINES: dict[type[e.Event], tuple[int, Callable[[Any], str]]] = {
    e.NodeAdded: (INFO, lambda v: f"node {v.name} added: {v.address}"),
    e.NodeRemoved: (INFO, lambda v: f"node {v.name} removed{v.why and f': {v.why}'}"),
    e.NodeReached: (INFO, lambda v: f"node {v.node} is up"),
    e.NodeUnreachable: (
        WARNING, lambda v: f"node {v.node} is {'queued' if v.queued else 'unreachable'}: {v.why}",
    ),
    e.NodeCordoned: (INFO, _node_closed),
    e.AttemptLost: (WARNING, lambda v: f"job {v.job}.{v.attempt} is lost: {v.why}"),
    e.AttemptAbandoned: (
        WARNING, lambda v: f"job {v.job}.{v.attempt} on unreachable node {v.node} is abandoned",
    ),
    e.OrphanAttemptsFound: (
        WARNING, lambda v: f"attempt {v.job}.{v.attempt} was started but is not in the journal",
    ),
    e.AttemptRecovered: (
        INFO, lambda v: f"attempt {v.job}.{v.attempt} is not in the journal and is recovered",
    ),
    e.IdsReserved: (WARNING, lambda v: f"job ids continue at {v.next_id}"),
    e.StartFailed: (INFO, lambda v: f"job {v.job}.{v.attempt} cannot be started: {v.why}"),
    e.StartCancelled: (INFO, lambda v: f"start of job {v.job}.{v.attempt} cancelled: {v.why}"),
    e.DevicesDrained: (INFO, lambda v: f"drained {_devices(v.devices)}: {v.reason}"),
    e.DevicesUndrained: (INFO, lambda v: f"undrained {_devices(v.devices)}"),
    e.ForeignUseChanged: (INFO, _foreign_use),
}  # fmt: skip
"""Events that matter to an administrator. All others are written at level debug."""


def log_events(events: Iterable[e.Event]) -> None:
    """Write a line for each event that matters to an administrator."""
    verbose = logger.isEnabledFor(logging.DEBUG)
    for event in events:
        level, describe = _LINES.get(type(event), (logging.DEBUG, _kind))
        if isinstance(event, e.NodeUnreachable) and event.queued:
            level = INFO
        if level > logging.DEBUG or verbose:
            logger.log(level, "%s", describe(event))


def _kind(event: e.Event) -> str:
    """Return an event's name and job, nothing of its content: that may be long or private."""
    job = getattr(event, "job", None)
    return f"{type(event).__name__} job {job}" if isinstance(job, int) else type(event).__name__
