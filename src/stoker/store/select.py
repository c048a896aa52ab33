"""Which store: the file of SQLite, or a PostgreSQL server by its URL."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping

from msgspec import Struct

from stoker.core.units import BadValue
from stoker.store.port import Store, StoreError

VARIABLE = "STOKER_DB"
SCHEMA = "stoker"
"""The schema of a database that is used unless `?schema=NAME` says another."""

_EXAMPLE = "sqlite, postgres, or a URL such as postgresql://user@host/database"
_NAME = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}", re.ASCII)
_SECRET = re.compile(r"\b((?:ssl)?password)=[^&]*", re.IGNORECASE)


class StoreConfig(Struct, frozen=True):
    """A store, named but not opened. Without a URL it is SQLite's file in the state directory."""

    url: str | None = None
    """For libpq, without what is ours; empty for libpq's own defaults. May hold a password."""
    schema: str = SCHEMA

    @property
    def text(self) -> str:
        """The store as it can be written with `--db`; may hold a password."""
        if not self.url:
            return "sqlite" if self.url is None else "postgres"
        return f"{self.url}{'&' if '?' in self.url else '?'}schema={self.schema}"

    @property
    def shown(self) -> str:
        """The store for people to read: never with a password."""
        if self.url is None:
            return "sqlite"
        text = masked(self.url) if self.url else "postgresql:"
        return f"{text} (schema {self.schema})"


def masked(url: str) -> str:
    """Return a URL without its password, whatever characters that holds."""
    head, colon, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    if at:
        rest = f"{user.partition(':')[0]}{':***' if ':' in user else ''}@{place}"
    return _SECRET.sub(r"\1=***", head + colon + rest)


def parse(text: str, what: str, default: str | None = None) -> StoreConfig:
    """Read what somebody wrote; `postgres` means the `default` URL, else libpq's own settings."""
    text = text.strip()
    if text == "sqlite":
        return StoreConfig()
    if text == "postgres":
        named = default not in (None, "sqlite", "postgres")
        return parse(default, what) if named and default else StoreConfig("")
    if not text.startswith(("postgresql://", "postgres://")):
        # What was typed may hold a password, so it is not repeated.
        raise BadValue(f"{what} must be {_EXAMPLE}.")
    head, mark, query = text.partition("?")
    if head.count("@") > 1 or "@" in query:
        raise BadValue(
            f"{what} has more than one @; write %40 for an @ inside a user name or password."
        )
    ours = [part for part in query.split("&") if part.startswith("schema=")]
    others = [part for part in query.split("&") if part not in ours]
    from urllib.parse import unquote

    schema = unquote(ours[-1].partition("=")[2]) if ours else SCHEMA
    if not _NAME.fullmatch(schema):
        raise BadValue(
            f"{what} has the invalid schema '{schema[:80]}'; use lower-case letters, "
            "digits and underscores."
        )
    return StoreConfig(head + (mark + "&".join(others) if any(others) else ""), schema)


class Memory:
    """What was said with `--db`, and which store was the last one here; the owner's alone."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.said: str | None = None
        self.last: str | None = None
        with contextlib.suppress(OSError, ValueError, AttributeError), open(path) as file:
            found = json.load(file)
            self.said, self.last = found.get("db"), found.get("last")

    def save(self) -> None:
        """Write both down."""
        part = f"{self.path}.{os.getpid()}"
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "w") as file:
            json.dump({"db": self.said, "last": self.last}, file)
        os.rename(part, self.path)


def choose(
    said: str | None, configured: str | None, remembered: str | None, environ: Mapping[str, str]
) -> StoreConfig:
    """The flag wins over the variable, that over the configuration, that over what was said."""
    variable = environ.get(VARIABLE) or None
    default = variable if variable not in (None, "sqlite", "postgres") else configured
    for text, what in (
        (said, "--db"),
        (variable, VARIABLE),
        (configured, "config.toml: store.url"),
        (remembered, "--db"),
    ):
        if text is not None:
            return parse(text, what, default)
    return StoreConfig()


def open_store(
    choice: StoreConfig, journal: str, shared_file_system: bool, patience: float
) -> Store:
    """Open it; only then is what it needs imported."""
    if choice.url is None:
        from stoker.store.sqlite import SqliteStore

        return SqliteStore(journal, shared_file_system=shared_file_system)
    need_driver()
    from stoker.store.postgres import PostgresStore

    aside = os.path.join(os.path.dirname(journal), "postgres.forced")
    return PostgresStore(choice, aside=aside, patience=patience)


def check(choice: StoreConfig) -> None:
    """Raise what would keep a daemon from opening this store, short of another that holds it."""
    if choice.url is not None:
        need_driver()
        from stoker.store.postgres_server import reachable

        reachable(choice)


def need_driver() -> None:
    """Say how to get the driver where it is missing."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise StoreError(
            "PostgreSQL needs the package psycopg, which cannot be imported. "
            "Run: pip install 'stoker[postgres]'"
        ) from error


def left_behind(choice: StoreConfig, last: str | None, journal: str) -> str | None:
    """Say which jobs stay where they are when a state moves on to another store."""
    if last == choice.shown or (last is None and choice.url is None):
        return None
    if last not in (None, "sqlite"):
        return f"jobs are now stored in {choice.shown}; earlier jobs remain in {last}"
    count = _jobs_in(journal)
    if not count:
        return None
    jobs = "1 earlier job remains" if count == 1 else f"{count:,} earlier jobs remain"
    return (
        f"jobs are now stored in {choice.shown}; {jobs} in {journal}. "
        "To go back: stoker daemon restart --db sqlite"
    )


def _jobs_in(journal: str) -> int:
    """How many jobs SQLite's file holds; a look that changes nothing."""
    import sqlite3

    if not os.path.exists(journal):
        return 0
    try:
        with contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT count(*) FROM jobs").fetchone()[0])
    except sqlite3.Error:
        return 0
