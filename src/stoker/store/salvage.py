"""Reading back what is whole of a damaged journal, into a new file that then replaces it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

from stoker.core.cluster import NodeFacts
from stoker.core.events import JobsForgotten, JobsSubmitted, SpecRecorded, SweepDefined
from stoker.core.fold import apply
from stoker.core.job import Job, Spec
from stoker.core.rest import Rest
from stoker.core.state import State
from stoker.core.sweep import Sweep, word_of
from stoker.store import codec, replacement
from stoker.store.migrations import create

Row = tuple[Any, ...]
_TABLES = {
    "events": "seq", "jobs": "id", "specs": "hash", "blobs": "hash", "secrets": "hash",
    "submissions": "key", "meta": "key", "sweeps": "id",
}  # fmt: skip
"""Every table and the key by which it can be read from both ends."""
_NUMBERED = ("events", "jobs", "sweeps")
"""Tables whose rows can be looked up one by one, by their numbers."""
LARGEST = 1 << 53
"""Numbers above this one were never given out: what holds one is damaged."""
LOOKUPS = 1_000_000
"""Rows between two damaged places that are looked up one by one, at most."""
STORY = "repair"
"""The key in `meta` of what a repair has to say, until a daemon has taken the file over."""


def salvage(path: str, cause: Exception, synced: int = 0) -> str:
    """Replace a damaged journal by what is readable of it; return what happened.

    `synced` is the last event that is known to have been on disk. The damaged file is kept.
    """
    _discard(path)
    found, stamp = _readable(path, path), replacement.new_stamp(path)
    stale = "events" in found.whole and found.last_event < synced
    kept = replacement.kept_as(path, stamp)
    return _replace(
        path, found, stale, stamp,
        "the journal was damaged (" + str(cause) + "); {}, and the damaged file is kept as " + kept,
    )  # fmt: skip


def rebuild(path: str, synced: int = 0) -> str | None:
    """There is no journal: make one of the newest damaged file with anything in it, if any."""
    _discard(path)
    for source in replacement.beside(path, replacement.KEPT):
        found = _readable(source, path)
        if found.tables["jobs"] or found.tables["events"]:
            stale, stamp = found.last_event < synced, replacement.new_stamp(path)
            text = "the journal was missing and was rebuilt from the damaged file " + source
            return _replace(path, found, stale, stamp, text + "; {}")
    return None


def _replace(path: str, found: _Remains, stale: bool, stamp: str, text: str) -> str:
    part = f"{path}.repair"
    story = text.replace("{}", _write(part, found, stale))
    with contextlib.closing(sqlite3.connect(part)) as db, db:
        db.execute("INSERT INTO meta VALUES (?, ?)", (STORY, story))
    replacement.replace(path, part, stamp)
    return story


def _discard(path: str) -> None:
    """Remove what a repair that was interrupted has left."""
    for part in ("repair", "repair-fresh", "repair-copy"):
        replacement.discard(f"{path}.{part}")


def _readable(source: str, path: str) -> _Remains:
    """All rows that can be read, by the file's own first page and by that of an empty journal."""
    found = _Remains(source if replacement.has_content(source) else None)
    if found.whole != _TABLES.keys():
        found.add(_with_new_first_page(source, f"{path}.repair"))
    return found


