"""Figures in what a job writes: lines of its output, or a JSON, JSON-lines or CSV file."""

from __future__ import annotations

import csv
import glob
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

PIECE = 1 << 18
"""Bytes of a file that are looked at before others get their turn."""
LONGEST = 1 << 16
"""Bytes of a line that is looked at."""
LARGEST = 64 << 20
"""Bytes of a file that can only be read as a whole."""
STEPS = ("step", "global_step", "_step", "iteration", "epoch")
"""What says where a figure belongs; the first of them that is there."""
DEEPEST = 4
"""Objects in objects, whose names are joined by a slash."""


class Point(NamedTuple):
    """Figures, where they belong, and where they were found."""

    values: dict[str, float]
    step: float | None
    at: float
    file: str
    place: Any
    """What has been read of the file with this, in whatever way that is counted."""


class Extractor(Protocol):
    """Where the figures of one attempt are found."""

    known: dict[str, Any]
    """How far each file has been read."""

    def look(self, over: bool) -> tuple[list[Point], bool]:
        """The next figures, and whether there may be more. `over`: nothing more is written."""


def number(text: object) -> float | None:
    """What people write for a number: `0.31`, `0.31,`, `97%`, `nan`."""
    if isinstance(text, str):
        text = text.strip().strip(",;:%()[]")
    elif not isinstance(text, (int, float)):
        return None
    try:
        return float(text)
    except (ValueError, OverflowError):
        return None


class LogExtractor:
    """A pattern, tried on every line of a job's output."""

    def __init__(self, text: str, name: str, files: list[str], since: float) -> None:
        try:
            self.pattern = re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(str(error)) from None
        self.name, self.files = name, files
        self.known: dict[str, Any] = {}
        self.read: dict[str, int] = {}
        """How far each was looked at; of what was found, `known` tells after a restart."""

    def __str__(self) -> str:
        return self.pattern.pattern

    def look(self, over: bool) -> tuple[list[Point], bool]:
        """The next figures of all files."""
        points: list[Point] = []
        more = False
        for place, path in enumerate(self.files):
            file = str(place)
            start = self.read.get(file, _whole(self.known.get(file)))
            if start > _size(path):
                start = 0  # it was begun anew
            data, at = _piece(path, start)
            left = len(data) == PIECE
            for line, end in _lines(data, whole=over and not left):
                found = self._found(line.decode(errors="replace")) if len(line) <= LONGEST else None
                if found is not None:
                    points.append(Point(*found, at, file, start + end))
                self.read[file] = start + end
            if left and self.read.get(file, start) == start:
                self.read[file] = start + len(data)  # all of it is one endless line
            more = more or left
        return points, more

    def _found(self, line: str) -> tuple[dict[str, float], float | None] | None:
        match = self.pattern.search(line)
        if match is None:
            return None
        named = match.groupdict()
        step = number(named.pop("step", None))
        if "value" in named:
            named[self.name] = named.pop("value")
        elif self.name not in named:
            names = set(self.pattern.groupindex.values())
            bare = [match.group(n) for n in range(1, self.pattern.groups + 1) if n not in names]
            if bare or not named:
                named[self.name] = bare[0] if bare else match.group()
        values = {
            name: value for name, text in named.items() if (value := number(text)) is not None
        }
        return (values, step) if values else None


