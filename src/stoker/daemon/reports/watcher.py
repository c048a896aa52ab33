"""Hearing at once that a training job has written something, as far as the kernel helps."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import Protocol

from stoker.executors.linux.inotify import Inotify
from stoker.executors.local.executor import Poller

LOOK = 1.0
"""Seconds between looks where the kernel does not tell us."""
NO_MORE = (errno.ENOSPC, errno.ENOMEM)
"""What the kernel says when it has no more watches."""
ROOT = 0
"""What the directory of all reports is watched for; no job has this number."""


class ReportListener(Protocol):
    """Who wants to know."""

    def appeared(self, job: int) -> None:
        """There is a directory that seems to be of this job."""

    def grew(self, job: int) -> None:
        """There may be something new in its report."""

    def look_around(self) -> None:
        """Anything may have happened."""


class ReportWatcher:
    """Watches the directory of all reports, and each report that is being written."""

    def __init__(self, root: str, poller: Poller, listener: ReportListener) -> None:
        self.root, self.poller, self.listener = root, poller, listener
        self.inotify: Inotify | None = None
        self.jobs: dict[int, int] = {}
        """Jobs by the kernel's numbers for watches."""
        self.directories: dict[int, int] = {}
        """The watch on each job's directory, while there is no report in it."""
        self.look_at = 0.0

    def begin(self) -> None:
        """Listen from now on."""
        with contextlib.suppress(OSError):
            os.makedirs(self.root, 0o700, exist_ok=True)
        try:
            self.inotify = Inotify()
            self.jobs[self.inotify.watch_directory(self.root)] = ROOT
            self.poller.watch(self.inotify.fd, self._changed)
        except OSError:
            self.close()

    def close(self) -> None:
        """Hear no more: who still wants to know must look."""
        inotify, self.inotify = self.inotify, None
        if inotify is not None:
            self.poller.unwatch(inotify.fd)
            inotify.close()
        self.jobs, self.directories = {}, {}

    def _changed(self) -> None:
        for change in self.inotify.changes() if self.inotify is not None else []:
            if change.over:
                # Of a file, each change ends its watch; and one that was renewed in the very
                # moment in which the kernel ended it has ended as well. So look, and renew it.
                ended = self.jobs.pop(change.watch, None)
                if ended == ROOT:  # the directory of all reports was deleted
                    self.close()
                    return
                if ended is not None:
                    self.listener.grew(ended)
                continue
            job, name = self.jobs.get(change.watch), change.name.partition(".")[0]
            if change.lost:
                self.listener.look_around()
            elif job:
                self.listener.grew(job)
            elif job == ROOT and name.isdecimal():
                self.listener.appeared(int(name))

    def attend(self, job: int, path: str) -> None:
        """Hear of the next thing that is written in a job's directory. Then read what is there."""
        try:
            if self.inotify is not None:
                self._attend(self.inotify, job, path)
        except OSError as error:
            if error.errno in NO_MORE:
                self.close()

    def _attend(self, inotify: Inotify, job: int, path: str) -> None:
        for _ in range(2):
            with contextlib.suppress(FileNotFoundError):
                self.jobs[inotify.watch_file(f"{path}/report")] = job
                self.forget(job)
                return
            if job not in self.directories:  # and a report may appear before that is watched
                watch = self.directories[job] = inotify.watch_directory(path)
                self.jobs[watch] = job

    def forget(self, job: int) -> None:
        """Its directory does not matter any more."""
        watch = self.directories.pop(job, None)
        if watch is not None and self.inotify is not None:
            self.inotify.unwatch(watch)

    def look_if_due(self) -> None:
        """Where nobody tells us, look."""
        now = time.monotonic()
        if self.inotify is None and now >= self.look_at:
            self.look_at = now + LOOK
            self.listener.look_around()

    def wait(self) -> float | None:
        """Seconds until the next look; None: there is no need for one."""
        return None if self.inotify is not None else max(self.look_at - time.monotonic(), 0.0)
