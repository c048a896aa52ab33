"""An executor over modelled processes, with reports that come late, twice or not at all."""

from __future__ import annotations

import signal as signals
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from simulation.simulated_machine import Claim, Key, Report, SimulatedMachine
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
    StartCalledOff,
    StartFailed,
    TrainingBegan,
    TrialMeasured,
)
from stoker.core.instructions import EndAttempt, SignalAttempt, StartProcess
from stoker.core.job import Job
from stoker.core.lifecycle import JobState

RECHECK = 5.0
"""Seconds between looks at the claims of attempts that have not been heard of."""

Parts = dict[Key, tuple[Job, int | None]]
"""Attempts with a part on one machine, and which part that is; None: the whole of it."""


def parts_on(node: str, jobs: Iterable[Job]) -> Parts:
    """What is under way on a machine, but for parts that are over."""
    found: Parts = {}
    for job in jobs:
        parts = job.placement.parts if job.placement is not None else ()
        over = {end.part for end in job.ends}
        for number, part in enumerate(parts):
            if part.node == node and number not in over:
                found[job.id, job.attempt] = (job, number if len(parts) > 1 else None)
    return found


class Faults(Struct, frozen=True, kw_only=True):
    """How badly reports travel: the chance of each mishap, and the longest delay."""

    lost: float = 0.0
    repeated: float = 0.0
    late: float = 0.0
    delay: float = 3.0
    start_delay: float = 0.0
    """A start may wait this long in the keeper's inbox, and outlive the driver there."""


