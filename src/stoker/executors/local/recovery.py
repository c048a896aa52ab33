"""AttemptRecovery: what became of attempts that an earlier daemon started."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING

from stoker import places
from stoker.core.events import AttemptLost, ProcessStarted
from stoker.core.model.job import Job, JobState
from stoker.executors.linux import process_tree as tree
from stoker.executors.linux.procfs import process_state
from stoker.executors.local.attempt import LocalAttempt
from stoker.executors.local.claims import (
    Claim,
    create_claim,
    read_claim,
    revoke_empty_claim,
)
from stoker.executors.local.supervisor import BOOT
from stoker.executors.port import AttemptId, RecoverableAttempt

if TYPE_CHECKING:
    from stoker.executors.local.executor import LocalExecutor

COMPLETE = ".kept"
"""A file that marks a run directory with the claims of all attempts since this boot."""
RECORD_SECONDS = 5.0
"""Time that a living supervisor has to record an exit."""

START_NEVER = "the daemon stopped before the job was started"
"""The claim of such an attempt stays: a supervisor that has the request may still be slow."""
NO_RECORD = "the process ended without an exit record"
REBOOTED = "the node restarted"


def discard_old_mark(run: str, boot: str) -> None:
    """Delete the mark of an earlier boot: claims made just before a power loss may be gone."""
    path = f"{run}/{COMPLETE}"
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        if file.read() not in ("", boot):  # earlier versions wrote nothing
            os.unlink(path)


def renew_mark(run: str, boot: str) -> None:
    """Make the mark of an earlier boot one of this boot, for a directory that is on a disk.

    Attempts of the earlier boot have ended, whatever is left of their claims; the claims of this
    boot are all there.
    """
    if os.path.exists(f"{run}/{COMPLETE}"):
        mark_complete(run, boot)


def mark_complete(run: str, boot: str) -> None:
    """Note that from now on, the claims in a run directory are all that were made since boot."""
    with contextlib.suppress(OSError):
        places.write_private(f"{run}/{COMPLETE}", boot)


class AttemptRecovery:
    """The part of the local executor that looks after processes which are not its children."""

    def __init__(self, executor: LocalExecutor) -> None:
        self.executor = executor

    def recover(self, attempts: Sequence[RecoverableAttempt]) -> None:
        """Find out what became of every attempt that the journal says is under way.

        Everywhere here: first whether a process lives, then what it wrote. A supervisor records
        an exit before it ends, so a record that is missing after its end never comes.
        """
        executor = self.executor
        complete = os.path.exists(f"{executor.paths.run}/{COMPLETE}")
        seen: tree.Snapshot | None = None
        for attempt in attempts:
            job, same_boot = attempt.job, not attempt.node_restarted
            kept = same_boot and complete
            if same_boot and not kept and seen is None:
                # A missing run directory is not a missing claim: find living processes first.
                seen = executor.snapshot()
            path = executor.claim_path(attempt.id)
            claim = read_claim(path) if same_boot else Claim()
            if claim is None and executor.exit_log.find(attempt.id) is None:
                if not kept and seen is not None:
                    claim = _claim_of_process(executor.token(attempt.id), seen)
                if claim is None and create_claim(path) and kept and job.started_at is None:
                    claim = Claim(revoked=True)
            # Without a complete run directory, a revoked claim means that an earlier daemon knew
            # no more than this one, and ended before its conclusion was on disk.
            never = claim is not None and claim.revoked and kept and job.started_at is None
            if never or (claim is not None and claim.withdrawn):
                self.executor.call_off(attempt.id, START_NEVER)
            else:
                self._classify(attempt, claim or read_claim(path) or Claim())
        executor.termination.step(time.clock_gettime(BOOT))

    def _classify(self, recoverable: RecoverableAttempt, claim: Claim) -> None:
        executor = self.executor
        attempt = executor.recovered(recoverable, claim)
        if claim.pid is not None and claim.started is not None:
            boot, wall = claim.started
            job, number = attempt.id
            executor.report(
                ProcessStarted(at=wall, job=job, attempt=number, pid=claim.pid, boot=boot)
            )
        if recoverable.node_restarted:
            self._end_or_lose(attempt, REBOOTED)
        elif claim.is_alive and claim.pid is not None:
            self.watch(attempt)
            self._repeat_instructions(recoverable.job)
        else:
            self.expect_record(attempt)
            self._repeat_instructions(recoverable.job)

    def _repeat_instructions(self, job: Job) -> None:
        """Repeat what was decided before the daemon ended: it may not have been done."""
        attempt = AttemptId(job.id, job.attempt)
        if job.state is JobState.COMPLETING:
            self.executor.terminate(attempt, self.executor.grace)
        elif job.state is JobState.SUSPENDED:
            self.executor.suspend(attempt)
        elif job.slack:
            self.executor.resume(attempt)

    def expect_record(self, attempt: LocalAttempt) -> None:
        """Wait for the record of an attempt after its process ended or was never seen."""
        attempt.record_deadline = time.clock_gettime(BOOT) + RECORD_SECONDS
        self.executor.termination.add(attempt.id)

    def watch(self, attempt: LocalAttempt) -> None:
        """Watch a main process that is not a child of this process."""
        assert attempt.pid is not None
        try:
            attempt.pidfd = os.pidfd_open(attempt.pid)
        except ProcessLookupError:
            self.expect_record(attempt)
            return
        if not process_state(attempt.pid, attempt.ticks):  # it ended, and its pid was reused
            os.close(attempt.pidfd)
            attempt.pidfd = -1
            self.expect_record(attempt)
            return
        self.executor.reactor.add_reader(attempt.pidfd, lambda: self._on_pidfd(attempt))

    def _on_pidfd(self, attempt: LocalAttempt) -> None:
        """Look for the exit record of a process that has just ended."""
        self.executor.reactor.remove_reader(attempt.pidfd)
        os.close(attempt.pidfd)
        attempt.pidfd = -1
        self.expect_record(attempt)
        self.check_records([attempt], time.clock_gettime(BOOT))

    def check_records(self, attempts: Iterable[LocalAttempt], boot: float) -> None:
        """Look for exit records; where none can come any more, for processes."""
        gone = [(attempt, claim) for attempt in attempts if (claim := self._read(attempt, boot))]
        if gone:
            seen = self.executor.snapshot()  # one for all: there may be thousands
            for attempt, claim in gone:
                self._without_record(attempt, claim, seen)

    def _read(self, attempt: LocalAttempt, boot: float) -> Claim | None:
        """Read what became of an attempt; return its claim if no record can come any more."""
        path = self.executor.claim_path(attempt.id)
        awaited = self._is_awaited(attempt, read_claim(path) or Claim(), boot)
        # Read again: the claim may have changed before the liveness check.
        claim = read_claim(path) or Claim(revoked=True)
        if attempt.pid is None and claim.pid is not None and claim.started is not None:
            self.executor.on_started(attempt, claim.pid, claim.ticks, *claim.started)
            if claim.is_alive:
                self._stop_waiting(attempt)
                self.watch(attempt)
                return None
        exit = self._exit_of(attempt, claim)
        if exit is not None:
            self._stop_waiting(attempt)
            attempt.status, attempt.ended_at = exit
            attempt.cpu_seconds, attempt.rss_peak = claim.used or (None, None)
            self.executor.on_leader_exited(attempt)
        elif claim.failed is not None:
            self.executor.forget(attempt)
            self.executor.fail(attempt.id, claim.failed)
        elif claim.withdrawn:
            self.executor.call_off(attempt.id, START_NEVER)
            self.executor.forget(attempt)
        elif not awaited:
            self._stop_waiting(attempt)
            return claim
        return None

    def _is_awaited(self, attempt: LocalAttempt, claim: Claim, boot: float) -> bool:
        """Return whether a living supervisor may still record what became of an attempt."""
        in_time = boot <= (attempt.record_deadline or 0.0)
        if claim.supervisor is None:
            return in_time and self._has_older_supervisor()
        # A process that its supervisor has reaped is on record by now, or never will be.
        return claim.is_supervisor_alive and (in_time or claim.pid is None or claim.is_unreaped)

    def _has_older_supervisor(self) -> bool:
        """Return whether a supervisor of an earlier daemon lives."""
        executor = self.executor
        return not executor.exit_log.supervisors() <= executor.supervisors.pids

    def _exit_of(self, attempt: LocalAttempt, claim: Claim) -> tuple[int, float] | None:
        """Return wait status and end time of an attempt's main process, if they are known."""
        if claim.status is not None:
            return claim.status, claim.ended_at or time.time()
        return self.executor.exit_log.find(attempt.id) or _wait_for(attempt.pid)

    def _stop_waiting(self, attempt: LocalAttempt) -> None:
        """Wait no longer for the exit record of an attempt."""
        attempt.record_deadline = None
        if attempt.terminating_since is None:
            self.executor.termination.active.discard(attempt.id)

    def _end_or_lose(self, attempt: LocalAttempt, why: str) -> None:
        """Report the end of an attempt of which no process can be left."""
        exit = self.executor.exit_log.find(attempt.id)
        if exit is None:
            self._lose(attempt, why)
        else:
            attempt.status, attempt.ended_at = exit
            self.executor.finish(attempt)

    def _without_record(self, attempt: LocalAttempt, claim: Claim, seen: tree.Snapshot) -> None:
        """Decide about an attempt without a record and without its supervisor."""
        executor = self.executor
        first = seen.leader(attempt.token) if attempt.pid is None else None
        if first is not None:
            executor.on_started(attempt, *first, *_start_time(first[1]))
            self.watch(attempt)
        elif seen.members(attempt.token, attempt.pid, attempt.ticks) or not seen.complete:
            attempt.is_lost = True
            executor.on_leader_exited(attempt)
        elif attempt.pid is None and attempt.supervisor is not None and tree.can_mark():
            # Had a supervisor of this daemon started it, it would run, be recorded or be a zombie.
            executor.cancel_unstarted(attempt)
        elif not claim.is_empty or attempt.has_started:
            self._lose(attempt, NO_RECORD)
        elif revoke_empty_claim(executor.claim_path(attempt.id)):
            self.executor.call_off(attempt.id, START_NEVER)
            executor.forget(attempt)
        else:
            self.expect_record(attempt)

    def on_late_start(self, attempt: LocalAttempt) -> None:
        """Handle a claim that existed before: revoked, or an earlier supervisor starts it."""
        executor = self.executor
        claim = read_claim(executor.claim_path(attempt.id))
        if claim is None or claim.revoked or claim.withdrawn:
            executor.forget(attempt)
            executor.call_off(attempt.id, "this attempt was already claimed")
        else:
            attempt.supervisor = None
            self.expect_record(attempt)

    def take_orphan(self, attempt: LocalAttempt) -> None:
        """Find out what a supervisor that was killed did with an attempt."""
        path = self.executor.claim_path(attempt.id)
        claim = read_claim(path)
        if attempt.pid is not None:
            if attempt.status is None and attempt.pidfd < 0 and attempt.record_deadline is None:
                self.watch(attempt)
        elif create_claim(path) if claim is None else claim.is_empty and revoke_empty_claim(path):
            self.executor.cancel_unstarted(attempt)
        else:
            self.expect_record(attempt)

    def _lose(self, attempt: LocalAttempt, why: str) -> None:
        """Report an attempt that ended without a record."""
        job, number = attempt.id
        executor = self.executor
        executor.forget(attempt)
        path = executor.claim_path(attempt.id)
        if not self._has_older_supervisor() and (attempt.has_started or not _blocks_start(path)):
            executor.expect_acknowledgement(attempt.id)
        executor.report(AttemptLost(at=time.time(), job=job, attempt=number, why=why))

    # -- attempts that the journal does not know ------------------------------------------

    def find_unknown_attempts(self) -> list[AttemptId]:
        """Return the attempts with a claim, and those that run without one."""
        executor = self.executor
        attempts = self._claimed()
        if not os.path.exists(f"{executor.paths.run}/{COMPLETE}"):
            prefix = f"{executor.install}."
            tokens = executor.snapshot().tokens(prefix)
            attempts += filter(None, (_parse(token.removeprefix(prefix)) for token in tokens))
        return attempts

    def _claimed(self) -> list[AttemptId]:
        """Return the attempts with a claim in the run directory."""
        return list(filter(None, map(_parse, os.listdir(self.executor.paths.run))))

    def exited(self) -> set[AttemptId]:
        """Return the attempts with recorded exits."""
        return set(filter(None, map(_parse, self.executor.exit_log.read())))

    def fully_ended(self, attempts: Iterable[AttemptId]) -> set[AttemptId]:
        """Return the attempts that have a recorded exit and no process left."""
        exited = self.exited().intersection(attempts)
        seen = self.executor.snapshot()
        return {attempt for attempt in exited if seen.complete and not self._left(attempt, seen)}

    def _left(self, attempt: AttemptId, seen: tree.Snapshot) -> list[int]:
        claim = read_claim(self.executor.claim_path(attempt)) or Claim()
        return seen.members(self.executor.token(attempt), claim.pid, claim.ticks)

    def claim(self, attempt: AttemptId) -> Claim:
        """Return what is known of an attempt, by its claim or else by its processes."""
        claim = read_claim(self.executor.claim_path(attempt))
        if claim is not None and not claim.is_empty:
            return claim
        token = self.executor.token(attempt)
        return _claim_of_process(token, self.executor.snapshot()) or Claim()

    def decide_now(self) -> None:
        """Decide about attempts without a record at once: their devices are needed."""
        self.check_records(self.executor.termination.without_record(), inf)

    def remove_claims(self, next_id: int, kept: Collection[AttemptId] = ()) -> None:
        """Remove the claims of attempts that have ended, except those in `kept`.

        Not while an older supervisor lives: it may still have a request, and the claim stops it.
        """
        executor = self.executor
        if self._has_older_supervisor():
            return
        for attempt in self._claimed():
            path = executor.claim_path(attempt)
            is_over = attempt.job < next_id and attempt not in executor.attempts
            if is_over and attempt not in kept and not _blocks_start(path):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _blocks_start(path: str) -> bool:
    """Return True if a supervisor may exist that would start the attempt without this claim.

    A supervisor that was stopped at its very beginning has a request, but no file that shows that
    it exists. No such process outlives a restart of the node.
    """
    claim = read_claim(path)
    if claim is None or not claim.revoked:
        return False
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_mtime >= time.time() - time.clock_gettime(BOOT)
    return False


def _parse(name: str) -> AttemptId | None:
    """Return the attempt that `job.attempt` names; None for other names."""
    job, _, number = name.partition(".")
    return AttemptId(int(job), int(number)) if job.isdigit() and number.isdigit() else None


def _claim_of_process(token: str, seen: tree.Snapshot) -> Claim | None:
    """Return what a claim would say about a running attempt."""
    first = seen.leader(token)
    return Claim(pid=first[0], ticks=first[1], started=_start_time(first[1])) if first else None


def _start_time(ticks: int) -> tuple[float, float]:
    """Return boot and wall time of the start of a process."""
    boot = ticks / os.sysconf("SC_CLK_TCK")
    return boot, time.time() - (time.clock_gettime(BOOT) - boot)


def _wait_for(pid: int | None) -> tuple[int, float] | None:
    """Return the status of an ended child; the children of a killed supervisor become ours."""
    if pid is not None:
        with contextlib.suppress(ChildProcessError):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status, time.time()
    return None
