"""ReportWatcher: inotify on report directories, polling as fallback."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import Protocol

from stoker.executors.linux.inotify import Inotify
from stoker.executors.reactor import Reactor

POLL_SECONDS = 1.0
"""Poll interval where inotify is not available."""
OUT_OF_WATCHES = (errno.ENOSPC, errno.ENOMEM)
"""What inotify_add_watch fails with at the kernel's limit of watches."""
ROOT = 0
"""Stands for the directory of all reports where a job id is expected; no job has this id."""


class ReportListener(Protocol):
    """Receives the changes that a ReportWatcher sees."""

    def on_created(self, job: int) -> None:
        """Handle a new directory that, by its name, belongs to this job."""

    def on_changed(self, job: int) -> None:
        """Handle a possible change of a job's report."""

    def on_overflow(self) -> None:
        """Handle lost notifications: any report may have changed."""


class ReportWatcher:
    """Watches the directory of all reports, and each report that is being written."""

    def __init__(self, root: str, reactor: Reactor, listener: ReportListener) -> None:
        self.root, self.reactor, self.listener = root, reactor, listener
        self.inotify: Inotify | None = None
        self.jobs: dict[int, int] = {}
        """Job by inotify watch descriptor."""
        self.directories: dict[int, int] = {}
        """Watch on each job's directory, while it contains no report."""
        self.next_poll = 0.0

    def start(self) -> None:
        """Watch from now on."""
        with contextlib.suppress(OSError):
            os.makedirs(self.root, 0o700, exist_ok=True)
        try:
            self.inotify = Inotify()
            self.jobs[self.inotify.watch_directory(self.root)] = ROOT
            self.reactor.add_reader(self.inotify.fd, self._read_changes)
        except OSError:
            self.close()

    def close(self) -> None:
        """Stop using inotify; `poll_if_due` polls from now on."""
        inotify, self.inotify = self.inotify, None
        if inotify is not None:
            self.reactor.remove_reader(inotify.fd)
            inotify.close()
        self.jobs, self.directories = {}, {}

    def _read_changes(self) -> None:
        for change in self.inotify.changes() if self.inotify is not None else []:
            if change.over:
                # Watches on files are one-shot, and a watch that was renewed while the kernel
                # removed it is gone as well. So report a change: reading renews the watch.
                ended = self.jobs.pop(change.watch, None)
                if ended == ROOT:  # the directory of all reports was deleted
                    self.close()
                    return
                if ended is not None:
                    self.listener.on_changed(ended)
                continue
            job, name = self.jobs.get(change.watch), change.name.partition(".")[0]
            if change.lost:
                self.listener.on_overflow()
            elif job:
                self.listener.on_changed(job)
            elif job == ROOT and name.isdecimal():
                self.listener.on_created(int(name))

    def watch_job(self, job: int, path: str) -> None:
        """Watch for the next write in a job's directory; read the report after this call."""
        try:
            if self.inotify is not None:
                self._watch_job(self.inotify, job, path)
        except OSError as error:
            if error.errno in OUT_OF_WATCHES:
                self.close()

    def _watch_job(self, inotify: Inotify, job: int, path: str) -> None:
        for _ in range(2):
            with contextlib.suppress(FileNotFoundError):
                self.jobs[inotify.watch_file(f"{path}/report")] = job
                self.forget(job)
                return
            if job not in self.directories:  # the report may be created before this watch exists
                watch = self.directories[job] = inotify.watch_directory(path)
                self.jobs[watch] = job

    def forget(self, job: int) -> None:
        """Stop watching a job's directory."""
        watch = self.directories.pop(job, None)
        if watch is not None and self.inotify is not None:
            self.inotify.unwatch(watch)

    def poll_if_due(self) -> None:
        """Without inotify, have the listener check all reports once per interval."""
        now = time.monotonic()
        if self.inotify is None and now >= self.next_poll:
            self.next_poll = now + POLL_SECONDS
            self.listener.on_overflow()

    def seconds_until_poll(self) -> float | None:
        """Return the seconds until the next poll, None if inotify works."""
        return None if self.inotify is not None else max(self.next_poll - time.monotonic(), 0.0)
