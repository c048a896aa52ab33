"""A real daemon whose planner, handlers or executor raise: it serves, records and recovers."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, kill, until
from stoker.client.errors import StokerError

PATCHED = """
import os, sys
import stoker.core.planner.cycle, stoker.daemon.handlers.queries, stoker.executors.local.executor

def failing(module, name, flag):
    real = getattr(module, name)
    def function(*args, **more):
        if os.path.exists(flag):
            raise KeyError(f"injected into {name}")
        return real(*args, **more)
    setattr(module, name, function)

flags = sys.argv[1]
failing(stoker.core.planner.cycle, "plan", f"{flags}/plan")
failing(stoker.daemon.handlers.queries, "gpu_view", f"{flags}/handler")
failing(stoker.executors.local.executor.LocalExecutor, "start", f"{flags}/start")
failing(stoker.executors.local.supervisor_pool.SupervisorPool, "_receive", f"{flags}/hear")
from stoker.daemon.__main__ import main
sys.exit(main(["run", "--resources", "{gpu:2}"]))
"""


@pytest.fixture
def flags(idle: DaemonFixture) -> Path:
    """A directory: a function of the daemon raises while a file of its name exists."""
    path = idle.home.parent / "flags"
    path.mkdir()
    return path


@pytest.fixture
def patched(idle: DaemonFixture, flags: Path) -> Iterator[Callable[[], None]]:
    """Start a daemon into which errors can be injected."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        log = (idle.home.parent / "stderr").open("ab")
        command = [sys.executable, "-c", PATCHED, str(flags)]
        with log:
            started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log))
        until(lambda: idle.lock_pid == started[-1].pid and idle.answers())

    yield start
    for flag in flags.iterdir():
        flag.unlink()
    idle.stoker("daemon", "stop", "--cancel")
    for process in started:
        process.wait(30)


def waits_for(path: Path, code: int = 0) -> str:
    return f"echo ready; until [ -e {path} ]; do sleep 0.05; done; exit {code}"


def test_an_error_in_the_planner_affects_no_request_exit_or_recovery(
    idle: DaemonFixture, flags: Path, patched: Callable[[], None]
) -> None:
    patched()
    go = idle.user / "go"
    running = idle.submit("--gpus", "1", waits_for(go, 5))
    idle.says(running, "ready")
    pid = idle.pid
    (flags / "plan").touch()
    waiting = idle.submit("--gpus", "1", "true")
    assert idle.pid == pid
    assert idle.job(waiting)["state"] == "PENDING"
    why = idle.stoker("why", waiting).stdout
    assert "PlanningFailed" in why
    assert "injected into plan" in why
    status = idle.stoker("daemon", "status").stdout
    assert "planning failed" in status
    assert "next try in" in status
    assert any("planning failed" in text for text in idle.client.jobs()["warnings"])
    # A daemon that begins with such a planner takes running jobs over, and records their ends.
    kill(pid)
    patched()
    assert idle.job(running)["state"] == "RUNNING"
    go.touch()
    assert idle.end_of(running)["result"] == 5
    assert idle.job(waiting)["state"] == "PENDING"
    (flags / "plan").unlink()
    assert idle.end_of(waiting, 90)["state"] == "COMPLETED"
    assert "planning failed" in idle.stoker("daemon", "status").stdout
    assert "next try in" not in idle.stoker("daemon", "status").stdout
    written = (idle.home.parent / "stderr").read_text()
    assert "Traceback" in written
    assert "node " in written


def test_an_error_in_a_handler_rejects_only_that_request(
    idle: DaemonFixture, flags: Path, patched: Callable[[], None]
) -> None:
    patched()
    (flags / "handler").touch()
    with pytest.raises(StokerError, match="injected into gpu_view"):
        idle.client.gpus()
    assert idle.result("true")["state"] == "COMPLETED"
    assert "request list_gpus failed once" in idle.stoker("daemon", "status").stdout
    (flags / "handler").unlink()
    assert len(idle.client.gpus()["gpus"]) == 2


def test_a_start_that_raises_is_cancelled_and_retried(
    idle: DaemonFixture, flags: Path, patched: Callable[[], None]
) -> None:
    patched()
    (flags / "start").touch()
    job = idle.submit("--gpus", "1", "echo attempt $STOKER_ATTEMPT")
    until(lambda: "instruction StartProcess" in str(idle.client.daemon()["faults"]))
    until(lambda: idle.job(job)["state"] == "PENDING")
    (flags / "start").unlink()
    assert idle.end_of(job)["state"] == "COMPLETED"


def test_a_reader_that_raises_is_paused_and_reads_the_rest_later(
    idle: DaemonFixture, flags: Path, patched: Callable[[], None]
) -> None:
    patched()
    (flags / "hear").touch()
    job = idle.submit("exit 3")
    until(lambda: "SupervisorPool._watch" in str(idle.client.daemon()["faults"]))
    (flags / "hear").unlink()
    assert idle.end_of(job)["result"] == 3
