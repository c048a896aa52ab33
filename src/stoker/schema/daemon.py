"""The daemon itself."""

from __future__ import annotations

from msgspec import Struct

from stoker.schema.gpu import Thresholds


class ListenerView(Struct, kw_only=True):
    """An open TCP port; its token is in `token_file`."""

    address: str
    tls: bool
    token_file: str
    fingerprint: str | None
    """Of the certificate, as `sha256:HEX`."""
    note: dict[str, str]


class ListenerClosed(Struct, kw_only=True):
    """Reply of `DELETE /listen/{address}`."""

    address: str


class DaemonStatus(Struct, kw_only=True):
    """Reply of `GET /daemon`."""

    pid: int
    version: str
    api: str
    since: str | None
    socket: str
    state_dir: str
    log: str
    mode: str
    user: str = ""
    """Of the request."""
    draining: bool
    counts: dict[str, int]
    policy: str
    gpus: int
    node: str
    machines: list[str]
    """Remote nodes that answer."""
    connecting: list[str]
    queued: list[str] = []
    """Allocations that wait in the queue of a cluster."""
    unreachable: list[str]
    store: str
    listeners: list[ListenerView]
    names: list[str] = []
    """Host names under which browsers reach it, besides the loopback ones."""
    thresholds: Thresholds
    seq: int
    """Sequence number of the last event."""
    warnings: list[str]
    faults: list[str]
    """Internal errors."""


class StopReply(Struct, kw_only=True):
    """Reply of `POST /daemon/stop`."""

    running: list[int]
    text: str


class BackupReply(Struct, kw_only=True):
    """Reply of `POST /backup`."""

    path: str
    bytes: int


class ErrorDetail(Struct, kw_only=True):
    """What happened, and what to do."""

    code: str
    message: str
    exit: int
    """The exit code that a command should use."""


class ErrorReply(Struct, kw_only=True):
    """The body of every status of 400 and above."""

    error: ErrorDetail
