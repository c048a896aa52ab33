"""Values: typed, shown, compared."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.sweep.values import canonical, format_value, parse_number, parse_value

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
PLAIN = st.recursive(SCALARS | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=5)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 0.0001), ("1E5", 100000.0), ("-3", -3), ("+3", 3), ("0", 0), ("1_000", 1000),
        (".5", 0.5), ("5.", 5.0), ("true", True), ("False", False), ("null", None),
        ("None", None), ("007", "007"), ("nan", "nan"), ("inf", "inf"), ("1e999", "1e999"),
        ("", ""), ("adam", "adam"), ("1e", "1e"), ("1.2.3", "1.2.3"), (" 1", " 1"), ("٣", "٣"),
        ("9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_a_text_is_read_as_people_mean_it(text: str, value: object) -> None:
    found = parse_number(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    ["1.10", "1_000", "007", "null", "None", "+3", "1.00", "0.12345678901234567890", "", "nan"],
)
def test_what_would_be_rewritten_stays_as_it_was_typed(text: str) -> None:
    assert parse_value(text) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", 1e-4), ("0.1", 0.1), ("10", 10), ("1e3", 1e3), (".5", 0.5), ("1.0", 1.0),
     ("0.30000000000000004", 0.1 + 0.2), ("true", True), ("-3", -3)],
)  # fmt: skip
def test_what_is_typed_as_a_number_is_one(text: str, value: object) -> None:
    assert (parse_value(text), type(parse_value(text))) == (value, type(value))


@given(SCALARS)
def test_what_is_shown_is_read_back(value: object) -> None:
    found = parse_number(format_value(value))
    if isinstance(value, int) and len(str(value)) > 300:
        return
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0001, "0.0001"), (1e-5, "1e-5"), (1e-10, "1e-10"), (True, "True"), (None, "None"),
     ("a b", "a b"), (1.0, "1.0"), ([1, "a"], "[1, 'a']"), (1e16, "1e+16")],
)  # fmt: skip
def test_a_value_is_shown_as_a_person_writes_it(value: object, text: str) -> None:
    assert format_value(value) == text


@settings(max_examples=50)
@given(st.dictionaries(st.text(), PLAIN), st.randoms())
def test_the_canonical_text_does_not_depend_on_the_order(params: dict, random) -> None:
    pairs = list(params.items())
    random.shuffle(pairs)
    assert canonical(dict(pairs)) == canonical(params)
    assert canonical(json.loads(canonical(params))) == canonical(params)


def test_the_canonical_text_tells_numbers_by_their_value_and_kind() -> None:
    assert canonical({"lr": 1e-4}) == canonical({"lr": 0.0001}) == '{"lr":0.0001}'
    assert canonical({"b": 1, "a": "é"}) == '{"a":"é","b":1}'
    assert len({canonical({"x": value}) for value in (1, 1.0, True, "1")}) == 4
    with pytest.raises(ValueError, match="JSON"):
        canonical({"x": math.nan})
