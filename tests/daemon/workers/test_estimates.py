"""The estimate that every command prints: from samples of a forecast to one number and a range."""

import pytest

from stoker.core.explain.forecast import JobForecast, Kind, Samples, TimeInterval, combined
from stoker.core.model.job import Job
from stoker.daemon.workers.estimates import (
    interval,
    last_of,
    queued_estimate,
    start_end_estimate,
)

AT = 1000.0
NINE: list[float | None] = [AT + 100.0 + 10.0 * n for n in range(9)]


def samples(at: list[float | None] = NINE, kind: Kind = Kind.RUNS, **more: float) -> Samples:
    return Samples(at=at, until=AT + 500.0, kind=kind, basis="why", **more)


def test_the_median_and_a_range_of_80_percent() -> None:
    assert interval(samples(), AT) == TimeInterval(AT + 100, AT + 140, AT + 180, Kind.RUNS, "why")
    assert interval(samples(list(reversed(NINE))), AT) == interval(samples(), AT)


def test_samples_in_the_past_do_not_count() -> None:
    found = interval(samples(), AT + 145)
    assert found is not None
    assert (found.low, found.likely, found.high) == (AT + 150, AT + 165, AT + 180)


@pytest.mark.parametrize("overdue", [0.0, 1.0, 100.0, 10_000.0])
def test_an_estimate_that_was_outlived_moves_on_and_grows(overdue: float) -> None:
    now = AT + 180 + overdue
    found = interval(samples(), now)
    assert found is not None
    assert found.likely == now + max(overdue / 2, 1.0)
    assert found.low == now + 1.0
    assert found.high is None


def test_what_has_not_happened_is_at_least_a_second_away() -> None:
    found = interval(samples([AT + 0.1] * 9), AT)
    assert found is not None
    assert (found.low, found.likely, found.high) == (AT + 1, AT + 1, AT + 1)


def test_what_is_later_than_was_simulated_is_after_that() -> None:
    found = interval(samples([AT + 100, *[None] * 8]), AT)
    assert found is not None
    assert (found.low, found.likely, found.high) == (AT + 100, None, None)
    never = interval(samples([None] * 9), AT)
    assert never is not None
    assert (never.low, never.likely) == (AT + 500, None)


def test_time_limits_give_the_latest_time() -> None:
    found = interval(samples(kind=Kind.LIMIT, latest=AT + 400), AT)
    assert found is not None
    assert (found.low, found.likely, found.high) == (AT + 100, AT + 400, AT + 400)


def test_without_a_basis_there_is_no_estimate() -> None:
    assert interval(samples(kind=Kind.UNKNOWN), AT) is None


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ((), Kind.ORDER),
        ((Kind.EPOCHS, Kind.RUNS), Kind.RUNS),
        ((Kind.RUNS, Kind.STATED, Kind.ORDER), Kind.STATED),
        ((Kind.LIMIT, Kind.LIMIT), Kind.LIMIT),
        ((Kind.LIMIT, Kind.RUNS), Kind.SIMILAR),
        ((Kind.SIMILAR, Kind.EPOCHS), Kind.SIMILAR),
        ((Kind.SIMILAR, Kind.UNKNOWN), Kind.UNKNOWN),
    ],
)
def test_the_kind_of_an_estimate_is_that_of_its_weakest_part(
    kinds: tuple[Kind, ...], found: Kind
) -> None:
    assert combined(kinds) is found


def test_the_last_of_several_jobs_is_the_latest_in_each_future() -> None:
    first, second = samples([AT + 10, AT + 40, None]), samples([AT + 20, AT + 30, AT + 1])
    found = last_of([first, second], 1.0, AT)
    assert found is not None
    assert found.at == [AT + 20, AT + 40, None]
    assert found.kind is Kind.RUNS
    twice = last_of([second], 2.0, AT)
    assert twice is not None
    assert (twice.at, twice.kind) == ([AT + 40, AT + 60, AT + 2], Kind.SIMILAR)
    assert last_of([], 1.0, AT) is None


def test_the_last_of_several_jobs_has_a_bound_only_if_each_has_one() -> None:
    first, second = samples(kind=Kind.LIMIT, latest=AT + 300), samples([None] * 9, Kind.LIMIT)
    both = last_of([first, first], 1.0, AT)
    assert both is not None
    assert both.latest == AT + 300
    open_end = last_of([first, second], 1.0, AT)
    assert open_end is not None
    assert open_end.latest is None


def pending(**more: bool) -> Job:
    return Job(id=1, spec="", name="", user="", submitted_at=0.0, **more)


def test_a_pending_job_has_no_estimate_once_the_queue_is_late() -> None:
    """Its estimated start has passed, and a new forecast is not there yet."""
    found = JobForecast(job=1, start=samples(), end=samples([AT + 900.0] * 9))
    assert start_end_estimate(found, pending(), AT, AT).start is not None
    late = start_end_estimate(found, pending(), AT, AT + 155)
    assert (late.start, late.end) == (None, None)
    assert late.never is not None
    assert "out of date" in late.never


def test_a_held_job_has_none_either() -> None:
    found = JobForecast(job=1, start=samples(), end=samples())
    assert start_end_estimate(found, pending(held=True), AT, AT).never == "it is held"


def test_a_missing_basis_is_reported() -> None:
    found = JobForecast(job=1, start=samples(kind=Kind.UNKNOWN), end=samples(kind=Kind.UNKNOWN))
    assert start_end_estimate(found, pending(), AT, AT).never == "why"


def test_a_job_in_the_queue_of_a_cluster_starts_when_that_expects_it() -> None:
    job = Job(7, "", "", "", 0.0, external_id="Slurm 4711", queue_start=AT + 1000)
    found = queued_estimate(JobForecast(job=7, end=samples()), job, AT, AT + 10)
    assert found.start is not None
    assert found.end is not None
    assert (found.start.likely, found.start.high) == (AT + 1000, None)
    assert found.end.likely == AT + 1140


def test_a_job_in_the_queue_of_a_cluster_that_says_nothing_has_no_estimate() -> None:
    for start in (None, AT - 1):
        job = Job(7, "", "", "", 0.0, queue_start=start)
        found = queued_estimate(JobForecast(job=7, end=samples()), job, AT, AT)
        assert (found.start, found.end) == (None, None)
        assert found.never == "the cluster decides when it starts"
