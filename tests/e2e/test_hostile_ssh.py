"""A real daemon and a node that attacks it: the daemon continues and reports the attack."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fakes.hostile_ssh
from e2e.daemon_fixture import DaemonFixture, until

PROGRAM = fakes.hostile_ssh.__file__
LIMIT = 60 << 20
"""Bytes that a daemon may grow by."""


class Target:
    """A daemon with a hostile ssh."""

    def __init__(self, box: DaemonFixture, directory: Path) -> None:
        self.box, self.directory = box, directory

    def attack(self, name: str, *options: str) -> None:
        """Add a node with this attack."""
        (self.directory / "attack").write_text(name)
        self.pid = self.box.pid
        self.memory = self.resident()
        done = self.box.stoker("nodes", "add", "evil", "me@192.0.2.1", *options)
        assert done.returncode == 0 or "cannot be reached yet" in done.stderr, done.stderr

    def resident(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def node(self) -> dict[str, Any]:
        nodes = self.box.client.nodes()["nodes"]
        return next(node for node in nodes if node["name"] == "evil")

    def reason(self) -> str:
        """Wait until the node is unreachable; return the reason."""
        why: str = until(lambda: (node := self.node())["state"] == "unreachable" and node["why"])
        return why

    def check(self) -> None:
        """Assert that the daemon answers at once, runs jobs, and has not grown."""
        for _ in range(5):
            began = time.monotonic()
            assert self.box.pid == self.pid
            assert time.monotonic() - began < 2
        assert self.box.result("-w", self.box.client.daemon()["node"], "true")["result"] == 0
        assert self.resident() - self.memory < LIMIT
        assert "internal error" not in self.box.log
        assert "Traceback" not in self.box.log


@pytest.fixture
def target(
    idle: DaemonFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Target]:
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAM} {tmp_path} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    idle.start("{cpu:2}")
    yield Target(idle, tmp_path)
    idle.stoker("nodes", "remove", "evil", "--force")


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        ("noise", "far more data than requested"),
        ("a negative length", "not expected"),
        ("half an announcement", "1 words"),
        ("a terabyte", "not expected"),
        ("a flood of news", "far more data than requested"),
        ("a million GPUs", "a node report of more than"),
        ("silence", "closed the connection without a message"),
    ],
)
def test_an_attack_is_survived_and_explained(target: Target, attack: str, why: str) -> None:
    target.attack(attack)
    assert why in target.reason()
    shown = target.box.stoker("nodes").stdout
    assert "unreachable" in shown
    assert why in " ".join(shown.split())
    target.check()


def test_an_exit_code_out_of_range_leaves_the_job_running(target: Target) -> None:
    target.attack("a code of a thousand digits", "--shared")
    job = target.box.submit("-w", "evil", "true")
    assert "where a number up to 255 was expected" in target.reason()
    assert target.box.job(job)["state"] == "RUNNING"
    target.check()


def test_an_archive_cannot_write_outside(target: Target) -> None:
    target.attack("an escaping archive")
    job = target.box.submit("-w", "evil", "--no-send", "true")
    end = target.box.end_of(job)
    assert end["result"] == 0
    assert "would be outside the directory" in end["termination_note"]
    assert not list(target.box.user.parent.rglob("*escaped*"))
    assert not Path("/tmp/through").exists()
    assert sorted(path.name for path in target.box.user.iterdir()) == []
    target.check()


def test_escapes_in_a_reason_are_not_stored(target: Target) -> None:
    target.attack("escapes", "--shared")
    job = target.box.submit("-w", "evil", "true")
    end = target.box.end_of(job)
    assert end["state"] == "FAILED"
    assert end["cause"].isprintable()
    assert len(end["cause"]) < 2100
    target.check()


def test_an_endless_transfer_is_ended(target: Target) -> None:
    (target.box.user / "file").write_text("x")
    target.attack("a transfer without end")
    job = target.box.submit("-w", "evil", "true")
    end = target.box.end_of(job)
    assert end["state"] == "FAILED"
    assert "sent more than 65536 bytes" in end["cause"]
    target.check()
