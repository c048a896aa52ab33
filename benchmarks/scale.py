"""Cost of a long queue: submit, start, finish, memory and restart, by length."""

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.home import Home, missing, resident_megabytes
from benchmarks.lab import Broken, fresh_directory
from benchmarks.report import median, table, verdict
from benchmarks.settings import Settings

SIZES = (100, 1_000, 10_000, 100_000)
SINGLE_SUBMITS = 20
URGENT_JOBS = 200


@dataclass(frozen=True)
class Point:
    """One point of the curve."""

    queued: int
    bulk_seconds: float
    single_ms: float
    memory_mb: float
    job_ms: float
    restart_seconds: float


def measure(settings: Settings) -> dict[str, Any]:
    """Measure the curve over the queue length."""
    print("\nScale: a backlog waits for device 0, urgent jobs run through device 1\n")
    if why := missing(settings.cache):
        print(f"missing: stoker: {why}")
        return {"missing": {"stoker": why}}
    points: list[Point] = []
    trouble = {}
    for size in SIZES[:2] if settings.quick else SIZES:
        try:
            points.append(point(settings, size))
        except Broken as error:
            trouble[f"stoker with {size} queued"] = str(error)
    head = ["queued", "bulk submit s", "one submit ms", "RSS MB", "start+finish ms", "restart s"]
    rows = [
        [
            f"{p.queued}",
            f"{p.bulk_seconds:.2f}",
            f"{p.single_ms:.1f}",
            f"{p.memory_mb:.0f}",
            f"{p.job_ms:.2f}",
            f"{p.restart_seconds:.2f}",
        ]
        for p in points
    ]
    print(table(head, rows))
    if points and points[-1].queued == SIZES[-1]:
        last = points[-1]
        print(
            f"promises at {last.queued}: bulk submit ≤ 5 s {verdict(last.bulk_seconds, 5)}, "
            f"RSS ≤ 250 MB {verdict(last.memory_mb, 250)}, "
            f"restart ≤ 3 s {verdict(last.restart_seconds, 3)}"
        )
    for name, why in trouble.items():
        print(f"failed: {name}: {why}")
    return {"points": [asdict(p) for p in points], "missing": trouble}


def point(settings: Settings, size: int) -> Point:
    """Measure all values at one length."""
    with fresh_directory(settings.runs) as directory:
        home = Home(directory)
        backlog = directory / "backlog.txt"
        backlog.write_text(
            "".join(f"python train.py --seed {n}\n" for n in range(size)), encoding="utf-8"
        )
        urgent = directory / "urgent.txt"
        urgent.write_text("true\n" * URGENT_JOBS, encoding="utf-8")
        waits = ("--gpus", "1", "--use-gpus", "0")
        try:
            home.start(2)
            home.stoker("submit", *waits, "sleep", "86400")
            wait_until_running(home)
            bulk = home.stoker("submit", *waits, "--each-line", str(backlog)).seconds
            singles = [home.stoker("submit", *waits, "true").seconds for _ in range(SINGLE_SUBMITS)]
            begin = time.perf_counter()
            passing = ("--gpus", "1", "--use-gpus", "1", "--priority", "10")
            home.stoker("submit", *passing, "--each-line", str(urgent))
            home.stoker("wait", "last")
            urgent_seconds = time.perf_counter() - begin
            pid = home.pid()
            if pid is None:
                raise Broken("the daemon does not answer")
            memory = resident_megabytes(pid)
            restart = restart_seconds(home, expected=size + SINGLE_SUBMITS)
        finally:
            home.stop()
    return Point(
        queued=size,
        bulk_seconds=bulk,
        single_ms=median(singles) * 1000,
        memory_mb=memory,
        job_ms=urgent_seconds / URGENT_JOBS * 1000,
        restart_seconds=restart,
    )


def wait_until_running(home: Home) -> None:
    """Wait until the job that holds the device runs."""
    for _ in range(100):
        job = json.loads(home.stoker("show", "last", "--json").output)
        if "RUNNING" in json.dumps(job):
            return
        time.sleep(0.05)
    raise Broken("the job that holds the device did not start within 5 s")


def restart_seconds(home: Home, expected: int) -> float:
    """Return the seconds from the start of a daemon until it lists every job."""
    before = home.pid()
    home.stoker("daemon", "stop")
    for _ in range(200):
        if home.pid() is None:
            break
        time.sleep(0.05)
    begin = time.perf_counter()
    home.start(2)
    while time.perf_counter() - begin < 60:
        status = home.status()
        if status["pid"] != before and status["counts"].get("PENDING") == expected:
            return time.perf_counter() - begin
        time.sleep(0.01)
    raise Broken(f"after a restart the daemon counts {status['counts']}, not {expected} pending")
