"""SimulatedCluster: jobs that run, train, fail and stop on simulated nodes, under the real engine.

The engine gets the events of real jobs and writes them to a real store; its instructions are
executed at once, except that a training job stops at the end of its epoch.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.golden.decisions import DecisionHash
from stoker.core import events as e
from stoker.core.events.instructions import (
    Instruction,
    RequestStop,
    SignalAttempt,
    StartProcess,
    TerminateAttempt,
    WithdrawStop,
)
from stoker.core.model.resources import NodeFacts, Placement
from stoker.engine import Engine, Instant
from stoker.store.sqlite import SqliteStore

GPU = "gpu"
MEMORY_KNOWN_SECONDS, MEMORY_FULL_SECONDS = 30.0, 600.0
"""When a job's GPU memory is measured, and when it fails if its GPU has too little for all."""
MAX_IDLE_SECONDS = 30 * 86400.0
"""The run ends when only timers of the core are left and none of them starts a job for so long."""
MAX_CYCLES_PER_INSTANT = 100
SCALING = 0.8
"""An elastic job with twice the GPUs is 2 ** 0.8 times as fast."""


@dataclass(frozen=True)
class JobBehaviour:
    """What a job does; the scheduler learns it only from events."""

    seconds: float
    """Run time with as many GPUs as requested."""
    epochs: int = 0
    """Epochs that it reports; 0: it is not a training job."""
    gpus: int = 1
    failures: int = 0
    """Number of its first attempts that fail halfway."""
    failure_memory: str | None = None
    """`host` or `cuda` if they fail for lack of memory."""
    gpu_memory: int = 0
    """MiB that it uses on each GPU; 0: not measured."""
    loss: float | None = None
    """Final loss of a trial of a sweep."""
    rungs: tuple[float, ...] = ()
    """Epochs after which a trial reports its loss."""


@dataclass
class Arrival:
    """Events of one instant that come from outside."""

    time: float
    events: list[e.Event] = field(default_factory=list)
    jobs: dict[int, JobBehaviour] = field(default_factory=dict)
    """Behaviour of the jobs that are submitted."""
    ended_nodes: tuple[str, ...] = ()
    """Nodes that end at this time, with all that runs there."""


@dataclass
class JobRun:
    """One job: its current attempt and the work that is saved."""

    behaviour: JobBehaviour
    attempt: int = -1
    placement: Placement | None = None
    saved: float = 0.0
    """Seconds of work that the next attempt need not repeat."""
    epochs: int = 0
    rate: float = 1.0
    is_stopping: bool = False


