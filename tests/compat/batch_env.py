"""BatchEnv: a home with a daemon, SSH nodes, and the commands that run batches on them."""

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

from compat.home_env import Done, HomeEnv, temporary_base
from conftest import stop_daemon
from e2e.daemon_fixture import TIMEOUT_SECONDS, until
from ssh.ssh_cluster import SshCluster, require_namespaces
from ssh.ssh_host import SshHost
from stoker.client.client import Client

SMALL = ("--memory-required", 1, "--num-cpus", 0)
"""Fits on every node, also on a busy one."""


class BatchEnv(HomeEnv):
    """One home, a directory for each test, and nodes with two GPUs each."""

    def __init__(self, base: Path, cluster: SshCluster) -> None:
        path = f"{Path(sys.executable).parent}:{cluster.environment['PATH']}"
        super().__init__(base, PATH=path)
        self.cluster, self.home = cluster, self.user
        (base / "home" / "config.toml").write_text("grace = 2\n[foreign]\nleave_seconds = 0\n")
        self.user = Path(tempfile.mkdtemp(dir=self.home))
        self.client = Client(str(base / "home" / "run" / "daemon.sock"))

    # -- machines -----------------------------------------------------------------------

    @property
    def one(self) -> SshHost:
        """A machine with two GPUs."""
        return self.cluster.machine("one", gpus=2)

    @property
    def other(self) -> SshHost:
        """Another one."""
        return self.cluster.machine("other", gpus=2)

    def file(self, machine: SshHost, name: str | None = None, **values: object) -> str:
        """The file of a machine in the user's directory; its name."""
        name = name or f"{machine.name}.yaml"
        four = {"username": machine.user, "ip": machine.address, "port": machine.port,
                "ssh_key_path": machine.key, **values}  # fmt: skip
        text = "".join(f"{key}: {value}\n" for key, value in four.items())
        (self.user / name).write_text(text)
        return name

    # -- commands -----------------------------------------------------------------------

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
        self.cluster.heal()
        with suppress(Exception):
            live = [str(job["id"]) for job in self.client.jobs(limit=1000)["jobs"]]
            if live:
                self.client.kill(live)
                self.client.wait(live, timeout=TIMEOUT_SECONDS)
            for name in self.nodes():
                self.client.remove_node(name, force=True)
        self.cluster.wipe()
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
        deadline = time.monotonic() + TIMEOUT_SECONDS
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
    require_namespaces()
    with temporary_base() as base:
        (base / "cluster").mkdir()
        cluster = SshCluster(base / "cluster")
        try:
            env = BatchEnv(base, cluster)
            assert env.run("stoker", "daemon", "start", "--gpus", "none").returncode == 0
            yield env
        finally:
            stop_daemon(base)
            cluster.close()


@pytest.fixture(scope="module")
def shared_env() -> Iterator[BatchEnv]:
    """One for all tests of a file."""
    with open_env() as env:
        yield env


def appears(path: Path, text: str) -> str:
    """Wait until a file holds a text."""
    found: str = until(lambda: path.exists() and text in path.read_text() and path.read_text())
    return found
