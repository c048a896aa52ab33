"""Cost of one scheduling decision by queue length: 10³ to 10⁶ pending jobs.

Only the core: a job ends, and the next start is decided. No processes, no journal.
`python -m benchmarks.decision [--quick]` runs this benchmark alone.
"""

import argparse
import gc
import itertools
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.home import resident_megabytes
from benchmarks.lab import REPOSITORY
from benchmarks.report import median, percentile, table
from benchmarks.settings import Settings
from stoker.core import events as e
from stoker.core.handlers import apply
from stoker.core.model.resources import DeviceFacts, GpuRequest, NodeFacts, ResourceRequest
from stoker.core.model.spec import Spec
from stoker.core.planner.planner import plan
from stoker.core.state.state import State

SIZES = (1_000, 10_000, 100_000, 1_000_000)
DECISIONS = 300
MAX_SECONDS = 20.0
"""Maximum time for the decisions of one point."""
GPUS, CORES, RAM = 8, 64, 512
KINDS = ("few", "many", "tight")
"""Requests: a dozen kinds; nearly all distinct; distinct and never small in all resources."""


@dataclass(frozen=True)
class Point:
    """One point of a curve."""

    order: str
    requests: str
    queued: int
    classes: int
    decisions: int
    started: int
    median_us: float
    p95_us: float
    build_seconds: float
    memory_mb: float


def measure(settings: Settings) -> dict[str, Any]:
    """Measure the curves over the queue length."""
    sizes = SIZES[:2] if settings.quick else SIZES
    print(f"\nDecision: one job ends, what starts next is decided ({GPUS} gpu, {CORES} cpu, RAM)\n")
    curves = [("fifo", "many"), *(("backfill", kind) for kind in KINDS)]
    points = []
    for order, kind in curves:
        for size in sizes:
            points.append(point(order, kind, size))
            gc.collect()  # a state has reference cycles
    head = ["order", "requests", "queued", "distinct", "median µs", "×", "p95 µs", "MB", "build s"]
    print(table(head, [row(p, growth(p, points)) for p in points]))
    worst = max(p.median_us / points[at - at % len(sizes)].median_us for at, p in enumerate(points))
    logarithm = math.log(sizes[-1]) / math.log(sizes[0])
    print(
        f"largest growth from {sizes[0]} to {sizes[-1]} jobs: ×{worst:.1f} "
        f"(log n: ×{logarithm:.1f}, log³ n: ×{logarithm**3:.1f}, n: ×{sizes[-1] // sizes[0]})"
    )
    return {"points": [asdict(p) for p in points], "largest_growth": worst}


def row(p: Point, grown: float | None) -> list[str]:
    """Return a row of the table."""
    return [
        p.order, p.requests, str(p.queued), str(p.classes), f"{p.median_us:.0f}",
        f"{grown:.1f}" if grown else "–", f"{p.p95_us:.0f}", f"{p.memory_mb:.0f}",
        f"{p.build_seconds:.1f}",
    ]  # fmt: skip


def growth(p: Point, points: list[Point]) -> float | None:
    """Return the cost relative to a tenth of the jobs."""
    for other in points:
        same = (other.order, other.requests) == (p.order, p.requests)
        if same and other.queued * 10 == p.queued:
            return p.median_us / other.median_us
    return None


def point(order: str, kind: str, size: int) -> Point:
    """Measure many decisions on one queue length."""
    begin = time.perf_counter()
    dice = random.Random(f"{order} {kind} {size}")
    state = pending_state(order, REQUESTS[kind](dice), size)
    classes = len(state.pending.classes)
    at = iter(itertools.count(1.0))
    for planned in plan(state, 0.0, 0.0):  # fill the node
        apply(state, planned)
    built = time.perf_counter() - begin
    gc.collect()
    gc.freeze()  # pending jobs are no garbage; the daemon does the same
    samples: list[float] = []
    started = 0
    deadline = time.perf_counter() + MAX_SECONDS
    while len(samples) < DECISIONS and (len(samples) < 3 or time.perf_counter() < deadline):
        ends = dice.choice(sorted(state.running))
        now = next(at)
        job = state.jobs[ends]
        apply(state, e.ProcessStarted(at=now, job=ends, attempt=job.attempt, pid=7, boot=now))
        begin = time.perf_counter()
        apply(state, e.ProcessExited(at=now, job=ends, attempt=job.attempt, code=0))
        for planned in plan(state, now, now):
            apply(state, planned)
            started += 1
        samples.append((time.perf_counter() - begin) * 1e6)
    gc.unfreeze()
    return Point(
        order=order, requests=kind, queued=size, classes=classes, decisions=len(samples),
        started=started, median_us=median(samples), p95_us=percentile(samples, 95),
        build_seconds=built, memory_mb=resident_megabytes(os.getpid()),
    )  # fmt: skip


