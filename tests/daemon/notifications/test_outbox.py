"""The outbox: no message is lost or added twice; grouping, limits, tries."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stoker.daemon.notifications.message import MAX_LISTED, Delivery, Message
from stoker.daemon.notifications.outbox import CLAIM_SECONDS, RETRY_SECONDS, Entry, Outbox
from stoker.daemon.notifications.schedule import due_time, next_time

NOW = 1_794_950_000.0


def entry(key: str, target: str = "lab", topic: str = "", due: float = NOW) -> Entry:
    message = Message(key=key, event="end", title=f"job {key}")
    return Entry(target, message, topic or key, due)


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(str(tmp_path / "outbox.db"))


def keys(deliveries: list[Delivery]) -> list[list[str]]:
    return [[message.key for message in delivery.messages] for delivery in deliveries]


def test_a_key_is_added_once_per_target(outbox: Outbox) -> None:
    outbox.add(7, [entry("a"), entry("a"), entry("a", "other")], NOW)
    outbox.add(7, [entry("a")], NOW)
    assert outbox.seq == 7
    assert keys(outbox.take_due(NOW, 9)) == [["a"], ["a"]]


def test_a_message_changes_until_it_is_sent(outbox: Outbox) -> None:
    outbox.add(1, [entry("a", due=NOW + 5)], NOW)
    better = entry("a", due=NOW + 90)
    better.message.lines = ["best loss 0.1"]
    outbox.add(2, [better], NOW)
    (delivery,) = outbox.take_due(NOW + 5, 9)
    assert delivery.messages[0].lines == ["best loss 0.1"]
    outbox.add(3, [entry("a")], NOW + 6)
    outbox.finish(delivery, None, NOW + 6)
    outbox.add(4, [entry("a")], NOW + 7)
    assert outbox.take_due(NOW + 600, 9) == []


def test_a_crash_before_the_outcome_repeats_the_delivery(tmp_path: Path) -> None:
    path = str(tmp_path / "outbox.db")
    first = Outbox(path)
    first.add(3, [entry("a")], NOW)
    (before,) = first.take_due(NOW, 9)
    again = Outbox(path)  # the first one is never closed: its process was killed
    assert again.seq == 3
    assert again.take_due(NOW + CLAIM_SECONDS - 1, 9) == []
    (after,) = again.take_due(NOW + CLAIM_SECONDS, 9)
    assert (after.batch, after.messages) == (before.batch, before.messages)
    assert (before.tries, after.tries) == (1, 2)


def test_a_crash_after_the_outcome_repeats_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "outbox.db")
    first = Outbox(path)
    first.add(3, [entry("a")], NOW)
    (delivery,) = first.take_due(NOW, 9)
    first.finish(delivery, None, NOW)
    again = Outbox(path)
    again.add(3, [entry("a")], NOW)  # the same events are read again
    assert again.take_due(NOW + 1e6, 9) == []
    assert again.next_due() is None


def test_five_tries_in_about_an_hour(outbox: Outbox) -> None:
    outbox.add(1, [entry("a")], NOW)
    now, tries = NOW, 0
    while (delivery := next(iter(outbox.take_due(now, 9)), None)) is not None:
        tries += 1
        wait = outbox.finish(delivery, "no", now)
        status = outbox.status()["lab"]
        assert status.error == "no"
        if wait is None:
            break
        assert outbox.take_due(now + wait - 1, 9) == []
        now += wait
    assert tries == 5
    assert now - NOW == sum(RETRY_SECONDS)
    assert (status.pending, status.failed) == (0, 1)


def test_a_delivery_that_succeeds_ends_the_error(outbox: Outbox) -> None:
    outbox.add(1, [entry("a")], NOW)
    (delivery,) = outbox.take_due(NOW, 9)
    outbox.finish(delivery, "no", NOW)
    (delivery,) = outbox.take_due(NOW + 60, 9)
    outbox.finish(delivery, None, NOW)
    status = outbox.status()["lab"]
    assert (status.sent, status.pending, status.failed, status.error) == (1, 0, 0, None)


def test_messages_of_a_topic_are_due_with_the_first(outbox: Outbox) -> None:
    outbox.add(1, [entry("a", topic="fail", due=NOW + 60)], NOW)
    outbox.add(2, [entry("b", topic="fail", due=NOW + 90), entry("c", due=NOW + 90)], NOW + 30)
    assert outbox.take_due(NOW + 59, 9) == []
    assert keys(outbox.take_due(NOW + 60, 9)) == [["a", "b"]]
    outbox.add(3, [entry("d", topic="fail", due=NOW + 130)], NOW + 70)
    assert keys(outbox.take_due(NOW + 130, 9)) == [["c"]]
    assert keys(outbox.take_due(NOW + 130, 9)) == [["d"]]


def test_a_target_gets_one_delivery_at_a_time(outbox: Outbox) -> None:
    outbox.add(1, [entry("a"), entry("b"), entry("c", "other", due=NOW + 5)], NOW)
    (first,) = outbox.take_due(NOW, 2)
    assert outbox.take_due(NOW, 2, busy={first.target}) == []
    assert outbox.next_due({first.target}) == NOW + 5
    outbox.finish(first, None, NOW)
    assert keys(outbox.take_due(NOW, 2)) == [["b"]]


def test_a_stopping_daemon_takes_what_only_waits(outbox: Outbox) -> None:
    outbox.add(1, [entry("a", due=NOW + 60), entry("b", due=NOW + 3600)], NOW)
    assert keys(outbox.take_due(NOW, 9, ahead=61)) == [["a"]]


def test_beyond_the_limit_messages_become_one(tmp_path: Path) -> None:
    outbox = Outbox(str(tmp_path / "outbox.db"), lambda _: 3)
    outbox.add(1, [entry(str(n)) for n in range(2)], NOW)
    for _ in range(2):
        (delivery,) = outbox.take_due(NOW, 9)
        outbox.finish(delivery, None, NOW)
    outbox.add(2, [entry(str(n)) for n in range(10, 63)], NOW)
    (delivery,) = outbox.take_due(NOW, 9)
    assert len(delivery.messages) == MAX_LISTED
    assert delivery.more == 43
    outbox.finish(delivery, None, NOW)
    outbox.add(3, [entry("late")], NOW + 5)
    assert outbox.take_due(NOW + 5, 9) == []
    assert outbox.next_due() == NOW + 3600
    assert keys(outbox.take_due(NOW + 3600, 9)) == [["late"]]


def test_no_more_deliveries_than_workers(outbox: Outbox) -> None:
    outbox.add(1, [entry(str(n), f"target {n}") for n in range(5)], NOW)
    assert len(outbox.take_due(NOW, 2)) == 2
    assert outbox.take_due(NOW, 0) == []
    assert len(outbox.take_due(NOW, 9)) == 3


def test_delivered_keys_are_dropped_after_two_weeks(outbox: Outbox) -> None:
    outbox.add(1, [entry("a")], NOW)
    (delivery,) = outbox.take_due(NOW, 9)
    outbox.finish(delivery, None, NOW)
    outbox.add(2, [], NOW + 13 * 86400)
    assert outbox.status()["lab"].sent == 1
    outbox.add(3, [], NOW + 15 * 86400)
    assert outbox.status() == {}


# -- when ---------------------------------------------------------------------------------


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TZ", "UTC")
    time.tzset()


def clock(at: float) -> str:
    return time.strftime("%d %H:%M", time.gmtime(at))


def at(text: str) -> float:
    return float(time.mktime(time.strptime(f"2026-11-{text}", "%Y-%m-%d %H:%M")))


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("now", "event", "digest", "quiet", "due"),
    [
        ("17 12:00", "end", "", "", "17 12:00"),
        ("17 12:00", "fail", "", "", "17 12:01"),
        ("17 12:00", "end", "18:00", "", "17 18:00"),
        ("17 18:00", "end", "18:00", "", "18 18:00"),
        ("17 23:00", "end", "", "22:00-07:00", "18 07:00"),
        ("17 06:59", "end", "", "22:00-07:00", "17 07:00"),
        ("17 06:59", "fail", "", "22:00-07:00", "17 07:00"),
        ("17 07:00", "end", "", "22:00-07:00", "17 07:00"),
        ("17 12:30", "end", "", "12:00-13:00", "17 13:00"),
    ],
)
def test_when_a_message_is_due(now: str, event: str, digest: str, quiet: str, due: str) -> None:
    assert clock(due_time(at(now), event, digest, quiet)) == due


def test_a_digest_follows_daylight_saving_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TZ", "Europe/Berlin")
    time.tzset()
    try:
        before = time.mktime((2026, 10, 24, 19, 0, 0, 0, 0, -1))
        assert next_time(before, "18:00") - before == 24 * 3600  # 23 hours and one more
    finally:
        monkeypatch.undo()
        time.tzset()
