"""All golden scenarios, and how one of them is run."""

import time
from collections.abc import Sequence
from typing import Any, Protocol

from benchmarks.golden.labs import LAB_SCENARIOS
from benchmarks.golden.traces import TRACE_SCENARIOS
from benchmarks.golden.workloads import WORKLOAD_SCENARIOS


class Scenario(Protocol):
    """Something to run that always decides the same."""

    @property
    def name(self) -> str:
        """Key of the scenario in the file of expected hashes."""

    def run(self) -> dict[str, Any]:
        """Run it; return its hash and what is recorded beside it."""


SCENARIOS: Sequence[Scenario] = (*TRACE_SCENARIOS, *LAB_SCENARIOS, *WORKLOAD_SCENARIOS)


def run(scenario: Scenario) -> tuple[str, dict[str, Any], float]:
    """Run one scenario; return its name, its result and the seconds it took."""
    begin = time.perf_counter()
    value = scenario.run()
    return scenario.name, value, time.perf_counter() - begin
