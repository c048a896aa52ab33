"""The API's thread sends requests to the daemon's thread and never reads its state."""

import contextlib
import http.client
import json
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from e2e.daemon_fixture import DaemonFixture
from stoker import places, wire
from stoker.daemon.routes.app import ROUTES
from stoker.daemon.routes.openapi import document

GUARDED = Path(__file__).with_name("guarded_daemon.py")
HELD = "echo begun; exec sleep 60"
SUBMIT = {"what": {"line": HELD}, "directory": "/tmp", "options": {"gpus": "1"}}
SWEEP = {
    "directory": "/tmp",
    "definition": {
        "name": "s", "method": "grid", "parameters": {"x": {"values": [1, 2]}},
        "command": "echo {x}",
    },
}  # fmt: skip

REQUESTS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/v1/jobs", SUBMIT),
    ("POST", "/v1/jobs", {**SUBMIT, "what": {"lines": [HELD] * 5}}),
    ("POST", "/v1/sweeps", SWEEP),
    ("GET", "/v1/sweeps", None),
    ("GET", "/v1/sweeps/7", None),
    ("POST", "/v1/sweeps/7", {"max_running": 1}),
    ("GET", "/v1/jobs?fold=1&tail=3", None),
    ("GET", "/v1/jobs?select=all&state=pending", None),
    ("GET", "/v1/jobs/columns?finished=1", None),
    ("GET", "/v1/jobs/columns?text=echo&sort=name&desc=1&offset=1&limit=2", None),
    ("GET", "/v1/jobs/2/why", None),
    ("GET", "/v1/eta", None),
    ("GET", "/v1/eta?select=2", None),
    ("GET", "/v1/jobs/1/log?tail=3", None),
    ("GET", "/v1/jobs/1/log?follow=1", None),
    ("GET", "/v1/jobs/1/metrics", None),
    ("GET", "/v1/gpus", None),
    ("GET", "/v1/gpus/history?minutes=5&step=2", None),
    ("GET", "/v1/jobs/1/usage", None),
    ("GET", "/v1/nodes", None),
    ("POST", "/v1/nodes", {"name": "b", "address": "ssh://nobody@127.0.0.1:1"}),
    ("POST", "/v1/nodes/check", {"name": "b"}),
    ("POST", "/v1/nodes/refresh", {"names": ["b"]}),
    ("POST", "/v1/nodes/remove", {"name": "b"}),
    ("GET", "/v1/history", None),
    ("POST", "/v1/sessions", {"rights": "view", "seconds": 600}),
    ("POST", "/v1/sessions/open", {"code": "wrong"}),
    ("GET", "/v1/sessions", None),
    ("DELETE", "/v1/sessions/none", None),
    ("POST", "/v1/tokens", {"name": "laptop"}),
    ("GET", "/v1/tokens", None),
    ("DELETE", "/v1/tokens/none", None),
    ("GET", "/v1/acts", None),
    ("POST", "/v1/limits", {"subject": "queue:short", "max_gpus": "2"}),
    ("GET", "/v1/limits", None),
    ("POST", "/v1/shares", {"subject": "ana", "weight": 2.0}),
    ("GET", "/v1/shares", None),
    (
        "POST",
        "/v1/reservations",
        {"name": "later", "begin": "now+1days", "duration": "1h", "gpus": "1"},
    ),
    ("GET", "/v1/reservations", None),
    ("DELETE", "/v1/reservations/later", None),
    ("GET", "/v1/export", None),
    ("GET", "/v1/usage?by=day", None),
    ("GET", "/v1/alarms", None),
    ("GET", "/v1/what-if?policy=fifo", None),
    ("GET", "/v1/notifications", None),
    ("POST", "/v1/notifications/test", {"target": "none"}),
    ("POST", "/v1/notifications/rules", {"target": "ana@lab.org", "when": "gpu free"}),
    ("DELETE", "/v1/notifications/rules/1", None),
    ("POST", "/v1/report", {}),
    ("GET", "/v1/daemon", None),
    ("GET", "/v1/events?after=0", None),
    ("GET", "/v1/live?topics=gpus,counts,jobs,sweeps,nodes&since=0", None),
    ("GET", "/v1/metrics", None),
    ("GET", "/v1/openapi.json", None),
    ("POST", "/v1/queues", {"name": "q"}),
    ("GET", "/v1/queues", None),
    ("DELETE", "/v1/queues/q", None),
    ("POST", "/v1/policies", {"name": "fifo"}),
    ("GET", "/v1/policies", None),
    ("POST", "/v1/wait", {"select": ["1"], "timeout": 0.2}),
    ("POST", "/v1/pause", {"select": ["1"]}),
    ("POST", "/v1/resume", {"select": ["1"]}),
    ("POST", "/v1/hold", {"select": ["6"]}),
    ("POST", "/v1/release", {"select": ["6"]}),
    ("POST", "/v1/edit", {"select": ["6"], "options": {"priority": 3}}),
    ("POST", "/v1/move", {"select": ["6"]}),
    ("POST", "/v1/kill", {"select": ["2"]}),
    ("POST", "/v1/cancel", {"select": ["3"]}),
    ("POST", "/v1/retry", {"select": ["3"]}),
    ("POST", "/v1/jobs/dismiss", {"select": ["2"]}),
    ("POST", "/v1/drain", {"devices": ["1"]}),
    ("POST", "/v1/undrain", {"devices": ["1"]}),
    ("POST", "/v1/history/hide", {"client": "grass"}),
    ("POST", "/v1/thresholds", {"load": 0.5}),
    ("POST", "/v1/listen", {"address": "127.0.0.1:0"}),
    ("DELETE", "/v1/listen/127.0.0.1:0", None),
    ("POST", "/v1/backup", {"path": "/dev/null/backup.db"}),
    ("POST", "/v1/daemon/stop", {"mode": "cancel"}),
]
ENDLESS = ("follow=1", "/events", "/live")


