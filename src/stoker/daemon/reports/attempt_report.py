"""AttemptReport: the report of one running attempt and what was already published from it."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from msgspec import Struct, field

from stoker.core.model.job import AttemptId, Job
from stoker.daemon.reports.format import TrainingReport, read_on


class AttemptReport(Struct):
    """The report of one attempt, how far it was read, and what was published."""

    key: AttemptId
    path: str | None
    """Its directory; None if the attempt runs on a remote node."""
    report: TrainingReport = field(default_factory=TrainingReport)
    local_copy: str | None = None
    """For a remote attempt: the local directory with metrics scraped from its mirrored log."""
    local_metrics: TrainingReport = field(default_factory=TrainingReport)
    """The report in `local_copy`."""
    published_offset: int = 0
    """Bytes of whole lines with content that was published as events."""
    read_at: float = -inf
    began_published: bool = False
    epochs_published: int = 0
    metrics_published: dict[str, float] | None = None
    forwarded_stop_epoch: int | None = None
    """The stop epoch that was sent to the other parts."""
    stop_deadline: float | None = None
    """When the attempt must have ended after it reported a stop; inf once StopOverdue was sent."""

    def read(self) -> bool:
        """Read the next chunk of the local report file; return True if there is more."""
        if self.path is not None:
            return read_on(f"{self.path}/report", self.report)
        if self.local_copy is not None:
            return read_on(f"{self.local_copy}/report", self.local_metrics)
        return False


def current_report(reports: Mapping[int, AttemptReport], job: Job) -> AttemptReport | None:
    """Return the report of a job's current attempt, None if there is none yet."""
    report = reports.get(job.id)
    return report if report is not None and report.key[1] == job.attempt else None
