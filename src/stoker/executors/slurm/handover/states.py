"""HandoverStates: the states of attempts by their files, as no agent reports them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.executors.agent.attempt import RemoteAttempt
from stoker.executors.agent.attempt_states import POLL_SECONDS, AttemptStates

if TYPE_CHECKING:
    from stoker.executors.slurm.handover.executor import HandoverExecutor

POLLED_PER_SECOND = 50
"""Attempts whose files are looked at per second; with more, the interval is longer."""
MAX_WHERE_LENGTH = 200


class HandoverStates(AttemptStates):
    """Polls the files of attempts that may have begun."""

    def __init__(self, executor: HandoverExecutor) -> None:
        super().__init__(executor)
        self.handover = executor

    def _apply(self, state: str, word: str, details: list[str]) -> None:
        if state == "waiting":
            self._on_waiting(word)
        else:
            super()._apply(state, word, [text[:MAX_WHERE_LENGTH] for text in details])

    def _on_started(self, attempt: RemoteAttempt, pid: int, where: list[str]) -> None:
        is_new = attempt.pid is None
        super()._on_started(attempt, pid, where)
        if is_new:
            self.handover.on_started()

    def _on_waiting(self, word: str) -> None:
        """Handle an attempt whose batch job has not begun: it may have been cancelled meanwhile."""
        for attempt in list(self.handover.attempts.values()):
            if attempt.word == word and attempt.end is not None and attempt.is_alive:
                self.handover.jobs.revoke(attempt)

    def _poll(self) -> float | None:
        alive = [each for each in self.handover.attempts.values() if each.is_alive]
        if not alive or not self.handover.is_reconciled:
            return None
        if len(alive) > POLLED_PER_SECOND:  # queued ones have no files yet
            alive = [each for each in alive if self.handover.jobs.may_have_begun(each.id)]
        self.poll(alive, lambda: None)
        return max(POLL_SECONDS, len(alive) / POLLED_PER_SECOND)
