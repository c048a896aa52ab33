"""Reconciliation: accounts for all attempts by a complete list of pods."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.core.events import IdsReserved, OrphanAttemptsFound
from stoker.core.model.job import AttemptId
from stoker.executors.kubernetes.api.pods import Pod
from stoker.executors.kubernetes.handover.attempt import Creation
from stoker.executors.kubernetes.handover.pod_spec import REVOKED, parse_attempt
from stoker.executors.kubernetes.handover.verdict import Kind, assess

if TYPE_CHECKING:
    from stoker.executors.kubernetes.handover.executor import HandoverExecutor

MAX_LOST_JOBS = 1_000_000
"""A cluster that lists more jobs that the journal has lost is not believed."""
ALIVE = (Kind.WAITING, Kind.STUCK, Kind.RUNNING)


class Reconciliation:
    """Compares what the cluster has with what the daemon knows."""

    def __init__(self, executor: HandoverExecutor) -> None:
        self.executor = executor
        self.ended: set[AttemptId] = set()
        """Abandoned attempts whose pods are gone."""
        self._abandoned: dict[str, AttemptId] = {}
        """Those whose pods are being deleted, by the names of the pods."""
        self._unread: set[str] = set()
        """Pods of attempts of which it is not known yet what became of them."""

    @property
    def is_done(self) -> bool:
        """Whether all attempts are accounted for."""
        return not self._abandoned and not self._unread

    def on_listed(self, pods: Sequence[Pod]) -> None:
        """Account for everything in a list, and for everything that is missing there."""
        executor = self.executor
        listed = {pod.name: pod for pod in pods}
        abandoned = set(executor.records.abandoned_attempts(executor.name))
        self._unread = {
            name
            for name, attempt in executor.attempts.items()
            if attempt.creation is not Creation.REQUESTED and name not in listed
        }
        for pod in pods:
            self._on_listed_pod(pod, abandoned)
        for name in [name for name in self._abandoned if name not in listed]:
            self.on_gone(name)
        self.ended |= abandoned - set(self._abandoned.values())
        for name in list(self._unread):
            executor.find(executor.attempts[name])

    def _on_listed_pod(self, pod: Pod, abandoned: set[AttemptId]) -> None:
        executor, id = self.executor, parse_attempt(pod.metadata.labels)
        if id is None:
            return
        if pod.name in executor.attempts:
            executor.on_pod(pod)
        elif id in abandoned:
            self._abandoned[pod.name] = id
            executor.ends.discard(pod.name, is_running=assess(pod, True).kind in ALIVE)
        elif not executor.records.is_expected(id) and not executor.ends.is_unacknowledged(pod.name):
            self._on_unexpected(pod, id)

    def _on_unexpected(self, pod: Pod, id: AttemptId) -> None:
        """Remove a pod that the journal does not wait for, unless the journal has lost it."""
        executor, is_alive = self.executor, assess(pod, False).kind in ALIVE
        is_lost = id.job - executor.records.next_job_id() in range(MAX_LOST_JOBS)
        if is_lost:
            executor.sink.event(IdsReserved(at=time.time(), next_id=id.job + 1))
        if REVOKED in pod.metadata.labels or not is_alive or executor.records.is_superseded(id):
            executor.ends.discard(pod.name, is_running=is_alive)
        else:  # it continues, and its number is never used again
            executor.sink.event(OrphanAttemptsFound(at=time.time(), job=id.job, attempt=id.attempt))

    def on_read(self, name: str) -> None:
        """Note that the state of a pod is known."""
        self._unread.discard(name)

    def on_gone(self, name: str) -> None:
        """Note that a pod does not exist any more."""
        if (id := self._abandoned.pop(name, None)) is not None:
            self.ended.add(id)

    def take_ended(self) -> list[AttemptId]:
        """Return the abandoned attempts that have ended since the last call."""
        ended, self.ended = sorted(self.ended), set()
        return ended
