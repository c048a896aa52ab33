"""Co-location: when it pays that a job joins others on a GPU."""

from math import inf

import pytest

from stoker.core.heterogeneous.colocation import MIN_GAIN, colocation_gain
from stoker.core.measurement.estimator import colocation_key
from stoker.core.model.profile import JobProfile
from stoker.core.state.state import State

MODEL = "v100"


def state_with(**speeds: float) -> State:
    """Return a state with the speed of each pair `job_other` that was measured."""
    state = State()
    for pair, speed in speeds.items():
        profile, other = pair.split("_")
        key = colocation_key(MODEL, other)
        before = state.record.profiles.get(profile, JobProfile())
        interference = {**before.interference, key: speed}
        state.record.profiles[profile] = JobProfile(interference=interference)
    return state


@pytest.mark.parametrize(
    ("speed", "other_speed", "expected"),
    [(0.7, 0.7, True), (0.6, 0.6, False), (1.0, 0.3, True), (0.0, 1.0, False), (1.0, 0.0, False)],
)
def test_sharing_pays_if_clearly_more_progress_is_made(
    speed: float, other_speed: float, expected: bool
) -> None:
    state = state_with(a_b=speed, b_a=other_speed)
    assert (colocation_gain(state, "a", ["b"], MODEL) > MIN_GAIN) is expected


def test_unmeasured_pair_is_tried() -> None:
    assert colocation_gain(State(), "a", ["b"], MODEL) > MIN_GAIN


def test_all_jobs_on_the_gpu_count() -> None:
    state = state_with(a_b=0.8, b_a=0.9, a_c=0.5, c_a=0.9)
    assert colocation_gain(state, "a", ["b", "c"], MODEL) == pytest.approx(0.8 * 0.5 - 0.2)


def test_one_job_that_does_not_fit_is_enough() -> None:
    assert colocation_gain(state_with(a_b=1.0, b_a=0.0), "a", ["c", "b"], MODEL) == -inf
