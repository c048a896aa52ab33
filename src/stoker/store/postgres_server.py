"""Connections to a PostgreSQL server, the writer's lease, and error messages."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from typing import Any

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from stoker import places, wire
from stoker.core.model.units import BadValue
from stoker.store.port import StoreError, StoreFenced, StoreFull
from stoker.store.select import StoreConfig

LAYOUT = 2
"""The layout of the tables; an older schema is migrated, a newer one is rejected."""
FENCED = "STK01"
"""SQLSTATE for an outdated term; see check_term in postgres.sql."""
LEASE_TIMEOUT_SECONDS = 3.0
"""Time for an earlier daemon to release the lease."""

Connection = psycopg.Connection[tuple[Any, ...]]

# Connection errors are handled or reported by this module.
logging.getLogger("psycopg").setLevel(logging.CRITICAL)

# Both sides notice within about a minute that the other one has vanished.
_CLIENT = {
    "connect_timeout": "10", "keepalives_idle": "30", "keepalives_interval": "10",
    "keepalives_count": "3", "tcp_user_timeout": "30000",
}  # fmt: skip
_SESSION = """
    SELECT set_config('search_path', %s, false),
        set_config('tcp_keepalives_idle', '30', false),
        set_config('tcp_keepalives_interval', '10', false),
        set_config('tcp_keepalives_count', '3', false),
        current_setting('synchronous_commit'), current_setting('server_encoding'),
        pg_is_in_recovery()
"""
_HOLDER = """
    SELECT pid, application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND objsubid = 1
        AND classid::bigint = %s AND objid::bigint = %s
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_DISK_FULL = "53100"


class ServerUnreachable(StoreError):
    """The server does not answer."""

    exit_code = wire.EXIT_UNREACHABLE


class AccessDenied(StoreError):
    """The server denies the connection or an operation."""

    exit_code = wire.EXIT_PERMISSION


class ConnectionLost(Exception):
    """The connection broke: it is unknown whether the last transaction was committed."""


class SessionName(Struct, frozen=True):
    """Identifies the process of a connection by its application_name."""

    pid: int
    host: str
    namespace: str
    """The scope of the pid: a machine, its boot and its pid namespace."""
    token: str

    @classmethod
    def create(cls) -> SessionName:
        """Return a unique name for a session of this process."""
        host = os.uname().nodename.encode("ascii", "replace").decode()[:24] or "?"
        return cls(os.getpid(), host.replace(" ", "-"), _pid_namespace(), os.urandom(3).hex())

    @classmethod
    def parse(cls, text: str) -> SessionName | None:
        """Parse an application_name; return None if it is not one of stoker."""
        fields = text.split(" ")
        if len(fields) != 6 or fields[0] != "stoker" or not fields[1].isdigit():
            return None
        return cls(int(fields[1]), fields[3], fields[4], fields[5])

    def __str__(self) -> str:
        return f"stoker {self.pid} on {self.host} {self.namespace} {self.token}"

    @property
    def is_dead(self) -> bool:
        """Return True if this process certainly no longer exists."""
        return self.namespace == _pid_namespace() and not os.path.exists(f"/proc/{self.pid}")


def _pid_namespace() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return places.digest(f"{places.machine_id()} {boot} {os.stat('/proc/self/ns/pid').st_ino}")


def connect(config: StoreConfig, name: SessionName) -> Connection:
    """Open a session in stoker's schema; raise ServerUnreachable or AccessDenied."""
    assert config.url is not None
    try:
        parameters = {key: str(value) for key, value in conninfo_to_dict(config.url).items()}
        info = make_conninfo(
            **{**_CLIENT, **parameters, "application_name": str(name), "client_encoding": "UTF8"}
        )
    except psycopg.ProgrammingError:
        # libpq repeats the URL in its message, and with it the password.
        raise BadValue(
            "The URL of the store is invalid; write postgresql://user@host:5432/database, "
            "with special characters percent-encoded (@ as %40)."
        ) from None
    try:
        db = psycopg.connect(info, autocommit=True)
    except psycopg.Error as error:
        raise _connection_error(error, config, parameters.get("password")) from None
    try:
        *_, commit, encoding, standby = _configure_session(db, config)
        if standby:
            raise ServerUnreachable(
                f"{config.shown} is a read-only standby. Give the URL of its primary."
            )
        if encoding != "UTF8":
            raise StoreError(
                f"{config.shown} is encoded as {encoding}. "
                "Create a database for stoker with: createdb --encoding=UTF8 NAME"
            )
        if commit == "off":
            db.execute("SET synchronous_commit = on")
    except BaseException as error:
        db.close()
        if isinstance(error, psycopg.Error):
            raise _connection_error(error, config, parameters.get("password")) from None
        raise
    return db