class SimulatedCluster:
    """Nodes on which jobs behave as given, under one engine."""

    def __init__(
        self, nodes: Sequence[NodeFacts], arrivals: Sequence[Arrival], cycles_per_restart: int = 0
    ) -> None:
        self.nodes, self.cycles_per_restart = nodes, cycles_per_restart
        self.decisions = DecisionHash()
        self.now = 0.0
        self.runs: dict[int, JobRun] = {}
        self.jobs_on: defaultdict[tuple[str, str], dict[int, None]] = defaultdict(dict)
        """Running jobs by node and GPU."""
        self.capacity = {
            (node.name, device.name): device.memory or 0
            for node in nodes
            for device in node.types.get(GPU, ())
        }
        self.timers: list[tuple[float, int, str, int, int]] = []
        """Heap of (time, sequence number, timer, job or arrival, attempt)."""
        self.sequence = count()
        self.arrivals = arrivals
        for number, arrival in enumerate(arrivals):
            self._schedule(arrival.time, "arrival", number, 0)
        self.ended_jobs = self.cycles = self.term = 0

    def run(self) -> None:
        """Run until all jobs have ended, or none can start any more."""
        with TemporaryDirectory() as folder:
            store = SqliteStore(str(Path(folder) / "journal.db"))
            store.acquire_term()
            self.engine = Engine(store, lambda: Instant(self.now, self.now))
            joined = [e.NodeJoined(at=0.0, facts=node) for node in self.nodes]
            self._cycle([self._daemon_started(), *joined])
            last_event = 0.0
            while True:
                due = self.engine.seconds_until_due(Instant(self.now, self.now))
                next_timer = self.timers[0][0] if self.timers else inf
                time = min(next_timer, inf if due is None else self.now + due)
                if time == inf or (not self.timers and time > last_event + MAX_IDLE_SECONDS):
                    break
                self.now = max(time, self.now)
                events = self._due_events()
                if events:
                    last_event = self.now
                self._cycle(events)
            store.close()

    # -- cycles -------------------------------------------------------------------------

    def _cycle(self, events: list[e.Event]) -> None:
        """Run cycles until no event follows."""
        for _ in range(MAX_CYCLES_PER_INSTANT):
            given = {id(event) for event in events}
            result = self.engine.cycle(events)
            result.raise_error()
            for event in result.events:
                if id(event) not in given:
                    self.decisions.add(event)
            events = [event for each in result.instructions for event in self._execute(each)]
            self.cycles += 1
            if self.cycles_per_restart and self.cycles % self.cycles_per_restart == 0:
                self.engine.reload()
                events.insert(0, self._daemon_started())
            if not events:
                return
        raise RuntimeError(f"no end of cycles at {self.now}")

    def _daemon_started(self) -> e.Event:
        self.term += 1
        return e.DaemonStarted(
            at=self.now, term=self.term, boot="golden", pid=1, version="", clock=self.now
        )

    def _schedule(self, at: float, timer: str, job: int, attempt: int) -> None:
        heappush(self.timers, (at, next(self.sequence), timer, job, attempt))

    def _due_events(self) -> list[e.Event]:
        events: list[e.Event] = []
        while self.timers and self.timers[0][0] <= self.now:
            _, _, timer, number, attempt = heappop(self.timers)
            if timer == "arrival":
                arrival = self.arrivals[number]
                self.runs |= {id: JobRun(behaviour) for id, behaviour in arrival.jobs.items()}
                events += arrival.events
                for name in arrival.ended_nodes:
                    events += self._end_node(name)
            elif self.runs[number].attempt == attempt:
                events += self._on_timer(timer, number, self.runs[number])
        return events

    def _end_node(self, name: str) -> list[e.Event]:
        events: list[e.Event] = []
        for job, run in self.runs.items():
            if run.attempt < 0 or run.placement is None or run.placement.on(name) is None:
                continue
            attempt = run.attempt
            self._forget(job, run)
            lost = e.AttemptLost(
                at=self.now, job=job, attempt=attempt, why=f"{name} ended", preempted=True
            )
            events.append(lost)
        return [*events, e.NodeRemoved(at=self.now, name=name, why="it ended")]

    # -- instructions -------------------------------------------------------------------

    def _execute(self, instruction: Instruction) -> list[e.Event]:
        match instruction:
            case StartProcess():
                return self._start(instruction)
            case RequestStop():
                self.runs[instruction.job].is_stopping = True
            case WithdrawStop():
                self.runs[instruction.job].is_stopping = False
            case TerminateAttempt():
                if self.runs[instruction.job].attempt == instruction.attempt:
                    return [self._exit(instruction.job, signal=15)]
            case SignalAttempt(if_caught=True):
                if self.runs[instruction.job].attempt == instruction.attempt:
                    return [self._exit(instruction.job, code=75)]
        return []

    def _start(self, instruction: StartProcess) -> list[e.Event]:
        job, attempt, run = instruction.job, instruction.attempt, self.runs[instruction.job]
        run.attempt, run.placement, run.is_stopping = attempt, instruction.placement, False
        behaviour = run.behaviour
        held = self._gpus(run.placement)
        for gpu in held:
            self.jobs_on[gpu][job] = None
        run.rate = (len(held) / behaviour.gpus) ** SCALING if behaviour.epochs and held else 1.0
        events: list[e.Event] = [
            e.ProcessStarted(at=self.now, job=job, attempt=attempt, pid=1, boot=self.now)
        ]
        remaining = (behaviour.seconds - run.saved) / run.rate
        if attempt < behaviour.failures:
            self._schedule(self.now + remaining / 2, "fail", job, attempt)
        if behaviour.gpu_memory:
            self._schedule(self.now + MEMORY_KNOWN_SECONDS, "memory", job, attempt)
            self._schedule(self.now + MEMORY_FULL_SECONDS, "full", job, attempt)
        if behaviour.epochs:
            events.append(e.TrainingBegan(at=self.now, job=job, attempt=attempt))
            epoch = behaviour.seconds / behaviour.epochs / run.rate
            self._schedule(self.now + epoch, "epoch", job, attempt)
        else:
            self._schedule(self.now + remaining, "end", job, attempt)
        return events

    def _gpus(self, placement: Placement) -> list[tuple[str, str]]:
        return [(part.node, name) for part in placement.parts for name in part.names(GPU)]

    # -- timers -------------------------------------------------------------------------

    def _on_timer(self, timer: str, job: int, run: JobRun) -> list[e.Event]:
        behaviour = run.behaviour
        match timer:
            case "end":
                return [self._exit(job, code=0)]
            case "fail":
                return [self._exit(job, code=1, memory=behaviour.failure_memory)]
            case "memory":
                return [
                    e.MemoryMeasured(
                        at=self.now, job=job, attempt=run.attempt, memory=behaviour.gpu_memory
                    )
                ]
            case "full":
                return [self._exit(job, code=1, memory="cuda")] if self._is_full(run) else []
        return self._on_epoch_end(job, run)

    def _is_full(self, run: JobRun) -> bool:
        """Return whether the jobs on a GPU of this job use more memory than it has."""
        assert run.placement is not None
        return any(
            sum(self.runs[job].behaviour.gpu_memory for job in self.jobs_on[gpu])
            > self.capacity[gpu]
            for gpu in self._gpus(run.placement)
        )

    def _on_epoch_end(self, job: int, run: JobRun) -> list[e.Event]:
        behaviour, attempt = run.behaviour, run.attempt
        epoch = behaviour.seconds / behaviour.epochs
        run.epochs += 1
        run.saved = run.epochs * epoch
        events: list[e.Event] = [
            e.EpochsCounted(
                at=self.now, job=job, attempt=attempt, done=run.epochs, seconds=epoch / run.rate
            )
        ]
        is_last = run.epochs >= behaviour.epochs
        if behaviour.loss is not None and (is_last or run.epochs in behaviour.rungs):
            value = behaviour.loss * (1 + 2 / run.epochs)
            rung = None if is_last else behaviour.rungs.index(run.epochs)
            events.append(
                e.TrialMeasured(
                    at=self.now, job=job, attempt=attempt, value=value, step=run.epochs,
                    rung=rung, final=is_last,
                )
            )  # fmt: skip
        if is_last:
            return [*events, self._exit(job, code=0)]
        if run.is_stopping:
            return [*events, self._exit(job, code=0, stopped=True)]
        self._schedule(self.now + epoch / run.rate, "epoch", job, attempt)
        return events

    def _forget(self, job: int, run: JobRun) -> None:
        """Forget an attempt that has ended."""
        run.attempt = -1
        for gpu in self._gpus(run.placement) if run.placement is not None else ():
            self.jobs_on[gpu].pop(job, None)

    def _exit(
        self,
        job: int,
        code: int | None = None,
        signal: int | None = None,
        memory: str | None = None,
        stopped: bool = False,
    ) -> e.Event:
        run = self.runs[job]
        attempt = run.attempt
        self._forget(job, run)
        self.ended_jobs += code == 0 and not stopped
        return e.ProcessExited(
            at=self.now, job=job, attempt=attempt, code=code, signal=signal, memory=memory,
            stopped=stopped,
        )  # fmt: skip
