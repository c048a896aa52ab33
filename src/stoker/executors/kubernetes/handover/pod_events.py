"""PodEvents: finds out why the container of a pod is not created.

Neither the conditions of a pod nor the state of its container tell that a volume cannot be mounted
or that a sandbox cannot be created; only events do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stoker.executors.kubernetes.api.client import EVENTS, FORBIDDEN, Reply
from stoker.executors.kubernetes.api.pods import EventList
from stoker.executors.kubernetes.handover.attempt import PodAttempt
from stoker.executors.kubernetes.handover.verdict import Kind, is_being_created

if TYPE_CHECKING:
    from stoker.executors.kubernetes.handover.executor import HandoverExecutor

FIRST_SECONDS, REPEAT_SECONDS = 15.0, 30.0
"""From the scheduling of a pod until its events are read, and between two such requests."""
MAX_EVENTS = 50
NOT_ALLOWED = "its events may tell why, but stoker may not list events"


class PodEvents:
    """Reads the events of one executor's pods that take long to start."""

    def __init__(self, executor: HandoverExecutor) -> None:
        self.executor = executor
        self._may_list = True

    def forget(self) -> None:
        """Assume nothing about rights."""
        self._may_list = True

    def check(self, attempt: PodAttempt) -> None:
        """Read the events of a pod whose container is being created for long."""
        pod, now = attempt.pod, self.executor.reactor.time()
        if pod is None or attempt.verdict.kind is not Kind.WAITING or not is_being_created(pod):
            attempt.trouble, attempt.next_events = "", None
            return
        if attempt.next_events is None:
            attempt.next_events = now + FIRST_SECONDS
        left = attempt.next_events - now
        if left <= 0:
            attempt.next_events, left = now + REPEAT_SECONDS, REPEAT_SECONDS
            self._request(attempt, pod.metadata.uid)
        self.executor.check.request(left)

    def _request(self, attempt: PodAttempt, uid: str) -> None:
        if not self._may_list:
            attempt.note = NOT_ALLOWED
            return

        def on_reply(reply: Reply) -> None:
            if reply.status == FORBIDDEN:
                self._may_list, attempt.note = False, NOT_ALLOWED
            if reply.succeeded:
                attempt.trouble = msgspec.json.decode(reply.body, type=EventList).trouble()
            if self.executor.has(attempt):
                self.executor.advance(attempt)

        selector = {"fieldSelector": f"involvedObject.uid={uid}", "limit": MAX_EVENTS}
        self.executor.api.request("GET", EVENTS, on_reply, params=selector)
