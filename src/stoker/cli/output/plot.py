"""A curve drawn with dots: eight in each cell of a terminal."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

BLANK = 0x2800
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Of one cell, column by column from the top."""


class Canvas:
    """Cells of two by four dots; the origin is at the bottom left."""

    def __init__(self, width: int, height: int) -> None:
        self.across, self.up = width * 2, height * 4
        self._cells = [[0] * width for _ in range(height)]

    def dot(self, x: int, y: int) -> None:
        """Make a dot, if it is on the canvas."""
        if 0 <= x < self.across and 0 <= y < self.up:
            down = self.up - 1 - y
            self._cells[down // 4][x // 2] |= DOTS[x % 2][down % 4]

    def line(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Join two dots."""
        across, up = end[0] - start[0], end[1] - start[1]
        steps = max(abs(across), abs(up), 1)
        for step in range(steps + 1):
            self.dot(start[0] + round(across * step / steps), start[1] + round(up * step / steps))

    def lines(self) -> list[str]:
        """What it looks like."""
        return ["".join(chr(BLANK + cell) for cell in row) for row in self._cells]


def plot(points: Sequence[Sequence[float | None]], width: int, height: int) -> list[str]:
    """Draw [step, value, ...] from left to right; where a value is missing there is a gap."""
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
        here = _place(x, left, right, canvas.across), _place(y, low, high, canvas.up)
        canvas.line(last if last is not None and last[0] <= here[0] else here, here)
        last = here
    return canvas.lines()


def _place(value: float, low: float, high: float, room: int) -> int:
    if high <= low:
        return room // 2
    share = (value / 2 - low / 2) / (high / 2 - low / 2)  # their difference may be beyond a float
    return round(share * (room - 1))
