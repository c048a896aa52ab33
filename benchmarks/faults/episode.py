"""One episode: an installation, submissions and faults side by side, then calm and an audit."""

import contextlib
import random
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.audit import OVER, Findings, audit, read_records
from benchmarks.faults.clients import Clients
from benchmarks.faults.injections import Injector, Timeline
from benchmarks.faults.installation import DAEMON, SUPERVISOR, Installation
from benchmarks.faults.scenarios import Scenario
from benchmarks.lab import end_processes_of

CALM_SECONDS = 60.0
"""How long the queue may make no progress at all before its jobs count as not ending."""
GONE_SECONDS = 15.0
"""How long processes may take to leave after the daemon has stopped."""
DEVICES = "{gpu:4,cpu:8}"


@dataclass
class Site:
    """One installation with its commands and its faults."""

    installation: Installation
    clients: Clients
    injector: Injector


class Episode:
    """Runs one scenario with one seed."""

    def __init__(self, scenario: Scenario, seed: int, directory: Path) -> None:
        self.scenario, self.seed, self.directory = scenario, seed, directory
        self.dice = random.Random(seed)
        self.timeline = Timeline()
        self.sites: list[Site] = []

    def add_site(self, installation: Installation, clients: Clients | None = None) -> Site:
        """Have one more installation."""
        clients = clients or Clients(installation, self.dice)
        injector = Injector(installation, clients, self.dice, self.timeline)
        site = Site(installation, clients, injector)
        self.sites.append(site)
        return site

    def run(self, faults: int, seconds: float) -> Findings:
        """Do everything; return what the audit found."""
        self.prepare()
        for site in self.sites:
            if "bulk" in self.scenario.submissions:
                site.clients.submit("bulk", *self.scenario.options)
        deadline = time.monotonic() + seconds
        while sum(self.timeline.counts.values()) < faults and time.monotonic() < deadline:
            self.act(self.dice.choice(self.sites))
        self.heal()
        found = Findings()
        for site in self.sites:
            found.include(self.settle(site))
        return found

    def prepare(self) -> None:
        """Start the daemon."""
        devices = f"{{gpu:4,cpu:{self.dice.choice([2, 4, 8])}}}"
        self.start(self.add_site(Installation(self.directory)), "--resources", devices)

    @staticmethod
    def start(site: Site, *options: str) -> None:
        """Start the daemon of an installation for the first time."""
        code, _, said = site.installation.stoker("daemon", "start", *options)
        if code:
            raise RuntimeError(f"the daemon does not start: {said}")

    def act(self, site: Site) -> None:
        """Submit something, let some time pass, inject a fault."""
        clients = site.clients
        if clients.line < self.scenario.jobs and len(clients.running) < 5:
            for _ in range(self.dice.choice([0, 1, 1, 2])):
                clients.submit(self._choose(self.scenario.submissions), *self.scenario.options)
            if self.dice.random() < 0.1:
                clients.cancel_one()
        if self.dice.random() < 0.6:
            site.installation.wait_for_daemon(3.0)
        time.sleep(self.dice.uniform(0.0, self.scenario.pause))
        site.injector.inject(self._choose(self.scenario.faults))
        clients.collect()

    def _choose(self, weights: dict[str, int]) -> str:
        return self.dice.choices(list(weights), list(weights.values()))[0]

    # -- the end ------------------------------------------------------------------------

    def heal(self) -> None:
        """Take back the faults that last."""

    def settle(self, site: Site) -> Findings:
        """Wait until all jobs are over, and audit."""
        hanging = site.clients.finish()
        unreachable = ""
        try:
            site.installation.up(30.0)
        except TimeoutError as error:
            unreachable = str(error)
            site.injector.kill_daemon()
            site.installation.up()
        jobs = self.calm(site)
        found = audit(
            self.record_places(site), jobs, site.clients.submissions, site.clients.cancelled,
            site.injector.kills,
        )  # fmt: skip
        for text in hanging:
            found.add("lost", None, f"the command hangs: {text}")
        if unreachable:
            found.add("lost", None, f"the daemon cannot be reached: {unreachable}")
        for each in found.violations:
            each.proof = self._proof(site, each.job)
        self._orphans(site, found, jobs)
        return found

    def record_places(self, site: Site) -> list[Path]:
        """Return the directories in which jobs left records."""
        return [site.installation.records]

    def calm(self, site: Site) -> dict[int, dict[str, Any]]:
        """Wait until every job is over, or nothing changes any more."""
        since, before = time.monotonic(), ""
        while True:
            jobs = site.installation.jobs()
            waiting = {id: job["state"] for id, job in jobs.items() if job["state"] not in OVER}
            places = self.record_places(site)
            count = sum(len(each) for place in places for each in read_records(place).values())
            if not waiting:
                return jobs
            if (now := f"{count} {waiting}") != before:
                since, before = time.monotonic(), now
            elif time.monotonic() - since > CALM_SECONDS:
                return jobs
            time.sleep(0.3)

    def leftovers(self, site: Site) -> list[str]:
        """Describe processes of jobs that are alive."""
        return site.installation.leftovers()

    def _orphans(self, site: Site, found: Findings, jobs: dict[int, dict[str, Any]]) -> None:
        installation = site.installation
        if all(job["state"] in OVER for job in jobs.values()):
            for text in self.leftovers(site):
                found.add("orphans", _job_of(text), text)
        installation.stoker("daemon", "stop")
        deadline = time.monotonic() + GONE_SECONDS
        while left := [*installation.processes(DAEMON), *installation.processes(SUPERVISOR)]:
            if time.monotonic() > deadline:
                found.add("orphans", None, f"after the stop of the daemon there are {left}")
                return
            time.sleep(0.1)

    # -- reporting ----------------------------------------------------------------------

    def _proof(self, site: Site, job: int | None) -> list[str]:
        if job is None:
            return []
        records = [
            f"{path.name}: {path.read_text().strip()}"
            for place in self.record_places(site)
            for path in sorted(place.glob(f"{job}.*"))
        ]
        return [*site.installation.events_of(job), *records]

    def result(self, found: Findings) -> dict[str, Any]:
        """Return everything that the campaign adds up."""
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
            "timeline": self.timeline.entries,
        }

    def clean(self) -> None:
        """End what is left of this episode, by pid, and remove what lies outside its directory."""
        for site in self.sites:
            with contextlib.suppress(Exception):
                site.installation.stoker("daemon", "stop", "--cancel", limit=30)
        end_processes_of(self.directory)
        for site in self.sites:
            shutil.rmtree(site.installation.run_dir, ignore_errors=True)


def _job_of(text: str) -> int | None:
    _, _, rest = text.partition("STOKER_JOB_ID=")
    number = rest.split(" ")[0]
    return int(number) if number.isdigit() else None
