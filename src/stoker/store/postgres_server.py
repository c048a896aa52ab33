"""A PostgreSQL server: how it is spoken to, who has the lease, and what its errors mean."""

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
from stoker.core.units import BadValue
from stoker.store.port import StoreError, StoreFenced, StoreFull
from stoker.store.select import StoreConfig

LAYOUT = 2
"""The layout of the tables; an older schema is migrated, a newer one is refused."""
FENCED = "STK01"
"""What the server says when the term is no longer ours; see check_term in postgres.sql."""
HANDOVER = 3.0
"""Seconds for an earlier daemon to let go of the lease."""

Connection = psycopg.Connection[tuple[Any, ...]]

# What goes wrong with a connection is mended or said by us, in one sentence.
logging.getLogger("psycopg").setLevel(logging.CRITICAL)

# A peer that is gone without a word is noticed within about a minute, on either side.
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


class Unreachable(StoreError):
    """The server does not answer, or not now."""

    exit_code = wire.EXIT_UNREACHABLE


class Denied(StoreError):
    """The server does not let us in, or not do what is needed."""

    exit_code = wire.EXIT_PERMISSION


class Lost(Exception):
    """The connection broke: whether the last transaction happened is not known."""


class Name(Struct, frozen=True):
    """Who holds a connection, as its application_name tells everybody."""

    pid: int
    host: str
    world: str
    """Where that pid means something: a machine, its boot and its pid namespace."""
    token: str

    @classmethod
    def ours(cls) -> Name:
        """A name for this process that nobody else has."""
        host = os.uname().nodename.encode("ascii", "replace").decode()[:24] or "?"
        return cls(os.getpid(), host.replace(" ", "-"), _world(), os.urandom(3).hex())

    @classmethod
    def read(cls, text: str) -> Name | None:
        """Read it back; None when it is not one of ours."""
        words = text.split(" ")
        if len(words) != 6 or words[0] != "stoker" or not words[1].isdigit():
            return None
        return cls(int(words[1]), words[3], words[4], words[5])

    def __str__(self) -> str:
        return f"stoker {self.pid} on {self.host} {self.world} {self.token}"

    @property
    def is_dead(self) -> bool:
        """Whether it is certain that this process no longer exists."""
        return self.world == _world() and not os.path.exists(f"/proc/{self.pid}")


def _world() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return places.digest(f"{places.machine_id()} {boot} {os.stat('/proc/self/ns/pid').st_ino}")


