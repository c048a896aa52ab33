"""Supply of trials: messages to the sampler, scores over attempts, the controller."""

from functools import partial
from typing import Any

import pytest

from core.scenario import S, Swept
from daemon.handler_fixture import HandlerFixture
from stoker.core.model.job import Job, Score
from stoker.core.model.sweep import Sweep, Trial
from stoker.daemon.handlers.job_actions import cancel, release
from stoker.daemon.metrics.scorer import TrialScorer
from stoker.daemon.reports.format import Point
from stoker.daemon.sweeps.controller import (
    MAX_FAILURES,
    SweepController,
    all_trials_failed,
    trial_message,
)
from stoker.daemon.sweeps.submit import handle_submit_sweep
from stoker.schema import requests as r


@pytest.mark.parametrize(
    ("state", "score", "expected"),
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
def test_the_sampler_gets_the_values_of_finished_trials_only(state, score, expected):
    message = trial_message(Trial(2, 0, '{"x":1}', state, score))
    assert (message["state"], message.get("value")) == expected
    assert message["params"] == {"x": 1}


def a_trial(**fields: object) -> tuple[TrialScorer, Job]:
    scenario = Swept(gpus=1)
    sweep = scenario.sweep(**fields)
    [id] = scenario.trials(sweep, 1)
    scenario.run(id)
    return TrialScorer(lambda: scenario.state), scenario.job(id)


def score_of(scores: TrialScorer, job: Job, *values: float) -> float | None:
    """Return the score of an attempt that reported these values."""
    key = (job.id, job.attempt)
    points = [Point(float(step), 1.0, {"loss": value}) for step, value in enumerate(values)]
    scores.on_points(job, key, points)
    [final] = scores.on_end(job, key)
    return final.value  # type: ignore[attr-defined]


def test_the_score_is_the_best_or_the_last_value_of_all_attempts():
    scores, job = a_trial(best_of=True)
    assert score_of(scores, job, 3.0, 1.0, 2.0) == 1.0
    job.score, job.attempt = Score(1.0, 2.0), 1
    assert score_of(scores, job, 5.0) == 1.0
    scores, job = a_trial()
    assert score_of(scores, job, 3.0, 1.0, 2.0) == 2.0
    job.score, job.attempt = Score(2.0, 2.0), 1
    assert score_of(scores, job, 5.0) == 5.0


def test_all_trials_failed_counts_failures_since_the_last_release():
    sweep = Sweep(id=1, name="", user="", identity="", definition="", method="", created_at=0.0)
    sweep.counts = {"failed": MAX_FAILURES - 1}
    assert not all_trials_failed(sweep)
    sweep.counts = {"failed": MAX_FAILURES}
    assert all_trials_failed(sweep)
    sweep.failures_accepted = MAX_FAILURES
    assert not all_trials_failed(sweep)
    sweep.failures_accepted, sweep.counts = 0, {"failed": MAX_FAILURES, "stopped": 1}
    assert not all_trials_failed(sweep)


class RecordingSampler:
    """A sampler that keeps its questions; the test answers them."""

    def __init__(self) -> None:
        self.questions: dict[int, Any] = {}
        self.forgotten: list[int] = []

    def ask(self, sweep: int, definition: Any, trials: Any, on_answer: Any) -> None:
        self.questions[sweep] = on_answer

    def forget(self, sweep: int) -> None:
        self.forgotten.append(sweep)


class ControlledSweeps:
    """A controller over real handlers; its commands run in the next cycle."""

    def __init__(self, handlers: HandlerFixture) -> None:
        self.handlers = handlers
        self.sampler = RecordingSampler()
        self.commands: list[Any] = []
        sampler: Any = self.sampler
        self.controller = SweepController(handlers.context, self.commands.append, sampler)

    def send(self, **definition: Any) -> None:
        space = {"parameters": {"x": {"min": 0.0, "max": 1.0}}, "line": "train {x}"}
        body = r.Sweep(
            definition={**space, **definition}, directory=str(self.handlers.directory),
            environment={"PATH": "/bin"}, options={"gpus": "1"},
        )  # fmt: skip
        self.handlers.ask(handle_submit_sweep(self.handlers.context, body))

    def supply(self) -> int:
        """Supply trials once; return the number of commands."""
        self.controller.supply_trials(self.handlers.state)
        commands, self.commands[:] = list(self.commands), []
        self.handlers.cycle([], commands)
        return len(commands)

    @property
    def sweep(self) -> Sweep:
        return self.handlers.state.sweeps[1]


@pytest.fixture
def sweeps(handlers: HandlerFixture) -> ControlledSweeps:
    return ControlledSweeps(handlers)


def test_an_unbounded_sweep_always_has_a_pending_trial(sweeps: ControlledSweeps) -> None:
    sweeps.send(method="random")
    for _ in range(4):
        sweeps.supply()
    assert sweeps.sweep.counts.get("waiting")
    assert sweeps.supply() == 0, "one is pending"
    issued = sweeps.sweep.issued
    for job in list(sweeps.handlers.state.running):
        sweeps.handlers.exit(job)
        sweeps.supply()
    assert sweeps.sweep.issued > issued
    commands = [job.command for job in sweeps.handlers.state.jobs.values()]
    assert len(set(commands)) == len(commands), "no point is tried twice"


def test_points_of_the_sampler_become_trials_until_all_are_issued(
    sweeps: ControlledSweeps,
) -> None:
    sweeps.send(method="tpe", samples=2, metric={"name": "loss"})
    assert sweeps.supply() == 0
    assert sweeps.supply() == 0, "it has been asked already"
    for x in (0.5, 0.5, 0.25):
        answer = sweeps.sampler.questions.pop(1)
        answer([{"x": x}], None, False)
        sweeps.supply()
        sweeps.controller.supply_trials(sweeps.handlers.state)
    assert (sweeps.sweep.issued, sweeps.sampler.forgotten) == (2, [1])


def test_a_sampler_without_more_points_ends_the_sweep(sweeps: ControlledSweeps) -> None:
    sweeps.send(method="tpe", metric={"name": "loss"})
    sweeps.supply()
    sweeps.sampler.questions[1]([], None, True)
    sweeps.supply()
    assert sweeps.sweep.ended


def test_a_problem_of_the_sampler_is_noted_and_stops_the_supply(sweeps: ControlledSweeps) -> None:
    sweeps.send(method="tpe", metric={"name": "loss"})
    sweeps.supply()
    sweeps.sampler.questions.pop(1)([], "optuna crashed", False)
    sweeps.supply()
    assert sweeps.sweep.note == "optuna crashed"
    assert (sweeps.supply(), sweeps.sampler.questions) == (0, {})


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_a_lost_definition_is_noted(sweeps: ControlledSweeps, method: str) -> None:
    sweeps.send(method=method, metric={"name": "loss"})
    sweeps.handlers.store.rows.blobs.clear()
    sweeps.supply()
    assert "lost" in (sweeps.sweep.note or "")


def test_a_sweep_with_failures_only_gets_no_more_trials_until_released(
    sweeps: ControlledSweeps,
) -> None:
    sweeps.send(method="random")
    for _ in range(40):
        sweeps.supply()
        for job in list(sweeps.handlers.state.running):
            sweeps.handlers.exit(job, 1)
        if sweeps.sweep.note:
            break
    assert "release" in (sweeps.sweep.note or "")
    failed = sweeps.sweep.counts["failed"]
    sweeps.handlers.ask(partial(release, sweeps.handlers.context, r.Release(["1"])))
    sweeps.supply()
    assert sweeps.sweep.issued > failed


def test_a_command_for_a_sweep_that_has_ended_does_nothing(sweeps: ControlledSweeps) -> None:
    sweeps.send(method="random")
    sweeps.controller.supply_trials(sweeps.handlers.state)
    sweeps.handlers.ask(partial(cancel, sweeps.handlers.context, r.Cancel(["1"])))
    sweeps.handlers.cycle([], sweeps.commands)
    assert sweeps.sweep.issued == 0
    assert sweeps.controller.awaiting_trials == set()
