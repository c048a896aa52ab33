"""Sweeps: growing arrays of trials over a parameter space, compared at rungs."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from stoker.core.model.job import HOLDING, Job, JobState, Score

WAITING, RUNNING, DONE, STOPPED, FAILED, CANCELLED = (
    "waiting", "running", "done", "stopped", "failed", "cancelled",
)  # fmt: skip
"""Status of a trial, as counted in `Sweep.counts`."""
UNFINISHED = (WAITING, RUNNING)
WORST_VALUE = 1.7e308
"""Value of a trial if its metric is not a number; finite, so that it can be stored as JSON."""


class EarlyStoppingRule(Struct, frozen=True, omit_defaults=True):
    """Early-stopping rule: at which steps trials are compared, and which of them continue."""

    kind: str
    """`halving`: the best 1/eta at a rung continue (ASHA); `median`: the better half."""
    rungs: tuple[float, ...]
    """Steps at which trials are compared, ascending."""
    eta: float = 3.0
    brackets: int = 1
    """Hyperband: trials of later brackets are first compared at a later rung, and each bracket
    gets about the same training time."""
    trials: int = 1
    """Number of trials that must have reached a rung before any is stopped there."""


class Sweep(Struct, omit_defaults=True, kw_only=True):
    """Definition and status of a sweep; changed by events only."""

    id: int
    name: str
    user: str
    identity: str
    """Equal for two requests that mean the same sweep."""
    definition: str
    """Hash of the definition and of the resource request of its trials."""
    method: str
    created_at: float
    metric: str | None = None
    maximize: bool = False
    best_of: bool = False
    """Whether the value of a trial is its best one instead of its last one."""
    target: float | None = None
    rule: EarlyStoppingRule | None = None
    total: int | None = None
    """Number of trials; None: no limit."""
    asks: bool = False
    """Whether trials are proposed one after the other by a sampler, not all at the start."""
    max_running: int | None = None
    priority: int = 0
    held: bool = False
    uid: int | None = None
    """Unix user that submitted it; None: the user of a single-user daemon."""
    ended: bool = False
    """Whether the user ended it: no more trials are added."""
    note: str | None = None
    """Why it cannot continue, if it cannot."""
    failures_accepted: int = field(default=0, name="forgiven")
    """Number of failed trials when the user last continued it."""
    issued: int = 0
    """Number of trials so far, which is the number of the next one."""
    counts: dict[str, int] = {}
    best: float | None = None
    best_job: int | None = None
    ended_at: float | None = None
    resident: bool = True
    """Whether its board is in memory."""

    @property
    def unfinished(self) -> int:
        """Number of trials that have not ended."""
        return sum(self.counts.get(status, 0) for status in UNFINISHED)

    @property
    def needs_trials(self) -> bool:
        """Whether more trials must be added."""
        return self.asks and not self.ended and (self.total is None or self.issued < self.total)

    @property
    def is_open(self) -> bool:
        """Whether it has unfinished trials or gets more of them."""
        return self.unfinished > 0 or self.needs_trials

    @property
    def is_success(self) -> bool:
        """Whether no trial failed or was cancelled, except trials that were not needed."""
        return not (
            self.counts.get(FAILED) or (self.counts.get(CANCELLED) and not self.target_reached)
        )

    @property
    def target_reached(self) -> bool:
        """Whether a trial has reached the target value."""
        if self.target is None or self.best is None:
            return False
        return not self.is_better(self.target, self.best)

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value is better than another one."""
        return value > than if self.maximize else value < than

    def ascending(self, value: float) -> float:
        """Return a value such that smaller is better."""
        return -value if self.maximize else value

    @property
    def worst_value(self) -> float:
        """Value of a trial if its metric is not a number."""
        return self.ascending(WORST_VALUE)

    def redefined(self, definition: Sweep) -> Sweep:
        """Return the definition of a sweep that was submitted again, with the current status."""
        return replace(
            definition, id=self.id, created_at=self.created_at, issued=self.issued,
            counts=self.counts, best=self.best, best_job=self.best_job, ended_at=self.ended_at,
            failures_accepted=self.counts.get(FAILED, 0),
            resident=self.resident,
        )  # fmt: skip

    def update_finished(self, at: float) -> None:
        """Set or clear the end time after a change of the counts or of the definition."""
        self.ended_at = None if self.is_open else self.ended_at or at

    def update_best(self, trial: Trial) -> None:
        """Record a finished trial as the best one if it is."""
        score = trial.score
        value = score.value if score is not None and score.final else None
        if trial.state is not JobState.COMPLETED or value is None:
            return
        if self.best is None or self.is_better(value, self.best):
            self.best, self.best_job = value, trial.job

    def count(self, status: str, step: int) -> None:
        """Add `step` to the number of trials with a status."""
        counts = dict(self.counts)
        counts[status] = counts.get(status, 0) + step
        if not counts[status]:
            del counts[status]
        self.counts = counts


class Trial(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What a sweep knows about a trial, also after the job was unloaded."""

    job: int
    number: int
    params: str
    state: JobState
    score: Score | None = None


class TrialBoard:
    """All trials of a sweep; derived from its jobs."""

    def __init__(self) -> None:
        self.trials: dict[int, Trial] = {}
        self.keys: dict[str, int] = {}
        """Job by parameters."""

    def update(self, trial: Trial) -> None:
        """Add a trial, or replace it after a change."""
        self.trials[trial.job] = trial
        self.keys[trial.params] = trial.job

    def values_at(self, sweep: Sweep, rung: int) -> list[float]:
        """Return the values of all trials that have reached a rung, the best first.

        Negated if the metric is maximised.
        """
        scores = (trial.score.rungs for trial in self.trials.values() if trial.score is not None)
        return sorted(sweep.ascending(rungs[rung]) for rungs in scores if rung < len(rungs))


def trial_status(state: JobState, score: Score | None) -> str:
    """Return the status of a trial."""
    if state is JobState.PENDING:
        return WAITING
    if state in HOLDING:
        return RUNNING
    if state is JobState.COMPLETED:
        return STOPPED if score is not None and score.stopped else DONE
    return CANCELLED if state is JobState.CANCELLED else FAILED


def trial_of(job: Job) -> Trial:
    """Return what a sweep keeps of a job."""
    assert job.index is not None
    assert job.params is not None
    return Trial(job.id, job.index, job.params, job.state, job.score)
