"""Advance reservations."""

from __future__ import annotations

from msgspec import Struct


class ReservationView(Struct, kw_only=True):
    """GPUs or nodes that are kept for some jobs for a time."""

    name: str
    begin: str | None
    end: str | None
    gpus: list[str]
    """As `node/name`."""
    nodes: list[str]
    subjects: list[str]
    """`ana`, `@vision` or `queue:short`: only their jobs may run there; empty: none."""
    user: str
    """The user that made it."""
    has_begun: bool


class NewReservation(ReservationView, kw_only=True):
    """Reply of `POST /reservations`."""

    preempts: list[str]
    """Running jobs that are asked to stop at its begin."""
    continues: list[str]
    """Running jobs that may still run then."""


class ReservationList(Struct, kw_only=True):
    """Reply of `GET /reservations`."""

    reservations: list[ReservationView]


class ReservationCancelled(Struct, kw_only=True):
    """Reply of `DELETE /reservations/{name}`."""

    name: str
