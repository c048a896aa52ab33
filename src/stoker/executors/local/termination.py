"""Termination of process trees: TERM, then KILL, until no process of an attempt is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stoker.executors.launch import container
from stoker.executors.linux import cgroup
from stoker.executors.linux import process_tree as tree
from stoker.executors.local.attempt import LocalAttempt
from stoker.executors.local.supervisor import BOOT
from stoker.executors.port import AttemptId
from stoker.executors.reactor import Timer

if TYPE_CHECKING:
    from stoker.executors.local.executor import LocalExecutor


class Termination:
    """Terminates the trees of attempts step by step."""

    RESCAN_SECONDS = 0.05
    """Between scans of a tree that is terminated: the end of its last process makes no event."""

    def __init__(self, executor: LocalExecutor) -> None:
        self.executor = executor
        self.active: set[AttemptId] = set()
        """Attempts that are being terminated, or have no exit record."""
        self._timer = Timer(executor.reactor, self._continue)

    def add(self, attempt: AttemptId) -> None:
        """Look after an attempt until its last process has ended or its record is found."""
        self.active.add(attempt)
        self._timer.request(0.0)  # one scan for all attempts that are added by then

    def begin(self, attempt: LocalAttempt, grace: float) -> None:
        """Terminate a tree: TERM with the next step, KILL after `grace` seconds."""
        now, at_once = time.clock_gettime(BOOT), grace <= 0
        if attempt.terminating_since is None:
            attempt.terminating_since = now
        if at_once:
            grace = container.LAST_WORD if is_contained(attempt) else 0.0
        attempt.kill_at = min(attempt.kill_at or now + grace, now + grace)
        self.add(attempt.id)
        if grace:
            attempt.term_pending = at_once

    def _continue(self) -> float | None:
        self.step(time.clock_gettime(BOOT))
        return self.RESCAN_SECONDS if self.active else None

    def step(self, boot: float) -> None:
        """Look for exit records, then do the next step of all terminations."""
        self.executor.recovery.check_records(self.without_record(), boot)
        self._terminate([self.executor.attempts[id] for id in self.active], boot)

    def without_record(self) -> list[LocalAttempt]:
        """Return the attempts without exit records."""
        active = [self.executor.attempts[id] for id in self.active]
        return [a for a in active if a.record_deadline is not None and a.status is None]

    def _terminate(self, attempts: list[LocalAttempt], boot: float) -> None:
        """Do one step for all attempts together, since it takes a scan of all processes."""
        to_terminate = [a for a in attempts if a.term_pending is not None and a.pid is not None]
        due = [a for a in attempts if a.kill_at is not None and boot >= a.kill_at]
        ended = [a for a in attempts if a.status is not None or a.is_lost]
        if not (to_terminate or due or ended):
            return
        executor, seen = self.executor, self.executor.snapshot()
        for attempt in to_terminate:
            self._send_term(attempt, seen)
        left = {a.id: executor.members(a, seen) for a in (*due, *ended)}
        for attempt in ended:
            if left[attempt.id]:
                self._terminate_leftovers(attempt, left[attempt.id], boot)
            elif seen.complete:
                executor.finish(attempt)
        executor.reap_zombies(seen)
        self._kill([(a, left[a.id]) for a in due if left[a.id]], boot)

    def _send_term(self, attempt: LocalAttempt, seen: tree.Snapshot) -> None:
        """Ask a tree to end; of a container, only the process in charge of it."""
        assert attempt.pid is not None
        pids, at_once = self.executor.members(attempt, seen), attempt.term_pending
        attempt.term_pending = None
        if is_contained(attempt):
            tree.signal_all([attempt.pid], container.AT_ONCE if at_once else signal.SIGTERM)
            tree.signal_all(pids, signal.SIGCONT)
        else:
            tree.end(pids, signal.SIGTERM)

    def _terminate_leftovers(self, attempt: LocalAttempt, left: list[int], boot: float) -> None:
        """Terminate processes that outlived the main process."""
        if attempt.leftovers_uncounted:
            attempt.leftovers_uncounted, attempt.left_behind = False, len(left)
        if attempt.terminating_since is None:
            attempt.terminating_since, attempt.kill_at = boot, boot + self.executor.grace
            tree.end(left, signal.SIGTERM)

    def _kill(self, trees: list[tuple[LocalAttempt, list[int]]], boot: float) -> None:
        """Kill trees, including processes that fork meanwhile.

        Of a container, kill what runs inside first: then its engine removes the container.
        """
        attempts = []
        for attempt, pids in trees:
            inside = [] if attempt.was_killed else tree.in_other_namespaces(pids)
            attempt.was_killed = True
            if inside:
                tree.signal_all(inside, signal.SIGKILL)
                attempt.kill_at = boot + container.REMOVAL_SECONDS
                continue
            attempts.append(attempt)
            if attempt.cgroup is not None:
                cgroup.kill(attempt.cgroup)
        if attempts:
            # The first children may have been forked before their parent joined the cgroup.
            tree.kill(self._living(attempts))

    def _living(self, attempts: list[LocalAttempt]) -> Callable[[], set[int]]:
        def find() -> set[int]:
            seen = self.executor.snapshot(stop=[attempt.token for attempt in attempts])
            return {pid for a in attempts for pid in self.executor.members(a, seen)}

        return find


def is_contained(attempt: LocalAttempt) -> bool:
    """Return whether the main process of an attempt is in charge of a container."""
    return attempt.pid is not None and container.is_supervisor_of(attempt.pid, attempt.token)
