"""Publisher: subscribers before streams, and none keeps another from being called."""

from collections.abc import Sequence

import pytest

from stoker.core import events as e
from stoker.core.state.record import ChangeSet
from stoker.daemon.control.publisher import Publisher
from stoker.daemon.runtime.clock import system_clock
from stoker.faults import FaultTracker
from stoker.store.port import StoreFenced

EVENTS = [e.JobHeld(at=0, job=1)]


@pytest.fixture
def faults() -> FaultTracker:
    return FaultTracker(system_clock)


def fail(_: Sequence[e.Event]) -> None:
    raise ValueError("a bug")


def test_subscribers_are_called_in_order_and_then_the_streams(faults: FaultTracker):
    calls: list[object] = []
    publisher = Publisher(
        {"first": lambda _: calls.append(1), "second": lambda _: calls.append(2)}, faults
    )
    publisher.add_stream(lambda seq, events: calls.append((seq, list(events))))
    publisher.publish(7, EVENTS, ChangeSet())
    assert calls == [1, 2, (7, EVENTS)]


def test_a_subscriber_that_fails_is_reported_and_the_others_are_called(faults: FaultTracker):
    calls: list[int] = []
    publisher = Publisher({"bad": fail, "good": lambda _: calls.append(1)}, faults)
    publisher.add_stream(lambda *_: 1 // 0)
    publisher.add_stream(lambda seq, _: calls.append(seq))
    publisher.publish(7, EVENTS, ChangeSet())
    assert calls == [1, 7]
    assert [text.partition(" failed")[0] for text in faults.report()] == [
        "bad", "the event stream"
    ]  # fmt: skip


def test_fencing_is_not_contained(faults: FaultTracker):
    def fence(_: Sequence[e.Event]) -> None:
        raise StoreFenced("another daemon")

    with pytest.raises(StoreFenced):
        Publisher({"fence": fence}, faults).publish(1, EVENTS, ChangeSet())


def test_a_stream_may_leave_twice_and_also_while_events_are_published(faults: FaultTracker):
    publisher = Publisher({}, faults)
    calls: list[int] = []

    def leave(seq: int, _: Sequence[e.Event]) -> None:
        calls.append(seq)
        publisher.remove_stream(leave)

    publisher.add_stream(leave)
    publisher.add_stream(lambda seq, _: calls.append(-seq))
    assert publisher.has_streams
    publisher.publish(1, EVENTS, ChangeSet())
    publisher.publish(2, EVENTS, ChangeSet())
    publisher.remove_stream(leave)
    assert calls == [1, -1, -2]
