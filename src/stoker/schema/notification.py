"""Targets of notifications."""

from __future__ import annotations

from msgspec import Struct


class TargetView(Struct, kw_only=True):
    """A target, and what became of the messages for it in the last 14 days."""

    name: str
    kind: str
    on: list[str] = []
    """What is sent to it about every job."""
    sent: int = 0
    pending: int = 0
    failed: int = 0
    error: str | None = None
    """Why the last delivery failed; null after one that succeeded."""


class RuleView(Struct, kw_only=True):
    """A rule of notifications."""

    id: int
    target: str
    when: str
    user: str
    note: str | None = None
    """What is so already."""


class TargetList(Struct, kw_only=True):
    """Reply of `GET /notifications`."""

    targets: list[TargetView]
    rules: list[RuleView] = []
    """Those that users have added."""


class DeliveryReply(Struct, kw_only=True):
    """Reply of `POST /notifications/test`."""

    target: str
    error: str | None = None
    """Why the message was not accepted."""
