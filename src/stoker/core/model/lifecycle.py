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

FINISHED = frozenset(
    {S.COMPLETED, S.FAILED, S.CANCELLED, S.TIMEOUT, S.OUT_OF_MEMORY, S.NODE_FAIL, S.DEADLINE}
)
HOLDING = frozenset({S.CONFIGURING, S.QUEUED, S.RUNNING, S.SUSPENDED, S.COMPLETING})
"""States in which a job holds devices."""
FAILED_STATES = frozenset({S.FAILED, S.TIMEOUT, S.OUT_OF_MEMORY, S.NODE_FAIL, S.DEADLINE})
"""Ends that need attention; such jobs are listed until the user dismisses them."""

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

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    S.PENDING: frozenset(
        {
            S.CONFIGURING,  # the planner allocated devices
            S.CANCELLED,  # cancelled before it started
            S.DEADLINE,  # its deadline passed while it was pending
        }
    ),
    S.CONFIGURING: frozenset(
        {
            S.RUNNING,  # its process exists
            S.QUEUED,  # another cluster's scheduler has accepted it
            S.COMPLETING,  # cancelled, or out of time, before the process was seen
            S.COMPLETED,  # so short that its end was seen before its start
            S.FAILED,  # it could not be started, or failed at once
            S.OUT_OF_MEMORY,  # as above, for memory
            S.NODE_FAIL,  # the node restarted between the decision and the start
            S.PENDING,  # the start was cancelled (device in use by others), or a retry rule
        }
    ),
    S.QUEUED: frozenset(
        {
            S.RUNNING,  # its process exists
            S.COMPLETING,  # cancelled, or past its deadline, before it started
            S.COMPLETED,  # so short that its end was seen before its start
            S.FAILED,  # refused there for good, or failed at once
            S.OUT_OF_MEMORY,  # as above, for memory
            S.NODE_FAIL,  # lost there, or given up while its cluster did not answer
            S.PENDING,  # refused there for now, or a retry rule
        }
    ),
    S.RUNNING: frozenset(
        {
            S.SUSPENDED,  # paused by the user
            S.COMPLETING,  # cancelled, or its time limit reached
            S.COMPLETED,  # ended with code 0
            S.FAILED,  # ended otherwise
            S.OUT_OF_MEMORY,  # ended because memory ran out
            S.NODE_FAIL,  # lost with its node
            S.PENDING,  # preempted, or its retry rule or exit 75 requeues it
        }
    ),
    S.SUSPENDED: frozenset(
        {
            S.RUNNING,  # resumed
            S.COMPLETING,  # cancelled while paused
            S.COMPLETED,  # ended all the same: a signal from elsewhere continued it
            S.FAILED,  # killed from elsewhere while paused
            S.OUT_OF_MEMORY,  # killed by the kernel while paused
            S.NODE_FAIL,  # lost with its node
            S.PENDING,  # as RUNNING: a retry rule
        }
    ),
    S.COMPLETING: frozenset(
        {
            S.CANCELLED,  # the last process of a cancelled job is gone
            S.COMPLETED,  # the last process of a trial that was stopped early is gone
            S.TIMEOUT,  # the last process of a job out of time is gone
            S.DEADLINE,  # the last process of a job past its deadline is gone
            S.FAILED,  # a part failed, and the other parts have been ended
            S.OUT_OF_MEMORY,  # as above, for memory
            S.NODE_FAIL,  # the node restarted while it was ending
            S.PENDING,  # its retry rule covers the time limit
        }
    ),
    # A finished job changes only if the user retries it.
    **{state: frozenset({S.PENDING}) for state in FINISHED},
}


def check_transition(old: JobState, new: JobState) -> None:
    """Raise AssertionError if the table does not have this transition."""
    if new not in TRANSITIONS[old]:
        raise AssertionError(f"illegal transition from {old.value} to {new.value}")
