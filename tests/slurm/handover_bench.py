"""A bench for the executor that hands attempts over to a real Slurm."""

import secrets
from pathlib import Path

from executors.process_bench import GRACE_SECONDS, AgentBench, Records
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.agent.executor import AgentEnvironment
from stoker.executors.slurm.commands import SlurmCommands
from stoker.executors.slurm.handover.executor import HandoverExecutor
from stoker.executors.slurm.monitor import SlurmMonitor
from stoker.executors.slurm.options import parse_options
from stoker.probes import remote_facts


class HandoverBench(AgentBench):
    """The executor of a cluster without pilots; starts and signals take up to a second each."""

    scale = 0.03

    def __init__(
        self, base: Path, home: Path, commands: SlurmCommands | None = None, options: str = "-p gpu"
    ) -> None:
        self.commands, self.options = commands or SlurmCommands(), options
        super().__init__(base, home, secrets.token_hex(4))

    def open(self) -> None:
        (self.base / "notes").mkdir(exist_ok=True)
        self.reactor = EpollReactor()
        environment = AgentEnvironment(
            self.install, str(self.base / "notes"), self.reactor, lambda _: b"", lambda _: None,
            remote_facts.parse, GRACE_SECONDS,
        )  # fmt: skip
        monitor = SlurmMonitor(self.commands, f"stoker-{self.install}-lab", self.reactor)
        options = parse_options({"sbatch": self.options})
        self.executor = HandoverExecutor("lab", monitor, environment, Records(), True, options)
        self.executor.open(self.sink)
        self.is_open = True

    def claims(self) -> list[str]:
        run = self.home / f".stoker/run/{self.install}.slurm-lab"
        return [path.name for path in run.glob("*.claim")]
