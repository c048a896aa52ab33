"""A machine that had no room is left alone, but not for ever."""

import pytest

from stoker.daemon import shortage
from stoker.daemon.shortage import PATIENCE, Shortage


def test_room_that_was_made_ends_it_at_once() -> None:
    assert not Shortage.now(free=5).over(10)
    assert Shortage.now(free=5).over(11)
    assert Shortage.now(free=0).over(1)


def test_nobody_knows_how_much_there_is_and_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = Shortage.now(free=None)
    assert not short.over(10_000)
    monkeypatch.setattr(shortage.time, "monotonic", lambda: short.since + PATIENCE)
    assert short.over(None)
