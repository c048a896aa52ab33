"""MetricsStore: metric series on disk, read back downsampled.

While an attempt runs, its report is the record; when its directory is removed, the report is
archived under `series`. Reports of remote attempts are written there as they arrive.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from math import inf
from typing import Any

from stoker.core.model.job import AttemptId
from stoker.daemon.metrics.downsample import Downsampler
from stoker.daemon.reports.format import Line, LineFile, numbers, timestamp
from stoker.daemon.reports.paths import report_directory
from stoker.executors.linux.log_file import open_regular

PIECE = 256 * 1024
SCRAPED_SUFFIX = ".found"
"""Suffix of the archived metrics that were scraped from the log of a remote attempt."""
DEFAULT_POINTS, MAX_POINTS = 500, 1_000_000
"""Points per series: unless the request names a number, and at most."""
MAX_CACHED_POINTS = 10_000
"""Series with at most this many points stay in memory for the next request."""
MAX_CACHED_JOBS = 32
MAX_SERIES_PER_JOB = 1000


def archived_report(home: str, key: AttemptId) -> str:
    """Return the path of the report of a remote attempt, and of any that has ended."""
    return f"{home}/series/{key}"


def append_remote_report(home: str, key: AttemptId, data: bytes, offset: int) -> None:
    """Write bytes of a report on a remote node at their offset in the local copy."""
    path = archived_report(home, key)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        fd = os.open(path, flags, 0o600)
        try:
            os.pwrite(fd, data, offset)
        finally:
            os.close(fd)


def archive_metrics(directory: str) -> None:
    """Move the report out of a report directory that is about to be removed, if it has metrics."""
    root, name = os.path.split(directory)
    home, parent = os.path.split(root)
    if parent != "training":
        return
    path, report = f"{home}/series/{name}", f"{directory}/report"
    with contextlib.suppress(OSError):
        if os.path.lexists(path) and not _has_metrics(path):
            os.unlink(path)
        if _has_metrics(report):
            os.makedirs(f"{home}/series", 0o700, exist_ok=True)
            os.rename(report, f"{path}{SCRAPED_SUFFIX}" if os.path.lexists(path) else path)


def _has_metrics(path: str) -> bool:
    fd = open_regular(path)
    if fd is None:
        return False
    with os.fdopen(fd, "rb", buffering=0) as file:
        overlap = b""
        while data := file.read(PIECE):
            if b'"metrics"' in overlap + data:
                return True
            overlap = data[-16:]
    return False


class ReportFile(LineFile, kw_only=True):
    """The report of one attempt."""

    attempt: int = 0
    before_step: float = inf
    """Points at this step or later were measured again by a later attempt."""
    before_epoch: float = inf
    """The same for points without a step."""

    def new_metrics(self) -> Iterator[Line]:
        """Yield the lines with metrics that were appended since the last call."""
        more = True
        while more:
            lines, more = self.read(PIECE)
            yield from (line for line in lines if line.k == "metrics" and isinstance(line.v, dict))


class JobSeries:
    """All metric series of one job, downsampled; continued as its reports grow."""

    def __init__(self, home: str, job: int, max_points: int) -> None:
        self.home, self.job, self.max_points = home, job, max_points
        self.count = 0
        """Number of points before downsampling."""
        self._series: dict[str, Downsampler] = {}
        self._files: list[ReportFile] = []

    def read(self, last_attempt: int) -> None:
        """Read what is new in the reports of all attempts up to this one."""
        files = _report_files(self.home, self.job, last_attempt)
        if list(map(_identity, files)) != list(map(_identity, self._files)):
            # With another attempt, other points of the earlier ones count.
            self._files, self._series, self.count = files, {}, 0
        for file, latest in zip(self._files, files, strict=True):
            file.path = latest.path  # it may have been archived
        for file in self._files:
            for line in file.new_metrics():
                self._add_line(file, line)

    def _add_line(self, file: ReportFile, line: Line) -> None:
        step = line.s
        if step is None:
            if line.e is not None and line.e >= file.before_epoch:
                return
        elif not step < file.before_step:
            return
        at = timestamp(line.t)
        for name, value in numbers(line.v).items():
            series = self._series.get(name) or self._add_series(name)
            if series is not None:
                self.count += 1
                series.add(step, value, at)

    def _add_series(self, name: str) -> Downsampler | None:
        """Return a new series unless there are too many; replace lone surrogates in its name."""
        name = name.encode("utf-8", "replace").decode()
        if name not in self._series and len(self._series) < MAX_SERIES_PER_JOB:
            self._series[name] = Downsampler(self.max_points)
        return self._series.get(name)

    def view(self, names: list[str]) -> dict[str, Any]:
        """Return the series of these names, or all, in the order of their first points."""
        selected = {
            name: series for name, series in self._series.items() if not names or name in names
        }
        return {
            "names": list(self._series),
            "series": {name: series.points() for name, series in selected.items()},
            "summary": {name: series.summary() for name, series in selected.items()},
            "count": self.count,
        }


def _report_files(home: str, job: int, last_attempt: int) -> list[ReportFile]:
    """Return the reports of a job, oldest first, each with where a later attempt repeats it."""
    files: list[ReportFile] = []
    before_step = before_epoch = inf
    for attempt in range(last_attempt, -1, -1):
        archived = archived_report(home, AttemptId(job, attempt))
        report = f"{report_directory(home, AttemptId(job, attempt))}/report"
        of_attempt = [
            ReportFile(
                path=path, attempt=attempt, before_step=before_step, before_epoch=before_epoch
            )
            for path in (report, f"{archived}{SCRAPED_SUFFIX}", archived)
            if os.path.lexists(path)
        ]
        for file in of_attempt:
            step, epoch = _first_point(file.path)
            before_step, before_epoch = min(before_step, step), min(before_epoch, epoch)
        files += of_attempt
    return files[::-1]


def _first_point(path: str) -> tuple[float, float]:
    """Return the step of a report's first point; of a point without a step, its epoch."""
    for line in ReportFile(path=path).new_metrics():
        if line.s is not None:
            return line.s, inf
        return inf, inf if line.e is None else line.e
    return inf, inf


def _identity(file: ReportFile) -> tuple[int, float, float]:
    return file.attempt, file.before_step, file.before_epoch


class MetricsStore:
    """Reads metric series; the latest ones stay in memory, so that only new lines are read."""

    def __init__(self, home: str) -> None:
        self.home = home
        self._cache: dict[tuple[int, int], JobSeries] = {}

    def read(self, job: int, last_attempt: int, names: list[str], points: int) -> dict[str, Any]:
        """Return the series of a job over all attempts up to the last one. Blocks on files."""
        series = self._cache.pop((job, points), None) or JobSeries(self.home, job, points)
        series.read(last_attempt)
        view = series.view(names)
        if points <= MAX_CACHED_POINTS:
            self._cache[job, points] = series
        while len(self._cache) > MAX_CACHED_JOBS:
            self._cache.pop(next(iter(self._cache)), None)
        return view
