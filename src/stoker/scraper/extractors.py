"""Extract metrics from a job's output, or from JSON, JSON-lines and CSV files."""

from __future__ import annotations

import csv
import glob
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from stoker.places import file_size

PIECE = 1 << 18
"""Bytes of a file that are read before others get their turn."""
MAX_LINE = 1 << 16
"""Longer lines are skipped."""
MAX_WHOLE_FILE = 64 << 20
"""Maximum size of a file that can only be read as a whole."""
STEPS = ("step", "global_step", "_step", "iteration", "epoch")
"""Keys that hold the step of a row; the first one present is used."""
MAX_DEPTH = 4
"""Levels of nested objects; their keys are joined by a slash."""


class Point(NamedTuple):
    """Metrics with their step, and where they were found."""

    values: dict[str, float]
    step: float | None
    at: float
    file: str
    position: Any
    """How far the file was read with this point; its unit depends on the format."""


def parse_number(text: object) -> float | None:
    """Parse a number as programs print it: `0.31`, `0.31,`, `97%`, `nan`."""
    if isinstance(text, str):
        text = text.strip().strip(",;:%()[]")
    elif not isinstance(text, (int, float)):
        return None
    try:
        return float(text)
    except (ValueError, OverflowError):
        return None


class LogExtractor:
    """Applies a pattern to every line of a job's output."""

    def __init__(self, text: str, name: str, files: list[str], since: float) -> None:
        try:
            self.pattern = re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(str(error)) from None
        self.name, self.files = name, files
        self.known: dict[str, Any] = {}
        self.read: dict[str, int] = {}
        """How far each file was searched; `known` is only up to the last point."""

    def __str__(self) -> str:
        return self.pattern.pattern

    def extract(self, ended: bool) -> tuple[list[Point], bool]:
        """Return the next points, and whether there is more. `ended`: nothing more is written."""
        points: list[Point] = []
        more = False
        for index, path in enumerate(self.files):
            file = str(index)
            start = self.read.get(file, _offset(self.known.get(file)))
            if start > file_size(path):
                start = 0  # the file was truncated
            data, at = _read_piece(path, start)
            has_more = len(data) == PIECE
            for line, end in _split_lines(data, at_end=ended and not has_more):
                match = (
                    self._match(line.decode(errors="replace")) if len(line) <= MAX_LINE else None
                )
                if match is not None:
                    points.append(Point(*match, at, file, start + end))
                self.read[file] = start + end
            if has_more and self.read.get(file, start) == start:
                self.read[file] = start + len(data)  # a line longer than a piece
            more = more or has_more
        return points, more

    def _match(self, line: str) -> tuple[dict[str, float], float | None] | None:
        match = self.pattern.search(line)
        if match is None:
            return None
        named = match.groupdict()
        step = parse_number(named.pop("step", None))
        if "value" in named:
            named[self.name] = named.pop("value")
        elif self.name not in named:
            names = set(self.pattern.groupindex.values())
            unnamed = [match.group(n) for n in range(1, self.pattern.groups + 1) if n not in names]
            if unnamed or not named:
                named[self.name] = unnamed[0] if unnamed else match.group()
        values = {
            name: value for name, text in named.items() if (value := parse_number(text)) is not None
        }
        return (values, step) if values else None


