"""AttemptStates: what the agent reports about attempts, and what follows from it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stoker.core.events import ProcessStarted
from stoker.executors.agent.attempt import Phase, RemoteAttempt, parse_attempt
from stoker.executors.agent.result_collector import LACKS_MEMORY, NOTHING, SAVED
from stoker.executors.agent.session.framing import ProtocolError, number
from stoker.executors.port import SHORTAGE_SECONDS
from stoker.executors.reactor import Timer

if TYPE_CHECKING:
    from stoker.executors.agent.executor import AgentExecutor

POLL_SECONDS, CHECK_SECONDS = 1.0, 20.0
"""Between polls of attempts that the agent does not watch; of all others."""
MAX_UNDECIDED_POLLS = 3
"""Polls of an attempt that a full disk leaves undecided before it is requeued."""
MISSING_TREE_SECONDS = 1.0
"""Delay of the next try after the node had removed the attempt's files."""
KILLED_CODES = (128 + signal.SIGTERM, 128 + signal.SIGKILL)
"""Exit codes of attempts that end with their allocation."""
MAX_PID, MAX_PORT, MAX_CODE, MAX_LEFT = (1 << 31) - 1, (1 << 16) - 1, 255, 1 << 22
"""The largest numbers that a node may send: pids, ports, exit codes, leftover processes."""


