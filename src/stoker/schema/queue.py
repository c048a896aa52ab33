"""Queues and policies."""

from __future__ import annotations

from msgspec import Struct


class QueueDevice(Struct, kw_only=True):
    """A device that a queue has for its jobs."""

    type: str
    device: str
    capacity: str
    free: str


class QueueView(Struct, kw_only=True):
    """A named queue and its limits."""

    name: str
    max_running: int | None = None
    max_gpus: str | None = None
    max_job_gpus: str | None = None
    max_waiting: int | None = None
    priority: int = 0
    strict: bool = False
    devices: list[str] = []
    running: int = 0
    resources: list[QueueDevice] = []


class QueueList(Struct, kw_only=True):
    """Reply of `GET /queues`."""

    queues: list[QueueView]


class QueueName(Struct, kw_only=True):
    """Reply of the routes that define or delete a queue."""

    name: str


class ChosenPolicy(Struct, kw_only=True):
    """The policy of a queue."""

    own: bool = False
    """Whether the queue has its own setting."""
    chosen: str
    policy: str = ""
    """What `auto` results in."""
    since: str | None = None
    about: str = ""
    why: str | None = None
    parameters: dict[str, float] = {}
    changed: dict[str, float] = {}
    """The parameters that were chosen."""


class QueuePolicy(ChosenPolicy, kw_only=True):
    """The policy of one queue; `*` is every queue without its own."""

    queue: str
    strict: bool = False
    waiting: int = 0
    running: int = 0


class PolicyView(Struct, kw_only=True):
    """A policy that can be chosen."""

    name: str
    about: str
    parameters: dict[str, float]


class PolicyList(Struct, kw_only=True):
    """Reply of `GET /policies`."""

    queues: list[QueuePolicy]
    policies: list[PolicyView]


class PolicyChange(Struct, kw_only=True):
    """Reply of `POST /policies`."""

    queue: str
    before: ChosenPolicy
    after: ChosenPolicy
    changed: bool
    waiting: int
    """Number of pending jobs that are reordered."""
    preempts: bool
    kept: list[str]
    """Queues with their own setting, which keep it."""
    known: bool


class HiddenHistory(Struct, kw_only=True):
    """Reply of `POST /history/hide`."""

    client: str
