"""The real engine, executor and recovery over a modelled kernel, under one seeded schedule."""

import contextlib
import os
import select
import shutil
import signal
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from memory_store import MemoryStore
from simulation import client as ask
from simulation.client import ClientRequest, MakeHandler
from simulation.crash_points import Crash
from simulation.modelled_kernel import Behaviour, Kernel
from simulation.virtual_clock import VirtualClock
from stoker.core.events import Event, ForeignUseChanged
from stoker.core.events.instructions import (
    Instruction,
    SignalAttempt,
    StartProcess,
    TerminateAttempt,
)
from stoker.core.launch.launch import Launch, launch
from stoker.core.measurement.foreign_use import Thresholds
from stoker.core.model.job import AttemptId, Job, JobState
from stoker.core.model.resources import DeviceFacts, GpuRequest, NodeFacts, ResourceRequest
from stoker.core.model.spec import Retry
from stoker.core.state.timers import next_wakeup
from stoker.daemon.context import RequestContext
from stoker.daemon.gpus.foreign_usage import ForeignUsageThresholds
from stoker.daemon.gpus.memory import GpuMemoryTracker
from stoker.daemon.nodes.registry import ExecutorRegistry
from stoker.daemon.recovery import recover_state
from stoker.daemon.settings import Settings
from stoker.engine import CycleResult, Engine
from stoker.executors.launch.paths import ExecutorPaths
from stoker.executors.linux.gpu_locks import GpuLocks
from stoker.executors.local import executor as local
from stoker.executors.local.executor import LocalExecutor
from stoker.executors.local.supervisor_client import spawn_supervisors
from stoker.store.port import JobQuery, Store, StoreError
from stoker.store.replacement import FINISHED, find_beside, has_content
from stoker.store.sqlite import SqliteStore
from virtual_reactor import VirtualReactor

GPUS = 2
FAULTS_SECONDS = 12.0
"""How long faults happen; after that, everything must come to its end."""
END_SECONDS = 4000.0
BEHAVIOURS = [
    Behaviour(seconds=0.01), Behaviour(seconds=0.05), Behaviour(seconds=0.4), Behaviour(seconds=3),
    Behaviour(seconds=0.2, code=3), Behaviour(seconds=1, code=3), Behaviour(seconds=2, leaves=True),
    Behaviour(seconds=0.1, leaves=True), Behaviour(seconds=30, ignores_term=True),
]  # fmt: skip
REQUESTS = [
    ResourceRequest(gpus=GpuRequest(1000)),
    ResourceRequest(gpus=GpuRequest(2000)),
    ResourceRequest(cpus=1000),
]
RETRIES = [Retry(), Retry(), Retry(2), Retry(1, ("lost",))]


class Poller(VirtualReactor):
    """Calls back for descriptors that are readable now, and for timers that are due."""

    def poll(self) -> None:
        for fd in select.select(list(self.callbacks), [], [], 0)[0]:
            if fd in self.callbacks:
                self.callbacks[fd]()
        self.run_timers()


class Unchanged:
    """Commands as they are: the kernel looks at their environment only."""

    def environment(self, _: str) -> dict[str, str]:
        return {}

    def compose(self, start: local.Launch) -> tuple[tuple[str, ...], dict[str, str]]:
        return ("/bin/job",), start.extra


