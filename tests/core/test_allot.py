"""GPUs for elastic jobs: the least for everybody, then where they bring most, no change in vain."""

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.policy.allot import (
    REPAID,
    SCALING,
    Share,
    allot,
    ladder,
    measured,
    pace,
    stage,
)

LINEAR = tuple((gpus, 100.0 / gpus) for gpus in (1, 2, 4, 8, 16))
"""Twice the GPUs, half the time."""
FLAT = ((1, 100.0), (2, 100.0), (4, 100.0), (8, 100.0))
"""Nothing is gained by more."""


def share(id: int, paces: tuple[tuple[int, float], ...] = LINEAR, **more: object) -> Share:
    given = {"least": 1, "most": 64, "left": 100.0, **more}
    return Share(id=id, paces=paces, **given)  # type: ignore[arg-type]


# -- the least first ----------------------------------------------------------------------


def test_a_job_alone_gets_all_that_it_gains_from() -> None:
    assert allot([share(1)], 16, 4) == {1: 16}


def test_everybody_starts_before_anybody_grows() -> None:
    assert allot([share(1), share(2), share(3)], 3, 4) == {1: 1, 2: 1, 3: 1}


def test_who_comes_first_in_the_order_starts_first() -> None:
    assert allot([share(9), share(4), share(7)], 2, 4) == {9: 1, 4: 1, 7: 0}


def test_who_does_not_fit_is_passed_by() -> None:
    assert allot([share(1, least=4), share(2)], 2, 4) == {1: 0, 2: 2}


def test_nobody_gets_more_than_it_wants() -> None:
    assert allot([share(1, most=4)], 16, 4) == {1: 4}


def test_nothing_to_give_out_is_no_error() -> None:
    assert allot([], 16, 4) == {}
    assert allot([share(1)], 0, 4) == {1: 0}


def test_what_is_fixed_stays_and_comes_off_first() -> None:
    stays = share(1, now=12, fixed=True)
    assert allot([share(2), stays], 16, 4) == {2: 4, 1: 12}


# -- then where they bring most -----------------------------------------------------------


def test_gpus_go_to_the_job_that_gains_by_them() -> None:
    assert allot([share(1, FLAT), share(2)], 9, 4) == {1: 1, 2: 8}


def test_of_two_that_scale_alike_the_shorter_one_gets_more() -> None:
    # Speed over the root of the work: 4 times the work, half the worth of each GPU.
    found = allot([share(1, left=400.0), share(2, left=100.0)], 17, 4)
    assert found == {1: 1, 2: 16}


def test_the_weight_of_a_job_makes_up_for_its_length() -> None:
    heavy = share(1, left=400.0, weight=sqrt(4.0) * 1.5)
    assert allot([heavy, share(2, left=100.0)], 17, 4) == {1: 16, 2: 1}


def test_a_dip_is_stepped_over() -> None:
    # Two machines are slower than one, four are much faster: from 4 GPUs to 16 at once.
    dip = ((1, 100.0), (4, 30.0), (8, 40.0), (16, 8.0))
    assert allot([share(1, dip)], 16, 4) == {1: 16}
    assert allot([share(1, dip, most=8)], 16, 4) == {1: 4}


def test_nobody_gets_gpus_that_make_it_slower() -> None:
    worse = ((1, 100.0), (2, 60.0), (4, 70.0), (8, 90.0), (64, 100.0))
    assert allot([share(1, worse)], 64, 4) == {1: 2}


def test_what_no_longer_fits_is_cut_to_what_does() -> None:
    assert allot([share(1)], 7, 4) == {1: 4}


# -- a restart is repaid ------------------------------------------------------------------


def test_a_job_close_to_its_end_keeps_what_it_has() -> None:
    # 4 s of work on 4 GPUs; 8 would save 2 s and cost 30.
    assert allot([share(1, now=4, left=0.16)], 16, 4) == {1: 4}


def test_the_saved_time_is_held_against_several_restarts() -> None:
    # From 4 GPUs to 8, of an epoch's 25 s half are saved: of 12.5 s, 15 times pay for 180 s.
    enough = REPAID * 30.0 / 12.5
    assert allot([share(1, now=4, left=enough * 1.01, most=8)], 8, 4) == {1: 8}
    assert allot([share(1, now=4, left=enough * 0.99, most=8)], 8, 4) == {1: 4}


def test_a_dear_restart_needs_more_to_repay_it() -> None:
    assert allot([share(1, now=4, left=20.0, most=8)], 8, 4) == {1: 8}
    assert allot([share(1, now=4, left=20.0, most=8, cost=300.0)], 8, 4) == {1: 4}


def test_a_job_gives_up_what_a_new_one_needs_to_start() -> None:
    # The 16 that it has no longer fit, and for any fewer both are alike.
    assert allot([share(1), share(2, now=16)], 16, 4) == {1: 8, 2: 8}


def test_a_number_that_is_on_no_ladder_may_stay() -> None:
    assert allot([share(1, now=3, left=1.0)], 4, 4) == {1: 3}


# -- what is not known --------------------------------------------------------------------


def test_before_it_is_measured_a_job_gets_one_machine_at_most() -> None:
    assert allot([share(1, ())], 64, 4) == {1: 4}


def test_after_that_it_gets_twice_what_was_measured() -> None:
    assert allot([share(1, ((4, 25.0),))], 64, 4) == {1: 8}


def test_of_two_jobs_without_epochs_the_one_that_has_had_less_gets_more() -> None:
    old = share(1, left=None, attained=36_000.0, most=4)
    new = share(2, left=None, attained=100.0, most=4)
    assert allot([old, new], 5, 4) == {1: 1, 2: 4}


