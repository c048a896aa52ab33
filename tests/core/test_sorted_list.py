"""SortedList: the same as a plain sorted list, over several blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.structures import sorted_list
from stoker.core.structures.sorted_list import SortedList

ROWS = st.lists(st.tuples(st.integers(0, 30)), max_size=80)


@given(ROWS, st.tuples(st.integers(-1, 31)), st.sampled_from([1, 2, 512]))
def test_rows_are_those_of_a_plain_list(
    rows: list[tuple[int]], after: tuple[int], block_size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_list, "BLOCK_SIZE", block_size)
        rows_in_blocks: SortedList[tuple[int]] = SortedList()
        expected: set[tuple[int]] = set()
        for row in rows:
            if row in expected:
                rows_in_blocks.remove(row)
                expected.remove(row)
            else:
                rows_in_blocks.add(row)
                expected.add(row)
            ordered = sorted(expected)
            assert list(rows_in_blocks) == ordered
            assert list(reversed(rows_in_blocks)) == ordered[::-1]
            assert list(rows_in_blocks.iter_after(after)) == [r for r in ordered if r > after]
            assert rows_in_blocks.first() == (ordered[0] if ordered else None)
            assert rows_in_blocks.last() == (ordered[-1] if ordered else None)
            assert (len(rows_in_blocks), bool(rows_in_blocks)) == (len(ordered), bool(ordered))


def test_removing_a_missing_row_raises() -> None:
    rows: SortedList[tuple[int]] = SortedList()
    rows.add((2,))
    with pytest.raises(KeyError):
        rows.remove((1,))
