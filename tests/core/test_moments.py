"""The next moment of many, however often it is put off."""

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.moments import Moments


def test_the_first_moment_is_the_earliest() -> None:
    moments = Moments()
    moments.put(1, 20.0)
    moments.put(2, 10.0)
    assert moments.first() == (10.0, 2)


def test_one_that_was_put_off_does_not_come_at_its_old_moment() -> None:
    moments = Moments()
    moments.put(1, 10.0)
    moments.put(2, 20.0)
    moments.put(1, 30.0)
    assert list(moments.due(25.0)) == [2]
    assert moments.first() == (30.0, 1)


def test_one_that_was_put_back_to_its_old_moment_comes_once() -> None:
    moments = Moments()
    for moment in (10.0, 30.0, 10.0):
        moments.put(1, moment)
    assert list(moments.due(40.0)) == [1]
    assert moments.first() is None


def test_never_is_no_moment() -> None:
    moments = Moments()
    moments.put(1, 10.0)
    moments.put(1, inf)
    assert (moments.first(), moments.of(1)) == (None, inf)


def test_one_that_is_due_may_be_put_off_meanwhile() -> None:
    moments = Moments()
    moments.put(1, 10.0)
    moments.put(2, 11.0)
    seen = []
    for job in moments.due(20.0):
        seen.append(job)
        moments.put(job, 20.0 + job)
        moments.drop(2)
    assert (seen, moments.first()) == ([1], (21.0, 1))


MOMENTS = st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, inf])
STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 4), MOMENTS),
    st.tuples(st.just("drop"), st.integers(0, 4), st.just(0.0)),
    st.tuples(st.just("due"), st.just(0), st.sampled_from([0.0, 1.0, 2.0, 3.0])),
    st.tuples(st.just("not before"), st.just(0), st.sampled_from([1.0, 2.0])),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(steps=st.lists(STEPS, max_size=40))
def test_they_are_what_a_plain_table_says(steps: list[tuple[str, int, float]]) -> None:
    moments, table = Moments(), dict[int, float]()
    for what, job, moment in steps:
        if what == "put":
            moments.put(job, moment)
            table[job] = moment
        elif what == "drop":
            moments.drop(job)
            table.pop(job, None)
        elif what == "due":
            expected = sorted((at, each) for each, at in table.items() if at <= moment)
            assert list(moments.due(moment)) == [each for _, each in expected]
            table = {each: at for each, at in table.items() if at > moment}
        else:
            moments.not_before(moment)
            table = {each: max(at, moment) for each, at in table.items()}
        ahead = [(at, each) for each, at in table.items() if at < inf]
        assert moments.first() == min(ahead, default=None)
        assert [moments.of(each) for each in range(5)] == [
            table.get(each, inf) for each in range(5)
        ]
