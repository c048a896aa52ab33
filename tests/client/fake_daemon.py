"""A daemon with prepared replies, over a real Unix socket."""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = tuple[int, Any]
View = dict[str, Any]

BASE: View = {
    "id": 1, "label": "1", "name": "train", "user": "ana", "queue": "default", "group": None,
    "labels": [], "state": "PENDING", "state_code": "PD", "reason": None, "reason_text": None,
    "priority": 0, "command": "python train.py", "directory": "/x", "shell": "/bin/sh",
    "request": {"gpus": "1", "model": None, "min_vram": None, "gpu_memory": None, "cpus": None,
                "memory": None, "resources": {}, "exclusive": False},
    "node": None, "devices": {}, "gpu_uuids": [], "attempt": 0, "pid": None,
    "submitted_at": "2026-11-15T20:31:02.512Z", "started_at": None, "ended_at": None,
    "elapsed": None, "time_limit": None, "time_left": None, "expected_start": None,
    "exit_code": None, "signal": None, "cause": None, "termination_note": None, "log": "/l/1.out",
    "error_log": None, "log_bytes": 0, "array": None, "depends": None, "dismissed": False,
    "comment": None, "result": None,
}  # fmt: skip


def view(number: int, **changes: Any) -> View:
    """Return a JobView as the API encodes it."""
    return {**BASE, "id": number, "label": str(number), "log": f"/l/{number}.out", **changes}


class FakeDaemon:
    """Listens on `path`; `answers` maps `"GET /v1/jobs"` to a reply or a function of the body."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests: list[tuple[str, str, Any]] = []
        self.answers: dict[str, Answer | bytes | Callable[[Any], Answer | bytes | None]] = {}
        self.api = "1.0"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(16)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the test closed it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)
        self.path.unlink(missing_ok=True)

    def bodies(self, path: str) -> list[Any]:
        return [body for _, target, body in self.requests if target.partition("?")[0] == path]

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve_connection, args=[connection], daemon=True).start()

    def _serve_connection(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rwb") as stream:
            self._answer(stream)

    def _answer(self, stream: Any) -> None:
        line = stream.readline()
        if not line:
            return  # it was only looked whether this daemon listens
        method, target, _ = line.decode().split(" ")
        length = 0
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.decode().partition(":")
            if name.lower() == "content-length":
                length = int(value)
        body = json.loads(stream.read(length)) if length else None
        self.requests.append((method, target, body))
        missing = (404, {"error": {"code": "not_found", "message": "No such thing.", "exit": 3}})
        answer = self.answers.get(f"{method} {target.partition('?')[0]}", missing)
        if callable(answer):
            answer = answer(body)
        if answer is None:
            return  # close the connection without a reply
        if isinstance(answer, bytes):
            stream.write(answer)
            return
        status, value = answer
        data = json.dumps(value).encode()
        head = (
            f"HTTP/1.1 {status} X\r\nStoker-Api: {self.api}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        stream.write(head.encode() + data)


def chunked(*pieces: bytes, end: bool = True) -> bytes:
    """Return a chunked reply, without its end if `end` is False."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head + body + (b"0\r\n\r\n" if end else b"")


def in_home(home: Path) -> FakeDaemon:
    """Return a fake daemon on the socket that commands connect to."""
    assert os.environ["STOKER_HOME"] == str(home)
    return FakeDaemon(home / "run" / "daemon.sock")
