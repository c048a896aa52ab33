"""A home with a daemon, machines over SSH, and the commands that run batches on them."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from compat.grass_env import run_dir
from conftest import end_processes_of, stop_daemon
from e2e.daemon_fixture import PATIENCE, until
from ssh.ssh_cluster import SshCluster, insist_on_namespaces
from ssh.ssh_host import SshHost
from stoker.client.client import Client

Done = subprocess.CompletedProcess[str]
FOREIGN = ("STOKER_", "XDG_", "SLURM_", "SBATCH_", "CUDA_", "SSH_", "OMP_")
SMALL = ("--memory-required", 1, "--num-cpus", 0)
"""So little that a crowded computer has room for it."""


class BatchEnv:
    """One home, a directory of its own for each test, and machines with two GPUs each."""

    def __init__(self, base: Path, lab: SshCluster) -> None:
        self.base, self.lab, self.user = base, lab, base / "user"
        self.home = self.user
        for name in ("home", "user", "runtime"):
            (base / name).mkdir(mode=0o700)
        kept = {name: text for name, text in os.environ.items() if not name.startswith(FOREIGN)}
        self.env = {
            **kept,
            "STOKER_HOME": str(base / "home"),
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(base / "runtime"),
            "SHELL": "/bin/sh",
            "PATH": f"{Path(sys.executable).parent}:{lab.environment['PATH']}",
        }
        (base / "home" / "config.toml").write_text("grace = 2\n[foreign]\nleave_seconds = 0\n")
        self.user = Path(tempfile.mkdtemp(dir=self.home))
        self.client = Client(str(base / "home" / "run" / "daemon.sock"))

    # -- machines -----------------------------------------------------------------------

    @property
    def one(self) -> SshHost:
        """A machine with two GPUs."""
        return self.lab.machine("one", gpus=2)

    @property
    def other(self) -> SshHost:
        """Another one."""
        return self.lab.machine("other", gpus=2)

    def file(self, machine: SshHost, name: str | None = None, **values: object) -> str:
        """The file of a machine in the user's directory; its name."""
        name = name or f"{machine.name}.yaml"
        four = {"username": machine.user, "ip": machine.address, "port": machine.port,
                "ssh_key_path": machine.key, **values}  # fmt: skip
        text = "".join(f"{key}: {value}\n" for key, value in four.items())
        (self.user / name).write_text(text)
        return name

    # -- commands -----------------------------------------------------------------------

    def run(self, *words: object, cwd: Path | None = None, **env: str) -> Done:
        """Any command in this home."""
        return subprocess.run(
            [str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True,
            text=True, cwd=cwd or self.user, env={**self.env, **env}, timeout=50, check=False,
        )  # fmt: skip

    def script(self, *lines: str, name: str = "b.sh") -> str:
        """A batch file."""
        (self.user / name).write_text("".join(f"{line}\n" for line in lines))
        return name

    def batch(self, *words: object, **more: Any) -> Done:
        """The command `execute_batch`."""
        return self.run("execute_batch", *words, **more)

    def execute(self, *lines: str, options: tuple[object, ...] = SMALL) -> Done:
        """Run these lines on the first machine."""
        return self.batch(self.script(*lines), "--machines", self.file(self.one), *options)

    def remote(self, *words: object, **more: Any) -> Done:
        """The command `execute_remote`, on the first machine."""
        return self.run("execute_remote", "--machine", self.file(self.one), *words, **more)

    def start(self, *words: object) -> "subprocess.Popen[str]":
        """A command that is left to run."""
        return subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, cwd=self.user, env=self.env,
        )  # fmt: skip

    # -- results ------------------------------------------------------------------------

    def result(self, path: str) -> str:
        """A file in job_results."""
        return (self.user / "job_results" / path).read_text()

    def results(self) -> list[str]:
        """What is in job_results."""
        return sorted(os.listdir(self.user / "job_results"))

    def nodes(self) -> list[str]:
        """The machines over SSH that the daemon has."""
        return [node["name"] for node in self.client.nodes()["nodes"] if node["address"]]

    def tidy(self) -> None:
        """Leave nothing to the next test."""
        self.lab.heal()
        with suppress(Exception):
            live = [str(job["id"]) for job in self.client.jobs(limit=1000)["jobs"]]
            if live:
                self.client.kill(live)
                self.client.wait(live, timeout=PATIENCE)
            for name in self.nodes():
                self.client.remove_node(name, force=True)
        self.lab.wipe()
        shutil.rmtree(self.user)
        self.user = Path(tempfile.mkdtemp(dir=self.home))


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, batch_env: BatchEnv, *words: object) -> None:
        self.said = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(batch_env.user)
                os.execvpe(str(words[0]), [str(word) for word in words], batch_env.env)
            finally:
                os._exit(127)

    def until(self, text: str) -> str:
        """Read until a text has appeared; all that has."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.said:
            assert time.monotonic() < deadline, self.said
            if select.select([self.fd], [], [], 0.1)[0]:
                self.said += os.read(self.fd, 65536).decode()
        return self.said

    def press(self, key: str) -> None:
        """Type a key."""
        os.write(self.fd, key.encode())

    def end(self) -> int:
        """Read to the end; the exit code."""
        with suppress(OSError):  # how the other side of a terminal says that it is over
            while piece := os.read(self.fd, 65536):
                self.said += piece.decode()
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        """See that nothing is left."""
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@contextmanager
def open_env() -> Iterator[BatchEnv]:
    """A home that is gone afterwards, with everything that ran in it."""
    insist_on_namespaces()
    base = Path(tempfile.mkdtemp(prefix="sk-", dir="/tmp"))
    (base / "lab").mkdir()
    cluster = SshCluster(base / "lab")
    try:
        env = BatchEnv(base, cluster)
        assert env.run("stoker", "daemon", "start", "--gpus", "none").returncode == 0
        yield env
    finally:
        stop_daemon(base)
        cluster.close()
        end_processes_of(base)
        shutil.rmtree(run_dir(base), ignore_errors=True)
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="module")
def shared_env() -> Iterator[BatchEnv]:
    """One for all tests of a file."""
    with open_env() as env:
        yield env


def appears(path: Path, text: str) -> str:
    """Wait until a file holds a text."""
    found: str = until(lambda: path.exists() and text in path.read_text() and path.read_text())
    return found
