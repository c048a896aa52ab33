"""SocketForward: the page of a daemon on another machine, at a port of this one.

ssh forwards the daemon's socket to a socket in a private directory; no port is opened there. The
port here serves only connections of this user.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from typing import Self

from stoker.client.errors import DaemonUnreachable, StokerError

CONNECT_SECONDS = 20.0
SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ClearAllForwardings=no")
FIND_SOCKET_SCRIPT = (
    'u=$(id -u); for d in "${STOKER_HOME:+$STOKER_HOME/run}"'
    ' "${XDG_RUNTIME_DIR:+$XDG_RUNTIME_DIR/stoker}" "/run/user/$u/stoker" "/tmp/stoker-$u"; do'
    ' for f in "$d"/*.sock; do'
    ' if [ -S "$f" ] && [ -O "$f" ]; then echo "$f"; exit; fi; done; done'
)
"""Prints the path of the daemon's socket."""
ESTABLISHED = "01"
PIECE_BYTES = 65536


class SocketForward:
    """A private socket and a loopback port that lead to the daemon of another machine."""

    def __init__(self, machine: str, port: int) -> None:
        self.machine = machine
        self._directory = tempfile.mkdtemp(prefix="stoker-ui-")
        self.path = os.path.join(self._directory, "daemon.sock")
        self._ssh: subprocess.Popen[bytes] | None = None
        self._listener = socket.socket()
        try:
            self._start_ssh(self._find_socket())
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                self._listener.bind(("127.0.0.1", port))
            except OSError as error:
                raise StokerError(f"Port {port} cannot be used: {error.strerror}.") from None
            self._listener.listen(64)
        except BaseException:
            self.close()
            raise
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find_socket(self) -> str:
        done = self._run(["ssh", *SSH_OPTIONS, "-T", "--", self.machine,
                          f"exec sh -c '{FIND_SOCKET_SCRIPT}'"])  # fmt: skip
        path = done.stdout.strip().rpartition("\n")[2]
        if done.returncode != 0 or not path:
            errors = done.stderr.strip().rpartition("\n")[2]
            if done.returncode == 0 or not errors:
                errors = "You have no running daemon there. Start it: stoker daemon start"
            raise DaemonUnreachable(f"{self.machine}: {errors}")
        return path

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                timeout=CONNECT_SECONDS,
            )  # fmt: skip
        except FileNotFoundError:
            raise StokerError("ssh is needed to reach another machine. Install it.") from None
        except subprocess.TimeoutExpired:
            raise DaemonUnreachable(f"{self.machine} does not answer.") from None

    def _start_ssh(self, remote: str) -> None:
        self._ssh = subprocess.Popen(
            ["ssh", *SSH_OPTIONS, "-N", "-T", "-o", "ExitOnForwardFailure=yes",
             "-o", "StreamLocalBindMask=0177", "-L", f"{self.path}:{remote}", "--", self.machine],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + CONNECT_SECONDS
        while not os.path.exists(self.path):
            if self._ssh.poll() is not None or time.monotonic() > deadline:
                raise DaemonUnreachable(f"ssh cannot forward the socket of {self.machine}.")
            time.sleep(0.02)

    def wait(self) -> None:
        """Return when the connection has ended, or the user ends it."""
        assert self._ssh is not None
        with contextlib.suppress(KeyboardInterrupt):
            self._ssh.wait()

    def _accept(self) -> None:
        while True:
            try:
                client, address = self._listener.accept()
            except OSError:
                return  # closed
            if _user_of(address) == os.getuid():
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()
            else:
                client.close()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            server.connect(self.path)
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            back.join()

    def close(self) -> None:
        """End the connection and remove the socket."""
        self._listener.close()
        if self._ssh is not None:
            self._ssh.terminate()
            self._ssh.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _user_of(address: tuple[str, int]) -> int | None:
    """Return the uid of the process at the other end of a loopback connection."""
    name = "".join(f"{int(part):02X}" for part in reversed(address[0].split(".")))
    end = f"{name}:{address[1]:04X}"
    with open("/proc/net/tcp", encoding="ascii") as file:
        for line in file:
            row = line.split()
            if row[1] == end and row[3] == ESTABLISHED:
                return int(row[7])
    return None
