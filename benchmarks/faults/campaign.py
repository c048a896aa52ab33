"""Runs episodes side by side, adds up what they found, prints the table, writes the JSON."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.audit import DEFINITIONS, VIOLATIONS
from benchmarks.faults.injections import KILLS
from benchmarks.faults.scenarios import SCENARIOS, Scenario, why_not
from benchmarks.lab import REPOSITORY, end_processes_of
from benchmarks.report import host_info, table

EPISODE_SECONDS = 60.0
"""How long one episode injects faults at most; then it waits for its jobs and audits."""
CALM_LIMIT = 400.0
"""How long an episode may take in all after that."""
SHOWN = 5
"""Violations of one episode that are printed with their proof."""


@dataclass
class Running:
    """An episode that has not ended yet."""

    scenario: Scenario
    seed: int
    directory: Path
    process: "subprocess.Popen[bytes]"
    begun: float


@dataclass
class Totals:
    """What all episodes found so far."""

    episodes: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def faults(self) -> Counter[str]:
        """Return the faults by kind."""
        found: Counter[str] = Counter()
        for each in self.episodes:
            found.update(each["faults"])
        return found

    @property
    def kills(self) -> int:
        """Return how many faults were kills."""
        return sum(count for kind, count in self.faults.items() if kind in KILLS)

    def sum(self, what: str) -> int:
        """Add up one figure."""
        return sum(each[what] for each in self.episodes)

    def violations(self, kind: str) -> int:
        """Return how many violations of a kind there were."""
        return sum(
            violation["kind"] == kind
            for each in self.episodes
            for violation in each["violations"]
        )  # fmt: skip


class Campaign:
    """Bounded in time and, if asked for, in kills."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.dice = random.Random(options.seed)
        self.totals = Totals()
        self.running: list[Running] = []
        self.base = Path(tempfile.mkdtemp(prefix="sf-", dir=options.dir))
        self.begun = time.monotonic()
        self.number = 0
        self.chosen, self.missing = self._chosen()

    def _chosen(self) -> tuple[list[Scenario], dict[str, str]]:
        wanted = [SCENARIOS[name] for name in self.options.only]
        missing = {each.name: why for each in wanted if (why := why_not(each)) is not None}
        return [each for each in wanted if each.name not in missing], missing

    # -- running ------------------------------------------------------------------------

    def run(self) -> int:
        """Run until time or kills are used up; return the exit code."""
        for name, why in self.missing.items():
            print(f"not run: {name}: {why}", flush=True)
        deadline = self.begun + self.options.minutes * 60
        try:
            while self._goes_on(deadline) or self.running:
                while self._goes_on(deadline) and len(self.running) < self.options.homes:
                    self._begin(deadline - time.monotonic())
                time.sleep(0.1)
                for each in [each for each in self.running if self._is_over(each)]:
                    self._end(each)
        finally:
            for each in self.running:
                each.process.kill()
                each.process.wait()
                end_processes_of(each.directory)
        return self._report()

    def _goes_on(self, deadline: float) -> bool:
        enough = self.options.kills and self.totals.kills >= self.options.kills
        return bool(self.chosen) and not enough and time.monotonic() < deadline - 5

    def _begin(self, left: float) -> None:
        scenario = self.chosen[self.number % len(self.chosen)]
        self.number += 1
        seed = self.dice.randrange(1 << 30)
        directory = self.base / f"{self.number}"
        directory.mkdir(mode=0o700)
        command = [
            sys.executable, "-m", "benchmarks.faults.variants", "--scenario", scenario.name,
            "--seed", str(seed), "--directory", str(directory), "--faults",
            str(self.options.faults), "--seconds", f"{min(EPISODE_SECONDS, left):.0f}",
        ]  # fmt: skip
        if os.getuid() == 0 and shutil.which("unshare"):
            # Mounts of an episode are seen by its processes only, and go with the last of them.
            command = ["unshare", "--mount", "--propagation", "private", *command]
        with open(directory / "episode.log", "wb") as log:
            process = subprocess.Popen(
                command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.running.append(Running(scenario, seed, directory, process, time.monotonic()))

    def _is_over(self, each: Running) -> bool:
        if each.process.poll() is None and time.monotonic() - each.begun > (
            EPISODE_SECONDS + CALM_LIMIT
        ):
            each.process.kill()
            each.process.wait()
        return each.process.poll() is not None

    def _end(self, each: Running) -> None:
        self.running.remove(each)
        end_processes_of(each.directory)
        try:
            result = json.loads((each.directory / "result.json").read_text())
        except (OSError, ValueError):
            log = (each.directory / "episode.log").read_text(errors="replace")
            last = log.strip().splitlines()[-1:] or ["no message"]
            self.totals.failures.append(f"{each.scenario.name} seed {each.seed}: {last[0]}")
            self._say(each, f"failed: {last[0]}; kept: {each.directory}")
            return
        self.totals.episodes.append(result)
        if result["violations"]:
            self._say(each, f"{len(result['violations'])} violations; kept: {each.directory}")
            show(result)
        else:
            self._say(each, f"ok, {sum(result['faults'].values())} faults, {result['jobs']} jobs")
            if not self.options.keep:
                shutil.rmtree(each.directory, ignore_errors=True)
        self._write()

    def _say(self, each: Running, text: str) -> None:
        seconds = round(time.monotonic() - self.begun)
        done = f"{self.totals.kills} kills, {self.totals.sum('jobs')} jobs"
        when = f"[{seconds // 60:02}:{seconds % 60:02}]"
        print(f"{when} {done} | {each.scenario.name} seed {each.seed}: {text}", flush=True)

    # -- the result ---------------------------------------------------------------------

    def _write(self) -> None:
        if self.options.json:
            totals = self.totals
            result = {
                "seed": self.options.seed,
                "minutes": self.options.minutes,
                "machine": host_info(REPOSITORY),
                "definitions": DEFINITIONS,
                "kills": totals.kills,
                "faults": totals.faults,
                "jobs": totals.sum("jobs"),
                "unknown exit": totals.sum("unknown"),
                **{kind: totals.violations(kind) for kind in VIOLATIONS},
                "failures": totals.failures,
                "not run": self.missing,
                "episodes": totals.episodes,
            }
            self.options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")

    def _report(self) -> int:
        totals = self.totals
        print(f"\nseed {self.options.seed}, {time.monotonic() - self.begun:.0f} s\n")
        print(table(["fault", "times", "is a kill"], [
            [kind, str(count), "yes" if kind in KILLS else ""]
            for kind, count in totals.faults.most_common()
        ]))  # fmt: skip
        head = ["scenario", "episodes", "kills", "jobs", "attempts", "unknown exit", *VIOLATIONS]
        names = [each.name for each in self.chosen]
        rows = [_row(name, [e for e in totals.episodes if e["scenario"] == name]) for name in names]
        print("\n" + table(head, [*rows, _row("all", totals.episodes)]) + "\n")
        for kind, text in DEFINITIONS.items():
            print(f"{kind}: {text}.")
        for failure in totals.failures:
            print(f"\nepisode failed: {failure}", file=sys.stderr)
        bad = any(map(totals.violations, VIOLATIONS)) or totals.failures
        if not bad and not self.options.keep:
            shutil.rmtree(self.base, ignore_errors=True)
        self._write()
        return 1 if bad or not totals.episodes else 0


def _row(name: str, episodes: list[dict[str, Any]]) -> list[str]:
    part = Totals(episodes)
    return [
        name, str(len(episodes)), str(part.kills), str(part.sum("jobs")),
        str(part.sum("attempts")), str(part.sum("unknown")),
        *(str(part.violations(kind)) for kind in VIOLATIONS),
    ]  # fmt: skip


def show(result: dict[str, Any]) -> None:
    """Print the first violations of an episode with events, records and the faults around."""
    for violation in result["violations"][:SHOWN]:
        print(f"  {violation['kind']}: job {violation['job']}: {violation['what']}")
        for line in violation["proof"]:
            print(f"    {line[:300]}")
    more = len(result["violations"]) - SHOWN
    if more > 0:
        print(f"  and {more} more, in result.json there")
    sys.stdout.flush()
