"""Vectors of amounts: a request fits if every amount is available."""

from stoker.core.structures import fits_within


def test_surplus_components_are_ignored():
    assert fits_within((1, 2, 600), (1, 2))
    assert not fits_within((1, 3, 600), (1, 2))