def _configure_session(db: Connection, config: StoreConfig) -> tuple[Any, ...]:
    row = db.execute(_SESSION, (config.schema,)).fetchone()
    assert row is not None
    return row


def _connection_error(
    error: psycopg.Error, config: StoreConfig, password: str | None
) -> StoreError:
    """Return the error of a failed connection; libpq's text may contain the password."""
    lines = [line for line in str(error).splitlines() if line and not line.startswith("\t")]
    text = (lines or ["no reason given"])[-1].rpartition("FATAL:")[2].strip()
    text = text.rpartition(" failed: ")[2].rstrip(".")
    text = text.replace(password, "***") if password else text
    if "password" in text or "authentication" in text or "pg_hba" in text:
        return AccessDenied(f"{config.shown} denied access: {text}.")
    if "does not exist" in text:
        return StoreError(f"{config.shown}: {text}. Create it first with createdb or createuser.")
    return ServerUnreachable(f"{config.shown} cannot be reached: {text}.")


def is_connection_lost(error: psycopg.Error, db: Connection) -> bool:
    """Return True if the connection broke, so that the transaction's outcome is unknown."""
    state = error.sqlstate or ""
    return db.closed or state.startswith(("08", "57P")) or (
        not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    )  # fmt: skip


def translate_error(error: psycopg.Error, config: StoreConfig) -> StoreError:
    """Return the error for a transaction that the server rejected."""
    if error.sqlstate == FENCED:
        return StoreFenced("Another daemon has taken over this state; this one stops.")
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    if error.sqlstate == _DISK_FULL:
        return StoreFull(
            f"The disk of {config.shown} is full ({text}). Free some space; nothing was lost."
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return AccessDenied(
            f"{config.shown}: {text}. Grant the privilege, or use a database of your own."
        )
    return StoreError(f"{config.shown}: {text}.")


def roll_back(db: Connection) -> None:
    """Roll back the open transaction, if any, after a rejected statement."""
    try:
        if db.info.transaction_status != TransactionStatus.IDLE:
            db.execute("ROLLBACK")
    except psycopg.Error:
        db.close()  # the next use notices that and reconnects


# -- the lease ----------------------------------------------------------------------------


def lease_key(schema: str) -> int:
    """Return the number of the advisory lock; advisory locks are per database."""
    return int.from_bytes(hashlib.blake2b(f"stoker {schema}".encode(), digest_size=7).digest())


def acquire_lease(db: Connection, config: StoreConfig, name: SessionName, timeout: float) -> None:
    """Become the only writer while this session lives, or raise StoreFenced with the holder.

    An earlier session of this process, or of one that is certainly dead, may still exist on the
    server, even in the middle of a COMMIT. It is terminated first: once this session has the
    lease, nothing of the earlier one can follow.
    """
    key, deadline = lease_key(config.schema), time.monotonic() + timeout
    while True:
        row = db.execute("SELECT pg_try_advisory_lock(%s::bigint)", (key,)).fetchone()
        if row and row[0]:
            return
        holder_row = db.execute(_HOLDER, (key >> 32, key & 0xFFFFFFFF)).fetchone()
        holder = SessionName.parse(holder_row[1]) if holder_row else None
        if holder_row and holder and (holder == name or holder.is_dead):
            db.execute("SELECT pg_terminate_backend(%s)", (holder_row[0],))
        if time.monotonic() > deadline:
            owner = (
                f"the daemon with pid {holder.pid} on {holder.host}"
                if holder
                else "another process"
            )
            raise StoreFenced(
                f"{config.shown} is in use by {owner}. Stop that daemon, "
                "or use another schema: ?schema=NAME"
            )
        time.sleep(0.02)


# -- the layout ---------------------------------------------------------------------------


def read_layout(db: Connection, config: StoreConfig) -> int | None:
    """Return the layout of the existing tables, None if there are none."""
    row = db.execute("SELECT to_regclass('meta') IS NULL").fetchone()
    if row is None or row[0]:
        return None
    try:
        row = db.execute("SELECT number FROM meta WHERE key = 'layout'").fetchone()
    except psycopg.errors.UndefinedColumn:
        row = None
    if row is None:
        raise StoreError(
            f"{config.shown} contains tables of another program. Use another schema: ?schema=NAME"
        )
    if row[0] > LAYOUT:
        raise StoreError(
            f"{config.shown} was written by a newer stoker (layout {row[0]}; this version "
            f"supports {LAYOUT}). Upgrade stoker, or use another schema: ?schema=NAME"
        )
    return int(row[0])


def check_reachable(config: StoreConfig) -> None:
    """Raise the error that opening this store would raise, except for a held lease."""
    db = connect(config, SessionName.create())
    try:
        read_layout(db, config)
    except psycopg.Error as error:
        raise translate_error(error, config) from None
    finally:
        db.close()
