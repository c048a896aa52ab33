"""Admission: jobs that neither a quota nor strict order keeps from starting."""

from __future__ import annotations

from stoker.core.policies.policy import BackfillMode
from stoker.core.queue.job_class import JobClass
from stoker.core.state.state import State


class Admission:
    """Admits jobs, which are asked for in queue order, by quota and strict order."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._blocked_queues: set[str] = set()
        """Queues of strict order with a blocked job."""

    def admits(self, job_class: JobClass) -> bool:
        """Whether the head of a class may start if it fits."""
        if self._is_strict(job_class) and self._state.quotas.queue_reason(job_class):
            self._blocked_queues.add(job_class.queue)
        return not (self.is_behind_blocked(job_class) or self._state.quota_reason(job_class))

    def is_behind_blocked(self, job_class: JobClass) -> bool:
        """Whether an earlier job of its queue is blocked, and the queue has strict order."""
        return job_class.queue in self._blocked_queues

    def on_blocked(self, job_class: JobClass) -> None:
        """Note that an admitted job does not start: in strict order, no later one may."""
        if self._is_strict(job_class):
            self._blocked_queues.add(job_class.queue)

    def _is_strict(self, job_class: JobClass) -> bool:
        return self._state.backfill_mode(job_class.queue) is BackfillMode.STRICT
