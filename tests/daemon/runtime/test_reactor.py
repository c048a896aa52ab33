"""EpollReactor: descriptors, timers and calls from other threads, some of which raise."""

import os
import threading
from collections.abc import Iterator

import pytest

from stoker.daemon.runtime.clock import system_clock
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.linux.epoll_reactor import name_of
from stoker.faults import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, FaultTracker
from stoker.store.port import StoreFenced


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Reader:
    """A descriptor that is always readable, with a callback that raises while it has an error."""

    def __init__(self, reactor: EpollReactor, error: Exception | None = None) -> None:
        self.reactor, self.error = reactor, error
        self.calls = 0
        self.fd, self.writer = os.pipe()
        os.write(self.writer, b"x")
        reactor.add_reader(self.fd, self.called)

    def called(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.reactor.remove_reader(self.fd)
        os.close(self.fd)
        os.close(self.writer)


@pytest.fixture
def faults() -> FaultTracker:
    return FaultTracker(system_clock)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def reactor(faults: FaultTracker, clock: FakeClock) -> Iterator[EpollReactor]:
    made = EpollReactor(faults, clock)
    yield made
    made.close()


# -- descriptors --------------------------------------------------------------------------


def test_a_callback_that_raises_is_reported_and_its_descriptor_ignored_for_a_while(
    reactor: EpollReactor, faults: FaultTracker
) -> None:
    bad, good = Reader(reactor, KeyError("x")), Reader(reactor)
    for _ in range(3):
        reactor.wait(0)
    assert (bad.calls, good.calls) == (1, 3)
    assert faults.report()[0].startswith("callback Reader.called failed once: KeyError('x')")
    bad.close()
    good.close()


def test_the_pause_doubles_and_ends_with_the_first_success(
    reactor: EpollReactor, clock: FakeClock
) -> None:
    reader = Reader(reactor, KeyError("x"))
    pauses = []
    for _ in range(9):
        reactor.wait(0)
        calls = reader.calls
        began = clock.now
        while reader.calls == calls:
            clock.now += FIRST_PAUSE_SECONDS
            reactor.wait(0)
            reactor.wait(0)
        pauses.append(clock.now - began)
    assert pauses[:3] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    reader.error = None
    clock.now += LONGEST_PAUSE_SECONDS
    calls = reader.calls
    for _ in range(4):
        reactor.wait(0)
    assert reader.calls == calls + 3
    reader.close()


def test_waiting_ends_when_a_pause_does(reactor: EpollReactor, clock: FakeClock) -> None:
    reader = Reader(reactor, KeyError("x"))
    reactor.wait(0)
    clock.now += FIRST_PAUSE_SECONDS
    reactor.wait(None)  # would never return
    reactor.wait(0)
    assert reader.calls == 2
    reader.close()


def test_a_descriptor_that_is_added_again_is_not_paused(reactor: EpollReactor) -> None:
    reader = Reader(reactor, KeyError("x"))
    reactor.wait(0)
    reactor.remove_reader(reader.fd)
    reactor.add_reader(reader.fd, reader.called)
    reactor.wait(0)
    assert reader.calls == 2
    reader.close()


def test_a_callback_that_removed_its_descriptor_before_it_raised_leaves_nothing(
    reactor: EpollReactor,
) -> None:
    reader = Reader(reactor)

    def give_up() -> None:
        reactor.remove_reader(reader.fd)
        raise KeyError("x")

    reactor.remove_reader(reader.fd)
    reactor.add_reader(reader.fd, give_up)
    reactor.wait(0)
    assert reactor.callbacks == {}
    reactor.wait(0)
    reader.close()


def test_fencing_ends_the_daemon_also_from_a_callback(reactor: EpollReactor) -> None:
    reader = Reader(reactor, StoreFenced("another daemon has the state"))
    with pytest.raises(StoreFenced):
        reactor.wait(0)
    reader.close()


def test_a_writer_is_called_once(reactor: EpollReactor) -> None:
    calls: list[int] = []
    read, write = os.pipe()
    reactor.add_writer(write, lambda: calls.append(1))
    reactor.wait(0)
    reactor.wait(0)
    assert calls == [1]
    os.close(read)
    os.close(write)


def test_without_a_fault_tracker_errors_are_raised() -> None:
    reactor = EpollReactor()
    reader = Reader(reactor, KeyError("x"))
    with pytest.raises(KeyError):
        reactor.wait(0)
    reader.close()
    reactor.call_later(0, reader.called)
    with pytest.raises(KeyError):
        reactor.wait(0)
    reactor.close()


# -- timers -------------------------------------------------------------------------------


def test_timers_fire_once_in_the_order_of_their_times(
    reactor: EpollReactor, clock: FakeClock
) -> None:
    fired: list[str] = []
    reactor.call_later(2, lambda: fired.append("b"))
    reactor.call_later(1, lambda: fired.append("a"))
    reactor.call_later(9, lambda: fired.append("c"))
    reactor.wait(0)
    assert fired == []
    clock.now += 2
    reactor.wait(None)  # would never return without a timer that is due
    assert fired == ["a", "b"]
    reactor.wait(0)
    assert fired == ["a", "b"]


@pytest.mark.timeout(5)
def test_a_wait_that_is_overdue_does_not_sleep(reactor: EpollReactor) -> None:
    reactor.wait(-0.25)


def test_a_cancelled_timer_neither_fires_nor_wakes(reactor: EpollReactor, clock: FakeClock) -> None:
    fired: list[str] = []
    timer = reactor.call_later(1, lambda: fired.append("a"))
    timer.cancel()
    timer.cancel()
    clock.now += 5
    reactor.wait(0)
    assert fired == []
    assert reactor._bound(7.0) == 7.0


def test_a_timer_that_raises_is_reported_and_the_next_one_fires(
    reactor: EpollReactor, faults: FaultTracker
) -> None:
    fired: list[str] = []

    def fail() -> None:
        raise ValueError("a bug")

    reactor.call_later(0, fail)
    reactor.call_later(0, lambda: fired.append("b"))
    reactor.wait(0)
    assert fired == ["b"]
    assert "timer test_a_timer_that_raises" in faults.report()[0]


# -- other threads ------------------------------------------------------------------------


def test_another_thread_wakes_the_reactor_and_has_its_call_made_here(reactor: EpollReactor) -> None:
    threads: list[threading.Thread] = []
    other = threading.Thread(
        target=lambda: reactor.call_soon_threadsafe(
            lambda: threads.append(threading.current_thread())
        )
    )
    other.start()
    reactor.wait(None)
    other.join()
    assert threads == [threading.current_thread()]


def test_a_thread_that_ends_after_the_reactor_was_closed_is_ignored() -> None:
    reactor = EpollReactor()
    reactor.close()
    reactor.call_soon_threadsafe(lambda: None)


def test_a_call_that_raises_keeps_no_other_from_being_made(
    reactor: EpollReactor, faults: FaultTracker
) -> None:
    calls: list[int] = []
    reactor.call_soon_threadsafe(lambda: calls.append(1 // 0))
    reactor.call_soon_threadsafe(lambda: calls.append(1))
    reactor.wait(0)
    assert calls == [1]
    assert len(faults.report()) == 1


def test_a_nested_function_is_named_after_the_outer_one() -> None:
    assert name_of(lambda: None) == "test_a_nested_function_is_named_after_the_outer_one"
    assert name_of(os.path.join) == "join"
