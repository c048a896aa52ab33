"""Cost of one event with the planner policy: 10³ to 10⁴ nodes, 10⁴ to 10⁵ pending jobs.

Only the core: a job ends, another arrives, or the first epochs of one are measured; then one cycle
of the core follows, and its decisions are applied. No processes, no journal.
`python -m benchmarks.planner_cost [--quick]` runs this benchmark alone.
"""

import argparse
import gc
import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any

from benchmarks.home import resident_megabytes
from benchmarks.lab import REPOSITORY
from benchmarks.report import median, percentile, table
from benchmarks.settings import Settings
from stoker.core import events as e
from stoker.core.handlers import apply
from stoker.core.model.resources import (
    DeviceFacts,
    GpuRequest,
    NodeFacts,
    Placement,
    ResourceRequest,
)
from stoker.core.model.spec import Spec, Training
from stoker.core.placement.fit import fit
from stoker.core.planner.cycle import plan_events, unload_events
from stoker.core.state.state import State

SIZES = ((1_000, 10_000), (1_000, 100_000), (10_000, 100_000))
"""Nodes and pending jobs. The second is the size for which the planner is built."""
EVENTS = 2000
MAX_SECONDS = 60.0
"""Maximum time for the events of one point."""
NODES_PER_WARM_UP_EVENT, MAX_WARM_UP_SECONDS = 4, 120.0
"""Warm-up: one event per this many nodes, with a maximum time. The state is built at once, and its
ranks are an hour old; a daemon refreshes them continuously, so it takes some events to match."""
GPUS, CORES, RAM = 8, 128_000, 1_048_576
NON_PREEMPTIBLE = ", steady"
"""Suffix of kinds with non-preemptible jobs."""
KINDS = ("gpus", "gpus, steady", "alike", "alike, steady", "mixed", "mixed, steady")
DISTINCT_REQUESTS = 50
"""Requests of the kind `alike`, which together with the users make 1,000 classes."""
HOUR = 3600.0
USERS, FAMILIES = 20, 50


@dataclass(frozen=True)
class Point:
    """One point of a curve."""

    requests: str
    nodes: int
    queued: int
    classes: int
    events: int
    started: int
    stopped: int
    median_us: float
    mean_us: float
    p95_us: float
    p99_us: float
    build_seconds: float
    memory_mb: float


def measure(settings: Settings) -> dict[str, Any]:
    """Measure the curves over nodes and jobs."""
    return {"points": [asdict(each) for each in curve(SIZES[:1] if settings.quick else SIZES)]}


def curve(sizes: tuple[tuple[int, int], ...], kinds: tuple[str, ...] = KINDS) -> list[Point]:
    """Measure and print all points."""
    print(f"\nPlanner: one event, and what follows from it ({GPUS} GPUs, cores and RAM each)\n")
    points = []
    for kind in kinds:
        for nodes, queued in sizes:
            points.append(point(kind, nodes, queued))
            gc.collect()  # a state has reference cycles
    head = ["requests", "nodes", "queued", "distinct", "median µs", "mean", "p95", "p99", "started",
            "stopped", "MB", "build s"]  # fmt: skip
    print(table(head, [row(each) for each in points]))
    return points


def row(p: Point) -> list[str]:
    """Return a row of the table."""
    return [
        p.requests, str(p.nodes), str(p.queued), str(p.classes), f"{p.median_us:.0f}",
        f"{p.mean_us:.0f}", f"{p.p95_us:.0f}", f"{p.p99_us:.0f}", str(p.started), str(p.stopped),
        f"{p.memory_mb:.0f}", f"{p.build_seconds:.1f}",
    ]  # fmt: skip


