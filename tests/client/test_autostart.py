import fcntl
import os
from pathlib import Path

import pytest

from stoker import places
from stoker.client import autostart
from stoker.client.errors import DaemonUnreachable, StokerError


def pretend(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Replace the daemon by a shell script; $1 is its ready descriptor."""
    monkeypatch.setattr(
        autostart, "daemon_command", lambda *args: ["/bin/sh", "-c", script, "sh", args[-1]]
    )


def test_ready_gives_the_pid(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "echo ready 4711 >/proc/self/fd/$1")
    assert autostart.start_daemon() == 4711


def test_an_error_is_passed_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "echo error 6 There is no GPU 9. >/proc/self/fd/$1")
    with pytest.raises(StokerError, match="There is no GPU 9") as caught:
        autostart.start_daemon()
    assert caught.value.exit_code == 6


def test_the_last_log_line_of_a_daemon_that_ends_is_quoted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, "echo no such module; exit 1")
    with pytest.raises(DaemonUnreachable, match="no such module"):
        autostart.start_daemon()


def test_the_daemon_has_its_own_session_and_none_of_our_descriptors(
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
        autostart.start_daemon()
    finally:
        os.close(leaked)
    session, pid, stdin = report.read_text().split()
    assert session == pid
    assert stdin == "/dev/null"


def test_a_daemon_started_inside_a_job_has_nothing_of_its_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_JOB_ID", "5")
    monkeypatch.setenv("STOKER_TOKEN", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    environment = autostart.daemon_environment()
    assert environment["STOKER_HOME"] == str(home)
    assert not {"STOKER_JOB_ID", "STOKER_TOKEN", "CUDA_VISIBLE_DEVICES"} & set(environment)


def test_the_holder_of_the_state_lock_is_known_without_a_reply(home: Path) -> None:
    assert autostart.lock_holder() is None
    state = Path(places.secure_dir(places.state_dir()))
    (state / "lock").write_text("4711\n")
    assert autostart.lock_holder() is None  # left by a daemon that crashed
    with (state / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert autostart.lock_holder() == 4711
    assert autostart.lock_holder() is None
