"""Grids by number, permutations without lists, patterns: what must hold for all of them."""

import itertools
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.client.errors import UsageError
from stoker.compat.simple_hypersearch.grid import EXACT_UP_TO, GRID, SHUFFLED_GRID, Grid, order
from stoker.compat.simple_hypersearch.pattern import Pattern
from stoker.compat.simple_hypersearch.permutation import Permutation, shuffled

SEEDS = st.integers(-(2**80), 2**80)
BILLION = Grid(["a", "b", "c"], [range(1000)] * 3)

# -------------------------------------------------------------------------------- grid


@given(st.lists(st.lists(st.integers(), max_size=4), max_size=4))
def test_a_grid_is_the_product(values: list[list[int]]) -> None:
    grid = Grid([str(i) for i in range(len(values))], values)
    assert [grid[i] for i in range(grid.size)] == list(itertools.product(*values))
    assert list(grid) == list(order(grid, GRID))
    for outside in (-1, grid.size):
        with pytest.raises(IndexError):
            grid[outside]


@given(st.integers(1, 5), st.integers(1, 6), SEEDS, st.integers(0, 40))
def test_any_order_has_each_combination_once(a: int, b: int, seed: int, count: int) -> None:
    grid = Grid(["a", "b"], [range(a), range(b)])
    whole = list(order(grid, SHUFFLED_GRID, seed))
    assert sorted(whole) == list(grid)
    assert list(order(grid, SHUFFLED_GRID, seed, count)) == whole[:count]
    assert sorted(order(grid)) == list(grid)


def test_of_a_billion_only_what_is_asked_for_is_held() -> None:
    tracemalloc.start()
    try:
        seen = set()
        for mode in (GRID, SHUFFLED_GRID):
            tracemalloc.reset_peak()
            held = tracemalloc.get_traced_memory()[0]
            seen = {hash(item) for item in order(BILLION, mode, 5, 2000)}
            assert len(seen) == 2000
            del seen
            assert tracemalloc.get_traced_memory()[1] - held < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_sample_of_a_billion_depends_on_the_seed_alone() -> None:
    first = list(order(BILLION, SHUFFLED_GRID, 1, 50))
    assert first == list(order(BILLION, SHUFFLED_GRID, 1, 50))
    assert first[:7] == list(order(BILLION, SHUFFLED_GRID, 1, 7))
    assert first != list(order(BILLION, SHUFFLED_GRID, 2, 50))
    assert list(order(BILLION, SHUFFLED_GRID, None, 9)) != list(order(BILLION, count=9))


def test_more_combinations_than_len_can_say() -> None:
    grid = Grid([str(i) for i in range(60)], [range(10)] * 60)
    assert grid.size == 10**60
    found = list(order(grid, SHUFFLED_GRID, 3, 500))
    assert len(set(found)) == 500
    # Every parameter takes every value: none is stuck, however far up its digits are.
    assert all(set(column) == set(range(10)) for column in zip(*found, strict=True))


# ------------------------------------------------------------------------- permutation


@given(st.integers(0, 500), SEEDS)
def test_the_shuffle_is_that_of_random(size: int, seed: int) -> None:
    expected = list(range(size))
    random.Random(seed).shuffle(expected)
    assert list(shuffled(size, seed)) == expected


@given(st.integers(0, 3000), SEEDS)
def test_a_permutation_is_a_bijection(size: int, seed: int) -> None:
    permutation = Permutation(size, seed)
    assert sorted(permutation[place] for place in range(size)) == list(range(size))


@given(st.integers(EXACT_UP_TO, 10**40), SEEDS, st.data())
def test_a_large_one_is_injective_too(size: int, seed: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size - 300))
    permutation = Permutation(size, seed)
    found = {permutation[place] for place in range(start, start + 300)}
    assert len(found) == 300
    assert all(0 <= place < size for place in found)
    for outside in (-1, size):
        with pytest.raises(IndexError):
            permutation[outside]


def unevenness(counts: list[int]) -> float:
    """Chi-squared over its degrees of freedom: near 1 for what is uniform."""
    expected = sum(counts) / len(counts)
    return sum((n - expected) ** 2 / expected for n in counts) / (len(counts) - 1)


@pytest.mark.parametrize("size", [EXACT_UP_TO + 1, 10**9, 2**33, 10**30])
def test_a_sample_looks_uniform(size: int) -> None:
    """Over seeds and over places: where it falls, its last digits, and how neighbours differ."""
    firsts, pairs, falls, digits, steps = ([0] * 64 for _ in range(5))
    for seed in range(3000):
        permutation = Permutation(size, seed)
        first, second = permutation[0], permutation[1]
        firsts[first * 64 // size] += 1
        pairs[first * 8 // size * 8 + second * 8 // size] += 1
    permutation = Permutation(size, 1)
    found = [permutation[place] for place in range(3000)]
    for place, following in itertools.pairwise(found):
        falls[place * 64 // size] += 1
        digits[place % 64] += 1
        steps[(following - place) % size * 64 // size] += 1
    assert all(0.5 < unevenness(counts) < 1.6 for counts in (firsts, pairs, falls, digits, steps))


def test_small_ones_reach_every_order() -> None:
    orders = {tuple(Permutation(4, seed)[place] for place in range(4)) for seed in range(2000)}
    assert len(orders) == 24


# ----------------------------------------------------------------------------- pattern

SPECS = st.sampled_from(["", ":", ":>5", ":x^7", ":.2", "!r", "!s:>3", "!a"])
PIECES = st.one_of(
    st.text("ab $'\"\\:!.[]é", max_size=5),
    st.sampled_from(["{{", "}}", "{{}}"]),
    st.builds("{{{}{}}}".format, st.sampled_from(["a", "b", "a-b"]), SPECS),
)


@given(st.lists(PIECES, max_size=8).map("".join), st.lists(st.text(), min_size=3, max_size=3))
def test_a_pattern_is_filled_as_str_format_does(text: str, values: list[str]) -> None:
    names = ["a", "b", "a-b"]
    filled = Pattern(text, names).fill(*values)
    assert filled == text.format_map(dict(zip(names, values, strict=True)))


@given(st.text("{}a.:![] x", max_size=12), st.text())
def test_any_pattern_is_filled_or_refused_with_a_message(text: str, value: str) -> None:
    try:
        pattern = Pattern(text, ["a"])
    except UsageError as error:
        assert "{{" in error.message or "}}" in error.message  # noqa: PT017
        return
    assert pattern.fill(value) == text.format_map({"a": value})


@given(st.lists(PIECES, max_size=5).map("".join), st.lists(st.text("a\\", max_size=2), min_size=1))
def test_endings_are_what_commands_end_with(text: str, values: list[str]) -> None:
    pattern = Pattern(text, ["a", "b", "a-b"])
    endings = list(pattern.endings(dict.fromkeys(["a", "b", "a-b"], values)))
    for value in values:
        filled = pattern.fill(value, value, value)
        assert not filled or any(filled.endswith(ending) for ending in endings)