def point(kind: str, nodes: int, queued: int, events: int = EVENTS) -> Point:
    """Measure many events on a cluster of this size."""
    begin = time.perf_counter()
    lab = PlannerState(kind, nodes, queued)
    classes = len(lab.state.pending.classes)
    built = time.perf_counter() - begin
    gc.collect()
    gc.freeze()  # pending jobs are no garbage; the daemon does the same, with these thresholds
    gc.set_threshold(50_000, 20, 50)
    deadline = time.perf_counter() + MAX_WARM_UP_SECONDS
    for _ in range(max(nodes // NODES_PER_WARM_UP_EVENT, 100)):
        lab.event()
        if time.perf_counter() > deadline:
            break
    lab.started = lab.stopped = 0
    samples: list[float] = []
    deadline = time.perf_counter() + MAX_SECONDS
    while len(samples) < events and (len(samples) < 3 or time.perf_counter() < deadline):
        samples.append(lab.event())
    gc.unfreeze()
    return Point(
        requests=kind, nodes=nodes, queued=queued, classes=classes, events=len(samples),
        started=lab.started, stopped=lab.stopped, median_us=median(samples),
        mean_us=sum(samples) / len(samples), p95_us=percentile(samples, 95),
        p99_us=percentile(samples, 99), build_seconds=built,
        memory_mb=resident_megabytes(os.getpid()),
    )  # fmt: skip


class PlannerState:
    """A full cluster with pending jobs."""

    def __init__(self, kind: str, nodes: int, queued: int) -> None:
        self.steady = kind.endswith(NON_PREEMPTIBLE)
        kind = kind.removesuffix(NON_PREEMPTIBLE)
        self.dice = random.Random(f"{kind} {nodes} {queued}")
        self.requests = REQUESTS[kind](self.dice)
        self.state = State()
        self.now = 0.0
        self.next = 1
        self.known: dict[tuple[ResourceRequest, int, int], str] = {}
        self.running: list[int] = []
        self.where: dict[int, int] = {}
        self.asked: deque[int] = deque()
        """Jobs that were requested to stop; they stop at the next event."""
        self.started = self.stopped = 0
        apply(self.state, e.PolicyChosen(at=0.0, queue="*", name="planner"))
        cards = tuple(DeviceFacts(str(n), index=n) for n in range(GPUS))
        pools = {"cpu": (DeviceFacts("pool", CORES),), "mem": (DeviceFacts("pool", RAM),)}
        for number in range(nodes):
            facts = NodeFacts(f"n{number}", {"gpu": cards, **pools})
            # Directly into the cluster: a NodeJoined event would notify all others.
            self.state.record.nodes[facts.name] = facts
            self.state.cluster.add_node(facts, ())
        for number in range(nodes):
            self.fill(f"n{number}")
        self.now = HOUR / 6
        for id in self.running:
            apply(self.state, self.measured(id, self.dice.uniform(1, 30)))
        for _ in range(queued):
            self.now += HOUR / queued
            self.arrives()
        self.hear(self.turn())

    def fill(self, name: str) -> None:
        """Start jobs on one node until the next does not fit."""
        node = self.state.cluster.nodes[name]
        for _ in range(2 * GPUS):
            request = next(self.requests)
            takes = fit(node, request) if request.node_count == 1 else None
            if takes is None:
                continue
            id = self.submit(request)
            self.begins(id, Placement(name, takes))

    def submit(self, request: ResourceRequest) -> int:
        id, self.next = self.next, self.next + 1
        user, family = self.dice.randrange(USERS), self.dice.randrange(FAMILIES)
        hash = self.known.get((request, user, family))
        if hash is None or hash not in self.state.specs:
            hash = self.known[request, user, family] = f"s{id}"
            spec = Spec(
                kind="argv", user=f"u{user}", directory="/", shell="", environment="none",
                request=request, name=f"family{family}", training=Training(epochs=100),
                non_preemptible=self.is_non_preemptible(),
            )  # fmt: skip
            apply(self.state, e.SpecRecorded(at=self.now, hash=hash, spec=spec))
        apply(self.state, e.JobsSubmitted(at=self.now, first=id, count=1, spec=hash, argv=("x",)))
        return id

    def is_non_preemptible(self) -> bool:
        """Return whether the jobs of the next spec are non-preemptible."""
        return self.steady

    def arrives(self) -> None:
        """Submit one more job."""
        self.submit(next(self.requests))

    def begins(self, id: int, placement: Placement) -> None:
        """Start a job on a placement without the planner."""
        apply(
            self.state,
            e.AttemptPlanned(at=self.now, job=id, attempt=0, placement=placement, boot=self.now),
        )
        self.runs(id)

    def runs(self, id: int) -> None:
        """Apply the start of a planned job."""
        now, attempt = self.now, self.state.jobs[id].attempt
        apply(self.state, e.ProcessStarted(at=now, job=id, attempt=attempt, pid=7, boot=now))
        apply(self.state, e.TrainingBegan(at=now, job=id, attempt=attempt))
        self.where[id] = len(self.running)
        self.running.append(id)

    def forget(self, id: int) -> None:
        """Remove a job from the running ones."""
        at, last = self.where.pop(id), self.running.pop()
        if last != id:
            self.running[at] = last
            self.where[last] = at

    def event(self) -> float:
        """Apply one event and the resulting decisions; return the microseconds."""
        self.now += HOUR / len(self.running)
        fact = self.stop() or self.some()
        if isinstance(fact, e.ProcessExited):
            self.forget(fact.job)
        begin = time.perf_counter()
        apply(self.state, fact)
        decided = self.turn()
        spent = (time.perf_counter() - begin) * 1e6
        self.hear(decided)
        return spent

    def hear(self, decided: list[e.Event]) -> None:
        """Execute decisions."""
        for each in decided:
            if isinstance(each, e.AttemptPlanned):
                self.started += 1
                self.runs(each.job)
            elif isinstance(each, e.PreemptionRequested):
                self.stopped += 1
                self.asked.append(each.job)
        self.state.take_changes()

    def stop(self) -> e.Event | None:
        """Return the end of a job that was requested to stop."""
        while self.asked:
            job = self.state.jobs.get(self.asked.popleft())
            progress = job.progress if job is not None and job.id in self.where else None
            if job is not None and progress is not None and progress.stop is not None:
                return e.ProcessExited(
                    at=self.now, job=job.id, attempt=job.attempt, code=0, stopped=True
                )
        return None

    def some(self) -> e.Event:
        """Return a random event: an end, an arrival, or the first epochs of a job."""
        verb = self.dice.random()
        job = self.state.jobs[self.dice.choice(self.running)]
        if verb < 0.45:
            return e.ProcessExited(at=self.now, job=job.id, attempt=job.attempt, code=0)
        if verb < 0.55:
            # Most jobs are as long as estimated; some are longer and get preempted.
            long = self.dice.random() < 0.2
            return self.measured(job.id, self.dice.uniform(1, 30) * (50 if long else 1))
        id, self.next = self.next, self.next + 1
        like = self.known[self.dice.choice(self.recent())]
        return e.JobsSubmitted(at=self.now, first=id, count=1, spec=like, argv=("true",))

    def measured(self, id: int, seconds: float) -> e.Event:
        """Return the report of an epoch time."""
        attempt, job = self.state.jobs[id].attempt, self.state.jobs[id]
        done = job.progress.epochs + 3
        return e.EpochsCounted(at=self.now, job=id, attempt=attempt, done=done, seconds=seconds)

    def recent(self) -> list[tuple[ResourceRequest, int, int]]:
        """Specs of arriving jobs, prepared beforehand as a submission handler does."""
        key = (next(self.requests), self.dice.randrange(USERS), self.dice.randrange(FAMILIES))
        hash = self.known.get(key)
        if hash is None or hash not in self.state.specs:
            self.known[key] = f"s{self.next}"
            request, user, family = key
            spec = Spec(
                kind="argv", user=f"u{user}", directory="/", shell="", environment="none",
                request=request, name=f"family{family}", training=Training(epochs=100),
                non_preemptible=self.is_non_preemptible(),
            )  # fmt: skip
            apply(self.state, e.SpecRecorded(at=self.now, hash=f"s{self.next}", spec=spec))
        return [key]

    def turn(self) -> list[e.Event]:
        """Run one cycle of the core; return its applied events."""
        decided = []
        state, now = self.state, self.now
        for event in chain(plan_events(state, now, now), unload_events(state, now)):
            apply(state, event)
            decided.append(event)
        return decided


def gpu_requests(dice: random.Random) -> Iterator[ResourceRequest]:
    """Yield requests of whole GPUs, sometimes on several nodes."""
    while True:
        count = dice.choices((1, 2, 4, 8), (60, 20, 12, 8))[0]
        machines = dice.choice((2, 4)) if count == GPUS and dice.random() < 0.3 else 1
        yield ResourceRequest(gpus=GpuRequest(count * 1000), node_count=machines)


def mixed_requests(dice: random.Random) -> Iterator[ResourceRequest]:
    """Yield nearly distinct requests: fractions of GPUs or several, cores, RAM, gangs."""
    while True:
        if dice.random() < 0.4:
            gpu = dice.randrange(5, 100) * 10
        else:
            gpu = dice.choices((1, 2, 4, 8), (50, 25, 15, 10))[0] * 1000
        machines = dice.choice((2, 3, 4)) if gpu >= 4000 and dice.random() < 0.3 else 1
        cores = int(dice.uniform(2, 14) * max(gpu, 500))
        ram = int(dice.uniform(0.2, 1.2) * max(gpu, 500) * 128)
        yield ResourceRequest(
            gpus=GpuRequest(gpu), cpus=min(cores, CORES), memory=min(ram, RAM), node_count=machines
        )


def alike_requests(dice: random.Random) -> Iterator[ResourceRequest]:
    """Yield mixed requests of which many are equal."""
    requests = list(islice(mixed_requests(dice), DISTINCT_REQUESTS))
    while True:
        yield dice.choice(requests)


REQUESTS: dict[str, Callable[[random.Random], Iterator[ResourceRequest]]] = {
    "gpus": gpu_requests,
    "alike": alike_requests,
    "mixed": mixed_requests,
}


def main() -> int:
    """Run this benchmark alone."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only 10³ machines and 10⁴ jobs")
    quick = parser.parse_args().quick
    measure(Settings(cache=REPOSITORY / ".bench", quick=quick))
    return 0


if __name__ == "__main__":
    sys.exit(main())
