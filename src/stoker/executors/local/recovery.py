"""Taking over attempts that an earlier daemon started: what became of them, and who watches."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING

from stoker.core.events import AttemptLost, ProcessStarted, StartCalledOff, StartFailed
from stoker.core.instructions import EndAttempt
from stoker.core.job import Job
from stoker.core.lifecycle import JobState
from stoker.executors.linux import process_tree as tree
from stoker.executors.linux.procfs import process_state
from stoker.executors.local.attempt import Key, LocalAttempt
from stoker.executors.local.claims import (
    Claim,
    claim_path,
    read_claim,
    take_claim,
    take_empty_claim,
)
from stoker.executors.local.supervisor import BOOT

if TYPE_CHECKING:
    from stoker.executors.local.executor import LocalExecutor

KEPT = ".kept"
"""Shows that the run directory is the one that attempts were started with."""
PATIENCE = 5.0
"""How long a living keeper may take to write an end down."""

START_NEVER = "the daemon stopped before the job was started"
NO_RECORD = "the process ended without an exit record"
REBOOTED = "the node restarted"


class AttemptRecovery:
    """The part of the local executor that looks after other people's children."""

    def __init__(self, executor: LocalExecutor) -> None:
        self.executor = executor
        self.logs: Callable[[Job], tuple[str | None, str | None]] = lambda _: (None, None)
        """Where a job's output goes."""

    def take_over(self, jobs: list[Job], same_boot: bool) -> None:
        """Find out what became of every attempt that the journal says is under way.

        Everywhere here: first whether a process lives, then what it wrote. A supervisor writes
        an end down before it leaves, so a record that is missing after it has left never comes.
        """
        executor = self.executor
        kept = same_boot and os.path.exists(f"{executor.places.run}/{KEPT}")
        # A missing run directory is never a missing claim: look for living processes first.
        seen = executor.snapshot() if same_boot and not kept else None
        for job in jobs:
            key = (job.id, job.attempt)
            path = claim_path(executor.places.run, *key)
            claim = read_claim(path) if same_boot else Claim()
            if claim is None and self._recorded(key) is None:
                claim = _found_by(executor.token(*key), seen) if seen is not None else None
                if claim is None and take_claim(path) and kept and job.started_at is None:
                    claim = Claim(taken=True)
            # Without a complete run directory, "taken" says that an earlier daemon knew no more
            # than we do, and ended before its verdict was on record.
            never = claim is not None and claim.taken and kept and job.started_at is None
            if never or (claim is not None and claim.withdrawn):
                self._call_off(key)
            else:
                self._judge(job, claim or read_claim(path) or Claim(), same_boot)
        self.look(executor.unrecorded(), time.clock_gettime(BOOT))

    def _judge(self, job: Job, claim: Claim, same_boot: bool) -> None:
        executor, key = self.executor, (job.id, job.attempt)
        attempt = executor.adopted(key, claim)
        attempt.out, attempt.err = self.logs(job)
        attempt.began = job.started_at is not None
        if claim.pid is not None and claim.started is not None:
            boot, wall = claim.started
            executor.facts.append(
                ProcessStarted(at=wall, job=key[0], attempt=key[1], pid=claim.pid, boot=boot)
            )
        if not same_boot:
            self._end_or_lose(attempt, REBOOTED)
        elif claim.alive and claim.pid is not None:
            self.watch(attempt)
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

    def expect_record(self, attempt: LocalAttempt) -> None:
        """Its process is gone or not yet seen: somebody should write down what happened."""
        attempt.record_by = time.clock_gettime(BOOT) + PATIENCE
        self.executor.busy.add(attempt.key)

    def watch(self, attempt: LocalAttempt) -> None:
        """Be told when a process that is not our child ends."""
        assert attempt.pid is not None
        try:
            attempt.pidfd = os.pidfd_open(attempt.pid)
        except ProcessLookupError:
            self.expect_record(attempt)
            return
        if not process_state(attempt.pid, attempt.ticks):  # it ended, and its pid is another's now
            os.close(attempt.pidfd)
            attempt.pidfd = -1
            self.expect_record(attempt)
            return
        self.executor.poller.add_reader(attempt.pidfd, lambda: self._signalled(attempt))

    def _signalled(self, attempt: LocalAttempt) -> None:
        """The pidfd says when; the record says what, a moment later."""
        self.executor.poller.remove_reader(attempt.pidfd)
        os.close(attempt.pidfd)
        attempt.pidfd = -1
        self.expect_record(attempt)
        self.look([attempt], time.clock_gettime(BOOT))

    def look(self, attempts: Iterable[LocalAttempt], boot: float) -> None:
        """Look for the records of ends; where none can come any more, for the processes."""
        gone = [(attempt, claim) for attempt in attempts if (claim := self._read(attempt, boot))]
        if gone:
            seen = self.executor.snapshot()  # one for all: it may be thousands of them
            for attempt, claim in gone:
                self._last_look(attempt, claim, seen)

    def _read(self, attempt: LocalAttempt, boot: float) -> Claim | None:
        """Read what became of an attempt; return its claim if that says nothing and never will."""
        path = claim_path(self.executor.places.run, *attempt.key)
        awaited = self._is_awaited(attempt, read_claim(path) or Claim(), boot)
        # What was read before the question may be out of date by now.
        claim = read_claim(path) or Claim(taken=True)
        if attempt.pid is None and claim.pid is not None and claim.started is not None:
            self.executor.started(attempt, claim.pid, claim.ticks, *claim.started)
            if claim.alive:
                self._calm(attempt)
                self.watch(attempt)
                return None
        ended = self._end_of(attempt, claim)
        if ended is not None:
            self._calm(attempt)
            self._ended(attempt, *ended)
        elif claim.failed is not None:
            self._fail(attempt, claim.failed)
        elif claim.withdrawn:
            self._call_off(attempt.key)
            self.executor.gone(attempt)
        elif not awaited:
            self._calm(attempt)
            return claim
        return None

    def _is_awaited(self, attempt: LocalAttempt, claim: Claim, boot: float) -> bool:
        """Whether a supervisor lives that may still write down what became of an attempt."""
        in_time = boot <= (attempt.record_by or 0.0)
        if claim.keeper is None:
            return in_time and self._older_keeper()
        # A process that its supervisor has reaped is on record by now, or never will be.
        return claim.keeper_alive and (in_time or claim.pid is None or claim.unreaped)

    def _older_keeper(self) -> bool:
        """Whether a supervisor of an earlier daemon lives."""
        executor = self.executor
        return not executor.exits.keepers() <= {link.pid for link in executor.keepers}

    def _recorded(self, key: Key) -> tuple[int, float] | None:
        return self.executor.exits.find("{}.{}".format(*key))

    def _end_of(self, attempt: LocalAttempt, claim: Claim) -> tuple[int, float] | None:
        """The wait status of an attempt's process and when it ended, if that is known."""
        if claim.status is not None:
            return claim.status, claim.ended_at or time.time()
        return self._recorded(attempt.key) or _waited(attempt.pid)

    def _calm(self, attempt: LocalAttempt) -> None:
        attempt.record_by = None
        if attempt.ending_since is None:
            self.executor.busy.discard(attempt.key)

    def _ended(self, attempt: LocalAttempt, status: int, at: float) -> None:
        attempt.status, attempt.ended_at = status, at
        self.executor.process_gone(attempt)

    def _end_or_lose(self, attempt: LocalAttempt, why: str) -> None:
        """Nothing of it can run any more: there is a record, or there is none."""
        ended = self._recorded(attempt.key)
        if ended is None:
            self._lose(attempt, why)
        else:
            attempt.status, attempt.ended_at = ended
            self.executor.finish(attempt)

    def _last_look(self, attempt: LocalAttempt, claim: Claim, seen: tree.Snapshot) -> None:
        """Claimed, no record, nobody left to write one; perhaps not even a line in its claim."""
        executor = self.executor
        first = seen.leader(attempt.token) if attempt.pid is None else None
        if first is not None:
            executor.started(attempt, *first, *_moment(first[1]))
            self.watch(attempt)
        elif seen.members(attempt.token, attempt.pid, attempt.ticks) or not seen.complete:
            attempt.lost = True
            executor.process_gone(attempt)
        elif attempt.pid is None and attempt.keeper is not None and tree.can_mark():
            # Had our own keeper started it, it would run, be on record, or be our zombie.
            executor.call_off(attempt)
        elif not claim.empty or attempt.began:
            self._lose(attempt, NO_RECORD)
        elif take_empty_claim(claim_path(executor.places.run, *attempt.key)):
            self._call_off(attempt.key)
            executor.gone(attempt)
        else:
            self.expect_record(attempt)

    def _fail(self, attempt: LocalAttempt, why: str) -> None:
        """Its supervisor could not start it."""
        job, number = attempt.key
        self.executor.gone(attempt)
        self.executor.facts.append(StartFailed(at=time.time(), job=job, attempt=number, why=why))

    def _call_off(self, key: Key) -> None:
        """It was never started. Its claim stays: a keeper that has the order may still be slow."""
        self.executor.facts.append(
            StartCalledOff(at=time.time(), job=key[0], attempt=key[1], why=START_NEVER)
        )

    def _lose(self, attempt: LocalAttempt, why: str) -> None:
        job, number = attempt.key
        executor = self.executor
        executor.gone(attempt)
        path = claim_path(executor.places.run, job, number)
        if not self._older_keeper() and (attempt.began or not _blocks_start(path)):
            executor.settled.append(path)
        executor.facts.append(AttemptLost(at=time.time(), job=job, attempt=number, why=why))

    def claimed(self) -> list[Key]:
        """The attempts with a claim, and those that run without one."""
        executor = self.executor
        keys = self._claims()
        if not os.path.exists(f"{executor.places.run}/{KEPT}"):
            prefix = f"{executor.install}."
            tokens = executor.snapshot().tokens(prefix)
            keys += [key for token in tokens if (key := _key(token.removeprefix(prefix)))]
        return keys

    def _claims(self) -> list[Key]:
        """The attempts with a claim in the run directory."""
        return [key for name in os.listdir(self.executor.places.run) if (key := _key(name))]

    def ended(self) -> set[Key]:
        """The attempts of whose ends there is a record."""
        return {key for name in self.executor.exits.read() if (key := _key(name))}

    def over(self, keys: Iterable[Key]) -> set[Key]:
        """Return those of these attempts whose end is on record and that have no process left."""
        executor, ended = self.executor, self.ended().intersection(keys)
        seen = executor.snapshot()
        return {key for key in ended if seen.complete and not self._left(key, seen)}

    def _left(self, key: Key, seen: tree.Snapshot) -> list[int]:
        claim = read_claim(claim_path(self.executor.places.run, *key)) or Claim()
        return seen.members(self.executor.token(*key), claim.pid, claim.ticks)

    def claim(self, key: Key) -> Claim:
        """What is known of an attempt, by its claim or else by its processes."""
        claim = read_claim(claim_path(self.executor.places.run, *key))
        if claim is not None and not claim.empty:
            return claim
        return _found_by(self.executor.token(*key), self.executor.snapshot()) or Claim()

    def decide(self) -> None:
        """Decide about attempts that wait for a record, without patience: others have devices."""
        self.look(self.executor.unrecorded(), inf)

    def sweep(self, next_id: int) -> None:
        """Remove the claims of attempts that are over.

        Not while an older keeper lives: it may still hold an order, and the claim stops it.
        """
        executor = self.executor
        if self._older_keeper():
            return
        for key in self._claims():
            path = claim_path(executor.places.run, *key)
            if key[0] < next_id and key not in executor.attempts and not _blocks_start(path):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _blocks_start(path: str) -> bool:
    """Return True if a supervisor may exist that would start the attempt without this claim.

    A supervisor that was stopped at its very beginning has an order, but no file that shows that
    it exists. No such process outlives a restart of the machine.
    """
    claim = read_claim(path)
    if claim is None or not claim.taken:
        return False
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_mtime >= time.time() - time.clock_gettime(BOOT)
    return False


def _key(name: str) -> Key | None:
    """The attempt that `job.attempt` means."""
    job, _, number = name.partition(".")
    return (int(job), int(number)) if job.isdigit() and number.isdigit() else None


def _found_by(token: str, seen: tree.Snapshot) -> Claim | None:
    """What a claim would say about a running attempt."""
    first = seen.leader(token)
    return Claim(pid=first[0], ticks=first[1], started=_moment(first[1])) if first else None


def _moment(ticks: int) -> tuple[float, float]:
    """Boot and wall time of the start of a process."""
    boot = ticks / os.sysconf("SC_CLK_TCK")
    return boot, time.time() - (time.clock_gettime(BOOT) - boot)


def _waited(pid: int | None) -> tuple[int, float] | None:
    """If the keeper was killed, its children fell to us, and we can ask the kernel."""
    if pid is not None:
        with contextlib.suppress(ChildProcessError):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return status, time.time()
    return None
