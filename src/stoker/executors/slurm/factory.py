"""SlurmFactory: executors of Slurm clusters and of the pilots in them."""

from __future__ import annotations

import os
import shlex
from _blake2 import blake2b

from stoker.core.events import NodeAdded
from stoker.executors.agent.executor import AgentEnvironment
from stoker.executors.clusters import job_prefix
from stoker.executors.pilot_cluster import PilotClusterExecutor
from stoker.executors.port import AttemptRecords
from stoker.executors.slurm.commands import SlurmCommands
from stoker.executors.slurm.handover.executor import HandoverExecutor
from stoker.executors.slurm.monitor import SlurmMonitor
from stoker.executors.slurm.options import parse_options
from stoker.executors.slurm.pilot import Pilot, PilotExecutor, sbatch_options
from stoker.executors.ssh.address import parse_address


class SlurmFactory:
    """Creates the executors of all Slurm clusters; those of one cluster share its monitor."""

    def __init__(self, run: str, environment: AgentEnvironment) -> None:
        """`run` is the directory of the sockets of connections to login nodes."""
        self.run, self.environment = run, environment
        self._monitors: dict[str, SlurmMonitor] = {}

    def cluster(
        self, added: NodeAdded, records: AttemptRecords
    ) -> PilotClusterExecutor | HandoverExecutor:
        """Return the executor of a cluster."""
        options = parse_options(added.options)
        monitor = self._monitor(added.name, options.login)
        monitor.commands = self._commands(added.name, options.login)
        if options.has_pilots:
            return PilotClusterExecutor(monitor, options.pilot)
        os.makedirs(self.environment.notes, 0o700, exist_ok=True)
        return HandoverExecutor(
            added.name, monitor, self.environment, records, added.shared, options
        )

    def jobs(self, added: NodeAdded, records: AttemptRecords) -> HandoverExecutor:
        """Return the executor that hands over what the pilots of a cluster cannot run."""
        os.makedirs(self.environment.notes, 0o700, exist_ok=True)
        given = {name: value for name, value in added.options.items() if name != "cluster"}
        options = parse_options(given)
        monitor = self._monitor(added.options["cluster"], options.login)
        return HandoverExecutor(
            added.name, monitor, self.environment, records, added.shared, options
        )

    def pilot(self, added: NodeAdded, records: AttemptRecords) -> PilotExecutor:
        """Return the executor of a pilot."""
        os.makedirs(self.environment.notes, 0o700, exist_ok=True)
        options = added.options
        job = options["job"]
        pilot = Pilot(
            added.name, job, sbatch_options(job, shlex.split(options["sbatch"])), added.at
        )
        monitor = self._monitor(options["cluster"], options.get("ssh", ""))
        return PilotExecutor(pilot, monitor, self.environment, records, added.shared)

    def _monitor(self, cluster: str, login: str) -> SlurmMonitor:
        monitor = self._monitors.get(cluster)
        if monitor is None or monitor.is_closed:
            prefix = job_prefix(self.environment.install, cluster)
            commands = self._commands(cluster, login)
            monitor = SlurmMonitor(commands, prefix, self.environment.reactor)
            self._monitors[cluster] = monitor
        return monitor

    def _commands(self, cluster: str, login: str) -> SlurmCommands:
        control = f"{self.run}/slurm-{blake2b(cluster.encode(), digest_size=4).hexdigest()}"
        return SlurmCommands(parse_address(login) if login else None, control)
