"""Events of attempts: planning, start, end, preemption."""

from __future__ import annotations

from stoker.core.events.base import Event
from stoker.core.model.hardware import Placement


class AttemptPlanned(Event, frozen=True, kw_only=True):
    """The planner allocated devices to a job; journalled before the start."""

    job: int
    attempt: int
    placement: Placement
    boot: float


class AttemptQueued(Event, frozen=True, kw_only=True):
    """Another cluster's scheduler accepted an attempt and will start it."""

    job: int
    attempt: int
    external_id: str
    """Its id in that scheduler; for users only, as such ids are reused."""


class ProcessStarted(Event, frozen=True, kw_only=True):
    """The process of an attempt was started."""

    job: int
    attempt: int
    pid: int | None = None
    """None if the executor cannot know it."""
    boot: float
    part: int | None = None
    """Part of a gang; None: the whole attempt. The same in the events below."""
    external_id: str | None = None
    hosts: tuple[str, ...] = ()
    """Hosts on which a delegated node runs it."""
    devices: tuple[str, ...] = ()
    """GPUs that it was given there."""


class ProcessExited(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The process tree of an attempt has ended."""

    job: int
    attempt: int
    code: int | None = None
    signal: int | None = None
    memory: str | None = None
    """`host` when the kernel killed it for memory, `cuda` when CUDA ran out."""
    note: str | None = None
    """How it had to be terminated, or what it left behind."""
    part: int | None = None
    stopped: bool = False
    """Whether it stopped at a checkpoint because of a stop request, whatever its code."""
    uncaught: bool = False
    """Whether none of its processes caught the signal that requested a stop."""
    lacks: str | None = None
    """What the node lacks, so that its container could not run there."""


class AttemptLost(Event, frozen=True, kw_only=True):
    """An attempt has ended in an unknown way."""

    job: int
    attempt: int
    why: str
    part: int | None = None
    with_files: bool = False
    """Whether its node is gone with all files, including checkpoints."""


class AttemptAbandoned(Event, frozen=True, kw_only=True):
    """An attempt on an unreachable node was given up, to restart it on another node."""

    job: int
    attempt: int
    node: str


class StartFailed(Event, frozen=True, kw_only=True):
    """An attempt could not be started at all (no such directory, program or shell)."""

    job: int
    attempt: int
    why: str
    part: int | None = None


class StartCancelled(Event, tag="StartCalledOff", frozen=True, kw_only=True, omit_defaults=True):
    """A start was cancelled: the device was in use after all, or a resource ran short."""

    job: int
    attempt: int
    why: str
    delay: float = 0.0
    """Seconds to wait before the next try."""


class OrphanAttemptsFound(Event, tag="AttemptsFound", frozen=True, kw_only=True):
    """Attempts were found that the journal does not have: their numbers must not be reused."""

    job: int
    attempt: int


class AttemptRecovered(Event, frozen=True, kw_only=True):
    """An attempt runs, or has run, that a restored or damaged journal does not have."""

    job: int
    attempt: int
    placement: Placement
    boot: float


class PreemptionRequested(Event, tag="StopAsked", frozen=True, kw_only=True, omit_defaults=True):
    """A running attempt is requested to stop at its next checkpoint; it resumes later."""

    job: int
    attempt: int
    why: str
    boot: float
    by: int | None = None
    gpus: int | None = None
    at_once: bool = False
    """Whether it is terminated without waiting for a checkpoint."""


class PreemptionCancelled(Event, tag="StopWithdrawn", frozen=True, kw_only=True):
    """The preemption of an attempt is no longer needed."""

    job: int
    attempt: int


class PreemptionTimedOut(Event, tag="StopOverdue", frozen=True, kw_only=True):
    """An attempt did not stop within its grace time, or left processes behind."""

    job: int
    attempt: int
    has_saved: bool = False
    """Whether it stopped at a checkpoint, so that terminating the rest loses nothing."""
