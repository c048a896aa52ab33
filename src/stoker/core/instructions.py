"""Wishes: the only way the core changes the world. The driver carries them out."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.cluster import Placement


class Instruction(Struct, frozen=True):
    """Something to be done outside."""


class StartProcess(Instruction, frozen=True):
    """Start this attempt on these devices, once."""

    job: int
    attempt: int
    placement: Placement


class EndAttempt(Instruction, frozen=True):
    """End the whole process tree: TERM, a grace, KILL (or KILL at once)."""

    job: int
    attempt: int
    at_once: bool = False


class SignalAttempt(Instruction, frozen=True):
    """Send one signal to the job's processes."""

    job: int
    attempt: int
    signal: int
    if_caught: bool = False
    """Only to those that have a handler for it: it must not kill anybody."""


class AskToStop(Instruction, frozen=True):
    """Tell the library in an attempt's processes that it is to stop at its next safe point."""

    job: int
    attempt: int


class LetGoOn(Instruction, frozen=True):
    """Take back the wish that it stop, if nobody has acted on it yet."""

    job: int
    attempt: int


class SuspendAttempt(Instruction, frozen=True):
    """Stop the job's processes where they are."""

    job: int
    attempt: int


class ResumeAttempt(Instruction, frozen=True):
    """Let suspended processes go on."""

    job: int
    attempt: int


class AnnounceEnd(Instruction, frozen=True):
    """A job reached a final state: run the end-of-job hook."""

    job: int


class AnnounceEmpty(Instruction, frozen=True):
    """Nothing is left to run: run the queue-empty hook."""
