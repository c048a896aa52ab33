"""The gate hands over connections with the uid that the kernel knows, and starts executors."""

import json
import os
import socket

import pytest

from multiuser.conftest import Machine
from multiuser.gate_process import FakeDaemon, GateProcess
from multiuser.users import User
from stoker.gate import protocol

EXECUTOR = """
import json, os, socket, sys
wire = socket.socket(fileno=3)
wire.sendall(json.dumps({
    "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(), "argv": sys.argv,
    "environment": dict(os.environ), "umask": os.umask(0o077), "cwd": os.getcwd(),
    "files": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
              if os.path.exists(f"/proc/self/fd/{fd}")},
    "status": open("/proc/self/status").read(), "session": os.getsid(0) == os.getpid(),
}).encode() + b"\\n")
wire.makefile().read()
"""
"""A program in the place of the user executor: says what it is, and ends with its wire."""


@pytest.fixture
def idle_gate(idle_gate: GateProcess) -> GateProcess:
    program = idle_gate.directory / "executor.py"
    program.write_text(EXECUTOR)
    program.chmod(0o644)
    idle_gate.configure(executor_command=["/usr/bin/python3", "-I", str(program)])
    return idle_gate


def authorize(gate: GateProcess, daemon: FakeDaemon, user: User) -> protocol.Connection:
    with gate.connect(user):
        notice, client = daemon.receive()
    assert client is not None
    client.close()
    assert isinstance(notice, protocol.Connection)
    return notice


def started(daemon: FakeDaemon, user: User) -> tuple[protocol.Executor, socket.socket]:
    notice, wire = daemon.ask(protocol.StartExecutor(user.uid))
    assert isinstance(notice, protocol.Executor), notice
    assert wire is not None
    return notice, wire


def first_line(wire: socket.socket) -> dict[str, object]:
    return json.loads(wire.makefile().readline())


def test_a_connection_arrives_with_the_uid_that_the_kernel_knows(
    machine: Machine, gate: GateProcess
) -> None:
    with gate.connect_daemon() as daemon:
        for user in machine.people:
            with gate.connect(user) as client:
                notice, passed = daemon.receive()
                assert isinstance(notice, protocol.Connection)
                assert (notice.uid, notice.pid, notice.why) == (user.uid, os.getpid(), "")
                assert passed is not None
                with passed:
                    assert protocol.credentials(passed) == (os.getpid(), user.uid)
                    client.sendall(b"hello")
                    assert passed.recv(5) == b"hello"


def test_the_executor_of_a_user_has_the_rights_of_that_user_and_nothing_of_root(
    machine: Machine, gate: GateProcess
) -> None:
    ana = machine.ana
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, ana)
        notice, wire = started(daemon, ana)
        with wire:
            found = first_line(wire)
            assert found["uids"] == [ana.uid] * 3
            assert found["gids"] == [ana.gid] * 3
            assert found["groups"] == [ana.gid]
            assert found["environment"] == {
                **ana.environment(), "LANG": "C.UTF-8",
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            }  # fmt: skip
            directory = gate.users_dir / str(ana.uid)
            assert found["argv"][1:] == [str(directory)]
            assert found["umask"] == 0o077
            assert found["cwd"] == "/"
            assert found["session"]
            null = "/dev/null"
            files = found["files"]
            assert {fd: files[fd] for fd in "012"} == {"0": null, "1": null, "2": null}
            assert files["3"].startswith("socket:")
            assert len(files) == 4
            for line in found["status"].splitlines():
                if line.startswith(("CapInh", "CapPrm", "CapEff", "CapAmb", "SigBlk", "SigIgn")):
                    # Python itself ignores SIGPIPE and SIGXFSZ
                    assert int(line.split()[1], 16) & ~0x1001000 == 0, line
            status = directory.stat()
            assert (status.st_uid, status.st_gid) == (ana.uid, machine.daemon.gid)
            assert oct(status.st_mode & 0o7777) == oct(0o2750)
        ended, _ = daemon.receive()
        assert ended == protocol.Ended(ana.uid, notice.pid, 0)
