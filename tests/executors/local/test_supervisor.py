"""The keeper alone: what it starts, what it reports, what it writes down."""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
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


class Kept:
    """A keeper and its places."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("exits", "run", "logs"):
            (place / name).mkdir()
        self.pid, self.wire = spawn_supervisor(str(place / "exits"))
        self.wire.sock.settimeout(20)
        self.wire.send(("environment", "e", {"PATH": os.environ["PATH"]}))
        self.reports: list[tuple[Any, ...]] = []

    def order(self, key: str, *argv: str, **more: Any) -> tuple[Any, ...]:
        return (
            "start", key, str(self.place / "run" / key), argv, more.get("directory", "/"),
            0o022, more.get("environment", "e"), more.get("extra", {}),
            str(self.place / "logs" / key), None, more.get("locks", []), None,
            mark_of(f"test.{key}"), b'["vm",[]]',
        )  # fmt: skip

    def start(self, key: str, *argv: str, **more: Any) -> None:
        self.wire.send(self.order(key, *argv, **more))

    def hears(self, what: str, count: int = 1) -> list[tuple[Any, ...]]:
        """Wait for so many reports of a kind."""
        while sum(report[0] == what for report in self.reports) < count:
            batches = self.wire.receive()
            assert batches is not None, "the keeper is gone"
            self.reports += [report for batch in batches for report in batch]
        return [report for report in self.reports if report[0] == what]

    def claim(self, key: str) -> Any:
        return read_claim(str(self.place / "run" / key))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    keeper = Kept(tmp_path)
    yield keeper
    keeper.wire.sock.close()
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        for _ in range(200):
            if os.waitpid(keeper.pid, os.WNOHANG)[0]:
                return
            time.sleep(0.02)
        os.kill(keeper.pid, signal.SIGKILL)
        os.waitpid(keeper.pid, 0)


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Supervisor]:
    """A keeper in this process, so that a step of it can be interrupted."""
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


def test_a_job_is_claimed_started_and_its_end_written_down_twice(kept: Kept) -> None:
    kept.start("1.0", "sh", "-c", "echo hello; exit 3")
    ((_, key, pid, *_),) = kept.hears("started")
    ((_, _, status, _, _, _),) = kept.hears("exited")
    assert (key, os.waitstatus_to_exitcode(status)) == ("1.0", 3)
    claim = kept.claim("1.0")
    assert (claim.pid, claim.status) == (pid, status)
    assert ExitLog(str(kept.place / "exits")).read()["1.0"][0] == status
    assert (kept.place / "logs" / "1.0").read_text() == "hello\n"


def test_an_attempt_that_is_claimed_already_is_not_started(kept: Kept) -> None:
    (kept.place / "run" / "1.0").write_text("taken\n")
    kept.start("1.0", "touch", str(kept.place / "ran"))
    kept.start("2.0", "true")
    assert kept.hears("late") == [("late", "1.0")]
    kept.hears("exited")
    assert not (kept.place / "ran").exists()


def test_the_first_line_of_a_claim_is_its_supervisors(kept: Kept) -> None:
    kept.start("1.0", "true")
    kept.hears("exited")
    first = (kept.place / "run" / "1.0").read_text().splitlines()[0]
    assert first == f'keeper {kept.pid} {start_ticks(kept.pid)} ["vm",[]]'
    assert kept.claim("1.0").note == b'["vm",[]]'


def test_a_claim_that_a_daemon_wrote_to_first_starts_nothing(
    keeper: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor was stopped between creating the file and writing to it."""
    ran, claim, real = tmp_path / "ran", tmp_path / "1.0", os.write

    def stopped(fd: int, data: bytes) -> int:
        if data.startswith(b"keeper"):
            assert revoke_empty_claim(str(claim))
        return real(fd, data)

    monkeypatch.setattr(os, "write", stopped)
    keeper._start(
        "1.0", str(claim), ("touch", str(ran)), "/", 0o022, "e", {}, "/dev/null", None, [],
        None, 1, b"",
    )  # fmt: skip
    assert keeper.reports == [("late", "1.0")]
    assert not ran.exists()
    found = read_claim(str(claim))
    assert found is not None
    assert found.revoked


