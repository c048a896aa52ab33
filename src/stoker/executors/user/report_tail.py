"""ReportTail: sends what attempts append to their training reports."""

from __future__ import annotations

import _thread
import os
import time
from collections.abc import Callable, Collection

from stoker.core.model.job import AttemptId
from stoker.executors.linux.log_file import open_regular
from stoker.executors.linux.report_watcher import ReportWatcher
from stoker.executors.reactor import Reactor, Timer

READ_INTERVAL_SECONDS = 0.25
"""Minimum time between two reads of one report, however much is written to it."""
CHUNK = 1 << 18

Send = Callable[[AttemptId, int, bytes], object]
"""Called with an attempt, and bytes of its report and their offset."""


class ReportTail:
    """Watches the reports of a user's attempts; of a job, only the current attempt is read."""

    def __init__(self, root: str, reactor: Reactor, send: Send) -> None:
        self._root, self._send = root, send
        self._watcher = ReportWatcher(root, reactor, self)
        self._attempts: dict[int, AttemptId] = {}
        self._offsets: dict[AttemptId, int] = {}
        self._read_at: dict[AttemptId, float] = {}
        self._dirty: set[AttemptId] = set()
        self._timer = Timer(reactor, self._read_dirty)

    def start(self) -> None:
        """Watch from now on."""
        self._watcher.start()

    def close(self) -> None:
        """Stop watching."""
        self._watcher.close()

    def add(self, attempt: AttemptId) -> None:
        """Send the report of an attempt from its beginning, which is sent again if need be."""
        self._attempts[attempt.job] = attempt
        self._offsets[attempt] = 0
        self.on_created(attempt.job)

    def on_created(self, job: int) -> None:
        """Handle a new directory that, by its name, belongs to this job."""
        attempt = self._attempts.get(job)
        if attempt is not None and os.path.isdir(self._directory(attempt)):
            self.on_changed(job)

    def on_changed(self, job: int) -> None:
        """Handle a possible change of a job's report."""
        attempt = self._attempts.get(job)
        if attempt is not None:
            self._dirty.add(attempt)
            self._timer.request(self._seconds_until_read(attempt))

    def on_overflow(self) -> None:
        """Handle lost notifications: any report may have changed."""
        for job in list(self._attempts):
            self.on_created(job)

    def finish(self, attempt: AttemptId) -> None:
        """Send the rest of the report of an attempt that has ended."""
        if attempt in self._offsets:
            while self._read(attempt):
                pass
            self._dirty.discard(attempt)
            self._watcher.forget(attempt.job)

    def remove(self, attempt: AttemptId) -> None:
        """Remove the report of an attempt: the daemon has it on disk."""
        self._offsets.pop(attempt, None)
        self._read_at.pop(attempt, None)
        self._dirty.discard(attempt)
        if self._attempts.get(attempt.job) == attempt:
            del self._attempts[attempt.job]
        if os.path.lexists(self._directory(attempt)):
            _thread.start_new_thread(_remove, (self._directory(attempt),))

    def remove_others(self, kept: Collection[AttemptId]) -> None:
        """Remove the reports of all attempts but these."""
        names = {str(attempt) for attempt in kept}
        for name in os.listdir(self._root):
            if name not in names:
                _thread.start_new_thread(_remove, (f"{self._root}/{name}",))

    def _directory(self, attempt: AttemptId) -> str:
        return f"{self._root}/{attempt}"

    def _seconds_until_read(self, attempt: AttemptId) -> float:
        due = self._read_at.get(attempt, 0.0) + READ_INTERVAL_SECONDS
        return max(due - time.monotonic(), 0.0)

    def _read_dirty(self) -> float | None:
        self._watcher.poll_if_due()
        for attempt in [each for each in self._dirty if self._seconds_until_read(each) <= 0]:
            self._dirty.discard(attempt)
            if attempt not in self._offsets:
                continue
            self._read_at[attempt] = time.monotonic()
            self._watcher.watch_job(attempt.job, self._directory(attempt))
            if self._read(attempt):
                self._dirty.add(attempt)
        waits = [self._seconds_until_read(attempt) for attempt in self._dirty]
        poll = self._watcher.seconds_until_poll()
        if poll is not None and self._attempts:
            waits.append(poll)
        return min(waits, default=None)

    def _read(self, attempt: AttemptId) -> bool:
        """Send the next bytes of a report; return whether there is more."""
        fd = open_regular(f"{self._directory(attempt)}/report")
        if fd is None:
            return False
        try:
            size, offset = os.fstat(fd).st_size, self._offsets[attempt]
            if size < offset:  # the file was truncated
                offset = 0
            data = os.pread(fd, CHUNK, offset)
        except OSError:
            return False
        finally:
            os.close(fd)
        if data:
            self._send(attempt, offset, data)
        self._offsets[attempt] = offset + len(data)
        return bool(data) and offset + len(data) < size


def _remove(directory: str) -> None:
    from shutil import rmtree

    rmtree(directory, ignore_errors=True)
