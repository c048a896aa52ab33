"""Lifecycle: drain, stop, idle exit and signals."""

import os
import signal
from collections.abc import Iterator

import pytest

from stoker.daemon.control.lifecycle import Lifecycle, Phase
from stoker.daemon.runtime.reactor import EpollReactor
from virtual_reactor import VirtualReactor


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_jobs_may_start_only_while_running():
    lifecycle = Lifecycle(VirtualReactor())
    assert lifecycle.may_start
    lifecycle.prepare_stop()
    assert (lifecycle.phase, lifecycle.may_start) == (Phase.STOPPING, False)


def test_draining_stops_when_nothing_is_busy():
    lifecycle = Lifecycle(VirtualReactor())
    lifecycle.stop_if_drained(is_busy=False)
    assert not lifecycle.is_stopped
    lifecycle.drain()
    lifecycle.stop_if_drained(is_busy=True)
    assert (lifecycle.is_draining, lifecycle.is_stopped, lifecycle.may_start) == (
        True,
        False,
        False,
    )
    lifecycle.stop_if_drained(is_busy=False)
    assert lifecycle.is_stopped


def test_a_daemon_that_prepares_to_stop_can_still_drain():
    lifecycle = Lifecycle(VirtualReactor())
    lifecycle.prepare_stop()
    lifecycle.drain()
    assert lifecycle.is_draining
    lifecycle.prepare_stop()
    assert lifecycle.is_draining


def test_nothing_follows_a_stop():
    lifecycle = Lifecycle(VirtualReactor())
    lifecycle.stop()
    lifecycle.drain()
    lifecycle.prepare_stop()
    assert lifecycle.is_stopped


def test_an_idle_daemon_stops_after_the_time_and_work_restarts_it():
    clock = FakeClock()
    reactor = VirtualReactor(clock)
    lifecycle = Lifecycle(reactor, idle_exit=10.0)
    for is_busy in (False, True, False, False):
        lifecycle.set_busy(is_busy)
        clock.now += 9
        reactor.run_timers()
        assert not lifecycle.is_stopped or clock.now > 130
    assert lifecycle.is_stopped


def test_without_an_idle_exit_a_daemon_waits_for_ever():
    reactor = VirtualReactor()
    Lifecycle(reactor).set_busy(False)
    assert reactor.seconds_until_timer() is None


# -- signals ------------------------------------------------------------------------------


@pytest.fixture
def reactor() -> Iterator[EpollReactor]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    made = EpollReactor()
    yield made
    made.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_signal_stops_the_daemon(reactor: EpollReactor):
    lifecycle = Lifecycle(reactor)
    lifecycle.listen_for_signals()
    os.kill(os.getpid(), signal.SIGHUP)  # ignored
    os.kill(os.getpid(), signal.SIGTERM)
    reactor.wait(1)
    lifecycle.close()
    assert lifecycle.is_stopped


def test_a_signal_that_the_job_source_handles_does_not_stop_the_daemon(reactor: EpollReactor):
    received: list[int] = []

    def on_signal(number: int) -> bool:
        received.append(number)
        return True

    lifecycle = Lifecycle(reactor, on_signal)
    lifecycle.listen_for_signals()
    os.kill(os.getpid(), signal.SIGUSR1)
    reactor.wait(1)
    lifecycle.close()
    lifecycle.close()
    assert received == [signal.SIGUSR1]
    assert not lifecycle.is_stopped
