"""The session of one planning cycle: what its stages share, and the commit of their decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stoker.core.events import AttemptPlanned, PreemptionCancelled, PreemptionRequested
from stoker.core.heterogeneous.assignment import Assignment, applicable_policy
from stoker.core.preemption.nominations import Nominations
from stoker.core.preemption.preemptor import PreemptionStage
from stoker.core.preemption.reservation_guard import ReservationGuard
from stoker.core.state.state import State

Decision = AttemptPlanned | PreemptionRequested | PreemptionCancelled
"""A decision is the event that carries it out."""


class PlanningSession:
    """State, time, nominations and reservations of one planning cycle."""

    def __init__(self, state: State, at: float, boot: float) -> None:
        self.state, self.at, self.boot = state, at, boot
        self.nominations = Nominations(state, at)
        self.guard = ReservationGuard(state, at, boot)
        self.backfill = self.guard.backfill(state.cluster, state.releases)
        self.preemption = PreemptionStage(state, self.nominations, self.guard, at, boot)
        self.assignment: Assignment | None = None
        """Targets of all jobs, if GPU models or co-located jobs were measured to differ."""
        self.decision_count = 0
        """Number of decisions so far."""

    def assign(self) -> None:
        """Assign all jobs together, if it matters which job gets which GPU."""
        policy = applicable_policy(self.state)
        if policy is not None:
            self.assignment = Assignment(self.state, policy, self.nominations.future, self.at)
            self.nominations.replace(self.assignment.nominations())

    def emit(self, decisions: Iterable[Decision]) -> Iterator[Decision]:
        """Yield decisions; the caller applies each to the state before it asks for the next.

        What a decision changes besides the state is changed here, once it is applied.
        """
        for decision in decisions:
            self.decision_count += 1
            yield decision
            if isinstance(decision, AttemptPlanned):
                assert decision.job not in self.state.pending, "apply each event before the next"
                self.nominations.on_start(decision.job, decision.placement)
