"""Events and jobs as JSON, with versions, so that old journals stay readable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stoker.core.events import AnyEvent, Event
from stoker.core.job import Job, Spec
from stoker.core.rest import Rest
from stoker.core.sweep import Sweep

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
    except msgspec.MsgspecError as error:
        raise Unreadable(f"{kind}: {error}") from error


def _same(raw: dict[str, Any]) -> dict[str, Any]:
    return raw
