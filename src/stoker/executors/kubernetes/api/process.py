"""Helper process: requests, watches and logs of one API server for the daemon.

Run as `python -m stoker.executors.kubernetes.api.process KUBECONFIG CONTEXT NAMESPACE`, each of
which may be empty: orders on stdin, one JSON object per line, replies on stdout. `{namespace}` in
a path is filled in here.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.executors.kubernetes.api.pod_watch import ApiError, PodWatch
from stoker.executors.kubernetes.api.pods import Status
from stoker.executors.kubernetes.kubectl import error_text, not_found_text

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import SingleConfig

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The credentials of a daemon that runs in the cluster."""
MAX_LINE = 64 << 20
TIMEOUT_SECONDS = 30.0
QUIET_LOG_SECONDS = 300.0
"""Silence after which a log is requested again: its connection may be dead."""
MAX_REQUESTS = 16
"""Requests at a time; watches and logs do not count."""
MAX_COMMANDS = 6
"""Commands (kubectl exec) at a time."""
MAX_OUTPUT = 2000
"""Characters kept of what a command has printed."""


def find_config(kubeconfig: str, context: str) -> SingleConfig:
    """Return the server and the credentials that kubectl would use."""
    from lightkube.config.kubeconfig import KubeConfig

    path = os.path.expanduser(kubeconfig)
    if path and not os.path.exists(path):  # kubectl would say that it has no context
        raise ValueError(f"there is no file {path}")
    options = [f"--kubeconfig={path}"] if path else []
    options += [f"--context={context}"] if context else []
    view = ["config", "view", "--minify", "--raw", "--flatten", "-o", "json"]
    try:
        done = subprocess.run(
            ["kubectl", *options, *view], stdin=subprocess.DEVNULL, capture_output=True,
            check=False, timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
    except OSError as error:
        raise ValueError(not_found_text(error)) from None
    config = None
    if done.returncode == 0:
        config = KubeConfig.from_dict(msgspec.json.decode(done.stdout)).get()
    elif not options and os.path.isdir(SERVICE_ACCOUNT):
        config = KubeConfig.from_service_account(SERVICE_ACCOUNT).get()
    if config is None:
        raise ValueError(error_text(done.stderr.decode(errors="replace")))
    return config


class HttpApi:
    """The API server, with the addresses and credentials of a kubeconfig file."""

    def __init__(self, kubeconfig: str, context: str, namespace: str) -> None:
        import httpx2 as httpx
        from lightkube.config.client_adapter import ConnectionParams

        config = find_config(kubeconfig, context)
        timeout = httpx.Timeout(TIMEOUT_SECONDS)
        params = ConnectionParams(timeout=timeout).httpx_params(config)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=MAX_REQUESTS)
        self._http = httpx
        self._client = httpx.AsyncClient(**params, limits=limits)
        self._slots = asyncio.Semaphore(MAX_REQUESTS)
        self.namespace = namespace or config.namespace

    async def request(
        self, method: str, path: str, params: dict[str, Any], body: Any, content_type: str
    ) -> tuple[int, bytes]:
        """Return status and body of a reply; ApiError if there is none."""
        async with self._slots:
            try:
                reply = await self._client.request(
                    method, path.format(namespace=self.namespace), params=params,
                    content=None if body is None else msgspec.json.encode(body),
                    headers={"Content-Type": content_type} if body is not None else None,
                )  # fmt: skip
            except (self._http.HTTPError, OSError) as error:
                raise ApiError(0, _text_of(error)) from error
        return reply.status_code, reply.content

    async def get(self, path: str, params: dict[str, Any]) -> bytes:
        """Return the body of a reply."""
        status, body = await self.request("GET", path, params, None, "")
        if status != 200:
            raise ApiError(status, refusal(status, body))
        return body

    async def chunks(
        self, path: str, params: dict[str, Any], quiet: float | None
    ) -> AsyncIterator[bytes]:
        """Yield a reply as it arrives; ApiError if it is refused or cut."""
        timeout = self._http.Timeout(TIMEOUT_SECONDS, read=quiet)
        path = path.format(namespace=self.namespace)
        try:
            async with self._client.stream("GET", path, params=params, timeout=timeout) as reply:
                if reply.status_code != 200:
                    body = await reply.aread()
                    raise ApiError(reply.status_code, refusal(reply.status_code, body))
                async for chunk in reply.aiter_raw():
                    yield chunk
        except (self._http.HTTPError, OSError) as error:
            raise ApiError(0, _text_of(error)) from error

    async def lines(self, path: str, params: dict[str, Any]) -> AsyncIterator[bytes]:
        """Yield the lines of a reply."""
        rest = b""
        async for chunk in self.chunks(path, params, None):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line


