"""Events of attempts: planning, start, end, preemption."""

from __future__ import annotations

from stoker.core.events.base import AttemptEvent
from stoker.core.model.hardware import Placement


class AttemptPlanned(AttemptEvent, frozen=True, kw_only=True):
    """The planner allocated devices to a job; journalled before the start."""

    placement: Placement
    boot: float


class AttemptQueued(AttemptEvent, frozen=True, kw_only=True):
    """Another cluster's scheduler accepted an attempt and will start it."""

    external_id: str
    """Its id in that scheduler; for users only, as such ids are reused."""


class ProcessStarted(AttemptEvent, frozen=True, kw_only=True):
    """The process of an attempt was started."""

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


class ProcessExited(AttemptEvent, frozen=True, kw_only=True, omit_defaults=True):
    """The process tree of an attempt has ended."""

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


class AttemptLost(AttemptEvent, frozen=True, kw_only=True):
    """An attempt has ended in an unknown way."""

    why: str
    part: int | None = None
    with_files: bool = False
    """Whether its node is gone with all files, including checkpoints."""


class AttemptAbandoned(AttemptEvent, frozen=True, kw_only=True):
    """An attempt on an unreachable node was given up, to restart it on another node."""

    node: str


class StartFailed(AttemptEvent, frozen=True, kw_only=True):
    """An attempt could not be started at all (no such directory, program or shell)."""

    why: str
    part: int | None = None


class StartCancelled(
    AttemptEvent, tag="StartCalledOff", frozen=True, kw_only=True, omit_defaults=True
):
    """A start was cancelled: the device was in use after all, or a resource ran short."""

    why: str
    delay: float = 0.0
    """Seconds to wait before the next try."""


class OrphanAttemptsFound(AttemptEvent, tag="AttemptsFound", frozen=True, kw_only=True):
    """Attempts were found that the journal does not have: their numbers must not be reused."""


class AttemptRecovered(AttemptEvent, frozen=True, kw_only=True):
    """An attempt runs, or has run, that a restored or damaged journal does not have."""

    placement: Placement
    boot: float


class PreemptionRequested(
    AttemptEvent, tag="StopAsked", frozen=True, kw_only=True, omit_defaults=True
):
    """The planner requests that a running attempt stop at its next checkpoint; it resumes later."""

    why: str
    boot: float
    by: int | None = None
    gpus: int | None = None


class PreemptionCancelled(AttemptEvent, tag="StopWithdrawn", frozen=True, kw_only=True):
    """The preemption of an attempt is no longer needed."""


class PreemptionTimedOut(AttemptEvent, tag="StopOverdue", frozen=True, kw_only=True):
    """An attempt did not stop within its grace time, or left processes behind."""

    has_saved: bool = False
    """Whether it stopped at a checkpoint, so that terminating the rest loses nothing."""
