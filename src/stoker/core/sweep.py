"""A sweep: one thing to its owner, many trials to the planner."""

from __future__ import annotations

from bisect import insort

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.job import Job, Score
from stoker.core.lifecycle import HOLDING, JobState

WAITING, RUNNING, DONE, STOPPED, FAILED, CANCELLED = (
    "waiting", "running", "done", "stopped", "failed", "cancelled",
)  # fmt: skip
"""Where the trials of a sweep stand, in the words in which they are counted."""
UNFINISHED = (WAITING, RUNNING)


class Rule(Struct, frozen=True, omit_defaults=True):
    """When trials are compared with each other, and which of them go on."""

    kind: str
    """`halving`: the best 1/eta of those that came so far; `median`: the better half."""
    rungs: tuple[float, ...]
    """The steps at which that happens, rising."""
    eta: float = 3.0
    brackets: int = 1
    """In how many ways trials begin: some are first compared at the second rung, some at the
    third, ... so that about as much time goes to each way (Hyperband)."""
    trials: int = 1
    """How many must have come there before anybody is stopped."""


class Sweep(Struct, omit_defaults=True, kw_only=True):
    """What was asked for, and how it stands. Only events change it."""

    id: int
    name: str
    user: str
    identity: str
    """The same for two requests that mean one sweep."""
    definition: str
    """Hash of all that was asked for: the definition, and what its trials ask for."""
    method: str
    created_at: float
    metric: str | None = None
    maximize: bool = False
    best_of: bool = False
    """Whether a trial is worth its best figure, not its last one."""
    target: float | None = None
    rule: Rule | None = None
    total: int | None = None
    """How many trials are wanted; None: as many as there is time for."""
    asks: bool = False
    """Whether its trials are thought of one after the other, not all at the beginning."""
    max_running: int | None = None
    priority: int = 0
    held: bool = False
    ended: bool = False
    """No more trials are wanted, whatever was asked for."""
    note: str | None = None
    """Why it cannot go on, if it cannot."""
    forgiven: int = 0
    """How many trials had failed when its owner last said that it should go on."""
    issued: int = 0
    """How many trials it has had; the next one has this number."""
    counts: dict[str, int] = {}
    best: float | None = None
    best_job: int | None = None
    ended_at: float | None = None
    resident: bool = True
    """Whether its board is in memory."""

    @property
    def unfinished(self) -> int:
        """How many trials have yet to end."""
        return sum(self.counts.get(word, 0) for word in UNFINISHED)

    @property
    def wanting(self) -> bool:
        """Whether more trials are to be thought of."""
        return self.asks and not self.ended and (self.total is None or self.issued < self.total)

    @property
    def open(self) -> bool:
        """Whether it goes on."""
        return self.unfinished > 0 or self.wanting

    @property
    def went_well(self) -> bool:
        """Whether none of its trials failed or was given up."""
        return not (self.counts.get(FAILED) or (self.counts.get(CANCELLED) and not self.reached))

    @property
    def reached(self) -> bool:
        """Whether a trial was as good as was hoped for."""
        if self.target is None or self.best is None:
            return False
        return not self.better(self.target, self.best)

    def better(self, value: float, than: float) -> bool:
        """Whether a figure is better than another one."""
        return value > than if self.maximize else value < than

    def look_whether_over(self, at: float) -> None:
        """Something has changed by which it may have come to its end, or goes on again."""
        self.ended_at = None if self.open else self.ended_at or at

    def look_whether_best(self, trial: Trial) -> None:
        """Whether a trial that has come to its end is the best so far."""
        score = trial.score
        value = score.value if score is not None and score.final else None
        if trial.state is not JobState.COMPLETED or value is None:
            return
        if self.best is None or self.better(value, self.best):
            self.best, self.best_job = value, trial.job

    def count(self, word: str, step: int) -> None:
        """One trial more or fewer stands there."""
        counts = dict(self.counts)
        counts[word] = counts.get(word, 0) + step
        if not counts[word]:
            del counts[word]
        self.counts = counts


class Trial(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A trial as its sweep remembers it, when the job itself has left memory."""

    job: int
    number: int
    params: str
    state: JobState
    score: Score | None = None


class Board:
    """All trials of a sweep, and how those stand that are compared."""

    def __init__(self) -> None:
        self.trials: dict[int, Trial] = {}
        self.keys: dict[str, int] = {}
        """Which job tries these parameters."""
        self.rungs: list[list[float]] = []
        """At each rung the figures of all trials that came there, the best first: smaller is
        better here, whatever the goal."""

    def enter(self, trial: Trial, sweep: Sweep) -> None:
        """A trial is there, or stands otherwise than before."""
        before = self.trials.get(trial.job)
        self.trials[trial.job] = trial
        self.keys[trial.params] = trial.job
        was = before.score.rungs if before is not None and before.score is not None else ()
        now = trial.score.rungs if trial.score is not None else ()
        if was is now or was == now:
            return
        for rung, value in enumerate(was):
            self.rungs[rung].remove(signed(sweep, value))
        while len(self.rungs) < len(now):
            self.rungs.append([])
        for rung, value in enumerate(now):
            insort(self.rungs[rung], signed(sweep, value))
        while self.rungs and not self.rungs[-1]:
            self.rungs.pop()


WORST = 1.7e308
"""The figure of a trial that has none, since its loss is no number."""


def signed(sweep: Sweep, value: float) -> float:
    """A figure such that smaller is better."""
    return -value if sweep.maximize else value


def worst(sweep: Sweep) -> float:
    """What a trial is worth that has gone astray."""
    return -WORST if sweep.maximize else WORST


def word_of(state: JobState, score: Score | None) -> str:
    """Where a trial stands."""
    if state is JobState.PENDING:
        return WAITING
    if state in HOLDING:
        return RUNNING
    if state is JobState.COMPLETED:
        return STOPPED if score is not None and score.stopped else DONE
    return CANCELLED if state is JobState.CANCELLED else FAILED


def trial_of(job: Job) -> Trial:
    """What its sweep remembers of a job."""
    assert job.index is not None
    assert job.params is not None
    return Trial(job.id, job.index, job.params, job.state, job.score)


def definition_of(sweep: Sweep, asked: Sweep) -> Sweep:
    """A sweep that is asked for again: what is wanted now, and how it stands already."""
    return replace(
        asked, id=sweep.id, created_at=sweep.created_at, issued=sweep.issued, counts=sweep.counts,
        best=sweep.best, best_job=sweep.best_job, ended_at=sweep.ended_at,
        forgiven=sweep.counts.get(FAILED, 0),
        resident=sweep.resident,
    )  # fmt: skip
