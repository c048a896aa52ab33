"""An API server that accepts everything, and keeps what it was asked."""

from collections.abc import Callable
from typing import Any

import msgspec

from stoker.executors.kubernetes.api.client import Reply


class FakeApi:
    """Accepts every creation, and reports what the test says of the pods."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.created: dict[str, dict[str, Any]] = {}
        """Pods as they were requested."""
        self.refusals: dict[str, int] = {}
        """The status of requests whose path ends with a word."""
        self.deleted: list[str] = []
        self.commands: list[tuple[str, ...]] = []
        self.logs: dict[str, Any] = {}
        self.watching: Any = None

    def request(
        self, method: str, path: str, on_reply: Callable[[Reply], None], body: Any = None,
        params: Any = None, type: str = "",
    ) -> None:  # fmt: skip
        name = path.rpartition("/")[2]
        if name in self.refusals:
            on_reply(Reply(self.refusals[name], "no"))
            return
        if method == "POST" and body["kind"] == "Pod":
            name = body["metadata"]["name"]
            self.created[name] = body
            self.pods[name] = {"metadata": body["metadata"], "spec": {}, "status": {}}
        elif method == "DELETE":
            self.deleted.append(name)
        found = self.pods.get(name, {"items": []})
        on_reply(Reply(200, body=msgspec.Raw(msgspec.json.encode(found))))

    def run(self, argv: Any, on_reply: Callable[[Reply], None]) -> None:
        self.commands.append(tuple(argv))
        on_reply(Reply(200))

    def watch(self, key: str, selector: str, listener: Any) -> None:
        self.watching = listener

    def follow_log(self, pod: str, params: Any, listener: Any) -> None:
        self.logs[pod] = listener

    def stop_log(self, pod: str) -> None:
        self.logs.pop(pod, None)

    def unwatch(self, key: str) -> None:
        pass
