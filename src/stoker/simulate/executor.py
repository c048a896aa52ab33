"""An executor over modelled processes, with reports that come late, twice or not at all."""

from __future__ import annotations

import signal as signals
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from stoker.core.events import (
    AttemptLost,
    Event,
    ForeignUseChanged,
    ProcessExited,
    ProcessStarted,
    StartCalledOff,
    StartFailed,
)
from stoker.core.instructions import EndAttempt, SignalAttempt, StartProcess
from stoker.core.job import Job
from stoker.core.launch import Launch
from stoker.core.lifecycle import JobState
from stoker.simulate.processes import Claim, Key, Machine, Report
from stoker.simulate.world import World

RECHECK = 5.0
"""Seconds between looks at the claims of attempts that have not been heard of."""


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
        self, world: World, machine: Machine, faults: Faults | None = None, grace: float = 10.0
    ) -> None:
        self.world, self.machine, self.grace = world, machine, grace
        self.faults = faults or Faults()
        self.facts: list[Event] = []
        self.attempts: dict[Key, float] = {}
        """Attempts looked after, and when each is looked at next (boot clock)."""
        self.kill_at: dict[Key, float] = {}
        self.settled: list[Key] = []
        machine.hear = self._arrives

    # -- wishes -------------------------------------------------------------------------

    def start(self, wish: StartProcess, launch: Launch) -> None:
        """Hand an attempt to the keeper, at most once ever."""
        assert (launch.job, launch.attempt) == (wish.job, wish.attempt)
        key = (wish.job, wish.attempt)
        taken = self.machine.behaviour(*key).taken
        if taken is not None:
            self._call_off(wish, taken)
            return
        self.attempts[key] = self.world.moment().boot + RECHECK
        wait = self.world.random.uniform(0.0, self.faults.start_delay)
        self.world.after(wait, lambda: self.machine.start(key, self._arrives))

    def _call_off(self, wish: StartProcess, why: str) -> None:
        at, node = self.world.moment().at, wish.placement.node
        self.facts.append(StartCalledOff(at=at, job=wish.job, attempt=wish.attempt, why=why))
        for device in wish.placement.names("gpu"):
            busy = ForeignUseChanged(at=at, node=node, device=device, stranger=why)
            self.facts.append(busy)
            self.world.after(60.0, self._stranger_leaves(node, device))

    def _stranger_leaves(self, node: str, device: str) -> Callable[[], None]:
        def leave() -> None:
            at = self.world.moment().at
            self.facts.append(ForeignUseChanged(at=at, node=node, device=device, stranger=None))

        return leave

    def end(self, wish: EndAttempt) -> None:
        """TERM now and KILL after the grace, or KILL at once."""
        key, now = (wish.job, wish.attempt), self.world.moment().boot
        if key not in self.attempts:
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
        self.machine.signal((wish.job, wish.attempt), wish.signal)

    def suspend(self, job: int, attempt: int) -> None:
        """Stop it in place."""
        self.machine.signal((job, attempt), signals.SIGSTOP)

    def resume(self, job: int, attempt: int) -> None:
        """Let it go on."""
        self.machine.signal((job, attempt), signals.SIGCONT)

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
        if self.machine.hear != self._arrives:
            return  # this driver is dead
        fact = _fact(report)
        self.facts.append(fact)
        if isinstance(fact, ProcessStarted):
            if report.key in self.kill_at:
                self._terminate(report.key)  # cancelled between the order and the start
        else:
            self._gone(report.key)

    def _gone(self, key: Key) -> None:
        if self.attempts.pop(key, None) is not None:
            self.settled.append(key)
        self.kill_at.pop(key, None)

    def tick(self, boot: float) -> float | None:
        """Kill what outstayed its grace; look after those of whom no report came."""
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
        if claim.started is not None and claim.pid is not None:
            report = Report(what="started", key=key, when=claim.started, pid=claim.pid)
            self.facts.append(_fact(report))
        if claim.end is not None:
            self.facts.append(_fact(claim.end))
            self._gone(key)
        elif claim.failed is not None:
            now = self.world.moment()
            self.facts.append(_fact(Report(what="failed", key=key, when=now, why=claim.failed)))
            self._gone(key)

    # -- adoption -----------------------------------------------------------------------

    def adopt(self, jobs: list[Job], same_boot: bool) -> None:
        """Find out what became of attempts that an earlier driver started."""
        for job in jobs:
            key, at = (job.id, job.attempt), self.world.moment().at
            self.attempts[key] = self.world.moment().boot + RECHECK
            if same_boot and self.machine.take_claim(key):
                why = "the daemon ended before it could be started"
                self._fact_of(StartCalledOff, key, at, why)
            elif same_boot:
                self._take_over(job, self.machine.claims[key])
            elif key in self.machine.records:
                self.facts.append(_fact(self.machine.records[key]))
                self._gone(key)
            else:
                self._fact_of(AttemptLost, key, at, "the machine restarted")

    def _take_over(self, job: Job, claim: Claim) -> None:
        key = (job.id, job.attempt)
        if claim.taken:  # by a driver that ended before it could say so
            self._fact_of(StartCalledOff, key, self.world.moment().at, "it was never started")
            return
        self._tell(key, claim)
        if key in self.attempts:
            self._repeat(job)

    def _repeat(self, job: Job) -> None:
        """What was decided before the driver died may not have been done: do it again."""
        if job.ending is not None:
            self.end(EndAttempt(job.id, job.attempt))
        elif job.state is JobState.SUSPENDED:
            self.suspend(job.id, job.attempt)
        elif job.slack:
            self.resume(job.id, job.attempt)

    def _fact_of(self, kind: type[Any], key: Key, at: float, why: str) -> None:
        self.facts.append(kind(at=at, job=key[0], attempt=key[1], why=why))
        self._gone(key)

    def settle(self) -> None:
        """The ends are on disk: what proved them may go."""
        for key in self.settled:
            self.machine.records.pop(key, None)
            claim = self.machine.claims.get(key)
            # One that we took stays: an order to start it may still be under way.
            if claim is not None and not claim.taken:
                del self.machine.claims[key]
        self.settled = []


def _fact(report: Report) -> Event:
    job, attempt = report.key
    at, boot = report.when.at, report.when.boot
    if report.what == "started":
        return ProcessStarted(at=at, job=job, attempt=attempt, pid=report.pid, boot=boot)
    if report.what == "failed":
        return StartFailed(at=at, job=job, attempt=attempt, why=report.why)
    if report.what == "late":
        return AttemptLost(at=at, job=job, attempt=attempt, why="another daemon claimed it")
    return ProcessExited(
        at=at, job=job, attempt=attempt, code=report.code, signal=report.signal,
        memory=report.memory,
    )  # fmt: skip
