"""The supervisor alone: what it starts, reports and records."""

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.executors.linux.process_tree import mark_of
from stoker.executors.local.claims import ExitLog, read_claim, revoke_empty_claim
from stoker.executors.local.supervisor import (
    FramedSocket,
    Supervisor,
    frame,
    spawn_supervisor,
    start_ticks,
)
from stoker.executors.local.supervisor_client import SupervisorClient


class SupervisorProcess:
    """A supervisor process, its directories, and the daemon's end of its socket."""

    def __init__(self, base: Path) -> None:
        self.base = base
        for name in ("exits", "run", "logs"):
            (base / name).mkdir()
        self.pid, self.wire = spawn_supervisor(str(base / "exits"))
        self.wire.sock.settimeout(20)
        self.wire.send(("environment", "e", {"PATH": os.environ["PATH"]}))
        self.reports: list[tuple[Any, ...]] = []

    def order(self, key: str, *argv: str, **more: Any) -> tuple[Any, ...]:
        return (
            "start", key, str(self.base / "run" / key), argv, more.get("directory", "/"),
            0o022, more.get("environment", "e"), more.get("extra", {}),
            str(self.base / "logs" / key), None, more.get("locks", []), None,
            more.get("device_group"), mark_of(f"test.{key}"), b'["vm",[]]',
        )  # fmt: skip

    def start(self, key: str, *argv: str, **more: Any) -> None:
        self.wire.send(self.order(key, *argv, **more))

    def wait_for(self, kind: str, count: int = 1) -> list[tuple[Any, ...]]:
        """Wait for this number of reports of a kind; return them."""
        while sum(report[0] == kind for report in self.reports) < count:
            batches = self.wire.receive()
            assert batches is not None, "the supervisor has ended"
            self.reports += [report for batch in batches for report in batch]
        return [report for report in self.reports if report[0] == kind]

    def claim(self, key: str) -> Any:
        return read_claim(str(self.base / "run" / key))


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[SupervisorProcess]:
    supervisor = SupervisorProcess(tmp_path)
    yield supervisor
    supervisor.wire.sock.close()
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        for _ in range(200):
            if os.waitpid(supervisor.pid, os.WNOHANG)[0]:
                return
            time.sleep(0.02)
        os.kill(supervisor.pid, signal.SIGKILL)
        os.waitpid(supervisor.pid, 0)


@pytest.fixture
def in_process_supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor in this process, so that a step of it can be interrupted."""
    sockets = socket.socketpair()
    directory, umask = os.getcwd(), os.umask(0)
    made = Supervisor(FramedSocket(sockets[0]), str(tmp_path))
    made.environments["e"] = {"PATH": os.environ["PATH"]}
    yield made
    os.umask(umask)
    os.chdir(directory)
    for fd in (made.exits, made.null):
        os.close(fd)
    for end in sockets:
        end.close()


def test_cpu_time_and_memory_are_reported_and_recorded(supervisor: SupervisorProcess) -> None:
    code = "x = bytearray(60 << 20); import time\nwhile time.process_time() < 0.3: pass"
    supervisor.start("1.0", "sh", "-c", f"{sys.executable} -c '{code}'; exit 3")
    *_, seconds, peak = supervisor.wait_for("exited")[0]
    assert 0.3 <= seconds < 5
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    assert 60 <= peak < 200 + own  # a process begins with the peak of what it was forked from
    assert supervisor.claim("1.0").used == (pytest.approx(seconds, abs=0.001), peak)


def test_a_job_is_claimed_and_started_and_its_exit_is_recorded_twice(
    supervisor: SupervisorProcess,
) -> None:
    supervisor.start("1.0", "sh", "-c", "echo hello; exit 3")
    ((_, key, pid, *_),) = supervisor.wait_for("started")
    ((_, _, status, *_),) = supervisor.wait_for("exited")
    assert (key, os.waitstatus_to_exitcode(status)) == ("1.0", 3)
    claim = supervisor.claim("1.0")
    assert (claim.pid, claim.status) == (pid, status)
    assert ExitLog(str(supervisor.base / "exits")).read()["1.0"][0] == status
    assert (supervisor.base / "logs" / "1.0").read_text() == "hello\n"


def test_an_attempt_that_is_claimed_already_is_not_started(supervisor: SupervisorProcess) -> None:
    (supervisor.base / "run" / "1.0").write_text("taken\n")
    supervisor.start("1.0", "touch", str(supervisor.base / "ran"))
    supervisor.start("2.0", "true")
    assert supervisor.wait_for("late") == [("late", "1.0")]
    supervisor.wait_for("exited")
    assert not (supervisor.base / "ran").exists()


def test_the_first_line_of_a_claim_is_its_supervisors(supervisor: SupervisorProcess) -> None:
    supervisor.start("1.0", "true")
    supervisor.wait_for("exited")
    first = (supervisor.base / "run" / "1.0").read_text().splitlines()[0]
    assert first == f'keeper {supervisor.pid} {start_ticks(supervisor.pid)} ["vm",[]]'
    assert supervisor.claim("1.0").note == b'["vm",[]]'


def test_a_claim_that_a_daemon_wrote_to_first_starts_nothing(
    in_process_supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor was stopped between creating the file and writing to it."""
    ran, claim, real = tmp_path / "ran", tmp_path / "1.0", os.write

    def stopped(fd: int, data: bytes) -> int:
        if data.startswith(b"keeper"):
            assert revoke_empty_claim(str(claim))
        return real(fd, data)

    monkeypatch.setattr(os, "write", stopped)
    in_process_supervisor._start(
        "1.0", str(claim), ("touch", str(ran)), "/", 0o022, "e", {}, "/dev/null", None, [],
        None, None, 1, b"",
    )  # fmt: skip
    assert in_process_supervisor.reports == [("late", "1.0")]
    assert not ran.exists()
    claim_file = read_claim(str(claim))
    assert claim_file is not None
    assert claim_file.revoked