class Host:
    """A daemon without sockets on a modelled machine, which can be killed at any system call."""

    def __init__(self, seed: int, place: Path) -> None:
        self.random, self.world, self.place = Random(seed), VirtualClock(seed), place
        self.behaviours: dict[int, Behaviour] = {}
        self.kernel = Kernel(self.world, self.random, self._behaviour)
        self.rows = MemoryStore().rows
        self.damaged = self.random.choice([None, None, None, "jobs", "events", "jobs_resident"])
        """The table of the journal that is damaged now and then; None: it is kept in memory.

        Always the same one: damage to two of them may lose rows for good.
        """
        self.journal = place / "journal.db"
        self.crashes = 0
        self.idle = 0.0
        self.faults: Counter[str] = Counter()
        self.acknowledged: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.waiting: list[ClientRequest] = []
        self.half_started: set[str] = set()
        self.logs, self.run = str(place / "logs"), str(place / "run")
        for name in ("logs", "exits", "locks", "scripts"):
            (place / name).mkdir()

    def begin(self) -> None:
        """Start the first daemon."""
        self._until_up(self._start)

    def _behaviour(self, job: int, attempt: int) -> Behaviour:
        how = self.behaviours.get(job, Behaviour())
        return Behaviour(0.1, 0) if attempt > 3 else how

    # -- life and death -----------------------------------------------------------------

    def _start(self) -> None:
        """Do what a daemon does when it starts (see `daemon/recovery.py`)."""
        self.kernel.new_daemon()
        os.makedirs(self.run, exist_ok=True)
        self.reactor = Poller(lambda: self.world.time)
        self.store = self._open_store()
        term = self.store.acquire_term()
        places = ExecutorPaths(
            self.run, str(self.place / "exits"), str(self.place / "scripts"), self.run
        )
        holds = GpuLocks(str(self.place / "locks"), report=lambda _: None)
        self.executor = executor = LocalExecutor(
            places, "sim", spawn_supervisors(places.exits), self.reactor,
            lambda _: b"", lambda _: b"",
            grace=2.0, gpu_locks=holds,
        )  # fmt: skip
        executor.commands = Unchanged()  # type: ignore[assignment]
        self.engine = Engine(self.store, self.world.moment)
        self.registry = ExecutorRegistry(
            executor, "box", "sim", {}, ForeignUsageThresholds(Thresholds()), GpuMemoryTracker(),
            self.logs, lambda: self.engine.state, self._launch, _ignore, self.reactor,
        )  # fmt: skip
        context = RequestContext(self.store, self.logs, "box", "ada")
        recover_state(self._loop(context), term, machine(), Settings(), self.run)

    def _loop(self, context: RequestContext) -> Any:
        """What the start of a daemon needs of its loop, without nodes elsewhere and trainings."""
        cleanup = SimpleNamespace(scan=_ignore, take_removable=list)
        trainings = SimpleNamespace(enrich_events=list, start=_ignore, cleanup=cleanup)
        return SimpleNamespace(
            store=self.store, local=self.executor, engine=self.engine, context=context,
            registry=self.registry,
            training=trainings, record=self._record, notifier=SimpleNamespace(start=_ignore),
        )  # fmt: skip

    def _open_store(self) -> Store:
        if self.damaged is None:
            return MemoryStore(self.rows)
        return SqliteStore(str(self.journal))

    def _damage(self) -> None:
        """Spoil a page or a byte of the journal while no daemon has it."""
        if not has_content(str(self.journal)) or find_beside(str(self.journal), FINISHED):
            return  # a repair was interrupted
        with contextlib.closing(sqlite3.connect(self.journal)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            (size,) = db.execute("PRAGMA page_size").fetchone()
            where = "pageno > 1 AND pagetype = 'leaf' AND name = ?"
            query = f"SELECT pageno FROM dbstat WHERE {where}"
            pages = db.execute(query, (self.damaged,)).fetchall()
        if not pages:  # it is as new
            return
        page = self.random.choice(pages)[0]
        with self.journal.open("r+b") as file:
            whole = self.random.random() < 0.5
            file.seek((page - 1) * size + (0 if whole else self.random.randrange(size // 2, size)))
            file.write(b"\xff" * (size if whole else 1))
        self.faults["damage"] += 1

    def _until_up(self, act: Callable[[], None]) -> None:
        """Do something; after a crash, start again until that succeeds."""
        while True:
            try:
                act()
            except (Crash, StoreError):  # a start that meets damage ends after the repair
                self.crashes += 1
                self.faults["daemon"] += 1
                self.kernel.unseen |= self.kernel.waited & self._unrecorded()
                self.kernel.kill_daemon()
                self.kernel.calls_left = None
                if isinstance(self.store, SqliteStore):
                    self.store._db.close()
                self.world.advance(self.random.choice([0.0, 0.1, 1.0]))
                self._let_others_run(self.random.choice([0, 0, 2, 8]))
                is_harmful = self.world.time < FAULTS_SECONDS and self.random.random() < 0.3
                if self.damaged is not None and is_harmful:
                    self._damage()
                if self.random.random() < 0.5 and self.world.time < FAULTS_SECONDS:
                    self.kernel.calls_left = self.random.randrange(1, 120)
                act = self._start
            else:
                return

    def _unrecorded(self) -> set[str]:
        """Return the attempts whose end the daemon has not journalled."""
        reported = [event for _, event in self.registry._incoming if hasattr(event, "attempt")]
        ended = {AttemptId(event.job, event.attempt) for event in reported}  # type: ignore[attr-defined]
        return {str(attempt) for attempt in ended | self.executor.attempts.keys()}

    def _let_others_run(self, steps: int) -> None:
        self.kernel.current = self.kernel.daemon
        for _ in range(steps):
            if not self.kernel.run_one() or self.random.random() < 0.1:
                self.world.advance(self.random.choice([0.001, 0.05, 0.5]))

    # -- one turn -----------------------------------------------------------------------

    def turn(self) -> None:
        """Turn once; requests that a crash left without an answer are repeated."""
        self._until_up(self._turn)
        while self.waiting:
            self._until_up(self._turn)

    def _turn(self) -> None:
        self.reactor.poll()
        self._look_at_locks()
        self._cycle()
        while self.registry.pending:
            self._cycle()
        self.waiting = [wanted for wanted in self.waiting if not wanted.answered]
        if not self.engine.has_unrecorded_events:
            self.registry.acknowledge(self.registry.take_ended())
        now = self.world.moment()
        waits = [
            self.reactor.seconds_until_timer(),
            next_wakeup(self.engine.state, now.wall, now.boot),
        ]
        self.idle = min([wait for wait in waits if wait is not None], default=2.0)

    def _look_at_locks(self) -> None:
        """Do what the daemon's watch over GPUs does with locks."""
        for device in self.engine.state.cluster.nodes["box"].types["gpu"]:
            found = self.executor.gpu_locks.holder(device.facts.uuid or "")
            if found != device.foreign_user:
                fact = ForeignUseChanged(
                    at=self.world.moment().wall, node="box", device=device.name, foreign_user=found
                )
                self.registry.on_event("box", fact)

    def _cycle(self) -> None:
        facts = self.registry.collect(self.engine.state)
        # As in the daemon's loop: what could not be written is written with the next cycle.
        with contextlib.suppress(StoreError):
            context = RequestContext(self.store, self.logs, "box", "ada")
            requests = [request.to(context) for request in self.waiting]
            self._act_on(self.engine.cycle(facts, requests))

    def _record(self, events: list[Event]) -> None:
        self._act_on(self.engine.cycle(events, scheduling_enabled=False))

    def _act_on(self, result: CycleResult) -> None:
        """Do with the result of a cycle what the daemon does."""
        self._execute(result.instructions)
        for reply in result.replies:
            reply.send()
        result.raise_error()

    def _execute(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, StartProcess):
                self.registry.start(instruction)
            elif isinstance(instruction, TerminateAttempt):
                grace = 0.0 if instruction.at_once else self.executor.grace
                self.registry.terminate(AttemptId(instruction.job, instruction.attempt), grace)
            elif isinstance(instruction, SignalAttempt):
                attempt = AttemptId(instruction.job, instruction.attempt)
                self.registry.signal(attempt, instruction.signal, instruction.if_caught)

    def _launch(self, instruction: StartProcess, rank: int) -> Launch:
        state, placement = self.engine.state, instruction.placement
        job, node = state.jobs[instruction.job], state.cluster.nodes[placement.parts[rank].node]
        token = self.executor.token(AttemptId(instruction.job, instruction.attempt))
        return launch(job, state.spec(job), placement, node, 0.0, self.logs, token, "/s", rank)

    def do(self, make_handler: MakeHandler) -> ClientRequest:
        """Send a request and wait for its reply."""
        request = ClientRequest(make_handler)
        self.waiting.append(request)
        self.turn()
        return request

    # -- a schedule ---------------------------------------------------------------------

    def play(self) -> None:
        """Submit jobs and inject faults for a while; then let everything end."""
        while self.world.time < FAULTS_SECONDS:
            if self.random.random() < 0.25 and len(self.acknowledged) < 12:
                self._submit()
            if self.random.random() < 0.05 and self.acknowledged:
                self._cancel()
            self._inject_fault()
            self._pass_time(0.5)
        self.kernel.lock_error = self.kernel.spawn_error = 0.0
        self.kernel.calls_left = None
        for each in self.kernel.supervisors:
            self._go_on(each.process.pid)
        while self.world.time < END_SECONDS and not self._is_over():
            self._decide_about_held()
            self._pass_time(60.0)

    def _submit(self) -> None:
        first, count = self.engine.state.record.next_id, self.random.choice([1, 1, 2, 4])
        how = self.random.choice(BEHAVIOURS)
        self.behaviours |= dict.fromkeys(range(first, first + count), how)
        limit = 3 if how.ignores_term else None
        options = ask.job_options(
            self.random.choice(REQUESTS), retry=self.random.choice(RETRIES), limit=limit
        )
        request = ask.submit(options, f"key-{first}", count)
        while (sent := self.do(request)).rejection is not None:
            assert "repair" in str(sent.rejection), sent.rejection
        assert (sent.answer.first, sent.answer.count) == (first, count)
        self.acknowledged |= dict.fromkeys(range(first, first + count), how.code)
        if limit:
            self.cancelled |= set(range(first, first + count))

    def _cancel(self) -> None:
        id = self.random.choice(list(self.acknowledged))
        self.cancelled.add(id)
        self.do(ask.cancel(id))

    def _decide_about_held(self) -> None:
        """Do what a user does about jobs that a repair holds: run those that never ran."""
        ran = {job for job, _ in self.kernel.started}
        for id in [job.id for job in self.engine.state.jobs.values() if job.held]:
            self.do(ask.cancel(id) if id in ran else ask.release(id))
            self.cancelled |= {id} & ran

    def _inject_fault(self) -> None:
        kernel, random = self.kernel, self.random
        fault = random.choice(
            ["", "daemon", "daemon", "daemon", "supervisor", "pause", "locks", "spawn"]
        )
        able = [each for each in kernel.supervisors if not each.over]
        if fault == "daemon" and kernel.calls_left is None:
            kernel.calls_left = random.choice([random.randrange(1, 20), random.randrange(1, 300)])
        elif fault == "supervisor" and able and random.random() < 0.5:
            self._kill_supervisor(random.choice(able).process.pid)
        elif fault == "pause" and able:
            pid = random.choice(able).process.pid
            kernel.kill(pid, signal.SIGSTOP)
            self.world.after(random.uniform(0.01, 8.0), lambda: self._go_on(pid))
            self.faults["pause supervisor"] += 1
        elif fault == "locks":
            kernel.lock_error = random.choice([0.0, 0.0, 0.2, 1.0])
            self.faults["lock error"] += kernel.lock_error > 0
        elif fault == "spawn":
            kernel.spawn_error = random.choice([0.0, 0.3])

    def _kill_supervisor(self, pid: int) -> None:
        self.faults["supervisor"] += 1
        for path in Path(self.run).glob("*.*"):
            text = path.read_text() if path.name[0].isdigit() else ""
            if f"keeper {pid} " in text and "\npid " not in text:
                self.half_started.add(path.name)
        self.kernel.kill(pid, signal.SIGKILL)

    def _go_on(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.kernel.kill(pid, signal.SIGCONT)

    def _pass_time(self, most: float) -> None:
        """Let supervisors do some of what they have to do, then turn, then let time pass."""
        for _ in range(self.random.choice([0, 1, 5, 50])):
            if not self.kernel.run_one():
                break
        self.turn()
        wait = min(most, self.idle, self.world.until_next() or most)
        if self.registry.pending or any(each.runnable for each in self.kernel.supervisors):
            wait = 0.001
        self.world.advance(max(wait, 1e-4))

    def _is_over(self) -> bool:
        return all(job.finished for job in self.engine.state.jobs.values())

    def close(self) -> None:
        """End every process."""
        self.kernel.close()
        if isinstance(self.store, SqliteStore):
            self.store._db.close()

    # -- what must hold -----------------------------------------------------------------

    def job(self, id: int) -> Job | None:
        """Return a job, also a finished one."""
        if id in self.engine.state.jobs:
            return self.engine.state.jobs[id]
        found = self.store.find_jobs(JobQuery(ids=[id]))
        return found[0].job if found else None

    def violations(self) -> list[tuple[str, str]]:
        """Return every violation: its kind and a sentence."""
        wrong = list(self.kernel.wrong)
        over = set()
        for id in self.acknowledged:
            job = self.job(id)
            if job is not None and job.finished:
                wrong += self._violations_of(job)
                over.add(id)
            elif job is None or not self._is_unknown(id):
                wrong.append(("lost", f"job {id} is {job.state if job else 'absent'}"))
        left = [each for each in self.kernel.processes.values() if each.alive and each.owner]
        left += self.kernel.zombies(self.kernel.daemon.pid)
        return wrong + [("orphaned", f"{each}") for each in left if each.owner in over]

    def _is_unknown(self, id: int) -> bool:
        """Return True if no process of stoker could know how an attempt of this job ended."""
        known = self.kernel.unseen | self.half_started
        return any(key.split(".")[0] == str(id) for key in known)

    def _violations_of(self, job: Job) -> Iterator[tuple[str, str]]:
        kernel, id = self.kernel, job.id
        attempts = [number for each, number in kernel.started if each == id]
        unknown = self._is_unknown(id)
        final = [n for n in attempts if kernel.ended.get((id, n)) == 0]
        if final and final[0] != max(attempts) and not unknown:
            yield "doubled", f"attempt {final[0]} of job {id} ended with 0, and {max(attempts)} ran"
        if id in self.cancelled or unknown:
            return
        if not attempts:
            yield "lost", f"job {id} is {job.state} and never ran"
            return
        status = kernel.ended.get((id, max(attempts)))
        expected = JobState.COMPLETED if status == 0 else JobState.FAILED
        if job.state is not expected:
            yield "lost", f"attempt {max(attempts)} of job {id} ended with {status}: {job}"


def _ignore(*_: object) -> None:
    """Do nothing."""


def machine() -> NodeFacts:
    """Two real GPUs and some cores."""
    cards = [DeviceFacts(name=str(n), index=n, memory=24_000, uuid=f"GPU-{n}") for n in range(GPUS)]
    return NodeFacts("box", {"gpu": tuple(cards), "cpu": (DeviceFacts("cpu", 4000),)})


@contextlib.contextmanager
def host(seed: int, base: str | None = None) -> Iterator[Host]:
    """A machine whose daemon is up."""
    place = Path(tempfile.mkdtemp(prefix="sim-", dir=base))
    made = Host(seed, place)
    try:
        with made.kernel.installed():
            made.begin()
            yield made
            made.close()
    finally:
        shutil.rmtree(place, ignore_errors=True)
