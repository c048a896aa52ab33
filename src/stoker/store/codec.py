"""Events and jobs as JSON, with versions, so that old journals stay readable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from stoker.core.events import AnyEvent, Event
from stoker.core.model.job import Job
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep
from stoker.core.state.record import ClusterRecord
from stoker.store.port import StoredJob

VERSION = 1
"""Stored with every event. So far there is one version; later ones will have to read it."""

_encoder = msgspec.json.Encoder()
_CHECKSUM = b',"crc32":"'
"""The start of an object's last key; followed by eight digits and `"}`."""

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """Write a value as JSON; an object ends with a checksum of what precedes it."""
    data = _encoder.encode(value)
    if not data.startswith(b'{"'):
        return data
    body = data[:-1]
    return b'%s%s%08x"}' % (body, _CHECKSUM, crc32(body))


def verify_checksum(data: Any) -> bytes:
    """Return the data of a row; raise ValueError if its checksum does not match.

    Without it, a damaged byte in a key would go unnoticed: an unknown key is skipped, and the
    field gets its default. Rows of earlier versions have no checksum.
    """
    if not isinstance(data, bytes):
        raise TypeError(f"expected a stored row, found {type(data).__name__}")
    body, separator, checksum = data.rpartition(_CHECKSUM)
    if separator and len(checksum) == 10 and checksum[:8] != b"%08x" % crc32(body):
        raise ValueError("the checksum does not match")
    return data


def _decoder(struct: type[T]) -> Callable[[bytes], T]:
    @cache
    def decoder() -> msgspec.json.Decoder[T]:  # a new journal needs none; all take 6 ms to build
        return msgspec.json.Decoder(struct)

    return lambda data: decoder().decode(verify_checksum(data))


decode_job = _decoder(Job)
decode_spec = _decoder(Spec)
decode_sweep = _decoder(Sweep)
decode_rest = _decoder(ClusterRecord)
_decode_event: Callable[[bytes], Any] = _decoder(AnyEvent)


DAMAGE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""What decoding a damaged row raises."""

SKIPPED_WARNING = (
    "some finished jobs cannot be read from the journal and are left out of the history"
)


class UnreadableEvent(Exception):
    """An event that this version of stoker cannot read."""


def event_kind(event: Event) -> str:
    """Return the stored kind of an event, which outlives renames of its class."""
    return str(type(event).__struct_config__.tag)


def decode_event(kind: str, version: int, data: bytes) -> Event:
    """Decode one event."""
    try:
        if version > VERSION:
            raise UnreadableEvent(f"{kind} was written by a newer stoker (version {version})")
        event: Event = _decode_event(data)
        return event
    except DAMAGE as error:
        raise UnreadableEvent(f"{kind}: {error}") from error


def decode_jobs(rows: Iterable[tuple[Any, Any]], warnings: list[str]) -> list[StoredJob]:
    """Decode rows of jobs and specs; damaged rows are skipped, with one warning for all."""
    jobs = []
    for job, spec in rows:
        try:
            jobs.append(StoredJob(decode_job(job), decode_spec(spec)))
        except DAMAGE:
            if SKIPPED_WARNING not in warnings:
                warnings.append(SKIPPED_WARNING)
    return jobs