class _Remains:
    """The rows that can still be read."""

    def __init__(self, path: str | None) -> None:
        self.tables: dict[str, dict[Any, Row]] = {name: {} for name in _TABLES}
        self.whole: set[str] = set()
        # Read only: what is there stays as it is until its successor is finished.
        if path is None:
            return  # SQLite would delete the log of a database without a page
        with contextlib.suppress(sqlite3.Error), replacement.reading(path) as db:
            for name in _TABLES:
                self._read(db, name)
        self._drop_garbage()

    @property
    def last_event(self) -> int:
        """The number of the last event that can be read."""
        return max(self.tables["events"], default=0)

    def _read(self, db: sqlite3.Connection, name: str) -> None:
        """From the front up to the damage, from the back down to it, then what is in between."""
        rows, key = self.tables[name], _TABLES[name]
        ends: list[Any] = []
        for direction in ("ASC", "DESC"):
            ends.append(None)
            try:
                for row in db.execute(f"SELECT * FROM {name} ORDER BY {key} {direction}"):
                    rows[row[0]] = row
                    ends[-1] = row[0]
                self.whole.add(name)
                return
            except _UNREADABLE:
                continue
        if name in _NUMBERED and all(isinstance(end, int) for end in ends):
            for number in range(ends[0] + 1, min(ends[1], ends[0] + LOOKUPS)):
                with contextlib.suppress(*_UNREADABLE):
                    row = db.execute(f"SELECT * FROM {name} WHERE {key} = ?", (number,)).fetchone()
                    if row is not None:
                        rows[number] = row

    def _drop_garbage(self) -> None:
        for name, is_sound in _SOUND.items():
            rows = self.tables[name]
            for key in [key for key, row in rows.items() if not is_sound(row)]:
                del rows[key]
                self.whole.discard(name)

    def add(self, other: _Remains) -> None:
        """Take rows from another reading of the same file, where this one lacks some."""
        for name in _TABLES.keys() - self.whole:
            if name in other.whole and other.tables[name].keys() >= self.tables[name].keys():
                self.whole.add(name)
            self.tables[name] = other.tables[name] | self.tables[name]

    def meta(self, key: str) -> Any:
        """A value of the small table, or None."""
        row = self.tables["meta"].get(key)
        return row[1] if row else None


_UNREADABLE = (sqlite3.Error, OverflowError, *codec.DAMAGE)


def _event(row: Row) -> Any:
    try:
        return codec.decode_event(row[2], row[3], row[4])
    except codec.Unreadable:
        return None


def _job(row: Row) -> Job | None:
    job = _decoded(codec.decode_job, row[10])
    return job if job is not None and job.id == row[0] else None


def _spec(row: Row) -> Spec | None:
    spec: Spec | None = _decoded(codec.decode_spec, row[1])
    return spec


def _sweep(row: Row) -> Sweep | None:
    sweep = _decoded(codec.decode_sweep, row[3])
    return sweep if sweep is not None and sweep.id == row[0] else None


def _decoded(decode: Callable[[Any], Any], data: Any) -> Any:
    try:
        return decode(data)
    except codec.DAMAGE:
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and 0 < value <= LARGEST


def _is_content(row: Row) -> bool:
    return isinstance(row[0], str) and isinstance(row[1], bytes)


def _is_submission(row: Row) -> bool:
    return isinstance(row[0], str) and all(isinstance(number, int) for number in row[1:])


def _is_meta(row: Row) -> bool:
    if row[0] == "rest":
        return _decoded(codec.decode_rest, row[1]) is not None
    return isinstance(row[1], int) if row[0] == "term" else row[0] == STORY


_SOUND: dict[str, Callable[[Row], object]] = {
    "events": lambda row: len(row) == 5 and _is_number(row[0]) and _event(row),
    "jobs": lambda row: len(row) >= 11 and _is_number(row[0]) and _job(row),
    "specs": lambda row: len(row) >= 2 and isinstance(row[0], str) and _spec(row),
    "blobs": lambda row: len(row) == 2 and _is_content(row),
    "secrets": lambda row: len(row) == 2 and _is_content(row),
    "submissions": lambda row: len(row) == 3 and _is_submission(row),
    "meta": lambda row: len(row) == 2 and _is_meta(row),
    "sweeps": lambda row: len(row) == 4 and _is_number(row[0]) and _sweep(row),
}
"""Whether a row is what was once written into its table."""


