"""Columns and the live stream of a real daemon."""

import contextlib
import gzip
import http.client
import json
import select
import socket
from collections.abc import Generator
from typing import Any, NamedTuple

from e2e.daemon_fixture import DaemonFixture
from stoker import places


class Connection(http.client.HTTPConnection):
    """HTTP over the daemon's socket."""

    def __init__(self) -> None:
        super().__init__("localhost", timeout=30)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(places.socket_path())


class Reply(NamedTuple):
    status: int
    tag: str
    body: bytes


def get(path: str, **headers: str) -> Reply:
    with contextlib.closing(Connection()) as connection:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", path, headers=fields)
        response = connection.getresponse()
        return Reply(response.status, response.headers["ETag"] or "", response.read())


def columns(path: str = "") -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(get(f"/v1/jobs/columns{path}").body)
    return reply


def frames(topics: str) -> Generator[tuple[str, dict[str, Any]]]:
    """Yield the frames of a stream, until the daemon ends."""
    with contextlib.closing(Connection()) as connection:
        connection.request("GET", f"/v1/live?topics={topics}")
        with contextlib.closing(connection.getresponse()) as response:
            event = ""
            for line in response:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    event = value
                elif name == "data":
                    yield event, json.loads(value)


def test_a_list_is_compressed_and_cached_until_something_changes(idle: DaemonFixture) -> None:
    idle.start("{gpu:1}")
    idle.submit("--gpus", "1", "sleep", "60")
    idle.submit("--gpus", "1", "--name", "eval", "sleep", "61")
    response = get("/v1/jobs/columns", Accept_Encoding="gzip")
    reply = json.loads(gzip.decompress(response.body))
    assert reply["columns"]["id"] == [1, 2]
    assert reply["dictionary"]["name"] == ["sleep", "eval"]
    idle.becomes(1, "RUNNING")
    tag = get("/v1/jobs/columns").tag
    assert get("/v1/jobs/columns", If_None_Match=tag).status == 304
    assert get("/v1/jobs/columns?text=eval", If_None_Match=tag).status == 200
    idle.submit("--hold", "true")
    assert get("/v1/jobs/columns", If_None_Match=tag).status == 200
    assert columns("?text=61+EVAL")["columns"]["id"] == [2]
    page = columns("?sort=submitted&desc=1&offset=1&limit=1")
    assert (page["columns"]["id"], page["total"], page["offset"]) == ([2], 3, 1)
    assert get("/v1/jobs/columns?sort=nonsense").status == 400
    assert get("/v1/live?topics=nonsense").status == 400


def test_a_restart_ends_streams_and_is_another_boot(idle: DaemonFixture) -> None:
    idle.start("{gpu:1}")
    stream = frames("counts,jobs,gpus")
    event, hello = next(stream)
    assert (event, hello["read_only"], hello["rights"]) == (
        "hello",
        False,
        ["view", "act", "admin"],
    )
    assert hello["boot"] == columns()["boot"]
    idle.submit("sleep", "60")
    seen = set()
    for event, data in stream:
        seen.add(event)
        if event == "jobs" and [row["state"] for row in data["changed"]] == ["RUNNING"]:
            break
    assert {"counts", "jobs", "gpus"} >= seen >= {"counts", "jobs"}
    idle.crash()
    idle.up()
    stream.close()
    with contextlib.closing(frames("jobs")) as stream:
        _, again = next(stream)
    assert again["boot"] != hello["boot"]
    assert columns()["columns"]["id"] == [1]


def test_a_reader_that_never_reads_is_disconnected(idle: DaemonFixture) -> None:
    idle.start("{gpu:1}")
    idle.submit("--gpus", "1", "sleep", "60")
    idle.submit("--gpus", "1", "--hold", "--array", "1-1500", "true")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as silent:
        silent.connect(places.socket_path())
        silent.sendall(b"GET /v1/live?topics=jobs HTTP/1.1\r\nHost: stoker\r\n\r\n")
        silent.recv(1)  # it is a reader now, and reads no more
        closed = select.poll()
        closed.register(silent, select.POLLHUP)
        with contextlib.closing(frames("jobs")) as stream:
            assert next(stream)[0] == "hello"
            for at in range(200):
                (idle.client.hold if at % 2 else idle.client.release)(["all"])
                assert next(stream)[0] == "jobs"
                if closed.poll(0):
                    break
            else:
                raise AssertionError("it is still connected")
    assert idle.client.daemon()["warnings"] == []