def test_an_end_is_on_record_before_the_process_is_reaped(
    keeper: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any moment, a supervisor leaves a zombie or a record, if not both."""
    claim, log = str(tmp_path / "5.0"), str(tmp_path / "log")
    keeper._start("5.0", claim, ("false",), "/", 0o022, "e", {}, log, None, [], None, 1, b"")
    (pid,) = keeper.children
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    writes: list[str] = []
    real = os.write

    def write(fd: int, data: bytes) -> int:
        writes.append(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    keeper._reap()
    assert writes == ["Z", "Z"]
    assert not os.path.exists(f"/proc/{pid}")
    found = read_claim(claim)
    assert found is not None
    assert found.status == 256
    assert ExitLog(str(tmp_path)).read()["5.0"][0] == 256


@pytest.mark.parametrize(
    ("command", "code"), [("exit 7", 7), ("kill -9 $$", -9), ("kill -SEGV $$", -11)]
)
def test_the_recorded_status_is_that_of_the_process(kept: Kept, command: str, code: int) -> None:
    kept.start("1.0", "sh", "-c", command)
    kept.hears("exited")
    assert os.waitstatus_to_exitcode(kept.claim("1.0").status) == code


def test_processes_of_a_job_are_marked_and_the_supervisor_is_not(kept: Kept) -> None:
    command = (
        "grep 'file locks' /proc/self/limits; env -i setsid grep 'file locks' /proc/self/limits"
    )
    kept.start("1.0", "sh", "-c", command)
    kept.hears("exited")
    limits = [line.split()[3] for line in (kept.place / "logs" / "1.0").read_text().splitlines()]
    assert limits == [str(mark_of("test.1.0"))] * 2
    assert str(mark_of("test.1.0")) not in Path(f"/proc/{kept.pid}/limits").read_text()


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
def test_what_cannot_be_started_is_explained_and_the_keeper_lives_on(
    kept: Kept, argv: tuple[str, ...], more: dict[str, Any], why: str
) -> None:
    kept.start("1.0", *argv, **more)
    assert kept.hears("failed") == [("failed", "1.0", why)]
    assert kept.claim("1.0").failed == why
    kept.start("2.0", "true")
    assert kept.hears("exited")[0][1] == "2.0"


def test_it_says_whether_a_job_left_processes_behind(kept: Kept) -> None:
    kept.start("1.0", "sh", "-c", "exit 0")
    assert kept.hears("exited")[0][5] is False
    kept.start("2.0", "sh", "-c", "setsid sleep 30 & echo $!")
    assert kept.hears("exited", 2)[1][5] is True
    left = int((kept.place / "logs" / "2.0").read_text())
    os.kill(left, signal.SIGKILL)


def test_it_outlives_the_daemon_until_its_last_job_has_ended(kept: Kept) -> None:
    kept.start("1.0", "sh", "-c", f"until [ -e {kept.place}/go ]; do sleep 0.02; done; exit 6")
    kept.hears("started")
    kept.wire.sock.close()
    time.sleep(0.1)
    assert os.waitpid(kept.pid, os.WNOHANG) == (0, 0)
    (kept.place / "go").touch()
    assert os.waitpid(kept.pid, 0) == (kept.pid, 0)
    assert os.waitstatus_to_exitcode(kept.claim("1.0").status) == 6


def test_a_keeper_that_had_nothing_to_do_leaves_no_record(kept: Kept) -> None:
    kept.wire.sock.close()
    assert os.waitpid(kept.pid, 0) == (kept.pid, 0)
    assert os.listdir(kept.place / "exits") == []


def test_it_never_waits_for_a_daemon_that_does_not_listen(kept: Kept) -> None:
    # More reports than the socket holds, all of them sent before one is read.
    orders = 3000
    for number in range(orders):
        kept.start(f"{number}.0", "no-such-thing-with-a-rather-long-name-" + "x" * 100)
    assert len(kept.hears("failed", orders)) == orders


def test_signals_meant_for_a_terminal_do_not_reach_it(kept: Kept) -> None:
    kept.start("0.0", "true")
    kept.hears("exited")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(kept.pid, number)
    kept.start("1.0", "true")
    kept.hears("exited", 2)
    assert os.getsid(kept.pid) == kept.pid
    links = [os.readlink(f"/proc/{kept.pid}/fd/{fd}") for fd in (0, 1, 2)]
    assert links == ["/dev/null", "/dev/null", str(kept.place / "daemon.log")]


def test_messages_arrive_whole_however_they_are_cut() -> None:
    ours, theirs = socket.socketpair()
    wire = FramedSocket(theirs)
    data = frame(("a", 1, {"x": "y" * 1000})) + frame(("b",)) + frame((None,))
    heard: list[tuple[Any, ...]] = []
    for start in range(0, len(data), 7):
        ours.send(data[start : start + 7])
        heard += wire.receive() or []
    assert heard == [("a", 1, {"x": "y" * 1000}), ("b",), (None,)]
    ours.close()
    assert wire.receive() is None
    theirs.close()


@pytest.mark.parametrize("trick", ["gone", "fifo", "link", "locked"])
def test_a_gpu_lock_that_was_tampered_with_is_not_waited_for(kept: Kept, trick: str) -> None:
    path = kept.place / "GPU-a.1"
    if trick == "fifo":
        os.mkfifo(path)
    elif trick == "link":
        path.symlink_to("/etc/passwd")
    elif trick == "locked":
        path.touch()
        fd = os.open(path, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
    kept.start("1.0", "true", locks=[str(path)])
    if trick == "fifo":  # it can be locked, only to no purpose
        kept.hears("exited")
    else:
        ((_, key, why),) = kept.hears("busy")
        assert key == "1.0"
        assert "the GPU is not locked" in why
        assert kept.claim("1.0").withdrawn, "no other daemon takes it for started"
    kept.start("2.0", "true")
    kept.hears("exited")


def test_a_keeper_without_room_for_its_log_of_ends_still_starts_jobs(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.wire.sock.close()
    os.waitpid(kept.pid, 0)
    (tmp_path / "exits" / "later").write_text("in the way")
    kept.pid, kept.wire = spawn_supervisor(str(tmp_path / "exits" / "later"))
    kept.wire.sock.settimeout(20)
    kept.wire.send(("environment", "e", {"PATH": os.environ["PATH"]}))
    kept.start("1.0", "sh", "-c", "exit 3")
    kept.hears("exited")
    assert os.waitstatus_to_exitcode(kept.claim("1.0").status) == 3
    (tmp_path / "exits" / "later").unlink()
    kept.start("2.0", "sh", "-c", "exit 4")
    kept.hears("exited", 2)
    assert "2.0" in ExitLog(str(tmp_path / "exits" / "later")).read()
    kept.wire.sock.close()
    os.waitpid(kept.pid, 0)


def test_an_exception_in_it_is_written_to_the_daemons_log(kept: Kept) -> None:
    kept.wire.send(("start", "too few words"))
    with pytest.raises(AssertionError, match="gone"):
        kept.hears("started")
    assert "TypeError" in (kept.place / "daemon.log").read_text()


def test_a_keeper_that_was_stopped_is_not_waited_for_and_gets_everything_later(kept: Kept) -> None:
    link = SupervisorClient(kept.pid, kept.wire)
    kept.wire.sock.settimeout(None)  # as the daemon has it
    os.kill(kept.pid, signal.SIGSTOP)
    began = time.monotonic()
    for number in range(50):
        link.send("environment", f"e{number}", {"LONG": "x" * 20_000})
    link.send(*kept.order("1.0", "sh", "-c", "exit ${#LONG}", environment="e49"))
    assert time.monotonic() - began < 5
    assert link.flush(), "more than a socket holds"
    os.kill(kept.pid, signal.SIGCONT)
    for _ in range(1000):
        if not link.flush():
            break
        time.sleep(0.01)
    ((_, _, status, *_),) = kept.hears("exited")
    assert os.waitstatus_to_exitcode(status) == 20_000 % 256


def test_a_keeper_that_is_gone_is_sent_nothing_more(kept: Kept) -> None:
    link = SupervisorClient(kept.pid, kept.wire)
    os.kill(kept.pid, signal.SIGKILL)
    os.waitpid(kept.pid, 0)
    for _ in range(3):
        link.send("forget", "e")
    assert not link.flush()


def test_a_log_of_exits_that_is_deleted_is_begun_again(kept: Kept) -> None:
    shutil.rmtree(kept.place / "exits")
    kept.start("1.0", "sh", "-c", "exit 3")
    kept.hears("exited")
    assert ExitLog(str(kept.place / "exits")).read()["1.0"][0] == 3 << 8


def test_a_start_without_a_run_directory_is_put_off(kept: Kept) -> None:
    shutil.rmtree(kept.place / "run")
    kept.start("1.0", "true")
    [(_, key, why)] = kept.hears("busy")
    assert key == "1.0"
    assert "No such file or directory" in why
    (kept.place / "run").mkdir()
    kept.start("1.1", "true")
    kept.hears("exited")
