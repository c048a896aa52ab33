"""What the planner writes without an event, and what is therefore not journalled."""

from __future__ import annotations

from math import inf

from stoker.core.model.hardware import Placement


class PlannerMemory:
    """Decisions of earlier planning cycles that later ones continue.

    Everything else in the state is read-only for the planner. After a restart it is empty:
    nominations are derived from the stop requests of the victims in the first cycle, and elastic
    jobs are rebalanced.
    """

    def __init__(self) -> None:
        self.nominations: dict[int, Placement] = {}
        """Placements held for preemptors until their victims have stopped: those of the last cycle.

        `preemption.nominations` derives them again from the stopping jobs in every cycle.
        """
        self.elastic_targets: dict[int, int] = {}
        """GPUs by job that the last rebalance assigned and the job does not have yet."""
        self.last_rebalance = -inf
        """Time of the last rebalance."""
        self.next_rebalance = inf
        """Time of the next rebalance, if something changed since the last."""
        self.trials_at_rung: dict[int, int] = {}
        """Rungs by trial that early stopping has not judged yet."""
