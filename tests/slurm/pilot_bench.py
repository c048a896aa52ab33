"""A bench for the executor of a pilot in a real Slurm."""

import secrets
import time
from pathlib import Path

from executors.process_bench import GRACE_SECONDS, AgentBench, Records
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.agent.executor import AgentEnvironment
from stoker.executors.slurm.commands import SlurmCommands
from stoker.executors.slurm.monitor import SlurmMonitor
from stoker.executors.slurm.pilot import Pilot, PilotExecutor, sbatch_options
from stoker.probes import remote_facts

PREFIX = "stoker-bench-lab"


def new_name() -> str:
    """Return the name of a Slurm job that the monitor of a bench knows as its own."""
    return f"{PREFIX}-{secrets.token_hex(4)}"


class PilotBench(AgentBench):
    """The executor of a pilot, which is submitted if there is no job of its name."""

    def __init__(
        self, base: Path, home: Path, job: str, commands: SlurmCommands | None = None
    ) -> None:
        self.job, self.commands = job, commands or SlurmCommands()
        super().__init__(base, home, f"c{secrets.token_hex(4)}")

    def open(self) -> None:
        (self.base / "notes").mkdir(exist_ok=True)
        self.reactor = EpollReactor()
        environment = AgentEnvironment(
            self.install, str(self.base / "notes"), self.reactor, lambda _: b"", lambda _: None,
            remote_facts.parse, GRACE_SECONDS,
        )  # fmt: skip
        monitor = SlurmMonitor(self.commands, PREFIX, self.reactor)
        words = ("--gres=gpu:1", "--cpus-per-task=2", "--time=30")
        pilot = Pilot("node", self.job, sbatch_options(self.job, words), time.time())
        self.executor = PilotExecutor(pilot, monitor, environment, Records(), False)
        self.executor.open(self.sink)
        self.is_open = True

    def claims(self) -> list[str]:
        run = self.home / f".stoker/run/{self.install}.{self.job}"
        return [path.name for path in run.glob("*.claim")]
