"""Tunnel: ssh connection to another host for the duration of one command."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import tempfile
import time

from stoker.client import fast_json
from stoker.client.errors import DaemonUnreachable, StokerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TIMEOUT_SECONDS = 20.0
"""Timeout for the connection and the reply of the other host."""
CONNECT_SECONDS = 5
END_MARK = b"."
FIND_SERVERS_SCRIPT = (
    'u=$(id -u); for d in "${STOKER_HOME:+$STOKER_HOME/run}"'
    ' "${XDG_RUNTIME_DIR:+$XDG_RUNTIME_DIR/stoker}" "/run/user/$u/stoker" "/tmp/stoker-$u"; do'
    ' f=$d/auto.json; if [ -n "$d" ] && [ -O "$f" ] && ! flock -n -s "$f" true 2>/dev/null;'
    ' then cat "$f"; fi; done;'
    " echo .; exec cat >/dev/null"
)
"""Prints the server files, then waits until its stdin is closed, also if this process dies.

A file whose lock is free belongs to a killed server; without the flock command all are printed.
"""


class Tunnel:
    """A local Unix socket forwarded to the daemon's socket on another host.

    Other users of either host cannot connect, and no token is transferred.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.directory = tempfile.mkdtemp(prefix="stoker-auto-")
        self.socket = os.path.join(self.directory, "daemon.sock")
        self._control = os.path.join(self.directory, "control")
        self._errors = os.path.join(self.directory, "errors")
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self._connect()
            server = self._find_server(port)
            self.port = int(server["port"])
            self._forward(str(server["socket"]))
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        command = [
            "ssh", "-T", "-M", "-S", self._control, "-o", "BatchMode=yes",
            "-o", f"ConnectTimeout={CONNECT_SECONDS}", "-o", "ControlPersist=no",
            "-o", "ClearAllForwardings=yes", "--", self.host, f"exec sh -c '{FIND_SERVERS_SCRIPT}'",
        ]  # fmt: skip
        with open(self._errors, "wb") as errors:
            try:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
                )
            except FileNotFoundError:
                raise StokerError(
                    "ssh is needed to reach another host, but it is not installed. "
                    "Install it, or trust the certificate of the server: auto trust --help"
                ) from None

    def _find_server(self, port: int) -> dict[str, Any]:
        """Return the server file on the other host."""
        for line in self._read_reply():
            with contextlib.suppress(ValueError):
                server = fast_json.loads(line)
                if isinstance(server, dict) and port in (0, server.get("port")):
                    return server
        port_text = f" on port {port}" if port else ""
        raise DaemonUnreachable(f"You have no auto server on {self.host}{port_text}.")

    def _read_reply(self) -> list[bytes]:
        assert self.process is not None
        assert self.process.stdout is not None
        fd, text, deadline = self.process.stdout.fileno(), b"", time.monotonic() + TIMEOUT_SECONDS
        while END_MARK not in text.split(b"\n")[:-1]:
            timeout = deadline - time.monotonic()
            ready = timeout > 0 and select.select([fd], [], [], timeout)[0]
            piece = os.read(fd, 65536) if ready else b""
            if not piece:
                raise DaemonUnreachable(f"ssh {self.host}: {self._last_error()}")
            text += piece
        return text.split(b"\n")

    def _forward(self, remote_socket: str) -> None:
        done = subprocess.run(
            ["ssh", "-S", self._control, "-o", "ExitOnForwardFailure=yes", "-O", "forward",
             "-L", f"{self.socket}:{remote_socket}", "--", self.host],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            errors = done.stderr.strip().splitlines()
            raise DaemonUnreachable(f"ssh {self.host}: {errors[-1] if errors else 'no forwarding'}")

    def close(self) -> None:
        """Close the connection and remove all files."""
        if self.process is not None:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.close()
            try:
                self.process.wait(CONNECT_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _last_error(self) -> str:
        with open(self._errors, encoding="utf-8", errors="replace") as file:
            errors = [line.strip() for line in file if line.strip()]
        return errors[-1] if errors else "it does not answer."
