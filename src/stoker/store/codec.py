"""Events and jobs as JSON, with versions, so that old journals stay readable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from stoker.core.events import AnyEvent, Event
from stoker.core.job import Job, Spec
from stoker.core.rest import Rest
from stoker.core.sweep import Sweep
from stoker.store.port import Found

VERSION = 1
"""Written beside every event; an upcaster lifts each older version by one."""

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
UPCASTERS: dict[tuple[str, int], Upcaster] = {}
"""By event kind and the version it lifts from."""

_encoder = msgspec.json.Encoder()
encode = _encoder.encode
_events: msgspec.json.Decoder[Any] = msgspec.json.Decoder(AnyEvent)
decode_job = msgspec.json.Decoder(Job).decode
decode_spec = msgspec.json.Decoder(Spec).decode
decode_sweep = msgspec.json.Decoder(Sweep).decode
decode_rest = msgspec.json.Decoder(Rest).decode


DAMAGE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""What decoding raises when a row does not hold what was once written there."""

LEFT_OUT = "some finished jobs cannot be read from the journal and are left out of the history"


class Unreadable(Exception):
    """An event that this version of stoker cannot read."""


def decode_event(kind: str, version: int, data: bytes) -> Event:
    """Read one event, lifting it from an older version first."""
    try:
        if version == VERSION:
            event: Event = _events.decode(data)
            return event
        if version > VERSION:
            raise Unreadable(f"{kind} was written by a newer stoker (version {version})")
        raw = msgspec.json.decode(data)
        for old in range(version, VERSION):
            raw = UPCASTERS.get((kind, old), _same)(raw)
        lifted: Event = msgspec.convert(raw, AnyEvent)
        return lifted
    except DAMAGE as error:
        raise Unreadable(f"{kind}: {error}") from error


def found_in(rows: Iterable[tuple[Any, Any]], warnings: list[str]) -> list[Found]:
    """Decode jobs and their specs; one that is damaged is left out, and that is reported once."""
    found = []
    for job, spec in rows:
        try:
            found.append(Found(decode_job(job), decode_spec(spec)))
        except DAMAGE:
            if LEFT_OUT not in warnings:
                warnings.append(LEFT_OUT)
    return found


def _same(raw: dict[str, Any]) -> dict[str, Any]:
    return raw
