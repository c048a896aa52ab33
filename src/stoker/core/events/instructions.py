"""Instructions: what the core wants done outside; the daemon executes them."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.model.hardware import Placement


class Instruction(Struct, frozen=True):
    """Something to be done by an executor or a hook."""


class StartProcess(Instruction, frozen=True):
    """Start an attempt on its devices, at most once."""

    job: int
    attempt: int
    placement: Placement


class TerminateAttempt(Instruction, frozen=True):
    """Terminate the whole process tree: TERM, grace time, KILL (or KILL at once)."""

    job: int
    attempt: int
    at_once: bool = False


class SignalAttempt(Instruction, frozen=True):
    """Send a signal to the processes of an attempt."""

    job: int
    attempt: int
    signal: int
    if_caught: bool = False
    """Whether only processes with a handler get it: it must not kill."""
    to_script: bool = False
    """Whether only the job's first process gets it."""


class RequestStop(Instruction, frozen=True):
    """Ask the training library of an attempt to stop at its next checkpoint."""

    job: int
    attempt: int


class WithdrawStop(Instruction, frozen=True):
    """Withdraw a stop request that the attempt has not acted on yet."""

    job: int
    attempt: int


class SuspendAttempt(Instruction, frozen=True):
    """Suspend the processes of an attempt."""

    job: int
    attempt: int


class ResumeAttempt(Instruction, frozen=True):
    """Resume suspended processes."""

    job: int
    attempt: int


class RunJobEndHook(Instruction, frozen=True):
    """Run the end-of-job hook of a job that reached a final state."""

    job: int


class RunQueueEmptyHook(Instruction, frozen=True):
    """Run the queue-empty hook: no job is left."""


Instructions = list[Instruction]
