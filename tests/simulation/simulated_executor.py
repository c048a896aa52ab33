"""SimulatedExecutor: attempts on a simulated machine, with reports late, repeated or lost."""

from __future__ import annotations

import signal as signals
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from simulation.simulated_machine import Claim, Report, SimulatedMachine
from simulation.training_model import Line
from simulation.virtual_clock import VirtualClock
from stoker.core.events import (
    AttemptLost,
    AttemptQueued,
    EpochsCounted,
    Event,
    ForeignUseChanged,
    MemoryMeasured,
    ProcessExited,
    ProcessStarted,
    StartCancelled,
    StartFailed,
    TrainingBegan,
    TrialMeasured,
)
from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId, Job, JobState
from stoker.core.model.resources import CPU, MEMORY, NodeFacts, PlacementMode
from stoker.core.model.units import THOUSAND
from stoker.executors.port import (
    AttemptRecords,
    Barrier,
    Capability,
    Executor,
    ExecutorSink,
    RecoverableAttempt,
    Upload,
)
from stoker.executors.reactor import Reactor, Timer

RECHECK_SECONDS = 5.0
"""Time between looks at the claims of attempts without a report."""
SILENCE_SECONDS = 5.0
"""Time without an answer after which a node counts as unreachable."""
BUSY_SECONDS, IDLE_SECONDS = 30.0, 200.0
"""Time between measurements of another node, while jobs are pending or running and otherwise."""
TAKEN_SECONDS = 60.0
"""Time for which a foreign process uses a device that it took first."""


class Faults(Struct, frozen=True, kw_only=True):
    """How badly reports travel: the chance of each fault, and the longest delay."""

    lost: float = 0.0
    repeated: float = 0.0
    late: float = 0.0
    delay: float = 3.0
    start_delay: float = 0.0
    """A start may be under way this long, and arrive after the daemon that sent it has died."""


class SimulatedReading(Struct, frozen=True):
    """A measurement of a simulated node."""

    facts: NodeFacts

    @property
    def cores(self) -> int:
        """Number of cores."""
        return sum(each.capacity for each in self.facts.types.get(CPU, ())) // THOUSAND

    @property
    def memory_total(self) -> int:
        """MiB of memory."""
        return sum(each.capacity for each in self.facts.types.get(MEMORY, ()))

    @property
    def memory_available(self) -> int:
        """MiB of memory that are not in use: all of them."""
        return self.memory_total

    def node_facts(self, name: str) -> NodeFacts:
        """The resources of the node."""
        return self.facts


class SimulatedAttempt(Struct):
    """An attempt that the executor looks after, and what was requested for it."""

    part: int | None
    look_at: float
    """When its claim is read next, by the boot clock."""
    kill_at: float | None = None
    grace: float | None = None
    """It is to be terminated; repeated after every reconnect."""
    suspended: bool | None = None
    """None: it was never suspended."""
    stop: bool = False
    """It is asked to stop at its next safe point."""


