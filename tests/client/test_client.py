import socket
import threading
from pathlib import Path

import pytest

import stoker.api
from client.fake_daemon import FakeDaemon, chunked, view
from stoker.client import autostart
from stoker.client.client import Client
from stoker.client.errors import ConnectionBroken, DaemonUnreachable, OutcomeUnknown, StokerError
from stoker.client.transport import query, quote


def test_a_missing_daemon_is_unreachable(home: Path) -> None:
    with pytest.raises(DaemonUnreachable, match="stoker daemon start") as caught:
        Client().daemon()
    assert caught.value.exit_code == 4


def test_a_socket_without_a_daemon_is_unreachable(home: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(home / "dead.sock"))
        with pytest.raises(DaemonUnreachable):
            Client(str(home / "dead.sock")).daemon()


def test_selectors_and_filters_are_sent(fake: FakeDaemon) -> None:
    fake.answers["GET /v1/jobs"] = (200, {"jobs": [view(1)]})
    assert Client().jobs(["3-7", "%a b"], state=None, limit=5)["jobs"][0]["label"] == "1"
    assert fake.requests[0][1] == "/v1/jobs?select=3-7&select=%25a%20b&limit=5"


def test_an_error_reply_becomes_an_exception_with_its_exit_code(fake: FakeDaemon) -> None:
    error = {"code": "impossible", "message": "Nine GPUs? There are four.", "exit": 6}
    fake.answers["POST /v1/jobs"] = (422, {"error": error})
    with pytest.raises(StokerError) as caught:
        Client().submit({"what": {"line": "x"}})
    assert caught.value.as_dict() == error


def test_a_submission_is_repeated_once_under_the_same_key(fake: FakeDaemon) -> None:
    replies = iter([None, (200, {"first": 1, "label": "1"})])
    fake.answers["POST /v1/jobs"] = lambda _: next(replies)
    assert Client().submit({"what": {"line": "x"}})["label"] == "1"
    first, second = fake.bodies("/v1/jobs")
    assert first["key"] == second["key"]
    assert len(first["key"]) == 32


def test_a_change_without_a_key_is_not_repeated_and_may_have_been_done(fake: FakeDaemon) -> None:
    fake.answers["POST /v1/retry"] = lambda _: None
    with pytest.raises(OutcomeUnknown, match="It may have been done"):
        Client().retry(["1"])
    assert len(fake.requests) == 1


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/sweeps"])
def test_a_submission_without_a_reply_may_be_queued(fake: FakeDaemon, path: str) -> None:
    fake.answers[f"POST {path}"] = lambda _: None
    submit = Client().submit if path == "/v1/jobs" else Client().sweep
    with pytest.raises(OutcomeUnknown) as caught:
        submit({"what": {"line": "x"}})
    assert "It may be queued" in caught.value.message
    assert "Try again" not in caught.value.message
    assert caught.value.exit_code == 4
    assert len({body["key"] for body in fake.bodies(path)}) == 1
    assert len(fake.requests) == 3


