"""TimerHeap: the next of many timers, set and cancelled."""

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.structures import TimerHeap


def test_the_next_timer_is_the_earliest() -> None:
    timers = TimerHeap()
    timers.set(1, 20.0)
    timers.set(2, 10.0)
    assert timers.next_time() == (10.0, 2)


def test_a_postponed_timer_is_not_due_at_its_old_time() -> None:
    timers = TimerHeap()
    timers.set(1, 10.0)
    timers.set(2, 20.0)
    timers.set(1, 30.0)
    assert list(timers.due(25.0)) == [2]
    assert timers.next_time() == (30.0, 1)


def test_a_timer_set_back_to_its_old_time_is_due_once() -> None:
    timers = TimerHeap()
    for time in (10.0, 30.0, 10.0):
        timers.set(1, time)
    assert list(timers.due(40.0)) == [1]
    assert timers.next_time() is None


def test_an_infinite_time_cancels_a_timer() -> None:
    timers = TimerHeap()
    timers.set(1, 10.0)
    timers.set(1, inf)
    assert (timers.next_time(), timers.time_of(1)) == (None, inf)


def test_a_due_timer_may_be_set_again_during_iteration() -> None:
    timers = TimerHeap()
    timers.set(1, 10.0)
    timers.set(2, 11.0)
    seen = []
    for job in timers.due(20.0):
        seen.append(job)
        timers.set(job, 20.0 + job)
        timers.cancel(2)
    assert (seen, timers.next_time()) == ([1], (21.0, 1))


TIMES = st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, inf])
STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 4), TIMES),
    st.tuples(st.just("drop"), st.integers(0, 4), st.just(0.0)),
    st.tuples(st.just("due"), st.just(0), st.sampled_from([0.0, 1.0, 2.0, 3.0])),
    st.tuples(st.just("not before"), st.just(0), st.sampled_from([1.0, 2.0])),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(steps=st.lists(STEPS, max_size=40))
def test_the_heap_equals_a_plain_table(steps: list[tuple[str, int, float]]) -> None:
    timers, table = TimerHeap(), dict[int, float]()
    for what, job, time in steps:
        if what == "put":
            timers.set(job, time)
            table[job] = time
        elif what == "drop":
            timers.cancel(job)
            table.pop(job, None)
        elif what == "due":
            expected = sorted((at, other) for other, at in table.items() if at <= time)
            assert list(timers.due(time)) == [other for _, other in expected]
            table = {other: at for other, at in table.items() if at > time}
        else:
            timers.postpone_all(time)
            table = {other: max(at, time) for other, at in table.items()}
        ahead = [(at, other) for other, at in table.items() if at < inf]
        assert timers.next_time() == min(ahead, default=None)
        assert [timers.time_of(other) for other in range(5)] == [
            table.get(other, inf) for other in range(5)
        ]
