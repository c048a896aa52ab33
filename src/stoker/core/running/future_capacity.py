"""Future capacity: the ledger plus the devices of stopping jobs minus nominations.

Volcano calls it FutureIdle = Idle + Releasing - Pipelined. It is built again in every planning
cycle: at 1,000 nodes and 10,000 jobs that costs no more than keeping it up to date.
"""

from __future__ import annotations

from collections.abc import Callable

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.overlay import Overlay
from stoker.core.model.job import Job
from stoker.core.model.lifecycle import JobState
from stoker.core.running.preemption_cost import PreemptionThresholds
from stoker.core.running.victims import VictimIndex


class FutureCapacity(Overlay):
    """The ledger, except for nodes with stopping jobs, nominations or tried victims."""

    def __init__(
        self, base: Cluster, victims: VictimIndex, may_stop: Callable[[int], bool]
    ) -> None:
        """`may_stop`: whether a job of the index can still be asked to stop."""
        super().__init__(base)
        self.thresholds = PreemptionThresholds(self, victims, may_stop)


def can_preempt(job: Job) -> bool:
    """Whether a job runs and was not asked to stop yet."""
    if job.state is not JobState.RUNNING or job.placement is None:
        return False
    return job.progress is None or job.progress.stop is None


def is_stopping(job: Job) -> bool:
    """Whether the devices of a job become free soon; those of a suspended job do not."""
    if job.state is JobState.COMPLETING:
        return True
    stop = job.progress.stop if job.progress is not None else None
    return stop is not None and not stop.timed_out and job.state is JobState.RUNNING
