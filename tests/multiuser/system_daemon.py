"""A gate with a real system daemon, and requests of users to it."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from multiuser.gate_process import GateProcess, effective_user
from multiuser.users import User, processes

READY_SECONDS = 60


class Rejected(Exception):
    """An error reply."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message


class SystemDaemon:
    """The system daemon of a gate, with its files below the directory of the gate."""

    def __init__(self, gate: GateProcess, **settings: object) -> None:
        self.gate = gate
        self.state = gate.directory / "state"
        self.config = gate.directory / "config.toml"
        self.log_path = gate.directory / "daemon.log"
        self.state.mkdir(mode=0o700)
        os.chown(self.state, gate.daemon.uid, gate.daemon.gid)
        self.configure(**settings)
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, text: str = "", gpus: str = "none", multiuser: str = "") -> None:
        """Write config.toml; `text` is added to it, `multiuser` to its table of that name."""
        self.config.write_text(
            f'gpus = "{gpus}"\n{text}\n[multiuser]\nusers_dir = "{self.gate.users_dir}"\n'
            f'locks_dir = "{self.gate.run_dir}/gpus"\n{multiuser}\n'
        )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> "SystemDaemon":
        """Start it and return when it serves users."""
        notify = self.state / "notify"
        notify.unlink(missing_ok=True)
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready,
            self.log_path.open("ab") as log,
        ):
            ready.bind(str(notify))
            os.chown(notify, self.gate.daemon.uid, -1)
            daemon = self.gate.daemon
            command = [str(self.gate.installation.python), "-I", "-m", "stoker.daemon", "--system"]
            command += ["--config", str(self.config), "--state", str(self.state)]
            self.process = subprocess.Popen(
                [*command, "--gate", str(self.gate.daemon_socket)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
                env={"PATH": os.defpath, "NOTIFY_SOCKET": str(notify)},
                user=daemon.uid, group=daemon.gid, extra_groups=[],
            )  # fmt: skip
            ended = os.pidfd_open(self.pid)
            try:
                found, _, _ = select.select([ready, ended], [], [], READY_SECONDS)
            finally:
                os.close(ended)
            if found != [ready]:
                self.process.wait(30)
                raise AssertionError(self.log())
        return self

    def log(self) -> str:
        return self.log_path.read_text()

    def end(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.end()

    def client(self, user: User | None) -> "UserClient":
        """Return what sends requests of a user; None: of root."""
        return UserClient(self.gate.users_socket, user)


class UserClient:
    """Requests of one user to a daemon's socket, one connection each."""

    def __init__(self, socket_path: Path, user: User | None) -> None:
        self.socket_path, self.user = socket_path, user

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(600)
        with effective_user(self.user) if self.user is not None else contextlib.nullcontext():
            client.connect(str(self.socket_path))
        return client

    def send(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Return status and body of a reply."""
        connection = HTTPConnection("stoker")
        connection.sock = self.connect()
        try:
            data = None if body is None else json.dumps(body).encode()
            base = {"Host": "stoker", "Connection": "close"}
            connection.request(method, f"/v1{path}", data, base | (headers or {}))
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return a reply, or raise Rejected."""
        status, data = self.send(method, path, body)
        if status >= 400:
            error = json.loads(data)["error"]
            raise Rejected(status, error["code"], error["message"])
        return json.loads(data)

    def submit(self, line: str, *, directory: Path | None = None, **fields: Any) -> int:
        """Submit a shell line from the user's home with the environment of a login."""
        assert self.user is not None
        options = fields.pop("options", {})
        body = {
            "what": {"line": line}, "directory": str(directory or self.user.home),
            "environment": self.user.environment(), "shell": "/bin/sh", "umask": 0o022,
            "options": options,
        } | fields  # fmt: skip
        return int(self.ask("POST", "/jobs", body)["first"])

    def wait(self, *jobs: int, timeout: float = 60) -> list[dict[str, Any]]:
        """Return the views of jobs that have all ended."""
        select = [str(job) for job in jobs]
        reply = self.ask("POST", "/wait", {"select": select, "timeout": timeout})
        assert reply["finished"], reply
        return list(reply["jobs"])

    def run(self, line: str, **fields: Any) -> dict[str, Any]:
        """Run a job and return its view."""
        [view] = self.wait(self.submit(line, **fields))
        return view

    def show(self, job: int) -> dict[str, Any]:
        [view] = self.ask("GET", f"/jobs?select={job}")["jobs"]
        return dict(view)

    def until(self, job: int, state: str, attempt: int = 0) -> dict[str, Any]:
        """Return the view of a job once this attempt of it is in this state."""
        end = time.monotonic() + 60
        while True:
            view = self.show(job)
            if (view["state"], view["attempt"]) == (state, attempt):
                return view
            assert time.monotonic() < end, view
            time.sleep(0.02)

    def log(self, job: int, query: str = "") -> str:
        status, data = self.send("GET", f"/jobs/{job}/log{query}")
        if status >= 400:
            error = json.loads(data)["error"]
            raise Rejected(status, error["code"], error["message"])
        return data.decode()


class OwnClient(UserClient):
    """Requests of a user to a daemon of its own, below its home."""

    def __init__(self, user: User) -> None:
        self.home = user.home / "own"
        super().__init__(self.home / "run" / "daemon.sock", user)


def executors_of(user: User) -> Iterator[int]:
    """Yield the user executors of a user that run now."""
    for pid in processes(user.uid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().startswith("stoker-user"):
                yield pid
