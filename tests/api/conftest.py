"""Fixtures of the Python API: one real daemon for a whole file of tests."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import end_processes_of, stop_daemon
from e2e.daemon_fixture import DaemonFixture
from stoker.api import Client, Executor

FOREIGN = ("STOKER_", "XDG_", "SLURM_", "SBATCH_", "CUDA_")


@pytest.fixture(scope="module")
def box() -> Iterator[DaemonFixture]:
    """A home whose daemon has four declared GPUs and eight cores, for all tests of a file."""
    base = Path(tempfile.mkdtemp(prefix="sk-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(FOREIGN)]:
            patch.delenv(name)
        for name in ("home", "user", "runtime"):
            (base / name).mkdir(mode=0o700)
        patch.setenv("STOKER_HOME", str(base / "home"))
        patch.setenv("HOME", str(base / "user"))
        patch.setenv("XDG_RUNTIME_DIR", str(base / "runtime"))
        patch.setenv("SHELL", "/bin/sh")
        patch.chdir(base / "user")

        def run(*args: object) -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                [sys.executable, "-m", "stoker", *map(str, args)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )

        made = DaemonFixture(base / "home", run)
        left = made.run_dir
        try:
            yield made.start()
        finally:
            stop_daemon(base)
            end_processes_of(base)
            shutil.rmtree(base, ignore_errors=True)
            shutil.rmtree(left, ignore_errors=True)


@pytest.fixture(scope="module")
def client(box: DaemonFixture) -> Client:
    """A client of that daemon."""
    return Client()


@pytest.fixture
def executor(client: Client) -> Iterator[Executor]:
    """An executor; what it left unfinished is cancelled, so that the next test has the machine."""
    made = Executor(client=client)
    yield made
    made.shutdown(wait=False)
    for future in list(made._unfinished):
        future.cancel()
