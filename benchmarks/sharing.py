"""Training jobs that share a GPU, and preemption: speed-up and delay."""

import contextlib
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.home import Home
from benchmarks.lab import REPOSITORY, fresh_directory
from benchmarks.report import median, table
from benchmarks.settings import Settings
from benchmarks.throughput import say

STEPS, EPOCHS = 60, 4
GPU_SECONDS = DATA_SECONDS = 0.005
"""A step computes on the GPU, which serves one job at a time, then loads the next batch."""
TRAINER = f"""
import fcntl, sys, time
from stoker.training import job
gpu = open(sys.argv[1], "w")
for epoch in job.epochs():
    for step in job.steps(range({STEPS})):
        fcntl.flock(gpu, fcntl.LOCK_EX)
        time.sleep({GPU_SECONDS})
        fcntl.flock(gpu, fcntl.LOCK_UN)
        time.sleep({DATA_SECONDS})
"""
VICTIM = """
import sys, time
from stoker.training import job
for epoch in job.epochs():
    time.sleep(float(sys.argv[1]))
"""


def measure(settings: Settings) -> dict[str, Any]:
    """Measure both with a fake NVML: the GPU is modelled, all else is real."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from fakes.nvml.fixture import FakeNvml, Gpu, build  # type: ignore[import-not-found]

    rounds = 2 if settings.quick else 5
    with fresh_directory(settings.runs) as directory:
        driver = FakeNvml(library=build(), file=directory / "gpus")
        driver.set([Gpu(uuid="GPU-bench", memory_total=16_384)])
        environment = {
            name: value
            for name, value in driver.env().items()
            if name in ("LD_LIBRARY_PATH", "FAKE_NVML", "PYTHONPATH")
        }
        say("sharing: two jobs on one GPU")
        together, apart = shared(settings, environment, rounds)
        say("sharing: making room")
        delays = {
            seconds: [preemption_delay(settings, environment, seconds, n) for n in range(rounds)]
            for seconds in ((0.5,) if settings.quick else (0.5, 1.0, 2.0))
        }
    work = EPOCHS * STEPS * (GPU_SECONDS + DATA_SECONDS)
    gain = median(apart) / median(together)
    rows = [
        ["two jobs, one after the other", f"{median(apart):.2f}", f"{2 * work:.1f} s of steps"],
        ["two jobs, sharing", f"{median(together):.2f}", f"{gain:.2f} × as fast"],
    ]
    for seconds, found in delays.items():
        share = median(found) / seconds
        rows.append(
            [f"a more urgent job starts, epochs of {seconds:g} s", f"{median(found):.2f}",
             f"{share:.2f} epochs, at most {max(found) / seconds:.2f}"]
        )  # fmt: skip
    print("\n" + table(["training jobs", "seconds", ""], rows))
    return {"together": together, "apart": apart, "delays": delays}


@contextlib.contextmanager
def daemon(settings: Settings, environment: dict[str, str]) -> Iterator[Home]:
    """Yield a home whose daemon has one GPU."""
    with fresh_directory(settings.runs) as directory:
        home = Home(directory)
        home.environment |= environment
        home.stoker("daemon", "start")
        try:
            yield home
        finally:
            home.stop()


def shared(
    settings: Settings, environment: dict[str, str], rounds: int
) -> tuple[list[float], list[float]]:
    """Measure the seconds until both jobs are done, alternately with and without sharing."""
    taken: tuple[list[float], list[float]] = ([], [])
    with daemon(settings, environment) as home:
        script = home.directory / "train.py"
        script.write_text(TRAINER)
        for number in range(rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                taken[which].append(run_two_jobs(home, script, sharing=which == 0))
    return taken


def run_two_jobs(home: Home, script: Path, *, sharing: bool) -> float:
    """Submit two equal jobs and wait for both."""
    # Both state their memory, so that nothing is learned from the round before.
    way = ("--gpu-memory", "4G") if sharing else ("--gpu-memory", "4G", "--exclusive-gpu")
    command = ("--epochs", str(EPOCHS), "--single-gpu", *way, sys.executable, str(script), "gpu")
    begin = time.perf_counter()
    jobs = [home.stoker("submit", *command).output.strip() for _ in range(2)]
    home.stoker("wait", *jobs)
    return time.perf_counter() - begin


def preemption_delay(
    settings: Settings, environment: dict[str, str], seconds: float, number: int
) -> float:
    """Measure the time from the submission of an urgent job to its start."""
    with daemon(settings, environment) as home:
        script = home.directory / "victim.py"
        script.write_text(VICTIM)
        victim = ("--epochs", "1000", "--single-gpu", sys.executable, str(script), str(seconds))
        job = home.stoker("submit", *victim).output.strip()
        limit = time.monotonic() + 60
        while not (job_view(home, job)["training"] or {}).get("epochs_done"):
            if time.monotonic() > limit:
                raise TimeoutError("no epoch was counted within a minute")
            time.sleep(0.02)
        time.sleep(random.Random(f"{seconds} {number}").uniform(0, seconds))
        begin = time.time()
        urgent = home.stoker(
            "submit", "--gpus", "1", "--priority", "9", "sh", "-c", "date +%s.%N"
        ).output.strip()
        home.stoker("wait", urgent)
        return float(home.stoker("logs", urgent).output) - begin


def job_view(home: Home, job: str) -> dict[str, Any]:
    """Return the view of a job."""
    found = json.loads(home.stoker("show", job, "--json").output)
    return dict(found[0] if isinstance(found, list) else found)
