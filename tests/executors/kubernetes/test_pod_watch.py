"""PodWatch: what it reports, and when it lists again."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stoker.executors.kubernetes.api import pod_watch
from stoker.executors.kubernetes.api.pod_watch import ApiError, PodWatch

Lines = list[dict[str, Any] | ApiError]


def pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def change(type: str, name: str, version: int) -> dict[str, Any]:
    return {"type": type, "object": pod(name, version)}


def refused(code: int) -> dict[str, Any]:
    return {"type": "ERROR", "object": {"kind": "Status", "code": code, "message": f"is {code}"}}


class ScriptedApi:
    """Answers with the given lists and watches, and ends the run after the last."""

    def __init__(self, lists: list[Any], watches: list[Lines]) -> None:
        self.lists, self.watches = lists, watches
        self.requests: list[dict[str, Any]] = []

    async def get(self, path: str, params: dict[str, Any]) -> bytes:
        self.requests.append(params)
        if not self.lists:
            raise asyncio.CancelledError
        answer = self.lists.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return json.dumps(answer).encode()

    async def lines(self, path: str, params: dict[str, Any]) -> AsyncIterator[bytes]:
        self.requests.append(params)
        if not self.watches:
            raise asyncio.CancelledError
        for line in self.watches.pop(0):
            if isinstance(line, ApiError):
                raise line
            yield json.dumps(line).encode()


def listing(version: int, *names: str, next_page: str = "") -> dict[str, Any]:
    items = [pod(name, version) for name in names]
    return {"metadata": {"resourceVersion": str(version), "continue": next_page}, "items": items}


def run(api: ScriptedApi) -> list[tuple[str, Any]]:
    """Return what is reported: names for pods, the text for failures."""
    reported: list[tuple[str, Any]] = []

    def report(kind: str, what: Any) -> None:
        if kind == "listed":
            what = [each.name for each in what]
        reported.append((kind, what if isinstance(what, str | list) else what.name))

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(PodWatch(api, "/pods", "a=b", report).run())
    return reported


def test_all_pages_of_a_list_are_one_list_and_changes_follow() -> None:
    pages = [listing(5, "one", next_page="2"), listing(5, "two")]
    api = ScriptedApi(pages, [[change("MODIFIED", "one", 6), change("DELETED", "two", 7)]])
    assert run(api) == [("listed", ["one", "two"]), ("pod", "one"), ("deleted", "two")]
    assert api.requests[1]["continue"] == "2"
    assert api.requests[2]["resourceVersion"] == "5"


def test_a_watch_that_ends_continues_at_the_last_version_also_of_a_bookmark() -> None:
    watches: list[Lines] = [[change("ADDED", "one", 6), change("BOOKMARK", "", 9)], []]
    api = ScriptedApi([listing(5)], watches)
    assert run(api) == [("listed", []), ("pod", "one")]
    assert [each.get("resourceVersion") for each in api.requests] == [None, "5", "9", "9"]


def test_gone_inside_a_stream_lists_again_at_once() -> None:
    api = ScriptedApi([listing(5, "one"), listing(8, "two")], [[refused(410)]])
    assert run(api) == [("listed", ["one"]), ("listed", ["two"])]


@pytest.mark.parametrize("trouble", [refused(500), ApiError(0, "is 500")])
def test_a_cut_is_reported_and_lists_again(
    trouble: dict[str, Any] | ApiError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_watch, "FIRST_DELAY_SECONDS", 0.0)
    api = ScriptedApi([listing(5), listing(8)], [[trouble]])
    assert run(api) == [("listed", []), ("failed", "is 500"), ("listed", [])]


def test_a_list_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_watch, "FIRST_DELAY_SECONDS", 0.0)
    api = ScriptedApi([ApiError(403, "not you"), listing(5)], [])
    assert run(api) == [("failed", "not you"), ("listed", [])]


def test_a_watch_ends_when_its_credentials_are_not_accepted() -> None:
    reported: list[tuple[str, Any]] = []
    watch = PodWatch(
        ScriptedApi([ApiError(401, "Unauthorized")], []), "/pods", "a=b",
        lambda kind, what: reported.append((kind, what)),
    )  # fmt: skip
    with pytest.raises(ApiError):
        asyncio.run(watch.run())
    assert reported == [("failed", "Unauthorized")]


def test_a_silent_server_is_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_watch, "FIRST_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(pod_watch, "QUIET_SECONDS", 0.01)

    class SilentApi(ScriptedApi):
        async def lines(self, path: str, params: dict[str, Any]) -> AsyncIterator[bytes]:
            yield json.dumps(change("BOOKMARK", "", 6)).encode()
            await asyncio.sleep(30)

    api = SilentApi([listing(5)], [])
    assert run(api) == [("listed", []), ("failed", "the API server is silent")]
