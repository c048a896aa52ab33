"""Outbox: messages on disk until they are delivered, or were tried too often.

A file of its own beside the journal, with the number of the last event that was turned into
messages. Both change in one transaction: after a crash, later events are read again, and a key
that is there already adds nothing. So no message is lost, none is added twice, and a delivery is
repeated only if the daemon ended before it had noted the reply.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from msgspec import Struct
from msgspec.json import Decoder, encode

from stoker.daemon.notifications.message import MAX_LISTED, Delivery, Message

RETRY_SECONDS = (60.0, 300.0, 900.0, 2100.0)
"""Pauses between the tries of a delivery: five tries in about an hour."""
CLAIM_SECONDS = 120.0
"""A delivery without an outcome for so long is tried again."""
KEEP_SECONDS = 14 * 86400.0
"""How long keys of delivered messages are kept."""
HOUR = 3600.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, target TEXT NOT NULL, topic TEXT NOT NULL,
    body BLOB NOT NULL, created REAL NOT NULL, due REAL NOT NULL, batch INTEGER,
    tries INTEGER NOT NULL DEFAULT 0, ended REAL, error TEXT, UNIQUE (key, target));
CREATE INDEX IF NOT EXISTS open_messages ON messages (due) WHERE ended IS NULL;
CREATE TABLE IF NOT EXISTS progress (seq INTEGER NOT NULL);
"""
_MESSAGE = Decoder(Message)


class Entry(Struct):
    """A message for a target."""

    target: str
    message: Message
    topic: str
    """Messages of one topic that are due together are sent as one."""
    due: float


class TargetStatus(Struct, kw_only=True):
    """What became of the messages for a target."""

    sent: int = 0
    pending: int = 0
    failed: int = 0
    error: str | None = None
    """Why the last delivery failed; None after one that succeeded."""


