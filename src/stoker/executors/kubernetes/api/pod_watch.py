"""PodWatch: lists pods and watches them, and lists again after every cut. Runs in the helper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import msgspec

from stoker.executors.kubernetes.api.pods import GONE, Pod, PodList, Status, WatchEvent

UNAUTHORIZED = 401
PAGE_SIZE = 500
WATCH_SECONDS = 300
"""Time after which the server ends a watch."""
QUIET_SECONDS = 150.0
"""Longest silence of a server that sends bookmarks, which it does every minute."""
FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.5, 10.0
"""Pause after a failure; it doubles."""


class ApiError(Exception):
    """The server refused a request, or did not answer it: status 0."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api(Protocol):
    """Requests to the server; ApiError if they fail."""

    async def get(self, path: str, params: dict[str, Any]) -> bytes:
        """Return the body of a reply."""

    def lines(self, path: str, params: dict[str, Any]) -> AsyncIterator[bytes]:
        """Yield the lines of a reply; ApiError also if the connection is cut."""


class PodWatch:
    """Follows the pods with a label."""

    def __init__(
        self, api: Api, path: str, selector: str, report: Callable[[str, Any], None]
    ) -> None:
        """`report` gets `listed` with all pods, `pod` or `deleted` with one, `failed` with why."""
        self.api, self.path, self.selector, self.report = api, path, selector, report

    async def run(self) -> None:
        """Follow them until the server does not accept the credentials any more."""
        delay = FIRST_DELAY_SECONDS
        while True:
            try:
                version = await self._list()
                delay = FIRST_DELAY_SECONDS
                while True:
                    version = await self._watch(version)
            except ApiError as error:
                if error.status == GONE:
                    continue
                self.report("failed", str(error))
                if error.status == UNAUTHORIZED:
                    raise  # a new process reads the credentials again
                await asyncio.sleep(delay)
                delay = min(2 * delay, MAX_DELAY_SECONDS)

    async def _list(self) -> str:
        pods: list[Pod] = []
        page = ""
        while True:
            params = {"labelSelector": self.selector, "limit": PAGE_SIZE}
            body = await self.api.get(self.path, params | ({"continue": page} if page else {}))
            part = msgspec.json.decode(body, type=PodList)
            pods += part.items
            page = part.metadata.next_page
            if not page:
                break
        self.report("listed", pods)
        return part.metadata.resource_version

    async def _watch(self, version: str) -> str:
        """Report events until the server ends the watch; return the last version."""
        params = {
            "labelSelector": self.selector, "watch": "1", "resourceVersion": version,
            "allowWatchBookmarks": "true", "timeoutSeconds": WATCH_SECONDS,
        }  # fmt: skip
        lines = aiter(self.api.lines(self.path, params))
        has_bookmarks = False
        while True:
            try:
                limit = QUIET_SECONDS if has_bookmarks else WATCH_SECONDS + QUIET_SECONDS
                async with asyncio.timeout(limit):
                    line = await anext(lines, None)
            except TimeoutError:
                raise ApiError(0, "the API server is silent") from None
            if line is None:
                return version
            event = msgspec.json.decode(line, type=WatchEvent)
            if event.type == "ERROR":  # also 410, inside a reply with status 200
                status = msgspec.json.decode(event.object, type=Status)
                raise ApiError(status.code, status.message or status.reason)
            pod = msgspec.json.decode(event.object, type=Pod)
            version = pod.metadata.resource_version
            if event.type == "BOOKMARK":
                has_bookmarks = True
            else:
                self.report("deleted" if event.type == "DELETED" else "pod", pod)
