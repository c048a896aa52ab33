"""task-spooler: a queue in memory, one client call per job."""

import os
from pathlib import Path

from benchmarks import install
from benchmarks.lab import Broken, clean_environment, run, shell
from benchmarks.peers import Peer, Work

# Jobs start in order, so only the last few may still run at the end.
LOOP = """
while IFS= read -r line; do tsp "$JOB_SHELL" -c "$line" || exit; done > ids
tail -n "$TS_SLOTS" ids | while read -r id; do tsp -w "$id" || exit; done
"""


class TaskSpooler(Peer):
    """Debian's `tsp`."""

    name = "task-spooler"
    keeps_logs = True
    durable = "none"

    def prepare(self, cache: Path) -> str | None:
        return install.program("tsp", "task-spooler")

    def environment(self, work: Work) -> dict[str, str]:
        """Return the environment of a separate server whose finished list holds all jobs."""
        return {
            **clean_environment(),
            "JOB_SHELL": shell(),
            "TMPDIR": str(work.logs),
            "TS_MAXFINISHED": str(work.jobs + 1),
            # Relative, because the path of a socket must be short.
            "TS_SOCKET": "tsp.socket",
            "TS_SLOTS": str(work.slots),
        }

    def run(self, work: Work) -> None:
        run(
            ["sh", "-c", LOOP],
            directory=work.directory,
            env=self.environment(work),
            stdin=work.lines,
        )

    def check(self, work: Work) -> None:
        listing = run(["tsp", "-l"], directory=work.directory, env=self.environment(work)).output
        states = [words[1] for words in map(str.split, listing.splitlines()[1:])]
        if states.count("finished") != work.jobs:
            raise Broken(f"{states.count('finished')} of {work.jobs} jobs finished")
        logs = sum(name.startswith("ts-out") for name in os.listdir(work.logs))
        if logs != work.jobs:
            raise Broken(f"{logs} log files for {work.jobs} jobs")

    def tear_down(self, work: Work) -> None:
        if (work.directory / "tsp.socket").exists():
            run(["tsp", "-K"], directory=work.directory, env=self.environment(work), check=False)
