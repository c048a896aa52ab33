"""Instructions: what the core wants done outside; the daemon executes them."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.model.resources import Placement


class Instruction(Struct, frozen=True):
    """Something to be done by an executor or a hook."""


class AttemptInstruction(Instruction, frozen=True):
    """Something to be done with one attempt."""

    job: int
    attempt: int


class StartProcess(AttemptInstruction, frozen=True):
    """Start an attempt on its devices, at most once."""

    placement: Placement


class TerminateAttempt(AttemptInstruction, frozen=True):
    """Terminate the whole process tree: TERM, grace time, KILL (or KILL at once)."""

    at_once: bool = False


class SignalAttempt(AttemptInstruction, frozen=True):
    """Send a signal to the processes of an attempt."""

    signal: int
    if_caught: bool = False
    """Whether only processes with a handler get it: it must not kill."""
    to_script: bool = False
    """Whether only the job's first process gets it."""


class RequestStop(AttemptInstruction, frozen=True):
    """Ask the training library of an attempt to stop at its next checkpoint."""


class WithdrawStop(AttemptInstruction, frozen=True):
    """Withdraw a stop request that the attempt has not acted on yet."""


class SuspendAttempt(AttemptInstruction, frozen=True):
    """Suspend the processes of an attempt."""


class ResumeAttempt(AttemptInstruction, frozen=True):
    """Resume suspended processes."""


class RunJobEndHook(Instruction, frozen=True):
    """Run the end-of-job hook of a job that reached a final state."""

    job: int


class RunQueueEmptyHook(Instruction, frozen=True):
    """Run the queue-empty hook: no job is left."""


Instructions = list[Instruction]
