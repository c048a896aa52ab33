"""FitTree: the first entry in order that fits."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.structures import fit_tree
from stoker.core.structures.fit_tree import (
    BEFORE_ALL,
    Amounts,
    CapacityTest,
    FitTree,
    SortKey,
    at_most,
    at_most_any,
    fits_within,
)

# ---------------------------------------------------------------------------- the tree

SMALL = st.integers(0, 6)
AMOUNTS = st.tuples(SMALL, SMALL, SMALL)
ALTERNATIVES = st.lists(AMOUNTS, max_size=3)
STEPS = st.lists(
    st.tuples(st.integers(0, 60), AMOUNTS | st.none(), ALTERNATIVES, st.integers(-1, 60)),
    max_size=120,
)


def first_by_scan(
    entries: dict[SortKey, Amounts], after: SortKey, alternatives: list[Amounts]
) -> tuple[SortKey, Amounts] | None:
    """Return what the tree should find, by a scan of all entries."""
    for key, amounts in sorted(entries.items()):
        if key > after and any(fits_within(amounts, available) for available in alternatives):
            return key, amounts
    return None


@given(STEPS, st.sampled_from([1, 2, 12]))
def test_the_tree_finds_the_same_as_a_scan(
    steps: list[tuple[int, Amounts | None, list[Amounts], int]], width: int
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_tree, "NODE_WIDTH", width)
        tree: FitTree[SortKey] = FitTree()
        entries: dict[SortKey, Amounts] = {}
        for number, amounts, alternatives, after in steps:
            key = (number,)
            if key in entries:
                tree.remove(key, entries.pop(key))
            if amounts is not None:
                tree.add(key, amounts, key)
                entries[key] = amounts
            for start in (BEFORE_ALL, (after,)):
                found = tree.first_fitting(start, at_most_any(alternatives))
                assert (found[:2] if found else None) == first_by_scan(entries, start, alternatives)
        assert sorted(tree.any_fitting(lambda _: True)) == sorted(entries)
        assert bool(tree) == bool(entries)
        for key in sorted(entries):
            tree.remove(key, entries[key])
        assert not tree
        with pytest.raises(KeyError):
            tree.remove((0,), (0, 0, 0))


@given(st.integers(0, 1 << 70), st.integers(0, 1 << 70))
def test_the_scale_of_amounts_is_monotonic(a: int, b: int):
    assert (fit_tree._z_step(a) <= fit_tree._z_step(b)) or a > b
    assert 0 <= fit_tree._z_step(a) < fit_tree.Z_ORDER_STEPS
    assert fit_tree._z_step(float("inf")) == fit_tree.Z_ORDER_STEPS - 1


def test_a_search_visits_few_entries_of_a_large_tree() -> None:
    dice, tests = random.Random(5), 0

    def counted(fits: CapacityTest) -> CapacityTest:
        def test(requested: Amounts) -> bool:
            nonlocal tests
            tests += 1
            return fits(requested)

        return test

    test_counts = {}
    for size in (100, 1000, 10_000):
        tree: FitTree[int] = FitTree()
        for number in range(size):
            tree.add((number,), tuple(dice.randrange(20, 1000) for _ in range(3)), number)
        counts = []
        for _ in range(50):
            available = tuple(dice.randrange(10, 200) for _ in range(3))
            tests = 0
            found = tree.first_fitting(BEFORE_ALL, counted(at_most(available)))
            assert found is None or fits_within(found[1], available)
            counts.append(tests)
        test_counts[size] = sorted(counts)[40]
    assert test_counts[10_000] < 1000
    assert test_counts[10_000] < test_counts[100] * 10
