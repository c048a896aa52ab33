"""Sobol sequence: points that fill a space evenly, each computed from its index alone."""

from __future__ import annotations

from functools import lru_cache

from stoker.sweep.sampling.sobol_directions import ROWS

BITS = 32
DIMENSIONS = len(ROWS) + 1
LENGTH = 1 << BITS
"""Length of the sequence."""
_ALL = LENGTH - 1


def coordinate(dimension: int, index: int) -> int:
    """Return the coordinate of a point before scrambling, in steps of 2⁻³²."""
    return _mirrored(_plain(dimension, index))


def unit(dimension: int, index: int, key: int) -> float:
    """Return the coordinate of a point in (0, 1), scrambled by a key of 32 random bits.

    Owen's nested scrambling, by the hash of Laine and Karras with Burley's constants: halves of
    each interval are swapped at random. Each interval of 2⁻ᵏ still has one of 2ᵏ points; the
    correlation between dimensions is removed.
    """
    # With reversed bits every step carries upwards only: a bit of the coordinate depends
    # only on the bits above it, as required.
    bits = (_plain(dimension, index) + key) & _ALL
    for factor in (0x6C50B47C, 0xB82F1E52, 0xC7AFE638, 0x8D22F6E6):
        bits ^= (bits * factor) & _ALL
    return (_mirrored(bits) + 0.5) / LENGTH


def _plain(dimension: int, index: int) -> int:
    """Return the coordinate with reversed bits: the highest bit is the lowest."""
    coordinate, bit = 0, 0
    directions = _directions(dimension)
    while index:
        if index & 1:
            coordinate ^= directions[bit]
        index >>= 1
        bit += 1
    return coordinate


@lru_cache(maxsize=DIMENSIONS)
def _directions(dimension: int) -> tuple[int, ...]:
    """Return the 32 direction numbers of a dimension, with reversed bits."""
    if dimension == 0:
        return tuple(1 << bit for bit in range(BITS))
    polynomial, *first = ROWS[dimension - 1]
    degree = len(first)
    directions = list(first)
    for bit in range(degree, BITS):
        new = directions[bit - degree] ^ directions[bit - degree] << degree
        for back in range(1, degree):
            if polynomial >> (degree - back) & 1:
                new ^= directions[bit - back] << back
        directions.append(new)
    return tuple(_mirrored(value << (BITS - 1 - bit)) for bit, value in enumerate(directions))


def _mirrored(bits: int) -> int:
    bits = (bits & 0x55555555) << 1 | bits >> 1 & 0x55555555
    bits = (bits & 0x33333333) << 2 | bits >> 2 & 0x33333333
    bits = (bits & 0x0F0F0F0F) << 4 | bits >> 4 & 0x0F0F0F0F
    bits = (bits & 0x00FF00FF) << 8 | bits >> 8 & 0x00FF00FF
    return bits << 16 & _ALL | bits >> 16
