"""Replacing the journal by another file, so that a crash at any instant loses neither of them.

A finished successor is called NAME.repaired-STAMP. From then on the replacement is only ever
completed: by this process, or by the next one that opens the journal.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator

LOGS = ("-wal", "-shm", "-journal")
"""Files of SQLite beside a database; left beside another one they would spoil it."""
FINISHED = ".repaired-"
KEPT = ".damaged-"
EMERGENCY = ".emergency"
"""A copy that a daemon wrote because the journal was deleted while it ran."""


def new_stamp(path: str) -> str:
    """Return a stamp under which no earlier file is kept."""
    stamp = time.strftime("%Y%m%dT%H%M%S")
    while os.path.exists(kept_as(path, stamp)):
        stamp += "x"
    return stamp


def kept_as(path: str, stamp: str) -> str:
    """Return the name under which the replaced journal is kept."""
    return f"{path}{KEPT}{stamp}"


def replace(path: str, successor: str, stamp: str) -> None:
    """Make `successor`, a closed database in the same directory, the journal."""
    sync(successor)
    os.rename(successor, f"{path}{FINISHED}{stamp}")
    sync(os.path.dirname(path))
    finish(path)


def finish(path: str) -> None:
    """Complete the replacement that was begun, if one was; every step can be repeated."""
    for finished in beside(path, FINISHED):
        kept = kept_as(path, finished.rpartition(FINISHED)[2])
        for suffix in (*LOGS, ""):
            with contextlib.suppress(FileNotFoundError):
                os.rename(path + suffix, kept + suffix)
        sync(os.path.dirname(path))
        os.rename(finished, path)
        sync(os.path.dirname(path))


def beside(path: str, kind: str) -> list[str]:
    """List the files of one kind beside the journal, the newest first."""
    directory, name = os.path.split(path)
    try:
        names = os.listdir(directory or ".")
    except OSError:
        return []
    found = sorted((each for each in names if each.startswith(name + kind)), reverse=True)
    return [os.path.join(directory, each) for each in found if not each.endswith(LOGS)]


def discard(path: str) -> None:
    """Remove a database of ours that was never finished."""
    for suffix in (*LOGS, ""):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + suffix)


def sync(path: str) -> None:
    """Put a file, or the names in a directory, on disk."""
    fd = os.open(path or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def reading(path: str) -> Iterator[sqlite3.Connection]:
    """Open a database to look at it: nothing in it changes, not even by closing it."""
    db = sqlite3.connect(f"file:{quoted(path)}?mode=ro", uri=True)
    db.text_factory = readable_text
    with contextlib.closing(db):
        yield db


def quoted(path: str) -> str:
    """Write a path so that it can stand in a URI."""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def readable_text(data: bytes) -> str:
    """Text that may be damaged: the row that it belongs to is judged as a whole."""
    return data.decode("utf-8", "replace")


def last_event(path: str) -> int | None:
    """The number of the last event in a journal; None when that cannot be read."""
    try:
        with reading(path) as db:
            if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                return 0  # all that was ever written was in a log that is gone
            return int(db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])
    except sqlite3.Error:
        return None


def is_empty(path: str) -> bool:
    """Whether a journal is missing or has no events; an unreadable one is damaged, not empty."""
    return not has_content(path) or last_event(path) == 0


def continues(copy: str, path: str) -> bool:
    """Whether a copy begins with the events of a journal, as far as that can be told."""
    last = last_event(path)
    if not last:
        return True
    query = "SELECT at, kind, data FROM events WHERE seq = ?"
    try:
        with reading(copy) as one, reading(path) as other:
            rows = [db.execute(query, (last,)).fetchone() for db in (one, other)]
    except sqlite3.Error:
        return False
    return bool(rows[0] == rows[1])


def has_content(path: str) -> bool:
    """Whether there is a file with anything in it."""
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False