def pending_state(order: str, requests: Iterator[ResourceRequest], size: int) -> State:
    """Return a node with one queue, as created by `grass create-queue`, and many pending jobs."""
    state = State()
    cards = tuple(DeviceFacts(str(n), index=n) for n in range(GPUS))
    pools = {"cpu": (DeviceFacts("pool", 64_000),), "mem": (DeviceFacts("pool", 262_144),)}
    apply(state, e.NodeJoined(at=0.0, facts=NodeFacts("box", {"gpu": cards, **pools})))
    devices = [("gpu", str(n), 1000) for n in range(GPUS)]
    devices += [("queue-cpu", str(n), 1000) for n in range(CORES)]
    devices += [("RAM", "0", RAM * 1000)]
    strict = order == "fifo"
    queue = e.QueueDefined(at=0.0, name="q", strict=strict, resources=tuple(devices))
    apply(state, queue)
    known: dict[ResourceRequest, str] = {}
    for id in range(1, size + 1):
        request = next(requests)
        hash = known.get(request)
        if hash is None:
            hash = known[request] = f"s{id}"
            spec = Spec(
                kind="argv", user="ada", directory="/", shell="", environment="none",
                request=request, name="job", queue="q",
            )  # fmt: skip
            apply(state, e.SpecRecorded(at=0.0, hash=hash, spec=spec))
        apply(state, e.JobsSubmitted(at=0.0, first=id, count=1, spec=hash, argv=("true",)))
    return state


def request_of(gpu: int, cpu: int, ram: int) -> ResourceRequest:
    """Return a request of all three types, in thousandths."""
    return ResourceRequest(gpus=GpuRequest(gpu), named=(("RAM", ram), ("queue-cpu", cpu)))


def few_kinds(dice: random.Random) -> Iterator[ResourceRequest]:
    """Yield requests of a dozen kinds, some large."""
    kinds = [
        request_of(gpu, cpu * 1000, ram * 1000)
        for gpu, cpu in ((250, 1), (500, 2), (1000, 8), (4000, 32))
        for ram in (8, 32, 96)
    ]
    while True:
        yield dice.choice(kinds)


def many_kinds(dice: random.Random) -> Iterator[ResourceRequest]:
    """Yield nearly distinct requests: any share of GPUs, cores and memory."""
    while True:
        gpu = dice.choice((dice.randrange(50, 1000), dice.randrange(1, GPUS // 2 + 1) * 1000))
        yield request_of(gpu, dice.randrange(100, CORES * 200), dice.randrange(1000, RAM * 200))


def tight_kinds(dice: random.Random) -> Iterator[ResourceRequest]:
    """Yield nearly distinct requests; little of one type means much of another."""
    while True:
        parts = [dice.random() for _ in range(3)]
        gpu, cpu, ram = (0.02 + 0.24 * part / sum(parts) for part in parts)
        yield request_of(int(gpu * GPUS * 1000), int(cpu * CORES * 1000), int(ram * RAM * 1000))


REQUESTS: dict[str, Callable[[random.Random], Iterator[ResourceRequest]]] = {
    "few": few_kinds,
    "many": many_kinds,
    "tight": tight_kinds,
}


def main() -> int:
    """Run this benchmark alone."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decision", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only up to 10⁴ jobs")
    quick = parser.parse_args().quick
    measure(Settings(cache=REPOSITORY / ".bench", quick=quick))
    return 0


if __name__ == "__main__":
    sys.exit(main())