class FileExtractor:
    """Reads files that the job writes metrics to, whenever one has changed."""

    def __init__(self, text: str, name: str, files: list[str], since: float) -> None:
        self.pattern, self.name, self.since = files[0], name, since
        self.known: dict[str, Any] = {}
        self._versions: dict[str, tuple[int, int, int]] = {}

    def __str__(self) -> str:
        return self.pattern

    def extract(self, ended: bool) -> tuple[list[Point], bool]:
        """Return what was added to these files since the last call."""
        points: list[Point] = []
        more = False
        for path in sorted(glob.glob(self.pattern)) or [self.pattern]:
            try:
                status = os.stat(path)
            except OSError:
                continue
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
            if self._versions.get(path) == version and not ended:
                continue
            if status.st_mtime < self.since:
                continue  # it is of an earlier run
            new_points, has_more = self._read(path, status.st_mtime, ended)
            points += new_points
            more = more or has_more
            if not has_more:
                self._versions[path] = version
        return points, more

    def _read(self, path: str, at: float, ended: bool) -> tuple[list[Point], bool]:
        head, _ = _read_piece(path, 0, 4096)
        start = head.lstrip()[:1]
        if start in (b"{", b"["):
            if not path.endswith((".jsonl", ".ndjson")) and not _has_lines(head):
                return self._read_whole(path, at), False
            return self._read_lines(path, at, ended, 0, _from_json)
        header = head.partition(b"\n")
        if not header[1]:
            return [], False
        columns = _cells(header[0].decode(errors="replace"))
        first = len(header[0]) + 1

        def from_csv(line: str) -> dict[str, Any]:
            return dict(zip(columns, _cells(line, header[0]), strict=False))

        return self._read_lines(path, at, ended, first, from_csv)

    def _read_lines(
        self,
        path: str,
        at: float,
        ended: bool,
        first: int,
        parse_row: Callable[[str], dict[str, Any]],
    ) -> tuple[list[Point], bool]:
        """Read a file with one object or row per line, appended at the end."""
        known = self.known.get(path)
        start = max(_offset(known), first)
        if start > max(file_size(path), first):
            start = first  # the file was truncated
        elif isinstance(known, str):  # with one line it was read as a single object
            head = _read_piece(path, 0, MAX_LINE)[0].partition(b"\n")[0]
            start = len(head) + 1 if known == _checksum(head) else start
        data, _ = _read_piece(path, start)
        has_more = len(data) == PIECE
        points = []
        for line, end in _split_lines(data, at_end=ended and not has_more):
            self.known[path] = start + end
            values, step = _metrics_of(parse_row(line.decode(errors="replace")), self.name)
            if values:
                points.append(Point(values, step, at, path, start + end))
        return points, has_more and path in self.known

    def _read_whole(self, path: str, at: float) -> list[Point]:
        """Read a file that is rewritten each time."""
        if file_size(path) > MAX_WHOLE_FILE:
            return []
        try:
            with open(path, "rb") as file:
                data = file.read()
            content = json.loads(data)
        except (OSError, ValueError, RecursionError):
            return []  # it is being written
        if isinstance(content, list):
            return self._new_rows(content, path, at)
        all_series = {name: rows for name, rows in content.items() if _is_series(rows)}
        if all_series:
            points: list[Point] = []
            for name, rows in all_series.items():
                steps = rows.get("steps", [])
                pairs = [
                    {name: value, "step": step}
                    for value, step in zip(
                        rows["values"], [*steps, *[None] * len(rows["values"])], strict=False
                    )
                ]
                points += self._new_rows(pairs, f"{path}#{name}", at)
            return points
        checksum = _checksum(data)
        if self.known.get(path) == checksum:
            return []
        self.known[path] = checksum
        values, step = _metrics_of(content, self.name)
        return [Point(values, step, at, path, checksum)] if values else []

    def _new_rows(self, rows: list[Any], file: str, at: float) -> list[Point]:
        """Return the points of the rows that were added to a list."""
        start = _offset(self.known.get(file))
        if start > len(rows):
            start = 0
        points = []
        for position, row in enumerate(rows[start:], start + 1):
            values, step = _metrics_of(row if isinstance(row, dict) else {"": row}, self.name)
            if values:
                points.append(Point(values, step, at, file, position))
        self.known[file] = len(rows)
        return points


def _checksum(data: bytes) -> str:
    return f"={zlib.crc32(data.strip())}"


def _is_series(rows: object) -> bool:
    if not isinstance(rows, dict) or not isinstance(rows.get("values"), list):
        return False
    return isinstance(rows.get("steps", []), list)


def _metrics_of(row: dict[str, Any], name: str) -> tuple[dict[str, float], float | None]:
    """Return the numbers of an object, and its step."""
    flat = dict(_flatten(row, "", name))
    step_key = next((key for key in STEPS if key in flat), None)
    step = flat.pop(step_key) if step_key is not None else None
    return flat, step if step is None or step - step == 0 else None


def _flatten(row: dict[str, Any], prefix: str, name: str, depth: int = 0) -> Iterator[Any]:
    for key, value in row.items():
        path = f"{prefix}{key}" or name
        if isinstance(value, dict) and depth < MAX_DEPTH:
            yield from _flatten(value, f"{path}/", name, depth + 1)
        elif (number := parse_number(value)) is not None:
            yield path, number


def _from_json(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _cells(line: str, header: bytes = b"") -> list[str]:
    """Split a row into cells, by the separator of its header."""
    sample = header.decode(errors="replace") or line
    separator = next((char for char in "\t;" if char in sample and "," not in sample), ",")
    try:
        rows = list(csv.reader([line], delimiter=separator))
    except csv.Error:
        return []
    return [cell.strip() for cell in rows[0]] if rows else []


def _has_lines(head: bytes) -> bool:
    """Return True if a file has several lines with one object each."""
    lines = [line for line in head.split(b"\n") if line.strip()]
    if len(lines) < 2:
        return False
    try:
        return isinstance(json.loads(lines[0]), dict)
    except (ValueError, RecursionError):
        return False


def _split_lines(data: bytes, at_end: bool) -> Iterator[tuple[bytes, int]]:
    """Yield lines and where each ends; carriage returns of progress bars end lines, too."""
    start = 0
    for match in re.finditer(rb"[\r\n]", data):
        yield data[start : match.start()], match.end()
        start = match.end()
    if at_end and start < len(data):
        yield data[start:], len(data)


def _read_piece(path: str, start: int, max_bytes: int = PIECE) -> tuple[bytes, float]:
    """Return bytes of a file and its modification time; empty if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b"", 0.0
    try:
        return os.pread(fd, max_bytes, start), os.fstat(fd).st_mtime
    except OSError:
        return b"", 0.0
    finally:
        os.close(fd)


def _offset(position: object) -> int:
    return position if isinstance(position, int) else 0
