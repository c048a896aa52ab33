"""Access to a daemon, and secrets that never leave it."""

import contextlib
import os
import socket
import sqlite3
import stat
import subprocess
import time
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, until
from e2e.other_users import another_user, as_user, stoker_as
from stoker import places, wire
from stoker.client import transport
from stoker.store.migrations import SCHEMA

ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
SECRET = "correct-horse-battery-staple"


def mode(path: object) -> int:
    """Return the permission bits of a file."""
    return stat.S_IMODE(os.stat(str(path)).st_mode)


def status_line(path: str) -> str:
    """Return the status line of a plain request."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(path)
        sock.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        reply = b""
        while piece := sock.recv(65536):
            reply += piece
    return reply.decode()


def test_the_socket_and_all_files_are_private_to_the_owner(box: DaemonFixture) -> None:
    box.result("true")
    path = places.socket_path()
    assert mode(path) == 0o600
    assert mode(Path(path).parent) == 0o700
    assert mode(box.state) == 0o700
    assert mode(box.run_dir) == 0o700
    for name in ("journal.db", "journal.db-wal", "lock", "install", "daemon.log"):
        assert mode(box.state / name) & 0o077 == 0, name


@ROOT_ONLY
def test_another_user_does_not_reach_the_socket(box: DaemonFixture) -> None:
    path = places.socket_path()
    assert as_user(65534, lambda: status_line(path)) == "PermissionError"


@ROOT_ONLY
def test_another_user_that_reaches_the_socket_is_rejected_by_the_daemon(box: DaemonFixture) -> None:
    path = Path(places.socket_path())
    for directory in (box.home.parent, box.home, path.parent):
        directory.chmod(0o755)
    path.chmod(0o666)
    assert "HTTP/1.1 200" in as_user(0, lambda: status_line(str(path)))
    refused = as_user(65534, lambda: status_line(str(path)))
    assert "HTTP/1.1 403" in refused
    assert '"permission"' in refused


@ROOT_ONLY
@pytest.mark.needs("useradd", "userdel")
def test_the_command_of_another_user_fails_with_a_message_and_code_5(box: DaemonFixture) -> None:
    path = Path(places.socket_path())
    for directory in (box.home.parent, box.home):
        directory.chmod(0o755)
    with another_user() as user:
        command, environment = stoker_as(user)
        done = subprocess.run(
            [*command, "submit", "true"], user=user.pw_uid, group=user.pw_gid, extra_groups=[],
            env={**environment, "STOKER_HOME": str(box.home)}, cwd="/", capture_output=True,
            text=True, timeout=30, check=False,
        )  # fmt: skip
        assert path.exists()
        assert done.returncode == 5, done.stderr
        assert done.stderr.count("\n") == 1


def test_a_home_that_others_can_write_to_is_rejected(idle: DaemonFixture) -> None:
    run = idle.home / "run"
    run.mkdir(mode=0o700)
    run.chmod(0o777)
    done = idle.stoker("submit", "true")
    assert done.returncode == 5
    assert "chmod 700" in done.stderr


def test_environment_values_are_in_no_event_and_no_reply(box: DaemonFixture) -> None:
    job = box.submit("--env", f"OTHER={SECRET}", "sleep 0", env={"MY_TOKEN": SECRET})
    box.end_of(job)
    box.submit("--hold", "true", env={"MY_TOKEN": SECRET})
    assert SECRET not in str(box.client.jobs([job]))
    assert SECRET not in box.stoker("show", job, "--json").stdout
    reply = transport.send(places.socket_path(), "GET", "/v1/events?after=0", None, 10)
    seen = b""
    for piece in reply.stream():
        seen += piece
        if b"JobsSubmitted" in seen and b"ProcessExited" in seen:
            break
    reply.close()
    assert SECRET.encode() not in seen
    assert SECRET not in box.log
    box.stoker("daemon", "stop", "--cancel", check=True)
    db = sqlite3.connect(box.state / "journal.db")
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    holding = [
        table
        for table in tables
        if any(SECRET.encode() in (cell if isinstance(cell, bytes) else str(cell).encode())
               for row in db.execute(f"SELECT * FROM {table}") for cell in row)
    ]  # fmt: skip
    db.close()
    assert holding == ["secrets"]


def test_a_request_that_is_too_large_is_rejected_before_it_is_read(box: DaemonFixture) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(places.socket_path())
        size = wire.MAX_BODY_BYTES + 1
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
        sock.sendall(head.encode() + b"{")
        assert b"HTTP/1.1 413" in sock.recv(65536)
    assert box.result("true")["state"] == "COMPLETED"


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{{{{{",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n[]",
        b"\x16\x03\x01" + bytes(100),
    ],
)
def test_garbage_on_the_socket_is_rejected_and_does_no_harm(box: DaemonFixture, raw: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(places.socket_path())
        with contextlib.suppress(ConnectionError):  # it may close the connection earlier
            sock.sendall(raw)
            with contextlib.suppress(OSError):  # it has closed the connection
                sock.shutdown(socket.SHUT_WR)
            reply = sock.recv(65536)
            # Long headers are rejected only if they arrive in several pieces.
            statuses = {b"4"} | ({b"2"} if raw.startswith(b"GET") else set())
            assert not reply or reply.split()[1][:1] in statuses
    assert box.result("true")["state"] == "COMPLETED"


def test_a_subscriber_that_never_reads_does_not_block_the_queue(box: DaemonFixture) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(places.socket_path())
    sock.sendall(b"GET /v1/events?after=0 HTTP/1.1\r\nHost: x\r\n\r\n")
    try:
        label = box.submit("--each-line", "-", input="true\n" * 300)
        assert box.client.wait([label], timeout=40)["finished"]
    finally:
        sock.close()


def resident(pid: int) -> float:
    """Return the memory of a process, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def busy_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("listener", ["unix", "tcp"])
def test_subscribers_that_never_read_cost_little_and_leave_nothing(
    box: DaemonFixture, listener: str
) -> None:
    pid = box.pid
    box.client.wait([box.submit("--each-line", "-", input="true\n" * 200)], timeout=40)
    head, address = "GET /v1/events?after=0 HTTP/1.1\r\nHost: x\r\n", places.socket_path()
    if listener == "tcp":
        address = box.client.listen("127.0.0.1:0")["address"]
        head += f"Authorization: Bearer {(box.state / 'token').read_text()}\r\n"
    with contextlib.ExitStack() as readers:
        for _ in range(50):
            if listener == "unix":
                sock = readers.enter_context(socket.socket(socket.AF_UNIX))
                sock.connect(address)
            else:
                host, _, port = address.rpartition(":")
                sock = readers.enter_context(socket.create_connection((host, int(port)), 10))
            sock.sendall(head.encode() + b"\r\n")
        before = resident(pid)
        for _ in range(2):
            label = box.submit("--each-line", "-", input="true\n" * 1000)
            assert box.client.wait([label], timeout=60)["finished"]
        assert resident(pid) - before < 40
        began = busy_seconds(pid)
        time.sleep(2)
        assert busy_seconds(pid) - began < 0.5
    box.client.wait([box.submit("true")], timeout=40)
    began = busy_seconds(pid)
    time.sleep(1)
    assert busy_seconds(pid) - began < 0.1


def test_a_journal_of_a_newer_version_is_rejected(box: DaemonFixture) -> None:
    box.stoker("daemon", "stop", check=True)
    db = sqlite3.connect(box.state / "journal.db")
    db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    done = box.stoker("submit", "true")
    assert done.returncode == 1
    assert "newer stoker" in done.stderr
    assert done.stderr.count("\n") == 1
    assert until(lambda: not box.answers())
