"""What a sampler hears of trials, and what attempts of a trial are worth together."""

import pytest

from core.scenario import S, Swept
from stoker.core.job import Job, Score
from stoker.core.sweep import Sweep, Trial
from stoker.daemon.metrics.scorer import TrialScorer
from stoker.daemon.reports.format import Point
from stoker.daemon.sweeps.controller import MAX_FAILURES, all_trials_failed, trial_message


@pytest.mark.parametrize(
    ("state", "score", "heard"),
    [
        (S.RUNNING, Score(0.5, 1.0, (0.5,)), ("running", None)),
        (S.COMPLETED, Score(0.5, 9.0, final=True), ("complete", 0.5)),
        (S.COMPLETED, Score(0.5, 3.0, stopped=True, final=True), ("pruned", 0.5)),
        (S.COMPLETED, Score(None, 9.0, final=True), ("fail", None)),
        (S.COMPLETED, None, ("fail", None)),
        (S.FAILED, Score(0.0, 9.0, final=True), ("fail", None)),
        (S.CANCELLED, Score(0.0, 9.0, final=True), ("fail", None)),
    ],
)
def test_only_what_came_to_its_end_teaches_anything(state, score, heard):
    found = trial_message(Trial(2, 0, '{"x":1}', state, score))
    assert (found["state"], found["value"]) == heard
    assert found["params"] == {"x": 1}


def a_trial(**fields: object) -> tuple[TrialScorer, Job]:
    story = Swept(gpus=1)
    sweep = story.sweep(**fields)
    [id] = story.trials(sweep, 1)
    story.run(id)
    return TrialScorer(lambda: story.state), story.job(id)


def heard(scores: TrialScorer, job: Job, *values: float) -> float | None:
    """What an attempt came to that reported these."""
    key = (job.id, job.attempt)
    points = [Point(float(step), 1.0, {"loss": value}) for step, value in enumerate(values)]
    scores.on_points(job, key, points, False)
    [final] = scores.on_end(job, key)
    return final.value  # type: ignore[attr-defined]


def test_the_best_of_all_attempts_counts_or_the_last_figure():
    scores, job = a_trial(best_of=True)
    assert heard(scores, job, 3.0, 1.0, 2.0) == 1.0
    job.score, job.attempt = Score(1.0, 2.0), 1
    assert heard(scores, job, 5.0) == 1.0
    scores, job = a_trial()
    assert heard(scores, job, 3.0, 1.0, 2.0) == 2.0
    job.score, job.attempt = Score(2.0, 2.0), 1
    assert heard(scores, job, 5.0) == 5.0


def test_whoever_only_fails_is_not_asked_for_more_until_its_owner_says_so():
    sweep = Sweep(id=1, name="", user="", identity="", definition="", method="", created_at=0.0)
    sweep.counts = {"failed": MAX_FAILURES - 1}
    assert not all_trials_failed(sweep)
    sweep.counts = {"failed": MAX_FAILURES}
    assert all_trials_failed(sweep)
    sweep.forgiven = MAX_FAILURES
    assert not all_trials_failed(sweep)
    sweep.forgiven, sweep.counts = 0, {"failed": MAX_FAILURES, "stopped": 1}
    assert not all_trials_failed(sweep)
