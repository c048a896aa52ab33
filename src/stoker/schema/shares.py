"""Fair share between users."""

from __future__ import annotations

from msgspec import Struct


class ShareView(Struct, kw_only=True):
    """A user's part in fair share, and what it has used lately."""

    user: str
    weight: float
    source: str | None
    """The user or `@group` whose weight it is; None: the default of 1."""
    part: float
    """Its part by its weight, among the users that are listed."""
    usage: float
    """GPU-hours that count now; they count half after four hours."""
    usage_part: float
    gpus: float
    """In use now."""
    pending: int
    penalty: float
    """Doublings by which its jobs are ranked as larger; negative: smaller."""


class GroupShare(Struct, kw_only=True):
    """The weight of each member of a group."""

    group: str
    weight: float


class ShareList(Struct, kw_only=True):
    """Reply of `GET /shares`."""

    shares: list[ShareView]
    groups: list[GroupShare]
    queues: list[str]
    """Queues with fair share; jobs of others do not count."""


class ShareChange(Struct, kw_only=True):
    """Reply of `POST /shares`."""

    subject: str
    weight: float | None
    changed: bool
