"""PodEnds: ends attempts, reports how they ended, and removes their pods afterwards."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.core.events import (
    AttemptLost,
    ProcessExited,
    StartCancelled,
    StartFailed,
    TimeLimitReached,
)
from stoker.core.model.job import AttemptId
from stoker.core.model.units import printable
from stoker.executors.kubernetes.api.client import MERGE, NOT_FOUND, PODS, SERVICES, Reply
from stoker.executors.kubernetes.handover import exec_scripts
from stoker.executors.kubernetes.handover.attempt import Creation, LogState, PodAttempt
from stoker.executors.kubernetes.handover.pod_spec import FINALIZER
from stoker.executors.kubernetes.handover.verdict import KILLED, Kind, is_signal, with_record

if TYPE_CHECKING:
    from stoker.executors.kubernetes.handover.executor import HandoverExecutor

MAX_REASON_LENGTH = 2000
DELETED_SECONDS = 5.0
"""Delay of the next try after something else has deleted a pod before it began."""
CANNOT_RUN = 125
"""The exit code of container engines that cannot run a command."""
NO_GPUS = (
    "its container sees no GPU of the pilot: the cluster's container runtime does not give them by"
    " NVIDIA_VISIBLE_DEVICES"
)
STUCK_SECONDS = 300.0
"""Time for which an image or a volume may be missing before the start has failed."""
REPEAT_SECONDS = 2.0
"""Between two signals, or deletions, of an attempt that has not ended."""
MAX_FAILURES = 5
"""Signals in a row that could not be sent before the pod is deleted."""
TOMBSTONE_SECONDS = 90.0
"""Time for which the name of a revoked attempt stays occupied: a request may be under way."""


class PodEnds:
    """Ends the attempts of one executor."""

    def __init__(self, executor: HandoverExecutor) -> None:
        self.executor = executor
        self._unacknowledged: dict[str, tuple[AttemptId, str, bool, float]] = {}
        """Pods to remove once their ends are on disk, in the order of these: attempt, its note,
        whether it has a service, delay."""

    # -- requests to end ------------------------------------------------------------------

    def pursue(self, attempt: PodAttempt) -> None:
        """Do what is due for an attempt that is to be ended."""
        end, now = attempt.end, self.executor.reactor.time()
        if attempt.is_over or attempt.creation is Creation.REQUESTED:
            return
        if attempt.failure is not None or (end is not None and not attempt.is_running):
            if end is None or now >= end.next_try:
                if end is not None:
                    end.next_try = now + REPEAT_SECONDS
                self.delete(attempt.identity.name)
                self.executor.check.request(REPEAT_SECONDS)
            return
        if end is None:
            return
        if attempt.waits_for_others:
            self.executor.cancel_barrier(attempt)
        if now >= end.kill_at:
            if now >= end.next_try:
                end.was_killed, end.next_try = True, now + REPEAT_SECONDS
                self._exec(attempt, exec_scripts.kill())
            self.executor.check.request(REPEAT_SECONDS)
        else:
            if not (end.is_term_sent or attempt.waits_for_others) and now >= end.next_try:
                end.is_term_sent, end.next_try = True, now + REPEAT_SECONDS
                self._exec(attempt, exec_scripts.term())
            self.executor.check.request(end.kill_at - now)

    def _exec(self, attempt: PodAttempt, words: list[str]) -> None:
        def on_reply(reply: Reply) -> None:
            end = attempt.end
            if reply.succeeded or end is None or not self.executor.has(attempt):
                return
            end.is_term_sent = False
            end.failures += 1
            if end.failures >= MAX_FAILURES:
                self.delete(attempt.identity.name, grace=1)
            self.executor.check.request(REPEAT_SECONDS)

        self.executor.exec(attempt, words, on_reply)

    def delete(self, name: str, grace: int | None = None) -> None:
        """Delete a pod; its finalizer keeps it."""
        params = {} if grace is None else {"gracePeriodSeconds": grace}
        self.executor.api.request("DELETE", f"{PODS}/{name}", lambda _: None, params=params)

    def give_up(self, attempt: PodAttempt, why: str) -> None:
        """Fail a start after its pod was created: delete the pod first."""
        if attempt.failure is None:
            attempt.failure = why
            self.pursue(attempt)

    def check_stuck(self, attempt: PodAttempt) -> None:
        """Give up an attempt whose container cannot be created for a long time."""
        now = self.executor.reactor.time()
        if attempt.verdict.kind is not Kind.STUCK and not attempt.trouble:
            attempt.stuck_since = None
            return
        if attempt.stuck_since is None:
            attempt.stuck_since = now
        left = attempt.stuck_since + self.executor.stuck_seconds - now
        if left <= 0:
            self.give_up(attempt, attempt.why_it_waits)
        else:
            self.executor.check.request(left)

    # -- reports --------------------------------------------------------------------------

    def conclude(self, attempt: PodAttempt) -> None:
        """Report the end of an attempt whose log was read."""
        verdict, reader = attempt.verdict, attempt.copy.reader
        if verdict.has_log and attempt.log is not LogState.COMPLETE:
            self.executor.logs.follow(attempt)
            return
        if reader.exit_code is None:
            self._read_message(attempt)
        verdict = attempt.verdict = with_record(verdict, reader.exit_code)
        if verdict.kind is Kind.FAILED_START or (attempt.failure and not attempt.has_run):
            if attempt.end is None:
                self.fail(attempt, attempt.failure or f"cannot start: {verdict.why}")
            else:
                self.cancel(attempt, "cancelled before the job started")
        elif verdict.kind is Kind.CANCELLED and not attempt.has_run:
            is_ours = attempt.is_revoked or attempt.end is not None
            self.cancel(attempt, verdict.why, 0.0 if is_ours else DELETED_SECONDS)
        elif reader.lacks_gpus:
            self.lack(attempt, NO_GPUS)
        elif reader.is_cancelled or self._ended_at_barrier(attempt):
            self.cancel(attempt, "the pods of the job did not all run in time")
        elif verdict.kind is Kind.EXITED:
            self._exit(attempt)
        else:
            self.lose(attempt, verdict.why, verdict.preempted)

    @staticmethod
    def _ended_at_barrier(attempt: PodAttempt) -> bool:
        """Return whether its log says that its command was never run."""
        reader = attempt.copy.reader
        return (
            attempt.waits_for_others
            and reader.is_at_barrier
            and reader.exit_code is None
            and not reader.trouble
        )

    def _read_message(self, attempt: PodAttempt) -> None:
        """Read the termination message in place of the end of a log that was lost."""
        ended = attempt.pod.container.terminated if attempt.pod is not None else None
        if ended is not None and ended.message:
            pieces = attempt.copy.reader.read_message(ended.message)
            self.executor.logs.write(attempt, pieces)

    def _exit(self, attempt: PodAttempt) -> None:
        verdict, end, (job, number) = attempt.verdict, attempt.end, attempt.id
        now, code = time.time(), verdict.code or 0
        if verdict.timed_out and end is None:
            self.executor.sink.event(TimeLimitReached(at=now, job=job, attempt=number))
        killer = code - KILLED if is_signal(code) else None
        self._forget(attempt)
        self.executor.sink.event(
            ProcessExited(
                at=now, job=job, attempt=number, code=None if killer else code, signal=killer,
                memory="host" if verdict.lacks_memory and end is None else None,
                note="killed after the grace period" if end and end.was_killed else None,
                part=attempt.part,
            )
        )  # fmt: skip

    def fail(self, attempt: PodAttempt, why: str) -> None:
        """Report a start that would fail again."""
        self._forget(attempt)
        job, number = attempt.id
        self.executor.sink.event(
            StartFailed(
                at=time.time(), job=job, attempt=number, why=_stored(why), part=attempt.part
            )
        )

    def lack(self, attempt: PodAttempt, why: str) -> None:
        """Report that its node cannot run its image: another one may."""
        self._forget(attempt)
        job, number = attempt.id
        self.executor.sink.event(
            ProcessExited(
                at=time.time(), job=job, attempt=number, code=CANNOT_RUN, lacks=_stored(why),
                part=attempt.part,
            )
        )  # fmt: skip

    def cancel(self, attempt: PodAttempt, why: str, delay: float = 0.0) -> None:
        """Report a start that did not happen."""
        self._forget(attempt)
        job, number = attempt.id
        self.executor.sink.event(
            StartCancelled(
                at=time.time(), job=job, attempt=number, why=_stored(why), delay=delay,
                part=attempt.part,
            )
        )  # fmt: skip

    def lose(self, attempt: PodAttempt, why: str, preempted: bool = False) -> None:
        """Report an end that left no record."""
        self._forget(attempt)
        job, number = attempt.id
        self.executor.sink.event(
            AttemptLost(
                at=time.time(), job=job, attempt=number, why=_stored(why), part=attempt.part,
                preempted=preempted,
            )
        )  # fmt: skip

    def _forget(self, attempt: PodAttempt) -> None:
        """Look after an attempt no longer; its pod stays until the end is acknowledged."""
        executor = self.executor
        name, note = attempt.identity.name, attempt.copy.mirror.note
        executor.attempts.pop(name, None)
        executor.api.stop_log(name)
        delay = TOMBSTONE_SECONDS if attempt.is_revoked else 0.0
        self._unacknowledged[name] = (attempt.id, note, bool(attempt.ports), delay)
        with contextlib.suppress(OSError):
            attempt.copy.save()
        executor.report_reading()

    @property
    def are_acknowledged(self) -> bool:
        """Whether all ends that were reported are on disk."""
        return not self._unacknowledged

    def is_unacknowledged(self, name: str) -> bool:
        """Return whether the end of a pod's attempt was reported and is not on disk yet."""
        return name in self._unacknowledged

    # -- removal --------------------------------------------------------------------------

    def acknowledge(self, attempts: Sequence[AttemptId]) -> None:
        """Remove the pods of attempts: their ends are on disk."""
        for attempt in attempts:
            # The parts of a gang end one by one, and each end is acknowledged in its turn.
            ended = (name for name, (id, *_) in self._unacknowledged.items() if id == attempt)
            if (name := next(ended, None)) is None:
                continue
            _, note, has_ports, delay = self._unacknowledged.pop(name)
            with contextlib.suppress(OSError):
                os.unlink(note)
            if has_ports:
                self.executor.api.request("DELETE", f"{SERVICES}/{name}", lambda _: None)
            if delay:
                self.executor.reactor.call_later(delay, lambda name=name: self.discard(name))  # type: ignore[misc]
            else:
                self.discard(name)

    def discard(self, name: str, is_running: bool = False) -> None:
        """Delete a pod and let it go; repeated until the server has answered."""
        grace = {} if is_running else {"gracePeriodSeconds": 0}

        def on_released(reply: Reply) -> None:
            if reply.succeeded:
                self.executor.api.request("DELETE", f"{PODS}/{name}", lambda _: None, params=grace)
            elif reply.status != NOT_FOUND:
                self.executor.reactor.call_later(
                    REPEAT_SECONDS, lambda: self.discard(name, is_running)
                )

        pod = self.executor.pods.get(name)
        kept = [each for each in pod.metadata.finalizers if each != FINALIZER] if pod else []
        patch = {"metadata": {"finalizers": kept or None}}
        self.executor.api.request("PATCH", f"{PODS}/{name}", on_released, patch, type=MERGE)


def _stored(text: str) -> str:
    """Return a reason as it is journalled: a container may have written part of it."""
    return printable(text, MAX_REASON_LENGTH)
