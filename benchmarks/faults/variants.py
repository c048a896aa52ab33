"""Episodes that need more than one home: shared GPUs, a full disk, damage, machines over SSH."""

import argparse
import contextlib
import json
import os
import pwd
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.faults.audit import read_records
from benchmarks.faults.clients import HERE, Clients, Submission
from benchmarks.faults.episode import DEVICES, Episode, Site
from benchmarks.faults.installation import Installation, boot_time
from benchmarks.faults.scenarios import SCENARIOS
from benchmarks.lab import REPOSITORY

DRIVER_TIMER = ["sleep", "10"]
"""A timer of the agent on a node; it may outlive an agent that was killed, by 10 s at most."""

NOBODY = 65534
LOCKS = "/tmp/stoker-gpus"  # noqa: S108 - a mount of this episode's own lies there
GPUS = 3


def mount(place: str | Path, options: str) -> None:
    """Mount a small file system that only this episode sees."""
    Path(place).mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "stoker-faults", str(place)], check=True)


class SharedGpus(Episode):
    """Daemons of two users over the same GPUs, whose lock directory fills up."""

    def prepare(self) -> None:
        """Start both daemons with a stand-in for the driver."""
        sys.path.insert(0, str(REPOSITORY / "tests"))
        from e2e.other_users import stoker_as  # type: ignore[import-not-found]
        from fakes.nvml import FakeNvml, Gpu, build  # type: ignore[import-not-found]

        mount(LOCKS, "size=256k,nr_inodes=60,mode=1777")
        devices = self.directory / "devices"
        devices.mkdir()
        for name in (f"{n}.{part}" for n in range(GPUS) for part in "ab"):
            (devices / name).touch()
            (devices / name).chmod(0o666)
        devices.chmod(0o777)
        self.directory.chmod(0o755)
        self.directory.parent.chmod(0o755)
        library = self.directory / "nvml"
        shutil.copytree(build(), library)
        library.chmod(0o755)
        for number, user in enumerate((None, NOBODY)):
            directory = self.directory / str(number)
            nvml = FakeNvml(library=library, file=self.directory / f"gpus.{number}")
            nvml.set([Gpu(uuid=f"GPU-{n}", pci=f"0000:0{n}:00.0") for n in range(GPUS)])
            nvml.file.chmod(0o644)
            names = ("LD_LIBRARY_PATH", "FAKE_NVML")
            environment = {name: nvml.env()[name] for name in names}
            installation = Installation(directory, environment, user, devices)
            if user is not None:
                installation.command, more = stoker_as(pwd.getpwuid(user))
                installation.environment |= more
            site = self.add_site(installation)
            (site.installation.home / "config.toml").write_text("[foreign]\nleave_seconds = 0\n")
            site.injector.faults |= {
                "fill lock directory": self.fill, "free lock directory": self.free
            }  # fmt: skip
            self.start(site)

    def fill(self) -> None:
        """Use up the inodes of the lock directory."""
        with contextlib.suppress(OSError):
            for number in range(100):
                Path(LOCKS, f"filler.{number}").touch()
        self.timeline.note("fill lock directory")

    def free(self) -> None:
        """Give them back."""
        for path in Path(LOCKS).glob("filler.*"):
            path.unlink()
        self.timeline.note("free lock directory")

    def heal(self) -> None:
        """Let the lock directory have room."""
        self.free()


