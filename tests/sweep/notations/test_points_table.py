"""Points from CSV files and JSON lines."""

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.sweep.definition.definition import InvalidSweep, check
from stoker.sweep.notations.points_table import read_csv, read_jsonl


def test_a_csv_file() -> None:
    text = '\ufefflr,bs, opt\n1e-4,16,adam\r\n\n 0.01,32,\n1e-4,16,adam\n0.0001,16,"a,""b"\n'
    assert read_csv(text, "points.csv") == [
        {"lr": 0.0001, "bs": 16, "opt": "adam"},
        {"lr": 0.01, "bs": 32, "opt": ""},
        {"lr": 0.0001, "bs": 16, "opt": 'a,"b'},
    ]


def test_cells_stay_as_they_were_written() -> None:
    assert read_csv("v,w\n1.10,null\n", "x.csv") == [{"v": "1.10", "w": "null"}]


@pytest.mark.parametrize("between", [";", "\t", " ; "])
def test_a_csv_file_of_another_country(between: str) -> None:
    text = f"\ufefflr{between}name\r\n0.1{between}a,b\r\n"
    assert read_csv(text, "x.csv") == [{"lr": 0.1, "name": "a,b"}]


def test_json_lines() -> None:
    text = (
        '{"lr": 1e-4, "optimizer": {"name": "adam", "b": {"c": [1, {"d": 2}]}}}\n\n'
        '{"optimizer": {"b": {"c": [1, {"d": 2}]}, "name": "adam"}, "lr": 0.0001}\r\n'
        '{"lr": null, "optimizer": {"name": "\u2028", "b": {"c": true}}}'
    )
    assert read_jsonl(text, "points.jsonl") == [
        {"lr": 0.0001, "optimizer.name": "adam", "optimizer.b.c": [1, {"d": 2}]},
        {"lr": None, "optimizer.name": "\u2028", "optimizer.b.c": True},
    ]


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("", "points.csv has no rows"),
        ("lr,bs\n", "points.csv has no rows"),
        ("lr,bs\n1,2\n3\n", "points.csv:3: this row has 1 cells"),
        ("lr,lr\n1,2\n", "points.csv:1: the name lr is given twice"),
        ("lr,\n1,2\n", "points.csv:1: the first line has the name ''"),
        ('lr\n"1\n', "points.csv:2: this is not CSV: unexpected end of data"),
        ("lr\n\ud800\n", "points.csv:2: lr is not UTF-8: '\\ud800'"),
    ],
)  # fmt: skip
def test_a_csv_file_that_cannot_be_read(text: str, keyword: str) -> None:
    with pytest.raises(InvalidSweep) as caught:
        read_csv(text, "points.csv")
    assert keyword in str(caught.value)


def test_a_table_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.sweep.notations.points_table.MAX_VALUES", 3)
    assert len(read_csv("lr\n1\n2\n2\n3\n", "points.csv")) == 3
    with pytest.raises(
        InvalidSweep, match=r"points\.csv:5: this is one row too many; 3 are allowed\."
    ):
        read_csv("lr\n1\n2\n3\n4\n", "points.csv")


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("\n", "points.jsonl has no rows"),
        ('{"a": 1}\n{"a": 1', "points.jsonl:2: this is not JSON: Expecting ',' delimiter"),
        ("[1]", "points.jsonl:1: this is a list"),
        ("{}", "points.jsonl:1: this is a table of keys"),
        ('{"a": 1}\n{"b": 1}', "points.jsonl:2: this row has no a, unlike the first one"),
        ('{"a": 1, "a": 2}', "points.jsonl:1: this is not JSON: a name is given twice"),
        ('{"a": {"b": 1}, "a.b": 2}', "points.jsonl:1: the name a.b is given twice"),
        ('{"a": NaN}', "points.jsonl:1: a is nan"),
        ('{"a": 1e999}', "points.jsonl:1: a is inf"),
        ('{"a":' * 30 + "1" + "}" * 30, "points.jsonl:1: this is nested more than 20 deep"),
        ("[" * 100_000, "points.jsonl:1: this is nested more than 20 deep"),
    ],
)  # fmt: skip
def test_json_lines_that_cannot_be_read(text: str, keyword: str) -> None:
    with pytest.raises(InvalidSweep) as caught:
        read_jsonl(text, "points.jsonl")
    assert keyword in str(caught.value)


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
)  # fmt: skip


@settings(max_examples=50)
@given(st.lists(st.tuples(SCALARS, SCALARS), min_size=1))
def test_rows_are_what_was_written(rows: list[tuple]) -> None:
    written = [{"a": first, "b.c": second} for first, second in rows]
    found = read_jsonl("\n".join(map(json.dumps, written)), "x")
    assert all(row in written for row in found)
    definition = {"method": "list", "points": written, "command": ["t"]}
    assert check(definition)["points"] == found


@settings(max_examples=50)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1))
def test_texts_survive_csv(texts: list[str]) -> None:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([["a"], *[[f"x{text}"] for text in texts]])
    found = [row["a"] for row in read_csv(out.getvalue(), "x")]
    assert found == list(dict.fromkeys(f"x{text}" for text in texts))
