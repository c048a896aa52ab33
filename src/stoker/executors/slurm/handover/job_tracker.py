"""JobTracker: what Slurm says of the jobs of attempts, and what follows for those without a record.

The record of the exit decides. Slurm is believed only about attempts that left none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from stoker.core.events import AttemptQueued, ProcessExited, TimeLimitReached
from stoker.core.model.job import AttemptId
from stoker.executors.agent.attempt import RemoteAttempt
from stoker.executors.agent.attempt_states import POLL_SECONDS
from stoker.executors.reactor import Timer
from stoker.executors.slurm.commands import SlurmJob

if TYPE_CHECKING:
    from stoker.executors.slurm.handover.executor import HandoverExecutor

RECORD_SECONDS = 5.0
"""Time between the end of a Slurm job and its record: file servers show new files late."""
MISSING_SECONDS = 60.0
"""Time after which an attempt that began is lost, if Slurm does not list its job any more."""
MAX_MISSING_POLLS = 3
"""Polls in a row without a job after which Slurm has forgotten it."""
MIN_MOVE_SECONDS, MIN_MOVE_SHARE = 60.0, 0.2
"""Smaller changes of an expected start, by time and by share of the wait, are not reported."""
PREEMPTED = frozenset({"PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REVOKED"})
"""Ends of a Slurm job that are no failures of the attempt."""


class HandedOver(Struct):
    """The Slurm job of an attempt, as far as it is known."""

    name: str
    is_submitting: bool = False
    expected_until: float = 0.0
    """Monotonic time until which Slurm may list it although it has not done so."""
    job: SlurmJob | None = None
    """As Slurm described it last."""
    missing_polls: int = 0
    ended_at: float | None = None
    """Monotonic time since when it has ended, or is not listed."""
    reported: tuple[str, str] = ("", "")
    """Its id and reason that were reported last."""
    reported_start: float | None = None
    has_timed_out: bool = False
    """Whether it was reported that it reached its time limit."""

    @property
    def is_listed(self) -> bool:
        """Whether the last poll listed it."""
        return self.job is not None and self.missing_polls == 0


class JobListener(Struct, frozen=True):
    """Passes on what Slurm says of the job of one attempt."""

    tracker: JobTracker
    attempt: AttemptId

    def on_job(self, job: SlurmJob | None) -> None:
        """Handle the state of the job."""
        self.tracker.on_job(self.attempt, job)


class JobTracker:
    """Watches the Slurm jobs of all attempts of one executor."""

    def __init__(self, executor: HandoverExecutor) -> None:
        self.executor, self.monitor = executor, executor.monitor
        self.handed_over: dict[AttemptId, HandedOver] = {}
        self.timer = Timer(executor.environment.reactor, self._check_ends)
        self._is_asking = False
        """Whether Slurm's accounting is being asked."""

    def watch(self, id: AttemptId, is_submitting: bool) -> None:
        """Watch the job of an attempt from now on."""
        known = HandedOver(f"{self.monitor.prefix}-{id}", is_submitting)
        self.handed_over[id] = known
        self.monitor.watch(known.name, JobListener(self, id))

    def unwatch_ended(self) -> None:
        """Forget the jobs of attempts that have ended: if Slurm still has them, they are ended."""
        for id in [id for id in self.handed_over if id not in self.executor.attempts]:
            known = self.handed_over.pop(id)
            has_begun = known.job is not None and not known.job.is_pending
            self.monitor.unwatch(known.name, is_over=has_begun)  # it ends by itself

    def unwatch_all(self) -> None:
        """Forget all jobs: if Slurm still has them, they are ended."""
        for known in self.handed_over.values():
            self.monitor.unwatch(known.name)

    def on_submitted(self, id: AttemptId, expected_until: float) -> None:
        """Note that sbatch was called, and until when its job may be listed for the first time."""
        known = self.handed_over.get(id)
        if known is not None:
            known.is_submitting, known.expected_until = False, expected_until

    def may_have_begun(self, id: AttemptId) -> bool:
        """Whether its files may tell something."""
        known = self.handed_over.get(id)
        return known is None or known.job is None or not known.job.is_pending

    @property
    def pending_count(self) -> int:
        """Number of jobs that wait in Slurm's queue."""
        jobs = (known.job for known in self.handed_over.values())
        return sum(job is not None and job.is_pending for job in jobs)

    # -- what Slurm says ----------------------------------------------------------------

    def on_job(self, id: AttemptId, job: SlurmJob | None) -> None:
        """Handle what Slurm says of an attempt's job."""
        attempt, known = self.executor.attempts.get(id), self.handed_over.get(id)
        if attempt is None or known is None or not attempt.is_alive:
            return
        if job is None:
            self._on_missing(known)
            return
        known.missing_polls, known.job = 0, job
        if job.has_ended:
            self._note_end(known)
            return
        known.ended_at = None
        self.executor.states.check.request(0.0 if job.is_running else POLL_SECONDS)
        if job.is_pending and attempt.pid is None:
            self._report_queued(id, known, job)

    def _report_queued(self, id: AttemptId, known: HandedOver, job: SlurmJob) -> None:
        """Report why an attempt waits, and when Slurm expects to start it, if that has changed."""
        reason, now = "" if job.reason == "None" else job.reason, time.time()
        start, before = job.expected_start(now), known.reported_start
        is_moved = (start is None) != (before is None)
        if start is not None and before is not None:
            is_moved = abs(start - before) > max(MIN_MOVE_SECONDS, (start - now) * MIN_MOVE_SHARE)
        if known.reported != (job.id, reason) or is_moved:
            known.reported, known.reported_start = (job.id, reason), start
            self.executor.sink.event(
                AttemptQueued(
                    at=now, job=id.job, attempt=id.attempt, external_id=f"Slurm {job.id}",
                    reason=reason, start=start,
                )
            )  # fmt: skip

    def _on_missing(self, known: HandedOver) -> None:
        """Handle a job that Slurm does not list: not yet, or not any more."""
        if known.is_submitting or time.monotonic() < known.expected_until:
            return
        known.missing_polls += 1
        if known.missing_polls >= MAX_MISSING_POLLS or not known.expected_until:
            self._note_end(known)

    def _note_end(self, known: HandedOver) -> None:
        if known.ended_at is None:
            known.ended_at = time.monotonic()
        self.executor.states.check.request(0.0)
        self.timer.request(0.0)

    def _check_ends(self) -> float | None:
        """Judge attempts whose jobs are over and that have no record; return when to look again."""
        now, waits, vanished = time.monotonic(), [], []
        for id, known in self.handed_over.items():
            attempt = self.executor.attempts.get(id)
            if known.ended_at is None or attempt is None or not attempt.is_alive:
                continue
            patience = RECORD_SECONDS if known.is_listed else MISSING_SECONDS
            if not known.is_listed:
                self.revoke(attempt)  # if it never began, that is certain now
            left = known.ended_at + patience - now
            waits.append(min(left, RECORD_SECONDS) if left > 0 else RECORD_SECONDS)
            if left > 0:
                continue
            if known.is_listed:
                self.revoke(attempt, self._lose, self._fail_unread)
            else:
                vanished.append(attempt)
        if vanished:
            self._ask_accounting(vanished)
        return min(waits, default=None)

    def revoke(
        self,
        attempt: RemoteAttempt,
        on_begun: Callable[[RemoteAttempt], None] | None = None,
        on_not_begun: Callable[[RemoteAttempt], bool] = lambda _: False,
    ) -> None:
        """Cancel an attempt that has not begun; otherwise call back, unless its exit is known.

        A full disk leaves open whether it has begun: it is then `waiting`. `on_not_begun` returns
        True if it has ended the attempt instead.
        """
        lines: list[list[str]] = []

        def on_reply(words: list[str]) -> None:
            if words[0] != "done":
                lines.append(words)
                return
            if any(line[0] == "revoked" for line in lines) and on_not_begun(attempt):
                return
            for line in lines:
                self.executor.states.on_notification(line)
            is_current = self.executor.attempts.get(attempt.id) is attempt and attempt.is_alive
            is_decided = all(line[0] != "waiting" for line in lines)
            if on_begun is not None and is_current and is_decided:
                on_begun(attempt)

        self.executor.connection.request(on_reply, "revoke", attempt.word, max_lines=3)

    # -- attempts without a record ------------------------------------------------------

    def _fail_unread(self, attempt: RemoteAttempt) -> bool:
        """Fail an attempt whose batch script found no start request: it would not find the next."""
        known = self.handed_over[attempt.id]
        if known.job is None or known.job.state != "FAILED" or attempt.end is not None:
            return False
        self.executor.fail_start(
            attempt,
            f"Slurm job {known.job.id} ended without having started it; the nodes of "
            f"{self.executor.name} must share the home directory of the host of Slurm's commands",
        )
        return True

    def _ask_accounting(self, attempts: list[RemoteAttempt]) -> None:
        """Lose attempts that Slurm does not list, by what its accounting says if there is any."""

        def on_states(states: dict[str, str] | Exception) -> None:
            self._is_asking = False
            if isinstance(states, Exception):
                raise states
            for attempt in attempts:
                known = self.handed_over.get(attempt.id)
                if known is not None:
                    self.revoke(attempt, partial(self._lose, state=states.get(known.name, "")))

        if not self._is_asking:
            self._is_asking = True
            self.monitor.pool.submit(self.monitor.commands.ended_states, on_states)

    def _lose(self, attempt: RemoteAttempt, state: str = "") -> None:
        """End an attempt that began and left no record, by the state of its Slurm job."""
        executor, known = self.executor, self.handed_over[attempt.id]
        state = state or (known.job.state if known.job is not None and known.is_listed else "")
        id, (job, number) = known.job.id if known.job is not None else "", attempt.id
        if state == "OUT_OF_MEMORY":
            executor.ends.forget(attempt)
            executor.ends.expect_acknowledgement(attempt.id)
            executor.sink.event(
                ProcessExited(at=time.time(), job=job, attempt=number, signal=9, memory="host")
            )
            return
        if state == "TIMEOUT" and attempt.end is None and not known.has_timed_out:
            known.has_timed_out = True  # while a process of it lives, this is repeated
            executor.sink.event(TimeLimitReached(at=time.time(), job=job, attempt=number))
        attempt.is_preempted = state in PREEMPTED
        why = f"Slurm job {id} has ended: {state}" if state else "Slurm does not know its job"
        executor.collector.collect_without_exit(attempt, why)

    def close(self) -> None:
        """Judge no more."""
        self.timer.cancel()