class FileExtractor:
    """A file, or several, that the job writes figures to; read again whenever one has changed."""

    def __init__(self, text: str, name: str, files: list[str], since: float) -> None:
        self.pattern, self.name, self.since = files[0], name, since
        self.known: dict[str, Any] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}

    def __str__(self) -> str:
        return self.pattern

    def look(self, over: bool) -> tuple[list[Point], bool]:
        """What has been added to these files since the last look."""
        points: list[Point] = []
        more = False
        for path in sorted(glob.glob(self.pattern)) or [self.pattern]:
            try:
                found = os.stat(path)
            except OSError:
                continue
            now = (found.st_mtime_ns, found.st_size, found.st_ino)
            if self._seen.get(path) == now and not over:
                continue
            if found.st_mtime < self.since:
                continue  # it is of an earlier run
            new, left = self._read(path, found.st_mtime, over)
            points += new
            more = more or left
            if not left:
                self._seen[path] = now
        return points, more

    def _read(self, path: str, at: float, over: bool) -> tuple[list[Point], bool]:
        head, _ = _piece(path, 0, 4096)
        start = head.lstrip()[:1]
        if start in (b"{", b"["):
            if not path.endswith((".jsonl", ".ndjson")) and not _has_lines(head):
                return self._read_whole(path, at), False
            return self._read_lines(path, at, over, 0, _from_json)
        header = head.partition(b"\n")
        if not header[1]:
            return [], False
        columns = _cells(header[0].decode(errors="replace"))
        first = len(header[0]) + 1

        def from_csv(line: str) -> dict[str, Any]:
            return dict(zip(columns, _cells(line, header[0]), strict=False))

        return self._read_lines(path, at, over, first, from_csv)

    def _read_lines(
        self, path: str, at: float, over: bool, first: int, row: Callable[[str], dict[str, Any]]
    ) -> tuple[list[Point], bool]:
        """One object or row per line, added at the end."""
        known = self.known.get(path)
        start = max(_whole(known), first)
        if start > max(_size(path), first):
            start = first  # it was begun anew
        elif isinstance(known, str):  # it looked like a single object, and was taken for one
            head = _piece(path, 0, LONGEST)[0].partition(b"\n")[0]
            start = len(head) + 1 if known == _mark(head) else start
        data, _ = _piece(path, start)
        left = len(data) == PIECE
        points = []
        for line, end in _lines(data, whole=over and not left):
            self.known[path] = start + end
            values, step = _sorted_out(row(line.decode(errors="replace")), self.name)
            if values:
                points.append(Point(values, step, at, path, start + end))
        return points, left and path in self.known

    def _read_whole(self, path: str, at: float) -> list[Point]:
        """A file that is written anew each time."""
        if _size(path) > LARGEST:
            return []
        try:
            with open(path, "rb") as file:
                data = file.read()
            content = json.loads(data)
        except (OSError, ValueError, RecursionError):
            return []  # it is being written
        if isinstance(content, list):
            return self._from(content, path, at)
        curves = {name: rows for name, rows in content.items() if _is_curve(rows)}
        if curves:
            found: list[Point] = []
            for name, rows in curves.items():
                steps = rows.get("steps", [])
                listed = [
                    {name: value, "step": step}
                    for value, step in zip(
                        rows["values"], [*steps, *[None] * len(rows["values"])], strict=False
                    )
                ]
                found += self._from(listed, f"{path}#{name}", at)
            return found
        mark = _mark(data)
        if self.known.get(path) == mark:
            return []
        self.known[path] = mark
        values, step = _sorted_out(content, self.name)
        return [Point(values, step, at, path, mark)] if values else []

    def _from(self, rows: list[Any], file: str, at: float) -> list[Point]:
        """Those that were added to a list."""
        start = _whole(self.known.get(file))
        if start > len(rows):
            start = 0
        points = []
        for place, row in enumerate(rows[start:], start + 1):
            values, step = _sorted_out(row if isinstance(row, dict) else {"": row}, self.name)
            if values:
                points.append(Point(values, step, at, file, place))
        self.known[file] = len(rows)
        return points


def _mark(data: bytes) -> str:
    """What tells one content from another."""
    return f"={zlib.crc32(data.strip())}"


def _is_curve(rows: object) -> bool:
    if not isinstance(rows, dict) or not isinstance(rows.get("values"), list):
        return False
    return isinstance(rows.get("steps", []), list)


def _sorted_out(row: dict[str, Any], name: str) -> tuple[dict[str, float], float | None]:
    """The figures of an object, and its step."""
    flat = dict(_flattened(row, "", name))
    by = next((key for key in STEPS if key in flat), None)
    step = flat.pop(by) if by is not None else None
    return flat, step if step is None or step - step == 0 else None


def _flattened(row: dict[str, Any], before: str, name: str, depth: int = 0) -> Iterator[Any]:
    for key, value in row.items():
        spelt = f"{before}{key}" or name
        if isinstance(value, dict) and depth < DEEPEST:
            yield from _flattened(value, f"{spelt}/", name, depth + 1)
        elif (figure := number(value)) is not None:
            yield spelt, figure


def _from_json(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _cells(line: str, header: bytes = b"") -> list[str]:
    """The cells of a row, as its header separates them."""
    sample = header.decode(errors="replace") or line
    by = next((mark for mark in "\t;" if mark in sample and "," not in sample), ",")
    try:
        rows = list(csv.reader([line], delimiter=by))
    except csv.Error:
        return []
    return [cell.strip() for cell in rows[0]] if rows else []


def _has_lines(head: bytes) -> bool:
    """Whether a file is one object per line, and has more than one."""
    lines = [line for line in head.split(b"\n") if line.strip()]
    if len(lines) < 2:
        return False
    try:
        return isinstance(json.loads(lines[0]), dict)
    except (ValueError, RecursionError):
        return False


def _lines(data: bytes, whole: bool) -> Iterator[tuple[bytes, int]]:
    """The lines of a piece and where each ends; a progress bar's returns end lines, too."""
    start = 0
    for match in re.finditer(rb"[\r\n]", data):
        yield data[start : match.start()], match.end()
        start = match.end()
    if whole and start < len(data):
        yield data[start:], len(data)


def _piece(path: str, start: int, most: int = PIECE) -> tuple[bytes, float]:
    """Bytes of a file from here on, and when it was last written; none if it is no file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b"", 0.0
    try:
        return os.pread(fd, most, start), os.fstat(fd).st_mtime
    except OSError:
        return b"", 0.0
    finally:
        os.close(fd)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _whole(place: object) -> int:
    return place if isinstance(place, int) else 0
