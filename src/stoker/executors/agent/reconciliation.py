"""Reconciliation: accounts for the attempts on a node after every connection.

First, attempts that were restarted elsewhere are killed. Then the state of every attempt that
either side knows is determined. Only then may the node be used.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from stoker.core.events import Event, IdsReserved, OrphanAttemptsFound
from stoker.executors.agent.attempt import parse_attempt
from stoker.executors.agent.session.reconnecting import ReconnectingSession
from stoker.executors.linux.thread_pool import TransferPool
from stoker.executors.port import AttemptId, AttemptRecords

KILL_POLL_SECONDS = 0.1
"""Between polls of an attempt that was killed."""
NOT_RUNNING = ("revoked", "not-begun", "ready", "undecided", "waiting", "started")
"""States of attempts that need nothing done; `started` precedes an exit."""
MAX_LISTED_ATTEMPTS = 100_000
"""Attempts that a node may list."""
MAX_ATTEMPTS_PER_JOB, MAX_LOST_JOBS = 100_000, 1_000_000
"""A node that reports more attempts of a job, or more jobs lost by the journal, is ignored."""


class Reconciliation:
    """Runs once after every connection; a new object for each."""

    def __init__(
        self,
        connection: ReconnectingSession,
        pool: TransferPool,
        is_known: Callable[[AttemptId], bool],
        records: AttemptRecords,
        report: Callable[[Event], None],
        on_done: Callable[[], None],
    ) -> None:
        """`is_known` returns whether the executor or the core waits for an attempt's end."""
        self.connection, self.pool = connection, pool
        self.is_known, self.records = is_known, records
        self.report, self.on_done = report, on_done
        self.ended: tuple[AttemptId, ...] = ()
        """Abandoned attempts that were terminated."""
        self._session = connection.session

    @property
    def _is_current(self) -> bool:
        return self.connection.is_up and self.connection.session is self._session

    def start(self, abandoned: list[AttemptId]) -> None:
        """Terminate abandoned attempts, then account for all that the node knows."""

        def list_attempts() -> None:
            on_reply = self._on_listed([])
            self.connection.request(on_reply, "list_attempts", max_lines=MAX_LISTED_ATTEMPTS + 1)

        self._terminate(abandoned, list_attempts)

    def _terminate(self, attempts: list[AttemptId], on_done: Callable[[], None]) -> None:
        """Kill attempts one after the other, then call back."""
        if not attempts:
            on_done()
            return
        attempt, *others = attempts
        states: list[str] = []
        alive: list[str] = []

        def on_killed(words: list[str]) -> None:
            alive.extend(words[1:])  # they may live until the next poll

        def on_polled(words: list[str]) -> None:
            if words[0] != "done":
                states[:] = words[:1]
                return
            if alive or states in (["running"], ["busy"], ["ready"]):
                self.pool.submit(
                    lambda: time.sleep(KILL_POLL_SECONDS),
                    lambda _: self._repeat(attempts, on_done),
                )
                return
            # A claim that was made for it must stay: its start request may still arrive.
            if states not in (["revoked"], ["not-begun"]):
                self.connection.request(None, "forget", str(attempt))
            self.ended = (*self.ended, attempt)
            self._terminate(others, on_done)

        self.connection.request(None, "cancel_start", str(attempt))
        self.connection.request(on_killed, "signal", str(int(signal.SIGKILL)), str(attempt))
        self.connection.request(on_polled, "poll", str(attempt), max_lines=3)

    def _repeat(self, attempts: list[AttemptId], on_done: Callable[[], None]) -> None:
        if self._is_current:
            self._terminate(attempts, on_done)

    def _on_listed(self, unexpected: list[AttemptId]) -> Callable[[list[str]], None]:
        """Return a callback that gathers the attempts that only the node knows."""

        def on_reply(words: list[str]) -> None:
            if words[0] == "attempt":
                attempt = parse_attempt(words[1])
                if attempt is not None and not self.is_known(attempt):
                    unexpected.append(attempt)
            elif words[0] == "done" and unexpected:
                on_polled = self._on_polled(frozenset(unexpected), [])
                self.connection.request(
                    on_polled, "poll", *map(str, unexpected), max_lines=2 * len(unexpected) + 1
                )
            elif words[0] == "done":
                self.on_done()

        return on_reply

    def _on_polled(
        self, polled: frozenset[AttemptId], superseded: list[AttemptId]
    ) -> Callable[[list[str]], None]:
        """Return a callback that handles the states of attempts that only the node knows."""

        def on_reply(words: list[str]) -> None:
            if words[0] == "done":
                self._terminate(superseded, self.on_done)
                return
            attempt = parse_attempt(words[1]) if len(words) > 1 else None
            if attempt is None or attempt not in polled or words[0] in NOT_RUNNING:
                return
            is_lost = attempt.job - self.records.next_job_id() in range(MAX_LOST_JOBS)
            if is_lost:
                self.report(IdsReserved(at=time.time(), next_id=attempt.job + 1))
            if words[0] not in ("running", "busy"):
                if is_lost:  # the node has all that is left of it
                    self.connection.request(None, "keep_results", str(attempt))
                self.connection.request(None, "forget", str(attempt))
            elif self.records.is_superseded(attempt):
                superseded.append(attempt)  # its node was removed and its job requeued
            elif attempt.attempt < MAX_ATTEMPTS_PER_JOB:
                # The journal has lost it: it continues, and its number is never used again.
                now, (job, number) = time.time(), attempt
                self.report(OrphanAttemptsFound(at=now, job=job, attempt=number))

        return on_reply
