"""`python -m benchmarks`: measure, print tables, write JSON with --json."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    compat,
    idle,
    kubernetes,
    latency,
    machines,
    multiuser,
    scale,
    sharing,
    slurm,
    startup,
    sweeps,
    throughput,
    training,
)
from benchmarks.lab import REPOSITORY
from benchmarks.report import host_info
from benchmarks.settings import Settings

MEASURES: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "throughput": throughput.measure,
    "compat": compat.measure,
    "machines": machines.measure,
    "latency": latency.measure,
    "startup": startup.measure,
    "scale": scale.measure,
    "idle": idle.measure,
    "training": training.measure,
    "sharing": sharing.measure,
    "sweeps": sweeps.measure,
    "slurm": slurm.measure,
    "kubernetes": kubernetes.measure,
    "multiuser": multiuser.measure,
}


def main() -> int:
    """Run the selected benchmarks one after another."""
    options = parse()
    settings = Settings(
        cache=options.dir.resolve(),
        rounds=options.rounds or (2 if options.quick else 5),
        jobs=options.jobs or (200 if options.quick else 1000),
        quick=options.quick,
        peers=options.peers.lower(),
    )
    settings.runs.mkdir(parents=True, exist_ok=True)
    facts = host_info(settings.cache)
    print(", ".join(f"{name}: {value}" for name, value in facts.items()))
    results: dict[str, Any] = {"machine": facts}
    for name in options.only:
        results[name] = MEASURES[name](settings)
        if options.json:  # after each one, so that an interrupted run keeps its results
            options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    # A peer may be missing; a failed measurement of stoker is a failure.
    failed = [
        f"{measure}: {name}"
        for measure in options.only
        for name in results[measure].get("missing", {})
        if name.startswith("stoker")
    ]
    if failed:
        print("\nnot measured: " + "; ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, help="rounds of the throughput measure (5)")
    parser.add_argument("--jobs", type=int, help="commands per round (1000)")
    parser.add_argument(
        "--only",
        type=chosen,
        default=list(MEASURES),
        metavar="NAME,...",
        help="of " + ", ".join(MEASURES),
    )
    parser.add_argument(
        "--peers", default="", metavar="WORD,...", help="only peers with such a word in their name"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    parser.add_argument("--quick", action="store_true", help="small, to see that it all works")
    parser.add_argument(
        "--dir",
        type=Path,
        default=REPOSITORY / ".bench",
        help="where peers are installed and runs take place (.bench)",
    )
    return parser.parse_args()


def chosen(text: str) -> list[str]:
    """Parse the names of benchmarks."""
    names = text.split(",")
    for name in names:
        if name not in MEASURES:
            raise argparse.ArgumentTypeError(f"{name}: choose from {', '.join(MEASURES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
