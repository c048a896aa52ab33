"""Fixtures of system mode: an installation for all, real users, a running gate. Needs root.

A test gets temporary paths below /var/tmp; the users are those of the test process, and whatever
still runs as one of them is killed after each test.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import ON_CI, require
from multiuser import installation, users
from multiuser.gate_process import GateProcess, device_root
from multiuser.installation import Installation
from multiuser.system_daemon import SystemDaemon
from multiuser.users import User


@dataclass(frozen=True)
class Machine:
    """What the tests of one process share."""

    directory: Path
    """Belongs to root; every user may enter and read it."""
    installation: Installation
    ana: User
    ben: User
    cleo: User
    daemon: User
    """In the place of the user `stoker`."""

    @property
    def people(self) -> tuple[User, User, User]:
        """Return the users that may run jobs."""
        return self.ana, self.ben, self.cleo


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """Real users and an installation that all of them can run."""
    reason = "needs root" if os.geteuid() != 0 else None
    if reason is None and installation.interpreter_for_all() is None:
        reason = "needs an interpreter of this version that every user may execute"
    if reason is not None:
        (pytest.fail if ON_CI else pytest.skip)(reason)
    require("useradd")
    users.remove_leftovers()
    directory = Path(tempfile.mkdtemp(prefix="sk-", dir="/var/tmp"))
    directory.chmod(0o755)
    homes = directory / "home"
    homes.mkdir()
    homes.chmod(0o755)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)

        def add(word: str, *options: str) -> User:
            stack.callback(users.remove_user, users.name_of(word))
            return users.add_user(word, homes, *options)

        yield Machine(
            directory,
            Installation(directory / "venv"),
            *[add(word) for word in ("ana", "ben", "cleo")],
            add("stoker", "--system", "--shell", "/usr/sbin/nologin"),
        )


@pytest.fixture
def gate_dir(machine: Machine) -> Iterator[Path]:
    """A directory of root for the gate and the system daemon of one test."""
    directory = Path(tempfile.mkdtemp(prefix="t", dir=machine.directory))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        for user in (*machine.people, machine.daemon):
            users.end_processes(user.uid)
        root = Path(device_root(directory) or directory)
        for group in (*root.glob("user-*/*/"), *root.glob("user-*/"), *root.glob("no-gpus/")):
            group.rmdir()
        if root != directory and root.exists():
            root.rmdir()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def idle_gate(machine: Machine, gate_dir: Path) -> Iterator[GateProcess]:
    """A gate that is configured and not started; ended after the test."""
    gate = GateProcess(gate_dir, machine.installation, machine.daemon)
    try:
        yield gate
    finally:
        gate.close()


@pytest.fixture
def gate(idle_gate: GateProcess) -> GateProcess:
    """A running gate."""
    return idle_gate.start()


@pytest.fixture
def system(gate: GateProcess) -> Iterator[SystemDaemon]:
    """A running gate and a running system daemon without GPUs."""
    daemon = SystemDaemon(gate)
    try:
        yield daemon.start()
    finally:
        daemon.close()
