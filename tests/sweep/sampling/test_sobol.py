"""Sobol's points: the right ones, evenly spread however they are scrambled, each by its number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.sweep.sampling import sobol

# The first 16 points of six dimensions in sixteenths, in the order of the Gray code in which
# the sequence is usually given.
FIRST = [
    [0, 0, 0, 0, 0, 0], [8, 8, 8, 8, 8, 8], [12, 4, 4, 4, 12, 12], [4, 12, 12, 12, 4, 4],
    [6, 6, 10, 14, 6, 2], [14, 14, 2, 6, 14, 10], [10, 2, 14, 10, 10, 14], [2, 10, 6, 2, 2, 6],
    [3, 5, 15, 7, 9, 5], [11, 13, 7, 15, 1, 13], [15, 1, 11, 3, 5, 9], [7, 9, 3, 11, 13, 1],
    [5, 3, 5, 9, 15, 7], [13, 11, 13, 1, 7, 15], [9, 7, 1, 13, 3, 11], [1, 15, 9, 5, 11, 3],
]  # fmt: skip
# Points far along, in steps of 2⁻³², of the dimensions 0, 1, 2, 7, 20, 31, 47 and 63.
FAR = {
    100: [
        1778384896, 1107296256, 3321888768, 2046820352, 3254779904, 1778384896, 3053453312,
        2785017856,
    ],
    777: [
        2973761536, 4022337536, 700448768, 3275751424, 1019215872, 3862953984, 138412032,
        1832910848,
    ],
    1023: [
        4194304, 3233808384, 2629828608, 2654994432, 3720347648, 2638217216, 3275751424,
        171966464,
    ],
}  # fmt: skip


def gray(index: int) -> int:
    return index ^ index >> 1


def test_the_first_points_are_those_of_joe_and_kuo() -> None:
    found = [[sobol.coordinate(d, gray(i)) * 16 / 2**32 for d in range(6)] for i in range(16)]
    assert found == FIRST


@pytest.mark.parametrize("index", FAR)
def test_points_far_along_in_high_dimensions_are_those_of_joe_and_kuo(index: int) -> None:
    dimensions = (0, 1, 2, 7, 20, 31, 47, 63)
    assert [sobol.coordinate(d, gray(index)) for d in dimensions] == FAR[index]


def test_there_are_enough_dimensions() -> None:
    assert sobol.DIMENSIONS == 64


@given(
    st.integers(0, sobol.DIMENSIONS - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 8),
    st.integers(0, 1000),
)
def test_every_interval_has_one_of_as_many_points(
    dimension: int, key: int, bits: int, block: int
) -> None:
    count = 1 << bits
    numbers = range(block * count, (block + 1) * count)
    intervals = [int(sobol.unit(dimension, i, key) * count) for i in numbers]
    assert sorted(intervals) == list(range(count))


def test_two_dimensions_fill_their_squares_evenly_too() -> None:
    squares = {
        (int(sobol.unit(0, i, 1234) * 8), int(sobol.unit(1, i, 98765) * 8)) for i in range(64)
    }
    assert len(squares) == 64


def test_another_key_gives_other_points() -> None:
    one = [sobol.unit(3, i, 0x9E3779B9) for i in range(32)]
    other = [sobol.unit(3, i, 0x7F4A7C15) for i in range(32)]
    assert not set(one) & set(other)
    assert all(0 < u < 1 for u in one + other)
