"""Send the report of a pod to the daemon over HTTP, and write the control files that it returns.

The first process of a pod runs this file beside the job: `python3 http_sender.py DIRECTORY`, with
`HOST:PORT FINGERPRINT TOKEN` in STOKER_REPORT_ACCESS. The training itself only appends to its
report file, which is the buffer: what the daemon has not confirmed stays there. The file `.http`
has the number of confirmed bytes, and exists while the daemon answers; without it, the first
process passes the report on through the log.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import ssl
import sys
import time
from http.client import HTTPException, HTTPSConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "STOKER_REPORT_ACCESS"
CONFIRMED = ".http"
CONTROL_FILES = ("stop", "stop_at")
"""What the daemon may have written."""
MAX_BYTES = 256 * 1024
"""Bytes of a report in one request."""
MAX_REPLY = 64 * 1024
TIMEOUT_SECONDS = 10.0
AWAY_SECONDS = 10.0
"""Without an answer for this time, the log is used."""
MIN_WAIT_SECONDS, MAX_WAIT_SECONDS = 0.5, 60.0
PAUSE_SECONDS = 5.0
"""After too many requests."""
MAX_RETRY_SECONDS = 30.0
OK, TOO_MANY = 200, 429
REFUSED = (401, 403, 404)


class Refused(Exception):
    """The daemon takes nothing from this attempt, now or later."""


class Sender:
    """Sends one report, from wherever the daemon wants it to continue."""

    def __init__(self, directory: str, server: str, fingerprint: str, token: str) -> None:
        self.directory, self.token = directory, token
        self.fingerprint = fingerprint.rpartition(":")[2]
        host, _, port = server.rpartition(":")
        self.host, self.port = host.strip("[]"), int(port)
        self.offset = 0
        """Where the next bytes begin."""
        self._failures = 0
        self._answered_at = time.monotonic()

    def run(self) -> None:
        """Send until the process that has started this one is gone."""
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(self.exchange())

    def exchange(self) -> float:
        """Make one request; return the seconds until the next one. Raise Refused."""
        data = self._read()
        try:
            status, reply = self._post(data)
            if status in REFUSED:
                self._set_away()
                raise Refused
            if status not in (OK, TOO_MANY):
                return self._on_failure()
            self._failures, self._answered_at = 0, time.monotonic()
            if status == TOO_MANY:
                return PAUSE_SECONDS
            wait = self._follow(reply)
        except (OSError, HTTPException, ValueError, LookupError, TypeError):
            return self._on_failure()
        return MIN_WAIT_SECONDS if len(data) > MAX_BYTES // 2 else wait

    def _follow(self, reply: dict[str, Any]) -> float:
        """Do what a reply says; return how long to wait."""
        self.offset = int(reply["offset"])
        self._write(CONFIRMED, f"{int(reply['saved'])}\n")
        for name, text in dict(reply["control"]).items():
            if name in CONTROL_FILES:
                self._write(name, str(text))
        return min(max(float(reply["wait"]), MIN_WAIT_SECONDS), MAX_WAIT_SECONDS)

    def _on_failure(self) -> float:
        if time.monotonic() - self._answered_at >= AWAY_SECONDS:
            self._set_away()
        self._failures += 1
        return min(2.0 ** min(self._failures - 1, 10), MAX_RETRY_SECONDS)

    def _set_away(self) -> None:
        """Let the log have what is not confirmed."""
        try:
            os.unlink(f"{self.directory}/{CONFIRMED}")
        except OSError:
            pass

    def _read(self) -> bytes:
        """Return the next whole lines."""
        try:
            with open(f"{self.directory}/report", "rb") as file:
                file.seek(min(self.offset, os.fstat(file.fileno()).st_size))
                self.offset = file.tell()
                data = file.read(MAX_BYTES)
        except OSError:
            return b""
        end = data.rfind(b"\n") + 1
        return data[:end] if end or len(data) < MAX_BYTES else data

    def _post(self, data: bytes) -> tuple[int, dict[str, Any]]:
        """Return status and body of the reply; the token is sent to no other server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = HTTPSConnection(self.host, self.port, timeout=TIMEOUT_SECONDS, context=context)
        try:
            connection.connect()
            certificate = connection.sock.getpeercert(True)
            found = hashlib.sha256(certificate or b"").hexdigest()
            if not hmac.compare_digest(found, self.fingerprint):
                raise ssl.SSLError("another certificate")
            written = ",".join(
                name for name in CONTROL_FILES if os.path.exists(f"{self.directory}/{name}")
            )
            headers = {"Authorization": f"Bearer {self.token}", "Connection": "close"}
            path = f"/v1/report?offset={self.offset}&written={written}"
            connection.request("POST", path, data, headers)
            response = connection.getresponse()
            body = json.loads(response.read(MAX_REPLY))
            return response.status, body if isinstance(body, dict) else {}
        finally:
            connection.close()

    def _write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all."""
        path = f"{self.directory}/{name}"
        try:
            with open(f"{path}.part", "w") as file:
                file.write(text)
            os.rename(f"{path}.part", path)
        except OSError:
            pass


def main() -> None:
    """Send the report of the directory in the first argument."""
    # Signals for the job reach all processes of the container; this one ends after the job.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM,
                   signal.SIGUSR1, signal.SIGUSR2):  # fmt: skip
        signal.signal(number, signal.SIG_IGN)
    try:
        Sender(sys.argv[1], *os.environ[VARIABLE].split()).run()
    except Refused:
        pass


if __name__ == "__main__":
    main()
