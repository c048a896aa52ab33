"""SqlReader: the queries that every SQL database answers alike."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from stoker.core.events import Event
from stoker.core.model.job import FINISHED, JobState
from stoker.store import codec
from stoker.store.port import JobQuery, StoredJob

FINISHED_STATES = [state.value for state in FINISHED]


class SqlReader:
    """Reads events, jobs and contents; a subclass runs the queries."""

    USER_COLUMN: str
    ID_CONDITION: str
    """Selects the jobs with ids in a JSON list."""

    def __init__(self) -> None:
        self._warnings: list[str] = []
        self._lost_events = 0

    @abstractmethod
    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run a query with `?` for each value; return all rows."""

    def warnings(self) -> list[str]:
        """Return the problems that were found and repaired."""
        return self._warnings

    def lost_events(self) -> int:
        """Return the number of synced events that are missing; see the port."""
        return self._lost_events

    def events(self, after: int, limit: int) -> Iterator[tuple[int, Event]]:
        """Yield events after a sequence number, in order."""
        rows = self._rows(
            "SELECT seq, kind, version, data FROM events WHERE seq > ? ORDER BY seq LIMIT ?",
            (after, limit),
        )
        for seq, kind, version, data in rows:
            yield seq, codec.decode_event(kind, version, data)

    def events_of(self, kind: str, after: int, until: int) -> list[tuple[int, Event]]:
        """Return the events of a kind in a range of numbers, in order."""
        rows = self._rows(
            "SELECT seq, version, data FROM events WHERE seq > ? AND seq <= ? AND kind = ?"
            " ORDER BY seq",
            (after, until, kind),
        )
        return [(seq, codec.decode_event(kind, version, data)) for seq, version, data in rows]

    def blob(self, hash: str) -> bytes | None:
        """Return a script by its hash."""
        return self._content("SELECT data FROM blobs WHERE hash = ?", hash)

    def secret(self, hash: str) -> bytes | None:
        """Return an environment by its hash."""
        return self._content("SELECT data FROM secrets WHERE hash = ?", hash)

    def _content(self, sql: str, hash: str) -> bytes | None:
        rows = self._rows(sql, (hash,))
        return rows[0][0] if rows and isinstance(rows[0][0], bytes) else None

    def find_key(self, key: str) -> tuple[int, int] | None:
        """Return the ids that a submission key was given."""
        rows = self._rows("SELECT first, count FROM submissions WHERE key = ?", (key,))
        return (rows[0][0], rows[0][1]) if rows else None

    def find_jobs(self, query: JobQuery) -> list[StoredJob]:
        """Return jobs by id, of an array, or finished ones by other criteria; oldest first."""
        where, values = self._conditions(query)
        order = "ended_at DESC NULLS LAST, id DESC" if query.array is None else "id DESC"
        rows = self._rows(
            "SELECT jobs.data, specs.data FROM jobs JOIN specs ON specs.hash = jobs.spec"
            f" WHERE {where} ORDER BY {order} LIMIT ?",
            (*values, max(query.limit, len(query.ids or ()))),
        )
        return codec.decode_jobs(rows[::-1], self._warnings)

    def count_jobs(self, query: JobQuery) -> int:
        """Return the number of matching jobs, regardless of the limit."""
        where, values = self._conditions(query)
        sql = f"SELECT count(*) FROM jobs JOIN specs ON specs.hash = jobs.spec WHERE {where}"
        return int(self._rows(sql, values)[0][0])

    def members(self, array: int) -> list[int]:
        """Return the ids of all jobs of an array or a sweep, in order."""
        rows = self._rows("SELECT id FROM jobs WHERE member_of = ? ORDER BY id", (array,))
        return [row[0] for row in rows]

    def _conditions(self, query: JobQuery) -> tuple[str, list[Any]]:
        if query.ids is not None:
            return self.ID_CONDITION, [codec.encode(query.ids).decode()]
        parts, states = ["member_of = ?"], query.states
        values: list[Any] = [query.array]
        if query.array is None:
            parts, values = ["ended_at IS NOT NULL"], []
            states = [state for state in FINISHED_STATES if states is None or state in states]
        if states == [JobState.COMPLETED.value]:
            parts.append("state = 'COMPLETED'")  # a literal: only then jobs_done_by_name is used
        elif states is not None:
            parts.append(f"state IN ({', '.join('?' * len(states))})" if states else "FALSE")
            values += states
        conditions = (
            (f"{self.USER_COLUMN} =", query.user),
            ("jobs.name =", query.name),
            ("specs.queue =", query.queue),
            ("specs.door =", query.door),
            ("ended_at >=", query.since),
            ("ended_at <", query.until),
        )
        for condition, value in conditions:
            if value is not None:
                parts.append(f"{condition} ?")
                values.append(value)
        return " AND ".join(parts), values
