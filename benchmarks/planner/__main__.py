"""`python -m benchmarks.planner`: replay recorded workloads, print every goal and whether it is
reached, draw the plots of docs/planner.md.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.lab import REPOSITORY
from benchmarks.planner import (
    backfill,
    burst,
    elsewhere,
    fairness,
    goals,
    pictures,
    speed,
    wrong_estimates,
)
from benchmarks.planner.goals import Section
from benchmarks.planner.suite import PHILLY, TRACES, Outcome, Task, names, played, workload, write
from benchmarks.report import host_info, table
from benchmarks.settings import Settings

PARTS = (
    "oracle", "errors", "silent", "failures", "burst", "fairness", "limits", "baselines",
    "frontier", "elastic", "sharing", "placement", "cost", "backfill", "speed",
)  # fmt: skip
COMMAND = "make bench-planner"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
PAGE = REPOSITORY / "docs" / "planner.md"
QUICK_SMALL = 4


class Bench:
    """Runs the selected parts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.traces.resolve()
        self.names = names(self.folder, options.quick)
        sizes = {name: len(workload(self.folder, name).jobs) for name in self.names}
        self.sizes = sizes
        self.small = [name for name in self.names if sizes[name] <= goals.MAX_SMALL_JOBS]
        if options.quick:
            self.small = self.small[:QUICK_SMALL]
        self.outcomes: dict[Task, Outcome] = {}
        self.sections: list[Section] = []
        self.results: dict[str, Any] = {"machine": host_info(REPOSITORY), "quick": options.quick}

    def find(self, task: Task) -> Outcome:
        """Return the outcome of a task."""
        return self.outcomes[task]

    def run(self, tasks: Sequence[Task]) -> None:
        """Replay tasks without an outcome; save after each."""
        todo = [task for task in tasks if task not in self.outcomes]
        for outcome in played(todo, self.folder, self.sizes) if todo else ():
            self.outcomes[outcome.task] = outcome
            self.save()

    def save(self) -> None:
        """Write JSON."""
        self.results["runs"] = [each.plain() for each in self.outcomes.values()]
        self.results["verdicts"] = [asdict(each) for each in self.verdicts]
        write(self.options.json, self.results)

    @property
    def verdicts(self) -> list[goals.Verdict]:
        """Return the verdicts of all parts so far."""
        return [each for section in self.sections for each in section.verdicts]

    def part(self, name: str) -> None:
        """Run and print one part."""
        section = self._section(name)
        self.sections.append(section)
        print(section.text(), flush=True)
        self.save()

    def _section(self, name: str) -> Section:
        options = self.options
        match name:
            case "oracle":
                self.run(goals.near_oracle_tasks(self.names))
                return goals.near_oracle(self.names, self.find)
            case "errors":
                self.run(wrong_estimates.error_tasks(self.small))
                return wrong_estimates.errors(self.small, self.find)
            case "silent":
                self.run(wrong_estimates.silent_tasks(self.small))
                return wrong_estimates.silent(self.small, self.find)
            case "failures":
                self.run(wrong_estimates.failure_tasks(self.small))
                return wrong_estimates.failures(self.small, self.find)
            case "burst":
                return burst.burst(options.quick)
            case "fairness":
                return fairness.fairness(options.quick)
            case "limits":
                self.run(goals.limits_tasks(self.names))
                return goals.only_limits(self.names, self.find)
            case "baselines":
                self.run(goals.baseline_tasks(self.small))
                return goals.baselines(self.small, self.find)
            case "frontier":
                self.run(goals.frontier_tasks(self.small))
                return goals.frontier(self.small, self.find)
            case "elastic":
                self.run([goals.elastic_task(each) for each, _ in goals.POLLUX])
                return goals.elastic(self.find)
            case "sharing":
                self.run([task for task, *_ in goals.GAVEL])
                return goals.sharing(self.find)
            case "speed":
                return speed.speed(self.folder, options.full, options.quick)
            case "backfill":
                return backfill.backfill_cost(self.folder, options.quick)
            case "placement":
                return elsewhere.placement(self.folder, options.quick)
            case _:
                return elsewhere.decision_cost(
                    Settings(cache=REPOSITORY / ".bench", quick=options.quick)
                )

    def summary(self) -> str:
        """Return the table of goals with their verdicts."""
        rows = [each.cells() for each in self.verdicts]
        return table(["goal", "figure", "target", "measured", "verdict"], rows) if rows else ""

    def page(self) -> str:
        """Return the tables as Markdown."""
        facts = ", ".join(f"{name}: {value}" for name, value in host_info(REPOSITORY).items()
                          if name in {"cores", "python"})  # fmt: skip
        rows = [
            "| goal | figure | target | measured | verdict |",
            "| --- | --- | --- | --- | --- |",
        ]
        rows += [f"| {' | '.join(each.cells())} |" for each in self.verdicts]
        sections = [section.markdown() for section in self.sections]
        said = f"Written by `{COMMAND} ARGS=--write-docs` ({facts})."
        return "\n".join([BEGIN, said, "", "### All goals", "", *rows, "", *sections, END])


def main() -> int:
    """Measure, print and write the results."""
    options = parse()
    bench = Bench(options)
    print(f"{len(bench.names)} workloads, {sum(bench.sizes.values()):,} jobs", flush=True)
    for name in options.only:
        bench.part(name)
    print(f"\nAll goals\n{bench.summary()}")
    if options.pictures or options.write_docs:
        has = set(options.only)
        drawn = pictures.draw(
            REPOSITORY / "docs" / "images",
            bench.names if "oracle" in has else (),
            bench.small if {"baselines", "frontier"} <= has else (),
            bench.find,
        )
        print("\n".join(f"drawn: {path.relative_to(REPOSITORY)}" for path in drawn))
    if options.write_docs:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        PAGE.write_text(before + bench.page() + after, encoding="utf-8")
    return 0


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small workloads only")
    parser.add_argument("--full", action="store_true", help="10⁶ jobs on 10⁵ GPUs as well")
    parser.add_argument("--traces", type=folder, default=TRACES, metavar="DIR",
                        help="where the recorded workloads are (benchmarks/traces)")  # fmt: skip
    parser.add_argument("--only", type=chosen, default=list(PARTS), metavar="PART,...",
                        help="of " + ", ".join(PARTS))  # fmt: skip
    parser.add_argument("--json", type=Path, default=REPOSITORY / ".bench" / "planner.json",
                        metavar="FILE", help="every figure (.bench/planner.json)")  # fmt: skip
    parser.add_argument("--pictures", action="store_true", help="draw docs/images/planner-*.svg")
    parser.add_argument("--write-docs", action="store_true",
                        help="draw them, and write the tables into docs/planner.md")  # fmt: skip
    return parser.parse_args()


def folder(text: str) -> Path:
    """Parse the directory of the traces."""
    path = Path(text)
    if not (path / PHILLY).is_file():
        raise argparse.ArgumentTypeError(f"{text}: there is no {PHILLY} in it")
    return path


def chosen(text: str) -> list[str]:
    """Parse the names of parts."""
    found = text.split(",")
    for name in found:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"{name}: choose from {', '.join(PARTS)}")
    return found


if __name__ == "__main__":
    sys.exit(main())
