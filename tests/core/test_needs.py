"""Lines of those who wait, one for each need."""

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.policy.needs import Needs
from stoker.core.policy.shelf import START, Place


def test_each_need_has_a_line_of_its_own() -> None:
    needs: Needs[str] = Needs()
    needs.put(1000, (0, 2.0, 1, 1), "late")
    needs.put(1000, (0, 1.0, 2, 2), "early")
    needs.put(2000, (-5, 9.0, 3, 3), "wide")
    assert needs.after(1000, START) == ((0, 1.0, 2, 2), "early")
    assert needs.after(1000, (0, 1.0, 2, 2)) == ((0, 2.0, 1, 1), "late")
    assert needs.after(2000, (-5, 9.0, 3, 3)) is None
    assert needs.after(4000, START) is None
    assert needs.earliest() == (-5, 9.0, 3, 3)


def test_a_line_without_anybody_is_gone() -> None:
    needs: Needs[str] = Needs()
    needs.put(1000, (0, 1.0, 1, 1), "only")
    needs.take(1000, (0, 1.0, 1, 1))
    assert needs.lines == {}
    assert needs.earliest() is None


PLACES = st.tuples(
    st.integers(-1, 1), st.sampled_from([0.0, 1.0, 2.0]), st.integers(0, 2), st.integers(0, 3)
)
STEPS = st.tuples(st.booleans(), st.sampled_from([0, 1000, 2000]), PLACES)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(steps=st.lists(STEPS, max_size=40), seen=PLACES)
def test_they_stand_as_sorting_has_it(steps: list[tuple[bool, int, Place]], seen: Place) -> None:
    needs: Needs[int] = Needs()
    rows: dict[Place, tuple[int, int]] = {}
    for number, (comes, need, place) in enumerate(steps):
        if comes and place not in rows:
            needs.put(need, place, number)
            rows[place] = (need, number)
        elif not comes and place in rows:
            needs.take(rows.pop(place)[0], place)
    for need in (0, 1000, 2000):
        line = sorted((place, thing) for place, (each, thing) in rows.items() if each == need)
        assert told(needs, need) == line
        behind = [row for row in line if row[0] > seen]
        assert needs.after(need, seen) == (behind[0] if behind else None)
    assert needs.earliest() == min(rows, default=None)


def told(needs: Needs[int], need: int) -> list[tuple[Place, int]]:
    """A whole line, one after the other."""
    found, after = [], START
    while (row := needs.after(need, after)) is not None:
        found.append(row)
        after = row[0]
    return found
