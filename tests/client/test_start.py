import fcntl
import os
from pathlib import Path

import pytest

from stoker import places
from stoker.client import autostart as start
from stoker.client.errors import DaemonUnreachable, StokerError


def pretend(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a shell script stand in for the daemon; $1 is the descriptor to report on."""
    monkeypatch.setattr(
        start, "daemon_command", lambda *args: ["/bin/sh", "-c", script, "sh", args[-1]]
    )


def test_ready_gives_the_pid(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "echo ready 4711 >/proc/self/fd/$1")
    assert start.start_daemon() == 4711


def test_an_error_is_passed_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "echo error 6 There is no GPU 9. >/proc/self/fd/$1")
    with pytest.raises(StokerError, match="There is no GPU 9") as caught:
        start.start_daemon()
    assert caught.value.exit_code == 6


def test_a_daemon_that_dies_is_quoted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "echo no such module; exit 1")
    with pytest.raises(DaemonUnreachable, match="no such module"):
        start.start_daemon()


def test_it_has_its_own_session_and_none_of_our_descriptors(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaked = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    report = home / "report"
    pretend(
        monkeypatch,
        f'readlink /proc/$$/fd/{leaked} >{report}; cut -d" " -f6 /proc/$$/stat >>{report}; '
        f"echo $$ >>{report}; readlink /proc/$$/fd/0 >>{report}; echo ready 1 >/proc/self/fd/$1",
    )
    try:
        start.start_daemon()
    finally:
        os.close(leaked)
    session, pid, stdin = report.read_text().split()
    assert session == pid
    assert stdin == "/dev/null"


def test_started_from_a_job_it_carries_nothing_of_that_job(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_JOB_ID", "5")
    monkeypatch.setenv("STOKER_TOKEN", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found = start.daemon_environment()
    assert found["STOKER_HOME"] == str(home)
    assert not {"STOKER_JOB_ID", "STOKER_TOKEN", "CUDA_VISIBLE_DEVICES"} & set(found)


def test_who_has_the_state_is_known_though_it_does_not_answer(home: Path) -> None:
    assert start.lock_holder() is None
    state = Path(places.secure_dir(places.state_dir()))
    (state / "lock").write_text("4711\n")
    assert start.lock_holder() is None  # left by a daemon that crashed
    with (state / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert start.lock_holder() == 4711
    assert start.lock_holder() is None
