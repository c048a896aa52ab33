"""Random permutations of 0…size-1 from a seed: as a list, or one index at a time.

They use the Mersenne Twister directly: importing `random` would take half of the start-up time, and
a later Python might shuffle differently.
"""

from __future__ import annotations

from _random import Random
from math import isqrt

ROUNDS = 6
"""Rounds of the Feistel network; four suffice for neighbours to look unrelated."""


def shuffled(size: int, seed: int) -> list[int]:
    """Return 0…size-1 as `random.seed(seed); random.shuffle(...)` of CPython 3.11 orders them."""
    bits = Random(seed).getrandbits
    places = list(range(size))
    for last in range(size - 1, 0, -1):
        width = (last + 1).bit_length()
        chosen = bits(width)
        while chosen > last:
            chosen = bits(width)
        places[last], places[chosen] = places[chosen], places[last]
    return places


class Permutation:
    """A bijection of 0…size-1 in constant memory.

    A Feistel network: a number is a row and a column of a nearly square table, and each round
    shifts one of them by a hash of the other, which is invertible. The table has a few cells more
    than `size`; those are mapped again until the result is inside (cycle walking).
    """

    __slots__ = ("columns", "keys", "mask", "rows", "size", "width")

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.rows = isqrt(max(size - 1, 0)) + 1
        self.columns = -(-size // self.rows)
        # 40 bits more than a row needs, so that scaling prefers no row visibly.
        self.width = max(60, self.rows.bit_length() + 40)
        self.mask = (1 << self.width) - 1
        bits, width = Random(seed).getrandbits, self.width
        # An odd factor is invertible.
        self.keys = [(bits(width), bits(width) | 1, bits(width) | 1) for _ in range(ROUNDS)]

    def __getitem__(self, index: int) -> int:
        """Return the number at an index."""
        if not 0 <= index < self.size:
            raise IndexError(index)
        index = self._mix(index)
        while index >= self.size:
            index = self._mix(index)
        return index

    def _mix(self, cell: int) -> int:
        mask, width, half = self.mask, self.width, self.width // 2
        still, moving = divmod(cell, self.columns)
        still_size, moving_size = self.rows, self.columns
        for key, first, second in self.keys:
            hashed = ((still + key) * first) & mask
            hashed = ((hashed ^ (hashed >> half)) * second) & mask
            moving = (moving + ((hashed * moving_size) >> width)) % moving_size
            still, moving = moving, still
            still_size, moving_size = moving_size, still_size
        # ROUNDS is even, so row and column are in their original order.
        return still * self.columns + moving
