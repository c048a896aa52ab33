"""`python -m benchmarks.eta`: how often starts and ends are in the range that `eta` prints.

Recorded workloads are replayed; at some moments a forecast is made and compared with what happens
later in the same replay. What is known of the jobs differs: epochs that they report, time limits
only, or earlier runs of their commands (in a generated workload, since no trace has commands).
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.calibration import KINDS, Score, calibrate
from benchmarks.planner.suite import TRACES, workload
from benchmarks.report import table
from stoker.simulate.replay.assumptions import ReplayAssumptions
from stoker.simulate.replay.time_limits import with_time_limits
from stoker.simulate.traces.cluster_size import parse_cluster
from stoker.simulate.workload import TraceJob, Workload

HEADINGS = ("workload", "known", "policy", "of", "basis", "forecasts", "within", "earlier", "later",
            "median error")  # fmt: skip
SEED = 11
EPOCHS, LIMITS, COMMANDS = "epochs", "limits", "commands"


@dataclass(frozen=True)
class Case:
    """One workload on one cluster, with the information known about its jobs."""

    name: str
    size: str
    known: str
    policy: str


CASES = tuple(
    Case(name, size, known, policy)
    for name, size, known, policies in (
        ("lab", "2x4", COMMANDS, ("backfill", "planner")),
        ("lab", "2x4", LIMITS, ("backfill",)),
        ("muri 1", "18x8", EPOCHS, ("backfill", "planner")),
        ("muri 1", "18x8", LIMITS, ("backfill",)),
        ("philly 103959", "3x8", EPOCHS, ("backfill", "planner")),
        ("philly 103959", "3x8", LIMITS, ("backfill",)),
        ("philly 2869ce", "6x8", EPOCHS, ("backfill", "planner")),
        ("philly 7f04ca", "10x8", EPOCHS, ("backfill",)),
    )
    for policy in policies
)


def generated_workload(seed: int, jobs: int = 500) -> Workload:
    """Return a generated workload: scripts, arguments, and runs of a command that differ by 8 %."""
    random, at = Random(seed), 0.0
    found: list[TraceJob] = []
    medians = {f"train{n}.py": random.lognormvariate(7.5, 0.9) for n in range(8)}
    gpus = {script: random.choice((1.0, 1.0, 1.0, 2.0, 4.0)) for script in medians}
    commands: dict[str, float] = {}
    while len(found) < jobs:
        at += random.expovariate(1 / 2400.0)
        user = f"user{random.randrange(5)}"
        script = random.choice(list(medians))
        batch = random.choice((1, 1, 2, 4, 8))
        repeated = [each for each in commands if each.startswith(script)]
        for _ in range(batch):
            command = f"{script} --config {len(commands)}"
            if repeated and random.random() < 0.6:
                command = random.choice(repeated)
            elif command not in commands:
                commands[command] = medians[script] * random.lognormvariate(0.0, 0.6)
            seconds = commands[command] * random.lognormvariate(0.0, 0.08)
            load = TraceJob(
                submit_time=at, duration=seconds, gpus=gpus[script], user=user, name=command
            )
            found.append(load)
    return Workload(title="lab", jobs=found)


def run_case(case: Case, moments: int) -> list[Score]:
    """Replay one case and score its forecasts."""
    load = generated_workload(SEED) if case.name == "lab" else workload(TRACES, case.name)
    if case.known == LIMITS:
        load = with_time_limits(load, "guessed", SEED)
    silent = case.known != EPOCHS
    assumed = ReplayAssumptions(time_limits_only=silent, non_preemptible=silent)
    return calibrate(
        load, parse_cluster(case.size), case.policy, moments, assumed,
        commands=case.known == COMMANDS,
    )  # fmt: skip


def table_row(case: Case, score: Score) -> list[str]:
    """Return one row of the table."""
    return [
        case.name, case.known, case.policy, score.kind, score.basis or "all", f"{score.count:,}",
        f"{score.within:.0%}", f"{score.before:.0%}", f"{score.after:.0%}", f"{score.error:.0%}",
    ]  # fmt: skip


def main() -> int:
    """Measure, print, write Markdown with --markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.eta", description=__doc__)
    parser.add_argument("--moments", type=int, default=6, help="forecasts per workload (6)")
    parser.add_argument("--only", default="", metavar="WORD", help="workloads with this word")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    options = parser.parse_args()
    rows: list[list[str]] = []
    for case in CASES:
        if options.only not in f"{case.name} {case.known} {case.policy}":
            continue
        begin = time.perf_counter()
        scores = [score for score in run_case(case, options.moments) if score.count]
        took = time.perf_counter() - begin
        print(f"{case.name}, {case.known}, {case.policy}: {took:.0f} s", file=sys.stderr)
        several = {kind: sum(each.kind == kind for each in scores) > 2 for kind in KINDS}
        rows += [table_row(case, each) for each in scores if each.basis or several[each.kind]]
    print(table(list(HEADINGS), rows))
    if options.markdown:
        lines = [HEADINGS, ["---"] * len(HEADINGS), *rows]
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        options.markdown.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
