"""Golden scenarios from recorded workloads."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import fsum
from typing import Any

from msgspec.structs import replace

from benchmarks.golden.decisions import DecisionHash
from benchmarks.planner.suite import TRACES, Task, with_limits, workload
from stoker.core.events import DaemonStarted, Event
from stoker.core.state.restore import restore
from stoker.simulate.replay import replay
from stoker.simulate.traces.formats import openb
from stoker.simulate.workload import Workload
from stoker.store import codec

TURNS_PER_RESTART = 500
OPENB = "openb"
OPENB_PODS = TRACES / "openb" / "openb_pod_list_default.csv.gz"
EVERY_NTH_NODE = 30
"""Every thirtieth node of openb: 41 nodes of all GPU models, which 1,000 pods fill."""
ARRIVAL_SECONDS, FOREVER_SECONDS = 10.0, 1e8
"""Without departures, pods arrive at this interval and run for this long."""


@dataclass(frozen=True)
class TraceScenario:
    """One recorded workload under one policy; `jobs` limits how many of its jobs are replayed."""

    trace: str
    policy: str
    limits: str | None = None
    jobs: int = 0
    has_departures: bool = True
    has_restarts: bool = False
    """Whether the state is restored from its rows every 500 turns."""

    @property
    def name(self) -> str:
        """Key of the scenario in the file of expected hashes."""
        parts = (
            self.trace, self.policy, self.limits or "", str(self.jobs or ""),
            "" if self.has_departures else "no departures", "restarts" if self.has_restarts else "",
        )  # fmt: skip
        return " / ".join(part for part in parts if part)

    def run(self) -> dict[str, Any]:
        """Replay the workload; return the hash and what is recorded beside it."""
        load = _openb() if self.trace == OPENB else workload(TRACES, self.trace)
        nodes = list(load.nodes)
        if self.jobs:
            load = replace(load, jobs=load.jobs[: self.jobs])
        if not self.has_departures:
            load = _without_departures(load)
        if self.limits:
            load = with_limits(load, self.limits)
        task = Task(self.trace, self.policy, limits=self.limits)
        kind = RestartingReplay if self.has_restarts else HashingReplay
        hashing = kind(load, nodes, self.policy, {}, task.assumed)
        results = hashing.run().results
        mean = round(fsum(result.completion_time for result in results) / max(len(results), 1), 3)
        return {**hashing.decisions.result(), "mean": mean}


@lru_cache(maxsize=1)
def _openb() -> Workload:
    load = openb.read(OPENB_PODS)
    return replace(load, nodes=load.nodes[::EVERY_NTH_NODE])


def _without_departures(load: Workload) -> Workload:
    jobs = [
        replace(job, submit_time=number * ARRIVAL_SECONDS, duration=FOREVER_SECONDS)
        for number, job in enumerate(load.jobs)
    ]
    return replace(load, jobs=jobs)


class HashingReplay(replay.Replay):
    """A replay that hashes the planner's decisions."""

    def __init__(self, *args: Any) -> None:
        self.decisions = DecisionHash()
        super().__init__(*args)

    def _apply(self, event: Event) -> list[object]:
        self.decisions.add_decisions([event])
        return super()._apply(event)


class RestartingReplay(HashingReplay):
    """A replay whose state is restored from its rows from time to time, as a new daemon does it."""

    turns = 0

    def _cycle(self, instructions: list[object]) -> None:
        super()._cycle(instructions)
        self.turns += 1
        if self.turns % TURNS_PER_RESTART == 0:
            self._restart()

    def _restart(self) -> None:
        state = self.state
        rows = sorted(state.jobs.items())
        self.state = restore(
            codec.decode_rest(codec.encode(state.record)),
            {hash: codec.decode_spec(codec.encode(spec)) for hash, spec in state.specs.items()},
            [codec.decode_job(codec.encode(job)) for _, job in rows],
        )
        term = self.turns // TURNS_PER_RESTART
        self._apply(
            DaemonStarted(at=self.now, term=term, boot="golden", pid=1, version="", clock=self.now)
        )


TRACE_SCENARIOS: Sequence[TraceScenario] = (
    TraceScenario("muri 1", "conservative", "exact", jobs=400),
    TraceScenario("philly 0e4a51", "planner"),
    TraceScenario("itp 1", "planner"),
    TraceScenario("itp 1", "backfill", "guessed"),
    TraceScenario("gavel continuous", "planner"),
    TraceScenario("gavel static", "makespan"),
    TraceScenario("pollux 1", "planner"),
    TraceScenario("pollux 2", "planner"),
    TraceScenario("muri 1", "backfill"),
    TraceScenario("muri 1", "planner"),
    TraceScenario("muri 1", "tiresias"),
    TraceScenario("muri 1", "makespan"),
    TraceScenario("muri 1", "srsf"),
    TraceScenario("muri 1", "backfill", "recorded"),
    TraceScenario("muri 1", "fifo"),
    TraceScenario("muri 1", "fair", "guessed"),
    TraceScenario("muri 1", "planner", has_restarts=True),
    TraceScenario("itp 1", "planner", has_restarts=True),
    TraceScenario("pollux 1", "planner", has_restarts=True),
    TraceScenario("gavel continuous", "planner", has_restarts=True),
    TraceScenario("muri 1", "backfill", "recorded", has_restarts=True),
    TraceScenario("muri 1", "conservative", "exact", jobs=400, has_restarts=True),
    TraceScenario("muri 1", "tiresias", has_restarts=True),
    TraceScenario("muri 1", "fair", "guessed", has_restarts=True),
    TraceScenario(OPENB, "planner", jobs=1500),
    TraceScenario(OPENB, "backfill", "guessed", jobs=1500),
    TraceScenario(OPENB, "skip", jobs=1500, has_departures=False),
)