class SimulatedExecutor(Executor):
    """Runs attempts on one simulated machine: this one, one over a link, or a cluster."""

    address = None

    def __init__(
        self,
        world: VirtualClock,
        reactor: Reactor,
        machine: SimulatedMachine,
        facts: NodeFacts,
        faults: Faults,
        records: AttemptRecords | None = None,
        grace: float = 10.0,
    ) -> None:
        """`records` are those of a node that is not this one."""
        self.world, self.machine, self.facts, self.faults = world, machine, facts, faults
        self.records, self.grace = records, grace
        self.attempts: dict[AttemptId, SimulatedAttempt] = {}
        self._sink: ExecutorSink | None = None
        self._read: dict[AttemptId, int] = {}
        """Lines of each report that were read. Another executor reads them all again."""
        self._unacknowledged: set[AttemptId] = set()
        """Attempts to be forgotten there as soon as the node answers."""
        self._measured_at = 0.0
        self._closed = False
        self._timer = Timer(reactor, self._check)

    @property
    def capabilities(self) -> Capability:
        """What it can do; a cluster neither binds devices nor waits at barriers."""
        common = Capability.SUSPEND | Capability.SIGNAL | Capability.CONTROL_FILES
        common |= Capability.REPORTS | Capability.SHARED_FILES
        if self.facts.placement is PlacementMode.DELEGATED:
            return common
        return common | Capability.BIND_DEVICES | Capability.BARRIER

    def has_attempts(self) -> bool:
        """Whether it looks after attempts."""
        return bool(self.attempts)

    # -- connection ---------------------------------------------------------------------

    def open(self, sink: ExecutorSink) -> None:
        """Report to this sink from now on."""
        self._sink = sink
        if not self.machine.afar:
            self.machine.hear = self._arrives

    @property
    def is_connected(self) -> bool:
        """Whether the machine reports to this executor, and receives what it sends."""
        return self.machine.hear == self._arrives

    def refresh(self) -> None:
        """Measure the node, or try to reach it."""
        if self._closed or not self.machine.afar:
            return
        if self.machine.cut:
            self.sink.node_down("no route to host")
        elif not self.is_connected:
            self._connect()

    def lose_link(self) -> None:
        """The link has broken, which is noticed after a while."""

        def notice() -> None:
            if self.machine.cut and not self._closed:
                self.sink.node_down("it does not answer")

        self.world.after(SILENCE_SECONDS, notice)

    def _connect(self) -> None:
        """Terminate what does not belong there, account for the rest, and report the node."""
        machine = self.machine
        machine.hear = self._arrives
        self._timer.request(0.0)
        self._flush_acknowledged()
        for key in [*machine.processes, *machine.queue]:
            if AttemptId(*key) not in self.attempts:
                machine.signal(key, signals.SIGKILL)
        for id in list(self.attempts):
            self._recover(id, node_restarted=False)
        abandoned = self.records.abandoned_attempts(self.facts.name) if self.records else []
        self._measure()
        self.sink.node_up(abandoned)

    def _measure(self) -> None:
        self._measured_at = self.world.moment().boot
        self.sink.node_reading(SimulatedReading(self.facts))

    def close(self) -> None:
        """Release the connection; attempts continue."""
        self._closed = True
        self._timer.cancel()
        if self.is_connected:
            self.machine.hear = None

    @property
    def sink(self) -> ExecutorSink:
        """Where it reports to."""
        assert self._sink is not None
        return self._sink

    # -- starting -----------------------------------------------------------------------

    def start(self, launch: Launch, barrier: Barrier | None = None) -> None:
        """Send a start to the machine, at most once per attempt ever."""
        id, boots = launch.id, self.machine.boots
        part = barrier.rank if barrier is not None else None
        taken = self.machine.behaviour(*id).taken
        if taken is not None and not part:
            self._cancel_for_device(launch, taken)
            return

        def arrive() -> None:
            if self.machine.cut or self.machine.boots != boots:
                return
            if barrier is None:
                self.machine.start(id, self._arrives)
            else:
                self.machine.wait_at_barrier(id, self._arrives, barrier.rank, barrier.timeout)

        self._expect(id, part)
        wait = self.world.random.uniform(0.0, self.faults.start_delay)
        self.world.after(wait, arrive, self.machine.afar)

    def release(self, attempt: AttemptId, rank: int, environment: Mapping[str, str] | None) -> None:
        """Let a part that waits at its barrier run; without an environment, give it up."""
        if not self.is_connected:
            return  # it gives up by itself
        if environment is None:
            self.machine.give_up(attempt, "another part of the job could not be started")
        else:
            self.machine.pass_barrier(attempt)

    def _expect(self, id: AttemptId, part: int | None = None) -> SimulatedAttempt:
        look_at = self.world.moment().boot + RECHECK_SECONDS
        self.attempts[id] = attempt = SimulatedAttempt(part, look_at)
        self._timer.request(RECHECK_SECONDS)
        return attempt

    def _cancel_for_device(self, launch: Launch, user: str) -> None:
        """A foreign process was first at its devices."""
        at, node = self.world.moment().wall, self.facts.name
        self._report(StartCancelled, launch.id, why=user)
        names = filter(None, launch.extra.get("STOKER_GPUS", "").split(","))
        for device in names:
            self.sink.event(ForeignUseChanged(at=at, node=node, device=device, foreign_user=user))
            self.world.after(TAKEN_SECONDS, self._leave_device(node, device))

    def _leave_device(self, node: str, device: str) -> Callable[[], None]:
        def leave() -> None:
            at = self.world.moment().wall
            self.sink.event(ForeignUseChanged(at=at, node=node, device=device, foreign_user=None))

        return leave

    # -- signals ------------------------------------------------------------------------

    def terminate(self, attempt: AttemptId, grace: float) -> None:
        """TERM now and KILL after the grace, or KILL at once."""
        known = self.attempts.get(attempt)
        if known is None:
            return
        known.grace = grace if known.grace is None else min(known.grace, grace)
        if self.is_connected:
            self._terminate(attempt, known)
            self._timer()

    def _terminate(self, id: AttemptId, attempt: SimulatedAttempt) -> None:
        assert attempt.grace is not None
        kill_at = self.world.moment().boot + attempt.grace
        attempt.kill_at = kill_at if attempt.kill_at is None else min(attempt.kill_at, kill_at)
        self._timer.request(attempt.grace)
        self.machine.give_up(id, "cancelled before it was started")
        self.machine.signal(id, signals.SIGCONT)  # a stopped process receives nothing
        self.machine.signal(id, signals.SIGTERM)

    def signal(
        self,
        attempt: AttemptId,
        number: int,
        only_if_handled: bool = False,
        to_script: bool = False,
    ) -> None:
        """Send a signal; simulated processes handle none of the optional ones."""
        if attempt in self.attempts and self.is_connected and not only_if_handled:
            self.machine.signal(attempt, number)

    def suspend(self, attempt: AttemptId) -> None:
        """Stop it in place."""
        if (known := self.attempts.get(attempt)) is not None:
            known.suspended = True
            self.signal(attempt, signals.SIGSTOP)

    def resume(self, attempt: AttemptId) -> None:
        """Let it continue."""
        if (known := self.attempts.get(attempt)) is not None:
            known.suspended = False
            self.signal(attempt, signals.SIGCONT)

    def abandon(self, attempt: AttemptId) -> None:
        """Forget an attempt that the core gave up; it is terminated when the node answers."""
        self.attempts.pop(attempt, None)
        if self.machine.afar and not self.machine.cut:
            self.machine.hear = None
            self.refresh()

    def send_control(self, attempt: AttemptId, rank: int, name: str, text: str) -> None:
        """Ask the training library to stop at its next safe point; without text, take it back."""
        known = self.attempts.get(attempt)
        if known is not None and name == "stop" and (known.part or 0) == rank:
            known.stop = bool(text)
            self._send_stop(attempt, known)

    def _send_stop(self, id: AttemptId, attempt: SimulatedAttempt) -> None:
        if self.is_connected and attempt.stop:
            self.machine.ask_to_stop(id)
        elif self.is_connected:
            self.machine.let_go_on(id)

    def upload_progress(self, attempt: AttemptId) -> Upload | None:
        """Nothing is uploaded."""
        return None

    def follow_log(self, job: int) -> None:
        """Simulated processes write nothing."""

    # -- reports ------------------------------------------------------------------------

    def _arrives(self, report: Report) -> None:
        random, faults = self.world.random, self.faults
        if random.random() < faults.lost:
            return
        times = 2 if random.random() < faults.repeated else 1
        for _ in range(times):
            if random.random() < faults.late:
                wait = random.uniform(0.0, faults.delay)
                self.world.after(wait, lambda: self._on_report(report))
            else:
                self._on_report(report)

    def _on_report(self, report: Report) -> None:
        if not self.is_connected:
            return  # its daemon has died, or the link is broken
        id = AttemptId(*report.key)
        self._read_report(id)
        if report.what == "line":
            return
        if report.what == "ready":
            if id in self.attempts:
                self.sink.ready(id, report.part or 0, report.pid)
            return
        if report.what == "exited":
            self._report_final(id)
        event = self._event(report)
        self.sink.event(event)
        attempt = self.attempts.get(id)
        if not isinstance(event, ProcessStarted | AttemptQueued):
            self._forget(id)
        elif attempt is not None and attempt.grace is not None:
            self._terminate(id, attempt)  # cancelled between the order and the start

    def _event(self, report: Report) -> Event:
        (job, attempt), when = report.key, self.world.moment_of(report.time)
        about: dict[str, Any] = {"at": when.wall, "job": job, "attempt": attempt}
        match report.what:
            case "queued":
                return AttemptQueued(**about, external_id=str(report.external_id))
            case "refused":
                return StartCancelled(**about, why=report.why, delay=report.delay)
            case "lost":
                return AttemptLost(**about, why=report.why)
            case "late":
                return AttemptLost(**about, why="another daemon claimed the attempt")
            case "failed":
                return StartFailed(**about, why=report.why)
            case "started" if report.external_id is not None:
                return ProcessStarted(
                    **about, boot=when.boot, external_id=report.external_id, hosts=("n1",)
                )
            case "started":
                return ProcessStarted(**about, pid=report.pid, boot=when.boot)
        return ProcessExited(
            **about, code=report.code, signal=report.signal, memory=report.memory,
            stopped=report.stopped,
        )  # fmt: skip

    def _read_report(self, id: AttemptId) -> None:
        """Report what a training job has written since it was last read."""
        lines = self.machine.reports.reports.get(id, ())
        for line in lines[self._read.get(id, 0) :]:
            if line.what == "figure":
                self._report_figure(id, line)
            else:
                self.sink.event(_training_event(id, line, self.world.moment_of(line.time).wall))
        self._read[id] = len(lines)

    def _report_figure(self, id: AttemptId, line: Line) -> None:
        """Report what a trial measured, where it is compared with others."""
        trains = self.machine.behaviour(*id).trains
        if trains is not None and line.value in trains.rungs:
            self._report_measured(id, line, trains.rungs.index(line.value))

    def _report_final(self, id: AttemptId) -> None:
        """Report what a trial has come to, before the end of its attempt."""
        lines = [line for line in self.machine.reports.reports.get(id, ()) if line.what == "figure"]
        if lines:
            self._report_measured(id, lines[-1])

    def _report_measured(self, id: AttemptId, line: Line, rung: int | None = None) -> None:
        self.sink.event(
            TrialMeasured(
                at=self.world.moment_of(line.time).wall, job=id.job, attempt=id.attempt,
                value=line.figure, step=float(line.value), rung=rung, final=rung is None,
            )
        )  # fmt: skip

    def _report(self, kind: type[Any], id: AttemptId, **fields: Any) -> None:
        at = self.world.moment().wall
        self.sink.event(kind(at=at, job=id.job, attempt=id.attempt, **fields))
        self._forget(id)

    def _forget(self, id: AttemptId) -> None:
        self.attempts.pop(id, None)

    # -- recovery -----------------------------------------------------------------------

    def recover(self, attempts: Sequence[RecoverableAttempt]) -> None:
        """Look after attempts of an earlier daemon, and find out what became of them."""
        for each in attempts:
            attempt = self._expect(each.id, each.rank)
            _restore_requests(attempt, each.job, self.grace)
            if not self.machine.afar:
                self._recover(each.id, each.node_restarted)
        if self.machine.afar:
            self.refresh()

    def _recover(self, id: AttemptId, node_restarted: bool) -> None:
        machine = self.machine
        if node_restarted:
            self._read_report(id)
            if id in machine.records:
                self._report_final(id)
                self.sink.event(self._event(machine.records[id]))
                self._forget(id)
            else:
                self._report(AttemptLost, id, why="the node restarted")
        elif machine.take_claim(id):
            self._report(StartCancelled, id, why="the daemon stopped before the job was started")
        else:
            self._take_over(id, machine.claims[id])

    def _take_over(self, id: AttemptId, claim: Claim) -> None:
        if claim.taken:  # by an executor that ended before it could report that
            self._report(StartCancelled, id, why="the job was never started")
            return
        self._report_claim(id, claim)
        attempt = self.attempts.get(id)
        waits = id in self.machine.queue
        if attempt is not None and claim.boot != self.machine.boots and not waits:
            self._report(AttemptLost, id, why="the node restarted")
        elif attempt is not None:
            self._repeat(id, attempt)

    def _repeat(self, id: AttemptId, attempt: SimulatedAttempt) -> None:
        """Send again what may not have arrived."""
        if attempt.grace is not None:
            self._terminate(id, attempt)
        elif attempt.suspended is not None:
            self.machine.signal(id, signals.SIGSTOP if attempt.suspended else signals.SIGCONT)
        if attempt.stop:
            self._send_stop(id, attempt)

    def _report_claim(self, id: AttemptId, claim: Claim) -> None:
        """Report what a claim says, as if the machine had just reported it."""
        if claim.waits and claim.boot == self.machine.boots:
            self.sink.ready(id, claim.part or 0, claim.pid or 0)
        if claim.queued is not None:
            self.sink.event(self._event(claim.queued))
        if claim.started is not None:
            self.sink.event(self._event(claim.start_report(id)))
            self._read_report(id)
        ended = claim.refused or claim.end or claim.failed_report(id, self.world.time)
        if ended is not None:
            if ended.what == "exited":
                self._report_final(id)
            self.sink.event(self._event(ended))
            self._forget(id)

    # -- time and acknowledgements ------------------------------------------------------

    def _check(self) -> float | None:
        """Kill what outlived its grace, and read the claims of attempts without a report."""
        if not self.is_connected:
            return None
        boot = self.world.moment().boot
        for id, attempt in list(self.attempts.items()):
            if attempt.kill_at is not None and boot >= attempt.kill_at:
                self.machine.signal(id, signals.SIGKILL)
            if boot >= attempt.look_at and id in self.attempts:
                attempt.look_at = boot + RECHECK_SECONDS
                claim = self.machine.claims.get(id)
                if claim is not None:
                    self._report_claim(id, claim)
        left = list(self.attempts.values())
        kills = (each.kill_at for each in left if each.kill_at is not None)
        moments = [*(each.look_at for each in left), *(at for at in kills if at > boot)]
        if self.records is not None:
            pause = BUSY_SECONDS if self.records.has_work() else IDLE_SECONDS
            if boot >= self._measured_at + pause:
                self._measure()
            moments.append(self._measured_at + pause)
        return max(min(moments) - boot, 0.0) if moments else None

    def acknowledge(self, attempts: Sequence[AttemptId]) -> None:
        """Delete what proves ends that are on disk, now or when the node answers."""
        self._unacknowledged.update(attempts)
        if self.is_connected:
            self._flush_acknowledged()

    def _flush_acknowledged(self) -> None:
        for id in self._unacknowledged:
            self.machine.records.pop(id, None)
            claim = self.machine.claims.get(id)
            # A claim of our own stays: an order to start the attempt may still be under way.
            if claim is not None and not claim.taken:
                del self.machine.claims[id]
        self._unacknowledged.clear()


