"""One episode: an installation, submissions and faults side by side, then calm and an audit."""

import argparse
import contextlib
import json
import random
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.faults.audit import OVER, Findings, audit, read_records
from benchmarks.faults.clients import Clients
from benchmarks.faults.injections import Injector, Timeline
from benchmarks.faults.installation import DAEMON, SUPERVISOR, Installation
from benchmarks.faults.scenarios import SCENARIOS, Scenario
from benchmarks.lab import end_processes_of

CALM_SECONDS = 60.0
"""How long the queue may make no progress at all before its jobs count as not ending."""
GONE_SECONDS = 15.0
"""How long processes may take to leave after the daemon has stopped."""
DEVICES = "{gpu:4,cpu:8}"


class Episode:
    """Runs one scenario with one seed."""

    def __init__(self, scenario: Scenario, seed: int, directory: Path) -> None:
        self.scenario, self.seed, self.directory = scenario, seed, directory
        self.dice = random.Random(seed)
        self.timeline = Timeline()
        self.installation = Installation(directory)
        self.clients = Clients(self.installation, self.dice)
        self.injector = Injector(self.installation, self.clients, self.dice, self.timeline)
        self.notes: list[str] = []

    def run(self, faults: int, seconds: float) -> Findings:
        """Do everything; return what the audit found."""
        self.prepare()
        deadline = time.monotonic() + seconds
        while sum(self.timeline.counts.values()) < faults and time.monotonic() < deadline:
            self.act()
        return self.settle()

    def prepare(self) -> None:
        """Start the daemon."""
        code, _, said = self.installation.stoker("daemon", "start", "--resources", DEVICES)
        if code:
            raise RuntimeError(f"the daemon does not start: {said}")

    def act(self) -> None:
        """Submit something, let some time pass, inject a fault."""
        if self.clients.line < self.scenario.jobs and len(self.clients.running) < 5:
            for _ in range(self.dice.choice([0, 1, 1, 2])):
                self.clients.submit(self._choose(self.scenario.submissions), *self.scenario.options)
            if self.dice.random() < 0.1:
                self.clients.cancel_one()
        if self.dice.random() < 0.6:
            self.installation.wait_for_daemon(3.0)
        time.sleep(self.dice.uniform(0.0, self.scenario.pause))
        self.injector.inject(self._choose(self.scenario.faults))
        self.clients.collect()

    def _choose(self, weights: dict[str, int]) -> str:
        return self.dice.choices(list(weights), list(weights.values()))[0]

    # -- the end ------------------------------------------------------------------------

    def settle(self) -> Findings:
        """Stop the faults, wait until all jobs are over, and audit."""
        hanging = self.clients.finish()
        self.installation.up()
        jobs = self.calm()
        found = audit(
            self.record_places(), jobs, self.clients.submissions, self.clients.cancelled,
            self.timeline.kills,
        )  # fmt: skip
        for text in hanging:
            found.add("lost", None, f"the command hangs: {text}")
        self._orphans(found, jobs)
        return found

    def record_places(self) -> list[Path]:
        """Return the directories in which jobs left records."""
        return [self.installation.records]

    def calm(self) -> dict[int, dict[str, Any]]:
        """Wait until every job is over, or nothing changes any more."""
        since, before = time.monotonic(), ""
        while True:
            jobs = self.installation.jobs()
            waiting = {id: job["state"] for id, job in jobs.items() if job["state"] not in OVER}
            ends = sum(map(len, read_records(self.installation.records).values()))
            if not waiting:
                return jobs
            if (now := f"{ends} {waiting}") != before:
                since, before = time.monotonic(), now
            elif time.monotonic() - since > CALM_SECONDS:
                return jobs
            time.sleep(0.3)

    def _orphans(self, found: Findings, jobs: dict[int, dict[str, Any]]) -> None:
        if all(job["state"] in OVER for job in jobs.values()):
            for text in self.installation.leftovers():
                found.add("orphans", _job_of(text), text)
        self.installation.stoker("daemon", "stop")
        deadline = time.monotonic() + GONE_SECONDS
        while left := [
            *self.installation.processes(DAEMON), *self.installation.processes(SUPERVISOR)
        ]:  # fmt: skip
            if time.monotonic() > deadline:
                found.add("orphans", None, f"after the stop of the daemon there are {left}")
                return
            time.sleep(0.1)

    # -- reporting ----------------------------------------------------------------------

    def result(self, found: Findings) -> dict[str, Any]:
        """Return everything that the campaign adds up, and proof for each violation."""
        evidence = {}
        for each in found.violations:
            if each.job is not None and each.job not in evidence:
                evidence[each.job] = {
                    "events": self.installation.events_of(each.job),
                    "records": [
                        f"{path.name}: {path.read_text().strip()}"
                        for place in self.record_places()
                        for path in sorted(place.glob(f"{each.job}.*"))
                    ],
                }
        return {
            "scenario": self.scenario.name,
            "seed": self.seed,
            "directory": str(self.directory),
            "faults": dict(self.timeline.counts),
            "jobs": found.jobs,
            "acknowledged": found.acknowledged,
            "attempts": found.attempts,
            "unknown": len(found.unknown),
            "unknown exits": found.unknown,
            "violations": [asdict(each) for each in found.violations],
            "evidence": evidence,
            "timeline": self.timeline.entries,
            "notes": self.notes,
        }

    def clean(self) -> None:
        """End what is left of this episode, by pid, and remove what lies outside its directory."""
        with contextlib.suppress(Exception):
            self.installation.stoker("daemon", "stop", "--cancel", limit=30)
        end_processes_of(self.directory)
        shutil.rmtree(self.installation.run_dir, ignore_errors=True)


def _job_of(text: str) -> int | None:
    _, _, rest = text.partition("STOKER_JOB_ID=")
    number = rest.split(" ")[0]
    return int(number) if number.isdigit() else None


def main() -> int:
    """Run one episode and write its result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.episode")
    parser.add_argument("--scenario", choices=SCENARIOS, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    episode = Episode(SCENARIOS[options.scenario], options.seed, options.directory)
    try:
        result = episode.result(episode.run(options.faults, options.seconds))
    finally:
        episode.clean()
    (options.directory / "result.json").write_text(json.dumps(result, indent=1))
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
