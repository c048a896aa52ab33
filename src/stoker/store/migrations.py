"""The layouts that the tables have had, and how an older one becomes the present one."""

from __future__ import annotations

import os
import sqlite3

SCHEMA = 3
"""The layout of a file; an older one is migrated, a newer one is refused."""
SQLITE = {
    1: """
        ALTER TABLE specs ADD COLUMN queue TEXT NOT NULL DEFAULT 'default';
        ALTER TABLE specs ADD COLUMN door TEXT;
        UPDATE specs SET queue = coalesce(CAST(data AS TEXT) ->> '$.queue', 'default'),
                         door = CAST(data AS TEXT) ->> '$.door';
    """,
    # A row that cannot be read is left for the salvage to find.
    2: """
        ALTER TABLE jobs ADD COLUMN member_of INTEGER;
        UPDATE jobs SET member_of = CASE WHEN json_valid(CAST(data AS TEXT))
                                         THEN CAST(data AS TEXT) ->> '$.array' END
            WHERE instr(data, CAST('"array":' AS BLOB));
        CREATE TABLE sweeps (
            id INTEGER PRIMARY KEY, name TEXT NOT NULL, resident INTEGER NOT NULL,
            data BLOB NOT NULL
        );
        CREATE INDEX jobs_members ON jobs (member_of, id) WHERE member_of IS NOT NULL;
    """,
}
"""By layout: what makes the next one of it."""
POSTGRES = {
    # PostgreSQL takes no text out of JSON with a zero byte in it, however it is spelled.
    1: r"""
        ALTER TABLE jobs ADD COLUMN member_of bigint;
        UPDATE jobs SET member_of =
            (replace(convert_from(data, 'UTF8'), '\u0000', '\ufffd')::json ->> 'array')::bigint
            WHERE position('"array":'::bytea IN data) > 0;
        CREATE TABLE sweeps (
            id bigint PRIMARY KEY, name text NOT NULL, resident boolean NOT NULL,
            data bytea NOT NULL
        );
        CREATE INDEX jobs_members ON jobs (member_of, id) WHERE member_of IS NOT NULL
    """,
}
"""The same for a schema on a server, whose layouts have numbers of their own."""

_HERE = os.path.dirname(__file__)


def script(name: str) -> str:
    """What makes the tables of the present layout."""
    with open(os.path.join(_HERE, "sql", name)) as file:
        return file.read()


def create(db: sqlite3.Connection) -> None:
    """Lay the tables out, all or nothing."""
    # The version too: tables without one could not be told from somebody else's.
    db.executescript(f"BEGIN;\n{script('schema.sql')}\nPRAGMA user_version = {SCHEMA};\nCOMMIT;")


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Bring an older layout up to date, one step after the other, each whole or not at all."""
    for number in range(version, SCHEMA):
        db.executescript(f"BEGIN;\n{SQLITE[number]}\nPRAGMA user_version = {number + 1};\nCOMMIT;")
