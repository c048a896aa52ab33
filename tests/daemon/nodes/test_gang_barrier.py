"""Parts of one attempt come together, or none of them runs."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.cluster import Placement
from stoker.core.instructions import StartProcess
from stoker.daemon.nodes.gang_barrier import LIVE, NONE, READY, WAITING, GangBarrier


def of(count: int) -> GangBarrier:
    more = tuple(Placement(f"m{number}", ()) for number in range(1, count))
    return GangBarrier.of(StartProcess(1, 0, Placement("m0", (), more)))


def mustered(*parts: str) -> GangBarrier:
    muster = of(len(parts))
    muster.parts = list(parts)
    return muster


def test_nobody_goes_before_all_are_ready() -> None:
    muster = of(3)
    muster.ready(0, 29500)
    muster.ready(2, 29501)
    assert muster.orders().go == []
    muster.ready(1, 29502)
    orders = muster.orders()
    assert (orders.go, orders.over, muster.ports) == ([0, 1, 2], True, [29500, 29502, 29501])


def test_one_that_cannot_releases_the_others_and_the_reason_is_told_at_the_end() -> None:
    muster = of(2)
    muster.ready(0, 29500)
    muster.none(1, "no space left", failed=False)
    assert (muster.orders().release, muster.orders().over) == ([0], False)
    muster.none(0, "released", failed=False)
    orders = muster.orders()
    assert (orders.off, orders.failed, orders.over) == ("no space left", False, True)


def test_a_start_that_can_never_work_is_a_failure() -> None:
    muster = mustered(WAITING, WAITING)
    muster.none(0, "no such directory", failed=True)
    muster.none(1, "released", failed=False)
    assert muster.orders().failed


def test_back_again_the_ready_follow_those_that_went() -> None:
    orders = mustered(LIVE, READY).orders()
    assert (orders.go, orders.lost, orders.over) == ([1], [], True)


def test_back_again_one_that_was_released_is_lost_to_those_that_went() -> None:
    orders = mustered(LIVE, NONE).orders()
    assert (orders.go, orders.lost, orders.off) == ([], [1], None)


def test_back_again_nothing_is_decided_before_all_have_been_heard() -> None:
    assert not mustered(LIVE, WAITING).orders().over
    assert mustered(LIVE, WAITING, NONE).orders().lost == []


STANDINGS = st.lists(st.sampled_from([WAITING, READY, LIVE, NONE]), min_size=2, max_size=5)


@given(STANDINGS)
def test_whatever_they_say_nobody_goes_without_the_rest(parts: list[str]) -> None:
    orders = mustered(*parts).orders()
    if orders.go:
        assert WAITING not in parts
        assert NONE not in parts or LIVE in parts
    if orders.off is not None:
        assert set(parts) == {NONE}
    assert orders.over == (
        WAITING not in parts and (LIVE in parts or READY not in parts or NONE not in parts)
    )
