"""A gate with temporary paths, and a program in the place of the system daemon."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from multiuser.installation import Installation
from multiuser.users import User
from stoker.gate import devices, protocol


def device_root(directory: Path) -> str | None:
    """Return where the gate of a test makes device groups."""
    root = devices.find_root()
    return root and f"{root}-test-{directory.name}"


class GateProcess:
    """The gate of an installation, with its paths below `directory`, which root owns."""

    def __init__(
        self, directory: Path, installation: Installation, daemon: User, **settings: object
    ) -> None:
        self.directory = directory
        self.installation = installation
        self.daemon = daemon
        self.run_dir = directory / "run"
        self.users_dir = directory / "users"
        self.state_dir = directory / "gate"
        self.users_socket = self.run_dir / "stoker.sock"
        self.daemon_socket = self.run_dir / "gate.sock"
        self.log_path = directory / "gate.log"
        self.config_path = directory / "gate.toml"
        self.configure(**settings)
        self.process: subprocess.Popen[bytes] | None = None
        self.opened = contextlib.ExitStack()
        """Sockets that tests got from the gate; closed with it."""

    def configure(self, **settings: object) -> None:
        """Write gate.toml; `settings` replace or extend the paths and the user of this test."""
        table = {
            "daemon_user": self.daemon.name,
            "run_dir": str(self.run_dir),
            "users_dir": str(self.users_dir),
            "state_dir": str(self.state_dir),
            "pam_service": "",
            "device_groups": device_root(self.directory) or "",
            **settings,
        }
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in table.items()]
        self.config_path.write_text("".join(lines))

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, env: dict[str, str] | None = None) -> "GateProcess":
        """Start the gate and return when its sockets are there."""
        notify = self.directory / "notify"
        notify.unlink(missing_ok=True)
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready,
            self.log_path.open("ab") as log,
        ):
            ready.bind(str(notify))
            program = [str(self.installation.python), "-I", "-m", "stoker.gate"]
            self.process = subprocess.Popen(
                [*program, "--config", str(self.config_path)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                env={"PATH": os.defpath, "NOTIFY_SOCKET": str(notify), **(env or {})},
            )  # fmt: skip
            ended = os.pidfd_open(self.pid)
            try:
                found, _, _ = select.select([ready, ended], [], [], 60)
            finally:
                os.close(ended)
            if found != [ready]:
                self.process.wait()
                raise AssertionError(self.log())
            assert ready.recv(64) == b"READY=1"
        return self

    def log(self) -> str:
        """Return what the gates of this directory have logged."""
        return self.log_path.read_text()

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send a signal to the gate and return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)

    def close(self) -> None:
        """Kill the gate if it runs, and close what was opened."""
        if self.process is not None and self.process.poll() is None:
            self.end()
        self.opened.close()

    def connect(self, user: User) -> socket.socket:
        """Connect to the socket of the users, as a user."""
        client = socket.socket(socket.AF_UNIX)
        self.opened.enter_context(client)
        client.settimeout(30)
        with effective_user(user):
            client.connect(str(self.users_socket))
        return client

    def connect_daemon(self) -> "FakeDaemon":
        """Connect to the gate as the user of the system daemon; return after its hello."""
        return FakeDaemon(self)


class FakeDaemon:
    """A program in the place of the system daemon: sends what a test wants it to send."""

    def __init__(self, gate: GateProcess) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.opened = gate.opened
        self.opened.enter_context(self.socket)
        self.socket.settimeout(30)
        with effective_user(gate.daemon):
            self.socket.connect(str(gate.daemon_socket))
        self.uids: list[int] = []
        more = True
        while more:
            hello, _ = protocol.receive_notice(self.socket)
            assert isinstance(hello, protocol.Hello)
            self.uids += hello.uids
            more = hello.more

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, request: protocol.Request) -> None:
        protocol.send(self.socket, request)

    def receive(self) -> tuple[protocol.Notice, socket.socket | None]:
        """Return the next message of the gate, with its socket."""
        notice, fd = protocol.receive_notice(self.socket)
        if fd is None:
            return notice, None
        peer = socket.socket(fileno=fd)
        self.opened.enter_context(peer)
        peer.settimeout(30)
        return notice, peer

    def ask(self, request: protocol.Request) -> tuple[protocol.Notice, socket.socket | None]:
        """Send a request and return the next message."""
        self.send(request)
        return self.receive()


@contextlib.contextmanager
def effective_user(user: User) -> Iterator[None]:
    """Have the effective ids of a user, which the kernel notes when a socket connects."""
    os.setegid(user.gid)
    os.seteuid(user.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
