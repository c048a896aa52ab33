"""What an attempt says of its training, line by line. User code writes it: anything may be there.

Lines come in any pieces; what is no line of ours, too long or out of all measure is passed over.
"""

from __future__ import annotations

import json
import os
import stat
from math import isfinite
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, MsgspecError, Struct, convert
from msgspec.json import Decoder

LONGEST = 4096
"""Bytes of a line; a longer one is none of the library's."""
CHUNK = 256 * 1024
"""Bytes of a report that are read at a time."""
LEAP, TAIL = 2 * 1024 * 1024, 256 * 1024
"""Who writes faster than we read: behind by more than this, only the end of it is read."""
OUT_OF_MEASURE = 10.0 * 365 * 86400
"""No epoch takes that many seconds."""
LAST_DAY = 1e11
"""No clock says that."""
MOST_METRICS, LONGEST_NAME, LONGEST_TEXT = 32, 64, 100
EXACT = 1 << 53
"""Whole numbers below this one are the same everywhere."""
REMEMBERED = 4096
"""Epochs that have ended and do not count yet: one at a time, unless somebody makes things up."""

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
    """A line, if it is one of ours."""
    if b"{" not in data:  # a megabyte of newlines would take seconds
        return None
    try:
        return _LINE.decode(data)
    except (MsgspecError, RecursionError, UnicodeError):
        pass
    if b"NaN" not in data and b"Infinity" not in data:
        return None
    try:  # a loss may well be no number, and Python writes that as no other JSON does
        return convert(json.loads(data), Line)
    except (MsgspecError, RecursionError, ValueError):
        return None


def parse_all(data: bytes) -> list[Line]:
    """Those of these lines that are ours: all at once, or one by one if one of them is odd."""
    try:
        return _LINE.decode_lines(data)
    except (MsgspecError, UnicodeError, RecursionError):
        pass
    # A report that was fetched in pieces may have a hole, which reads as zeros.
    lines = (parse(line.lstrip(b"\0")) for line in data.split(b"\n") if len(line) <= LONGEST)
    return [line for line in lines if line is not None]


def seconds(value: float | None) -> float | None:
    """A duration that can be believed."""
    if value is None or not isfinite(value) or not 0 <= value < OUT_OF_MEASURE:
        return None
    return value


def moment(value: float | None) -> float | None:
    """A time of day that can be believed, by the wall clock."""
    return value if value is not None and 0 < value < LAST_DAY else None


class Point(NamedTuple):
    """What was measured at one moment of a training."""

    step: float | None
    """Where in it, if that was said."""
    at: float | None
    values: dict[str, float]
    """Numbers, of which some may be infinite or none at all (NaN)."""


def points_of(data: bytes) -> list[Point]:
    """The figures in these lines; what is nothing of that kind is passed over."""
    found = []
    for line in parse_all(data):
        if line.k == "metrics" and isinstance(line.v, dict) and (values := numbers(line.v)):
            step = line.s if line.s is not None and isfinite(line.s) else None
            found.append(Point(step, moment(line.t), values))
    return found


def numbers(values: dict[Any, Any]) -> dict[str, float]:
    """Those of these figures that are numbers."""
    return {
        str(name): float(value)
        for name, value in values.items()
        if type(value) is float or (type(value) is int and abs(value) < EXACT)
    }


