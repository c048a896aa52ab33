"""Seeded schedules of faults in virtual time, with the real recovery code."""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from benchmarks.lab import REPOSITORY
from benchmarks.report import table

MEMORY = "/dev/shm"  # noqa: S108 - in directories that mkdtemp makes
PIECE = 50
"""Schedules that a process takes at a time."""
COLUMNS = (
    "schedules", "jobs", "attempts", "unknown exit", "lost", "doubled", "over-committed", "orphaned"
)  # fmt: skip


def run(count: int, seed: int, processes: int) -> int:
    """Run schedules and print what they found; return the exit code."""
    begun = printed = time.monotonic()
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from simulation.schedules import Result  # type: ignore[import-not-found]

    total = Result()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context) as pool:
        pending = [pool.submit(_play, *piece) for piece in _pieces(count, seed)]
        for future in as_completed(pending):
            total.add(result := future.result())
            for text in result.texts:
                print(text[:1000], flush=True)
            if time.monotonic() - printed > 20:
                printed = time.monotonic()
                print(
                    f"[{printed - begun:4.0f} s] {total.counts['schedules']} schedules", flush=True
                )
    print(f"\nseed {seed}, {time.monotonic() - begun:.0f} s; faults: {dict(total.faults)}\n")
    print(table(list(COLUMNS), [[str(total.counts[name]) for name in COLUMNS]]))
    return 1 if total.texts else 0


def _pieces(count: int, seed: int) -> Iterator[tuple[str, int, int]]:
    """Divide the schedules: of ten, eight are of one machine and two of modelled nodes."""
    for at in range(0, count, PIECE):
        kind = {8: "course", 9: "fleet"}.get(at // PIECE % 10, "host")
        first = seed + at if kind != "host" else seed * 1_000_000 + at
        yield kind, first, min(PIECE, count - at)


def _play(kind: str, seed: int, count: int) -> Any:
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from simulation.schedules import play

    return play(kind, seed, count, MEMORY if os.path.isdir(MEMORY) else None)
