"""GangBarrier: all parts of an attempt run, or none."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.events.instructions import StartProcess
from stoker.core.model.resources import Placement
from stoker.daemon.nodes.gang_barrier import GangBarrier, PartState

WAITING, READY = PartState.WAITING, PartState.READY
LIVE, NONE = PartState.RUNNING, PartState.FAILED


def of(count: int) -> GangBarrier:
    more = tuple(Placement(f"m{number}", ()) for number in range(1, count))
    return GangBarrier.of(StartProcess(1, 0, Placement("m0", (), more)))


def barrier(*parts: PartState) -> GangBarrier:
    gang = of(len(parts))
    gang.parts = list(parts)
    return gang


def test_no_part_passes_before_all_are_ready() -> None:
    gang = of(3)
    gang.set_ready(0, 29500)
    gang.set_ready(2, 29501)
    assert gang.next_actions().release == []
    gang.set_ready(1, 29502)
    actions = gang.next_actions()
    assert (actions.release, actions.is_over, gang.ports) == (
        [0, 1, 2],
        True,
        [29500, 29502, 29501],
    )


def test_a_part_that_cannot_start_cancels_the_others_with_its_reason() -> None:
    gang = of(2)
    gang.set_ready(0, 29500)
    gang.set_failed(1, "no space left", failed=False)
    assert (gang.next_actions().give_up, gang.next_actions().is_over) == ([0], False)
    assert barrier(NONE, WAITING, READY).next_actions().give_up == [1, 2]
    gang.set_failed(0, "released", failed=False)
    actions = gang.next_actions()
    assert (actions.cancelled, actions.failed, actions.is_over) == ("no space left", False, True)


def test_a_start_that_can_never_work_is_a_failure() -> None:
    gang = barrier(WAITING, WAITING)
    gang.set_failed(0, "no such directory", failed=True)
    gang.set_failed(1, "released", failed=False)
    assert gang.next_actions().failed


def test_after_a_reconnection_ready_parts_follow_those_that_passed() -> None:
    actions = barrier(LIVE, READY).next_actions()
    assert (actions.release, actions.lost, actions.is_over) == ([1], [], True)


def test_after_a_reconnection_a_cancelled_part_ends_those_that_passed() -> None:
    actions = barrier(LIVE, NONE).next_actions()
    assert (actions.release, actions.lost, actions.cancelled) == ([], [1], None)


def test_after_a_reconnection_nothing_is_decided_before_all_parts_have_reported() -> None:
    assert not barrier(LIVE, WAITING).next_actions().is_over
    assert barrier(LIVE, WAITING, NONE).next_actions().lost == []


STANDINGS = st.lists(st.sampled_from([WAITING, READY, LIVE, NONE]), min_size=2, max_size=5)


@given(STANDINGS)
def test_in_no_state_a_part_passes_without_the_others(parts: list[PartState]) -> None:
    actions = barrier(*parts).next_actions()
    if actions.release:
        assert WAITING not in parts
        assert NONE not in parts or LIVE in parts
    if actions.cancelled is not None:
        assert set(parts) == {NONE}
    assert actions.is_over == (
        WAITING not in parts and (LIVE in parts or READY not in parts or NONE not in parts)
    )
