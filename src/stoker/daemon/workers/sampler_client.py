"""SamplerClient: asks the Optuna process for parameter sets.

Made for the epoll loop: nothing here blocks. The process is started with the first question and
stopped when no sweep needs it. It keeps the trials that it was sent, so the client tracks those;
a new process gets everything again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from stoker.daemon.workers.restart_policy import RestartPolicy
from stoker.executors.linux.line_subprocess import LineSubprocess
from stoker.executors.reactor import Reactor, Timer

logger = logging.getLogger(__name__)

OnAnswer = Callable[[list[dict[str, Any]], str | None, bool], None]
"""Called with points, error, exhausted: True if the search space has no other points."""

COMMAND = ("-P", "-m", "stoker.sweep.sampling.sampler_process")
"""-P: modules in the daemon's working directory must not be imported."""
RESTART_DELAYS = (0.5, 1.0, 2.0)
ANSWER_TIMEOUT_SECONDS = 600.0
SAMPLER_FIELDS = ("method", "parameters", "seed")
"""Fields of a sweep's definition that its sampler depends on."""


class Reply(msgspec.Struct):
    """A line from the process."""

    sweep: int
    id: str | None = None
    points: list[dict[str, Any]] = []
    error: str | None = None
    done: bool = False


class PendingQuestion(msgspec.Struct):
    """A question without an answer, with everything that a new process needs for it."""

    id: str
    trials: list[dict[str, Any]]
    on_answer: OnAnswer
    requested_at: float


class SweepSession(msgspec.Struct):
    """What the client and the process know of one sweep."""

    definition: dict[str, Any]
    generation: int = 1
    sent: dict[int, dict[str, Any]] | None = None
    """Trials that the process was sent, by number; None if it does not know the sweep."""
    question: PendingQuestion | None = None


class SamplerClient:
    """Asks one process for parameter sets of all sweeps that need a model."""

    def __init__(self, reactor: Reactor) -> None:
        self.sessions: dict[int, SweepSession] = {}
        self.process = LineSubprocess(reactor, self._on_reply, self._on_exit)
        self.restarts = RestartPolicy(RESTART_DELAYS)
        self._restarting = Timer(reactor, self._start)
        self._timeout = Timer(reactor, self._check_answers)
        self._last_question = 0

    def ask(
        self, sweep: int, definition: dict[str, Any], trials: list[dict[str, Any]],
        on_answer: OnAnswer,
    ) -> None:  # fmt: skip
        """Have `on_answer` called with a point that none of the `trials` has.

        One question per sweep: while one is open, another is dropped. An earlier answer that is
        not among the trials by now counts as never suggested.
        """
        session = self._session(sweep, definition)
        if session.question is not None:
            return
        self._last_question += 1
        id = f"r{self._last_question}"
        session.question = PendingQuestion(id, trials, on_answer, time.monotonic())
        if self.process.is_running:
            self._send_question(sweep, session, session.question)
        elif not self._restarting.is_set:
            self._start()

    def forget(self, sweep: int) -> None:
        """Drop a sweep; an open question is not answered."""
        session = self.sessions.pop(sweep, None)
        if session is None:
            return
        if not self.sessions:
            self.close()
        elif session.sent is not None:
            self._send({"sweep": sweep, "forget": True})

    def close(self) -> None:
        """Stop the process and drop all sweeps."""
        self.sessions.clear()
        self.restarts.reset()
        self._restarting.cancel()
        self.process.stop()

    # -- questions ----------------------------------------------------------------------

    def _open_questions(self) -> list[PendingQuestion]:
        questions = (session.question for session in self.sessions.values())
        return [question for question in questions if question is not None]

    def _session(self, sweep: int, definition: dict[str, Any]) -> SweepSession:
        """Return the session of a sweep, begun again if its sampler's definition has changed."""
        relevant = {key: definition[key] for key in SAMPLER_FIELDS if key in definition}
        relevant["metric"] = {"goal": (definition.get("metric") or {}).get("goal") or "minimize"}
        session = self.sessions.get(sweep)
        if session is None:
            session = self.sessions[sweep] = SweepSession(relevant)
        elif session.definition != relevant:
            session.definition, session.sent = relevant, None
            session.generation += 1
        return session

    def _send_question(self, sweep: int, session: SweepSession, question: PendingQuestion) -> None:
        """Send the trials that the process does not know yet, then the question."""
        messages: list[dict[str, Any]] = []
        if session.sent is None:
            session.sent = {}
            session_begin = {"generation": session.generation, "definition": session.definition}
            messages.append({"sweep": sweep, **session_begin})
        unsent = []
        for trial in question.trials:
            if session.sent.get(trial["trial"]) != trial:
                session.sent[trial["trial"]] = trial
                unsent.append(trial)
        if unsent:
            messages.append({"sweep": sweep, "tell": unsent})
        messages.append({"sweep": sweep, "ask": 1, "id": question.id})
        self._send(*messages)
        self._timeout.request(ANSWER_TIMEOUT_SECONDS)

    def _send(self, *messages: dict[str, Any]) -> None:
        self.process.send(b"".join(msgspec.json.encode(message) + b"\n" for message in messages))

    def _on_reply(self, line: bytes) -> None:
        try:
            reply = msgspec.json.decode(line, type=Reply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.process.fail(f"it answered {line[:80]!r}")
            return
        session = self.sessions.get(reply.sweep)
        question = session.question if session is not None else None
        if session is None or question is None or question.id != reply.id:
            return  # about a sweep that was forgotten meanwhile
        self.restarts.reset()
        session.question = None
        question.on_answer(reply.points, reply.error, reply.done)

    # -- the process --------------------------------------------------------------------

    def _check_answers(self) -> float | None:
        """Give up a process that hangs; return the seconds until the next deadline."""
        questions = self._open_questions()
        if not questions or not self.process.is_running:
            return None
        since = min(question.requested_at for question in questions)
        left = since + ANSWER_TIMEOUT_SECONDS - time.monotonic()
        if left > 0:
            return left
        self.process.fail(f"it has not answered for {ANSWER_TIMEOUT_SECONDS / 60:.0f} minutes")
        return None

    def _start(self) -> None:
        if self.process.start(COMMAND):
            for sweep, session in self.sessions.items():
                session.sent = None
                if session.question is not None:
                    self._send_question(sweep, session, session.question)

    def _on_exit(self, reason: str) -> None:
        logger.warning("the sampler process failed: %s", reason)
        for session in self.sessions.values():
            session.sent = None
        questions = self._open_questions()
        if not questions:
            return  # the next question starts another process
        delay = self.restarts.record_failure()
        if delay is not None:
            self._restarting.request(delay)
            for question in questions:
                question.requested_at = time.monotonic()
            return
        self.restarts.reset()
        for session in self.sessions.values():
            session.question = None
        error = f"the process that suggests parameters has failed: {reason}"
        for question in questions:
            question.on_answer([], error, False)
