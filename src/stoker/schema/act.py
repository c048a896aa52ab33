"""GET /acts."""

from __future__ import annotations

from msgspec import Struct


class ActView(Struct, kw_only=True):
    """One change that a user of a system daemon has requested."""

    at: str
    uid: int
    user: str
    verb: str
    """Method and path of the request."""
    jobs: list[list[int]] = []
    """First and last id of each range of jobs that it changed."""
    what: str = ""
    """What an administrator requested, as JSON."""


class ActList(Struct, kw_only=True):
    """Reply of `GET /acts`."""

    acts: list[ActView]