def refusal(status: int, body: bytes) -> str:
    """Return why a request was refused."""
    with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
        if message := msgspec.json.decode(body, type=Status).message:
            return message
    return f"HTTP {status}"


def _text_of(error: Exception) -> str:
    return str(error) or type(error).__name__


class Helper:
    """Carries out the daemon's orders."""

    def __init__(self, api: HttpApi) -> None:
        self.api = api
        self._commands = asyncio.Semaphore(MAX_COMMANDS)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Watches, logs and requests that are under way."""

    async def run(self) -> None:
        """Read orders until the daemon closes its end."""
        reader = asyncio.StreamReader(limit=MAX_LINE)
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while line := await reader.readline():
            self._handle(msgspec.json.decode(line))

    def _handle(self, order: dict[str, Any]) -> None:
        match order:
            case {"watch": key, "path": path, "selector": selector}:
                self._begin(f"watch {key}", self._watch(key, path, selector))
            case {"log": key, "path": path, "params": params}:
                self._begin(f"log {key}", self._log(key, path, params))
            case {"stop_log": key}:
                self._end(f"log {key}")
            case {"stop_watch": key}:
                self._end(f"watch {key}")
            case {"id": id, "argv": argv}:
                self._begin(f"request {id}", self._command(id, argv))
            case {"id": id}:
                self._begin(f"request {id}", self._request(order))

    def _begin(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        self._end(key)
        task = self._tasks[key] = asyncio.create_task(work)

        def on_done(done: asyncio.Task[None]) -> None:
            if self._tasks.get(key) is done:
                del self._tasks[key]
            if not done.cancelled() and (error := done.exception()) is not None:
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
                os._exit(1)  # the daemon starts another one

        task.add_done_callback(on_done)

    def _end(self, key: str) -> None:
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()

    async def _request(self, order: dict[str, Any]) -> None:
        try:
            status, body = await self.api.request(
                order["method"], order["path"], order.get("params") or {}, order.get("body"),
                order.get("type") or "application/json",
            )  # fmt: skip
        except ApiError as error:
            send({"id": order["id"], "status": 0, "why": str(error)})
            return
        if status < 400:
            body = msgspec.json.format(body or b"null", indent=-1)  # on one line
            send({"id": order["id"], "status": status, "body": msgspec.Raw(body)})
        else:
            send({"id": order["id"], "status": status, "why": refusal(status, body)})

    async def _watch(self, key: str, path: str, selector: str) -> None:
        await PodWatch(
            self.api, path, selector, lambda kind, what: send({"watch": key, kind: what})
        ).run()

    async def _log(self, key: str, path: str, params: dict[str, Any]) -> None:
        try:
            async for chunk in self.api.chunks(path, params, QUIET_LOG_SECONDS):
                send({"log": key, "data": base64.b64encode(chunk).decode()})
        except ApiError as error:
            send({"log": key, "status": error.status, "why": str(error)})
        else:
            send({"log": key, "status": 200})

    async def _command(self, id: int, argv: list[str]) -> None:
        async with self._commands:
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                )  # fmt: skip
            except OSError as error:
                send({"id": id, "status": 0, "why": str(error)})
                return
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    output, _ = await process.communicate()
                code = process.returncode or 0
            except TimeoutError:
                process.kill()
                output, code = b"no answer", 124
            text = output.decode(errors="replace")[-MAX_OUTPUT:]
            send({"id": id, "status": 200 if code == 0 else 500, "why": text.strip()})


def send(message: dict[str, Any]) -> None:
    """Send a message to the daemon; while that is slow, nothing is read from the server."""
    data = msgspec.json.encode(message) + b"\n"
    while data:
        data = data[os.write(1, data) :]


async def main(kubeconfig: str, context: str, namespace: str) -> None:
    """Serve one daemon."""
    api = HttpApi(kubeconfig, context, namespace)
    send({"namespace": api.namespace})
    await Helper(api).run()


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:4]))
    except BrokenPipeError:
        os._exit(0)  # the daemon is gone
    except ImportError as missing:
        sys.exit(f"{missing.name} is not installed: pip install 'stoker[kubernetes]'")
    except Exception as error:  # noqa: BLE001 - its last line tells users what is wrong
        sys.exit(f"{_text_of(error)}")
