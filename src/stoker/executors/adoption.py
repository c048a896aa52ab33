"""Taking over attempts that an earlier daemon started: what became of them, and who watches."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stoker.core.events import AttemptLost, ProcessStarted, StartCalledOff, StartFailed
from stoker.core.instructions import EndAttempt
from stoker.core.job import Job
from stoker.core.lifecycle import JobState
from stoker.executors import tree
from stoker.executors.claims import Claim, claim_path, read_claim, take_claim
from stoker.executors.keeper import BOOT, start_ticks

if TYPE_CHECKING:
    from stoker.executors.local import Attempt, LocalExecutor

KEPT = ".kept"
"""Shows that the run directory is the one that attempts were started with."""
PATIENCE = 5.0
"""How long a living keeper may take to write an end down."""

START_NEVER = "the daemon ended before it could be started"
NO_RECORD = "its process ended without a record"
REBOOTED = "the machine restarted"


class Adoption:
    """The part of the local executor that looks after other people's children."""

    def __init__(self, executor: LocalExecutor) -> None:
        self.executor = executor
        self.logs: Callable[[Job], tuple[str | None, str | None]] = lambda _: (None, None)
        """Where a job's output goes."""

    def take_over(self, jobs: list[Job], same_boot: bool) -> None:
        """Find out what became of every attempt that the journal says is under way."""
        executor = self.executor
        recorded = executor.exits.read()
        kept = same_boot and os.path.exists(f"{executor.places.run}/{KEPT}")
        # A missing run directory is never a missing claim: look for living processes first.
        bearers = {} if kept or not same_boot else tree.bearers(f"{executor.install}.")
        for job in jobs:
            key = (job.id, job.attempt)
            path = claim_path(executor.places.run, *key)
            claim = read_claim(path) if same_boot else Claim()
            ended = recorded.get(f"{job.id}.{job.attempt}")
            if ended is not None:
                claim = claim or Claim()
                claim.status, claim.ended_at = ended
            if claim is None:
                claim = _from_bearers(bearers.get(executor.token(*key), []))
            taken = claim is None and take_claim(path)
            if (claim is not None and claim.taken) or (taken and kept and job.started_at is None):
                # The claim stays where it is: a keeper that has the order may still be slow.
                executor.facts.append(
                    StartCalledOff(at=time.time(), job=key[0], attempt=key[1], why=START_NEVER)
                )
            elif taken:  # it ran, or nobody can say any more that it did not
                self._lose(executor.adopted(key, None), NO_RECORD)
            else:
                self._judge(job, claim or read_claim(path) or Claim(), same_boot)

    def _judge(self, job: Job, claim: Claim, same_boot: bool) -> None:
        executor, key = self.executor, (job.id, job.attempt)
        attempt = executor.adopted(key, claim.pid)
        attempt.out, attempt.err = self.logs(job)
        if claim.pid is not None and claim.started is not None:
            boot, wall = claim.started
            executor.facts.append(
                ProcessStarted(at=wall, job=key[0], attempt=key[1], pid=claim.pid, boot=boot)
            )
        if claim.status is not None:
            self._ended(attempt, claim)
        elif not same_boot:
            self._lose(attempt, REBOOTED)
        elif claim.failed:
            executor.gone(attempt)
            why = claim.failed
            executor.facts.append(StartFailed(at=time.time(), job=key[0], attempt=key[1], why=why))
        elif claim.alive and claim.pid is not None:
            self.watch(attempt, claim.pid)
            self._repeat(job)
        else:
            self.expect_record(attempt)
            self._repeat(job)

    def _repeat(self, job: Job) -> None:
        """What was decided before the daemon ended may not have been done: do it again."""
        if job.state is JobState.COMPLETING:
            self.executor.end(EndAttempt(job.id, job.attempt))
        elif job.state is JobState.SUSPENDED:
            self.executor.suspend(job.id, job.attempt)
        elif job.slack:
            self.executor.resume(job.id, job.attempt)

    def expect_record(self, attempt: Attempt) -> None:
        """Its process is gone or not yet seen: somebody should write down what happened."""
        attempt.record_by = time.clock_gettime(BOOT) + PATIENCE
        self.executor.busy.add(attempt.key)

    def watch(self, attempt: Attempt, pid: int) -> None:
        """Be told when a process that is not our child ends."""
        try:
            attempt.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self.expect_record(attempt)
            return
        self.executor.poller.watch(attempt.pidfd, lambda: self._signalled(attempt))

    def _signalled(self, attempt: Attempt) -> None:
        """The pidfd says when; the record says what, a moment later."""
        self.executor.poller.unwatch(attempt.pidfd)
        os.close(attempt.pidfd)
        attempt.pidfd = -1
        self.expect_record(attempt)
        self.look(attempt, time.clock_gettime(BOOT))

    def look(self, attempt: Attempt, boot: float) -> None:
        """Look for the record of an end; without one, for the processes themselves."""
        executor = self.executor
        claim = read_claim(claim_path(executor.places.run, *attempt.key)) or Claim()
        if attempt.pid is None and claim.pid is not None:
            attempt.pid = claim.pid
            if claim.started is not None:
                self.executor.started(attempt, claim.pid, *claim.started)
            if claim.alive:
                self._calm(attempt)
                self.watch(attempt, claim.pid)
                return
        if claim.status is None:
            ended = executor.exits.read().get("{}.{}".format(*attempt.key)) or _waited(attempt.pid)
            if ended is not None:
                claim.status, claim.ended_at = ended
        if claim.status is not None:
            self._calm(attempt)
            self._ended(attempt, claim)
        elif not claim.keeper_alive(executor.exits) or (attempt.record_by or 0.0) < boot:
            self._calm(attempt)
            self._last_look(attempt)

    def _calm(self, attempt: Attempt) -> None:
        attempt.record_by = None
        if attempt.ending_since is None:
            self.executor.busy.discard(attempt.key)

    def _ended(self, attempt: Attempt, claim: Claim) -> None:
        attempt.status, attempt.ended_at = claim.status, claim.ended_at or time.time()
        if attempt.pid is None:
            self.executor.finish(attempt)
        else:
            self.executor.process_gone(attempt)

    def _last_look(self, attempt: Attempt) -> None:
        """Claimed, no record, nobody left to write one."""
        living = tree.bearers(attempt.token).get(attempt.token, [])
        if living:
            leader = next((pid for pid in living if _session(pid) == pid), living[0])
            if attempt.pid is None:
                attempt.pid = leader
                self.executor.started(attempt, leader, time.clock_gettime(BOOT), time.time())
            self.watch(attempt, leader)
        else:
            self._lose(attempt, NO_RECORD)

    def _lose(self, attempt: Attempt, why: str) -> None:
        job, number = attempt.key
        executor = self.executor
        executor.gone(attempt)
        executor.settled.append(claim_path(executor.places.run, job, number))
        executor.facts.append(AttemptLost(at=time.time(), job=job, attempt=number, why=why))

    def strays(self, known: dict[int, int]) -> dict[int, int]:
        """Attempts in the run directory that the journal does not know, by job.

        `known` is the number of each job's next or current attempt. This happens only when
        the journal lost its tail: the numbers must not be given out again, and what still
        runs under them is ended before the job gets another chance.
        """
        found: dict[int, int] = {}
        for name in os.listdir(self.executor.places.run):
            job, _, number = name.partition(".")
            if not (job.isdigit() and number.isdigit()):
                continue
            id, attempt = int(job), int(number)
            if id in known and attempt >= known[id]:
                found[id] = max(attempt, found.get(id, 0))
                token = self.executor.token(id, attempt)
                tree.signal_all(tree.bearers(token).get(token, []), 9)
        return found

    def sweep(self, next_id: int) -> None:
        """Remove the claims of attempts that are over.

        Not while an older keeper lives: it may still hold an order, and the claim stops it.
        """
        executor = self.executor
        if executor.exits.any_keeper(but={link.pid for link in executor.keepers}):
            return
        for name in os.listdir(executor.places.run):
            job, _, number = name.partition(".")
            if not (job.isdigit() and number.isdigit()) or int(job) >= next_id:
                continue
            if (int(job), int(number)) not in executor.attempts:
                with contextlib.suppress(OSError):
                    os.unlink(f"{executor.places.run}/{name}")


def _from_bearers(pids: list[int]) -> Claim | None:
    leaders = [pid for pid in pids if _session(pid) == pid] or pids
    if not leaders:
        return None
    boot, wall = time.clock_gettime(BOOT), time.time()
    return Claim(pid=leaders[0], ticks=start_ticks(leaders[0]), started=(boot, wall))


def _session(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None


def _waited(pid: int | None) -> tuple[int, float] | None:
    """If the keeper was killed, its children fell to us, and we can ask the kernel."""
    if pid is not None:
        with contextlib.suppress(ChildProcessError):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return status, time.time()
    return None
