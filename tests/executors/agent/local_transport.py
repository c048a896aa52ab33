"""A transport to this host: its shell, without ssh."""

import subprocess

from stoker.executors.agent.session.transport import LOST_CODES


class LocalTransport:
    """Runs the agent and other commands in shells on this host."""

    lost_codes = LOST_CODES
    host, key, rsync_host, run_suffix = "here", "here", "localhost", ""

    def __init__(self, *shell: str) -> None:
        """`shell` is a command that runs its last argument; `sh -c` if it is empty."""
        self.shell = list(shell or ("sh", "-c"))

    def connect(self, command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.shell, command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def describe_failure(self, code: int | None, stderr: str) -> str:
        return f"code {code}: {stderr}"

    def disconnected(self) -> None:
        pass

    def command(self, script: str) -> list[str]:
        return [*self.shell, script]

    def rsync_shell(self) -> list[str]:
        return ["sh", "-c", 'shift; eval "$*"', "sh"]
