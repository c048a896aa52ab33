"""Descriptors and their callbacks, some of which raise."""

import os
from collections.abc import Iterator

import pytest

from stoker.daemon.context import system_clock
from stoker.daemon.control.daemon import Reactor
from stoker.faults import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, FaultTracker
from stoker.store.port import StoreFenced


class Reader:
    """A descriptor that is always readable, with a callback that raises while it is told to."""

    def __init__(self, poller: Reactor, error: Exception | None = None) -> None:
        self.poller, self.error = poller, error
        self.calls = 0
        self.fd, self.writer = os.pipe()
        os.write(self.writer, b"x")
        poller.watch(self.fd, self.called)

    def called(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.poller.unwatch(self.fd)
        os.close(self.fd)
        os.close(self.writer)


@pytest.fixture
def faults() -> FaultTracker:
    return FaultTracker(system_clock)


@pytest.fixture
def poller(faults: FaultTracker) -> Iterator[Reactor]:
    found = Reactor(faults)
    yield found
    found.epoll.close()


def test_a_callback_that_raises_is_reported_and_its_descriptor_left_alone_for_a_while(
    poller: Reactor, faults: FaultTracker
) -> None:
    bad, good = Reader(poller, KeyError("x")), Reader(poller)
    for _ in range(3):
        poller.wait(0)
    assert (bad.calls, good.calls) == (1, 3)
    assert faults.report()[0].startswith("callback Reader.called failed once: KeyError('x')")
    bad.close()
    good.close()


def test_the_pause_doubles_and_ends_with_the_first_success(poller: Reactor) -> None:
    reader = Reader(poller, KeyError("x"))
    pauses = []
    for _ in range(9):
        poller.wait(0)
        pauses.append(poller.pauses[reader.fd])
        poller.paused_until[reader.fd] = 0.0  # it is over
        poller.wait(0)
    assert pauses[:3] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    reader.error = None
    poller.wait(0)
    assert (poller.pauses, poller.paused_until) == ({}, {})
    reader.close()


def test_waiting_ends_when_a_pause_does(poller: Reactor) -> None:
    reader = Reader(poller, KeyError("x"))
    poller.wait(0)
    poller.paused_until[reader.fd] = 0.0
    poller.wait(None)  # would never return
    poller.wait(0)
    assert reader.calls == 2
    reader.close()


def test_a_descriptor_that_is_watched_anew_is_not_paused(poller: Reactor) -> None:
    reader = Reader(poller, KeyError("x"))
    poller.wait(0)
    poller.unwatch(reader.fd)
    poller.watch(reader.fd, reader.called)
    poller.wait(0)
    assert reader.calls == 2
    reader.close()


def test_a_callback_that_gave_up_its_descriptor_before_it_raised_leaves_nothing(
    poller: Reactor,
) -> None:
    reader = Reader(poller)

    def give_up() -> None:
        poller.unwatch(reader.fd)
        raise KeyError("x")

    poller.unwatch(reader.fd)
    poller.watch(reader.fd, give_up)
    poller.wait(0)
    assert (poller.callbacks, poller.paused_until) == ({}, {})
    reader.close()


def test_fencing_ends_the_daemon_also_from_a_callback(poller: Reactor) -> None:
    reader = Reader(poller, StoreFenced("another daemon has the state"))
    with pytest.raises(StoreFenced):
        poller.wait(0)
    reader.close()
