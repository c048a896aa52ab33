import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.client import fast_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_values_are_exchanged_with_the_json_package(value: object) -> None:
    assert json.loads(fast_json.dumps(value)) == value
    assert fast_json.loads(json.dumps(value)) == value
    assert fast_json.loads(json.dumps(value, indent=2).encode()) == value


@pytest.mark.parametrize("text", ["", "{", "[1,]", "1 2", "{'a': 1}", '"abc', "nul", b"\xff"])
def test_text_that_is_not_json_is_rejected(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - JSONDecodeError and UnicodeDecodeError too
        fast_json.loads(text)
