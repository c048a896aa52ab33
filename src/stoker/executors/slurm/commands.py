"""SlurmCommands: Slurm's own commands, on this host or on a login node. Every call blocks."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence

from msgspec import Struct

from stoker import places
from stoker.core.model.units import printable
from stoker.executors.ssh.address import Address

TIMEOUT_SECONDS = 30.0
"""Time for one command: a busy controller may take ten seconds to answer."""
NOT_FOUND = 127
"""Exit code of `env` for a program that is not on the PATH."""
MAX_REASON_LENGTH = 300
ROW_FORMAT = "%i|%j|%T|%N|%e|%S|%r"
"""Id, name, state, nodes, end, start, reason. Text: in Slurm 22.05 JSON takes 25 times as long."""
ARRAY_NAME = re.compile(r"(.*-)a([0-9]+)\.([0-9]+)", re.DOTALL)
"""Name of an array of attempts: its first attempt."""
ACCOUNTING_DAYS = 7
"""How far back Slurm's accounting is asked; by default it reports nothing before midnight."""
MAX_START_SECONDS = 30 * 86400.0
"""Expected starts further away are not reported: Slurm derives them from time limits of others."""
TIME_FORMAT = {"SLURM_TIME_FORMAT": "%s"}
"""Makes squeue print times in seconds since 1970, whatever the time zone of the login node is."""
LOGIN_SECONDS = 600.0
"""Time for which the environment of a login shell is used again."""
LOGIN_ENVIRONMENT = """
umask 077
file=$HOME/.stoker/login-environment
mkdir -p "$HOME/.stoker"
env -i HOME="$HOME" USER="$(id -un)" LOGNAME="$(id -un)" SHELL="${SHELL:-/bin/sh}" \\
    timeout 10 bash -lc 'env -0 >"$1"' sh "$file.$$" </dev/null >/dev/null 2>&1 &&
    mv "$file.$$" "$file" && echo "$file"
"""
"""Writes the environment of a login shell to a file and prints its name.

Batch jobs get it. With --export=NONE, Slurm would run a login shell for each of them: 0.05 s per
job became 0.25 s in a measurement.
"""
ENVIRONMENT_OPTIONS = ("--export", "--get-user-env")
"""Options of sbatch with which users choose the environment themselves."""
UNANSWERED = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection (refused|timed out|reset)"
    r"|Zero Bytes were transmitted|Slurm temporarily unable|Transport endpoint",
    re.IGNORECASE,
)
"""Errors after which a request may or may not have been accepted."""

GPU_GRES = re.compile(r"gpu:(?:([^:(]+):)?[0-9]+")
"""A generic resource of GPUs: `gpu:a100:4(S:0-1)`."""

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

    def expected_start(self, now: float) -> float | None:
        """Return when Slurm expects to start it, unless that is useless."""
        start = self.start if self.is_pending else None
        return start if start is not None and now < start < now + MAX_START_SECONDS else None


class SlurmCommands:
    """Runs sbatch, squeue, scancel and srun, here or through the login node of a cluster."""

    def __init__(
        self, login: Address | None = None, control: str = "", timeout: float = TIMEOUT_SECONDS
    ) -> None:
        """`control` is the path of the socket of the connection to the login node."""
        self.login, self.control, self.timeout = login, control, timeout
        self._environment_option, self._read_login_at = "", 0.0
        """The option for the environment of batch jobs; the monotonic time at which it is due."""

    def argv(self, words: Sequence[str], environment: dict[str, str] | None = None) -> list[str]:
        """Return the argv of one of Slurm's commands."""
        variables = [f"{name}={value}" for name, value in (environment or {}).items()]
        if self.login is None:
            # Without stoker's commands of these names: the daemon may have been started by one.
            path = f"PATH={places.path_without(places.slurm_commands_dir())}"
            return ["env", *_unset_options(), path, *variables, *words]
        shared = ("-o", "ControlMaster=auto", "-o", "ControlPersist=60")
        command = shlex.join(["env", *variables, *words])
        return [*self.login.command(self.control, *shared), command]

    def submit(self, options: Sequence[str], script: str) -> str:
        """Submit a batch script; return its id."""
        own = [] if any(map(_sets_environment, options)) else [self._login_environment()]
        try:
            output = self._run(["sbatch", "--parsable", *own, *options], script)
        except SlurmError:
            self._read_login_at = 0.0  # the file may have been removed
            raise
        return output.strip().partition(";")[0]

    def _login_environment(self) -> str:
        """Return the option of sbatch for the environment of a login shell."""
        if time.monotonic() >= self._read_login_at:
            self._environment_option = "--export=NONE"
            with contextlib.suppress(SlurmError):
                file = self._run(["sh", "-c", LOGIN_ENVIRONMENT]).strip()
                self._environment_option = f"--export-file={file}"
            self._read_login_at = time.monotonic() + LOGIN_SECONDS
        return self._environment_option

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

    def gpu_models(self) -> tuple[str, ...]:
        """Return the models of the cluster's GPUs; one without a name is `gpu`."""
        words = self._run(["sinfo", "--noheader", "-o", "%G"]).replace(",", " ").split()
        found = (GPU_GRES.match(word) for word in words)
        return tuple(dict.fromkeys(match[1] or "gpu" for match in found if match))

    def ended_states(self) -> dict[str, str]:
        """Return the states of ended jobs in Slurm's accounting by name; empty if it has none."""
        words = [
            "sacct", "--noheader", "--allocations", "--parsable2",
            f"--starttime=now-{ACCOUNTING_DAYS}days", "--format=JobID,JobName,State",
        ]  # fmt: skip
        try:
            lines = self._run(words).splitlines()
        except SlurmError:
            return {}
        rows = (line.split("|") for line in lines)
        states = {
            task_name(name, id): state.split()[0]  # CANCELLED by 1000
            for id, name, state in (row for row in rows if len(row) == 3 and row[2])
        }
        return {name: state for name, state in states.items() if state not in PENDING | RUNNING}

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


def _sets_environment(option: str) -> bool:
    return option.startswith(ENVIRONMENT_OPTIONS)


def parse_row(line: str) -> SlurmJob | None:
    """Return a row of squeue in ROW_FORMAT; None if it is something else."""
    fields = line.split("|", 6)
    if len(fields) != 7:
        return None
    id, name, state, nodes, end, start, reason = fields
    return SlurmJob(id, task_name(name, id), state, nodes, _time(end), _time(start), reason)


def task_name(name: str, id: str) -> str:
    """Return the name of a job; of a task of an array, the name that its attempt has alone."""
    match, index = ARRAY_NAME.fullmatch(name), id.partition("_")[2]
    if match is None or not index.isdecimal():
        return name
    return f"{match[1]}{int(match[2]) + int(index)}.{match[3]}"


def _time(text: str) -> float | None:
    """Return a time in seconds since 1970; None if it is unknown."""
    return float(text) if text.isdigit() else None


def error_text(stderr: str) -> str:
    """Return the error messages of a command, without its name; without any, its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.rpartition("error: ")[2] for line in lines if "error: " in line]
    return printable("; ".join(dict.fromkeys(errors or lines[-1:])), MAX_REASON_LENGTH)
