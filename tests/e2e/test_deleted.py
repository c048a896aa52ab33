"""Deleted files of a running daemon: it continues, or reports what is lost and what to do."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, alive, kill, until
from stoker import places


def socket_file() -> Path:
    return Path(places.socket_path())


def second_daemon() -> "subprocess.Popen[bytes]":
    """Start another daemon of the same home."""
    command = [sys.executable, "-P", "-m", "stoker.daemon", "run", "--resources", "{gpu:4}"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def test_a_deleted_socket_is_created_again(box: DaemonFixture) -> None:
    pid = box.pid
    for _ in range(2):
        socket_file().unlink()
        until(box.answers)
        assert box.pid == pid
    assert box.end_of(box.submit("exit 3"))["result"] == 3


def test_a_command_sent_before_the_socket_is_back_reaches_the_same_daemon(
    box: DaemonFixture,
) -> None:
    pid = box.pid
    kill(pid, signal.SIGSTOP)
    socket_file().unlink()
    submitting = box.popen("submit", "exit 3")
    until(
        lambda: len(daemons(box)) > 1
    )  # the command has started a daemon, which waits for the first
    kill(pid, signal.SIGCONT)
    out, err = submitting.communicate(timeout=30)
    assert (submitting.returncode, err) == (0, b"")
    assert box.end_of(out.decode().strip())["result"] == 3
    assert box.pid == pid


def daemons(box: DaemonFixture) -> list[int]:
    """Return all daemon processes of this home."""
    pids = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and alive(int(entry)):
            try:
                words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                environ = Path(f"/proc/{entry}/environ").read_bytes()
            except OSError:
                continue
            if b"stoker.daemon" in words and os.fsencode(box.home) in environ:
                pids.append(int(entry))
    return pids


def test_a_daemon_without_a_socket_is_named_and_can_be_stopped(box: DaemonFixture) -> None:
    pid = box.pid
    kill(pid, signal.SIGSTOP)
    socket_file().unlink()
    done = box.stoker("daemon", "status")
    assert done.returncode == 4
    assert f"A daemon is running (pid {pid}) but does not answer at {socket_file()}" in done.stderr
    assert "`stoker daemon stop`" in done.stderr
    done = box.stoker("daemon", "stop", "--drain")
    assert (done.returncode, f"pid {pid}" in done.stderr) == (4, True)
    stopping = box.popen("daemon", "stop")
    until(lambda: b"SigPnd" in Path(f"/proc/{pid}/status").read_bytes() and pending(pid))
    kill(pid, signal.SIGCONT)
    _, err = stopping.communicate(timeout=30)
    assert stopping.returncode == 0, err
    assert f"stopped the daemon (pid {pid})" in err.decode()
    assert not alive(pid)


def pending(pid: int) -> bool:
    """Return whether a stopped process has a pending SIGTERM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask & 1 << signal.SIGTERM - 1 for mask in masks)


@pytest.mark.parametrize("what", ["logs", "exits", "scripts", "run", "socket directory", "all"])
def test_a_deleted_directory_is_created_again_and_the_next_job_runs(
    box: DaemonFixture, what: str
) -> None:
    running = box.submit("sleep 1000")
    box.becomes(running, "RUNNING")
    directories = {
        **{name: box.state / name for name in ("logs", "exits", "scripts")},
        "run": box.run_dir,
        "socket directory": socket_file().parent,
    }
    for name, path in directories.items():
        if what in (name, "all"):
            shutil.rmtree(path)
    script = box.script("job.sh", "#!/bin/sh\nexit 6\n")
    until(box.answers)
    assert box.end_of(box.submit(script))["result"] == 6
    box.client.cancel([running])
    assert box.end_of(running)["state"] == "CANCELLED"


def test_an_exit_is_recorded_though_its_directory_was_deleted_and_the_daemon_killed(
    box: DaemonFixture,
) -> None:
    os.mkfifo(box.user / "gate")
    job = box.submit("read line < gate; exit 5")
    box.becomes(job, "RUNNING")
    pid = box.pid_of(job)
    shutil.rmtree(box.run_dir)
    shutil.rmtree(box.state / "exits")
    until((box.state / "exits").exists)
    # These files show the next daemon that a supervisor may still have start messages.
    until(lambda: {int(name) for name in os.listdir(box.state / "exits")} >= set(box.supervisors))
    box.crash()
    (box.user / "gate").write_text("go\n")
    until(lambda: not alive(pid))
    box.up()
    assert box.end_of(job)["result"] == 5


# -- the journal --------------------------------------------------------------------------


def delete_home(box: DaemonFixture) -> None:
    """Rename a home, then delete it: the daemon would create files under its own name."""
    shutil.rmtree(box.home.rename(box.home.with_name("deleted")))


@pytest.mark.parametrize("what", ["journal", "log", "home"])
def test_a_deleted_journal_loses_nothing(box: DaemonFixture, what: str) -> None:
    os.mkfifo(box.user / "gate")
    running = box.submit("read line < gate; exit 5")
    box.becomes(running, "RUNNING")
    held = box.submit("--hold", "true")
    journal, pid = box.state / "journal.db", box.pid
    if what == "home":
        delete_home(box)
    else:
        Path(f"{journal}-wal" if what == "log" else journal).unlink()
    until(box.answers)
    code, stderr = box.refused("true")
    assert code == 4
    assert stderr.startswith(f"stoker: {journal} was deleted or moved while the daemon runs")
    assert f"was saved to {journal}.emergency" in stderr
    assert "stoker daemon restart" in stderr
    assert f"{journal}.emergency" in box.stoker("daemon", "status").stdout
    (box.user / "gate").write_text("go\n")
    assert box.end_of(running)["result"] == 5
    copy = Path(f"{journal}.emergency")
    until(lambda: copy.exists() and b"ProcessExited" in copy.read_bytes())
    assert box.pid == pid
    kill(pid)
    box.up()
    assert box.job(running)["result"] == 5
    assert box.states(held) == ["PENDING"]
    assert "was restored from its emergency copy" in box.stoker("daemon", "status").stdout
    assert int(box.submit("true")) == int(held) + 1


def test_after_a_restart_the_copy_of_the_journal_is_used(box: DaemonFixture) -> None:
    job = box.submit("--hold", "exit 3")
    delete_home(box)
    until(box.answers)
    done = box.stoker("daemon", "restart")
    assert done.returncode == 0, done.stderr
    box.client.release([job])
    assert box.end_of(job)["result"] == 3
    assert box.gpus().keys() == {"0", "1", "2", "3"}  # the declared resources were stored


# -- the lock -----------------------------------------------------------------------------


def test_a_deleted_lock_does_not_admit_a_second_daemon(box: DaemonFixture) -> None:
    lock, pid = box.state / "lock", box.pid
    lock.unlink()
    until(lambda: lock.exists() and lock.read_text() == f"{pid}\n")
    other = second_daemon()
    assert other.wait(30) == 0
    assert box.pid == pid


def test_of_two_daemons_on_one_state_the_first_one_stops(box: DaemonFixture) -> None:
    first = box.pid
    kill(first, signal.SIGSTOP)  # so that it does not notice
    (box.state / "lock").unlink()
    socket_file().unlink()
    other = second_daemon()
    try:
        until(box.answers)
        assert box.pid == other.pid
        kill(first, signal.SIGCONT)
        until(lambda: not alive(first))
        assert box.answers()  # it has not removed the socket of the other daemon
        assert box.end_of(box.submit("exit 3"))["result"] == 3
        assert "has taken over this state; this one stops" in box.log
    finally:
        other.terminate()
        other.wait(30)