class TrainingReport:
    """All that an attempt has said so far."""

    def __init__(self) -> None:
        self.offset = 0
        """How much of it has been taken."""
        self.rest = b""
        """The beginning of a line whose end has not come."""
        self.skipping = False
        """Whether the line that is coming is not wanted."""
        self.hello = False
        self.counted = 0
        """Epochs that are done and saved."""
        self.ended: dict[int, tuple[float | None, float | None]] = {}
        """How long epochs and their steps took, until they have been counted."""
        self.finished = 0
        """Epochs that have ended; the last of them may not have been saved."""
        self.stopped = False
        """Whether it has said that it stops here, as it was asked to. What is said after that, by
        a wrapper that begins it again, is not heard: the next attempt does that work."""
        self.stop_at: int | None = None
        self.first: float | None = None
        """When its first epoch began."""
        self.epoch: int | None = None
        self.total: int | None = None
        """How many epochs it says there are."""
        self.metrics: dict[str, Any] = {}
        self.at: float | None = None
        """When it last said something."""

    def take(self, data: bytes) -> None:
        """Hear what comes next."""
        self.offset += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if self.skipping:
                self.skipping = False
            elif len(line) <= LONGEST and (found := parse(line)) is not None:
                self._heed(found)
        if self.skipping or len(self.rest) > LONGEST:
            self.rest, self.skipping = b"", True

    def continue_at(self, offset: int) -> None:
        """Go on elsewhere, with the first whole line there."""
        self.offset, self.rest, self.skipping = offset, b"", offset > 0

    def _heed(self, line: Line) -> None:
        if self.stopped:
            return
        at, epoch = moment(line.t), line.e
        self.at = at or self.at
        match line.k:
            case "hello":
                self.hello = True
            case "start" if epoch is not None:
                self.counted = max(self.counted, epoch)
                if self.epoch is None:
                    self.first = at
                self.epoch = epoch
                self.total = line.n or self.total
            case "end" if epoch is not None:
                self.finished = max(self.finished, epoch + 1)
                self.ended[epoch] = (seconds(line.d), seconds(line.s))
                if len(self.ended) > REMEMBERED:
                    del self.ended[next(iter(self.ended))]
            case "metrics" if isinstance(line.v, dict):
                self.metrics |= plain(line.v)
                while len(self.metrics) > MOST_METRICS:
                    del self.metrics[next(iter(self.metrics))]
            case "stop_at" if epoch is not None:
                self.stop_at = epoch
            case "stopped" if epoch is not None:
                self.counted, self.stopped = max(self.counted, epoch), True

    @property
    def figures(self) -> dict[str, float]:
        """The last metrics as they are kept: those that are numbers."""
        return {
            name: float(value) for name, value in self.metrics.items() if not isinstance(value, str)
        }

    def lately(self, before: int, done: int) -> tuple[float | None, float | None]:
        """How long each of these epochs took, and a step in them; then forget them."""
        found = [took for epoch, took in self.ended.items() if before <= epoch < done]
        for epoch in [epoch for epoch in self.ended if epoch < done]:
            del self.ended[epoch]
        return mean([took for took, _ in found]), mean([step for _, step in found])


def mean(values: list[float | None]) -> float | None:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def plain(values: dict[Any, Any]) -> dict[str, Any]:
    """Metrics that can be shown: numbers and short texts."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, str) or (isinstance(value, float) and not isfinite(value)):
            found[_text(name, LONGEST_NAME)] = _text(value)
        elif isinstance(value, float) or (isinstance(value, int) and abs(value) < EXACT):
            found[_text(name, LONGEST_NAME)] = value
    return found


def _text(value: Any, longest: int = LONGEST_TEXT) -> str:
    return str(value)[:longest].encode("utf-8", "replace").decode()


def open_regular(path: str) -> int | None:
    """Open a file for reading that is a file, not something that was put in its place."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return fd


def read_on(path: str, report: TrainingReport, most: int = CHUNK) -> bool | None:
    """Take what was added to a file; whether there is more, or None when there is no file."""
    fd = open_regular(path)
    if fd is None:
        return None
    try:
        size = os.fstat(fd).st_size
        if size < report.offset:  # somebody has cut it short
            report.continue_at(0)
        left = size - report.offset
        if report.offset and left > LEAP:  # never on the first read: the first lines matter
            report.continue_at(size - TAIL)
            left = TAIL
        data = os.pread(fd, min(left, most), report.offset)
    except OSError:
        return False
    finally:
        os.close(fd)
    report.take(data)
    return len(data) > 0 and left > len(data)


def read_steps(path: str) -> Line | None:
    """The heartbeat that an attempt leaves in place."""
    fd = open_regular(path)
    if fd is None:
        return None
    try:
        return parse(os.pread(fd, LONGEST, 0).partition(b"\n")[0])
    except OSError:
        return None
    finally:
        os.close(fd)
