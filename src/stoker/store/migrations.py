"""Layouts of the tables, and the migrations from older ones."""

from __future__ import annotations

import os
import sqlite3

SCHEMA = 3
"""The layout of a file; an older one is migrated, a newer one is rejected."""
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
"""Migration to the next layout, by layout."""
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
"""The same for PostgreSQL, where layouts are numbered separately."""

_DIRECTORY = os.path.dirname(__file__)


def script(name: str) -> str:
    """Return a SQL script that creates the tables of the current layout."""
    with open(os.path.join(_DIRECTORY, "sql", name)) as file:
        return file.read()


def create(db: sqlite3.Connection) -> None:
    """Create all tables in one transaction."""
    # Including the version: without it the file could belong to another program.
    db.executescript(f"BEGIN;\n{script('schema.sql')}\nPRAGMA user_version = {SCHEMA};\nCOMMIT;")


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Migrate an older layout step by step, each step in one transaction."""
    for number in range(version, SCHEMA):
        db.executescript(f"BEGIN;\n{SQLITE[number]}\nPRAGMA user_version = {number + 1};\nCOMMIT;")
