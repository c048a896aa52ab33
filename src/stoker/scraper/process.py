"""Helper process: extract metrics from logs and files into reports.

Run as `python -m stoker.scraper.process`: orders on stdin, one JSON object per line, replies on
stdout. A user's pattern can take forever; so this process evaluates it, and the daemon can kill
it. Points are appended to the attempt's report as the training library would, with the position
where they were found: a new process continues after the last one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import Any

from stoker.scraper.extractors import FileExtractor, LogExtractor, Point

POLL_SECONDS = 0.5
PATTERN_TIMEOUT_SECONDS = 2.0
"""Time for one piece of a file; a pattern that takes longer is given up."""
MAX_VALUES_BYTES = 3800
"""Bytes of metrics in one line: the lines of a report are limited."""
WRITE_BYTES = 1 << 16


class PatternTimeout(Exception):
    """A pattern takes too long."""


class WatchedAttempt:
    """One attempt that is scraped."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.key: str = order["watch"]
        self.report: str = order["report"]
        self.finishing = False
        extractor = LogExtractor if order["kind"] == "log" else FileExtractor
        self.extractor: LogExtractor | FileExtractor = extractor(
            order["text"], order["name"], order["files"], order["since"]
        )
        self.extractor.known = read_positions(self.report)

    def extract(self) -> bool:
        """Append the next points to the report; return True if there is more."""
        points, more = self.extractor.extract(self.finishing)
        if points:
            append(self.report, points)
        return more


def read_positions(report: str) -> dict[str, Any]:
    """Return the position after the last point of each file, from the report."""
    known: dict[str, Any] = {}
    try:
        with open(report, "rb") as file:
            for line in file:
                if b'"f":' in line:
                    try:
                        point = json.loads(line)
                        known[point["f"]] = point["o"]
                    except (ValueError, KeyError, TypeError):
                        continue
    except OSError:
        pass
    return known


def append(report: str, points: list[Point]) -> None:
    """Append points to a report, on a new line even if the last one is incomplete."""
    os.makedirs(os.path.dirname(report), 0o700, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(report, flags, 0o600)
    try:
        size = os.fstat(fd).st_size
        data = b"\n" if size and os.pread(fd, 1, size - 1) != b"\n" else b""
        for point in points:
            data += b"".join(format_lines(point))
            if len(data) > WRITE_BYTES:
                _write(fd, data)
                data = b""
        _write(fd, data)
    finally:
        os.close(fd)


def format_lines(point: Point) -> list[bytes]:
    """Return a point in the library's format; its position is in the last line."""
    pairs = [f"{json.dumps(name)}:{_number(value)}" for name, value in point.values.items()]
    groups: list[list[str]] = [[]]
    available = MAX_VALUES_BYTES
    for pair in pairs:
        available -= len(pair) + 1
        if available < 0 and groups[-1]:
            groups.append([])
            available = MAX_VALUES_BYTES - len(pair) - 1
        groups[-1].append(pair)
    step = "" if point.step is None else f'"s":{_number(point.step)},'
    lines = [
        f'{{"k":"metrics","t":{point.at:.3f},{step}"v":{{{",".join(group)}}}' for group in groups
    ]
    lines[-1] += f',"f":{json.dumps(point.file)},"o":{json.dumps(point.position)}'
    return [f"{line}}}\n".encode() for line in lines]


def _number(value: float) -> str:
    return json.dumps(int(value) if value.is_integer() and abs(value) < 1 << 53 else value)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


class Scraper:
    """Scrapes all watched attempts in turn."""

    def __init__(self) -> None:
        self.watched: dict[str, WatchedAttempt] = {}
        self.partial = b""
        self.replied_at = time.monotonic()

    def run(self) -> None:
        """Scrape until the daemon closes its end of the pipe."""
        busy = False
        while True:
            wait = 0.0 if busy else POLL_SECONDS if self.watched else None
            if select.select([0], [], [], wait)[0]:
                data = os.read(0, 1 << 16)
                if not data:
                    return
                *orders, self.partial = (self.partial + data).split(b"\n")
                for order in orders:
                    self.handle(json.loads(order))
            busy = self.turn()

    def handle(self, order: dict[str, Any]) -> None:
        """Carry out an order; may be repeated."""
        if "watch" in order:
            if order["watch"] not in self.watched:
                try:
                    self.watched[order["watch"]] = WatchedAttempt(order)
                except ValueError as error:
                    self.give_up(order["watch"], f"invalid pattern: {error}")
        elif order["finish"] in self.watched:
            self.watched[order["finish"]].finishing = True
        else:
            reply({"finished": order["finish"]})

    def turn(self) -> bool:
        """Scrape one piece of each attempt; return True if there is more."""
        busy = False
        for key, watched in list(self.watched.items()):
            set_process_name(key)
            try:
                signal.setitimer(signal.ITIMER_REAL, PATTERN_TIMEOUT_SECONDS)
                more = watched.extract()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except PatternTimeout:
                self.give_up(key, f"the pattern takes too long on one line: {watched.extractor}")
                continue
            except Exception as error:  # noqa: BLE001 - the other attempts continue
                signal.setitimer(signal.ITIMER_REAL, 0)
                self.give_up(key, f"{type(error).__name__}: {error}")
                continue
            busy = busy or more
            if watched.finishing and not more:
                del self.watched[key]
                reply({"finished": key})
        if busy and time.monotonic() - self.replied_at > 1.0:
            self.replied_at = time.monotonic()
            reply({"busy": len(self.watched)})
        return busy

    def give_up(self, key: str, reason: str) -> None:
        """Stop scraping an attempt and report why."""
        self.watched.pop(key, None)
        reply({"trouble": key, "why": reason})


def set_process_name(key: str) -> None:
    """Set the process name to the attempt, so that the daemon knows where it hangs."""
    with open("/proc/self/comm", "w") as file:
        file.write(key[:15])


def reply(message: dict[str, Any]) -> None:
    """Send a message to the daemon."""
    _write(1, json.dumps(message).encode() + b"\n")


def _on_timeout(number: int, frame: object) -> None:
    raise PatternTimeout


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _on_timeout)
    try:
        Scraper().run()
    except BrokenPipeError:
        os._exit(0)  # the daemon is gone
