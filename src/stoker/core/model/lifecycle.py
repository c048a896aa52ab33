"""Job states and the transitions between them."""

from __future__ import annotations

from enum import Enum


class JobState(Enum):
    """State of a job, with Slurm's names."""

    PENDING = "PENDING"
    """Waits for devices, for jobs ahead of it, for a dependency or begin time, or is held."""
    CONFIGURING = "CONFIGURING"
    """Devices are allocated and the start is journalled; its process is being started."""
    QUEUED = "QUEUED"
    """Handed over to another cluster's scheduler; it waits in the queue there."""
    RUNNING = "RUNNING"
    """Its process exists."""
    SUSPENDED = "SUSPENDED"
    """Paused by the user; it keeps its devices."""
    COMPLETING = "COMPLETING"
    """Being ended; its devices are released when the last process is gone."""
    COMPLETED = "COMPLETED"
    """Ended with code 0."""
    FAILED = "FAILED"
    """Ended with another code or by a signal, or could not be started."""
    CANCELLED = "CANCELLED"
    """Cancelled by the user."""
    TIMEOUT = "TIMEOUT"
    """Ended because its time limit was reached."""
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    """Killed by the kernel for memory, or stopped by CUDA running out of it."""
    NODE_FAIL = "NODE_FAIL"
    """Lost: the node restarted, or the process vanished without an exit record."""
    DEADLINE = "DEADLINE"
    """Its deadline passed before it could start or end."""

    # By identity: Enum would hash the name, and members are hashed often.
    __hash__ = object.__hash__


S = JobState

HOLDING = frozenset({S.CONFIGURING, S.QUEUED, S.RUNNING, S.SUSPENDED, S.COMPLETING})
"""States in which a job holds devices."""
FAILED_STATES = frozenset({S.FAILED, S.TIMEOUT, S.OUT_OF_MEMORY, S.NODE_FAIL, S.DEADLINE})
"""Ends that need attention; such jobs are listed until the user dismisses them."""
FINISHED = FAILED_STATES | {S.COMPLETED, S.CANCELLED}

STATE_CODES = {
    S.PENDING: "PD",
    S.CONFIGURING: "CF",
    S.QUEUED: "Q",
    S.RUNNING: "R",
    S.SUSPENDED: "S",
    S.COMPLETING: "CG",
    S.COMPLETED: "CD",
    S.FAILED: "F",
    S.CANCELLED: "CA",
    S.TIMEOUT: "TO",
    S.OUT_OF_MEMORY: "OOM",
    S.NODE_FAIL: "NF",
    S.DEADLINE: "DL",
}

_ATTEMPT_ENDS = frozenset(
    {
        S.COMPLETED,  # code 0; also of a suspended job that was continued from elsewhere
        S.FAILED,  # it could not be started, or ended with another code or by a signal
        S.OUT_OF_MEMORY,  # ended because memory ran out
        S.NODE_FAIL,  # lost with its node, or given up while that did not answer
        S.PENDING,  # the start was cancelled, it was preempted, or its retry rule requeues it
    }
)
"""From every state that holds devices, since an end may be seen before the start."""
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    # Devices were allocated; or it was cancelled or its deadline passed before that.
    S.PENDING: frozenset({S.CONFIGURING, S.CANCELLED, S.DEADLINE}),
    # Its process exists; another cluster's scheduler accepted it; it is being ended.
    S.CONFIGURING: _ATTEMPT_ENDS | {S.RUNNING, S.QUEUED, S.COMPLETING},
    S.QUEUED: _ATTEMPT_ENDS | {S.RUNNING, S.COMPLETING},
    S.RUNNING: _ATTEMPT_ENDS | {S.SUSPENDED, S.COMPLETING},
    S.SUSPENDED: _ATTEMPT_ENDS | {S.RUNNING, S.COMPLETING},
    # The last process of a job that was being ended is gone.
    S.COMPLETING: _ATTEMPT_ENDS | {S.CANCELLED, S.TIMEOUT, S.DEADLINE},
    # A finished job changes only if the user retries it.
    **{state: frozenset({S.PENDING}) for state in FINISHED},
}


def check_transition(old: JobState, new: JobState) -> None:
    """Raise AssertionError if the table does not have this transition."""
    if new not in TRANSITIONS[old]:
        raise AssertionError(f"illegal transition from {old.value} to {new.value}")
