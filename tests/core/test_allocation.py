"""Allocation of GPUs to elastic jobs: minimum first, then by gain, restarts repaid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.elastic.allocation import (
    RESTART_PAYBACK,
    ElasticJob,
    allocate_gpus,
    epoch_seconds,
    epoch_times_at,
    reachable_steps,
)
from stoker.core.measurement.estimator import DEFAULT_SCALING_EXPONENT, training_stage

LINEAR = tuple((gpus, 100.0 / gpus) for gpus in (1, 2, 4, 8, 16))
"""Twice the GPUs, half the time."""
FLAT = ((1, 100.0), (2, 100.0), (4, 100.0), (8, 100.0))
"""More GPUs gain nothing."""


def elastic_job(
    id: int, epoch_times: tuple[tuple[int, float], ...] = LINEAR, **more: object
) -> ElasticJob:
    given = {"min_gpus": 1, "max_gpus": 64, "remaining_epochs": 100.0, **more}
    return ElasticJob(id=id, epoch_times=epoch_times, **given)  # type: ignore[arg-type]


# -- minimum first ----------------------------------------------------------------------


def test_single_job_gets_all_gpus_that_speed_it_up() -> None:
    assert allocate_gpus([elastic_job(1)], 16, 4) == {1: 16}


def test_all_jobs_start_before_one_grows() -> None:
    assert allocate_gpus([elastic_job(1), elastic_job(2), elastic_job(3)], 3, 4) == {
        1: 1,
        2: 1,
        3: 1,
    }


def test_jobs_start_in_the_order_given() -> None:
    assert allocate_gpus([elastic_job(9), elastic_job(4), elastic_job(7)], 2, 4) == {
        9: 1,
        4: 1,
        7: 0,
    }


def test_job_that_does_not_fit_is_skipped() -> None:
    assert allocate_gpus([elastic_job(1, min_gpus=4), elastic_job(2)], 2, 4) == {1: 0, 2: 2}


def test_no_job_gets_more_than_its_maximum() -> None:
    assert allocate_gpus([elastic_job(1, max_gpus=4)], 16, 4) == {1: 4}


def test_no_jobs_or_no_gpus_is_no_error() -> None:
    assert allocate_gpus([], 16, 4) == {}
    assert allocate_gpus([elastic_job(1)], 0, 4) == {1: 0}


# -- then by gain -----------------------------------------------------------


def test_gpus_go_to_the_job_that_gains() -> None:
    assert allocate_gpus([elastic_job(1, FLAT), elastic_job(2)], 9, 4) == {1: 1, 2: 8}


def test_shorter_of_two_equal_jobs_gets_more() -> None:
    # Speed over the root of the work: 4 times the work, half the gain per GPU.
    allocated = allocate_gpus(
        [elastic_job(1, remaining_epochs=400.0), elastic_job(2, remaining_epochs=100.0)], 17, 4
    )
    assert allocated == {1: 1, 2: 16}


def test_step_skips_a_slower_size() -> None:
    # Two nodes are slower than one, four are much faster: from 4 GPUs to 16 at once.
    dip = ((1, 100.0), (4, 30.0), (8, 40.0), (16, 8.0))
    assert allocate_gpus([elastic_job(1, dip)], 16, 4) == {1: 16}
    assert allocate_gpus([elastic_job(1, dip, max_gpus=8)], 16, 4) == {1: 4}


def test_no_job_gets_gpus_that_slow_it_down() -> None:
    worse = ((1, 100.0), (2, 60.0), (4, 70.0), (8, 90.0), (64, 100.0))
    assert allocate_gpus([elastic_job(1, worse)], 64, 4) == {1: 2}


def test_step_that_does_not_fit_is_replaced_by_a_smaller_one() -> None:
    assert allocate_gpus([elastic_job(1)], 7, 4) == {1: 4}


# -- a restart is repaid ------------------------------------------------------------------


def test_job_close_to_its_end_keeps_its_gpus() -> None:
    # 4 s of work on 4 GPUs; 8 would save 2 s and cost 30.
    assert allocate_gpus([elastic_job(1, current_gpus=4, remaining_epochs=0.16)], 16, 4) == {1: 4}


def test_change_must_repay_several_restarts() -> None:
    # From 4 GPUs to 8, of an epoch's 25 s half are saved: of 12.5 s, 15 times pay for 180 s.
    enough = RESTART_PAYBACK * 30.0 / 12.5
    assert allocate_gpus(
        [elastic_job(1, current_gpus=4, remaining_epochs=enough * 1.01, max_gpus=8)], 8, 4
    ) == {1: 8}
    assert allocate_gpus(
        [elastic_job(1, current_gpus=4, remaining_epochs=enough * 0.99, max_gpus=8)], 8, 4
    ) == {1: 4}


def test_long_restart_needs_more_gain() -> None:
    assert allocate_gpus(
        [elastic_job(1, current_gpus=4, remaining_epochs=20.0, max_gpus=8)], 8, 4
    ) == {1: 8}
    assert allocate_gpus(
        [elastic_job(1, current_gpus=4, remaining_epochs=20.0, max_gpus=8, restart_seconds=300.0)],
        8,
        4,
    ) == {1: 4}


def test_running_job_shrinks_for_a_new_one() -> None:
    # The 16 that it holds no longer fit, and for fewer both jobs are equal.
    assert allocate_gpus([elastic_job(1), elastic_job(2, current_gpus=16)], 16, 4) == {1: 8, 2: 8}


def test_current_size_that_is_no_step_may_stay() -> None:
    assert allocate_gpus([elastic_job(1, current_gpus=3, remaining_epochs=1.0)], 4, 4) == {1: 3}


# -- without measurements --------------------------------------------------------------------


def test_unmeasured_job_gets_at_most_one_node() -> None:
    assert allocate_gpus([elastic_job(1, ())], 64, 4) == {1: 4}


def test_measured_job_gets_at_most_twice_the_measured_size() -> None:
    assert allocate_gpus([elastic_job(1, ((4, 25.0),))], 64, 4) == {1: 8}


def test_without_epochs_the_job_with_less_attained_service_gets_more() -> None:
    old = elastic_job(1, remaining_epochs=None, attained=36_000.0, max_gpus=4)
    new = elastic_job(2, remaining_epochs=None, attained=900.0, max_gpus=4)
    assert allocate_gpus([old, new], 5, 4) == {1: 1, 2: 4}


def test_steps_are_parts_of_a_node_and_whole_nodes() -> None:
    measured = ((32, 1.0),)
    assert reachable_steps(elastic_job(1, measured), 4) == (
        1, 2, 4, 8, 16, 32, 64,
    )  # fmt: skip
    assert reachable_steps(elastic_job(1, measured, max_gpus=16), 8) == (1, 2, 4, 8, 16)
    assert reachable_steps(elastic_job(1, measured, min_gpus=3, max_gpus=8), 4) == (3, 4, 8)


def test_steps_of_many_nodes_are_few() -> None:
    measured = ((100_000, 1.0),)
    assert len(reachable_steps(elastic_job(1, measured, max_gpus=100_000), 8)) < 64


def test_interpolation_is_the_power_law_through_two_measurements() -> None:
    assert epoch_seconds(((1, 100.0), (16, 25.0)), 4) == pytest.approx(50.0)


def test_extrapolation_uses_the_default_exponent() -> None:
    assert epoch_seconds(((4, 50.0),), 8) == pytest.approx(50.0 / 2**DEFAULT_SCALING_EXPONENT)
    assert epoch_seconds(((4, 50.0),), 2) == pytest.approx(50.0 * 2**DEFAULT_SCALING_EXPONENT)
    assert epoch_seconds(((4, 50.0),), 4) == 50.0


# -- stages of training -------------------------------------------------------------------


def test_training_stages_are_short_at_first() -> None:
    assert [training_stage(done) for done in (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.9, 1.0)] == [
        0, 1, 2, 3, 4, 5, 6, 6,
    ]  # fmt: skip


def test_measurements_of_this_stage_count() -> None:
    measured = {0: {1: 90.0, 2: 80.0}, 3: {4: 30.0, 1: 100.0}, 4: {1: 95.0}}
    assert epoch_times_at(measured, 3) == ((1, 100.0), (4, 30.0))


def test_ratios_of_a_later_stage_are_carried_over() -> None:
    measured = {3: {1: 100.0, 4: 30.0}, 4: {4: 20.0, 8: 10.0}, 5: {2: 40.0}}
    assert epoch_times_at(measured, 3) == ((1, 100.0), (4, 30.0), (8, 15.0))


def test_nearest_stage_counts_and_an_earlier_one_by_its_fastest() -> None:
    assert epoch_times_at({4: {8: 20.0, 1: 95.0}}, 3) == ((1, 95.0), (8, 20.0))
    assert epoch_times_at({2: {1: 90.0, 2: 80.0, 8: 200.0}}, 3) == ((2, 80.0),)
    assert epoch_times_at({}, 3) == ()


# -- properties -----------------------------------------------------------------------

counts = st.integers(1, 64)
epoch_times = st.dictionaries(counts, st.floats(0.1, 1e4), max_size=5).map(
    lambda measured: tuple(sorted(measured.items()))
)


@st.composite
def elastic_jobs(draw: st.DrawFn) -> list[ElasticJob]:
    jobs = []
    for id in range(draw(st.integers(0, 8))):
        min_gpus = draw(st.integers(1, 4))
        max_gpus = draw(st.integers(min_gpus, 64))
        jobs.append(
            ElasticJob(
                id=id,
                min_gpus=min_gpus,
                max_gpus=max_gpus,
                current_gpus=draw(st.one_of(st.just(0), st.integers(min_gpus, max_gpus))),
                remaining_epochs=draw(st.one_of(st.none(), st.floats(0.0, 1e4))),
                epoch_times=draw(epoch_times),
                attained=draw(st.floats(0.0, 1e7)),
                restart_seconds=draw(st.floats(0.0, 1e3)),
            )
        )
    return jobs


@given(elastic_jobs(), st.integers(0, 128), st.sampled_from([1, 2, 4, 8]))
def test_no_more_is_allocated_than_exists(
    jobs: list[ElasticJob], gpus: int, gpus_per_node: int
) -> None:
    allocated = allocate_gpus(jobs, gpus, gpus_per_node)
    assert sum(allocated.values()) <= gpus
    for job in jobs:
        assert allocated[job.id] == 0 or job.min_gpus <= allocated[job.id] <= job.max_gpus


@given(elastic_jobs(), st.integers(0, 128), st.sampled_from([1, 2, 4, 8]))
def test_no_job_waits_while_its_minimum_is_free(
    jobs: list[ElasticJob], gpus: int, gpus_per_node: int
) -> None:
    allocated = allocate_gpus(jobs, gpus, gpus_per_node)
    minimums = 0
    for job in jobs:
        if allocated[job.id]:
            minimums += job.min_gpus
        else:
            assert job.min_gpus > gpus - minimums  # all jobs before it got their minimum


@given(elastic_jobs(), st.integers(0, 128), st.sampled_from([1, 2, 4, 8]))
def test_growing_job_ends_sooner(jobs: list[ElasticJob], gpus: int, gpus_per_node: int) -> None:
    allocated = allocate_gpus(jobs, gpus, gpus_per_node)
    for job in jobs:
        if (
            job.current_gpus
            and job.epoch_times
            and job.remaining_epochs is not None
            and allocated[job.id] > job.current_gpus
        ):
            left = max(job.remaining_epochs, 1e-3)
            before = left * epoch_seconds(job.epoch_times, job.current_gpus)
            after = (
                left * epoch_seconds(job.epoch_times, allocated[job.id])
                + RESTART_PAYBACK * job.restart_seconds
            )
            assert after <= before * (1 + 1e-9)


@given(elastic_jobs(), st.integers(0, 128), st.sampled_from([1, 2, 4, 8]))
def test_allocation_is_deterministic(jobs: list[ElasticJob], gpus: int, gpus_per_node: int) -> None:
    assert allocate_gpus(jobs, gpus, gpus_per_node) == allocate_gpus(
        iter(jobs), gpus, gpus_per_node
    )


@given(elastic_jobs(), st.sampled_from([1, 2, 4, 8]))
def test_with_enough_gpus_no_change_delays_a_job(
    jobs: list[ElasticJob], gpus_per_node: int
) -> None:
    allocated = allocate_gpus(jobs, 64 * 8, gpus_per_node)
    for job in jobs:
        if (
            job.current_gpus
            and allocated[job.id] != job.current_gpus
            and job.epoch_times
            and job.remaining_epochs is not None
        ):
            left = max(job.remaining_epochs, 1e-3)
            after = (
                left * epoch_seconds(job.epoch_times, allocated[job.id])
                + RESTART_PAYBACK * job.restart_seconds
            )
            assert after <= left * epoch_seconds(job.epoch_times, job.current_gpus) * (1 + 1e-9)
