"""Sorted lists: a row is removed where it is, and only if it is there."""

from bisect import insort

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.structures import SortedMap, remove_sorted


@given(st.lists(st.tuples(st.integers(0, 30)), max_size=80))
def test_rows_stay_sorted(changes: list[tuple[int]]) -> None:
    rows: list[tuple[int]] = []
    expected: set[tuple[int]] = set()
    for row in changes:
        if row in expected:
            remove_sorted(rows, row)
            expected.remove(row)
        else:
            insort(rows, row)
            expected.add(row)
        assert rows == sorted(expected)


@pytest.mark.parametrize("row", [(1,), (3,)])
def test_removing_a_missing_row_raises(row: tuple[int]) -> None:
    with pytest.raises(KeyError):
        remove_sorted([(2,)], row)


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 9)), max_size=60))
def test_keys_are_in_the_order_of_their_latest_value(changes: list[tuple[int, int | None]]) -> None:
    values = SortedMap[int, int]()
    expected: dict[int, int] = {}
    for key, value in changes:
        if value is None:
            values.remove(key)
            expected.pop(key, None)
        else:
            assert values.set(key, value) == (expected.get(key) != value)
            expected[key] = value
        assert list(values) == sorted((value, key) for key, value in expected.items())
        assert all(key in values and values[key] == expected[key] for key in expected)
