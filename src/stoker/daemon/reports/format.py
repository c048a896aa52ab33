"""The report file format: lines, points, TrainingReport accumulator.

User code can write to a report, so it may contain anything: lines that are invalid, too long or
out of range are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from math import isfinite, isnan
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, MsgspecError, Struct, convert
from msgspec.json import Decoder

from stoker.executors.linux.log_file import open_regular

MAX_LINE = 4096
"""Bytes of a line; the library never writes a longer one."""
CHUNK = 256 * 1024
"""Bytes of a report that are read at a time."""
MAX_BACKLOG, TAIL = 2 * 1024 * 1024, 256 * 1024
"""With more unread bytes than MAX_BACKLOG, only the last TAIL bytes are read."""
MAX_DURATION_SECONDS = 10.0 * 365 * 86400
MAX_TIMESTAMP = 1e11
MAX_METRICS, MAX_NAME, MAX_TEXT = 32, 64, 100
MAX_EXACT_INTEGER = 1 << 53
"""Integers below this one are exact in every JSON implementation."""
MAX_UNCOUNTED_EPOCHS = 4096
"""Epochs that have ended but are not saved yet: one at a time in any valid report."""

Epoch = Annotated[int, Meta(ge=0, le=10**9)]


class Line(Struct):
    """One line of a report, or the whole of `steps`."""

    k: str = ""
    e: Epoch | None = None
    t: float | None = None
    d: float | None = None
    n: Annotated[int, Meta(ge=0, le=10**15)] | None = None
    s: float | None = None
    v: Any = None


_LINE = Decoder(Line)


def parse(data: bytes) -> Line | None:
    """Return a line, None if it is not valid."""
    if b"{" not in data:  # a megabyte of newlines would take seconds
        return None
    try:
        return _LINE.decode(data)
    except (MsgspecError, RecursionError, UnicodeError):
        pass
    if b"NaN" not in data and b"Infinity" not in data:
        return None
    try:  # a loss may be NaN, which only Python writes into JSON
        return convert(json.loads(data), Line)
    except (MsgspecError, RecursionError, ValueError):
        return None


def parse_lines(data: bytes) -> list[Line]:
    """Return the valid lines: decoded all at once, or one by one if one of them is invalid."""
    try:
        return _LINE.decode_lines(data)
    except (MsgspecError, UnicodeError, RecursionError):
        pass
    # A report that was fetched in pieces may have a hole, which reads as zeros.
    lines = (parse(line.lstrip(b"\0")) for line in data.split(b"\n") if len(line) <= MAX_LINE)
    return [line for line in lines if line is not None]


def seconds(value: float | None) -> float | None:
    """Return a duration, None if it is not plausible."""
    if value is None or not isfinite(value) or not 0 <= value < MAX_DURATION_SECONDS:
        return None
    return value


def timestamp(value: float | None) -> float | None:
    """Return a wall-clock time, None if it is not plausible."""
    return value if value is not None and 0 < value < MAX_TIMESTAMP else None


class Point(NamedTuple):
    """Metrics at one step of a training."""

    step: float | None
    at: float | None
    values: dict[str, float]
    """Numbers; may be infinite or NaN."""


def metric_points(lines: Iterable[Line]) -> list[Point]:
    """Return the metric points in these lines."""
    points = []
    for line in lines:
        if line.k == "metrics" and isinstance(line.v, dict) and (values := numbers(line.v)):
            step = line.s if line.s is not None and isfinite(line.s) else None
            points.append(Point(step, timestamp(line.t), values))
    return points


def numbers(values: dict[Any, Any]) -> dict[str, float]:
    """Return those of these values that are numbers."""
    return {
        str(name): float(value)
        for name, value in values.items()
        if type(value) is float or (type(value) is int and abs(value) < MAX_EXACT_INTEGER)
    }


class TrainingReport:
    """The content of a report so far."""

    def __init__(self) -> None:
        self.offset = 0
        """Bytes that were fed."""
        self.partial = b""
        """The beginning of a line that is not complete yet."""
        self.skipping = False
        """Whether the rest of the current line is skipped."""
        self.hello = False
        self.counted = 0
        """Epochs that are done and saved."""
        self.ended: dict[int, tuple[float | None, float | None]] = {}
        """Seconds of an epoch and of one of its steps, until the epoch is counted."""
        self.finished = 0
        """Epochs that have ended; the last one may not be saved."""
        self.stopped = False
        """Whether it reported that it stops on request. Later lines, from a wrapper that starts it
        again, are ignored: the next attempt does that work."""
        self.stop_at: int | None = None
        self.first_epoch_at: float | None = None
        """When its first epoch started."""
        self.epoch: int | None = None
        self.total: int | None = None
        """Number of epochs in all, as reported."""
        self.metrics: dict[str, Any] = {}
        self._bad_runs: dict[str, int] = {}
        """By metric: how often in a row it was not a number; 0: it is one."""

    @property
    def nan_metrics(self) -> tuple[str, ...]:
        """Metrics that were not a number in their last two reports: scalers skip single ones."""
        return tuple(name for name, run in self._bad_runs.items() if run > 1)

    def feed(self, data: bytes) -> None:
        """Parse the next bytes."""
        self.offset += len(data)
        *lines, self.partial = (self.partial + data).split(b"\n")
        for line in lines:
            if self.skipping:
                self.skipping = False
            elif len(line) <= MAX_LINE and (parsed := parse(line)) is not None:
                self._apply_line(parsed)
        if self.skipping or len(self.partial) > MAX_LINE:
            self.partial, self.skipping = b"", True

    def continue_at(self, offset: int) -> None:
        """Continue at another offset; the rest of a line there is no valid line."""
        self.offset, self.partial, self.skipping = offset, b"", False

    def _apply_line(self, line: Line) -> None:
        if self.stopped:
            return
        epoch = line.e
        match line.k:
            case "hello":
                self.hello = True
            case "start" if epoch is not None:
                self.counted = max(self.counted, epoch)
                if self.epoch is None:
                    self.first_epoch_at = timestamp(line.t)
                self.epoch = epoch
                self.total = line.n or self.total
            case "end" if epoch is not None:
                self.finished = max(self.finished, epoch + 1)
                self.ended[epoch] = (seconds(line.d), seconds(line.s))
                if len(self.ended) > MAX_UNCOUNTED_EPOCHS:
                    del self.ended[next(iter(self.ended))]
            case "metrics" if isinstance(line.v, dict):
                self.metrics |= _displayable(line.v)
                self._count_bad(numbers(line.v))
                while len(self.metrics) > MAX_METRICS:
                    del self.metrics[next(iter(self.metrics))]
            case "stop_at" if epoch is not None:
                self.stop_at = epoch
            case "stopped" if epoch is not None:
                self.counted, self.stopped = max(self.counted, epoch), True

    def _count_bad(self, values: dict[str, float]) -> None:
        """Count values that are not numbers; an infinite one only after a finite one.

        The best loss so far is infinite before there is one.
        """
        for given, value in values.items():
            name = _text(given, MAX_NAME)
            if isfinite(value):
                self._bad_runs[name] = 0
            elif isnan(value) or name in self._bad_runs:
                self._bad_runs[name] = self._bad_runs.get(name, 0) + 1
        while len(self._bad_runs) > MAX_METRICS:
            del self._bad_runs[next(iter(self._bad_runs))]

    @property
    def numeric_metrics(self) -> dict[str, float]:
        """The latest metrics that are numbers."""
        return {
            name: float(value) for name, value in self.metrics.items() if not isinstance(value, str)
        }

    def take_epoch_times(self, before: int, done: int) -> tuple[float | None, float | None]:
        """Return the mean seconds of these epochs and of a step in them, and forget them."""
        times = [took for epoch, took in self.ended.items() if before <= epoch < done]
        for epoch in [epoch for epoch in self.ended if epoch < done]:
            del self.ended[epoch]
        return _mean([took for took, _ in times]), _mean([step for _, step in times])


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _displayable(values: dict[Any, Any]) -> dict[str, Any]:
    """Return the metrics that can be shown: numbers and short texts."""
    displayable: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, str) or (isinstance(value, float) and not isfinite(value)):
            displayable[_text(name, MAX_NAME)] = _text(value)
        elif isinstance(value, float) or (
            isinstance(value, int) and abs(value) < MAX_EXACT_INTEGER
        ):
            displayable[_text(name, MAX_NAME)] = value
    return displayable


def _text(value: Any, max_length: int = MAX_TEXT) -> str:
    return str(value)[:max_length].encode("utf-8", "replace").decode()


class LineFile(Struct, kw_only=True):
    """A file that grows by lines, and how far it was read."""

    path: str
    offset: int = 0
    partial: bytes = b""
    """The beginning of a line that is not complete yet."""
    end: int | None = None
    """The size up to which it counts; what is appended later is ignored."""

    def read(self, max_bytes: int) -> tuple[list[Line], bool]:
        """Return the next valid lines, and whether there is more."""
        fd = open_regular(self.path)
        if fd is None:
            return [], False
        try:
            size = os.fstat(fd).st_size
            if size < self.offset:  # the file was truncated
                self.offset, self.partial = 0, b""
            if self.end is not None:
                size = min(size, self.end)
            data = os.pread(fd, min(max_bytes, max(size - self.offset, 0)), self.offset)
        except OSError:
            return [], False
        finally:
            os.close(fd)
        self.offset += len(data)
        complete, _, partial = (self.partial + data).rpartition(b"\n")
        self.partial = partial[: MAX_LINE + 1]  # too long for the library, however it ends
        return parse_lines(complete), bool(data) and self.offset < size


def read_on(path: str, report: TrainingReport) -> bool:
    """Feed what was appended to a file; return whether there is more."""
    fd = open_regular(path)
    if fd is None:
        return False
    try:
        size = os.fstat(fd).st_size
        if size < report.offset:  # the file was truncated
            report.continue_at(0)
        unread = size - report.offset
        if report.offset and unread > MAX_BACKLOG:  # never at first: the first lines matter
            report.continue_at(size - TAIL)
            unread = TAIL
        data = os.pread(fd, min(unread, CHUNK), report.offset)
    except OSError:
        return False
    finally:
        os.close(fd)
    report.feed(data)
    return len(data) > 0 and unread > len(data)


def read_steps(path: str) -> Line | None:
    """Return the `steps` file, which the library overwrites in place."""
    fd = open_regular(path)
    if fd is None:
        return None
    try:
        return parse(os.pread(fd, MAX_LINE, 0).partition(b"\n")[0])
    except OSError:
        return None
    finally:
        os.close(fd)
