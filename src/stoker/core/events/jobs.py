"""Events of jobs: submission, user actions, timers, loading."""

from __future__ import annotations

from stoker.core.events.base import Event
from stoker.core.model.job import Job
from stoker.core.model.spec import JobCommand, Spec


class SpecRecorded(Event, frozen=True, kw_only=True):
    """The spec of a submission, before its first use."""

    hash: str
    spec: Spec


class JobsSubmitted(Event, frozen=True, kw_only=True, omit_defaults=True):
    """One submission: a job, several jobs or an array, with consecutive ids from `first`."""

    first: int
    count: int
    spec: str
    key: str = ""
    lines: tuple[str, ...] | None = None
    argv: tuple[str, ...] | None = None
    indexes: tuple[int, ...] | None = None
    priority: int = 0
    held: bool = False
    begin_at: float | None = None
    sweep: int | None = None
    """The sweep to which these trials belong."""
    trials: tuple[tuple[str, JobCommand], ...] = ()
    """Parameters (canonical JSON) and command of each trial."""


class JobCancelled(Event, frozen=True, kw_only=True):
    """The user cancelled a job."""

    job: int
    at_once: bool = False
    needless: bool = False
    """Whether its sweep has reached the target, so that the trial is not needed."""


class JobHeld(Event, frozen=True, kw_only=True):
    """The user held a pending job."""

    job: int


class JobReleased(Event, frozen=True, kw_only=True):
    """The user released a held job."""

    job: int


class JobPaused(Event, frozen=True, kw_only=True):
    """The user paused a running job."""

    job: int
    boot: float


class JobResumed(Event, frozen=True, kw_only=True):
    """The user resumed a paused job."""

    job: int
    boot: float


class JobSignalled(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The user sent a signal to a running job."""

    job: int
    signal: int
    to_script: bool = False
    """Whether only its first process gets it."""


class JobRetried(Event, frozen=True, kw_only=True):
    """The user retried a finished job."""

    job: int
    same_devices: bool = False


class JobEdited(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The user edited a pending job, or the time limit or priority of a running one."""

    job: int
    spec: str
    name: str
    priority: int
    begin_at: float | None = None


class JobMoved(Event, frozen=True, kw_only=True):
    """The user changed the position of a pending job."""

    job: int
    priority: int
    rank: int


class TimeLimitReached(Event, frozen=True, kw_only=True):
    """A running attempt reached its time limit."""

    job: int
    attempt: int


class TimeLimitNear(Event, frozen=True, kw_only=True):
    """The time for a job's early signal came."""

    job: int
    attempt: int


class BeginTimeReached(Event, tag="WaitOver", frozen=True, kw_only=True):
    """A begin time, or the delay before a retry, has passed."""

    job: int


class DeadlinePassed(Event, frozen=True, kw_only=True):
    """The deadline of a job passed before its end."""

    job: int


class EstimateExceeded(Event, frozen=True, kw_only=True):
    """A job ran far longer than its declared duration."""

    job: int


class FailuresDismissed(Event, tag="JobsSeen", frozen=True, kw_only=True):
    """The user dismissed the failures of these jobs."""

    jobs: tuple[int, ...]


class JobsUnloaded(Event, tag="JobsForgotten", frozen=True, kw_only=True):
    """Finished jobs were unloaded; the store has them."""

    jobs: tuple[int, ...]


class JobLoaded(Event, tag="JobRecalled", frozen=True, kw_only=True):
    """A finished job was loaded again, with its spec, because something refers to it."""

    job: Job
    spec: Spec
