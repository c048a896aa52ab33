"""Amounts, memory, durations and times: parsed and formatted."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.model.units import (
    MAX_DURATION_SECONDS,
    BadValue,
    format_amount,
    format_duration,
    parse_amount,
    parse_duration,
    parse_memory,
    parse_time,
)

NOON = 1_700_000_000.0
LETTERS = st.text("0123456789.:-+ nowTZdhmsGMKiB/_e", max_size=30)


@pytest.mark.parametrize(
    ("text", "amount"),
    [("2", 2000), ("0.5", 500), ("2.5", 2500), (".25", 250), ("1.500", 1500), ("0.1000", 100),
     (" 3 ", 3000), ("0", 0)],
)  # fmt: skip
def test_amounts(text: str, amount: int):
    assert parse_amount(text) == amount


@pytest.mark.parametrize("text", ["", ".", "2.", "-1", "1e3", "0.0001", "1,5", "two"])
def test_invalid_amounts_are_rejected(text: str):
    with pytest.raises(BadValue, match="is not a number"):
        parse_amount(text)


def test_too_large_amounts_are_rejected():
    with pytest.raises(BadValue, match="too large"):
        parse_amount("1" * 10)


@given(st.integers(0, 10**9))
def test_an_amount_is_formatted_as_it_is_parsed(amount: int):
    assert parse_amount(format_amount(amount)) == amount


def test_ten_tenths_are_one():
    assert sum(parse_amount("0.1") for _ in range(10)) == parse_amount("1")


@pytest.mark.parametrize(
    ("text", "mebi"),
    [("8G", 8192), ("500M", 500), ("24GB", 24576), ("24GiB", 24576), ("512", 512), ("1.5g", 1536),
     ("1T", 1 << 20), ("1K", 1), ("1025K", 2), ("0", 0), ("8 G", 8192)],
)  # fmt: skip
def test_memory(text: str, mebi: int):
    assert parse_memory(text) == mebi


@pytest.mark.parametrize("text", ["", "G", "-1G", "8X", "1e3", "8GG", "9" * 10])
def test_invalid_memory_sizes_are_rejected(text: str):
    with pytest.raises(BadValue, match="is not a size"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("1:30", 90), ("1:30:00", 5400), ("2-12", 216_000), ("1-0:30", 88_200),
     ("1-1:1:1", 90_061), ("90m", 5400), ("1d12h", 129_600), ("1h 30m", 5400), ("45s", 45),
     ("1.5h", 5400), ("2weeks", 1_209_600), ("10 minutes", 600), ("0", 0)],
)  # fmt: skip
def test_durations(text: str, seconds: int):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "x", "1:2:3:4", "-5", "1-", "1h-2", "5 parsecs", "1h x", "1::2", "1-2-3"]
)
def test_invalid_durations_are_rejected(text: str):
    with pytest.raises(BadValue, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["4000d", "99999999", "600000000s", "9999-0"])
def test_more_than_ten_years_is_rejected(text: str):
    with pytest.raises(BadValue, match="longer than ten years"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9" * 5000 + "-1", "9" * 400 + "h", "9" * 5000, "1:" + "9" * 99])
def test_very_long_numbers_are_rejected(text: str):
    with pytest.raises(BadValue):
        parse_duration(text)


@given(st.integers(60, MAX_DURATION_SECONDS))
def test_a_duration_is_parsed_as_it_is_formatted(seconds: int):
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "ahead"),
    [("now", 0), ("now+1hour", 3600), ("now+90", 90), ("now + 2m", 120), ("90m", 5400),
     ("+90m", 5400), ("30", 1800)],
)  # fmt: skip
def test_times_relative_to_now(text: str, ahead: float):
    assert parse_time(text, NOON) == NOON + ahead


def test_a_time_of_day_is_the_next_one():
    for text in ("16:00", "04:30:15"):
        moment = parse_time(text, NOON)
        assert NOON < moment <= NOON + 86_400 + 3600
        assert parse_time(text, moment - 1) == moment


def test_a_date():
    assert parse_time("2026-12-24T18:00+00:00", NOON) == 1_798_135_200


@pytest.mark.parametrize(
    "text",
    ["", "soon", "25:00", "12:60", "now-1h", "nowhere", "now+", "2026-13-01", "0001-01-01",
     "now+" + "9" * 5000, "now+99999999999", "9" * 5000],
)  # fmt: skip
def test_invalid_times_are_rejected(text: str):
    with pytest.raises(BadValue):
        parse_time(text, NOON)


@given(st.one_of(LETTERS, st.text(max_size=20)))
def test_every_text_is_parsed_or_rejected_with_a_sentence(text: str):
    for read in (parse_amount, parse_memory, parse_duration, lambda t: parse_time(t, NOON)):
        with contextlib.suppress(BadValue):
            assert isinstance(read(text), int | float)
