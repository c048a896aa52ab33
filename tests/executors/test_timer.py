"""Timer: one callback at the earliest of all requested times."""

import pytest

from stoker.executors.reactor import RETRY_SECONDS, Timer
from virtual_reactor import VirtualReactor


class Fixture:
    """A timer, and a callback that returns what a test has set."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, list[float]()
        self.returns: float | Exception | None = None
        self.reactor = VirtualReactor(lambda: self.now)
        self.timer = Timer(self.reactor, self.callback)

    def callback(self) -> float | None:
        self.calls.append(self.now)
        if isinstance(self.returns, Exception):
            raise self.returns
        return self.returns

    def run(self, until: float) -> list[float]:
        """Let time pass; return when the callback was called."""
        while (wait := self.reactor.seconds_until_timer()) is not None and self.now + wait <= until:
            self.now += wait
            self.reactor.run_timers()
        self.now = until
        return self.calls


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


def test_the_earliest_request_counts_and_is_answered_once(fixture: Fixture) -> None:
    for seconds in (5.0, 2.0, 9.0):
        fixture.timer.request(seconds)
    assert fixture.timer.is_set
    assert fixture.run(20.0) == [2.0]
    assert not fixture.timer.is_set


def test_the_callback_returns_when_it_is_called_next(fixture: Fixture) -> None:
    fixture.returns = 3.0
    fixture.timer()
    assert fixture.run(7.0) == [0.0, 3.0, 6.0]


def test_a_cancelled_timer_does_not_call_back(fixture: Fixture) -> None:
    fixture.timer.request(1.0)
    fixture.timer.cancel()
    fixture.timer.cancel()
    assert fixture.run(5.0) == []


def test_a_callback_that_fails_is_called_again_after_a_pause(fixture: Fixture) -> None:
    fixture.returns = KeyError("a bug")
    with pytest.raises(KeyError):
        fixture.timer()
    fixture.returns = None
    assert fixture.run(5.0) == [0.0, RETRY_SECONDS]
