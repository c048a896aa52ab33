"""Reading back what is whole of a damaged journal."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections import Counter
from typing import Any

import msgspec

from stoker.core.events import JobsForgotten, SpecRecorded, SweepDefined
from stoker.core.fold import apply
from stoker.core.job import Job, Spec
from stoker.core.rest import Rest
from stoker.core.state import State
from stoker.core.sweep import Sweep, word_of
from stoker.store import codec
from stoker.store.layouts import create

Row = tuple[Any, ...]
_TABLES = {
    "events": "seq", "jobs": "id", "specs": "hash", "blobs": "hash", "secrets": "hash",
    "submissions": "key", "meta": "key", "sweeps": "id",
}  # fmt: skip
"""Every table and the key by which it can be read from both ends."""


def salvage(path: str, cause: Exception) -> str:
    """Set the file aside, build a new one from what is readable, and say what happened."""
    aside = f"{path}.damaged-{time.strftime('%Y%m%dT%H%M%S')}"
    while os.path.exists(aside):
        aside += "x"
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + suffix, aside + suffix)
    found = _Remains(aside)
    if not found.tables["meta"]:
        found = _with_new_first_page(aside) or found
    story = _write(path, found)
    return f"the journal was damaged ({cause}); {story}, and the damaged file is kept as {aside}"


class _Remains:
    """The rows that can still be read."""

    def __init__(self, path: str) -> None:
        self.tables: dict[str, dict[Any, Row]] = {name: {} for name in _TABLES}
        self.whole: set[str] = set()
        with contextlib.suppress(sqlite3.DatabaseError):
            db = sqlite3.connect(path)
            with contextlib.closing(db):
                for name in _TABLES:
                    self._read(db, name)
        self._drop_garbage()

    def _read(self, db: sqlite3.Connection, name: str) -> None:
        """From the front up to the damage, then from the back down to it."""
        rows = self.tables[name]
        for direction in ("ASC", "DESC"):
            query = f"SELECT * FROM {name} ORDER BY {_TABLES[name]} {direction}"
            try:
                for row in db.execute(query):
                    rows[row[0]] = row
                self.whole.add(name)
                return
            except (sqlite3.DatabaseError, OverflowError, UnicodeDecodeError):
                continue

    def _drop_garbage(self) -> None:
        checks = {"events": _event, "jobs": _job, "specs": _spec, "sweeps": _sweep}
        for name, read in checks.items():
            rows = self.tables[name]
            for key in [key for key, row in rows.items() if read(row) is None]:
                del rows[key]
                self.whole.discard(name)

    def meta(self, key: str) -> Any:
        """A value of the small table, or None."""
        row = self.tables["meta"].get(key)
        return row[1] if row else None


def _event(row: Row) -> Any:
    try:
        return codec.decode_event(row[2], row[3], row[4])
    except (codec.Unreadable, TypeError):
        return None


def _job(row: Row) -> Job | None:
    try:
        job = codec.decode_job(row[10])
    except (msgspec.MsgspecError, TypeError):
        return None
    return job if job.id == row[0] else None


def _spec(row: Row) -> Spec | None:
    try:
        return codec.decode_spec(row[1])
    except (msgspec.MsgspecError, TypeError):
        return None


def _sweep(row: Row) -> Sweep | None:
    try:
        sweep = codec.decode_sweep(row[3])
    except (msgspec.MsgspecError, TypeError):
        return None
    return sweep if sweep.id == row[0] else None


def _with_new_first_page(path: str) -> _Remains | None:
    """The first page says only where the tables lie, which is the same in every journal.

    Not so the last of them, where the file was begun in an older layout: what is found in their
    place is no row of theirs, and the events tell what there was.
    """
    with contextlib.suppress(OSError, sqlite3.DatabaseError):
        fresh, copy = path + ".fresh", path + ".copy"
        try:
            with contextlib.closing(sqlite3.connect(fresh)) as db:
                create(db)
                size = db.execute("PRAGMA page_size").fetchone()[0]
            with open(fresh, "rb") as file:
                page = bytearray(file.read(size))
            with open(path, "rb") as old, open(copy, "wb") as new:
                data = old.read()
                page[28:32] = (len(data) // size).to_bytes(4, "big")
                page[32:40] = bytes(8)  # the free pages are not known any more
                new.write(page + data[size:])
            return _Remains(copy)
        finally:
            for made in (fresh, copy):
                with contextlib.suppress(OSError):
                    os.unlink(made)
    return None


def _replayed(found: _Remains) -> tuple[State, dict[int, Job], bool]:
    """State by the events before the first gap, jobs it forgot, and whether that was all."""
    state, forgotten, complete = State(), {}, "events" in found.whole
    for expected, (seq, row) in enumerate(sorted(found.tables["events"].items()), 1):
        event = _event(row)
        if isinstance(event, JobsForgotten):
            forgotten.update({id: state.jobs[id] for id in event.jobs if id in state.jobs})
        try:
            if seq != expected and not complete:  # with all rows there, numbers were skipped
                raise KeyError(expected)
            apply(state, event)
        except (KeyError, AssertionError):
            return state, forgotten, False  # a gap: what follows refers to what is missing
    return state, forgotten, complete


def _write(path: str, found: _Remains) -> str:
    """Lay out a new file: rows as they stood where readable, else as the events tell."""
    state, forgotten, complete = _replayed(found)
    jobs = {**{id: (job, 0) for id, job in forgotten.items()},
            **{id: (job, 1) for id, job in state.jobs.items()}}  # fmt: skip
    doubtful = set()
    if not complete:
        # What they did after the gap is unknown: they wait for a person rather than run twice.
        doubtful = {id for id, (job, _) in jobs.items() if not job.finished}
        doubtful -= found.tables["jobs"].keys()
        for id in doubtful:
            jobs[id][0].held = True
    for id, row in found.tables["jobs"].items():
        job = _job(row)
        if job is not None:
            jobs[id] = (job, row[8])
    specs = dict(state.specs)
    for row in found.tables["events"].values():
        event = _event(row)
        if isinstance(event, SpecRecorded):
            specs[event.hash] = event.spec
    for hash, row in found.tables["specs"].items():
        spec = _spec(row)
        if spec is not None:
            specs[hash] = spec
    jobs = {id: each for id, each in jobs.items() if each[0].spec in specs}
    sweeps = _sweeps(found, state, [job for job, _ in jobs.values()])
    rest = _rest(found, state, [*jobs, *sweeps])
    missing = set(range(1, rest.next_id)) - jobs.keys() - sweeps.keys()
    db = sqlite3.connect(path)
    with contextlib.closing(db), db:
        create(db)
        db.execute("BEGIN")
        for name in ("events", "blobs", "secrets", "submissions"):
            rows = list(found.tables[name].values())
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                db.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
        db.executemany(
            "INSERT INTO specs VALUES (?, ?, ?, ?)",
            [(hash, codec.encode(spec), spec.queue, spec.door) for hash, spec in specs.items()],
        )
        for job, resident in jobs.values():
            db.execute(
                "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    job.id, job.name, job.user, job.state.value, job.submitted_at, job.started_at,
                    job.ended_at, job.code, resident, job.spec, codec.encode(job), job.array,
                ),
            )  # fmt: skip
        db.executemany(
            "INSERT INTO sweeps VALUES (?, ?, ?, ?)",
            [(each.id, each.name, each.resident, codec.encode(each)) for each in sweeps.values()],
        )
        db.execute("INSERT INTO meta VALUES ('rest', ?)", (codec.encode(rest),))
        db.execute("UPDATE meta SET value = ? WHERE key = 'term'", (rest.term,))
    return _story(len(found.tables["events"]), len(jobs), missing, doubtful & jobs.keys())


def _sweeps(found: _Remains, state: State, jobs: list[Job]) -> dict[int, Sweep]:
    """Sweeps as they stood, counted anew by the trials that are left of them."""
    events = map(_event, found.tables["events"].values())
    sweeps = {event.sweep.id: event.sweep for event in events if isinstance(event, SweepDefined)}
    sweeps |= state.sweeps
    rows = map(_sweep, found.tables["sweeps"].values())
    sweeps |= {sweep.id: sweep for sweep in rows if sweep is not None}
    trials: dict[int, list[Job]] = {id: [] for id in sweeps}
    for job in jobs:
        if job.params is not None and job.array in trials:
            trials[job.array].append(job)
    for id, sweep in sweeps.items():
        sweep.counts = dict(Counter(word_of(job.state, job.score) for job in trials[id]))
        sweep.issued = max([sweep.issued, *(1 + (job.index or 0) for job in trials[id])])
        sweep.look_whether_over(max([sweep.created_at, *(job.ended_at or 0 for job in trials[id])]))
    return sweeps


def _rest(found: _Remains, state: State, ids: list[int]) -> Rest:
    rest = state.rest
    with contextlib.suppress(msgspec.MsgspecError, TypeError):
        rest = codec.decode_rest(found.meta("rest"))
    given = [row[1] + row[2] for row in found.tables["submissions"].values()]
    rest.next_id = max(rest.next_id, max(ids, default=0) + 1, *given, 1)
    term = found.meta("term")
    rest.term = max(rest.term, term if isinstance(term, int) else 0)
    return rest


def _story(events: int, jobs: int, missing: set[int], doubtful: set[int]) -> str:
    story = f"{events} events and {jobs} jobs were recovered"
    if missing:
        story += f"; {len(missing)} jobs are lost ({min(missing)} to {max(missing)})"
    if doubtful:
        story += (
            f"; {len(doubtful)} jobs may have run further than is known "
            f"({min(doubtful)} to {max(doubtful)}): they are held, release or cancel them"
        )
    return story
