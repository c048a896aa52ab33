"""SweepController: keeps each open sweep supplied with trials."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from msgspec.json import decode

from stoker.core import events as e
from stoker.core.model.job import FINISHED, JobState
from stoker.core.model.sweep import DONE, FAILED, STOPPED, WAITING, Sweep, Trial
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext
from stoker.daemon.sweeps.stored import load_sweep, trial_command
from stoker.daemon.sweeps.submit import ADAPTIVE_METHODS
from stoker.daemon.workers.sampler_client import SamplerClient
from stoker.engine import Command, CommandRejected, CommandResult, Instant
from stoker.sweep.sampling import samplers
from stoker.sweep.values import canonical

MAX_TRIALS_ADDED = 64
"""Trials of an unbounded sweep that are added at a time."""
MAX_FAILURES = 10
"""After this many failures without a success, a sweep gets no more trials."""
ALL_FAILED = "its last {} trials have failed and none has succeeded; to continue: stoker release {}"


class SweepController:
    """Keeps one trial pending in every sweep that wants more, so that free devices never wait."""

    def __init__(
        self, context: RequestContext, submit: Callable[[Command], None], sampler: SamplerClient
    ) -> None:
        self.context, self.submit, self.sampler = context, submit, sampler
        self.awaiting_trials: set[int] = set()
        """Sweeps with an AddTrials command under way."""
        self.awaiting_sampler: set[int] = set()
        """Sweeps with a session in the sampler process."""

    def supply_trials(self, state: State) -> None:
        """Request trials for every sweep that wants more and has none pending."""
        for id in [id for id in self.awaiting_sampler if not state.sweeps[id].needs_trials]:
            self.awaiting_sampler.discard(id)
            self.awaiting_trials.discard(id)  # the sampler drops the question without a reply
            self.sampler.forget(id)
        for id in state.boards:
            sweep = state.sweeps[id]
            if sweep.needs_trials and id not in self.awaiting_trials and self._needs_trials(sweep):
                self.awaiting_trials.add(id)
                if all_trials_failed(sweep):
                    note = ALL_FAILED.format(MAX_FAILURES, id)
                    self.submit(AddTrials(self, id, [], problem=note))
                else:
                    self._request_trials(state, sweep)

    @staticmethod
    def _needs_trials(sweep: Sweep) -> bool:
        return not (sweep.held or sweep.note or sweep.counts.get(WAITING))

    def _request_trials(self, state: State, sweep: Sweep) -> None:
        if sweep.method not in ADAPTIVE_METHODS:
            self.submit(AddTrials(self, sweep.id, None))
            return
        try:
            definition = load_sweep(self.context, sweep).definition
        except CommandRejected:
            self.submit(AddTrials(self, sweep.id, None))  # it records the error as a note
            return

        def on_points(points: list[dict[str, Any]], problem: str | None, done: bool) -> None:
            self.submit(AddTrials(self, sweep.id, points, problem=problem, done=done))

        self.awaiting_sampler.add(sweep.id)
        trials = [trial_message(trial) for trial in state.boards[sweep.id].trials.values()]
        self.sampler.ask(sweep.id, definition, trials, on_points)


class AddTrials:
    """Command: add trials to a sweep, unless it has changed meanwhile."""

    def __init__(
        self, controller: SweepController, sweep: int, points: list[dict[str, Any]] | None,
        problem: str | None = None, done: bool = False,
    ) -> None:  # fmt: skip
        """With `points` of the sampler, or without: then the method itself has the next ones."""
        self.controller, self.sweep, self.points = controller, sweep, points
        self.problem, self.done = problem, done

    def handle(self, state: State, now: Instant) -> CommandResult:
        """Submit trials, end the sweep, or record why it cannot continue."""
        sweep = state.sweeps.get(self.sweep)
        if sweep is None or not sweep.needs_trials or sweep.id not in state.boards:
            return CommandResult()
        if self.problem is not None:
            change = e.SweepChanged(at=now.wall, sweep=sweep.id, note=self.problem)
            return CommandResult(events=[change])
        try:
            stored = load_sweep(self.controller.context, sweep)
        except CommandRejected as rejection:
            change = e.SweepChanged(at=now.wall, sweep=sweep.id, note=rejection.message)
            return CommandResult(events=[change])
        points = self._new_points(state, sweep, stored.definition)
        if not points:
            if self.points and not self.done:
                return CommandResult()  # the sampler repeated a point; it is asked again
            return CommandResult(events=[e.SweepChanged(at=now.wall, sweep=sweep.id, ended=True)])
        events: list[e.Event] = []
        if stored.hash not in state.specs:
            events.append(e.SpecRecorded(at=now.wall, hash=stored.hash, spec=stored.spec))
        trials = tuple(trial_command(stored.definition, params) for params in points)
        events.append(
            e.JobsSubmitted(
                at=now.wall, first=state.record.next_id, count=len(trials), spec=stored.hash,
                priority=sweep.priority, sweep=sweep.id, trials=trials,
            )
        )  # fmt: skip
        # No client was promised these trials: if a crash loses them, others are added.
        return CommandResult(events=events, durable=False)

    def _new_points(
        self, state: State, sweep: Sweep, definition: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Return parameters that no trial of the sweep has yet."""
        known = state.boards[sweep.id].keys
        left = MAX_TRIALS_ADDED if sweep.total is None else sweep.total - sweep.issued
        if self.points is not None:
            points = {canonical(params): params for params in self.points}
            return [params for key, params in points.items() if key not in known][:left]
        count = min(left, max(sweep.unfinished, 1), MAX_TRIALS_ADDED)
        # At least `issued` points of the sequence were drawn before, so those are skipped.
        return list(
            islice(samplers.new_points(definition, sweep.issued, known.__contains__), count)
        )

    def reply(self, value: Any) -> None:
        """The trials are recorded: the sweep may request more."""
        self.controller.awaiting_trials.discard(self.sweep)

    def reject(self, rejection: CommandRejected) -> None:
        """The trials are not recorded: the next cycle requests them again."""
        self.controller.awaiting_trials.discard(self.sweep)


def all_trials_failed(sweep: Sweep) -> bool:
    """Return True if enough trials have failed without a success that more would fail too."""
    failed = sweep.counts.get(FAILED, 0)
    succeeded = sweep.counts.get(DONE) or sweep.counts.get(STOPPED)
    return not succeeded and failed - sweep.failures_accepted >= MAX_FAILURES


def trial_message(trial: Trial) -> dict[str, Any]:
    """Return a trial as the sampler process reads it."""
    score = trial.score
    state = "running"
    if trial.state in FINISHED:
        state = "fail"
        if trial.state is JobState.COMPLETED and score is not None and score.value is not None:
            state = "pruned" if score.stopped else "complete"
    message = {"trial": trial.number, "params": decode(trial.params), "state": state}
    if score is not None and state in ("complete", "pruned"):
        message["value"] = score.value
    if score is not None and state == "pruned":
        message["steps"] = [[score.step, score.value]]
    return message