class ModelledExecutor:
    """Runs attempts on a modelled machine; as the local executor does, claim by claim."""

    def __init__(
        self,
        world: VirtualClock,
        machine: SimulatedMachine,
        facts: list[Event],
        faults: Faults | None = None,
        grace: float = 10.0,
    ) -> None:
        self.world, self.machine, self.facts, self.grace = world, machine, facts, grace
        self.faults = faults or Faults()
        self.attempts: dict[Key, float] = {}
        """Attempts looked after, and when each is looked at next (boot clock)."""
        self.parts: dict[Key, int | None] = {}
        self.kill_at: dict[Key, float] = {}
        self.settled: list[Key] = []
        self.read: dict[Key, int] = {}
        """Lines that were read of each report. Another driver reads them all again."""

    def listen(self) -> None:
        """Have the machine report to this driver from now on."""
        self.machine.hear = self._arrives

    @property
    def listens(self) -> bool:
        """Whether the machine reports to this driver, and hears from it."""
        return self.machine.hear == self._arrives

    # -- wishes -------------------------------------------------------------------------

    def start(self, wish: StartProcess) -> None:
        """Hand an attempt to the keeper, at most once ever."""
        key, boots = (wish.job, wish.attempt), self.machine.boots
        taken = self.machine.behaviour(*key).taken
        if taken is not None:
            self.call_off(wish, taken)
            return

        def arrive() -> None:
            if not self.machine.cut and self.machine.boots == boots:
                self.machine.start(key, self._arrives)

        self.expect(key)
        wait = self.world.random.uniform(0.0, self.faults.start_delay)
        self.world.after(wait, arrive, self.machine.afar)

    def start_part(self, key: Key, part: int) -> None:
        """Start one of several parts, now that all machines are ready."""
        self.machine.start(key, self._arrives, part)

    def expect(self, key: Key, part: int | None = None) -> None:
        """Look after an attempt, or a part of one, from now on."""
        self.attempts[key] = self.world.moment().boot + RECHECK
        self.parts[key] = part

    def look_only_after(self, known: Parts) -> None:
        """Forget attempts that were called off on behalf of another machine."""
        for key in [key for key in self.attempts if key not in known]:
            del self.attempts[key], self.parts[key]
            self.kill_at.pop(key, None)

    def call_off(self, wish: StartProcess, why: str) -> None:
        """Somebody else was first at its devices."""
        at, node = self.world.moment().wall, wish.placement.node
        self.facts.append(StartCalledOff(at=at, job=wish.job, attempt=wish.attempt, why=why))
        for device in wish.placement.names("gpu"):
            busy = ForeignUseChanged(at=at, node=node, device=device, stranger=why)
            self.facts.append(busy)
            self.world.after(60.0, self._stranger_leaves(node, device))

    def _stranger_leaves(self, node: str, device: str) -> Callable[[], None]:
        def leave() -> None:
            at = self.world.moment().wall
            self.facts.append(ForeignUseChanged(at=at, node=node, device=device, stranger=None))

        return leave

    def end(self, wish: EndAttempt) -> None:
        """TERM now and KILL after the grace, or KILL at once."""
        key, now = (wish.job, wish.attempt), self.world.moment().boot
        if key not in self.attempts or not self.listens:
            return
        if wish.at_once:
            self.kill_at[key] = now
        else:
            self.kill_at[key] = min(self.kill_at.get(key, now + self.grace), now + self.grace)
            self._terminate(key)
        self.tick(now)

    def _terminate(self, key: Key) -> None:
        self.machine.signal(key, signals.SIGCONT)  # a stopped process hears nothing
        self.machine.signal(key, signals.SIGTERM)

    def signal(self, wish: SignalAttempt) -> None:
        """Send a signal."""
        self._send((wish.job, wish.attempt), wish.signal)

    def suspend(self, job: int, attempt: int) -> None:
        """Stop it in place."""
        self._send((job, attempt), signals.SIGSTOP)

    def resume(self, job: int, attempt: int) -> None:
        """Let it go on."""
        self._send((job, attempt), signals.SIGCONT)

    def ask_to_stop(self, job: int, attempt: int) -> None:
        """Leave word for a training job."""
        if self.listens and (job, attempt) in self.attempts:
            self.machine.ask_to_stop((job, attempt))

    def let_go_on(self, job: int, attempt: int) -> None:
        """Take that word back."""
        if self.listens and (job, attempt) in self.attempts:
            self.machine.let_go_on((job, attempt))

    def _send(self, key: Key, number: int) -> None:
        if self.listens:
            self.machine.signal(key, number)

    # -- reports ------------------------------------------------------------------------

    def _arrives(self, report: Report) -> None:
        dice, faults = self.world.random, self.faults
        if dice.random() < faults.lost:
            return
        times = 2 if dice.random() < faults.repeated else 1
        for _ in range(times):
            if dice.random() < faults.late:
                wait = dice.uniform(0.0, faults.delay)
                self.world.after(wait, lambda: self._heard(report))
            else:
                self._heard(report)

    def _heard(self, report: Report) -> None:
        if not self.listens:
            return  # this driver is dead, or the link is cut
        self._read_on(report.key)
        if report.what == "line":
            return
        if report.what == "exited":
            self.facts += self._final(report.key)
        fact = self._fact(report)
        self.facts.append(fact)
        if isinstance(fact, ProcessStarted | AttemptQueued):
            if report.key in self.kill_at:
                self._terminate(report.key)  # cancelled between the order and the start
        else:
            self._gone(report.key)

    def _fact(self, report: Report) -> Event:
        (job, attempt), part = report.key, report.part
        when = self.world.moment_of(report.time)
        at, boot = when.wall, when.boot
        id = report.external_id
        if report.what == "queued":
            return AttemptQueued(at=at, job=job, attempt=attempt, external_id=str(id))
        if report.what == "started" and id is not None:
            return ProcessStarted(
                at=at, job=job, attempt=attempt, boot=boot, external_id=id, hosts=("n1",)
            )
        if report.what == "started":
            return ProcessStarted(
                at=at, job=job, attempt=attempt, pid=report.pid, boot=boot, part=part
            )
        if report.what == "refused":
            return StartCalledOff(
                at=at, job=job, attempt=attempt, why=report.why, delay=report.delay
            )
        if report.what == "lost":
            return AttemptLost(at=at, job=job, attempt=attempt, why=report.why)
        if report.what == "failed":
            return StartFailed(at=at, job=job, attempt=attempt, why=report.why, part=part)
        if report.what == "late":
            why = "another daemon claimed the attempt"
            return AttemptLost(at=at, job=job, attempt=attempt, why=why, part=part)
        return ProcessExited(
            at=at, job=job, attempt=attempt, code=report.code, signal=report.signal,
            memory=report.memory, part=part, stopped=report.stopped,
        )  # fmt: skip

    def _read_on(self, key: Key) -> None:
        """What a training job has said since it was last read; before its end in any case."""
        lines = self.machine.desk.reports.get(key, ())
        for line in lines[self.read.get(key, 0) :]:
            self.facts += (
                self._figure(key, line) if line.what == "figure" else [self._said(key, line)]
            )
        self.read[key] = len(lines)

    def _said(self, key: Key, line: Line) -> Event:
        at, (job, attempt) = self.world.moment_of(line.time).wall, key
        if line.what == "hello":
            return TrainingBegan(at=at, job=job, attempt=attempt)
        if line.what == "memory":
            return MemoryMeasured(at=at, job=job, attempt=attempt, memory=line.value)
        return EpochsCounted(
            at=at, job=job, attempt=attempt, done=line.value, seconds=line.seconds,
            warmup=line.warmup,
        )  # fmt: skip

    def _figure(self, key: Key, line: Line) -> list[Event]:
        """What a trial reports is a fact only where it is compared with others."""
        trains = self.machine.behaviour(*key).trains
        if trains is None or line.value not in trains.rungs:
            return []
        return [self._measured(key, line, trains.rungs.index(line.value))]

    def _final(self, key: Key) -> list[Event]:
        """What a trial has come to, when its attempt is over."""
        lines = [line for line in self.machine.desk.reports.get(key, ()) if line.what == "figure"]
        return [self._measured(key, lines[-1])] if lines else []

    def _measured(self, key: Key, line: Line, rung: int | None = None) -> Event:
        return TrialMeasured(
            at=self.world.moment_of(line.time).wall, job=key[0], attempt=key[1], value=line.figure,
            step=float(line.value), rung=rung, final=rung is None,
        )  # fmt: skip

    def _gone(self, key: Key) -> None:
        if self.attempts.pop(key, None) is not None:
            self.settled.append(key)
        self.kill_at.pop(key, None)
        self.parts.pop(key, None)

    def tick(self, boot: float) -> float | None:
        """Kill what outstayed its grace; look after those of whom no report came."""
        if not self.listens:
            return None
        for key, moment in list(self.kill_at.items()):
            if boot >= moment:
                self.machine.signal(key, signals.SIGKILL)
        for key, moment in list(self.attempts.items()):
            if boot >= moment:
                self.attempts[key] = boot + RECHECK
                self._recheck(key)
        later = [*self.attempts.values(), *(at for at in self.kill_at.values() if at > boot)]
        return max(min(later) - boot, 0.0) if later else None

    def _recheck(self, key: Key) -> None:
        claim = self.machine.claims.get(key)
        if claim is not None:
            self._tell(key, claim)

    def _tell(self, key: Key, claim: Claim) -> None:
        """Report what a claim says, as if its keeper had just said it."""
        part = claim.part
        if claim.queued is not None:
            self.facts.append(self._fact(claim.queued))
        if claim.started is not None:
            self.facts.append(self._fact(claim.start_report(key)))
            self._read_on(key)
        if claim.refused is not None:
            self.facts.append(self._fact(claim.refused))
            self._gone(key)
        elif claim.end is not None:
            self.facts += [*self._final(key), self._fact(claim.end)]
            self._gone(key)
        elif claim.failed is not None:
            now, why = self.world.time, claim.failed
            failed = Report(what="failed", key=key, time=now, part=part, why=why)
            self.facts.append(self._fact(failed))
            self._gone(key)

    # -- adoption -----------------------------------------------------------------------

    def adopt(self, known: Parts, same_boot: bool = True) -> None:
        """Find out what became of attempts that were started before this driver listened."""
        self.attempts, self.parts, self.kill_at = {}, {}, {}
        for key, (job, part) in known.items():
            self.expect(key, part)
            if same_boot and self.machine.take_claim(key):
                self._never_started(key, "the daemon stopped before the job was started")
            elif same_boot:
                self._take_over(job, key, self.machine.claims[key])
            elif key in self.machine.records:
                self._read_on(key)
                self.facts += [*self._final(key), self._fact(self.machine.records[key])]
                self._gone(key)
            else:
                self._read_on(key)
                self._lost(key, "the node restarted")

    def _take_over(self, job: Job, key: Key, claim: Claim) -> None:
        if claim.taken:  # by a driver that ended before it could say so
            self._never_started(key, "the job was never started")
            return
        self._tell(key, claim)
        waits = key in self.machine.queue
        if key in self.attempts and claim.boot != self.machine.boots and not waits:
            self._lost(key, "the node restarted")
        elif key in self.attempts:
            self._repeat(job)

    def _repeat(self, job: Job) -> None:
        """What was decided before the driver died may not have been done: do it again."""
        if job.state is JobState.COMPLETING:
            self.end(EndAttempt(job.id, job.attempt))
        elif job.state is JobState.SUSPENDED:
            self.suspend(job.id, job.attempt)
        elif job.slack:
            self.resume(job.id, job.attempt)
        if job.progress is not None and job.progress.listening and job.progress.stop is not None:
            self.ask_to_stop(job.id, job.attempt)

    def _never_started(self, key: Key, why: str) -> None:
        """Then none of its parts was, since all of them start together."""
        self._say(StartCalledOff, key, why=why)

    def _lost(self, key: Key, why: str) -> None:
        self._say(AttemptLost, key, why=why, part=self.parts[key])

    def _say(self, kind: type[Any], key: Key, **more: Any) -> None:
        at = self.world.moment().wall
        self.facts.append(kind(at=at, job=key[0], attempt=key[1], **more))
        self._gone(key)

    def settle(self) -> None:
        """The ends are on disk: what proved them may go."""
        if not self.listens:
            return
        for key in self.settled:
            self.machine.records.pop(key, None)
            claim = self.machine.claims.get(key)
            # One that we took stays: an order to start it may still be under way.
            if claim is not None and not claim.taken:
                del self.machine.claims[key]
        self.settled = []
