"""Idle time of a device between two jobs, measured by the jobs."""

import contextlib
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.home import Home, missing
from benchmarks.lab import Broken, clean_environment, fresh_directory, run
from benchmarks.pages import missing_browser, open_browser, open_readers
from benchmarks.report import median, percentile, table, verdict
from benchmarks.settings import Settings

JOBS = 200
SLOTS = 2
MAX_GAP_MS = 5.0
PAGES = 20
MAX_PAGES_RATIO = 1.1
ALONE = "stoker queue"
READERS = f"stoker queue, {PAGES} readers of the stream"
BROWSER = f"stoker queue, {PAGES} pages in Chromium"

# bash, because it can read the clock without starting a process. The first word is the
# device (for xargs: its slot); start is the first thing the shell does, end the last but one.
JOB = 's=$EPOCHREALTIME; sleep 0.02; echo "$CUDA_VISIBLE_DEVICES $s $EPOCHREALTIME" >> stamps'


def measure(settings: Settings) -> dict[str, Any]:
    """Measure the gaps in milliseconds of stoker's queue, and of xargs as a lower bound."""
    kinds: dict[str, Callable[[Settings], list[float]]] = {
        "xargs -P (floor)": by_xargs,
        ALONE: by_stoker,
        READERS: by_stoker_with_readers,
        BROWSER: by_stoker_with_browser,
    }
    absent: dict[str, str] = {}
    if why := missing_browser():
        absent[BROWSER] = why
        del kinds[BROWSER]
    if why := missing(settings.cache):
        absent[ALONE] = why
        kinds = {name: measured for name, measured in kinds.items() if ALONE not in name}
    gaps: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(1 if settings.quick else 3):
        for name, measured in kinds.items():
            try:
                gaps[name] += measured(settings)
            except Broken as error:
                absent[name] = str(error)

    head = ["", "median ms", "p95 ms", "max ms", "promise"]
    rows = []
    for name, found in gaps.items():
        if not found:
            continue
        kept = f"≤ {MAX_GAP_MS:g} {verdict(median(found), MAX_GAP_MS)}" if name == ALONE else ""
        if name in (READERS, BROWSER) and gaps.get(ALONE):
            ratio = median(found) / median(gaps[ALONE])
            kept = f"≤ {MAX_PAGES_RATIO:g} × alone {verdict(ratio, MAX_PAGES_RATIO)} ({ratio:.2f})"
        figures = (median(found), percentile(found, 95), max(found))
        rows.append([name, *(f"{figure:.2f}" for figure in figures), kept])
    print(f"\nLatency: from one job's end to the next one's start on the same device, {JOBS} jobs")
    print("of 20 ms on 2 slots; the start of the job's shell is part of it\n")
    print(table(head, rows))
    for name, why in absent.items():
        print(f"missing: {name}: {why}")
    return {"milliseconds": gaps, "missing": absent}


def by_xargs(settings: Settings) -> list[float]:
    """Return the gaps with xargs; its slots are the devices."""
    with fresh_directory(settings.runs) as directory:
        lines = write_lines(directory)
        slot = "--process-slot-var=CUDA_VISIBLE_DEVICES"
        run(
            ["xargs", "-d", "\\n", "-n", "1", "-P", str(SLOTS), slot, "/bin/bash", "-c"],
            directory=directory,
            stdin=lines,
        )
        return gaps_of(directory / "stamps")


def by_stoker(settings: Settings) -> list[float]:
    """Return the gaps of one bulk submission to a daemon with two declared devices."""
    return _by_stoker(settings, lambda _home: contextlib.nullcontext())


def by_stoker_with_readers(settings: Settings) -> list[float]:
    """Return the same while readers of the live stream are connected."""
    return _by_stoker(settings, lambda home: open_readers(home, PAGES))


def by_stoker_with_browser(settings: Settings) -> list[float]:
    """Return the same while the web page is open in a real browser."""
    return _by_stoker(settings, lambda home: open_browser(home, PAGES))


def _by_stoker(
    settings: Settings, pages: Callable[[Home], AbstractContextManager[None]]
) -> list[float]:
    with fresh_directory(settings.runs) as directory:
        lines = write_lines(directory)
        home = Home(directory)
        home.environment = {**clean_environment(), **home.environment, "SHELL": "/bin/bash"}
        try:
            home.start(SLOTS)
            with pages(home):
                home.stoker("submit", "--gpus", "1", "--each-line", str(lines))
                home.stoker("wait", "last", limit=120)
            return gaps_of(directory / "stamps")
        finally:
            home.stop()


def write_lines(directory: Path) -> Path:
    """Write the commands, one per line; return the file."""
    lines = directory / "commands.txt"
    lines.write_text(f"{JOB}\n" * JOBS, encoding="utf-8")
    return lines


def gaps_of(stamps: Path) -> list[float]:
    """Return the milliseconds between consecutive jobs of a device; overlaps are an error."""
    devices: dict[str, list[tuple[float, float]]] = {}
    for line in stamps.read_text(encoding="utf-8").splitlines():
        device, start, end = line.split()
        devices.setdefault(device, []).append((float(start), float(end)))
    found = []
    for spans in devices.values():
        for earlier, later in itertools.pairwise(sorted(spans)):
            found.append((later[0] - earlier[1]) * 1000)
    if len(found) != JOBS - SLOTS:
        raise Broken(f"{len(found) + len(devices)} of {JOBS} jobs left a stamp")
    if min(found) < 0:
        raise Broken("two jobs held the same device at the same time")
    return found