class Connection(http.client.HTTPConnection):
    """HTTP over the daemon's socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(places.socket_path())


@pytest.fixture
def guarded(idle: DaemonFixture, tmp_path: Path) -> Iterator[Path]:
    """A daemon that reports violations to this file."""
    report = tmp_path / "violations"
    report.touch()
    reader, writer = os.pipe()
    command = [
        sys.executable,
        str(GUARDED),
        str(report),
        "--gpus",
        "0,1",
        "--ready-fd",
        str(writer),
    ]
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            command, pass_fds=[writer], stderr=stderr, start_new_session=True
        )
    os.close(writer)
    assert select.select([reader], [], [], 30)[0]
    assert os.read(reader, 100).startswith(b"ready")
    os.close(reader)
    yield report
    if process.poll() is None:
        process.terminate()
    process.wait(20)


def ask(method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
    with contextlib.closing(Connection("localhost")) as connection:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        is_endless = any(word in path for word in ENDLESS)
        return response.status, response.read1(100) if is_endless else response.read()


def assert_is_of_its_type(method: str, path: str, reply: bytes) -> None:
    """Expect that a reply has the fields of its published type, and no others."""
    route = next(
        route
        for route in ROUTES
        if route.method == method
        and re.fullmatch(
            re.sub(r"{\w+}", "[^/]+", wire.PREFIX + route.path), path.partition("?")[0]
        )
    )
    if not isinstance(route.reply, str):
        decoded = msgspec.json.decode(reply, type=route.reply)
        assert msgspec.to_builtins(decoded) == json.loads(reply), f"{method} {path}"


def test_the_guard_sees_an_access_from_the_api_thread(tmp_path: Path) -> None:
    report = tmp_path / "violations"
    code = (
        "import sys, threading; sys.path.insert(0, sys.argv[2]); import guarded_daemon as g\n"
        "from stoker.core.state.state import State\n"
        "g.guard(State, sys.argv[1]); state = State()\n"
        "thread = threading.Thread(target=lambda: state.jobs, name='api')\n"
        "thread.start(); thread.join()\n"
    )
    subprocess.run([sys.executable, "-c", code, report, GUARDED.parent], check=True)
    assert report.read_text().endswith("reads State.jobs\n")


def test_every_route_asks_the_daemon_and_returns_its_type(
    guarded: Path, idle: DaemonFixture
) -> None:
    for method, path, body in REQUESTS:
        status, reply = ask(method, path, body)
        assert status < 500, f"{method} {path}: {status}"
        if status < 400:
            assert_is_of_its_type(method, path, reply)
        assert guarded.read_text() == "", f"{method} {path}"
        if path == "/v1/jobs" and method == "POST":
            idle.says(1, "begun")


def test_every_route_is_tried() -> None:
    tried = {(method, path.partition("?")[0]) for method, path, _ in REQUESTS}
    for path, methods in document()["paths"].items():
        start, _, end = path.partition("{")
        end = end.partition("}")[2]
        for method in methods:
            assert any(
                method.upper() == verb and route.startswith(start) and route.endswith(end)
                and route.count("/") == path.count("/")
                for verb, route in tried
            ), f"{method} {path} is not among the requests of this test"  # fmt: skip
