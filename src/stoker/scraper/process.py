"""The process that looks for figures in what jobs write, for those that do not report them.

Run as `python -m stoker.scraper.process`: orders in on stdin, a JSON object per line, answers out
on stdout. A person's pattern can take for ever; so it is this process that tries it, and the
daemon can walk away. What is found is added to the attempt's report as the library would add it,
with the place where it was found: whoever begins anew goes on behind the last of them.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import Any

from stoker.scraper.extractors import Extractor, FileExtractor, LogExtractor, Point

LOOK = 0.5
"""Seconds between two looks at what is watched."""
PATIENCE = 2.0
"""Seconds for one piece of a file; a pattern that takes longer never ends."""
ROOM = 3800
"""Bytes of figures in one line: a report's lines have an end."""
BATCH = 1 << 16


class Hung(Exception):
    """A pattern takes for ever."""


class Watched:
    """One attempt whose figures are looked for."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.key: str = order["watch"]
        self.report: str = order["report"]
        self.finishing = False
        kind = LogExtractor if order["kind"] == "log" else FileExtractor
        self.figures: Extractor = kind(order["text"], order["name"], order["files"], order["since"])
        self.figures.known = found_before(self.report)

    def look(self) -> bool:
        """Take a piece of what is new into the report; whether there is more."""
        points, more = self.figures.look(self.finishing)
        if points:
            append(self.report, points)
        return more


def found_before(report: str) -> dict[str, Any]:
    """How far each file had been read when the last figure was found in it."""
    known: dict[str, Any] = {}
    try:
        with open(report, "rb") as file:
            for line in file:
                if b'"f":' in line:
                    try:
                        found = json.loads(line)
                        known[found["f"]] = found["o"]
                    except (ValueError, KeyError, TypeError):
                        continue
    except OSError:
        pass
    return known


def append(report: str, points: list[Point]) -> None:
    """Add figures to a report; what was torn by a sudden end does not swallow the first."""
    os.makedirs(os.path.dirname(report), 0o700, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(report, flags, 0o600)
    try:
        size = os.fstat(fd).st_size
        data = b"\n" if size and os.pread(fd, 1, size - 1) != b"\n" else b""
        for point in points:
            data += b"".join(lines(point))
            if len(data) > BATCH:
                _write(fd, data)
                data = b""
        _write(fd, data)
    finally:
        os.close(fd)


def lines(point: Point) -> list[bytes]:
    """A point as the library would write it; the place stands in the last line."""
    pairs = [f"{json.dumps(name)}:{_number(value)}" for name, value in point.values.items()]
    groups: list[list[str]] = [[]]
    room = ROOM
    for pair in pairs:
        room -= len(pair) + 1
        if room < 0 and groups[-1]:
            groups.append([])
            room = ROOM - len(pair) - 1
        groups[-1].append(pair)
    step = "" if point.step is None else f'"s":{_number(point.step)},'
    found = [f'{{"k":"metrics","t":{point.at:.3f},{step}"v":{{{",".join(g)}}}' for g in groups]
    place = f',"f":{json.dumps(point.file)},"o":{json.dumps(point.place)}'
    return [(line + (place if line is found[-1] else "") + "}\n").encode() for line in found]


def _number(value: float) -> str:
    return json.dumps(int(value) if value.is_integer() and abs(value) < 1 << 53 else value)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


class Scraper:
    """Looks at all that is watched, in turns."""

    def __init__(self) -> None:
        self.watched: dict[str, Watched] = {}
        self.pending = b""
        self.said = time.monotonic()

    def run(self) -> None:
        """Until the daemon closes its end."""
        busy = False
        while True:
            wait = 0.0 if busy else LOOK if self.watched else None
            if select.select([0], [], [], wait)[0]:
                data = os.read(0, 1 << 16)
                if not data:
                    return
                *orders, self.pending = (self.pending + data).split(b"\n")
                for order in orders:
                    self.heed(json.loads(order))
            busy = self.turn()

    def heed(self, order: dict[str, Any]) -> None:
        """Do as told; told twice is told once."""
        if "watch" in order:
            if order["watch"] not in self.watched:
                try:
                    self.watched[order["watch"]] = Watched(order)
                except ValueError as error:
                    self.give_up(order["watch"], f"invalid pattern: {error}")
        elif order["finish"] in self.watched:
            self.watched[order["finish"]].finishing = True
        else:
            say({"finished": order["finish"]})

    def turn(self) -> bool:
        """One piece of each; whether there is more to be had at once."""
        busy = False
        for key, watched in list(self.watched.items()):
            call_me(key)
            try:
                signal.setitimer(signal.ITIMER_REAL, PATIENCE)
                more = watched.look()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Hung:
                self.give_up(key, f"the pattern takes too long on one line: {watched.figures}")
                continue
            except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
                signal.setitimer(signal.ITIMER_REAL, 0)
                self.give_up(key, f"{type(error).__name__}: {error}")
                continue
            busy = busy or more
            if watched.finishing and not more:
                del self.watched[key]
                say({"finished": key})
        if busy and time.monotonic() - self.said > 1.0:
            self.said = time.monotonic()
            say({"busy": len(self.watched)})
        return busy

    def give_up(self, key: str, why: str) -> None:
        """Look no more for this one's figures."""
        self.watched.pop(key, None)
        say({"trouble": key, "why": why})


def call_me(key: str) -> None:
    """Should we hang, the daemon can see by our name over whom."""
    with open("/proc/self/comm", "w") as file:
        file.write(key[:15])


def say(answer: dict[str, Any]) -> None:
    """Tell the daemon."""
    _write(1, json.dumps(answer).encode() + b"\n")


def _hung(number: int, frame: object) -> None:
    raise Hung


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _hung)
    try:
        Scraper().run()
    except BrokenPipeError:
        os._exit(0)  # the daemon has gone; nobody reads our last words
