"""`make golden`: run fixed workloads and compare every decision with the recorded hashes.

A refactoring keeps every hash. A change of the planner that is meant to change decisions records
them again with `make golden ARGS=--record`, in a commit of its own. A run with restarts must decide
as the same run without.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

from benchmarks.golden.scenarios import SCENARIOS, run
from benchmarks.planner.suite import WORKERS

RESTARTS = " / restarts"
"""End of the name of a run with restarts."""
EXPECTED = Path(__file__).resolve().parent.parent / "golden.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run every scenario that matches; return 1 if a decision differs from the recorded ones."""
    parser = argparse.ArgumentParser(prog="make golden", description=__doc__)
    parser.add_argument("--only", default="", help="only scenarios whose name contains this text")
    parser.add_argument("--record", action="store_true", help="write the hashes of this run")
    options = parser.parse_args(argv)
    expected = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    chosen = [scenario for scenario in SCENARIOS if options.only in scenario.name]
    differing, results = [], {}
    with get_context("spawn").Pool(WORKERS) as pool:
        for name, value, seconds in pool.imap_unordered(run, chosen):
            same, results[name] = expected.get(name) == value, value
            if not same:
                differing.append(name)
            mark = "same" if same else "DIFFERS"
            print(f"{mark:8} {name:44} {value['hash']}  {seconds:6.1f} s", flush=True)
            if options.record:
                expected[name] = value
    unequal = [
        name for name in results if results.get(f"{name}{RESTARTS}", results[name]) != results[name]
    ]
    for name in unequal:
        print(f"DIFFERS  {name}: with restarts")
    if options.record:
        EXPECTED.write_text(json.dumps(dict(sorted(expected.items())), indent=1) + "\n")
        return 1 if unequal else 0
    print(f"{len(chosen) - len(differing)} of {len(chosen)} scenarios decide as recorded")
    return 1 if differing or unequal or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
