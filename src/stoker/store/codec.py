"""Events and jobs as JSON, with versions, so that old journals stay readable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from stoker.core.events import AnyEvent, Event
from stoker.core.job import Job, Spec
from stoker.core.rest import Rest
from stoker.core.sweep import Sweep
from stoker.store.port import StoredJob

VERSION = 1
"""Written beside every event; an upcaster lifts each older version by one."""

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
UPCASTERS: dict[tuple[str, int], Upcaster] = {}
"""By event kind and the version it lifts from."""

_encoder = msgspec.json.Encoder()
_events: msgspec.json.Decoder[Any] = msgspec.json.Decoder(AnyEvent)
_CHECKSUM = b',"crc32":"'
"""Begins the last key of an object, after which come eight digits and `"}`."""

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """Write a value as JSON; an object ends with a checksum of what precedes it."""
    data = _encoder.encode(value)
    if not data.startswith(b'{"'):
        return data
    body = data[:-1]
    return b'%s%s%08x"}' % (body, _CHECKSUM, crc32(body))


def checked(data: Any) -> bytes:
    """Return an object as it was written; raise ValueError if the checksum does not match it.

    A damaged byte in a key would otherwise go unnoticed: an unknown key is skipped, and the field
    that it stood for has its default. Rows of earlier versions have no checksum.
    """
    if not isinstance(data, bytes):
        raise TypeError(f"expected a stored row, found {type(data).__name__}")
    body, found, rest = data.rpartition(_CHECKSUM)
    if found and len(rest) == 10 and rest[:8] != b"%08x" % crc32(body):
        raise ValueError("the checksum does not match")
    return data


def _decoder(struct: type[T]) -> Callable[[bytes], T]:
    decode = msgspec.json.Decoder(struct).decode
    return lambda data: decode(checked(data))


decode_job = _decoder(Job)
decode_spec = _decoder(Spec)
decode_sweep = _decoder(Sweep)
decode_rest = _decoder(Rest)


DAMAGE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""What decoding raises when a row does not hold what was once written there."""

LEFT_OUT = "some finished jobs cannot be read from the journal and are left out of the history"


class Unreadable(Exception):
    """An event that this version of stoker cannot read."""


def decode_event(kind: str, version: int, data: bytes) -> Event:
    """Read one event, lifting it from an older version first."""
    try:
        if version == VERSION:
            event: Event = _events.decode(checked(data))
            return event
        if version > VERSION:
            raise Unreadable(f"{kind} was written by a newer stoker (version {version})")
        raw = msgspec.json.decode(checked(data))
        for old in range(version, VERSION):
            raw = UPCASTERS.get((kind, old), _same)(raw)
        lifted: Event = msgspec.convert(raw, AnyEvent)
        return lifted
    except DAMAGE as error:
        raise Unreadable(f"{kind}: {error}") from error


def found_in(rows: Iterable[tuple[Any, Any]], warnings: list[str]) -> list[StoredJob]:
    """Decode jobs and their specs; one that is damaged is left out, and that is reported once."""
    found = []
    for job, spec in rows:
        try:
            found.append(StoredJob(decode_job(job), decode_spec(spec)))
        except DAMAGE:
            if LEFT_OUT not in warnings:
                warnings.append(LEFT_OUT)
    return found


def _same(raw: dict[str, Any]) -> dict[str, Any]:
    return raw
