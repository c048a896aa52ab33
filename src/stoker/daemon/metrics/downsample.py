"""Min/max-preserving downsampling of a series in bounded memory."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

Point = tuple[int, float | None, float, float | None]
"""Index, step, value, timestamp."""
VALUE: Final = 2


class Bucket:
    """Adjacent points of a series: the first, the last, the minimum and the maximum."""

    __slots__ = ("first", "high", "last", "low")

    def __init__(self, point: Point) -> None:
        self.first = self.last = self.low = self.high = point

    def add(self, point: Point) -> None:
        """Append a point."""
        value = point[VALUE]
        self.last = point
        if value < self.low[VALUE]:
            self.low = point
        elif value > self.high[VALUE]:
            self.high = point
        elif self.low[VALUE] != self.low[VALUE]:  # NaN is neither lower nor higher than anything
            self.low = self.high = point

    def merge(self, following: Bucket) -> None:
        """Append the points of the bucket that follows."""
        for point in (following.low, following.high, following.last):
            self.add(point)

    def points(self) -> list[Point]:
        """Return up to four points, in order."""
        return sorted({self.first, self.low, self.high, self.last}, key=lambda point: point[0])


class Downsampler:
    """A series reduced to at most `max_points`, in the order in which points were added.

    Above that number, adjacent points share a bucket; with too many buckets, adjacent ones are
    merged. So one pass is enough for any length.
    """

    def __init__(self, max_points: int) -> None:
        self.max_points = max(max_points, 8)
        self.count = 0
        self._buckets: list[Bucket] = []
        self._bucket_size = 1

    def add(self, step: float | None, value: float, at: float | None) -> None:
        """Append a point; without a step, its index is its step."""
        index = self.count
        self.count = index + 1
        point = (index, step, value, at)
        if index % self._bucket_size:
            self._buckets[-1].add(point)
            return
        self._buckets.append(Bucket(point))
        is_exact = self._bucket_size == 1
        if len(self._buckets) > (self.max_points if is_exact else self.max_points // 4):
            self._merge_buckets(8 if is_exact else 2)

    def _merge_buckets(self, factor: int) -> None:
        merged = self._buckets[::factor]
        for index, bucket in enumerate(merged):
            for following in self._buckets[index * factor + 1 : (index + 1) * factor]:
                bucket.merge(following)
        self._buckets, self._bucket_size = merged, self._bucket_size * factor

    def points(self) -> list[list[float | None]]:
        """Return the remaining points, in order."""
        return [_to_view(point) for bucket in self._buckets for point in bucket.points()]

    def summary(self) -> dict[str, Any]:
        """Return the exact count, last value and extremes."""
        total = Bucket(self._buckets[0].first)
        for bucket in self._buckets:
            total.merge(bucket)
        ends = {"last": total.last, "min": total.low, "max": total.high}
        return {"count": self.count, **{name: _to_view(point) for name, point in ends.items()}}


def _to_view(point: Point) -> list[float | None]:
    """Return step, value and timestamp; None for a value that is not finite."""
    index, step, value, at = point
    return [index if step is None else step, value if isfinite(value) else None, at]
