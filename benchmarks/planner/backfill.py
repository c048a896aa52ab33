"""Cost of conservative backfill, relative to EASY backfill in the same run."""

import time
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from benchmarks.planner.goals import Section, Verdict
from benchmarks.planner.suite import Task, with_limits, workload
from stoker.simulate.replay.replay import Replay

CASES = (("muri 1", 400, "exact"), ("muri 1", 400, "guessed"), ("itp 1", 1595, "exact"))
"""Workloads, the number of their first jobs, and the kind of time limits."""
POLICIES = ("backfill", "conservative")
REPEATS, QUICK_REPEATS = 5, 2


def backfill_cost(folder: Path, quick: bool) -> Section:
    """Measure the CPU time per event of both policies in turns."""
    rows, verdicts = [], []
    for name, jobs, limits in CASES:
        costs: dict[str, list[float]] = {policy: [] for policy in POLICIES}
        for _ in range(QUICK_REPEATS if quick else REPEATS):
            for policy in POLICIES:
                costs[policy].append(_seconds_per_event(folder, name, jobs, limits, policy))
        easy, conservative = (median(costs[policy]) for policy in POLICIES)
        ratio, words = conservative / easy, f"{name}, {limits} limits"
        rows.append([words, f"{easy * 1e6:.0f}", f"{conservative * 1e6:.0f}", f"{ratio:.2f}"])
        verdicts.append(Verdict("backfill", f"conservative × EASY, {words}", ratio, 5.0))
    return Section(
        "Conservative against EASY backfill: CPU time of one event",
        ["workload", "EASY µs", "conservative µs", "ratio"],
        rows,
        verdicts,
    )


def _seconds_per_event(folder: Path, name: str, jobs: int, limits: str, policy: str) -> float:
    load = with_limits(workload(folder, name), limits)
    load = replace(load, jobs=load.jobs[:jobs])
    task = Task(name, policy, limits=limits)
    replay = Replay(load, list(load.nodes), policy, assumptions=task.assumed)
    begin = time.process_time()
    replay.run()
    return (time.process_time() - begin) / len(replay.cycle_seconds)
