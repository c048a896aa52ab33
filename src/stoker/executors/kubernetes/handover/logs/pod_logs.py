"""PodLogs: follows the logs of all pods of one executor, and reads them to their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from stoker.executors.kubernetes.api.pods import CONTAINER
from stoker.executors.kubernetes.handover.attempt import LogState, PodAttempt
from stoker.executors.kubernetes.handover.logs.log_reader import Piece

if TYPE_CHECKING:
    from stoker.executors.kubernetes.handover.executor import HandoverExecutor

RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 30.0
"""Before a log that was cut is requested again; it doubles while nothing arrives."""
DRAIN_SECONDS = 10.0
"""Time after the end of a pod in which the log that is being followed ends."""
GONE = (400, 404)
"""Replies for a container whose log no longer exists, or that never began."""
NO_KUBELET = "no preferred addresses found"
"""In the reply for a node without an address: it has no logs (virtual nodes)."""
LOST_LOG = "\nstoker: the rest of the output could not be read: {why}\n"


class PodLog(Struct, frozen=True):
    """Passes on the log of one attempt."""

    logs: PodLogs
    attempt: PodAttempt

    def on_log(self, data: bytes) -> None:
        """Write the next bytes."""
        self.attempt.log_failures = 0
        self.logs.write(self.attempt, self.attempt.copy.reader.feed(data))

    def on_log_end(self, status: int, why: str) -> None:
        """Handle the end of this request."""
        self.logs.on_end(self.attempt, status, why)


class PodLogs:
    """Reads the logs of one executor's attempts."""

    def __init__(self, executor: HandoverExecutor) -> None:
        self.executor = executor

    def follow(self, attempt: PodAttempt) -> None:
        """Read the log of an attempt from where it was cut, until its container ends."""
        if attempt.log is not LogState.IDLE:
            return
        now = self.executor.reactor.time()
        if attempt.is_over and attempt.log_deadline is None:
            attempt.log_deadline = now + self.executor.settings.log_seconds
        if now < attempt.next_log_try:
            self.executor.check.request(attempt.next_log_try - now)
            return
        attempt.log = LogState.FOLLOWING
        reader = attempt.copy.reader
        reader.begin()
        params: dict[str, Any] = {"container": CONTAINER, "timestamps": "true", "follow": "true"}
        if (since := reader.since) is not None:
            params["sinceTime"] = since
        self.executor.api.follow_log(attempt.identity.name, params, PodLog(self, attempt))

    def write(self, attempt: PodAttempt, pieces: list[Piece]) -> None:
        """Write output and pass on reports."""
        executor = self.executor
        for piece in attempt.copy.write(pieces):
            executor.sink.report_data(attempt.id, attempt.part, piece.offset, piece.data)
        executor.check_barrier(attempt)
        if not (attempt.has_run or attempt.waits_for_others):
            executor.advance(attempt)
        executor.check.request(RETRY_SECONDS)

    def on_end(self, attempt: PodAttempt, status: int, why: str) -> None:
        """Handle the end of a request for a log."""
        executor = self.executor
        if not executor.has(attempt):
            return
        reader = attempt.copy.reader
        self.write(attempt, reader.finish())
        now = executor.reactor.time()
        delay = min(RETRY_SECONDS * 2**attempt.log_failures, MAX_RETRY_SECONDS)
        attempt.log, attempt.next_log_try = LogState.IDLE, now + delay
        attempt.log_failures += 1
        is_complete = status == 200 and reader.exit_code is not None
        if is_complete or (attempt.is_over and (status in (200, *GONE) or NO_KUBELET in why)):
            attempt.log = LogState.COMPLETE
        elif attempt.log_deadline is not None and now >= attempt.log_deadline:
            reader.trouble = why or "no answer"
            attempt.log = LogState.COMPLETE
        if attempt.log is LogState.COMPLETE and reader.exit_code is None and reader.trouble:
            self._note_loss(attempt, reader.trouble)
        executor.advance(attempt)

    def check(self, attempt: PodAttempt) -> None:
        """Read the log again if its request did not end although the pod has."""
        if attempt.log is not LogState.FOLLOWING or not attempt.is_over:
            return
        now = self.executor.reactor.time()
        patience = self.executor.settings.log_seconds
        if attempt.log_deadline is None:
            attempt.log_deadline = now + patience
        left = attempt.log_deadline - patience + DRAIN_SECONDS - now
        if left <= 0:
            self.executor.api.stop_log(attempt.identity.name)
            self.on_end(attempt, 0, "no answer")
        else:
            self.executor.check.request(left)

    def _note_loss(self, attempt: PodAttempt, why: str) -> None:
        at = attempt.copy.mirror.at_out
        text = LOST_LOG.format(why=why).encode()
        attempt.copy.write([Piece("out", at, text)])
