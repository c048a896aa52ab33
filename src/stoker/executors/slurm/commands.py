"""SlurmCommands: Slurm's own commands, on this host or on a login node. Every call blocks."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence

from msgspec import Struct

from stoker.core.model.units import printable
from stoker.executors.ssh.address import Address

TIMEOUT_SECONDS = 30.0
"""Time for one command: a busy controller may take ten seconds to answer."""
NOT_FOUND = 127
"""Exit code of `env` for a program that is not on the PATH."""
MAX_REASON_LENGTH = 300
ROW_FORMAT = "%A|%j|%T|%N|%e|%S|%r"
"""Id, name, state, nodes, end, start, reason. Text: in Slurm 22.05 JSON takes 25 times as long."""
TIME_FORMAT = {"SLURM_TIME_FORMAT": "%s"}
"""Makes squeue print times in seconds since 1970, whatever the time zone of the login node is."""
UNANSWERED = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection (refused|timed out|reset)"
    r"|Zero Bytes were transmitted|Slurm temporarily unable|Transport endpoint",
    re.IGNORECASE,
)
"""Errors after which a request may or may not have been accepted."""

PENDING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
"""States of a job that has not ended; every other one is an end."""


class SlurmError(Exception):
    """A command failed; the message is one sentence."""


class SlurmUnanswered(SlurmError):
    """The controller did not answer: the request may or may not have been accepted."""


class SlurmJob(Struct, frozen=True):
    """One row of squeue."""

    id: str
    name: str
    state: str
    nodes: str
    end: float | None
    start: float | None
    reason: str

    @property
    def is_pending(self) -> bool:
        """Whether it waits for resources."""
        return self.state in PENDING

    @property
    def is_running(self) -> bool:
        """Whether it has an allocation."""
        return self.state in RUNNING

    @property
    def is_changing(self) -> bool:
        """Whether it is about to start or to end."""
        return self.is_pending or self.state == "COMPLETING"

    @property
    def has_ended(self) -> bool:
        """Whether it is over."""
        return not self.is_pending and not self.is_running


class SlurmCommands:
    """Runs sbatch, squeue, scancel and srun, here or through the login node of a cluster."""

    def __init__(
        self, login: Address | None = None, control: str = "", timeout: float = TIMEOUT_SECONDS
    ) -> None:
        """`control` is the path of the socket of the connection to the login node."""
        self.login, self.control, self.timeout = login, control, timeout

    def argv(self, words: Sequence[str], environment: dict[str, str] | None = None) -> list[str]:
        """Return the argv of one of Slurm's commands."""
        variables = [f"{name}={value}" for name, value in (environment or {}).items()]
        if self.login is None:
            return ["env", *_unset_options(), *variables, *words]
        shared = ("-o", "ControlMaster=auto", "-o", "ControlPersist=60")
        command = shlex.join(["env", *variables, *words])
        return [*self.login.command(self.control, *shared), command]

    def submit(self, options: Sequence[str], script: str) -> str:
        """Submit a batch script; return its id."""
        output = self._run(["sbatch", "--parsable", *options], script)
        return output.strip().partition(";")[0]

    def jobs(self) -> list[SlurmJob]:
        """Return the jobs of this user that the controller knows, ended ones included."""
        words = ["squeue", "--me", "--noheader", "--array", "--states=all", "-o", ROW_FORMAT]
        return [
            row
            for line in self._run(words, environment=TIME_FORMAT).splitlines()
            if (row := parse_row(line)) is not None
        ]

    def cancel(self, ids: Sequence[str], *options: str) -> None:
        """Cancel or signal jobs; those that are over do not matter."""
        if ids:
            self._run(["scancel", "--quiet", *options, *ids])

    def run_shell(self, script: str) -> None:
        """Run a shell script on the host of the commands."""
        self._run(["sh", "-c", script])

    def _run(
        self, words: Sequence[str], text: str = "", environment: dict[str, str] | None = None
    ) -> str:
        """Run a command; return its output."""
        try:
            done = subprocess.run(
                self.argv(words, environment), input=text, capture_output=True, text=True,
                timeout=self.timeout, check=False, errors="replace", start_new_session=True,
                cwd="/",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            why = f"{words[0]} did not answer within {self.timeout:.0f} s"
            raise SlurmUnanswered(why) from None
        except OSError as error:
            raise SlurmError(f"{words[0]} cannot be run: {os.strerror(error.errno or 0)}") from None
        if done.returncode == 0:
            return done.stdout
        if done.returncode == NOT_FOUND:
            where = f"on {self.login.url}" if self.login is not None else "here"
            advice = "add the cluster with --ssh LOGIN-NODE" if self.login is None else "see PATH"
            raise SlurmError(f"{words[0]} was not found {where}; {advice}")
        reason = error_text(done.stderr) or f"{words[0]} ended with code {done.returncode}"
        if self.login is not None and done.returncode == 255:
            raise SlurmUnanswered(f"{self.login.url}: {reason}")
        if UNANSWERED.search(done.stderr):
            raise SlurmUnanswered(reason)
        raise SlurmError(reason)


def _unset_options() -> list[str]:
    """Return options of `env` for a daemon that was itself started in a Slurm job."""
    names = [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]
    return [word for name in names if name != "SLURM_CONF" for word in ("-u", name)]


def parse_row(line: str) -> SlurmJob | None:
    """Return a row of squeue in ROW_FORMAT; None if it is something else."""
    fields = line.split("|", 6)
    if len(fields) != 7:
        return None
    id, name, state, nodes, end, start, reason = fields
    return SlurmJob(id, name, state, nodes, _time(end), _time(start), reason)


def _time(text: str) -> float | None:
    """Return a time in seconds since 1970; None if it is unknown."""
    return float(text) if text.isdigit() else None


def error_text(stderr: str) -> str:
    """Return the error messages of a command, without its name; without any, its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.rpartition("error: ")[2] for line in lines if "error: " in line]
    return printable("; ".join(dict.fromkeys(errors or lines[-1:])), MAX_REASON_LENGTH)
