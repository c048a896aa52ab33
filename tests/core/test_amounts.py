"""Vectors of amounts: a request fits if one vector of available amounts has enough of all."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.structures.amounts import Amounts, at_most_any, fits_within

SMALL = st.integers(0, 4)
AMOUNTS = st.tuples(SMALL, SMALL, SMALL)


@given(AMOUNTS, st.lists(AMOUNTS, max_size=4))
def test_one_alternative_must_suffice_alone(requested: Amounts, alternatives: list[Amounts]):
    expected = any(
        all(want <= have for want, have in zip(requested, available, strict=True))
        for available in alternatives
    )
    assert at_most_any(alternatives)(requested) == expected


def test_surplus_components_are_ignored():
    assert fits_within((1, 2, 600), (1, 2))
    assert not fits_within((1, 3, 600), (1, 2))
