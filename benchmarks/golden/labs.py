"""Golden scenarios from the full cluster of `benchmarks.planner_cost`."""

from dataclasses import dataclass
from typing import Any

from benchmarks.golden.decisions import DecisionHash
from benchmarks.planner_cost import PlannerState
from stoker.core.events import Event

NODES, PENDING_JOBS, EVENTS = 100, 1000, 450


@dataclass(frozen=True)
class LabScenario:
    """A full cluster with pending jobs, and random events."""

    kind: str
    """Kind of requests, as `benchmarks.planner_cost` names it."""
    is_half_non_preemptible: bool = False

    @property
    def name(self) -> str:
        """Key of the scenario in the file of expected hashes."""
        suffix = ", half steady" if self.is_half_non_preemptible else ""
        return f"lab {self.kind}{suffix}"

    def run(self) -> dict[str, Any]:
        """Apply random events; return the hash of the decisions."""
        kind = HalfNonPreemptibleLab if self.is_half_non_preemptible else HashingLab
        lab = kind(self.kind, NODES, PENDING_JOBS)
        for _ in range(EVENTS):
            lab.event()
        return lab.decisions.result()


class HashingLab(PlannerState):
    """A lab that hashes the planner's decisions."""

    def __init__(self, kind: str, nodes: int, queued: int) -> None:
        self.decisions = DecisionHash()
        super().__init__(kind, nodes, queued)

    def hear(self, decided: list[Event]) -> None:
        """Execute decisions."""
        self.decisions.add_decisions(decided)
        super().hear(decided)


class HalfNonPreemptibleLab(HashingLab):
    """A lab in which half of the specs are of non-preemptible jobs."""

    def is_non_preemptible(self) -> bool:
        """Return whether the jobs of the next spec are."""
        return self.dice.random() < 0.5


LAB_SCENARIOS = tuple(
    LabScenario(kind, half) for kind in ("gpus", "mixed") for half in (False, True)
)
