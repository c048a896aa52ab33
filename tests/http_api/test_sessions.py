"""Browser sessions: every request is denied unless it is proved to come from our page."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.core.model.job import AttemptId
from stoker.daemon.http import sessions as module
from stoker.daemon.http.auth import TCP_AUTH, TcpAuth
from stoker.daemon.http.permission import (
    REPORT_SOURCE,
    SESSION,
    check_permission,
    cookie_name,
    is_public,
    session_of,
)
from stoker.daemon.http.sessions import Session, Sessions
from stoker.engine import CommandRejected
from stoker.executors.report_tokens import ReportSource, ReportTokens

HOST = "127.0.0.1:8000"
OWN = {"stoker-session": "1", "sec-fetch-site": "same-origin"}
TOKEN = "t" * 43
NO_REPORTS = ReportTokens(lambda: "key")


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    return Sessions(str(tmp_path / "sessions.json"))


def opened(sessions: Sessions, rights: str = "act", **more: Any) -> tuple[Session, str]:
    return sessions.open(sessions.create(rights, 3600, **more)[1])


def scope(
    method: str = "GET", path: str = "/v1/jobs", headers: dict[str, str] | None = None,
    uid: int | None = None, query: str = "", cookie: str = "", scheme: str = "http",
) -> dict[str, Any]:  # fmt: skip
    """A request to a TCP port; with `uid`, over the socket."""
    fields = {"host": HOST, **(headers or {})}
    if cookie:
        fields["cookie"] = f"other=1; {cookie_name('8000', scheme == 'https')}={cookie}"
    state = {} if uid is not None else {TCP_AUTH: TcpAuth(TOKEN, lambda: None)}
    return {
        "type": "http", "method": method, "path": path, "scheme": scheme, "state": state,
        "headers": [(name.encode(), value.encode()) for name, value in fields.items() if value],
        "query_string": query.encode(), "client": ("", -1 if uid is None else uid),
    }  # fmt: skip


def status(sessions: Sessions, *args: Any, **more: Any) -> int:
    """Return the status of a denial, 200 if the request is allowed."""
    denial = check_permission(scope(*args, **more), sessions, ("gpu1.lab.org",), (), NO_REPORTS)
    return denial.status if denial else 200


def test_the_socket_and_the_token_need_no_session(sessions: Sessions) -> None:
    mine = os.getuid()
    for host in ("stoker", "localhost"):
        assert status(sessions, "POST", "/v1/cancel", {"host": host}, uid=mine) == 200
    assert status(sessions, headers={"host": "stoker"}, uid=mine + 12345) == 403
    assert status(sessions, "POST", headers={"authorization": f"Bearer {TOKEN}"}) == 200
    assert status(sessions, headers={"authorization": "Bearer wrong"}) == 401
    assert status(sessions, headers={"authorization": f"Bearer {TOKEN}", "host": "any.org"}) == 200


@pytest.mark.parametrize(
    "headers", [{}, {"host": "stoker", "origin": "http://evil.org"},
                {"host": "localhost", "sec-fetch-site": "cross-site"}],
)  # fmt: skip
def test_a_browser_at_a_forwarded_socket_needs_a_session(
    sessions: Sessions, headers: dict[str, str]
) -> None:
    assert status(sessions, headers=headers, uid=os.getuid()) in (401, 403, 421)
    assert status(sessions, "POST", "/v1/cancel", headers, uid=os.getuid()) in (401, 403, 421)
    _, cookie = opened(sessions)
    assert status(sessions, cookie=cookie, uid=os.getuid()) == 200


@pytest.mark.parametrize(
    "host", ["evil.org", "evil.org:8000", "127.0.0.1.evil.org:8000", "localhost.evil.org", ""]
)
def test_other_host_names_are_refused(sessions: Sessions, host: str) -> None:
    _, cookie = opened(sessions)
    assert status(sessions, headers={"host": host}, cookie=cookie) == 421
    assert status(sessions, path="/", headers={"host": host}) == 421


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000",
                                  "gpu1.lab.org:8000"])  # fmt: skip
def test_own_host_names_are_served(sessions: Sessions, host: str) -> None:
    _, cookie = opened(sessions)
    assert status(sessions, headers={"host": host}, cookie=cookie) == 200


def test_only_files_of_the_page_are_public(sessions: Sessions) -> None:
    assert status(sessions, path="/") == status(sessions, path="/ui/app.js") == 200
    for path in ("/v1/jobs", "/v1/daemon", "/v1/live", "/metrics", "/v1/openapi.json", "/other"):
        assert status(sessions, path=path) == 401
    for method in ("POST", "DELETE", "PUT", "PATCH", "OPTIONS"):
        assert not is_public(method, "/ui/app.js")
        assert status(sessions, method, "/") == 401


def test_a_code_is_taken_without_a_session_if_it_is_small(sessions: Sessions) -> None:
    path, size = "/v1/sessions/open", {"content-length": "50"}
    assert status(sessions, "POST", path, size) == 200
    assert status(sessions, "POST", path, {"content-length": "5000"}) == 413
    assert status(sessions, "POST", path) == 413
    assert status(sessions, "POST", path, {**size, "sec-fetch-site": "cross-site"}) == 403
    assert status(sessions, "POST", path, {**size, "host": "evil.org"}) == 421


def test_reading_needs_a_session_and_our_page(sessions: Sessions) -> None:
    session, cookie = opened(sessions, "view")
    request = scope(cookie=cookie)
    assert check_permission(request, sessions, (), (), NO_REPORTS) is None
    assert session_of(request) == session
    assert request["state"][TCP_AUTH].authenticated
    assert status(sessions, cookie="wrong") == 401
    assert status(sessions, headers={"sec-fetch-site": "cross-site"}, cookie=cookie) == 403
    assert status(sessions, headers={"sec-fetch-site": "same-site"}, cookie=cookie) == 403
    assert SESSION not in scope()["state"]


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "FOO"])
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (OWN, 200),
        ({"stoker-session": "1", "origin": f"http://{HOST}"}, 200),
        ({"stoker-session": "1", "origin": "http://evil.org"}, 403),
        ({"stoker-session": "1", "origin": "http://127.0.0.1:9000"}, 403),
        ({"stoker-session": "1", "origin": f"https://{HOST}"}, 403),
        ({"stoker-session": "1"}, 403),
        ({"sec-fetch-site": "same-origin"}, 403),
        ({**OWN, "sec-fetch-site": "cross-site"}, 403),
        ({**OWN, "sec-fetch-site": "none"}, 403),
        ({}, 403),
    ],
)
def test_changes_need_proof_that_they_come_from_our_page(
    sessions: Sessions, method: str, headers: dict[str, str], expected: int
) -> None:
    _, cookie = opened(sessions)
    assert status(sessions, method, "/v1/cancel", headers, cookie=cookie) == expected
    _, view = opened(sessions, "view")
    assert status(sessions, method, "/v1/cancel", headers, cookie=view) == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/listen"), ("DELETE", "/v1/listen/127.0.0.1:1"), ("POST", "/v1/sessions"),
        ("DELETE", "/v1/sessions/abc"), ("POST", "/v1/daemon/stop"), ("POST", "/v1/backup"),
    ],
)  # fmt: skip
def test_no_session_may_open_ports_or_stop_the_daemon(
    sessions: Sessions, method: str, path: str
) -> None:
    session, cookie = opened(sessions)
    assert status(sessions, method, path, OWN, cookie=cookie) == 403
    _, view = opened(sessions, "view")
    own = f"/v1/sessions/{session.id}"
    assert status(sessions, "DELETE", own, OWN, cookie=cookie) == 200
    assert status(sessions, "DELETE", own, OWN, cookie=view) == 403


def test_a_session_without_logs_cannot_read_output(sessions: Sessions) -> None:
    _, cookie = opened(sessions, "view", logs=False)
    for path, query in (("/v1/jobs/1/log", ""), ("/v1/jobs", "tail=3"), ("/v1/jobs", "a=1&hook=1")):
        assert status(sessions, path=path, query=query, cookie=cookie) == 403
    assert status(sessions, query="limit=3", cookie=cookie) == 200


def test_cookies_of_two_ports_and_of_tls_have_different_names() -> None:
    names = {cookie_name("1", False), cookie_name("2", False), cookie_name("1", True)}
    assert names == {"stoker-1", "stoker-2", "__Host-stoker-1"}


def test_a_code_opens_one_session(sessions: Sessions) -> None:
    _, code = sessions.create("act", 3600)
    session, cookie = sessions.open(code)
    assert sessions.find(cookie) == session
    for wrong in (code, "", "x"):
        with pytest.raises(CommandRejected, match="has expired"):
            sessions.open(wrong)


def test_a_code_is_valid_for_a_minute(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    _, code = sessions.create("act", 3600)
    now = time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + module.CODE_SECONDS + 1)
    with pytest.raises(CommandRejected, match="has expired"):
        sessions.open(code)


def test_a_shared_code_opens_several_sessions_that_end_together(sessions: Sessions) -> None:
    shared, code = sessions.create("view", 3600, share=True)
    assert sessions.find(code) is None, "the code itself is no cookie"
    cookies = [sessions.open(code)[1] for _ in range(3)]
    assert len(sessions.all()) == 4
    sessions.end(shared.id)
    assert [sessions.find(cookie) for cookie in cookies] == [None] * 3
    with pytest.raises(CommandRejected, match="has expired"):
        sessions.open(code)


def test_a_session_ends(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    session, cookie = opened(sessions)
    assert sessions.is_open(session)
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(module.time, "time", lambda: now + 3601)
        assert sessions.find(cookie) is None
        assert not sessions.is_open(session)
    sessions.end(session.id)
    assert not sessions.is_open(session)
    with pytest.raises(CommandRejected, match="There is no session"):
        sessions.end(session.id)


def test_sessions_and_their_ports_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "sessions.json"
    before = Sessions(str(path))
    session, cookie = opened(before)
    before.keep_address(HOST)
    text = path.read_text()
    assert cookie not in text
    assert path.stat().st_mode & 0o077 == 0
    after = Sessions(str(path))
    assert (after.find(cookie), after.addresses) == (session, [HOST])
    after.forget_address(HOST)
    assert Sessions(str(path)).addresses == []


def test_without_sessions_no_port_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "sessions.json"
    Sessions(str(path)).keep_address(HOST)
    assert Sessions(str(path)).addresses == []


@pytest.mark.parametrize("damage", ["readable", "no JSON", "a directory"])
def test_a_file_that_cannot_be_trusted_is_ignored(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "sessions.json"
    _, cookie = opened(Sessions(str(path)))
    if damage == "readable":
        path.chmod(0o644)
    elif damage == "no JSON":
        path.write_text("{")
    else:
        path.unlink()
        path.mkdir()
    assert Sessions(str(path)).find(cookie) is None


def test_the_number_of_sessions_is_bounded(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CODES", 2)
    monkeypatch.setattr(module, "MAX_SESSIONS", 1)
    for uid in (1000, 1001):  # users do not take each other's places
        sessions.create("act", 60, uid=uid)
        sessions.create("act", 60, uid=uid)
        with pytest.raises(CommandRejected, match="too many"):
            sessions.create("act", 60, uid=uid)
    for uid in (1002, 1003):
        opened(sessions, uid=uid)
        with pytest.raises(CommandRejected, match="too many"):
            sessions.create("view", 60, share=True, uid=uid)


def test_the_token_of_an_attempt_gives_access_to_its_report_only(sessions: Sessions) -> None:
    source = ReportSource(AttemptId(7, 2), 0)
    bearer = {"authorization": f"Bearer {NO_REPORTS.issue(source)}"}
    request = scope("POST", "/v1/report", bearer)
    assert check_permission(request, sessions, (), (), NO_REPORTS) is None
    assert request["state"][REPORT_SOURCE] == source
    assert request["state"][TCP_AUTH].authenticated, "its connection is not closed"
    assert status(sessions, "POST", "/v1/cancel", bearer) == 401
    assert status(sessions, "GET", "/v1/report", bearer) == 401
    for text in ("", "Bearer", f"Bearer {NO_REPORTS.issue(source)}0", "Bearer 7.2.0.", "Basic x"):
        assert status(sessions, "POST", "/v1/report", {"authorization": text}) == 401
    other = ReportTokens(lambda: "another key")
    denied = check_permission(scope("POST", "/v1/report", bearer), sessions, (), (), other)
    assert denied is not None
    assert denied.status == 401
