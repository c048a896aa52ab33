"""ApiClient: requests, watches and logs of an API server through a helper process.

Made for the epoll loop: nothing here blocks. When the helper process ends, requests under way are
answered with status 0, logs end, and watches begin again with a list.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from stoker.executors.kubernetes.api.pods import Pod
from stoker.executors.linux.line_subprocess import LineSubprocess
from stoker.executors.reactor import Reactor, Timer

COMMAND = ("-P", "-m", "stoker.executors.kubernetes.api.process")
FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.5, 15.0
"""Pause before the helper process is started again; it doubles."""
MERGE = "application/merge-patch+json"
PODS = "/api/v1/namespaces/{namespace}/pods"
SERVICES = "/api/v1/namespaces/{namespace}/services"
CONFIG_MAPS = "/api/v1/namespaces/{namespace}/configmaps"
EVENTS = "/api/v1/namespaces/{namespace}/events"
CONFLICT, NOT_FOUND, TOO_MANY, FORBIDDEN, INVALID = 409, 404, 429, 403, 422


class Reply(Struct, frozen=True):
    """The answer to a request; status 0: there was none."""

    status: int
    why: str = ""
    body: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def succeeded(self) -> bool:
        """Whether the server did what was requested."""
        return 200 <= self.status < 300

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (0, TOO_MANY) or self.status >= 500

    def pod(self) -> Pod:
        """Return the pod in it."""
        return msgspec.json.decode(self.body, type=Pod)


OnReply = Callable[[Reply], None]


class WatchListener(Protocol):
    """Receives what happens to pods."""

    def on_listed(self, pods: Sequence[Pod]) -> None:
        """Handle a complete list."""

    def on_pod(self, pod: Pod) -> None:
        """Handle a change of a pod."""

    def on_deleted(self, pod: Pod) -> None:
        """Handle the end of a pod; `pod` is its last state."""

    def on_failed(self, why: str) -> None:
        """Handle that the pods cannot be watched at present."""


class LogListener(Protocol):
    """Receives the log of a pod."""

    def on_log(self, data: bytes) -> None:
        """Handle the next bytes."""

    def on_log_end(self, status: int, why: str) -> None:
        """Handle the end: 200 if the log is complete so far, 0 if it was cut."""


class ApiClient:
    """One API server and namespace."""

    def __init__(
        self,
        reactor: Reactor,
        kubeconfig: str = "",
        context: str = "",
        namespace: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._words = (kubeconfig, context, namespace)
        self._process = LineSubprocess(reactor, self._on_line, self._on_exit, environment)
        self._ids = itertools.count(1)
        self._requests: dict[int, OnReply] = {}
        self._watches: dict[str, tuple[str, WatchListener]] = {}
        self._logs: dict[str, LogListener] = {}
        self._restarting = Timer(reactor, self._start)
        self._delay = FIRST_DELAY_SECONDS
        self.is_closed = False

    # -- orders -------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        on_reply: OnReply,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
        type: str = "",
    ) -> None:
        """Send a request; `on_reply` is always called, never before this returns."""
        order = {"method": method, "path": path, "params": params, "body": body, "type": type}
        self._ask(order, on_reply)

    def run(self, argv: Sequence[str], on_reply: OnReply) -> None:
        """Run a command beside the helper; the reply has its output, and 500 for a failure."""
        self._ask({"argv": list(argv)}, on_reply)

    def watch(self, key: str, selector: str, listener: WatchListener) -> None:
        """Report all pods with these labels to a listener from now on."""
        self._watches[key] = (selector, listener)
        if self._process.is_running:
            self._send_watch(key, selector)
        else:
            self._start()

    def unwatch(self, key: str) -> None:
        """Watch no longer; with the last watch, the helper process is stopped."""
        self._watches.pop(key, None)
        if self._watches:
            self._send({"stop_watch": key})
        else:
            self.close()

    def follow_log(self, pod: str, params: Mapping[str, Any], listener: LogListener) -> None:
        """Report the log of a pod to a listener, until it ends."""
        self._logs[pod] = listener
        self._ensure()
        self._send({"log": pod, "path": f"{PODS}/{pod}/log", "params": dict(params)})

    def stop_log(self, pod: str) -> None:
        """Read a log no longer; its listener is not called any more."""
        if self._logs.pop(pod, None) is not None:
            self._send({"stop_log": pod})

    def _ask(self, order: dict[str, Any], on_reply: OnReply) -> None:
        id = next(self._ids)
        self._requests[id] = on_reply
        self._ensure()
        self._send({"id": id, **order})

    def _send_watch(self, key: str, selector: str) -> None:
        self._send({"watch": key, "path": PODS, "selector": selector})

    def _send(self, order: dict[str, Any]) -> None:
        if self._process.is_running:
            self._process.send(msgspec.json.encode(order) + b"\n")

    def _ensure(self) -> None:
        """Have requests answered that are sent while there is no helper process."""
        if not self._process.is_running:
            self._restarting.request(0.0 if self._delay == FIRST_DELAY_SECONDS else self._delay)

    # -- replies ------------------------------------------------------------------------

    def _on_line(self, line: bytes) -> None:
        match msgspec.json.decode(line, type=Message):
            case Message(id=int() as id) as message:
                on_reply = self._requests.pop(id, None)
                if on_reply is not None:
                    on_reply(Reply(message.status, message.why, message.body))
            case Message(watch=str() as key) as message if key in self._watches:
                self._on_watch(self._watches[key][1], message)
            case Message(log=str() as pod) as message if pod in self._logs:
                self._on_log(pod, message)

    def _on_watch(self, listener: WatchListener, message: Message) -> None:
        if message.listed is not None:
            self._delay = FIRST_DELAY_SECONDS
            listener.on_listed(message.listed)
        elif message.pod is not None:
            listener.on_pod(message.pod)
        elif message.deleted is not None:
            listener.on_deleted(message.deleted)
        else:
            listener.on_failed(message.failed)

    def _on_log(self, pod: str, message: Message) -> None:
        if message.data:
            self._logs[pod].on_log(base64.b64decode(message.data))
        else:
            self._logs.pop(pod).on_log_end(message.status, message.why)

    # -- the process --------------------------------------------------------------------

    def _start(self) -> None:
        if self.is_closed or self._process.is_running:
            return
        self._fail_all("the connection to the API server was restarted")
        if self._process.start((*COMMAND, *self._words)):
            for key, (selector, _) in self._watches.items():
                self._send_watch(key, selector)

    def _on_exit(self, reason: str) -> None:
        for _, listener in list(self._watches.values()):
            listener.on_failed(reason)
        self._fail_all(reason)
        self._restarting.request(self._delay)
        self._delay = min(2 * self._delay, MAX_DELAY_SECONDS)

    def _fail_all(self, why: str) -> None:
        """Answer everything that the ended helper process was asked."""
        requests, self._requests = self._requests, {}
        for on_reply in requests.values():
            on_reply(Reply(0, why))
        logs, self._logs = self._logs, {}
        for listener in logs.values():
            listener.on_log_end(0, why)

    def close(self) -> None:
        """Stop the helper process; nothing is called back any more."""
        self.is_closed = True
        self._restarting.cancel()
        self._requests.clear()
        self._watches.clear()
        self._logs.clear()
        self._process.close()


class Message(Struct):
    """A line of the helper process."""

    id: int | None = None
    status: int = 0
    why: str = ""
    body: msgspec.Raw = msgspec.Raw(b"null")
    watch: str | None = None
    listed: list[Pod] | None = None
    pod: Pod | None = None
    deleted: Pod | None = None
    failed: str = ""
    log: str | None = None
    data: str = ""
