"""Salvage: copy the readable rows of a damaged journal into a new file that replaces it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

from stoker.core.events import JobsSubmitted, JobsUnloaded, SpecRecorded, SweepDefined
from stoker.core.handlers import apply
from stoker.core.model.job import Job
from stoker.core.model.resources import NodeFacts
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep, trial_status
from stoker.core.state.record import ClusterRecord
from stoker.core.state.state import State
from stoker.store import codec, replacement
from stoker.store.migrations import create

Row = tuple[Any, ...]
_TABLES = {
    "events": "seq", "jobs": "id", "specs": "hash", "blobs": "hash", "secrets": "hash",
    "submissions": "key", "meta": "key", "sweeps": "id",
}  # fmt: skip
"""Every table and its key, by which it can be read from both ends."""
_NUMBERED = ("events", "jobs", "sweeps")
"""Tables with numeric keys: rows can be looked up one by one."""
MAX_NUMBER = 1 << 53
"""Larger numbers are damaged: none was ever given out."""
MAX_LOOKUPS = 1_000_000
"""Maximum number of rows between two damaged places that are looked up one by one."""
REPAIR_KEY = "repair"
"""The key in `meta` of the repair's report, until a daemon takes over the file."""


def salvage(path: str, cause: Exception, synced: int = 0) -> str:
    """Replace a damaged journal by what is readable of it; return a report.

    `synced` is the last event that was on disk. The damaged file is kept.
    """
    _discard(path)
    rows, stamp = _read_rows(path, path), replacement.new_stamp(path)
    stale = "events" in rows.complete and rows.last_event < synced
    damaged = replacement.damaged_path(path, stamp)
    return _replace(
        path, rows, stale, stamp,
        f"the journal was damaged ({cause}); {{}}, and the damaged file is kept as {damaged}",
    )  # fmt: skip


def rebuild(path: str, synced: int = 0) -> str | None:
    """Create a missing journal from the newest damaged file that has rows, if any."""
    _discard(path)
    for source in replacement.find_beside(path, replacement.DAMAGED):
        rows = _read_rows(source, path)
        if rows.tables["jobs"] or rows.tables["events"]:
            stale, stamp = rows.last_event < synced, replacement.new_stamp(path)
            text = "the journal was missing and was rebuilt from the damaged file " + source
            return _replace(path, rows, stale, stamp, text + "; {}")
    return None


def _replace(path: str, rows: _ReadableRows, stale: bool, stamp: str, text: str) -> str:
    part = f"{path}.repair"
    report = text.replace("{}", _write(part, rows, stale))
    with contextlib.closing(sqlite3.connect(part)) as db, db:
        db.execute("INSERT INTO meta VALUES (?, ?)", (REPAIR_KEY, report))
    replacement.replace(path, part, stamp)
    return report


def _discard(path: str) -> None:
    """Remove the files of an interrupted repair."""
    for part in ("repair", "repair-fresh", "repair-copy"):
        replacement.discard(f"{path}.{part}")


def _read_rows(source: str, path: str) -> _ReadableRows:
    """Read all rows, by the file's own first page and by that of an empty journal."""
    rows = _ReadableRows(source if replacement.has_content(source) else None)
    if rows.complete != _TABLES.keys():
        rows.add(_with_new_first_page(source, f"{path}.repair"))
    return rows


class _ReadableRows:
    """The rows of a damaged file that can be read."""

    def __init__(self, path: str | None) -> None:
        self.tables: dict[str, dict[Any, Row]] = {name: {} for name in _TABLES}
        self.complete: set[str] = set()
        """Tables that were read completely."""
        # Read-only: the damaged file stays unchanged until its successor is finished.
        if path is None:
            return  # SQLite would delete the log of an empty database
        with contextlib.suppress(sqlite3.Error), replacement.open_readonly(path) as db:
            for name in _TABLES:
                self._read(db, name)
        self._drop_invalid()

    @property
    def last_event(self) -> int:
        """The number of the last readable event."""
        return max(self.tables["events"], default=0)

    def _read(self, db: sqlite3.Connection, name: str) -> None:
        """Read a table from the front and from the back up to the damage, then in between."""
        rows, key = self.tables[name], _TABLES[name]
        ends: list[Any] = []
        for direction in ("ASC", "DESC"):
            ends.append(None)
            try:
                for row in db.execute(f"SELECT * FROM {name} ORDER BY {key} {direction}"):
                    rows[row[0]] = row
                    ends[-1] = row[0]
                self.complete.add(name)
                return
            except _UNREADABLE:
                continue
        if name in _NUMBERED and all(isinstance(end, int) for end in ends):
            for number in range(ends[0] + 1, min(ends[1], ends[0] + MAX_LOOKUPS)):
                with contextlib.suppress(*_UNREADABLE):
                    row = db.execute(f"SELECT * FROM {name} WHERE {key} = ?", (number,)).fetchone()
                    if row is not None:
                        rows[number] = row

    def _drop_invalid(self) -> None:
        for name, is_valid in _IS_VALID.items():
            rows = self.tables[name]
            for key in [key for key, row in rows.items() if not is_valid(row)]:
                del rows[key]
                self.complete.discard(name)

    def add(self, other: _ReadableRows) -> None:
        """Add rows from another reading of the same file to incomplete tables."""
        for name in _TABLES.keys() - self.complete:
            if name in other.complete and other.tables[name].keys() >= self.tables[name].keys():
                self.complete.add(name)
            self.tables[name] = other.tables[name] | self.tables[name]

    def meta(self, key: str) -> Any:
        """Return a value of the table `meta`, or None."""
        row = self.tables["meta"].get(key)
        return row[1] if row else None


