"""PilotTransport: the shell of the agent in an allocation, through a relay that srun starts."""

from __future__ import annotations

import shlex
import subprocess

from stoker.executors.agent.session.reconnecting import ROOT
from stoker.executors.agent.session.transport import LOST_CODES, NotReady
from stoker.executors.slurm.commands import SlurmJob, error_text
from stoker.executors.slurm.monitor import SlurmMonitor

RELAY = """
umask 077
directory=/tmp/$1
connection=$directory/relay.$$
tries=200 # Slurm starts the batch step a moment after it reports the allocation
until [ -p "$directory/connections" ] || [ $tries = 0 ]; do
    tries=$((tries - 1))
    sleep 0.1
done
mkdir "$connection" && mkfifo "$connection/in" "$connection/out" "$connection/err" &&
    printf '%s\\n' "$2" >"$connection/command" || exit 1
printf '%s\\n' "$connection" >"$directory/connections"
exec 3>"$connection/in" 4<"$connection/out" 5<"$connection/err"
rm -rf "$connection"
cat <&4 3>&- 5<&- &
cat <&5 >&2 3>&- 4<&- &
exec 4<&- 5<&-
cat >&3
exec 3>&-
wait
"""
"""Opens the pipes in the order in which the pilot does, or both would wait for ever."""


NO_RECORDS = 93
"""Exit code of a shell that cannot read the records of a pilot."""


class PilotTransport:
    """Opens connections to one pilot while its allocation exists.

    After that, connections lead to the host of Slurm's commands: with a shared home directory, the
    agent there finds what the attempts of the pilot left.
    """

    lost_codes = LOST_CODES

    def __init__(self, monitor: SlurmMonitor, pilot: str, install: str) -> None:
        self.monitor, self.pilot, self.install = monitor, pilot, install
        self.job: SlurmJob | None = None
        """The allocation as Slurm described it last."""
        self.waiting_for = "it has not been submitted to Slurm yet"
        """Why there is no allocation."""
        self.reads_records = self.has_no_records = False
        """Whether the allocation is over, and whether nothing of it can be read."""

    @property
    def host(self) -> str:
        """The node of the allocation; before it exists, the name of the pilot."""
        return self.job.nodes if self.job is not None and self.job.nodes else self.pilot

    @property
    def key(self) -> str:
        """The name of the pilot."""
        return self.pilot

    @property
    def run_suffix(self) -> str:
        """The name of the pilot: all pilots of a user may share a home directory."""
        return f".{self.pilot}"

    @property
    def run_directory(self) -> str:
        """The directory with the records of attempts, as a word for the shell."""
        return f'"$HOME"/{ROOT}/run/{shlex.quote(f"{self.install}.{self.pilot}")}'

    def connect(self, command: str) -> subprocess.Popen[bytes]:
        """Start a relay in the allocation; after its end, a shell beside its records."""
        if self.reads_records:
            setting = f"STOKER_PILOT={shlex.quote(self.pilot)}; export STOKER_PILOT"
            script = f"[ -d {self.run_directory} ] || exit {NO_RECORDS}; {setting}; {command}"
            argv = self.monitor.commands.argv(["sh", "-c", script])
        else:
            argv = self._step(["--unbuffered"], RELAY, self.pilot, command)
        return subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, cwd="/",
        )  # fmt: skip

    def describe_failure(self, code: int | None, stderr: str) -> str:
        """Return what srun reported."""
        self.has_no_records = code == NO_RECORDS
        return error_text(stderr) or f"srun ended with code {code}"

    def disconnected(self) -> None:
        """Do nothing: the relay removes its files."""

    def command(self, script: str) -> list[str]:
        """Return the argv that runs a shell command where the agent is."""
        if self.reads_records:
            return self.monitor.commands.argv(["sh", "-c", script])
        # Buffered: otherwise its output is a terminal, to which tar writes no archive.
        return self._step([], 'eval "$1"', script)

    def rsync_shell(self) -> list[str] | None:
        """Return None: rsync needs a remote shell that takes a host name."""
        return None

    @property
    def rsync_host(self) -> str:
        """The host."""
        return self.host

    def _step(self, options: list[str], script: str, *words: str) -> list[str]:
        if self.job is None or not self.job.is_running:
            raise NotReady(self.waiting_for)
        return self.monitor.commands.argv([
            "srun", f"--jobid={self.job.id}", "--overlap", "--nodes=1", "--ntasks=1",
            "--quiet", "--export=NONE", "--chdir=/", *options, "/bin/sh", "-c", script, "sh",
            *words,
        ])  # fmt: skip
