"""Limits of users, groups and queues."""

from __future__ import annotations

from msgspec import Struct


class LimitsView(Struct, kw_only=True):
    """The limits of a user, a group or a queue, and what its jobs use now."""

    subject: str
    """As typed: `ana`, `@vision`, `queue:short`, `*`."""
    id: int | None = None
    """Uid or gid."""
    max_gpus: str | None = None
    max_running: int | None = None
    max_pending: int | None = None
    max_job_gpus: str | None = None
    max_time: str | None = None
    max_time_seconds: int | None = None
    gpu_hours_per_week: float | None = None
    gpu_memory: int | None = None
    """MiB."""
    running: int = 0
    pending: int = 0
    gpus: str = "0"
    """In use now."""
    gpu_memory_used: int = 0
    gpu_hours_used: float | None = None
    """In the last week, if it is limited."""
    gpu_hours_free_at: str | None = None
    """When used-up GPU-hours may be available again, as estimated."""


class LimitList(Struct, kw_only=True):
    """Reply of `GET /limits`."""

    limits: list[LimitsView]


class LimitsChange(Struct, kw_only=True):
    """Reply of `POST /limits`."""

    subject: str
    changed: bool
    limits: LimitsView | None = None
    """None: it has no limits any more."""
    warnings: list[str] = []