_UNREADABLE = (sqlite3.Error, OverflowError, *codec.DAMAGE)


def _event(row: Row) -> Any:
    try:
        return codec.decode_event(row[2], row[3], row[4])
    except codec.UnreadableEvent:
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
    return isinstance(value, int) and 0 < value <= MAX_NUMBER


def _is_content(row: Row) -> bool:
    return isinstance(row[0], str) and isinstance(row[1], bytes)


def _is_submission(row: Row) -> bool:
    return isinstance(row[0], str) and all(isinstance(number, int) for number in row[1:])


def _is_meta(row: Row) -> bool:
    if row[0] == "rest":
        return _decoded(codec.decode_rest, row[1]) is not None
    return isinstance(row[1], int) if row[0] == "term" else row[0] == REPAIR_KEY


_IS_VALID: dict[str, Callable[[Row], object]] = {
    "events": lambda row: len(row) == 5 and _is_number(row[0]) and _event(row),
    "jobs": lambda row: len(row) >= 11 and _is_number(row[0]) and _job(row),
    "specs": lambda row: len(row) >= 2 and isinstance(row[0], str) and _spec(row),
    "blobs": lambda row: len(row) == 2 and _is_content(row),
    "secrets": lambda row: len(row) == 2 and _is_content(row),
    "submissions": lambda row: len(row) == 3 and _is_submission(row),
    "meta": lambda row: len(row) == 2 and _is_meta(row),
    "sweeps": lambda row: len(row) == 4 and _is_number(row[0]) and _sweep(row),
}
"""By table: whether a row is one that stoker has written."""


