"""LoginTransport: the agent's connection to the host of Slurm's commands."""

from __future__ import annotations

import subprocess

from stoker.executors.agent.session.transport import LOST_CODES
from stoker.executors.slurm.commands import error_text
from stoker.executors.slurm.monitor import SlurmMonitor


class LoginTransport:
    """Opens the agent's shell on the host of Slurm's commands."""

    rsync_host = "localhost"
    lost_codes = LOST_CODES

    def __init__(self, monitor: SlurmMonitor, cluster: str) -> None:
        self.monitor, self.cluster = monitor, cluster

    @property
    def host(self) -> str:
        """The name of the cluster."""
        return self.cluster

    @property
    def key(self) -> str:
        """The prefix of the names of its jobs."""
        return self.monitor.prefix

    @property
    def run_suffix(self) -> str:
        """The name of the cluster: SSH nodes may share its home directory."""
        return f".slurm-{self.cluster}"

    def connect(self, command: str) -> subprocess.Popen[bytes]:
        """Start a shell."""
        script = f"STOKER_HANDED_OVER=1; export STOKER_HANDED_OVER; {command}"
        return subprocess.Popen(
            self.command(script), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True, cwd="/",
        )  # fmt: skip

    def describe_failure(self, code: int | None, stderr: str) -> str:
        """Return what the shell or ssh reported."""
        return error_text(stderr) or f"the shell ended with code {code}"

    def disconnected(self) -> None:
        """Do nothing."""

    def command(self, script: str) -> list[str]:
        """Return the argv that runs a shell command there."""
        return self.monitor.commands.argv(["sh", "-c", script])

    def rsync_shell(self) -> list[str] | None:
        """Return None: files are sent as archives."""
        return None
