import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.client import fast_json as jsonlight

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
def test_it_writes_what_json_reads_and_reads_what_json_writes(value: object) -> None:
    assert json.loads(jsonlight.dumps(value)) == value
    assert jsonlight.loads(json.dumps(value)) == value
    assert jsonlight.loads(json.dumps(value, indent=2).encode()) == value


@pytest.mark.parametrize("text", ["", "{", "[1,]", "1 2", "{'a': 1}", '"abc', "nul", b"\xff"])
def test_what_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - JSONDecodeError and UnicodeDecodeError too
        jsonlight.loads(text)
