"""Sweeps and their trials."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from stoker.schema.estimate import EstimateView


class BestTrial(Struct, kw_only=True):
    """The best trial of a sweep so far."""

    value: float | None
    id: int
    label: str
    params: dict[str, Any]


class SweepView(Struct, kw_only=True):
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
    """Number of ended trials whose metrics are still being read."""
    note: str | None
    """Why it cannot continue."""
    created_at: str | None
    ended_at: str | None
    eta_seconds: float | None
    eta: str | None
    foreseen: EstimateView[str] | None


class TrialView(Struct, kw_only=True):
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
    started_at: str | None
    ended_at: str | None
    elapsed: float | None
    cause: str | None
    node: str | None
    devices: dict[str, list[str]]


class SweepList(Struct, kw_only=True):
    """Reply of `GET /sweeps`."""

    sweeps: list[SweepView]


class SweepDetail(Struct, kw_only=True):
    """Reply of `GET /sweeps/{sweep}`."""

    sweep: SweepView
    definition: dict[str, Any]
    trials: list[TrialView]


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
