"""Sweeps that go on: trials are thought of as devices come free, while nobody looks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from msgspec.json import decode

from stoker.core import events as e
from stoker.core.lifecycle import FINISHED, JobState
from stoker.core.state import State
from stoker.core.sweep import DONE, FAILED, STOPPED, WAITING, Sweep, Trial
from stoker.daemon.context import RequestContext
from stoker.daemon.sweeps.submit import THINKING, StoredSweep, as_trial, kept
from stoker.daemon.workers.sampler_client import SamplerClient
from stoker.engine import Command, CommandRejected, CommandResult, Instant
from stoker.sweep import samplers
from stoker.sweep.values import canonical

AT_ONCE = 64
"""Trials of an endless sequence that are added at a time."""


IN_A_ROW = 10
"""So many failures without a single success are not bad luck."""
IN_VAIN = "its last {} trials have failed and none has succeeded; to continue: stoker release {}"


class SweepController:
    """Keeps one trial ready in every sweep that wants more: a free device never waits for one."""

    def __init__(
        self, desk: RequestContext, ask: Callable[[Command], None], sampler: SamplerClient
    ) -> None:
        self.desk, self.ask, self.sampler = desk, ask, sampler
        self.asking: set[int] = set()
        """Sweeps for which a trial is being thought of."""
        self.thinking: set[int] = set()
        """Sweeps of which the sampler knows."""
        self.definitions: dict[str, StoredSweep] = {}
        """What those were asked to be, by hash."""

    def after(self, state: State) -> None:
        """Something has happened: see who has no trial ready."""
        for id in [id for id in self.thinking if not state.sweeps[id].wanting]:
            self.thinking.discard(id)
            self.asking.discard(id)  # a question that is forgotten is not answered
            self.sampler.forget(id)
        for id in state.boards:
            sweep = state.sweeps[id]
            if sweep.wanting and id not in self.asking and self._idle(sweep):
                self.asking.add(id)
                if in_vain(sweep):
                    self.ask(AddTrials(self, id, [], trouble=IN_VAIN.format(IN_A_ROW, id)))
                else:
                    self._think(state, sweep)

    @staticmethod
    def _idle(sweep: Sweep) -> bool:
        return not (sweep.held or sweep.note or sweep.counts.get(WAITING))

    def _think(self, state: State, sweep: Sweep) -> None:
        if sweep.method not in THINKING:
            self.ask(AddTrials(self, sweep.id, None))
            return
        try:
            definition = self.kept(sweep).definition
        except CommandRejected:
            self.ask(AddTrials(self, sweep.id, None))  # which says so
            return

        def answer(points: list[dict[str, Any]], trouble: str | None, done: bool) -> None:
            self.ask(AddTrials(self, sweep.id, points, trouble=trouble, done=done))

        self.thinking.add(sweep.id)
        trials = [told(trial) for trial in state.boards[sweep.id].trials.values()]
        self.sampler.ask(sweep.id, definition, trials, 1, answer)

    def kept(self, sweep: Sweep) -> StoredSweep:
        """What it was asked to be."""
        found = self.definitions.get(sweep.definition)
        if found is None:
            if len(self.definitions) > 64:
                self.definitions.clear()
            found = self.definitions[sweep.definition] = kept(self.desk, sweep)
        return found

    def tick(self) -> float | None:
        """Seconds until the sampler wants a turn even if nothing happens."""
        return self.sampler.tick()

    def close(self) -> None:
        """Nothing more is thought of here."""
        self.sampler.close()


class AddTrials:
    """A trial was thought of: the engine takes it, unless things have changed meanwhile."""

    def __init__(
        self, sweeps: SweepController, sweep: int, points: list[dict[str, Any]] | None,
        trouble: str | None = None, done: bool = False,
    ) -> None:  # fmt: skip
        self.sweeps, self.sweep, self.points = sweeps, sweep, points
        self.trouble, self.done = trouble, done

    def handle(self, state: State, now: Instant) -> CommandResult:
        """More trials, or the end of it, or why it cannot go on."""
        sweep = state.sweeps.get(self.sweep)
        if sweep is None or not sweep.wanting or sweep.id not in state.boards:
            return CommandResult()
        if self.trouble is not None:
            change = e.SweepChanged(at=now.wall, sweep=sweep.id, note=self.trouble)
            return CommandResult(events=[change])
        try:
            asked = self.sweeps.kept(sweep)
        except CommandRejected as refusal:
            change = e.SweepChanged(at=now.wall, sweep=sweep.id, note=refusal.message)
            return CommandResult(events=[change])
        points = self._next(state, sweep, asked.definition)
        if not points:
            # Everything that there is was tried; or a proposal was known, and another one is due.
            known = bool(self.points) and not self.done
            return CommandResult() if known else self._no_more(sweep, now)
        events: list[e.Event] = []
        if asked.hash not in state.specs:
            events.append(e.SpecRecorded(at=now.wall, hash=asked.hash, spec=asked.spec))
        trials = tuple(as_trial(asked.definition, params) for params in points)
        events.append(
            e.JobsSubmitted(
                at=now.wall, first=state.rest.next_id, count=len(trials), spec=asked.hash,
                priority=sweep.priority, sweep=sweep.id, trials=trials,
            )
        )  # fmt: skip
        # Nobody was promised these: should they be lost, others are thought of.
        return CommandResult(events=events, durable=False)

    def _next(self, state: State, sweep: Sweep, definition: dict[str, Any]) -> list[dict[str, Any]]:
        known = state.boards[sweep.id].keys
        left = AT_ONCE if sweep.total is None else sweep.total - sweep.issued
        if self.points is not None:
            fresh = {canonical(params): params for params in self.points}
            return [params for key, params in fresh.items() if key not in known][:left]
        most = min(left, max(sweep.unfinished, 1), AT_ONCE)
        # So many were drawn at least: that far, nothing new is to be found.
        return list(islice(samplers.fresh(definition, sweep.issued, known.__contains__), most))

    def _no_more(self, sweep: Sweep, now: Instant) -> CommandResult:
        """Nobody has an idea what else to try."""
        return CommandResult(events=[e.SweepChanged(at=now.wall, sweep=sweep.id, ended=True)])

    def reply(self, value: Any) -> None:
        """It is on record."""
        self.sweeps.asking.discard(self.sweep)

    def reject(self, rejection: CommandRejected) -> None:
        """It is not: another one will be thought of when something happens."""
        self.sweeps.asking.discard(self.sweep)


def in_vain(sweep: Sweep) -> bool:
    """Whether more trials would only fail like all those before."""
    failed, well = sweep.counts.get(FAILED, 0), sweep.counts.get(DONE) or sweep.counts.get(STOPPED)
    return not well and failed - sweep.forgiven >= IN_A_ROW


def told(trial: Trial) -> dict[str, Any]:
    """A trial as a method that thinks hears of it."""
    score = trial.score
    state = "running"
    if trial.state in FINISHED:
        state = "fail"
        if trial.state is JobState.COMPLETED and score is not None and score.value is not None:
            state = "pruned" if score.stopped else "complete"
    found = {
        "trial": trial.number,
        "params": decode(trial.params),
        "value": score.value if score is not None and state in ("complete", "pruned") else None,
        "state": state,
    }
    if state == "pruned" and score is not None:
        found["steps"] = [[score.step, score.value]]  # how far it came counts, too
    return found
