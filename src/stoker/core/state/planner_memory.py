"""What the stages of a cycle pass to each other without an event; it is not journalled."""

from __future__ import annotations

from math import inf

from stoker.core.model.hardware import Placement

REBALANCE_SECONDS = 60.0
"""Seconds during which an elastic attempt keeps its GPUs: a few restarts long."""


class PlannerMemory:
    """What a plan derives from the jobs, and trials that the next cycle judges.

    After a restart it is empty; `DaemonStarted` ranks all jobs and sets the next rebalance.
    """

    def __init__(self) -> None:
        self.nominations: dict[int, Placement] = {}
        """Placements held for preemptors until their victims have stopped: those of the last plan.

        `preemption.nominations` derives them again from the stopping jobs in every plan.
        """
        self.elastic_targets: dict[int, int] = {}
        """GPUs by job that this plan assigned and the job does not have yet."""
        self.next_rebalance = inf
        """When the next elastic job may change its size: a minute after its start."""
        self.has_current_ranks = False
        """Whether all jobs were ranked since the state was restored."""
        self.trials_at_rung: dict[int, int] = {}
        """Rungs by trial that early stopping has not judged yet."""
