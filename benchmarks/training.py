"""What the training library costs a script."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.lab import fresh_directory
from benchmarks.report import median, percentile, table, verdict
from benchmarks.settings import Settings
from stoker.training import Job

STEP_SECONDS = 1e-3
STEPS = 100
SHARE_PROMISE = 0.5
CALL_PROMISE = 2.0


def measure(settings: Settings) -> dict[str, Any]:
    """The share of a short step, and one call by itself."""
    rounds = 40 if settings.quick else 400
    print(f"\nTraining: what measure() costs on steps of 1 ms, {rounds} × {STEPS} of them\n")
    with fresh_directory(settings.runs) as directory:
        job = attached(directory)
        plain, measured = steps(job, rounds)
        calls = [one_call(job) for _ in range(5 if settings.quick else 25)]
    share = (median(measured) / median(plain) - 1) * 100
    rows = [
        ["a step", f"{median(plain) * 1e6:.2f}", f"{percentile(plain, 90) * 1e6:.2f}", ""],
        ["a step, measured", f"{median(measured) * 1e6:.2f}",
         f"{percentile(measured, 90) * 1e6:.2f}",
         f"+{share:.3f} %, < {SHARE_PROMISE} % {verdict(share, SHARE_PROMISE)}"],
        ["measure() alone", f"{median(calls) * 1e6:.2f}", f"{percentile(calls, 90) * 1e6:.2f}",
         f"< {CALL_PROMISE:g} µs {verdict(median(calls) * 1e6, CALL_PROMISE)}"],
    ]  # fmt: skip
    print(table(["", "median µs", "90 % µs", "promise"], rows))
    return {"plain_seconds": plain, "measured_seconds": measured, "call_seconds": calls}


def attached(directory: Path) -> Job:
    """A job as stoker starts it: it reports every hundred steps, to a real file."""
    job = Job({"STOKER_REPORTS": str(directory / "reports"), "HEARTBEAT_FREQ": "100"})
    job.start_epoch()
    return job


def steps(job: Job, rounds: int) -> tuple[list[float], list[float]]:
    """Mean seconds of a step in each round, without and with the library, in turn."""
    size = calibrate()

    def nothing() -> None:
        """Stands where measure() would."""

    plain, measured = [], []
    for number in range(rounds):
        pair = [(plain, nothing), (measured, job.measure)]
        for found, after in pair if number % 2 else reversed(pair):
            found.append(run(size, after))
    return plain, measured


def run(size: int, after: Callable[[], None]) -> float:
    """Mean seconds of a step."""
    begin = time.perf_counter()
    for _ in range(STEPS):
        work(size)
        after()
    return (time.perf_counter() - begin) / STEPS


def work(size: int) -> int:
    """The same work each time, however fast it goes."""
    total = 0
    for number in range(size):
        total += number
    return total


def calibrate() -> int:
    """How much work takes as long as a step should."""
    size = 10_000
    for _ in range(20):
        begin = time.perf_counter()
        work(size)
        size = max(100, int(size * STEP_SECONDS / (time.perf_counter() - begin)))
    return size


def one_call(job: Job) -> float:
    """Mean seconds of measure(), reports included."""
    count = 100_000
    begin = time.perf_counter()
    for _ in range(count):
        job.measure()
    return (time.perf_counter() - begin) / count
