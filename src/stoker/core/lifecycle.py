"""The states of a job, and the only ways from one to another."""

from __future__ import annotations

from enum import Enum


class JobState(Enum):
    """Where a job stands. Slurm's words, since people already know them."""

    PENDING = "PENDING"
    """Waiting: for devices, for its turn, for another job, for a time or for its owner."""
    CONFIGURING = "CONFIGURING"
    """Devices are taken and the decision is on record; its process is being started."""
    QUEUED = "QUEUED"
    """Handed over to another cluster's scheduler, in whose queue it waits for its start."""
    RUNNING = "RUNNING"
    """Its process exists."""
    SUSPENDED = "SUSPENDED"
    """Stopped in place by its owner; it keeps its devices."""
    COMPLETING = "COMPLETING"
    """Asked to end; its devices come back when the last process is gone."""
    COMPLETED = "COMPLETED"
    """Ended with code 0."""
    FAILED = "FAILED"
    """Ended with another code or by a signal, or could not be started."""
    CANCELLED = "CANCELLED"
    """Ended because its owner said so."""
    TIMEOUT = "TIMEOUT"
    """Ended because its time limit was reached."""
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    """Killed by the kernel for memory, or stopped by CUDA running out of it."""
    NODE_FAIL = "NODE_FAIL"
    """Lost: the machine restarted, or the process vanished without a record."""
    DEADLINE = "DEADLINE"
    """Its deadline passed before it could start or end."""

    # Members are compared all the time; their names need not be hashed for that.
    __hash__ = object.__hash__


S = JobState

FINISHED = frozenset(
    {S.COMPLETED, S.FAILED, S.CANCELLED, S.TIMEOUT, S.OUT_OF_MEMORY, S.NODE_FAIL, S.DEADLINE}
)
HOLDING = frozenset({S.CONFIGURING, S.QUEUED, S.RUNNING, S.SUSPENDED, S.COMPLETING})
"""States in which a job holds devices."""
UNHAPPY = frozenset({S.FAILED, S.TIMEOUT, S.OUT_OF_MEMORY, S.NODE_FAIL, S.DEADLINE})
"""Ends that somebody should look at; they stay in the listing until seen."""

SHORT = {
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
            S.CONFIGURING,  # the planner gave it devices
            S.CANCELLED,  # its owner gave it up before it started
            S.DEADLINE,  # its deadline passed while it waited
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
            S.NODE_FAIL,  # the machine restarted between the decision and the start
            S.PENDING,  # the start was called off (device taken by others), or a retry rule
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
            S.SUSPENDED,  # paused by its owner
            S.COMPLETING,  # cancelled, or its time limit reached
            S.COMPLETED,  # ended with code 0
            S.FAILED,  # ended otherwise
            S.OUT_OF_MEMORY,  # ended for want of memory
            S.NODE_FAIL,  # lost with its machine
            S.PENDING,  # ended in a way that its retry rule, or exit 75, answers with another go
        }
    ),
    S.SUSPENDED: frozenset(
        {
            S.RUNNING,  # resumed
            S.COMPLETING,  # cancelled while paused
            S.COMPLETED,  # ended all the same: a signal from elsewhere continued it
            S.FAILED,  # killed from elsewhere while paused
            S.OUT_OF_MEMORY,  # killed by the kernel while paused
            S.NODE_FAIL,  # lost with its machine
            S.PENDING,  # as RUNNING: a retry rule
        }
    ),
    S.COMPLETING: frozenset(
        {
            S.CANCELLED,  # the last process of a cancelled job is gone
            S.COMPLETED,  # the last process of a trial is gone that its sweep has stopped early
            S.TIMEOUT,  # the last process of a job out of time is gone
            S.DEADLINE,  # the last process of a job past its deadline is gone
            S.FAILED,  # one of its parts had failed, and now the others have been ended
            S.OUT_OF_MEMORY,  # as above, for memory
            S.NODE_FAIL,  # the machine restarted while it was ending
            S.PENDING,  # its retry rule covers the time limit
        }
    ),
    # A finished job is over, until its owner asks for another attempt.
    **{state: frozenset({S.PENDING}) for state in FINISHED},
}


def check(old: JobState, new: JobState) -> None:
    """Refuse a step that the table does not have: it would be a bug of ours."""
    if new not in TRANSITIONS[old]:
        raise AssertionError(f"illegal transition from {old.value} to {new.value}")