def _with_new_first_page(path: str, part: str) -> _Remains:
    """The first page says only where the tables lie, which is the same in every journal.

    Not so the last of them, where the file was begun in an older layout: what is found in their
    place is no row of theirs, and the events tell what there was.
    """
    fresh, copy = f"{part}-fresh", f"{part}-copy"
    try:
        with contextlib.closing(sqlite3.connect(fresh)) as db:
            create(db)
            size = db.execute("PRAGMA page_size").fetchone()[0]
        with open(fresh, "rb") as file:
            page = bytearray(file.read(size))
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(path + suffix, copy + suffix)
        with open(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            pages = max(os.fstat(file.fileno()).st_size // size, 1)
            page[28:32] = pages.to_bytes(4, "big")
            page[32:40] = bytes(8)  # the free pages are not known any more
            file.write(page)
        return _Remains(copy)
    finally:
        replacement.discard(fresh)
        replacement.discard(copy)


def _replayed(found: _Remains) -> tuple[State, dict[int, Job], bool]:
    """State by the events before the first gap, jobs it forgot, and whether that was all."""
    state, forgotten, complete = State(), {}, "events" in found.whole
    for expected, (seq, row) in enumerate(sorted(found.tables["events"].items()), 1):
        event = _event(row)
        if isinstance(event, JobsForgotten):
            forgotten.update({id: state.jobs[id] for id in event.jobs if id in state.jobs})
        if seq != expected and not complete:  # with all rows there, numbers were skipped
            return state, forgotten, False
        try:
            apply(state, event)
        except Exception:  # noqa: BLE001 - it refers to what is missing, in whatever way
            return state, forgotten, False
    return state, forgotten, complete


def _write(part: str, found: _Remains, stale: bool) -> str:
    """Lay out a new file: rows as they stood where readable, else as the events tell."""
    state, forgotten, complete = _replayed(found)
    jobs = {**{id: (job, 0) for id, job in forgotten.items()},
            **{id: (job, 1) for id, job in state.jobs.items()}}  # fmt: skip
    for id, row in found.tables["jobs"].items():
        job = _job(row)
        if job is not None:
            jobs[id] = (job, int(row[8] != 0))
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
    # What they did after the gap is unknown: they wait for a person rather than run twice.
    known = jobs.keys() if complete else found.tables["jobs"].keys()
    unfinished = {id for id, (job, _) in jobs.items() if not job.finished}
    doubtful = unfinished if stale else unfinished - known
    for id in doubtful:
        jobs[id][0].held = True
    sweeps = _sweeps(found, state, [job for job, _ in jobs.values()])
    rest = _rest(found, state, {*jobs, *sweeps})
    for job, _ in jobs.values():
        for place in job.placement.parts if job.placement is not None else ():
            rest.nodes.setdefault(place.node, NodeFacts(place.node, {}))
    ids = {*jobs, *sweeps}
    outcome = _outcome(len(found.tables["events"]), len(jobs), rest.next_id, ids, doubtful)
    db = sqlite3.connect(part)
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
    return outcome


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


def _rest(found: _Remains, state: State, ids: set[int]) -> Rest:
    rest: Rest = _decoded(codec.decode_rest, found.meta("rest")) or state.rest
    given = [rest.next_id, max(ids, default=0) + 1]
    given += [row[1] + row[2] for row in found.tables["submissions"].values()]
    for event in map(_event, found.tables["events"].values()):
        if isinstance(event, JobsSubmitted):
            given.append(event.first + event.count)
    rest.next_id = max(1, *(next_id for next_id in given if next_id <= LARGEST))
    term = found.meta("term")
    rest.term = max(rest.term, term if isinstance(term, int) else 0)
    return rest


def _outcome(events: int, jobs: int, next_id: int, ids: set[int], doubtful: set[int]) -> str:
    story = f"{events} events and {jobs} jobs were recovered"
    missing = next_id - 1 - len(ids)
    if missing > 0:
        first = next(id for id in count(1) if id not in ids)
        last = next(id for id in count(next_id - 1, -1) if id not in ids)
        story += f"; {_jobs(missing, first, last)} {'is' if missing == 1 else 'are'} lost"
    if doubtful:
        story += (
            f"; {_jobs(len(doubtful), min(doubtful), max(doubtful))} may have progressed "
            "further than "
            "recorded and are held: release or cancel them"
        )
    return story


def _jobs(number: int, first: int, last: int) -> str:
    return f"job {first}" if number == 1 else f"{number} jobs ({first} to {last})"
