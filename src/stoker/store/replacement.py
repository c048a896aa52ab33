"""Replace the journal by another file, so that a crash at any point loses neither of them.

A finished successor is called NAME.repaired-STAMP. From then on the replacement is always
completed: by this process, or by the next one that opens the journal.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator

from stoker import places

SIDE_FILES = ("-wal", "-shm", "-journal")
"""Files of SQLite beside a database; beside another database they would corrupt it."""
FINISHED = ".repaired-"
DAMAGED = ".damaged-"
EMERGENCY = ".emergency"
"""A copy that a daemon wrote because the journal was deleted while it ran."""


def new_stamp(path: str) -> str:
    """Return a stamp that no earlier damaged file has."""
    stamp = time.strftime("%Y%m%dT%H%M%S")
    while os.path.exists(damaged_path(path, stamp)):
        stamp += "x"
    return stamp


def damaged_path(path: str, stamp: str) -> str:
    """Return the path under which the replaced journal is kept."""
    return f"{path}{DAMAGED}{stamp}"


def replace(path: str, successor: str, stamp: str) -> None:
    """Make `successor`, a closed database in the same directory, the journal."""
    sync(successor)
    os.rename(successor, f"{path}{FINISHED}{stamp}")
    sync(os.path.dirname(path))
    finish(path)


def finish(path: str) -> None:
    """Complete an interrupted replacement, if there is one; every step can be repeated."""
    for finished in find_beside(path, FINISHED):
        damaged = damaged_path(path, finished.rpartition(FINISHED)[2])
        for suffix in (*SIDE_FILES, ""):
            with contextlib.suppress(FileNotFoundError):
                os.rename(path + suffix, damaged + suffix)
        sync(os.path.dirname(path))
        os.rename(finished, path)
        sync(os.path.dirname(path))


def find_beside(path: str, kind: str) -> list[str]:
    """List the files of one kind beside the journal, the newest first."""
    directory, name = os.path.split(path)
    try:
        names = os.listdir(directory or ".")
    except OSError:
        return []
    matching = [
        other for other in names if other.startswith(name + kind) and not other.endswith(SIDE_FILES)
    ]
    return [os.path.join(directory, other) for other in sorted(matching, reverse=True)]


def discard(path: str) -> None:
    """Remove a database that was not finished."""
    for suffix in (*SIDE_FILES, ""):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + suffix)


def sync(path: str) -> None:
    """Sync a file, or the names in a directory."""
    fd = os.open(path or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def open_readonly(path: str) -> Iterator[sqlite3.Connection]:
    """Open a database read-only: nothing changes, not even when it is closed."""
    db = sqlite3.connect(f"file:{_quote_uri(path)}?mode=ro", uri=True)
    db.text_factory = decode_text
    with contextlib.closing(db):
        yield db


def _quote_uri(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def decode_text(data: bytes) -> str:
    """Decode text that may be damaged: whether it is shows when its row is decoded."""
    return data.decode("utf-8", "replace")


def last_event(path: str) -> int | None:
    """Return the number of the last event in a journal, None if it cannot be read."""
    try:
        with open_readonly(path) as db:
            if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                return 0  # everything was in a write-ahead log that is gone
            return int(db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])
    except sqlite3.Error:
        return None


def is_empty(path: str) -> bool:
    """Return True if a journal is missing or has no events; an unreadable one is not empty."""
    return not has_content(path) or last_event(path) == 0


def is_continuation(copy: str, path: str) -> bool:
    """Return True if a copy contains the last event of a journal, or that has none."""
    last = last_event(path)
    if not last:
        return True
    query = "SELECT at, kind, data FROM events WHERE seq = ?"
    try:
        with open_readonly(copy) as copy_db, open_readonly(path) as journal:
            rows = [db.execute(query, (last,)).fetchone() for db in (copy_db, journal)]
    except sqlite3.Error:
        return False
    return bool(rows[0] == rows[1])


def has_content(path: str) -> bool:
    """Return True if there is a file that is not empty."""
    return places.file_size(path) > 0
