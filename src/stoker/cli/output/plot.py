"""Curves of braille dots: two by four in each cell of a terminal."""

from __future__ import annotations

BLANK = 0x2800
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The dots of one cell, column by column from the top."""


class Canvas:
    """Cells of two by four dots; the origin is at the bottom left."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width * 2, height * 4
        self._cells = [[0] * width for _ in range(height)]

    def dot(self, x: int, y: int) -> None:
        """Set a dot, if it is on the canvas."""
        if 0 <= x < self.width and 0 <= y < self.height:
            down = self.height - 1 - y
            self._cells[down // 4][x // 2] |= DOTS[x % 2][down % 4]

    def line(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Draw a line between two dots."""
        dx, dy = end[0] - start[0], end[1] - start[1]
        steps = max(abs(dx), abs(dy), 1)
        for step in range(steps + 1):
            self.dot(start[0] + round(dx * step / steps), start[1] + round(dy * step / steps))

    def lines(self) -> list[str]:
        """Return the canvas as lines of text."""
        return ["".join(chr(BLANK + cell) for cell in row) for row in self._cells]


def plot(points: list[list[float | None]], width: int, height: int) -> list[str]:
    """Return a curve through [step, value, ...]; a missing value is a gap."""
    shown = [(x, y) for x, y, *_ in points if x is not None and y is not None]
    if not shown:
        return [" " * width] * height
    canvas = Canvas(width, height)
    left, right = min(x for x, _ in shown), max(x for x, _ in shown)
    low, high = min(y for _, y in shown), max(y for _, y in shown)
    last: tuple[int, int] | None = None
    for x, y, *_ in points:
        if x is None or y is None:
            last = None
            continue
        dot = _scale(x, left, right, canvas.width), _scale(y, low, high, canvas.height)
        canvas.line(last if last is not None and last[0] <= dot[0] else dot, dot)
        last = dot
    return canvas.lines()


def _scale(value: float, low: float, high: float, dots: int) -> int:
    """Return the dot of a value between `low` and `high`."""
    if high <= low:
        return dots // 2
    share = (value / 2 - low / 2) / (
        high / 2 - low / 2
    )  # halved, since the difference may overflow
    return round(share * (dots - 1))
