"""ReportReceiver: training reports that pods send over HTTP, and the files they get back."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from msgspec import Struct

from stoker.core.model.job import Job
from stoker.core.state.state import State
from stoker.daemon.context import reply_only
from stoker.engine import CommandRejected, CommandResult
from stoker.executors.report_tokens import ReportSource
from stoker.schema.training import ReportReply

if TYPE_CHECKING:
    from stoker.daemon.nodes.registry import ExecutorRegistry
    from stoker.daemon.training.monitor import TrainingMonitor

MIN_WAIT_SECONDS = 1.0
MAX_GANG_WAIT_SECONDS = 4.0
"""The stop epoch of a gang must reach all its parts in time: RELAY_SECONDS of its stop protocol."""
REQUESTS_PER_SECOND = 50
"""Of all attempts together; each is a TLS handshake of about 2 ms."""


class ReportUpload(Struct, frozen=True):
    """One request."""

    source: ReportSource
    offset: int
    data: bytes
    written: Collection[str]
    """Control files that the part has."""


class ReportReceiver:
    """Handles reports in the daemon's thread."""

    def __init__(self, training: TrainingMonitor, registry: ExecutorRegistry) -> None:
        self.training, self.registry = training, registry

    def receive(self, upload: ReportUpload, is_recorded: bool, state: State) -> CommandResult:
        """Take what is new; reject an attempt that does not run, or not any more.

        `is_recorded`: whether all events of earlier cycles are in the journal.
        """
        attempt, rank = upload.source
        job = state.running.get(attempt.job)
        if job is None or job.attempt != attempt.attempt:
            raise _not_running(upload.source)
        wait = max(MIN_WAIT_SECONDS, len(state.running) / REQUESTS_PER_SECOND)
        if job.placement is not None and job.placement.other_parts:
            wait = min(wait, MAX_GANG_WAIT_SECONDS)
        control = self._control_files(job, upload, wait)
        offset, saved = self.training.on_http_report(attempt, rank, upload.data, upload.offset)
        saved = saved if is_recorded else 0
        return reply_only(ReportReply(offset=offset, saved=saved, wait=wait, control=control))

    def _control_files(self, job: Job, upload: ReportUpload, wait: float) -> dict[str, str]:
        attempt, rank = upload.source
        parts = job.placement.parts if job.placement is not None else ()
        executor = self.registry.executor(parts[rank].node) if rank < len(parts) else None
        if executor is not None:
            control = executor.exchange_control_files(attempt, rank, upload.written, wait)
            if control is not None:
                return control
        raise _not_running(upload.source)


def _not_running(source: ReportSource) -> CommandRejected:
    return CommandRejected(f"Attempt {source.attempt} does not run any more.", "permission")