class FullDisk(Episode):
    """A home on a small disk that fills up."""

    def prepare(self) -> None:
        """Start the daemon on the small disk."""
        mount(self.directory / "home", "size=24m,mode=700")
        site = self.add_site(Installation(self.directory))
        self.filler = site.installation.home / "filler"
        site.injector.faults |= {"fill disk": self.fill, "free disk": self.free}
        self.start(site, "--resources", DEVICES)

    def fill(self) -> None:
        """Leave not one byte."""
        with contextlib.suppress(OSError), open(self.filler, "ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * size)
        self.timeline.note("fill disk")

    def free(self) -> None:
        """Have room again."""
        self.filler.unlink(missing_ok=True)
        self.timeline.note("free disk")

    def heal(self) -> None:
        """Have room again."""
        self.free()


class Damage(Episode):
    """A journal that is damaged again and again, and a daemon that dies in its repair."""

    HELD = 2000

    def prepare(self) -> None:
        """Have a journal that takes a while to repair."""
        super().prepare()
        (site,) = self.sites
        self.table = self.dice.choice(["jobs", "events", "jobs_resident"])
        text = b"true\n" * self.HELD
        process = site.installation.popen("submit", "--hold", "--each-line", "-", stdin=text)
        if process.wait(60):
            raise RuntimeError("the held jobs were not queued")
        held = list(range(1, self.HELD + 1))
        lines = [-id for id in held]  # they never run, and have a line each
        site.clients.submissions.append(Submission(lines, process, boot_time(), held))
        site.injector.faults |= {"damage": lambda: self.damage(site)}

    def damage(self, site: Site) -> None:
        """Spoil a page of one table, then kill daemons that repair it."""
        site.injector.kill_daemon()
        try:
            page = self._spoil(site.installation.journal)
        except sqlite3.DatabaseError:
            return  # the last damage is not repaired yet
        self.timeline.note("damage", table=self.table, page=page)
        for _ in range(self.dice.randrange(1, 4)):
            before = set(os.listdir(site.installation.state))

            def is_repairing(before: set[str] = before) -> bool:
                return bool(set(os.listdir(site.installation.state)) - before)

            wait = is_repairing if self.dice.random() < 0.7 else None
            site.injector.kill_starting_daemon("daemon in repair", wait)

    def _spoil(self, journal: Path) -> int:
        """Overwrite a page or a byte of one table, whose content other tables still tell.

        It is the same table in all of an episode: damage to one and later to the other may well
        lose what only they had.
        """
        with contextlib.closing(sqlite3.connect(journal)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            (size,) = db.execute("PRAGMA page_size").fetchone()
            pages = db.execute(
                "SELECT pageno FROM dbstat WHERE pageno > 1 AND pagetype = 'leaf' AND name = ?",
                (self.table,),
            ).fetchall()
        page = int(self.dice.choice(pages)[0])
        with journal.open("r+b") as file:
            if self.dice.random() < 0.5:
                file.seek((page - 1) * size)
                file.write(b"\xff" * size)
            else:
                file.seek(page * size - self.dice.randrange(1, size // 2))
                file.write(b"\xff")
        return page

    def calm(self, site: Site) -> dict[int, dict[str, Any]]:
        """Cancel the held jobs; decide about those that a repair holds as a user would."""
        jobs, ran = site.installation.jobs(), read_records(site.installation.records)
        held = [id for id, job in jobs.items() if str(job["reason"]).startswith("JobHeld")]
        unwanted = {id for id in held if id <= self.HELD or id in ran}
        site.clients.cancelled |= unwanted
        for verb, ids in (("cancel", sorted(unwanted)), ("release", set(held) - unwanted)):
            if ids:
                site.installation.stoker(verb, *map(str, ids))
        return super().calm(site)


class Remote(Episode):
    """Machines over SSH, whose connections break while files travel."""

    def prepare(self) -> None:
        """Start the machines and the daemon that uses them."""
        sys.path.insert(0, str(REPOSITORY / "tests"))
        from ssh.ssh_cluster import SshCluster  # type: ignore[import-not-found]

        (self.directory / "lab").mkdir()
        self.lab = SshCluster(self.directory / "lab")
        self.machines = [self.lab.machine(name, gpus=2) for name in "ab"]
        installation = Installation(self.directory, self.lab.environment)
        clients = Travellers(installation, self.dice, "$HOME/records $HOME/devices", "$HOME/job.sh")
        site = self.add_site(installation, clients)
        site.injector.faults |= {
            "ssh connection": self.break_connection, "ssh agent": self.kill_agent
        }  # fmt: skip
        self.start(site, "--resources", "{cpu:0}")
        for machine in self.machines:
            shutil.copy(HERE / "job.sh", machine.home)
            for name in ("records", "devices"):
                (machine.home / name).mkdir()
                os.chown(machine.home / name, machine.uid, machine.uid)
            words = ("nodes", "add", machine.name, machine.url, "--key", str(machine.key))
            code, _, said = installation.stoker(*words)
            if code:
                raise RuntimeError(said)

    def break_connection(self) -> None:
        """Kill the server's side of the connections to one machine."""
        if self.dice.choice(self.machines).kill_connections():
            self.timeline.note("ssh connection")

    def kill_agent(self) -> None:
        """Kill the shell that serves stoker on one machine."""
        if self.dice.choice(self.machines).kill_agent():
            self.timeline.note("ssh agent")

    def record_places(self, site: Site) -> list[Path]:
        """Return the directories of the machines."""
        return [machine.home / "records" for machine in self.machines]

    def leftovers(self, site: Site) -> list[str]:
        """Describe processes of jobs on the machines."""
        return [
            f"{machine.name}: {' '.join(process.words)}"
            for machine in self.machines
            for process in machine.processes()
            if process.words[:2] != DRIVER_TIMER
            if "sleep" in process.words or any("job.sh" in word for word in process.words)
        ]

    def clean(self) -> None:
        """End the machines, too."""
        super().clean()
        if hasattr(self, "lab"):
            self.lab.close()


class Travellers(Clients):
    """Submissions whose directory changes now and then, so that it travels again."""

    def submit(self, kind: str, *options: str) -> None:
        """Change the data, then submit."""
        if self.dice.random() < 0.5:
            data = random.Random(self.dice.random()).randbytes(2 << 20)
            (self.installation.work / "data").write_bytes(data)
        super().submit(kind, *options)


VARIANTS: dict[str, type[Episode]] = {
    "gpus": SharedGpus, "disk": FullDisk, "repair": Damage, "ssh": Remote
}  # fmt: skip
"""The scenarios that are not run by `Episode` itself."""


def main() -> int:
    """Run one episode and write its result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.variants")
    parser.add_argument("--scenario", choices=SCENARIOS, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    kind = VARIANTS.get(options.scenario, Episode)
    begun = time.monotonic()
    episode = kind(SCENARIOS[options.scenario], options.seed, options.directory)
    try:
        result = episode.result(episode.run(options.faults, options.seconds))
    finally:
        episode.clean()
    result["seconds"] = round(time.monotonic() - begun, 1)
    (options.directory / "result.json").write_text(json.dumps(result, indent=1))
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
