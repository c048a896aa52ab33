"""SQL for PostgreSQL: a batch as statements."""

from __future__ import annotations

from typing import Any

from stoker.store import codec
from stoker.store.port import Batch

_SPECS = """
    INSERT INTO specs (hash, queue, door, environment, data)
    SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %b::bytea[])
    ON CONFLICT DO NOTHING
"""
_CONTENTS = """
    INSERT INTO {} SELECT * FROM unnest(%s::text[], %b::bytea[]) ON CONFLICT DO NOTHING
"""
_KEYS = "INSERT INTO submissions SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[])"
_EVENTS = """
    INSERT INTO events
    SELECT * FROM unnest(%s::bigint[], %s::float8[], %s::text[], %s::int[], %b::bytea[])
"""
_JOBS = """
    INSERT INTO jobs
    SELECT id, name, owner, state, submitted_at, started_at, ended_at, code, true, spec, data,
        member_of
    FROM unnest(
        %s::bigint[], %s::text[], %s::text[], %s::text[], %s::float8[], %s::float8[],
        %s::float8[], %s::bigint[], %s::text[], %b::bytea[], %s::bigint[]
    ) AS new (
        id, name, owner, state, submitted_at, started_at, ended_at, code, spec, data, member_of
    )
    ON CONFLICT (id) DO UPDATE SET
        name = excluded.name, state = excluded.state, started_at = excluded.started_at,
        ended_at = excluded.ended_at, code = excluded.code, resident = excluded.resident,
        spec = excluded.spec, data = excluded.data
"""
_SWEEPS = """
    INSERT INTO sweeps
    SELECT * FROM unnest(%s::bigint[], %s::text[], %s::boolean[], %b::bytea[])
    ON CONFLICT (id) DO UPDATE SET
        name = excluded.name, resident = excluded.resident, data = excluded.data
"""
_REST = """
    INSERT INTO meta (key, data) VALUES ('rest', %s)
    ON CONFLICT (key) DO UPDATE SET data = excluded.data
"""


def statements(batch: Batch, first: int) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the statements of one transaction, with values column by column."""
    encode = codec.encode
    result: list[tuple[str, tuple[Any, ...]]] = []

    def add(sql: str, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            result.append(
                (sql, tuple([*map(storable, column)] for column in zip(*rows, strict=True)))
            )

    add(
        _SPECS,
        [
            (hash, spec.queue, spec.client, spec.environment, encode(spec))
            for hash, spec in batch.specs.items()
        ],
    )
    add(_CONTENTS.format("blobs"), list(batch.blobs.items()))
    add(_CONTENTS.format("secrets"), list(batch.secrets.items()))
    add(_KEYS, list(batch.keys))
    add(
        _EVENTS,
        [
            (seq, float(event.at), codec.event_kind(event), codec.VERSION, encode(event))
            for seq, event in enumerate(batch.events, first)
        ],
    )
    add(
        _JOBS,
        [
            (
                job.id, job.name, job.user, job.state.value, job.submitted_at, job.started_at,
                job.ended_at, job.code, job.spec, encode(job), job.array,
            )
            for job in batch.jobs
        ],
    )  # fmt: skip
    add(_SWEEPS, [(sweep.id, sweep.name, sweep.resident, encode(sweep)) for sweep in batch.sweeps])
    if batch.dropped:
        result.append(("UPDATE jobs SET resident = false WHERE id = ANY(%s)", (batch.dropped,)))
    if batch.rest is not None:
        result.append((_REST, (encode(batch.rest),)))
    return result


def storable(value: Any) -> Any:
    """Replace zero bytes, which PostgreSQL's text cannot hold; the row's data has them."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value
