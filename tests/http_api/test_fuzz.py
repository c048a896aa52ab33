"""Requests generated from the schema of the API: rejected or served, never an error."""

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from stoker.daemon.routes.openapi import document

# Excluded: requests that end the daemon, write a file of the caller's choice, or never end.
schema = (
    schemathesis.openapi.from_dict(document())
    .exclude(path="/v1/daemon/stop")
    .exclude(path="/v1/backup")
    .exclude(path="/v1/events")
    .exclude(path="/v1/live")
    .exclude(path="/v1/wait")
)

HEADERS = {"Host": "localhost"}
"""Without the port, with which a request looks like one of a browser and needs a session."""


class Bridge:
    """Loopback TCP on one side, the daemon's socket on the other."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        """Forward one connection until either side closes it."""
        with near, socket.socket(socket.AF_UNIX) as far, contextlib.suppress(OSError):
            far.connect(self.path)
            while True:
                for one in select.select([near, far], [], [])[0]:
                    data = one.recv(65536)
                    if not data:
                        return
                    (far if one is near else near).sendall(data)


@pytest.fixture(scope="module")
def bridge() -> Iterator[Bridge]:
    """A separate daemon."""
    base = Path(tempfile.mkdtemp(prefix="skf-", dir="/tmp"))
    env = {**os.environ, "STOKER_HOME": str(base / "h"), "HOME": str(base)}
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "stoker.daemon", "run", "--gpus", "0,1",
         "--ready-fd", str(writer)],
        env=env, cwd=base, pass_fds=[writer], start_new_session=True,
    )  # fmt: skip
    os.close(writer)
    with os.fdopen(reader) as ready:
        line = ready.readline()
    assert line.startswith("ready"), line
    tunnel = Bridge(str(base / "h" / "run" / "daemon.sock"))
    try:
        yield tunnel
        assert process.poll() is None, "the daemon died"
    finally:
        tunnel.listener.close()
        process.terminate()
        process.wait(20)
        shutil.rmtree(base, ignore_errors=True)


def harmless(case: schemathesis.Case) -> None:
    """Make every generated submission run `true`, and every generated port a loopback port."""
    body = case.body
    if case.path == "/v1/listen" and isinstance(body, dict) and "address" in body:
        body["address"] = "127.0.0.1:0"
    if case.path != "/v1/jobs" or not isinstance(body, dict):
        return
    if isinstance(body.get("shell", ""), str):
        body["shell"] = "/bin/true"
    what = body.get("what")
    if isinstance(what, dict):
        if isinstance(what.get("argv"), list):
            what["argv"][:1] = ["/bin/true"]
        if isinstance(what.get("script"), str):
            what["script"] = what["script"].removeprefix("#!")


@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_generated_requests_are_rejected_or_served(case: schemathesis.Case, bridge: Bridge) -> None:
    harmless(case)
    response = case.call(base_url=bridge.url, headers=HEADERS, timeout=20)
    assert response.status_code < 500, response.text
    if response.status_code >= 400 and response.headers.get("stoker-api"):
        error = json.loads(response.text)["error"]
        assert error["message"]
        assert error["exit"] in range(1, 7)
    case.validate_response(response, checks=[status_code_conformance, response_schema_conformance])