def test_a_ladder_has_parts_of_a_machine_and_whole_ones() -> None:
    known = ((32, 1.0),)
    assert ladder(share(1, known), 4) == (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)
    assert ladder(share(1, known, most=16), 8) == (1, 2, 4, 8, 16)
    assert ladder(share(1, known, least=3, most=8), 4) == (3, 4, 8)


def test_a_ladder_of_many_machines_stays_short() -> None:
    known = ((100_000, 1.0),)
    assert len(ladder(share(1, known, most=100_000), 8)) < 64


def test_between_two_measurements_lies_the_power_law_through_them() -> None:
    assert pace(((1, 100.0), (16, 25.0)), 4) == pytest.approx(50.0)


def test_beyond_all_measurements_lies_what_is_true_of_most() -> None:
    assert pace(((4, 50.0),), 8) == pytest.approx(50.0 / 2**SCALING)
    assert pace(((4, 50.0),), 2) == pytest.approx(50.0 * 2**SCALING)
    assert pace(((4, 50.0),), 4) == 50.0


# -- stages of training -------------------------------------------------------------------


def test_stages_are_short_at_first() -> None:
    assert [stage(done) for done in (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.9, 1.0)] == [
        0, 1, 2, 3, 4, 5, 6, 6,
    ]  # fmt: skip


def test_what_was_measured_at_this_stage_counts() -> None:
    known = {0: {1: 90.0, 2: 80.0}, 3: {4: 30.0, 1: 100.0}, 4: {1: 95.0}}
    assert measured(known, 3) == ((1, 100.0), (4, 30.0))


def test_what_a_later_stage_knows_of_more_gpus_is_carried_over_in_proportion() -> None:
    known = {3: {1: 100.0, 4: 30.0}, 4: {4: 20.0, 8: 10.0}, 5: {2: 40.0}}
    assert measured(known, 3) == ((1, 100.0), (4, 30.0), (8, 15.0))


def test_without_it_the_next_stage_counts_whole_and_the_one_before_by_its_fastest() -> None:
    assert measured({4: {8: 20.0, 1: 95.0}}, 3) == ((1, 95.0), (8, 20.0))
    assert measured({2: {1: 90.0, 2: 80.0, 8: 200.0}}, 3) == ((2, 80.0),)
    assert measured({}, 3) == ()


# -- whatever comes -----------------------------------------------------------------------

counts = st.integers(1, 64)
paces = st.dictionaries(counts, st.floats(0.1, 1e4), max_size=5).map(
    lambda each: tuple(sorted(each.items()))
)


@st.composite
def crowds(draw: st.DrawFn) -> list[Share]:
    found = []
    for id in range(draw(st.integers(0, 8))):
        least = draw(st.integers(1, 4))
        most = draw(st.integers(least, 64))
        found.append(
            Share(
                id=id,
                least=least,
                most=most,
                now=draw(st.one_of(st.just(0), st.integers(least, most))),
                left=draw(st.one_of(st.none(), st.floats(0.0, 1e4))),
                paces=draw(paces),
                attained=draw(st.floats(0.0, 1e7)),
                cost=draw(st.floats(0.0, 1e3)),
                weight=draw(st.floats(0.1, 10.0)),
            )
        )
    return found


@given(crowds(), st.integers(0, 128), st.sampled_from([1, 2, 4, 8]))
def test_there_is_never_more_given_than_there_is(
    crowd: list[Share], gpus: int, machine: int
) -> None:
    found = allot(crowd, gpus, machine)
    assert sum(found.values()) <= gpus
    for each in crowd:
        assert found[each.id] == 0 or each.least <= found[each.id] <= each.most


@given(crowds(), st.integers(0, 128), st.sampled_from([1, 2, 4, 8]))
def test_nobody_waits_whose_least_is_left_over(crowd: list[Share], gpus: int, machine: int) -> None:
    found = allot(crowd, gpus, machine)
    had = 0
    for each in crowd:
        if found[each.id]:
            had += each.least
        else:
            assert each.least > gpus - had  # all those before it have their least, and no more


@given(crowds(), st.integers(0, 128), st.sampled_from([1, 2, 4, 8]))
def test_whoever_grows_is_done_sooner_for_it(crowd: list[Share], gpus: int, machine: int) -> None:
    found = allot(crowd, gpus, machine)
    for each in crowd:
        if each.now and each.paces and each.left is not None and found[each.id] > each.now:
            left = max(each.left, 1e-3)
            before = left * pace(each.paces, each.now)
            after = left * pace(each.paces, found[each.id]) + REPAID * each.cost
            assert after <= before * (1 + 1e-9)


@given(crowds(), st.integers(0, 128), st.sampled_from([1, 2, 4, 8]))
def test_the_same_question_has_the_same_answer(crowd: list[Share], gpus: int, machine: int) -> None:
    assert allot(crowd, gpus, machine) == allot(iter(crowd), gpus, machine)


@given(crowds(), st.sampled_from([1, 2, 4, 8]))
def test_with_room_for_all_nobody_loses_by_a_change(crowd: list[Share], machine: int) -> None:
    found = allot(crowd, 64 * 8, machine)
    for each in crowd:
        if each.now and found[each.id] != each.now and each.paces and each.left is not None:
            left = max(each.left, 1e-3)
            after = left * pace(each.paces, found[each.id]) + REPAID * each.cost
            assert after <= left * pace(each.paces, each.now) * (1 + 1e-9)
