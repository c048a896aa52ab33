"""Sweeps and their trials."""

from __future__ import annotations

from typing import Any, Generic

from msgspec import UNSET, Struct, UnsetType

from stoker.schema.estimate import EstimateView, Time


class BestTrial(Struct, kw_only=True):
    """The best trial of a sweep so far."""

    value: float | None
    id: int
    label: str
    params: dict[str, Any]


class SweepView(Struct, Generic[Time], frozen=True, kw_only=True):
    """A sweep."""

    id: int
    label: str
    name: str
    user: str
    method: str
    metric: str | None
    goal: str
    """`maximize` or `minimize`."""
    state: str
    """WAITING, RUNNING, HELD, DONE or CANCELLED."""
    counts: dict[str, int]
    """Number of trials by status: waiting, running, done, stopped, failed, cancelled."""
    issued: int
    total: int | None
    best: BestTrial | None
    max_running: int | None
    priority: int
    held: bool
    reading: int
    """Number of ended trials with metrics that are still being read."""
    note: str | None
    """Why it cannot continue."""
    created_at: Time | None
    ended_at: Time | None
    eta_seconds: float | None
    eta: Time | None
    foreseen: EstimateView[Time] | None


class TrialView(Struct, Generic[Time], frozen=True, kw_only=True):
    """A trial of a sweep."""

    id: int
    label: str
    number: int | None
    state: str
    state_code: str
    params: dict[str, Any]
    value: float | None
    step: float | None
    stopped: bool
    attempt: int
    started_at: Time | None
    ended_at: Time | None
    elapsed: float | None
    cause: str | None
    node: str | None
    devices: dict[str, list[str]]


class SweepList(Struct, kw_only=True):
    """Reply of `GET /sweeps`."""

    sweeps: list[SweepView[str]]


class SweepDetail(Struct, kw_only=True):
    """Reply of `GET /sweeps/{sweep}`."""

    sweep: SweepView[str]
    definition: dict[str, Any]
    trials: list[TrialView[str]]


class SweepReply(Struct, kw_only=True):
    """Reply of `POST /sweeps`."""

    sweep: int | None
    label: str | None
    name: str
    added: int
    retried: int
    total: int | None
    counts: dict[str, int]
    warnings: list[str]
    commands: list[str] | UnsetType = UNSET
    """With `dry_run`: the first commands."""