def _with_new_first_page(path: str, part: str) -> _ReadableRows:
    """Read a copy of the file with the first page of an empty journal.

    The first page only says where the tables are, which is the same in every journal, except for
    the last tables of a file that was created in an older layout: rows found there are invalid,
    and the events are used instead.
    """
    new_database, copy = f"{part}-fresh", f"{part}-copy"
    try:
        with contextlib.closing(sqlite3.connect(new_database)) as db:
            create(db)
            size = db.execute("PRAGMA page_size").fetchone()[0]
        with open(new_database, "rb") as file:
            page = bytearray(file.read(size))
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(path + suffix, copy + suffix)
        with open(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            pages = max(os.fstat(file.fileno()).st_size // size, 1)
            page[28:32] = pages.to_bytes(4, "big")
            page[32:40] = bytes(8)  # the list of free pages is lost
            file.write(page)
        return _ReadableRows(copy)
    finally:
        replacement.discard(new_database)
        replacement.discard(copy)


def _replay(rows: _ReadableRows) -> tuple[State, dict[int, Job], bool]:
    """Return the state after the events before the first gap, unloaded jobs, and completeness."""
    state, unloaded, complete = State(), {}, "events" in rows.complete
    for expected, (seq, row) in enumerate(sorted(rows.tables["events"].items()), 1):
        event = _event(row)
        if isinstance(event, JobsUnloaded):
            unloaded.update({id: state.jobs[id] for id in event.jobs if id in state.jobs})
        if seq != expected and not complete:  # with all rows readable, numbers were skipped
            return state, unloaded, False
        try:
            apply(state, event)
        except Exception:  # noqa: BLE001 - the event may depend on a missing one
            return state, unloaded, False
    return state, unloaded, complete


def _write(part: str, readable: _ReadableRows, stale: bool) -> str:
    """Write a new file: readable rows as they are, others by replaying the events."""
    state, unloaded, complete = _replay(readable)
    jobs = {**{id: (job, 0) for id, job in unloaded.items()},
            **{id: (job, 1) for id, job in state.jobs.items()}}  # fmt: skip
    for id, row in readable.tables["jobs"].items():
        job = _job(row)
        if job is not None:
            jobs[id] = (job, int(row[8] != 0))
    specs = dict(state.specs)
    for row in readable.tables["events"].values():
        event = _event(row)
        if isinstance(event, SpecRecorded):
            specs[event.hash] = event.spec
    for hash, row in readable.tables["specs"].items():
        spec = _spec(row)
        if spec is not None:
            specs[hash] = spec
    jobs = {id: (job, resident) for id, (job, resident) in jobs.items() if job.spec in specs}
    # What they did after the gap is unknown: hold them rather than run them twice.
    known = jobs.keys() if complete else readable.tables["jobs"].keys()
    unfinished = {id for id, (job, _) in jobs.items() if not job.finished}
    uncertain = unfinished if stale else unfinished - known
    for id in uncertain:
        jobs[id][0].held = True
    sweeps = _sweeps(readable, state, [job for job, _ in jobs.values()])
    record = _rest(readable, state, {*jobs, *sweeps})
    for job, _ in jobs.values():
        for part_placement in job.placement.parts if job.placement is not None else ():
            node = part_placement.node
            record.nodes.setdefault(node, NodeFacts(node, {}))
    ids = {*jobs, *sweeps}
    outcome = _outcome(len(readable.tables["events"]), len(jobs), record.next_id, ids, uncertain)
    db = sqlite3.connect(part)
    with contextlib.closing(db), db:
        create(db)
        db.execute("BEGIN")
        for name in ("events", "blobs", "secrets", "submissions"):
            rows = list(readable.tables[name].values())
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                db.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
        db.executemany(
            "INSERT INTO specs VALUES (?, ?, ?, ?)",
            [(hash, codec.encode(spec), spec.queue, spec.client) for hash, spec in specs.items()],
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
            [
                (sweep.id, sweep.name, sweep.resident, codec.encode(sweep))
                for sweep in sweeps.values()
            ],
        )
        db.execute("INSERT INTO meta VALUES ('rest', ?)", (codec.encode(record),))
        db.execute("UPDATE meta SET value = ? WHERE key = 'term'", (record.term,))
    return outcome


def _sweeps(rows: _ReadableRows, state: State, jobs: list[Job]) -> dict[int, Sweep]:
    """Return the sweeps, with counts recomputed from the recovered trials."""
    events = map(_event, rows.tables["events"].values())
    sweeps = {event.sweep.id: event.sweep for event in events if isinstance(event, SweepDefined)}
    sweeps |= state.sweeps
    stored = map(_sweep, rows.tables["sweeps"].values())
    sweeps |= {sweep.id: sweep for sweep in stored if sweep is not None}
    trials: dict[int, list[Job]] = {id: [] for id in sweeps}
    for job in jobs:
        if job.params is not None and job.array in trials:
            trials[job.array].append(job)
    for id, sweep in sweeps.items():
        sweep.counts = dict(Counter(trial_status(job.state, job.score) for job in trials[id]))
        sweep.issued = max([sweep.issued, *(1 + (job.index or 0) for job in trials[id])])
        sweep.update_finished(max([sweep.created_at, *(job.ended_at or 0 for job in trials[id])]))
    return sweeps


def _rest(rows: _ReadableRows, state: State, ids: set[int]) -> ClusterRecord:
    record: ClusterRecord = _decoded(codec.decode_rest, rows.meta("rest")) or state.record
    next_ids = [record.next_id, max(ids, default=0) + 1]
    next_ids += [row[1] + row[2] for row in rows.tables["submissions"].values()]
    for event in map(_event, rows.tables["events"].values()):
        if isinstance(event, JobsSubmitted):
            next_ids.append(event.first + event.count)
    record.next_id = max(1, *(next_id for next_id in next_ids if next_id <= MAX_NUMBER))
    term = rows.meta("term")
    record.term = max(record.term, term if isinstance(term, int) else 0)
    return record


def _outcome(events: int, jobs: int, next_id: int, ids: set[int], uncertain: set[int]) -> str:
    report = f"{events} events and {jobs} jobs were recovered"
    missing = next_id - 1 - len(ids)
    if missing > 0:
        first = next(id for id in count(1) if id not in ids)
        last = next(id for id in count(next_id - 1, -1) if id not in ids)
        report += f"; {_jobs(missing, first, last)} {'is' if missing == 1 else 'are'} lost"
    if uncertain:
        report += (
            f"; {_jobs(len(uncertain), min(uncertain), max(uncertain))} may have progressed "
            "further than "
            "recorded and are held: release or cancel them"
        )
    return report


def _jobs(number: int, first: int, last: int) -> str:
    return f"job {first}" if number == 1 else f"{number} jobs ({first} to {last})"