class AttemptStates:
    """Applies the states that the agent reports to the attempts of one executor."""

    def __init__(self, executor: AgentExecutor) -> None:
        self.executor = executor
        self.check = Timer(executor.environment.reactor, self._check)
        """Kills and polls attempts when it is time."""
        self._poll_at = self._check_at = 0.0

    def poll(self, attempts: list[RemoteAttempt], on_polled: Callable[[], None]) -> None:
        """Ask the agent for the states of attempts; call back when all are known."""

        def on_reply(words: list[str]) -> None:
            if words[0] == "done":
                on_polled()
            elif len(words) > 1:
                self._apply(words[0], words[1], words[2:])

        if attempts:
            words = [attempt.word for attempt in attempts]
            self.executor.connection.request(on_reply, "poll", *words, max_lines=2 * len(words) + 1)
        else:
            on_polled()

    def on_notification(self, words: list[str]) -> None:
        """Handle a state that the agent reports by itself."""
        if len(words) < 2:
            raise ProtocolError(f"an unknown notification: {words[0][:40]!a}")
        self._apply(words[0], words[1], words[2:])

    def _apply(self, state: str, word: str, details: list[str]) -> None:
        id = parse_attempt(word)
        attempt = self.executor.attempts.get(id) if id is not None else None
        if attempt is None or not attempt.is_ordered:
            return
        details = [detail for detail in details if detail]  # exit records are padded with blanks
        match state, details:
            case "exited", [code, *more]:
                self._on_exited(attempt, number(code, MAX_CODE), more)
            case _ if attempt.is_collecting:
                pass  # its end is known: earlier states are out of date
            case "busy", _:
                attempt.undecided_polls = 0
            case "started" | "running", [pid, *where]:
                self._on_started(attempt, number(pid, MAX_PID), where)
            case "ready", [port, *_]:
                rank = attempt.part or 0
                self.executor.sink.ready(attempt.id, rank, number(port, MAX_PORT))
            case "failed", _:
                self._on_start_failed(attempt, " ".join(details))
            case _:
                self._on_not_running(attempt, state)

    def _on_started(self, attempt: RemoteAttempt, pid: int, where: list[str]) -> None:
        """Report the process of an attempt, and send again what was requested for it.

        `where`: its host, its id and its GPUs in Slurm, if that chose them.
        """
        executor = self.executor
        attempt.undecided_polls = 0
        if attempt.pid is None:
            attempt.pid, attempt.phase = pid, Phase.RUNNING
            boot = time.clock_gettime(time.CLOCK_BOOTTIME)
            job, number = attempt.id
            executor.sink.event(
                ProcessStarted(
                    at=time.time(), job=job, attempt=number, pid=pid, boot=boot, part=attempt.part,
                    hosts=tuple(where[:1]),
                    external_id=f"Slurm {where[1]}" if len(where) > 1 else None,
                    devices=tuple(name for names in where[2:3] for name in names.split(",")),
                )
            )  # fmt: skip
        executor.control_files.resend(attempt)
        executor.collector.on_running()
        end = attempt.end
        if end is None or attempt.is_collecting:
            return
        if not end.is_sent:
            # It was to be terminated while there was no connection: its grace begins now.
            boot = time.clock_gettime(time.CLOCK_BOOTTIME)
            end.is_sent, end.kill_at = True, boot if end.at_once else boot + executor.grace
            executor.send_term(attempt)
            self.check.request(0.0)
        elif attempt.is_observed:
            executor.send_term(attempt)  # cancelled between the request and the start

    def _on_not_running(self, attempt: RemoteAttempt, state: str) -> None:
        """Handle an attempt that does not run and has no exit record."""
        executor, name = self.executor, self.executor.name
        match state:
            case "released":
                executor.ends.cancel(attempt, "the job was not started")
            case "not-begun":  # what prevents its start stays on the node
                executor.ends.cancel(attempt, "the job was not started", keep=True)
            case "revoked":
                self._on_unknown(attempt)
            case "late":  # what is on the node belongs to another daemon
                executor.ends.lose(attempt, "another daemon claimed the attempt", keep=True)
            case "rebooted":
                why = executor.end_reason or f"{name} restarted"
                executor.collector.collect_without_exit(attempt, why)
            case "gone":
                why = executor.end_reason or "the process ended without an exit record"
                executor.collector.collect_without_exit(attempt, why)
            case "undecided":
                attempt.undecided_polls += 1
                attempt.is_observed = False
                self.poll_soon()
                if attempt.undecided_polls >= MAX_UNDECIDED_POLLS:
                    why = f"no space left on {name}"
                    executor.ends.cancel(attempt, why, delay=SHORTAGE_SECONDS, keep=True)
            case _:
                raise ProtocolError(f"an unknown attempt state: {state[:40]!a}")

    def _on_exited(self, attempt: RemoteAttempt, code: int, details: list[str]) -> None:
        """Fetch the results of an attempt that has ended, unless that is being done."""
        why = self.executor.end_reason
        if why is not None and attempt.end is None and code in KILLED_CODES:
            # It got the signal that ended the allocation before the agent did.
            self.executor.collector.collect_without_exit(attempt, why)
            return
        if attempt.lost_reason is not None:  # its record was found after all
            attempt.lost_reason = None
            attempt.stop_collecting()
        written = details[0] if details else NOTHING
        left = number(details[1], MAX_LEFT) if len(details) > 1 else 0
        words = [word for word in (SAVED, LACKS_MEMORY) if word in details]
        self.executor.collector.collect(attempt, [str(code), written, str(left), *words])

    def _on_unknown(self, attempt: RemoteAttempt) -> None:
        """Handle an attempt that the node does not know.

        A claim that was made for it stays: its start request may still arrive.
        """
        if attempt.has_run or attempt.pid is not None:
            why = f"{self.executor.name} no longer has a record of the attempt"
            self.executor.ends.lose(attempt, why)
        else:
            self.executor.ends.cancel(attempt, "the job was not started", keep=True)

    def _on_start_failed(self, attempt: RemoteAttempt, why: str) -> None:
        executor = self.executor
        if attempt.end is not None:  # the signals that end it may also be why it did not start
            executor.ends.cancel(attempt, "cancelled before the job started")
        elif "no space left" in why:
            executor.ends.cancel(attempt, why, delay=SHORTAGE_SECONDS)
        elif "no longer in" in why:
            executor.uploads.forget_trees()
            executor.ends.cancel(attempt, why, delay=MISSING_TREE_SECONDS)
        else:
            executor.ends.forget(attempt)
            executor.ends.expect_acknowledgement(attempt.id)
            executor.ends.fail(attempt.id, attempt.part, why)

    # -- time ---------------------------------------------------------------------------

    def poll_soon(self) -> None:
        """Poll attempts that the agent may not watch."""
        self.check.request(POLL_SECONDS)

    def _check(self) -> float | None:
        """Kill and poll attempts when it is time; return the seconds until then."""
        if not self.executor.connection.is_up:
            return None
        waits = (self._kill_overdue(), self._poll())
        return min((wait for wait in waits if wait is not None), default=None)

    def _kill_overdue(self) -> float | None:
        waits, boot = [], time.clock_gettime(time.CLOCK_BOOTTIME)
        for attempt in self.executor.attempts.values():
            end = attempt.end
            if end is None or end.kill_at is None or attempt.is_collecting:
                continue
            if boot >= end.kill_at:
                end.was_killed = True
                end.kill_at = boot + POLL_SECONDS  # again, for processes that were forked since
                self.executor.signal(attempt.id, signal.SIGKILL)
            waits.append(end.kill_at - boot)
        return min(waits) if waits else None

    def _poll(self) -> float | None:
        """Poll attempts that the agent may not watch; return the seconds to the next poll.

        It does not watch attempts that an earlier connection started, nor those that lost their
        waiting shell. An attempt that was ordered a moment ago is not polled: that would take its
        claim before its own shell does.
        """
        alive = [each for each in self.executor.attempts.values() if each.is_alive]
        if not alive or not self.executor.is_reconciled:
            return None
        now = time.monotonic()
        unobserved = [each for each in alive if not each.is_observed]
        if now >= self._check_at:
            self._poll_at, self._check_at = now + POLL_SECONDS, now + CHECK_SECONDS
            due = [each for each in alive if each.ordered_at < now - CHECK_SECONDS]
            self.poll(due, lambda: None)
        elif unobserved and now >= self._poll_at:
            self._poll_at = now + POLL_SECONDS
            self.poll(unobserved, lambda: None)
        return (min(self._poll_at, self._check_at) if unobserved else self._check_at) - now
