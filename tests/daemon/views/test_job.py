"""Views of jobs."""

from stoker.core.model.job import JobState
from stoker.daemon.views.job import STATE_CODES


def test_every_state_has_a_short_name_of_its_own() -> None:
    assert len(set(STATE_CODES.values())) == len(STATE_CODES) == len(JobState)
