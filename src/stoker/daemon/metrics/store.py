"""The figures that jobs have reported, over all their attempts: kept as files, read as curves.

While an attempt runs, its report is the record; when its directory goes, the report stays behind
under `series`. Reports of attempts on other machines are written there as they are heard.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from math import inf
from typing import Any

from msgspec import Struct

from stoker.daemon.metrics.downsample import Downsampler
from stoker.daemon.reports.format import EXACT, LONGEST, Line, moment, open_regular, parse_all

PIECE = 256 * 1024
FOUND = ".found"
"""After the name of a file: what was found in the output of an attempt on another machine."""
POINTS, MOST_POINTS = 500, 1_000_000
"""Points of each curve, unless other numbers are asked for; and how many can be."""
SMALL = 10_000
"""Curves with so many points are kept, for whoever asks again."""
MOST_NAMES = 1000
"""Curves of one job; more are somebody's mistake."""

Key = tuple[int, int]


def kept(home: str, key: Key) -> str:
    """Where the report of an attempt on another machine is kept, and of any that is over."""
    return f"{home}/series/{key[0]}.{key[1]}"


def mirror(home: str, key: Key, data: bytes, offset: int) -> None:
    """Keep a piece of a report that is on another machine, at its place in it."""
    path = kept(home, key)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        fd = os.open(path, flags, 0o600)
        try:
            os.pwrite(fd, data, offset)
        finally:
            os.close(fd)


def keep(directory: str) -> None:
    """An attempt's directory is about to be removed: keep its figures, if there are any."""
    root, name = os.path.split(directory)
    home, what = os.path.split(root)
    if what != "training":
        return
    path, report = f"{home}/series/{name}", f"{directory}/report"
    with contextlib.suppress(OSError):
        if os.path.lexists(path) and not _holds_figures(path):
            os.unlink(path)
        if _holds_figures(report):
            os.makedirs(f"{home}/series", 0o700, exist_ok=True)
            os.rename(report, f"{path}{FOUND}" if os.path.lexists(path) else path)


def _holds_figures(path: str) -> bool:
    fd = open_regular(path)
    if fd is None:
        return False
    with os.fdopen(fd, "rb", buffering=0) as file:
        before = b""
        while data := file.read(PIECE):
            if b'"metrics"' in before + data:
                return True
            before = data[-16:]
    return False


class Source(Struct):
    """A report, and how far it has been read."""

    path: str
    attempt: int = 0
    before: float = inf
    """Points at this step or later were measured again by a later attempt."""
    epoch: float = inf
    """The same for points that have no step."""
    offset: int = 0
    rest: bytes = b""

    def lines(self) -> Iterator[list[Line]]:
        """What was added, piece by piece."""
        fd = open_regular(self.path)
        if fd is None:
            return
        try:
            while data := os.pread(fd, PIECE, self.offset):
                self.offset += len(data)
                whole, _, self.rest = (self.rest + data).rpartition(b"\n")
                if whole:
                    yield parse_all(whole)
                if len(self.rest) > LONGEST:
                    self.rest = self.rest[: LONGEST + 1]
        finally:
            os.close(fd)


class Series:
    """The curves of one job, thinned to so many points each; read on as its reports grow."""

    def __init__(self, home: str, job: int, most: int) -> None:
        self.home, self.job, self.most = home, job, most
        self.count = 0
        """Points in all, before any were left out."""
        self._curves: dict[str, Downsampler] = {}
        self._sources: list[Source] = []

    def read(self, last: int) -> None:
        """Take what is there of all attempts up to this one."""
        sources = _sources(self.home, self.job, last)
        if list(map(_identity, sources)) != list(map(_identity, self._sources)):
            # Another attempt: what counts of those before has changed.
            self._sources, self._curves, self.count = sources, {}, 0
        for source, now in zip(self._sources, sources, strict=True):
            source.path = now.path  # it may have moved
        for source in self._sources:
            for lines in source.lines():
                for line in lines:
                    if line.k == "metrics":
                        self._take(source, line)

    def _take(self, source: Source, line: Line) -> None:
        step, values = line.s, line.v
        if not isinstance(values, dict):
            return
        if step is None:
            if line.e is not None and line.e >= source.epoch:
                return
        elif not step < source.before:
            return
        at = moment(line.t)
        for name, value in values.items():
            if type(value) is not float and (type(value) is not int or abs(value) >= EXACT):
                continue
            curve = self._curves.get(name) or self._curve(name)
            if curve is None:
                continue
            self.count += 1
            curve.add(step, float(value), at)

    def _curve(self, name: str) -> Downsampler | None:
        """One that is new, unless there are too many; half a letter is none."""
        name = name.encode("utf-8", "replace").decode()
        if name not in self._curves and len(self._curves) < MOST_NAMES:
            self._curves[name] = Downsampler(self.most)
        return self._curves.get(name)

    def view(self, names: list[str]) -> dict[str, Any]:
        """The curves of these names, or all, in the order in which they came up."""
        chosen = {name: curve for name, curve in self._curves.items() if not names or name in names}
        return {
            "names": list(self._curves),
            "series": {name: curve.points() for name, curve in chosen.items()},
            "summary": {name: curve.summary() for name, curve in chosen.items()},
            "count": self.count,
        }


def _sources(home: str, job: int, last: int) -> list[Source]:
    """The reports of a job, oldest first, each with the step from which on it was overtaken."""
    found: list[Source] = []
    before = epoch = inf
    for attempt in range(last, -1, -1):
        path = kept(home, (job, attempt))
        there = (f"{home}/training/{job}.{attempt}/report", f"{path}{FOUND}", path)
        mine = [Source(path, attempt, before, epoch) for path in there if os.path.lexists(path)]
        for source in mine:
            step, began = _first(source.path)
            before, epoch = min(before, step), min(epoch, began)
        found += mine
    return found[::-1]


def _first(path: str) -> tuple[float, float]:
    """The first step that a report tells, and the first epoch of what it tells without one."""
    for lines in Source(path).lines():
        for line in lines:
            if line.k == "metrics" and isinstance(line.v, dict):
                return (line.s, inf) if line.s is not None else (inf, _epoch(line))
    return inf, inf


def _epoch(line: Line) -> float:
    return inf if line.e is None else line.e


def _identity(source: Source) -> tuple[int, float, float]:
    return source.attempt, source.before, source.epoch


class MetricsStore:
    """The series that were asked for lately, so that a look at one that grows reads the rest."""

    def __init__(self, home: str, most: int = 32) -> None:
        self.home, self.most = home, most
        self._known: dict[tuple[int, int], Series] = {}

    def read(self, job: int, last: int, names: list[str], points: int) -> dict[str, Any]:
        """The curves of a job over all attempts up to the last one. May take a while."""
        series = self._known.pop((job, points), None) or Series(self.home, job, points)
        series.read(last)
        view = series.view(names)
        if points <= SMALL:
            self._known[job, points] = series
        while len(self._known) > self.most:
            self._known.pop(next(iter(self._known)), None)
        return view