def test_a_daemon_that_cannot_be_started_again_leaves_a_submission_uncertain(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise StokerError("The daemon ended before it was ready.")

    def die(_: object) -> None:
        fake.path.unlink()

    fake.answers["POST /v1/jobs"] = die
    monkeypatch.setattr(autostart, "start_daemon", fail)
    monkeypatch.setattr(autostart, "OTHER_START_SECONDS", 0.0)
    with pytest.raises(OutcomeUnknown) as caught:
        Client(autostart=True).submit({"what": {"line": "x"}})
    assert "It may be queued" in caught.value.message


def test_a_change_without_a_key_that_times_out_is_not_repeated(
    fake: FakeDaemon,
) -> None:
    late = threading.Event()
    fake.answers["POST /v1/retry"] = lambda _: late.wait(10) and None
    with pytest.raises(OutcomeUnknown, match="It may have been done"):
        Client(autostart=True)._post("/retry", {"select": ["1"]}, timeout=0.05)
    late.set()
    assert len(fake.requests) == 1


def test_a_rejection_after_a_broken_connection_is_certain(fake: FakeDaemon) -> None:
    error = {"code": "queue_full", "message": "The queue is full.", "exit": 1}
    replies = iter([None, (409, {"error": error})])
    fake.answers["POST /v1/jobs"] = lambda _: next(replies)
    with pytest.raises(StokerError) as caught:
        Client().submit({"what": {"line": "x"}})
    assert not isinstance(caught.value, OutcomeUnknown)
    assert caught.value.code == error["code"]


def test_a_rejection_by_a_stopping_daemon_is_certain(fake: FakeDaemon) -> None:
    gone = {"code": "stopping", "message": "The daemon has just ended. Try again.", "exit": 4}
    fake.answers["POST /v1/jobs"] = (503, {"error": gone})
    with pytest.raises(ConnectionBroken) as caught:
        Client().submit({"what": {"line": "x"}})
    assert not isinstance(caught.value, OutcomeUnknown)


def test_a_read_without_a_reply_may_be_repeated(fake: FakeDaemon) -> None:
    fake.answers["GET /v1/jobs"] = lambda _: None
    with pytest.raises(ConnectionBroken, match="Try again"):
        Client().jobs()


def test_a_log_streams_as_raw_bytes(fake: FakeDaemon) -> None:
    fake.answers["GET /v1/jobs/42_3/log"] = chunked(b"a\r\xff", b"\0b\n")
    assert b"".join(Client().log("42_3", follow=True, tail=5)) == b"a\r\xff\0b\n"
    assert fake.requests[0][1] == "/v1/jobs/42_3/log?follow=1&tail=5"


def test_a_log_cut_short_is_noticed(fake: FakeDaemon) -> None:
    fake.answers["GET /v1/jobs/1/log"] = chunked(b"abc", end=False)
    with pytest.raises(ConnectionBroken):
        b"".join(Client().log("1"))


def test_a_body_that_ends_with_the_connection_is_read_whole(fake: FakeDaemon) -> None:
    fake.answers["GET /v1/daemon"] = b'HTTP/1.1 200 OK\r\nX: y\r\n\r\n{"pid": 7}'
    assert Client().daemon() == {"pid": 7}


def test_a_reply_that_is_not_http_is_an_error(fake: FakeDaemon) -> None:
    fake.answers["GET /v1/daemon"] = b"SSH-2.0-OpenSSH\r\n\r\n"
    with pytest.raises(StokerError, match="not HTTP"):
        Client().daemon()


@pytest.mark.parametrize("api", ["1.0", "1.1", "1.7"])
def test_a_daemon_of_the_same_major_version_works(fake: FakeDaemon, api: str) -> None:
    fake.api = api
    fake.answers["GET /v1/daemon"] = (200, {"pid": 7})
    assert Client().daemon()["pid"] == 7


@pytest.mark.parametrize(("api", "advice"), [("0.9", "daemon restart"), ("2.0", "Upgrade")])
def test_a_daemon_of_another_major_version_is_rejected_with_advice(
    fake: FakeDaemon, api: str, advice: str
) -> None:
    fake.api = api
    fake.answers["GET /v1/daemon"] = (200, {"pid": 7})
    with pytest.raises(StokerError, match=advice):
        Client().daemon()


def test_quoting() -> None:
    assert quote("a/b c?é") == "a%2Fb%20c%3F%C3%A9"
    assert query([("a", 1), ("b", None), ("c", "x&y")]) == "?a=1&c=x%26y"
    assert query([]) == ""


# -- the Python API -----------------------------------------------------------------------


def test_the_python_api_reports_an_unknown_outcome(fake: FakeDaemon) -> None:
    fake.answers["POST /v1/jobs"] = lambda _: None
    with pytest.raises(stoker.api.Unreachable, match="It may be queued"):
        stoker.api.Client(fake.path).submit("x")


def test_the_python_api_keeps_a_receipt_while_the_daemon_restarts(fake: FakeDaemon) -> None:
    fake.answers["POST /v1/jobs"] = (200, {"first": 7, "last": 7, "count": 1, "label": "7"})
    tries = iter([None] * 3 + [(200, {"jobs": [view(7)]})])
    fake.answers["GET /v1/jobs"] = lambda _: next(tries)
    assert stoker.api.Client(fake.path).submit("x").id == 7


def test_the_python_api_tells_a_rejection_from_an_unknown_outcome(fake: FakeDaemon) -> None:
    error = {"code": "queue_full", "message": "The queue is full.", "exit": 1}
    replies = iter([None, (409, {"error": error})])
    fake.answers["POST /v1/jobs"] = lambda _: next(replies)
    with pytest.raises(stoker.api.Full):
        stoker.api.Client(fake.path).submit("x")
