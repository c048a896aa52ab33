"""Cost of the training library in a script."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.lab import fresh_directory
from benchmarks.report import median, percentile, table, verdict
from benchmarks.settings import Settings
from stoker.training import Job

STEP_SECONDS = 1e-3
SHARE_PROMISE = 0.5
CALL_PROMISE = 2.0
PLAIN, MEASURED, WORST = "a step", "a step, measured", "a step, measured and reported"


def measure(settings: Settings) -> dict[str, Any]:
    """Measure the share of a short step, and one call alone."""
    rounds = 500 if settings.quick else 5000
    print(f"\nTraining: what measure() costs on steps of 1 ms, {rounds} of each kind\n")
    with fresh_directory(settings.runs) as directory:
        job = reporting_job(directory / "seldom", heartbeat=100)
        found = steps(job, reporting_job(directory / "always", heartbeat=1), rounds)
        calls = [one_call(job) for _ in range(5 if settings.quick else 25)]
    rows = []
    for name, samples in found.items():
        more = (median(samples) / median(found[PLAIN]) - 1) * 100
        said = "" if name == PLAIN else f"{more:+.3f} %"
        if name == MEASURED:
            said += f", < {SHARE_PROMISE} % {verdict(more, SHARE_PROMISE)}"
        rows.append([name, micro(median(samples)), micro(percentile(samples, 90)), said])
    kept = verdict(median(calls) * 1e6, CALL_PROMISE)
    rows.append(["measure() alone", micro(median(calls)), micro(percentile(calls, 90)),
                 f"< {CALL_PROMISE:g} µs {kept}"])  # fmt: skip
    print(table(["", "median µs", "90 % µs", "promise"], rows))
    return {"step_seconds": found, "call_seconds": calls}


def micro(seconds: float) -> str:
    """Format microseconds."""
    return f"{seconds * 1e6:.2f}"


def reporting_job(reports: Path, heartbeat: int) -> Job:
    """Return a job that reports to a real file every `heartbeat` steps."""
    job = Job({"STOKER_REPORTS": str(reports), "HEARTBEAT_FREQ": str(heartbeat)})
    job.start_epoch()
    return job


def steps(seldom: Job, always: Job, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of single steps, alternately without and with the library.

    One by one, so that other programs on the machine, which take a core away for longer than a
    step, spoil some samples and not the median.
    """
    size = calibrate()
    ways: list[tuple[str, Callable[[], None]]] = [
        (PLAIN, do_nothing),
        (MEASURED, seldom.measure),
        (WORST, always.measure),
    ]
    found: dict[str, list[float]] = {name: [] for name, _ in ways}
    for number in range(rounds):
        turn = number % len(ways)
        for name, after in ways[turn:] + ways[:turn]:
            begin = time.perf_counter()
            work(size)
            after()
            found[name].append(time.perf_counter() - begin)
    return found


def do_nothing() -> None:
    """Placeholder for measure()."""


def work(size: int) -> int:
    """Do a fixed amount of work."""
    total = 0
    for number in range(size):
        total += number
    return total


def calibrate() -> int:
    """Return the amount of work that takes STEP_SECONDS."""
    size = 10_000
    for _ in range(20):
        begin = time.perf_counter()
        work(size)
        size = max(100, int(size * STEP_SECONDS / (time.perf_counter() - begin)))
    return size


def one_call(job: Job) -> float:
    """Return the mean seconds of measure(), including reports."""
    count = 100_000
    begin = time.perf_counter()
    for _ in range(count):
        job.measure()
    return (time.perf_counter() - begin) / count