def connect(choice: StoreConfig, name: Name) -> Connection:
    """Open a session in our schema; raise Unreachable or Denied in one sentence."""
    assert choice.url is not None
    try:
        given = {key: str(value) for key, value in conninfo_to_dict(choice.url).items()}
        info = make_conninfo(
            **{**_CLIENT, **given, "application_name": str(name), "client_encoding": "UTF8"}
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
        raise _refused(error, choice, given.get("password")) from None
    try:
        *_, commit, encoding, standby = _settled(db, choice)
        if standby:
            raise Unreachable(
                f"{choice.shown} is a read-only standby. Give the URL of its primary."
            )
        if encoding != "UTF8":
            raise StoreError(
                f"{choice.shown} is encoded as {encoding}. "
                "Create a database for stoker with: createdb --encoding=UTF8 NAME"
            )
        if commit == "off":
            db.execute("SET synchronous_commit = on")
    except BaseException as error:
        db.close()
        if isinstance(error, psycopg.Error):
            raise _refused(error, choice, given.get("password")) from None
        raise
    return db


def _settled(db: Connection, choice: StoreConfig) -> tuple[Any, ...]:
    row = db.execute(_SESSION, (choice.schema,)).fetchone()
    assert row is not None
    return row


def _refused(error: psycopg.Error, choice: StoreConfig, password: str | None) -> StoreError:
    """Why there is no connection. What libpq says may hold several tries, and the password."""
    lines = [line for line in str(error).splitlines() if line and not line.startswith("\t")]
    text = (lines or ["no reason given"])[-1].rpartition("FATAL:")[2].strip()
    text = text.rpartition(" failed: ")[2].rstrip(".")
    text = text.replace(password, "***") if password else text
    if "password" in text or "authentication" in text or "pg_hba" in text:
        return Denied(f"{choice.shown} denied access: {text}.")
    if "does not exist" in text:
        return StoreError(f"{choice.shown}: {text}. Create it first with createdb or createuser.")
    return Unreachable(f"{choice.shown} cannot be reached: {text}.")


def is_lost(error: psycopg.Error, db: Connection) -> bool:
    """Whether a connection is gone, so that nobody can say what became of its transaction."""
    state = error.sqlstate or ""
    return db.closed or state.startswith(("08", "57P")) or (
        not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    )  # fmt: skip


def translated(error: psycopg.Error, choice: StoreConfig) -> StoreError:
    """Say in our words what the server refused; the transaction did not happen."""
    if error.sqlstate == FENCED:
        return StoreFenced("Another daemon has taken over this state; this one stops.")
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    if error.sqlstate == _DISK_FULL:
        return StoreFull(
            f"The disk of {choice.shown} is full ({text}). Free some space; nothing was lost."
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return Denied(
            f"{choice.shown}: {text}. Grant the privilege, or use a database of your own."
        )
    return StoreError(f"{choice.shown}: {text}.")


def forget_transaction(db: Connection) -> None:
    """After a refusal: leave no transaction open behind us."""
    try:
        if db.info.transaction_status != TransactionStatus.IDLE:
            db.execute("ROLLBACK")
    except psycopg.Error:
        db.close()  # the next one to use it will find out, and connect again


# -- the lease ----------------------------------------------------------------------------


def lease_key(schema: str) -> int:
    """The number of the advisory lock; such locks are a database's own."""
    return int.from_bytes(hashlib.blake2b(f"stoker {schema}".encode(), digest_size=7).digest())


def take_lease(db: Connection, choice: StoreConfig, mine: Name, patience: float) -> None:
    """Be the only writer for as long as this session lives, or raise StoreFenced with who is.

    A session of ours, or of a process that is certainly dead, may linger on the server, even
    in the middle of a COMMIT. It is ended first: once we have the lease, nothing of it is
    still to come.
    """
    key, deadline = lease_key(choice.schema), time.monotonic() + patience
    while True:
        row = db.execute("SELECT pg_try_advisory_lock(%s::bigint)", (key,)).fetchone()
        if row and row[0]:
            return
        found = db.execute(_HOLDER, (key >> 32, key & 0xFFFFFFFF)).fetchone()
        holder = Name.read(found[1]) if found else None
        if found and holder and (holder == mine or holder.is_dead):
            db.execute("SELECT pg_terminate_backend(%s)", (found[0],))
        if time.monotonic() > deadline:
            who = (
                f"the daemon with pid {holder.pid} on {holder.host}"
                if holder
                else "another process"
            )
            raise StoreFenced(
                f"{choice.shown} is in use by {who}. Stop that daemon, "
                "or use another schema: ?schema=NAME"
            )
        time.sleep(0.02)


# -- the layout ---------------------------------------------------------------------------


def layout_of(db: Connection, choice: StoreConfig) -> int | None:
    """The version of the tables that are there; None when there are none."""
    row = db.execute("SELECT to_regclass('meta') IS NULL").fetchone()
    if row is None or row[0]:
        return None
    try:
        row = db.execute("SELECT number FROM meta WHERE key = 'layout'").fetchone()
    except psycopg.errors.UndefinedColumn:
        row = None
    if row is None:
        raise StoreError(
            f"{choice.shown} contains tables of another program. Use another schema: ?schema=NAME"
        )
    if row[0] > LAYOUT:
        raise StoreError(
            f"{choice.shown} was written by a newer stoker (layout {row[0]}; this version "
            f"supports {LAYOUT}). Upgrade stoker, or use another schema: ?schema=NAME"
        )
    return int(row[0])


def reachable(choice: StoreConfig) -> None:
    """Raise what keeps this store from being opened, apart from somebody who has it open."""
    db = connect(choice, Name.ours())
    try:
        layout_of(db, choice)
    except psycopg.Error as error:
        raise translated(error, choice) from None
    finally:
        db.close()
