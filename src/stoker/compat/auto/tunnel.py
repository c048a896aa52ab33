"""The way to another machine: one ssh connection, ended with the command that needed it."""

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

SECONDS = 20.0
"""How long the other machine may take to let us in and answer."""
CONNECT_SECONDS = 5
END = b"."
SCRIPT = (
    'u=$(id -u); for d in "${STOKER_HOME:+$STOKER_HOME/run}"'
    ' "${XDG_RUNTIME_DIR:+$XDG_RUNTIME_DIR/stoker}" "/run/user/$u/stoker" "/tmp/stoker-$u"; do'
    ' f=$d/auto.json; if [ -n "$d" ] && [ -O "$f" ] && ! flock -n -s "$f" true 2>/dev/null;'
    ' then cat "$f"; fi; done;'
    " echo .; exec cat >/dev/null"
)
"""Says where servers are, then stays until our end of stdin is closed: by us, or by our death.

A file whose lock can be had was left behind; without the flock command every file counts.
"""


class Tunnel:
    """A Unix socket here that leads to the daemon's socket there.

    So nobody else on either machine can come in, and no token has to travel.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.place = tempfile.mkdtemp(prefix="stoker-auto-")
        self.socket = os.path.join(self.place, "daemon.sock")
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self._connect()
            found = self._server(port)
            self.port = int(found["port"])
            self._forward(str(found["socket"]))
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        command = [
            "ssh", "-T", "-M", "-S", self._control, "-o", "BatchMode=yes",
            "-o", f"ConnectTimeout={CONNECT_SECONDS}", "-o", "ControlPersist=no",
            "-o", "ClearAllForwardings=yes", "--", self.host, f"exec sh -c '{SCRIPT}'",
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

    def _server(self, port: int) -> dict[str, Any]:
        """Return what the server there wrote about itself."""
        for line in self._lines():
            with contextlib.suppress(ValueError):
                found = fast_json.loads(line)
                if isinstance(found, dict) and port in (0, found.get("port")):
                    return found
        where = f" on port {port}" if port else ""
        raise DaemonUnreachable(f"You have no auto server on {self.host}{where}.")

    def _lines(self) -> list[bytes]:
        assert self.process is not None
        assert self.process.stdout is not None
        fd, text, until = self.process.stdout.fileno(), b"", time.monotonic() + SECONDS
        while END not in text.split(b"\n")[:-1]:
            left = until - time.monotonic()
            piece = os.read(fd, 65536) if left > 0 and select.select([fd], [], [], left)[0] else b""
            if not piece:
                raise DaemonUnreachable(f"ssh {self.host}: {self._last_words()}")
            text += piece
        return text.split(b"\n")

    def _forward(self, there: str) -> None:
        done = subprocess.run(
            ["ssh", "-S", self._control, "-o", "ExitOnForwardFailure=yes", "-O", "forward",
             "-L", f"{self.socket}:{there}", "--", self.host],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            raise DaemonUnreachable(f"ssh {self.host}: {said[-1] if said else 'no forwarding'}")

    def close(self) -> None:
        """Hang up and leave nothing behind."""
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
        shutil.rmtree(self.place, ignore_errors=True)

    @property
    def _control(self) -> str:
        return os.path.join(self.place, "control")

    @property
    def _errors(self) -> str:
        return os.path.join(self.place, "errors")

    def _last_words(self) -> str:
        with open(self._errors, encoding="utf-8", errors="replace") as file:
            said = [line.strip() for line in file if line.strip()]
        return said[-1] if said else "it does not answer."
