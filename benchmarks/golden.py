"""`make golden`: replay recorded workloads and compare every decision with the recorded hashes.

A refactoring keeps every hash. A change of the planner that is meant to change decisions records
them again with `make golden ARGS=--record`, in a commit of its own.
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks.planner.suite import TRACES, WORKERS, Task, with_limits, workload
from stoker.core.events import Event
from stoker.simulate.replay import replay
from stoker.store import codec

EXPECTED = Path(__file__).with_suffix(".json")
DECISIONS = ("AttemptPlanned", "StopAsked", "StopWithdrawn")


@dataclass(frozen=True)
class Scenario:
    """One workload under one policy; `jobs` limits how many of its jobs are replayed."""

    trace: str
    policy: str
    limits: str | None = None
    jobs: int = 0

    @property
    def name(self) -> str:
        """Key of the scenario in the file of expected hashes."""
        parts = (self.trace, self.policy, self.limits or "", str(self.jobs or ""))
        return " / ".join(part for part in parts if part)


SCENARIOS = (
    Scenario("philly 0e4a51", "planner"),
    Scenario("itp 1", "planner"),
    Scenario("itp 1", "backfill", "guessed"),
    Scenario("gavel continuous", "planner"),
    Scenario("gavel static", "makespan"),
    Scenario("pollux 1", "planner"),
    Scenario("pollux 2", "planner"),
    Scenario("muri 1", "backfill"),
    Scenario("muri 1", "planner"),
    Scenario("muri 1", "tiresias"),
    Scenario("muri 1", "makespan"),
    Scenario("muri 1", "srsf"),
    Scenario("muri 1", "backfill", "recorded"),
    Scenario("muri 1", "conservative", "exact", jobs=400),
    Scenario("muri 1", "fifo"),
    Scenario("muri 1", "fair", "guessed"),
)


class HashingReplay(replay.Replay):
    """A replay that counts the planner's decisions and hashes them as they are stored."""

    def __init__(self, *args: Any) -> None:
        self.digest = hashlib.sha256()
        self.counts = dict.fromkeys(DECISIONS, 0)
        super().__init__(*args)

    def _apply(self, fact: Event) -> list[object]:
        kind = type(fact).__name__
        if kind in self.counts:
            self.counts[kind] += 1
            self.digest.update(codec.encode(fact))
        return super()._apply(fact)


def run(scenario: Scenario) -> tuple[str, dict[str, Any], float]:
    """Replay one scenario; return its name, its result and the seconds it took."""
    load = workload(TRACES, scenario.trace)
    nodes = list(load.nodes)
    if scenario.jobs:
        load = replace(load, jobs=load.jobs[: scenario.jobs])
    if scenario.limits:
        load = with_limits(load, scenario.limits)
    task = Task(scenario.trace, scenario.policy, limits=scenario.limits)
    begin = time.perf_counter()
    hashing = HashingReplay(load, nodes, scenario.policy, {}, task.assumed)
    results = hashing.run().results
    mean = round(fsum(result.completion_time for result in results) / max(len(results), 1), 3)
    value = {"hash": hashing.digest.hexdigest()[:16], **hashing.counts, "mean": mean}
    return scenario.name, value, time.perf_counter() - begin


def main(argv: Sequence[str] | None = None) -> int:
    """Run every scenario that matches; return 1 if a decision differs from the recorded ones."""
    parser = argparse.ArgumentParser(prog="make golden", description=__doc__)
    parser.add_argument("--only", default="", help="only scenarios whose name contains this text")
    parser.add_argument("--record", action="store_true", help="write the hashes of this run")
    options = parser.parse_args(argv)
    expected = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    chosen = [each for each in SCENARIOS if options.only in each.name]
    differing = []
    with get_context("spawn").Pool(WORKERS) as pool:
        for name, value, seconds in pool.imap_unordered(run, chosen):
            same = expected.get(name) == value
            if not same:
                differing.append(name)
            mark = "same" if same else "DIFFERS"
            print(f"{mark:8} {name:44} {value['hash']}  {seconds:6.1f} s", flush=True)
            if options.record:
                expected[name] = value
    if options.record:
        EXPECTED.write_text(json.dumps(dict(sorted(expected.items())), indent=1) + "\n")
        return 0
    print(f"{len(chosen) - len(differing)} of {len(chosen)} scenarios decide as recorded")
    return 1 if differing or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
