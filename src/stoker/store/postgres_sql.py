"""What PostgreSQL is told: a batch as statements, a filter as conditions."""

from __future__ import annotations

from typing import Any

from stoker.core.lifecycle import FINISHED, JobState
from stoker.store import codec
from stoker.store.port import Batch, JobQuery

ENDED = [state.value for state in FINISHED]

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
    """What one transaction writes, column by column."""
    encode = codec.encode
    found: list[tuple[str, tuple[Any, ...]]] = []

    def add(sql: str, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            found.append(
                (sql, tuple([*map(storable, column)] for column in zip(*rows, strict=True)))
            )

    add(
        _SPECS,
        [
            (hash, spec.queue, spec.door, spec.environment, encode(spec))
            for hash, spec in batch.specs.items()
        ],
    )
    add(_CONTENTS.format("blobs"), list(batch.blobs.items()))
    add(_CONTENTS.format("secrets"), list(batch.secrets.items()))
    add(_KEYS, list(batch.keys))
    add(
        _EVENTS,
        [
            (seq, float(event.at), type(event).__name__, codec.VERSION, encode(event))
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
    add(_SWEEPS, [(each.id, each.name, each.resident, encode(each)) for each in batch.sweeps])
    if batch.dropped:
        found.append(("UPDATE jobs SET resident = false WHERE id = ANY(%s)", (batch.dropped,)))
    if batch.rest is not None:
        found.append((_REST, (encode(batch.rest),)))
    return found


def storable(value: Any) -> Any:
    """PostgreSQL's text holds no zero byte; the whole text is in the row's data anyway."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def conditions(wanted: JobQuery) -> tuple[str, list[Any]]:
    """What is asked of the past, for a WHERE."""
    if wanted.ids is not None:
        return "jobs.id = ANY(%s::bigint[])", [wanted.ids]
    parts, states = ["member_of = %s"], wanted.states
    values: list[Any] = [wanted.array]
    if wanted.array is None:
        parts, values = ["ended_at IS NOT NULL"], []
        states = [state for state in ENDED if states is None or state in states]
    if states == [JobState.COMPLETED.value]:
        parts.append("state = 'COMPLETED'")  # a literal: only then jobs_done_by_name is used
    elif states is not None:
        parts.append("state = ANY(%s)")
        values.append(states)
    for column, test, value in wanted.tests("owner"):
        parts.append(f"{column} {test} %s")
        values.append(storable(value))
    return " AND ".join(parts), values