def test_an_end_is_on_record_before_the_process_is_reaped(
    in_process_supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any moment, a supervisor leaves a zombie or a record, if not both."""
    claim, log = str(tmp_path / "5.0"), str(tmp_path / "log")
    in_process_supervisor._start(
        "5.0", claim, ("false",), "/", 0o022, "e", {}, log, None, [], None, None, 1, b""
    )
    (pid,) = in_process_supervisor.children
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    writes: list[str] = []
    real = os.write

    def write(fd: int, data: bytes) -> int:
        writes.append(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    in_process_supervisor._reap()
    assert writes == ["Z", "Z"]
    assert not os.path.exists(f"/proc/{pid}")
    recorded = read_claim(claim)
    assert recorded is not None
    assert recorded.status == 256
    assert ExitLog(str(tmp_path)).read()["5.0"][0] == 256


@pytest.mark.parametrize(
    ("command", "code"), [("exit 7", 7), ("kill -9 $$", -9), ("kill -SEGV $$", -11)]
)
def test_the_recorded_status_is_that_of_the_process(
    supervisor: SupervisorProcess, command: str, code: int
) -> None:
    supervisor.start("1.0", "sh", "-c", command)
    supervisor.wait_for("exited")
    assert os.waitstatus_to_exitcode(supervisor.claim("1.0").status) == code


def test_processes_of_a_job_are_marked_and_the_supervisor_is_not(
    supervisor: SupervisorProcess,
) -> None:
    command = (
        "grep 'file locks' /proc/self/limits; env -i setsid grep 'file locks' /proc/self/limits"
    )
    supervisor.start("1.0", "sh", "-c", command)
    supervisor.wait_for("exited")
    limits = [
        line.split()[3] for line in (supervisor.base / "logs" / "1.0").read_text().splitlines()
    ]
    assert limits == [str(mark_of("test.1.0"))] * 2
    assert str(mark_of("test.1.0")) not in Path(f"/proc/{supervisor.pid}/limits").read_text()


@pytest.mark.parametrize(
    ("argv", "more", "why"),
    [
        (("no-such-thing",), {}, "no-such-thing: not found"),
        (("/etc/passwd",), {}, "/etc/passwd: permission denied"),
        (("true",), {"directory": "/no/such"}, "the directory /no/such does not exist"),
        (("true", "a\0b"), {}, "cannot start: embedded null byte"),
        (("true",), {"environment": "unknown"}, "cannot start: 'unknown'"),
        (("true",), {"extra": {"A=B": "x"}}, "cannot start: illegal environment variable name"),
    ],
)
def test_a_failed_start_is_explained_and_the_supervisor_continues(
    supervisor: SupervisorProcess, argv: tuple[str, ...], more: dict[str, Any], why: str
) -> None:
    supervisor.start("1.0", *argv, **more)
    assert supervisor.wait_for("failed") == [("failed", "1.0", why)]
    assert supervisor.claim("1.0").failed == why
    supervisor.start("2.0", "true")
    assert supervisor.wait_for("exited")[0][1] == "2.0"


def test_an_exit_report_says_whether_the_job_left_processes_behind(
    supervisor: SupervisorProcess,
) -> None:
    supervisor.start("1.0", "sh", "-c", "exit 0")
    assert supervisor.wait_for("exited")[0][5] is False
    supervisor.start("2.0", "sh", "-c", "setsid sleep 30 & echo $!")
    assert supervisor.wait_for("exited", 2)[1][5] is True
    left = int((supervisor.base / "logs" / "2.0").read_text())
    os.kill(left, signal.SIGKILL)


def test_it_outlives_the_daemon_until_its_last_job_has_ended(supervisor: SupervisorProcess) -> None:
    supervisor.start(
        "1.0", "sh", "-c", f"until [ -e {supervisor.base}/go ]; do sleep 0.02; done; exit 6"
    )
    supervisor.wait_for("started")
    supervisor.wire.sock.close()
    time.sleep(0.1)
    assert os.waitpid(supervisor.pid, os.WNOHANG) == (0, 0)
    (supervisor.base / "go").touch()
    assert os.waitpid(supervisor.pid, 0) == (supervisor.pid, 0)
    assert os.waitstatus_to_exitcode(supervisor.claim("1.0").status) == 6


def test_a_supervisor_without_jobs_leaves_no_exit_log(supervisor: SupervisorProcess) -> None:
    supervisor.wire.sock.close()
    assert os.waitpid(supervisor.pid, 0) == (supervisor.pid, 0)
    assert os.listdir(supervisor.base / "exits") == []


def test_it_never_waits_for_a_daemon_that_does_not_read(supervisor: SupervisorProcess) -> None:
    # More reports than the socket holds, all sent before the first is read.
    orders = 3000
    for number in range(orders):
        supervisor.start(f"{number}.0", "no-such-thing-with-a-rather-long-name-" + "x" * 100)
    assert len(supervisor.wait_for("failed", orders)) == orders


def test_terminal_signals_do_not_end_it(supervisor: SupervisorProcess) -> None:
    supervisor.start("0.0", "true")
    supervisor.wait_for("exited")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(supervisor.pid, number)
    supervisor.start("1.0", "true")
    supervisor.wait_for("exited", 2)
    assert os.getsid(supervisor.pid) == supervisor.pid
    links = [os.readlink(f"/proc/{supervisor.pid}/fd/{fd}") for fd in (0, 1, 2)]
    assert links == ["/dev/null", "/dev/null", str(supervisor.base / "daemon.log")]


def test_messages_arrive_complete_in_any_portions() -> None:
    ours, theirs = socket.socketpair()
    wire = FramedSocket(theirs)
    data = frame(("a", 1, {"x": "y" * 1000})) + frame(("b",)) + frame((None,))
    received: list[tuple[Any, ...]] = []
    for start in range(0, len(data), 7):
        ours.send(data[start : start + 7])
        received += wire.receive() or []
    assert received == [("a", 1, {"x": "y" * 1000}), ("b",), (None,)]
    ours.close()
    assert wire.receive() is None
    theirs.close()


@pytest.mark.parametrize("trick", ["gone", "fifo", "link", "locked"])
def test_a_gpu_lock_that_was_tampered_with_is_not_waited_for(
    supervisor: SupervisorProcess, trick: str
) -> None:
    path = supervisor.base / "GPU-a.1"
    if trick == "fifo":
        os.mkfifo(path)
    elif trick == "link":
        path.symlink_to("/etc/passwd")
    elif trick == "locked":
        path.touch()
        fd = os.open(path, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
    supervisor.start("1.0", "true", locks=[str(path)])
    if trick == "fifo":  # it can be locked, but that has no effect
        supervisor.wait_for("exited")
    else:
        ((_, key, why),) = supervisor.wait_for("busy")
        assert key == "1.0"
        assert "the GPU is not locked" in why
        assert supervisor.claim("1.0").withdrawn, "no other daemon takes it for started"
    supervisor.start("2.0", "true")
    supervisor.wait_for("exited")


def test_a_supervisor_that_cannot_write_its_exit_log_still_starts_jobs(tmp_path: Path) -> None:
    supervisor = SupervisorProcess(tmp_path)
    supervisor.wire.sock.close()
    os.waitpid(supervisor.pid, 0)
    (tmp_path / "exits" / "later").write_text("in the way")
    supervisor.pid, supervisor.wire = spawn_supervisor(str(tmp_path / "exits" / "later"))
    supervisor.wire.sock.settimeout(20)
    supervisor.wire.send(("environment", "e", {"PATH": os.environ["PATH"]}))
    supervisor.start("1.0", "sh", "-c", "exit 3")
    supervisor.wait_for("exited")
    assert os.waitstatus_to_exitcode(supervisor.claim("1.0").status) == 3
    (tmp_path / "exits" / "later").unlink()
    supervisor.start("2.0", "sh", "-c", "exit 4")
    supervisor.wait_for("exited", 2)
    assert "2.0" in ExitLog(str(tmp_path / "exits" / "later")).read()
    supervisor.wire.sock.close()
    os.waitpid(supervisor.pid, 0)


def test_an_exception_in_it_is_written_to_the_daemons_log(supervisor: SupervisorProcess) -> None:
    supervisor.wire.send(("start", "too few words"))
    with pytest.raises(AssertionError, match="has ended"):
        supervisor.wait_for("started")
    assert "TypeError" in (supervisor.base / "daemon.log").read_text()


def test_it_is_in_the_device_group_of_a_job_only_while_it_starts_it(
    supervisor: SupervisorProcess,
) -> None:
    group, home = supervisor.base / "user-1" / "1.0", supervisor.base / "no-gpus"
    supervisor.start("1.0", "true", device_group=str(group))
    [(_, _, why)] = supervisor.wait_for("busy")
    assert "the device group cannot be joined" in why
    group.mkdir(parents=True)
    (group / "cgroup.procs").touch()
    supervisor.start("1.1", "true", device_group=str(group))
    supervisor.wait_for("started")
    supervisor.reports.clear()
    supervisor.start("1.2", "true")  # it could not leave the group: nothing else is started in it
    supervisor.wait_for("busy")
    home.mkdir()
    (home / "cgroup.procs").touch()
    supervisor.start("1.3", "true")
    supervisor.wait_for("started")
    assert [(each / "cgroup.procs").read_text() for each in (group, home)] == ["0", "0"]


def test_a_stopped_supervisor_is_not_waited_for_and_gets_all_messages_later(
    supervisor: SupervisorProcess,
) -> None:
    link = SupervisorClient(supervisor.pid, supervisor.wire)
    supervisor.wire.sock.settimeout(None)  # as in the daemon
    os.kill(supervisor.pid, signal.SIGSTOP)
    began = time.monotonic()
    for number in range(50):
        link.send("environment", f"e{number}", {"LONG": "x" * 20_000})
    link.send(*supervisor.order("1.0", "sh", "-c", "exit ${#LONG}", environment="e49"))
    assert time.monotonic() - began < 5
    assert link.flush(), "more than a socket holds"
    os.kill(supervisor.pid, signal.SIGCONT)
    for _ in range(1000):
        if not link.flush():
            break
        time.sleep(0.01)
    ((_, _, status, *_),) = supervisor.wait_for("exited")
    assert os.waitstatus_to_exitcode(status) == 20_000 % 256


def test_nothing_is_sent_to_a_supervisor_that_has_ended(supervisor: SupervisorProcess) -> None:
    link = SupervisorClient(supervisor.pid, supervisor.wire)
    os.kill(supervisor.pid, signal.SIGKILL)
    os.waitpid(supervisor.pid, 0)
    for _ in range(3):
        link.send("forget", "e")
    assert not link.flush()


def test_a_deleted_exit_log_is_created_again(supervisor: SupervisorProcess) -> None:
    shutil.rmtree(supervisor.base / "exits")
    supervisor.start("1.0", "sh", "-c", "exit 3")
    supervisor.wait_for("exited")
    assert ExitLog(str(supervisor.base / "exits")).read()["1.0"][0] == 3 << 8


def test_a_start_without_a_run_directory_is_postponed(supervisor: SupervisorProcess) -> None:
    shutil.rmtree(supervisor.base / "run")
    supervisor.start("1.0", "true")
    [(_, key, why)] = supervisor.wait_for("busy")
    assert key == "1.0"
    assert "No such file or directory" in why
    (supervisor.base / "run").mkdir()
    supervisor.start("1.1", "true")
    supervisor.wait_for("exited")
