"""What may be written in JSON5: capacities in three forms, and amounts."""

import json

import pyjson5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.client.errors import UsageError
from stoker.compat.grass.resources import (
    _parse_simple,
    format_amount,
    number,
    parse_amount,
    parse_capacities,
    parse_requirement,
)

AMOUNTS = st.integers(0, 10**9)
"""Thousandths."""
TYPES = st.from_regex(r"[a-z_][a-z0-9_.-]{0,8}", fullmatch=True).filter(
    lambda kind: kind not in {"gpus", "queue-cpu", "queue-mem"}
)
NAMES = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters=", {}"), min_size=1
).filter(str.isprintable)


def typed(amount: int) -> float:
    """An amount as JSON has it."""
    return amount // 1000 if amount % 1000 == 0 else amount / 1000


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_capacities(text, "--json")
    return caught.value.message


# ------------------------------------------------------------------------------ by row


def test_grs_10_a_number_is_a_count_of_devices_of_capacity_one():
    assert parse_capacities("{gpu:4}", "--json") == [("gpu", str(n), 1000) for n in range(4)]
    assert parse_capacities("{gpu:4}", "") == parse_capacities(
        "{gpu:{'0':1,'1':1,'2':1,'3':1}}", ""
    )
    assert parse_capacities("{gpu:0}", "--json") == []
    for text in ("{gpu:2.5}", "{gpu:-1}", "{gpu:4.0}", "{gpu:Infinity}", "{gpu:NaN}"):
        assert "It should be a single integer" in refusal(text)
    assert "RAM:[512]" in refusal("{RAM:1000000}")


def test_grs_11_a_list_has_capacities():
    assert parse_capacities("{hdd:[32,64,128]}", "") == parse_capacities(
        "{hdd:{'0':32,'1':64,'2':128}}", ""
    )
    for text in ("{a:['1']}", "{a:[null]}", "{a:[true]}", "{a:[[1]]}", "{a:[{}]}"):
        assert "List has a non-number" in refusal(text)
    for text in ("{a:[-1]}", "{a:[NaN]}", "{a:[Infinity]}", "{a:[1e10]}", "{a:[%s]}" % ("9" * 40)):
        assert "is not an amount" in refusal(text)
    assert "three decimals" in refusal("{a:[0.0001]}")


def test_grs_12_a_dict_has_names_and_capacities():
    assert parse_capacities("{gpu:{'2':1,x:0.5}}", "") == [("gpu", "2", 1000), ("gpu", "x", 500)]
    for text in ("{a:{b:'1'}}", "{a:{b:{}}}", "{a:{b:null}}"):
        assert "dict value is not a number" in refusal(text)
    for text in ("{a:{'':1}}", "{a:{'b c':1}}", "{a:{'b,c':1}}", "{a:{'{b}':1}}"):
        assert "must be one word" in refusal(text)
    assert "128 characters" in refusal("{a:{%s:1}}" % ("x" * 129))


def test_grs_13_anything_else_is_refused():
    for text in ("{a:'x'}", "{a:null}", "{a:true}"):
        assert "Unsupported resource capacity. It should be int, list, or dictionary" in refusal(
            text
        )
    for text in ("", "gpu", "{gpu:}", "{gpu:4", "{gpu 4}", "{a:1}{b:1}", "{a:1e999}"):
        assert "is not JSON5" in refusal(text)
    for text in ("4", "[1]", "'gpu'", "null"):
        assert "is not an object" in refusal(text)
    assert "too deeply" in refusal("{a:" + "[" * 10_000)
    assert "longer than" in refusal("{" + " " * (1 << 20) + "}")
    assert "is not JSON5" in refusal("{a:%s}" % ("9" * 10_000))


@pytest.mark.parametrize(
    "text",
    ["{a:1,a:2}", "{a:1,'a':2}", '{a:1,"\\u0061":2}', "{x:{b:1,c:1,b:1}}", "{a:1,/*,*/a //:\n:2}"],
)
def test_a_duplicate_name_is_rejected(text: str):
    assert "twice" in refusal(text)


def test_a_name_may_stand_in_two_objects_and_in_texts():
    text = """{a:{b:1}, b:{'b:1;b':1, "b\\":":1}, /* b:1, */ c:[1] // b:1,b:1
    }"""
    found = [device[:2] for device in parse_capacities(text, "")]
    assert found == [("a", "b"), ("b", "b:1;b"), ("b", 'b":'), ("c", "0")]


def test_types_are_words_and_some_are_meant_to_be_others():
    for kind in ("'a b'", "'1a'", "''", "'-a'", "'ä'", "'a\\u0000'", "x" * 51):
        assert "is not a resource type" in refusal(f"{{{kind}:1}}")
    for kind, meant in {"gpus": "gpu", "GPU": "gpu", "'queue-cpu'": "cpu"}.items():
        assert f"is written {meant}" in refusal(f"{{{kind}:1}}")
    assert parse_capacities("{RAM:[512],'queue-x':1}", "")[0] == ("RAM", "0", 512_000)


# -------------------------------------------------------------------- what holds for all


@given(st.dictionaries(TYPES, st.integers(0, 50), max_size=5))
def test_a_number_means_the_dict_of_as_many_ones(counts: dict[str, int]):
    spelt = {kind: {str(n): 1 for n in range(count)} for kind, count in counts.items()}
    listed = {kind: [1] * count for kind, count in counts.items()}
    found = parse_capacities(json.dumps(counts), "")
    assert (
        found == parse_capacities(json.dumps(spelt), "") == parse_capacities(json.dumps(listed), "")
    )
    assert len(found) == sum(counts.values())


@given(st.dictionaries(TYPES, st.dictionaries(NAMES, AMOUNTS, max_size=5), max_size=4))
def test_names_and_capacities_come_back_exactly(has: dict[str, dict[str, int]]):
    text = json.dumps(
        {k: {name: typed(amount) for name, amount in v.items()} for k, v in has.items()}
    )
    expected = [(kind, name, amount) for kind, v in has.items() for name, amount in v.items()]
    assert parse_capacities(text, "--json") == expected


@given(st.dictionaries(TYPES, AMOUNTS, max_size=5))
def test_what_a_job_asks_for_is_exact(asked: dict[str, int]):
    text = json.dumps({kind: typed(amount) for kind, amount in asked.items()})
    assert parse_requirement(text) == {kind: amount for kind, amount in asked.items() if amount}


@given(AMOUNTS)
def test_amounts_are_written_as_they_are_read(amount: int):
    assert parse_amount(format_amount(amount)) == amount
    assert number(format_amount(amount)) == typed(amount)


@given(
    st.text("{}[]:,.'\" \tab01_-+e/*\\\n", max_size=30)
    | st.from_regex(r"\{ ?[a-z]{1,3} ?: ?[0-9.]{1,6} ?(,b:[0-9.]{1,4})?,?\}", fullmatch=True)
)
def test_any_text_is_read_or_refused_with_one_line(text: str):
    for reading in (parse_requirement, lambda text: parse_capacities(text, "--json")):
        message = ""
        try:
            reading(text)
        except UsageError as error:
            message = error.message
        assert "\n" not in message
    plain = _parse_simple(text)
    if plain is not None:
        assert pyjson5.decode(text) == plain
