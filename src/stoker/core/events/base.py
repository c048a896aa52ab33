"""The base class of events, and events of the whole journal."""

from __future__ import annotations

from msgspec import Struct


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=True):
    """Something that happened, at a wall-clock time; the order of events is their sequence."""

    at: float


class JobEvent(Event, frozen=True, kw_only=True):
    """Something that happened to one job."""

    job: int


class AttemptEvent(JobEvent, frozen=True, kw_only=True):
    """Something that happened to one attempt of a job."""

    attempt: int


class DaemonStarted(Event, frozen=True, kw_only=True):
    """A daemon took over the store."""

    term: int
    boot: str
    pid: int
    version: str
    clock: float = 0.0
    """Its boot clock, which is not comparable to that of an earlier boot."""


class IdsReserved(Event, frozen=True, kw_only=True):
    """Ids below this one may have been used by a journal that was lost."""

    next_id: int
