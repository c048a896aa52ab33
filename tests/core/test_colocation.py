"""Co-location: worked examples and properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.heterogeneous.colocation import (
    Colocation,
    best_colocation,
    colocated_finish,
    colocation_gain,
)

TIMES = st.floats(1.0, 1e6)
SPEEDS = st.floats(0.05, 1.0)


def colocation(speed: float, is_preferred: bool = False) -> Colocation:
    return Colocation(100.0, 100.0, speed, speed, is_preferred)


@pytest.mark.parametrize(
    ("speed", "other_speed", "expected"),
    [(0.7, 0.7, True), (0.6, 0.6, False), (1.0, 0.3, True), (0.0, 1.0, False), (1.0, 0.0, False)],
)
def test_sharing_pays_if_clearly_more_progress_is_made(
    speed: float, other_speed: float, expected: bool
) -> None:
    assert Colocation(1.0, 1.0, speed, other_speed).pays is expected


def test_progress_on_an_unsuitable_gpu_counts_less() -> None:
    # The GPU suits the second job half as well: 0.8 × 0.5 - 0.2 × 1.
    assert colocation_gain(0.8, 0.8, 0.5, 1.0) == pytest.approx(0.2)


def test_last_of_two_jobs_continues_alone() -> None:
    # At half speed the first ends after 20 s; the other has done 10 of 30, and needs 20 more.
    assert colocated_finish(10.0, 30.0, 0.5, 0.5) == (20.0, 40.0)
    assert colocated_finish(30.0, 10.0, 0.5, 0.5) == (40.0, 20.0)


def test_job_joins_where_both_end_soonest() -> None:
    assert best_colocation([colocation(0.65), colocation(0.9)]) == 1


def test_job_waits_if_no_colocation_pays() -> None:
    assert best_colocation([colocation(0.5), colocation(0.0)]) is None
    assert best_colocation([]) is None


def test_jobs_continue_to_share_unless_another_is_clearly_better() -> None:
    # Preferred: 125 + 25 less a fifth; better: 111 + 11.
    assert best_colocation([colocation(0.9), colocation(0.8, is_preferred=True)]) == 1


@given(TIMES, TIMES, SPEEDS, SPEEDS)
def test_no_job_ends_sooner_when_it_shares_and_no_work_is_lost(
    seconds: float, other_seconds: float, speed: float, other_speed: float
) -> None:
    end, other_end = colocated_finish(seconds, other_seconds, speed, other_speed)
    assert end >= seconds * (1 - 1e-9)
    assert other_end >= other_seconds * (1 - 1e-9)
    # Until the first of them ends, both run slower; then one runs at full speed.
    both = min(end, other_end)
    assert both * speed + (end - both) == pytest.approx(seconds)
    assert both * other_speed + (other_end - both) == pytest.approx(other_seconds)


@given(TIMES, TIMES, SPEEDS, SPEEDS)
def test_if_sharing_pays_both_end_before_one_after_the_other(
    seconds: float, other_seconds: float, speed: float, other_speed: float
) -> None:
    if Colocation(seconds, other_seconds, speed, other_speed).pays:
        last = max(colocated_finish(seconds, other_seconds, speed, other_speed))
        assert last <= (seconds + other_seconds) * (1 + 1e-9)
