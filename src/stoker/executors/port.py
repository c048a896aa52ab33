"""What the loop needs of a place where processes run."""

from __future__ import annotations

from typing import Protocol

from stoker.core.events import Event
from stoker.core.instructions import EndAttempt, SignalAttempt, StartProcess
from stoker.core.job import Job
from stoker.core.launch import Launch


class Executor(Protocol):
    """Starts, signals and ends attempts, and reports what became of them as facts.

    It never decides: a report may come late or twice, and the core sorts that out.
    """

    facts: list[Event]
    """What has happened since the loop last took it."""

    def start(self, wish: StartProcess, launch: Launch) -> None:
        """Start an attempt, at most once ever."""

    def end(self, wish: EndAttempt) -> None:
        """End the whole tree, gently first."""

    def signal(self, wish: SignalAttempt) -> None:
        """Send a signal to the job's processes."""

    def suspend(self, job: int, attempt: int) -> None:
        """Stop the tree in place."""

    def resume(self, job: int, attempt: int) -> None:
        """Let the tree go on."""

    def adopt(self, jobs: list[Job], same_boot: bool) -> None:
        """Take over the attempts that an earlier daemon started."""

    def tick(self, boot: float) -> float | None:
        """Do what is due; seconds until the next time, None when nothing is."""

    def settle(self) -> None:
        """Every end reported so far is on disk: what proved it may go."""