def _restore_requests(attempt: SimulatedAttempt, job: Job, grace: float) -> None:
    """Note what an earlier daemon had decided about an attempt."""
    if job.state is JobState.COMPLETING:
        attempt.grace = grace
    elif job.state is JobState.SUSPENDED:
        attempt.suspended = True
    elif job.slack:
        attempt.suspended = False
    progress = job.progress
    attempt.stop = progress is not None and progress.accepts_stop and progress.stop is not None


def _training_event(id: AttemptId, line: Line, at: float) -> Event:
    job, attempt = id
    if line.what == "hello":
        return TrainingBegan(at=at, job=job, attempt=attempt)
    if line.what == "memory":
        return MemoryMeasured(at=at, job=job, attempt=attempt, memory=line.value)
    return EpochsCounted(
        at=at, job=job, attempt=attempt, done=line.value, seconds=line.seconds, warmup=line.warmup
    )


def attempts_on(node: str, jobs: Iterable[Job]) -> set[tuple[int, int]]:
    """The attempts with a part on a node that is not over."""
    found = set()
    for job in jobs:
        parts = job.placement.parts if job.placement is not None else ()
        over = {end.part for end in job.ends}
        if any(part.node == node and rank not in over for rank, part in enumerate(parts)):
            found.add((job.id, job.attempt))
    return found
