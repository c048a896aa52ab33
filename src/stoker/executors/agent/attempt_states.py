"""AttemptStates: what the agent reports about attempts, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stoker.executors.agent import result_collector
from stoker.executors.agent.attempt import RemoteAttempt, parse_attempt
from stoker.executors.agent.session.framing import ProtocolError, number
from stoker.executors.port import SHORTAGE_SECONDS

if TYPE_CHECKING:
    from stoker.executors.agent.executor import AgentExecutor

MAX_UNDECIDED_POLLS = 3
"""Polls of an attempt that a full disk leaves undecided before it is requeued."""
MISSING_TREE_SECONDS = 1.0
"""Delay of the next try after the node had removed the attempt's files."""
MAX_PID, MAX_PORT, MAX_CODE, MAX_LEFT = (1 << 31) - 1, (1 << 16) - 1, 255, 1 << 22
"""The largest numbers that a node may send: pids, ports, exit codes, leftover processes."""


class AttemptStates:
    """Applies the states that the agent reports to the attempts of one executor."""

    def __init__(self, executor: AgentExecutor) -> None:
        self.executor = executor

    def poll(self, attempts: list[RemoteAttempt], on_polled: Callable[[], None]) -> None:
        """Ask the agent for the states of attempts; call back when all are known."""

        def on_reply(words: list[str]) -> None:
            if words[0] == "done":
                on_polled()
            elif len(words) > 1:
                self._apply(words[0], words[1], words[2:])

        if attempts:
            words = [attempt.word for attempt in attempts]
            self.executor.connection.request(on_reply, "poll", *words, max_lines=len(words) + 1)
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
            case "started" | "running", [pid, *_]:
                self.executor.on_started(attempt, number(pid, MAX_PID))
            case "ready", [port, *_]:
                rank = attempt.part or 0
                self.executor.sink.ready(attempt.id, rank, number(port, MAX_PORT))
            case "failed", _:
                self._on_start_failed(attempt, " ".join(details))
            case _:
                self._on_not_running(attempt, state)

    def _on_not_running(self, attempt: RemoteAttempt, state: str) -> None:
        """Handle an attempt that does not run and has no exit record."""
        executor, name = self.executor, self.executor.name
        match state:
            case "released":
                executor.cancel(attempt, "the job was not started")
            case "not-begun":  # what prevents its start stays on the node
                executor.cancel(attempt, "the job was not started", keep=True)
            case "revoked":
                self._on_unknown(attempt)
            case "late":  # what is on the node belongs to another daemon
                executor.lose(attempt, "another daemon claimed the attempt", keep=True)
            case "rebooted":
                executor.collector.collect_without_exit(attempt, f"{name} restarted")
            case "gone":
                why = "the process ended without an exit record"
                executor.collector.collect_without_exit(attempt, why)
            case "undecided":
                attempt.undecided_polls += 1
                attempt.is_observed = False
                self.executor.poll_soon()
                if attempt.undecided_polls >= MAX_UNDECIDED_POLLS:
                    why = f"no space left on {name}"
                    executor.cancel(attempt, why, delay=SHORTAGE_SECONDS, keep=True)
            case _:
                raise ProtocolError(f"an unknown attempt state: {state[:40]!a}")

    def _on_exited(self, attempt: RemoteAttempt, code: int, details: list[str]) -> None:
        """Fetch the results of an attempt that has ended, unless that is being done."""
        if attempt.lost_reason is not None:  # its record was found after all
            attempt.lost_reason = None
            attempt.stop_collecting()
        written = details[0] if details else result_collector.NOTHING
        left = number(details[1], MAX_LEFT) if len(details) > 1 else 0
        saved = [result_collector.SAVED] if result_collector.SAVED in details else []
        self.executor.collector.collect(attempt, [str(code), written, str(left), *saved])

    def _on_unknown(self, attempt: RemoteAttempt) -> None:
        """Handle an attempt that the node does not know.

        A claim that was made for it stays: its start request may still arrive.
        """
        if attempt.has_run or attempt.pid is not None:
            why = f"{self.executor.name} no longer has a record of the attempt"
            self.executor.lose(attempt, why)
        else:
            self.executor.cancel(attempt, "the job was not started", keep=True)

    def _on_start_failed(self, attempt: RemoteAttempt, why: str) -> None:
        executor = self.executor
        if attempt.end is not None:  # the signals that end it may also be why it did not start
            executor.cancel(attempt, "cancelled before the job started")
        elif "no space left" in why:
            executor.cancel(attempt, why, delay=SHORTAGE_SECONDS)
        elif "no longer in" in why:
            executor.uploads.forget_trees()
            executor.cancel(attempt, why, delay=MISSING_TREE_SECONDS)
        else:
            executor.forget(attempt)
            executor.expect_acknowledgement(attempt.id)
            executor.fail(attempt.id, attempt.part, why)