class Outbox:
    """Used by one thread."""

    def __init__(self, path: str, limit_of: Callable[[str], int] = lambda _: 20) -> None:
        """`limit_of` returns how many deliveries a target takes per hour."""
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + _SCHEMA)
        self._limit_of = limit_of

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @property
    def seq(self) -> int | None:
        """The last event that was turned into messages; None: none was."""
        row = self._db.execute("SELECT seq FROM progress").fetchone()
        return row[0] if row is not None else None

    def add(self, seq: int, entries: Iterable[Entry], now: float) -> None:
        """Add messages, and note that all events up to this number were turned into messages."""
        rows = [
            (e.message.key, e.target, e.topic, encode(e.message), now, e.target, e.topic, e.due)
            for e in entries
        ]
        with self._transaction():
            self._db.executemany(
                "INSERT INTO messages (key, target, topic, body, created, due)"
                # Those of a topic are due with the first of them.
                " SELECT ?1, ?2, ?3, ?4, ?5, min(?8, COALESCE((SELECT min(due) FROM messages"
                " WHERE target = ?6 AND topic = ?7 AND ended IS NULL AND batch IS NULL), ?8))"
                # More may be known of a thing when its message is still there.
                " WHERE true ON CONFLICT (key, target) DO UPDATE SET body = excluded.body"
                " WHERE batch IS NULL AND ended IS NULL",
                rows,
            )
            self._db.execute("DELETE FROM progress")
            self._db.execute("INSERT INTO progress VALUES (?)", (seq,))
            self._db.execute(
                "DELETE FROM messages WHERE ended IS NOT NULL AND ended < ?", (now - KEEP_SECONDS,)
            )

    def take_due(
        self, now: float, limit: int, ahead: float = 0.0, busy: Collection[str] = ()
    ) -> list[Delivery]:
        """Return deliveries that are due, and count the try: a crash does not try for ever.

        At most one for each target, and none for those that are busy: one that hangs delays no
        other. `ahead`: seconds; messages that were never tried are taken so much earlier.
        """
        due = self._db.execute(
            "SELECT target, COALESCE(batch, -1), topic, min(id) FROM messages"
            " WHERE ended IS NULL AND (due <= ? OR (tries = 0 AND due <= ?))"
            " GROUP BY target, batch, topic ORDER BY min(id)", (now, now + ahead),
        ).fetchall()  # fmt: skip
        groups: dict[str, list[tuple[int, str, int]]] = {}
        for target, batch, topic, first in due:
            if target in busy:
                continue
            groups.setdefault(target, []).append((batch, topic, first))
        deliveries: list[Delivery] = []
        with self._transaction():
            for target, found in groups.items():
                left = self._left(target, now)
                tried = [(batch, topic, first) for batch, topic, first in found if batch >= 0]
                fresh = [(batch, topic, first) for batch, topic, first in found if batch < 0]
                plans: list[tuple[int, str | None]] = [(batch, None) for batch, _, _ in tried]
                if fresh and left <= 0:
                    self._postpone(target, now)
                elif len(fresh) > left:
                    plans.append((fresh[0][2], ""))  # all of them as one
                else:
                    plans += [(first, topic) for _, topic, first in fresh]
                if len(deliveries) < limit and plans:
                    batch, topic = plans[0]
                    deliveries.append(self._claim(target, batch, topic, now, ahead))
        return deliveries

    def _claim(
        self, target: str, batch: int, topic: str | None, now: float, ahead: float
    ) -> Delivery:
        """Mark messages as one batch that is being sent; without a topic it is one already."""
        db = self._db
        if topic is not None:
            db.execute(
                "UPDATE messages SET batch = ? WHERE ended IS NULL AND batch IS NULL"
                " AND target = ? AND due <= ? AND (? = '' OR topic = ?)",
                (batch, target, now + ahead, topic, topic),
            )
        db.execute(
            "UPDATE messages SET tries = tries + 1, due = ? WHERE batch = ? AND ended IS NULL",
            (now + CLAIM_SECONDS, batch),
        )
        bodies = db.execute(
            "SELECT body, tries FROM messages WHERE batch = ? ORDER BY id LIMIT ?",
            (batch, MAX_LISTED),
        ).fetchall()
        (total,) = db.execute("SELECT count(*) FROM messages WHERE batch = ?", (batch,)).fetchone()
        return Delivery(
            batch=batch, target=target, messages=[_MESSAGE.decode(body) for body, _ in bodies],
            tries=bodies[0][1], more=total - len(bodies),
        )  # fmt: skip

    def _left(self, target: str, now: float) -> int:
        """Return how many deliveries the target takes now."""
        (sent,) = self._db.execute(
            "SELECT count(DISTINCT batch) FROM messages"
            " WHERE target = ? AND error IS NULL AND ended > ?", (target, now - HOUR),
        ).fetchone()  # fmt: skip
        return self._limit_of(target) - int(sent)

    def _postpone(self, target: str, now: float) -> None:
        """Have messages wait until the oldest delivery of the last hour is an hour old."""
        (oldest,) = self._db.execute(
            "SELECT min(ended) FROM messages WHERE target = ? AND error IS NULL AND ended > ?",
            (target, now - HOUR),
        ).fetchone()
        self._db.execute(
            "UPDATE messages SET due = ? WHERE target = ? AND ended IS NULL AND batch IS NULL"
            " AND due < ?",
            ((oldest or now) + HOUR, target, (oldest or now) + HOUR),
        )

    def finish(self, delivery: Delivery, error: str | None, now: float) -> float | None:
        """Note the outcome of a delivery; return the seconds until it is tried again."""
        wait = None
        if error is not None and delivery.tries <= len(RETRY_SECONDS):
            wait = RETRY_SECONDS[delivery.tries - 1]
        with self._transaction():
            self._db.execute(
                "UPDATE messages SET due = ?, ended = ?, error = ? WHERE batch = ?",
                (now + (wait or 0.0), None if wait is not None else now, error, delivery.batch),
            )
        return wait

    def next_due(self, busy: Collection[str] = ()) -> float | None:
        """Return when something is to be sent to a target that is not busy."""
        rows = self._db.execute(
            "SELECT target, min(due) FROM messages WHERE ended IS NULL GROUP BY target"
        )
        return min((due for target, due in rows if target not in busy), default=None)

    def status(self) -> dict[str, TargetStatus]:
        """Return what became of the messages for each target."""
        found = {
            target: TargetStatus(sent=sent, pending=pending, failed=failed)
            for target, sent, pending, failed in self._db.execute(
                "SELECT target, sum(ended IS NOT NULL AND error IS NULL), sum(ended IS NULL),"
                " sum(ended IS NOT NULL AND error IS NOT NULL) FROM messages GROUP BY target"
            )
        }
        for target, status in found.items():
            row = self._db.execute(
                "SELECT error FROM messages WHERE target = ? AND batch IS NOT NULL"
                " AND (ended IS NOT NULL OR error IS NOT NULL) ORDER BY batch DESC LIMIT 1",
                (target,),
            ).fetchone()
            status.error = row[0] if row is not None else None
        return found

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Make everything inside permanent together."""
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            yield
