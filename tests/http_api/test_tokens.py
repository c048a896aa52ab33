"""Named tokens of users: rights, expiry, revocation."""

from __future__ import annotations

import asyncio
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from conftest import Run
from daemon.users_fixture import ADA, ANA, identities
from e2e.daemon_fixture import DaemonFixture
from stoker import wire
from stoker.client.client import Client
from stoker.client.errors import StokerError
from stoker.client.tcp_endpoint import Endpoint
from stoker.daemon.http import tokens as module
from stoker.daemon.http.auth import TCP_AUTH, TcpAuth
from stoker.daemon.http.permission import CALLER, caller_of, check_permission
from stoker.daemon.http.sessions import Sessions
from stoker.daemon.http.tokens import DAY_SECONDS, Tokens
from stoker.daemon.identities import Identities
from stoker.daemon.rights import Caller, Need, refusal
from stoker.daemon.routes import app
from stoker.engine import CommandRejected
from stoker.executors.report_tokens import ReportTokens


class Later:
    """Calls that are due later."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, seconds: float, function: Callable[[], None]) -> None:
        self.calls.append((seconds, function))


@pytest.fixture
def later() -> Later:
    return Later()


@pytest.fixture
def tokens(tmp_path: Path, later: Later) -> Tokens:
    return Tokens(str(tmp_path / "tokens.json"), later)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000_000.0]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    return now


def make(tokens: Tokens, name: str = "laptop", uid: int | None = ANA, **more: Any) -> str:
    fields = {"rights": "act", "seconds": DAY_SECONDS, "user": "ana", **more}
    return tokens.create(name, uid=uid, **fields)[1]


def request(text: str, auth: TcpAuth | None = None) -> dict[str, Any]:
    """A request with a token to a TCP port."""
    return {
        "type": "http", "method": "GET", "path": "/v1/jobs", "scheme": "http",
        "state": {TCP_AUTH: auth or TcpAuth("shared" * 8, lambda: None)}, "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8000"), (b"authorization", f"Bearer {text}".encode())],
    }  # fmt: skip


def check(
    tokens: Tokens, scope: dict[str, Any], tmp_path: Path, users: Identities | None = None
) -> int:
    """Return the status of a denial, 200 if the request is allowed."""
    sessions, reports = Sessions(str(tmp_path / "sessions.json")), ReportTokens(lambda: "key")
    denial = check_permission(scope, sessions, (), (), reports, users, tokens)
    return denial.status if denial else 200


def test_a_token_is_stored_hashed_in_a_private_file(tokens: Tokens, tmp_path: Path) -> None:
    text = make(tokens)
    path = tmp_path / "tokens.json"
    assert text.startswith("stk_")
    assert len(text) >= 4 + 43
    assert text not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = Tokens(str(path)).find(text)
    assert found is not None
    assert (found.name, found.uid, found.rights) == ("laptop", ANA, "act")
    assert Tokens(str(path)).find(text[:-1]) is None


def test_a_token_acts_as_its_user_in_system_mode(tokens: Tokens, tmp_path: Path) -> None:
    scope = request(make(tokens))
    assert check(tokens, scope, tmp_path, identities()) == 200
    caller = caller_of(scope)
    assert caller is not None
    assert (caller.uid, caller.is_admin, caller.may_act, caller.is_local) == (
        ANA, False, True, False,
    )  # fmt: skip
    assert scope["state"][TCP_AUTH].authenticated


@pytest.mark.parametrize(
    ("rights", "allowed"),
    [("view", {Need.VIEW}), ("act", {Need.VIEW, Need.ACT, Need.ADMIN})],
)
@pytest.mark.parametrize("users", [None, identities()])
def test_a_token_makes_no_tokens_and_opens_no_ports(
    tokens: Tokens, tmp_path: Path, users: Identities | None, rights: str, allowed: set[Need]
) -> None:
    uid = ADA if users else None
    scope = request(make(tokens, uid=uid, user="ada", rights=rights))
    assert check(tokens, scope, tmp_path, users) == 200
    caller = caller_of(scope)
    assert caller is not None
    assert {need for need in Need if refusal(need, caller) is None} == allowed


def test_a_uid_that_has_another_name_now_is_not_served(tokens: Tokens, tmp_path: Path) -> None:
    text = make(tokens, user="former")
    assert check(tokens, request(text), tmp_path, identities()) == 401
    without_uid = make(tokens, name="other", uid=None)
    assert check(tokens, request(without_uid), tmp_path, identities()) == 401


def test_unknown_tokens_get_no_access(tokens: Tokens, tmp_path: Path) -> None:
    make(tokens)
    for text in ("stk_wrong", "", "stk_"):
        assert check(tokens, request(text), tmp_path) == 401
    scope = request("stk_wrong")
    scope["headers"] *= 2
    assert check(tokens, scope, tmp_path) == 401


def test_an_expired_token_ends_with_its_connections(
    tokens: Tokens, tmp_path: Path, later: Later, clock: list[float]
) -> None:
    auth, aborted = TcpAuth("shared" * 8, lambda: None), list[int]()
    text = make(tokens, seconds=2.5 * DAY_SECONDS)
    scope = request(text, auth)
    scope["state"]["abort"] = lambda: aborted.append(1)
    for left in (DAY_SECONDS, DAY_SECONDS, DAY_SECONDS / 2):
        assert check(tokens, scope, tmp_path) == 200
        assert [seconds for seconds, _ in later.calls] == [left]
        clock[0] += left
        later.calls.pop()[1]()
    assert aborted == [1]
    assert later.calls == []
    assert check(tokens, scope, tmp_path) == 401
    assert tokens.all() == []


def test_a_revoked_token_ends_its_connections_only(
    tokens: Tokens, tmp_path: Path, later: Later
) -> None:
    aborted: list[str] = []
    auths = []
    for name in ("one", "two"):
        auths.append(TcpAuth("shared" * 8, lambda: None))
        scope = request(make(tokens, name=name), auths[-1])
        scope["state"]["abort"] = lambda name=name: aborted.append(name)
        assert check(tokens, scope, tmp_path) == 200
    first = tokens.all()[0]
    tokens.revoke(first)
    assert aborted == ["one"]
    assert [token.name for token in Tokens(str(tmp_path / "tokens.json")).all()] == ["two"]


def test_the_last_use_is_written_once_an_hour(
    tokens: Tokens, tmp_path: Path, clock: list[float]
) -> None:
    text = make(tokens)
    path = tmp_path / "tokens.json"
    uses = []
    for seconds in (10.0, 10.0, 3600.0):
        clock[0] += seconds
        tokens.find(text)
        uses.append(Tokens(str(path)).all()[0].used)
    assert uses == [1_000_010.0, 1_000_010.0, 1_003_620.0]
    assert tokens.all()[0].used == clock[0]


def test_names_are_unique_per_user_and_the_number_is_bounded(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tokens)
    make(tokens, uid=ADA, user="ada")
    with pytest.raises(CommandRejected, match="laptop"):
        make(tokens)
    monkeypatch.setattr(module, "MAX_TOKENS_PER_USER", 1)
    with pytest.raises(CommandRejected, match="too many"):
        make(tokens, name="other")


def test_a_token_that_cannot_be_stored_does_not_exist(tokens: Tokens, tmp_path: Path) -> None:
    (tmp_path / "tokens.json").mkdir()
    with pytest.raises(CommandRejected, match="stored"):
        make(tokens)
    assert tokens.all() == []


@pytest.mark.parametrize(("chunks", "read"), [(3, 3), (1000, 2)])
def test_the_body_of_a_refused_request_is_read_so_that_its_client_sees_the_reply(
    monkeypatch: pytest.MonkeyPatch, chunks: int, read: int
) -> None:
    monkeypatch.setattr(app, "MAX_DISCARDED_BYTES", 100 if chunks > read else 1000)
    received: list[int] = []

    async def receive() -> dict[str, Any]:
        received.append(1)
        return {
            "type": "http.request", "body": b"x" * 60, "more_body": len(received) < chunks
        }  # fmt: skip

    scope = {"type": "http", "method": "POST", "headers": []}
    view = Caller(uid=ANA, name="ana", may_act=False)

    async def ask() -> None:
        request = Request({**scope, "state": {CALLER: view}}, receive)
        api: Any = SimpleNamespace(context=SimpleNamespace(is_system=False))
        route = next(each for each in app.ROUTES if (each.method, each.path) == ("POST", "/jobs"))
        await app._endpoint(api, route)(request)

    with pytest.raises(CommandRejected, match="only look"):
        asyncio.run(ask())
    assert len(received) == read


# -- a real daemon ----------------------------------------------------------------------------


@pytest.fixture
def box(home: Path, stoker: Run) -> DaemonFixture:
    return DaemonFixture(home, stoker).start()


@pytest.mark.e2e
def test_tokens_of_the_command_line(box: DaemonFixture) -> None:
    port = int(box.client.listen("127.0.0.1:0")["address"].rpartition(":")[2])
    texts = {
        rights: box.stoker(
            "token", "create", "--name", rights, "--rights", rights, check=True
        ).stdout.strip()
        for rights in ("view", "act")
    }
    clients = {name: Client(Endpoint("127.0.0.1", port, text)) for name, text in texts.items()}
    submission = {"what": {"line": "true"}, "directory": "/"}
    with pytest.raises(StokerError, match="only look"):
        clients["view"].submit(submission)
    assert clients["act"].submit(submission)["first"] == 1
    assert len(clients["view"].jobs(["1"])["jobs"]) == 1
    with pytest.raises(StokerError, match="machine of the daemon"):
        clients["act"].create_token("more", "act", 1)
    listed = box.stoker("token", "list", check=True).stdout
    assert listed.split()[:6] == ["NAME", "RIGHTS", "USED", "EXPIRES", "USER", "ID"]
    assert texts["view"] not in listed

    with socket.create_connection(("127.0.0.1", port), 20) as stream:
        head = f"GET /v1/live HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {texts['view']}\r\n\r\n"
        stream.sendall(head.encode())
        assert b" 200 " in stream.recv(65536)
        revoking = threading.Thread(target=box.stoker, args=("token", "revoke", "view"))
        revoking.start()
        while stream.recv(65536):
            pass  # frames until the daemon closes the connection
        revoking.join()
    with pytest.raises(StokerError):
        clients["view"].jobs()
    again = box.stoker("token", "revoke", "view")
    assert again.returncode == wire.EXIT_NOT_FOUND
    wrong = box.stoker("token", "create", "--rights", "all", "--name", "x")
    assert wrong.returncode == wire.EXIT_USAGE
