"""Predicted start and end times."""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct

Time = TypeVar("Time")
"""A point in time: ISO-8601 text in the daemon, a datetime in the Python API."""


class SpanView(Struct, Generic[Time], kw_only=True):
    """A predicted time with its 80 % range; None lies beyond the horizon of the prediction."""

    low: Time | None = None
    likely: Time | None = None
    high: Time | None = None
    kind: str = ""
    """What it is based on: epochs, runs, stated, order, similar or limit."""
    basis: str = ""
    """The same in words."""


class EstimateView(Struct, Generic[Time], kw_only=True):
    """When a job starts and ends."""

    at: Time | None = None
    """When it was predicted."""
    start: SpanView[Time] | None = None
    end: SpanView[Time] | None = None
    never: str | None = None
    """Why nothing can be predicted."""


class JobEstimate(EstimateView[str], kw_only=True):
    """A job of `GET /eta`."""

    id: int
    label: str
    name: str
    user: str
    state: str


class EstimateList(Struct, kw_only=True):
    """Reply of `GET /eta`."""

    jobs: list[JobEstimate]
    more: int
    at: str | None
    age: float
    futures: int
    """How many simulated futures the prediction is based on."""
    horizon: str | None
    newer: bool
    """Whether a newer prediction is being computed."""
    trouble: str | None
    """Why the last computation failed."""
