import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.output import times
from stoker.client.errors import UsageError


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (7.9, "0:07"), (3723, "1:02:03"), (183845, "2-03:04:05"), (None, "")],
)  # fmt: skip
def test_durations_are_formatted_like_slurm(seconds: float | None, text: str) -> None:
    assert times.duration(seconds) == text


@given(st.integers(min_value=0, max_value=4102444800))
def test_iso_and_back(seconds: int) -> None:
    assert times.epoch(times.iso(seconds)) == seconds


def test_milliseconds_count() -> None:
    assert times.epoch("1970-01-02T00:00:01.500Z") == 86401.5


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("5m", 300), ("1d12h", 129600), ("2 hours", 7200)]
)  # fmt: skip
def test_typed_durations(text: str, seconds: float) -> None:
    assert times.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "5 parsecs", "1..5h", "-3m", "h"])
def test_text_that_is_not_a_duration_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        times.parse_duration(text)


def test_typed_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    assert times.parse_time("2h", now) == now - 7200
    assert times.parse_time("now-1day", now) == now - 86400
    assert times.parse_time("now", now) == now
    assert times.parse_time("2026-11-15T20:31:02Z", now) == times.epoch("2026-11-15T20:31:02Z")
    assert times.parse_time("2026-11-15", now) == time.mktime((2026, 11, 15, 0, 0, 0, 0, 0, -1))
    assert times.parse_time("today", now) <= now < times.parse_time("today", now) + 86400


def test_text_that_is_not_a_time_is_rejected() -> None:
    with pytest.raises(UsageError, match="'tomorrow' is not a time; type it as 2h"):
        times.parse_time("tomorrow")


def test_relative_times_are_rounded() -> None:
    at = times.epoch("2026-11-15T20:00:00Z")
    assert at is not None
    assert times.relative("2026-11-15T20:00:00Z", at + 840) == "14 min ago"
    assert times.relative("2026-11-15T20:00:00Z", at - 7200) == "in 2 h"
    assert times.relative("2026-11-15T20:00:00Z", at) == "now"
    assert times.relative(None) == ""
