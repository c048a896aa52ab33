"""What tests of the gate do with it, and a program in the place of the user executor."""

import json
import socket
from typing import Any

from multiuser.gate_process import FakeDaemon, GateProcess
from multiuser.users import User
from stoker.gate import protocol

EXECUTOR = """
import json, os, resource, socket, sys
wire = socket.socket(fileno=3)
wire.sendall(json.dumps({
    "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(), "argv": sys.argv,
    "environment": dict(os.environ), "umask": os.umask(0o077), "cwd": os.getcwd(),
    "files": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
              if os.path.exists(f"/proc/self/fd/{fd}")},
    "status": open("/proc/self/status").read(), "session": os.getsid(0) == os.getpid(),
    "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "cgroup": open("/proc/self/cgroup").read(),
}).encode() + b"\\n")
while command := wire.recv(4096):
    try:
        wire.sendall(json.dumps(repr(eval(command.decode()))).encode() + b"\\n")
    except Exception as error:
        wire.sendall(json.dumps(type(error).__name__).encode() + b"\\n")
"""
"""Says what it is, evaluates what it gets, and ends with its wire."""


def use_test_executor(gate: GateProcess, **settings: object) -> None:
    """Have the gate start EXECUTOR."""
    program = gate.directory / "executor.py"
    program.write_text(EXECUTOR)
    program.chmod(0o644)
    gate.configure(executor_command=["/usr/bin/python3", "-I", str(program)], **settings)


def authorize(gate: GateProcess, daemon: FakeDaemon, user: User) -> protocol.Connection:
    """Connect as a user and return what the system daemon sees of it."""
    with gate.connect(user):
        notice, client = daemon.receive()
    assert client is not None
    client.close()
    assert isinstance(notice, protocol.Connection)
    return notice


def start(daemon: FakeDaemon, user: User) -> "StartedExecutor":
    """Start the executor of an authorized user."""
    notice, wire = daemon.ask(protocol.StartExecutor(user.uid))
    assert isinstance(notice, protocol.Executor), notice
    assert wire is not None
    assert notice.uid == user.uid
    return StartedExecutor(notice.pid, wire, daemon)


def refusal(daemon: FakeDaemon, request: protocol.Request) -> str:
    """Return why a request was refused."""
    notice, _ = daemon.ask(request)
    assert isinstance(notice, protocol.Refused), notice
    assert (notice.uid, notice.request) == (request.uid, protocol.kind_of(request))
    return notice.why


class StartedExecutor:
    """A running EXECUTOR and the system daemon's end of its wire."""

    def __init__(self, pid: int, wire: socket.socket, daemon: FakeDaemon) -> None:
        self.pid = pid
        self.wire = wire
        self.lines = daemon.opened.enter_context(wire.makefile())
        self.facts: dict[str, Any] = json.loads(self.lines.readline())

    def evaluate(self, expression: str) -> str:
        """Return the repr of a value in that process, or the name of an exception."""
        self.wire.sendall(expression.encode())
        value: str = json.loads(self.lines.readline())
        return value

    def close(self) -> None:
        """Close the wire: the process ends."""
        self.lines.close()
        self.wire.close()
