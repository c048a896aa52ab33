"""Select and open a store: SQLite's file, or a PostgreSQL server by its URL."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping

from msgspec import Struct

from stoker.core.model.units import BadValue
from stoker.store.port import Store, StoreError

VARIABLE = "STOKER_DB"
SCHEMA = "stoker"
"""The default schema; `?schema=NAME` in the URL selects another."""

_EXAMPLE = "sqlite, postgres, or a URL such as postgresql://user@host/database"
_NAME = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}", re.ASCII)
_SECRET = re.compile(r"\b((?:ssl)?password)=[^&]*", re.IGNORECASE)


class StoreConfig(Struct, frozen=True):
    """Identifies a store. Without a URL it is SQLite's file in the state directory."""

    url: str | None = None
    """For libpq, without `schema`; empty for libpq's defaults. May contain a password."""
    schema: str = SCHEMA

    @property
    def text(self) -> str:
        """The store as an argument of `--db`; may contain a password."""
        if not self.url:
            return "sqlite" if self.url is None else "postgres"
        return f"{self.url}{'&' if '?' in self.url else '?'}schema={self.schema}"

    @property
    def shown(self) -> str:
        """The store as shown to users, without the password."""
        if self.url is None:
            return "sqlite"
        text = mask_password(self.url) if self.url else "postgresql:"
        return f"{text} (schema {self.schema})"


def mask_password(url: str) -> str:
    """Return a URL without its password, whatever characters that contains."""
    scheme, colon, location = url.partition("://")
    user, at, host = location.rpartition("@")
    if at:
        location = f"{user.partition(':')[0]}{':***' if ':' in user else ''}@{host}"
    return _SECRET.sub(r"\1=***", scheme + colon + location)


def parse(text: str, what: str, default: str | None = None) -> StoreConfig:
    """Parse the name of a store; `postgres` means the `default` URL, else libpq's settings."""
    text = text.strip()
    if text == "sqlite":
        return StoreConfig()
    if text == "postgres":
        is_url = default not in (None, "sqlite", "postgres")
        return parse(default, what) if is_url and default else StoreConfig("")
    if not text.startswith(("postgresql://", "postgres://")):
        # The text may contain a password, so it is not repeated.
        raise BadValue(f"{what} must be {_EXAMPLE}.")
    head, mark, query = text.partition("?")
    if head.count("@") > 1 or "@" in query:
        raise BadValue(
            f"{what} has more than one @; write %40 for an @ inside a user name or password."
        )
    schemas = [part for part in query.split("&") if part.startswith("schema=")]
    others = [part for part in query.split("&") if part not in schemas]
    from urllib.parse import unquote

    schema = unquote(schemas[-1].partition("=")[2]) if schemas else SCHEMA
    if not _NAME.fullmatch(schema):
        raise BadValue(
            f"{what} has the invalid schema '{schema[:80]}'; use lower-case letters, "
            "digits and underscores."
        )
    return StoreConfig(head + (mark + "&".join(others) if any(others) else ""), schema)


def select_store(
    option: str | None, configured: str | None, remembered: str | None, environ: Mapping[str, str]
) -> StoreConfig:
    """Return the store by option, environment variable, configuration or last option, in order."""
    variable = environ.get(VARIABLE) or None
    default = variable if variable not in (None, "sqlite", "postgres") else configured
    for text, what in (
        (option, "--db"),
        (variable, VARIABLE),
        (configured, "config.toml: store.url"),
        (remembered, "--db"),
    ):
        if text is not None:
            return parse(text, what, default)
    return StoreConfig()


def open_store(
    config: StoreConfig, journal: str, shared_file_system: bool, reconnect_timeout: float
) -> Store:
    """Open a store; only then import its driver."""
    if config.url is None:
        from stoker.store.sqlite import SqliteStore

        return SqliteStore(journal, shared_file_system=shared_file_system)
    require_driver()
    from stoker.store.postgres import PostgresStore

    watermark = os.path.join(os.path.dirname(journal), "postgres.forced")
    return PostgresStore(config, watermark=watermark, reconnect_timeout=reconnect_timeout)


def check_store(config: StoreConfig) -> None:
    """Raise the error that opening this store would raise, except for a held lease."""
    if config.url is not None:
        require_driver()
        from stoker.store.postgres_server import check_reachable

        check_reachable(config)


def require_driver() -> None:
    """Raise an error with the install command if the driver is missing."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise StoreError(
            "PostgreSQL needs the package psycopg, which cannot be imported. "
            "Run: pip install 'stoker[postgres]'"
        ) from error


def moved_warning(config: StoreConfig, last: str | None, journal: str) -> str | None:
    """Return a warning about jobs that remain in the earlier store, if there are any."""
    if last == config.shown or (last is None and config.url is None):
        return None
    if last not in (None, "sqlite"):
        return f"jobs are now stored in {config.shown}; earlier jobs remain in {last}"
    count = _count_jobs_in(journal)
    if not count:
        return None
    jobs = "1 earlier job remains" if count == 1 else f"{count:,} earlier jobs remain"
    return (
        f"jobs are now stored in {config.shown}; {jobs} in {journal}. "
        "To go back: stoker daemon restart --db sqlite"
    )


def _count_jobs_in(journal: str) -> int:
    """Return the number of jobs in SQLite's file, opened read-only."""
    import sqlite3

    if not os.path.exists(journal):
        return 0
    try:
        with contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT count(*) FROM jobs").fetchone()[0])
    except sqlite3.Error:
        return 0
