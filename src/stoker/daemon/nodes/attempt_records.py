"""JournalRecords: what the core knows of attempts, read by executors that reconcile."""

from __future__ import annotations

from collections.abc import Callable

from stoker.core.model.job import AttemptId
from stoker.core.state.state import State


class JournalRecords:
    """Answers questions about attempts from the state."""

    def __init__(self, state: Callable[[], State]) -> None:
        self.state = state

    def abandoned_attempts(self, node: str) -> list[AttemptId]:
        """Return the attempts that were given up while a node was unreachable."""
        return [AttemptId(*key) for key in self.state().record.abandoned_attempts.get(node, ())]

    def is_expected(self, attempt: AttemptId) -> bool:
        """Return whether the core waits for the end of this attempt."""
        job = self.state().running.get(attempt.job)
        return job is not None and job.attempt == attempt.attempt

    def is_superseded(self, attempt: AttemptId) -> bool:
        """Return whether its job has finished or is at a later attempt."""
        job = self.state().jobs.get(attempt.job)
        if job is None or attempt.attempt > job.attempt:
            return False
        return job.finished or attempt.attempt < job.attempt

    def next_job_id(self) -> int:
        """Return the id of the next job; the journal knows no job from it on."""
        return self.state().record.next_id

    def has_work(self) -> bool:
        """Return whether jobs are pending or running."""
        state = self.state()
        return bool(len(state.pending) or state.running)
