"""A curve of any length in bounded room: where points are left out, the extremes stay."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

Point = tuple[int, float | None, float, float | None]
"""Its number, its step, its value, and when."""
VALUE: Final = 2


class Bucket:
    """Neighbours on a curve: the first and the last of them, the lowest and the highest."""

    __slots__ = ("first", "high", "last", "low")

    def __init__(self, point: Point) -> None:
        self.first = self.last = self.low = self.high = point

    def add(self, point: Point) -> None:
        """One more, at its end."""
        value = point[VALUE]
        self.last = point
        if value < self.low[VALUE]:
            self.low = point
        elif value > self.high[VALUE]:
            self.high = point
        elif self.low[VALUE] != self.low[VALUE]:  # NaN is neither lower nor higher than anything
            self.low = self.high = point

    def join(self, other: Bucket) -> None:
        """Those of the next bucket, too."""
        for point in (other.low, other.high, other.last):
            self.add(point)

    def points(self) -> list[Point]:
        """Up to four, in order."""
        return sorted({self.first, self.low, self.high, self.last}, key=lambda point: point[0])


class Downsampler:
    """Points in the order in which they came, at most so many.

    Once there are too many, neighbours share a bucket; when there are too many buckets, neighbours
    are joined. So one pass is enough, whatever the length.
    """

    def __init__(self, most: int) -> None:
        self.most = max(most, 8)
        self.count = 0
        self._buckets: list[Bucket] = []
        self._width = 1

    def add(self, step: float | None, value: float, at: float | None) -> None:
        """One more point; without a step, its number is where it stands."""
        number = self.count
        self.count = number + 1
        point = (number, step, value, at)
        if number % self._width:
            self._buckets[-1].add(point)
            return
        self._buckets.append(Bucket(point))
        if len(self._buckets) > (self.most if self._width == 1 else self.most // 4):
            self._join(8 if self._width == 1 else 2)

    def _join(self, by: int) -> None:
        joined = self._buckets[::by]
        for place, bucket in enumerate(joined):
            for other in self._buckets[place * by + 1 : (place + 1) * by]:
                bucket.join(other)
        self._buckets, self._width = joined, self._width * by

    def points(self) -> list[list[float | None]]:
        """What is left, in order."""
        return [_told(point) for bucket in self._buckets for point in bucket.points()]

    def summary(self) -> dict[str, Any]:
        """The last value and the extremes, exactly."""
        whole = Bucket(self._buckets[0].first)
        for bucket in self._buckets:
            whole.join(bucket)
        ends = {"last": whole.last, "min": whole.low, "max": whole.high}
        return {"count": self.count, **{name: _told(point) for name, point in ends.items()}}


def _told(point: Point) -> list[float | None]:
    """Step, value and when; a value that is no number is none."""
    number, step, value, at = point
    return [number if step is None else step, value if isfinite(value) else None, at]
