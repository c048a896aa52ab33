"""Open and decompress trace files; sort their jobs."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from shutil import copyfileobj
from tempfile import NamedTemporaryFile
from typing import IO

from stoker.core.model.resources import NodeFacts
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.workload import TraceJob, Workload

STDIN = Path("-")
"""Standard input, not a file of this name."""
_GZIP = b"\x1f\x8b"
_ENDINGS = frozenset({".gz", ".csv", ".tsv", ".txt", ".json", ".swf", ".trace", ".db"})


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Open a text file, compressed or not; raise TraceError if it cannot be read."""
    try:
        with open_bytes(path) as raw, TextIOWrapper(raw, "utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        raise TraceError(
            f"{path} is not UTF-8 text; docs/traces.md lists the supported formats."
        ) from error


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file as bytes, decompressed; raise TraceError if it cannot be read."""
    if path.is_dir():
        raise TraceError(f"{path} is a directory; name one file in it.")
    try:
        with BytesIO(_read_stdin()) if path == STDIN else path.open("rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceError(f"{path} is a damaged gzip file ({error}); copy it again.") from error
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror}); check its name.") from error


@cache
def _read_stdin() -> bytes:
    """Return stdin, which is needed twice: to detect the format and to read the trace."""
    return sys.stdin.buffer.read() if sys.stdin is not None else b""


@contextmanager
def as_plain_file(path: Path) -> Iterator[Path]:
    """Yield the path of an uncompressed file, for readers that need one."""
    if path != STDIN and not _is_packed(path):
        yield path
        return
    with open_bytes(path) as file, NamedTemporaryFile(prefix="stoker-", suffix=".db") as copy:
        copyfileobj(file, copy)
        copy.flush()
        yield Path(copy.name)


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == _GZIP


def title_of(path: Path) -> str:
    """Return the title of a workload: the file name without extensions."""
    if path == STDIN:
        return "stdin"
    name = path
    while name.suffix in _ENDINGS:
        name = name.with_suffix("")
    return name.name


def sorted_workload(
    path: Path, jobs: list[TraceJob], notes: Sequence[str] = (), nodes: Sequence[NodeFacts] = ()
) -> Workload:
    """Return a workload with jobs sorted by submit time, the first at 0."""
    if not jobs:
        why = f" ({' '.join(notes)})" if notes else ""
        raise TraceError(f"{path} has no job that ran{why}; choose a file with finished jobs.")
    rebase(jobs)
    return Workload(title=title_of(path), jobs=jobs, nodes=nodes, notes=list(notes))


def rebase(jobs: list[TraceJob]) -> None:
    """Sort jobs in place by submit time, and shift the first to 0."""
    jobs.sort(key=lambda job: job.submit_time)
    first = jobs[0].submit_time
    if first:
        for job in jobs:
            job.submit_time -= first


def count_jobs(count: int, verb: str = "") -> str:
    """Return `1 job`, `2,000 jobs`; a verb such as `requests` follows in its form."""
    if count == 1:
        return f"1 job {verb}".strip()
    return f"{count:,} jobs {verb.removesuffix('s')}".strip()


def skipped_notes(counts: Counter[str]) -> list[str]:
    """Return notes with the number of skipped jobs by reason."""
    return [f"{count_jobs(count)} skipped: {why}." for why, count in counts.items() if count]
