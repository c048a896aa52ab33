"""Conditions of notifications, as users write them."""

from __future__ import annotations

import pytest

from stoker.core.model.notification import Condition, parse_condition
from stoker.core.model.units import BadValue


@pytest.mark.parametrize(
    ("text", "condition", "selector"),
    [
        ("fail", Condition("fail"), ""),
        ("Job Fail", Condition("fail"), ""),
        ("job 17_3 done", Condition("end"), "17_3"),
        ("sweep LR done", Condition("end"), "LR"),
        ("sweep done", Condition("end", arrays_only=True), ""),
        ("alarm", Condition("alarm"), ""),
        ("alarm idle", Condition("alarm", "gpu_idle"), ""),
        ("job 4 alarm log-silent", Condition("alarm", "log_silent"), "4"),
        ("before-limit 10m", Condition("before-limit", seconds=600), ""),
        ("job 4 before-limit 1:00:00", Condition("before-limit", seconds=3600), "4"),
        ("queue empty", Condition("empty"), ""),
        ("empty", Condition("empty"), ""),
        ("gpu free", Condition("free"), ""),
    ],
)
def test_a_condition(text: str, condition: Condition, selector: str) -> None:
    assert parse_condition(text) == (condition, selector)


@pytest.mark.parametrize(
    "text",
    ["", "job", "job 4", "never", "job fail now", "before-limit", "before-limit 0", "gpu 3 free",
     "job empty", "alarm idle now"],
)  # fmt: skip
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(BadValue, match="is no condition; write"):
        parse_condition(text)


def test_an_unknown_alarm_is_named() -> None:
    with pytest.raises(BadValue, match=r"'lazy' is no kind of alarm; there are idle, "):
        parse_condition("alarm lazy")
