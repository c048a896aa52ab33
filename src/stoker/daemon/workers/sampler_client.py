"""The daemon's end of the process that suggests points: ask, go on working, be told.

Made for the epoll loop: nothing here waits. The process is started with the first question and
ends when no sweep needs it any more. It remembers what it was told, hence so do we; a new one is
told everything again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from stoker.daemon.runtime.line_subprocess import LineSubprocess
from stoker.executors.agent.session.session import Poller

logger = logging.getLogger(__name__)

Answer = Callable[[list[dict[str, Any]], str | None, bool], None]
"""Called with the points, or none and a sentence; True when there are no others in the space."""

COMMAND = ("-P", "-m", "stoker.sweep.sampler_process")
"""-P: the directory where the daemon happens to stand must not lend it its modules."""
RESTARTS = 3
"""So often in a row a process that died over a question gets a successor."""
FIRST_PAUSE = 0.5
PATIENCE = 600.0
"""A question that takes longer has hung."""
WHAT_COUNTS = ("method", "parameters", "seed")


class Reply(msgspec.Struct):
    """A line from the process."""

    sweep: int
    id: str | None = None
    points: list[dict[str, Any]] = []
    error: str | None = None
    done: bool = False


class PendingQuestion(msgspec.Struct):
    """A question that is open, with all that a new process would have to be told."""

    id: str
    count: int
    trials: list[dict[str, Any]]
    answer: Answer
    since: float


class SweepSession(msgspec.Struct):
    """What is known of one sweep, here and in the process."""

    definition: dict[str, Any]
    generation: int = 1
    told: dict[int, dict[str, Any]] | None = None
    """None: this process has not heard of the sweep."""
    question: PendingQuestion | None = None


class SamplerClient:
    """Asks one process about all sweeps that need a model."""

    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self.talks: dict[int, SweepSession] = {}
        self.process: LineSubprocess | None = None
        self.leaving: list[LineSubprocess] = []
        """Processes that were let go and have not died yet."""
        self.failures = 0
        self.start_at: float | None = None
        self._last = 0

    def ask(
        self,
        sweep: int,
        definition: dict[str, Any],
        trials: list[dict[str, Any]],
        count: int,
        answer: Answer,
    ) -> None:
        """Have `answer` called with up to `count` points that none of the `trials` has.

        One question per sweep: while one is open, another is dropped. What was answered before
        and is not among the trials by now is taken as never suggested.
        """
        talk = self._talk(sweep, definition)
        if talk.question is not None:
            return
        self._last += 1
        talk.question = PendingQuestion(f"r{self._last}", count, trials, answer, time.monotonic())
        if self.process is not None:
            self._put(sweep, talk, talk.question)
        elif self.start_at is None:
            self._start()

    def asking(self, sweep: int) -> bool:
        """Whether a question about this sweep is open."""
        talk = self.talks.get(sweep)
        return talk is not None and talk.question is not None

    def forget(self, sweep: int) -> None:
        """Nothing more will be asked about this sweep; an open question stays unanswered."""
        talk = self.talks.pop(sweep, None)
        if talk is None:
            return
        if not self.talks:
            self.close()
        elif self.process is not None and talk.told is not None:
            self._send({"sweep": sweep, "forget": True})

    def tick(self) -> float | None:
        """Start, or give up on, the process when it is time; seconds until the next look."""
        now = time.monotonic()
        self.leaving = [process for process in self.leaving if not process.reap()]
        if self.start_at is not None and now >= self.start_at:
            self._start()
        asked = [talk.question.since for talk in self.talks.values() if talk.question is not None]
        moments = [] if self.start_at is None else [self.start_at]
        if asked and self.process is not None:
            moments.append(min(asked) + PATIENCE)
            if now >= moments[-1]:
                self._died(f"it has not answered for {PATIENCE / 60:.0f} minutes")
                return self.tick()
        return max(min(moments) - now, 0.0) if moments else None

    def close(self) -> None:
        """Let the process go, and all sweeps with it."""
        self.talks.clear()
        self.failures, self.start_at = 0, None
        self._let_go()

    # -- out ----------------------------------------------------------------------------

    def _talk(self, sweep: int, definition: dict[str, Any]) -> SweepSession:
        """How many samples are wanted, or what is run with them, is nothing to a sampler."""
        brief = {key: definition[key] for key in WHAT_COUNTS if key in definition}
        brief["metric"] = {"goal": (definition.get("metric") or {}).get("goal") or "minimize"}
        talk = self.talks.get(sweep)
        if talk is None:
            talk = self.talks[sweep] = SweepSession(brief)
        elif talk.definition != brief:
            talk.definition, talk.told = brief, None
            talk.generation += 1
        return talk

    def _put(self, sweep: int, talk: SweepSession, question: PendingQuestion) -> None:
        """Tell what the process does not know yet, then ask."""
        messages: list[dict[str, Any]] = []
        if talk.told is None:
            talk.told = {}
            messages.append(
                {"sweep": sweep, "generation": talk.generation, "definition": talk.definition}
            )
        news = []
        for trial in question.trials:
            brief = _brief(trial)
            if talk.told.get(brief["trial"]) != brief:
                talk.told[brief["trial"]] = brief
                news.append(brief)
        if news:
            messages.append({"sweep": sweep, "tell": news})
        messages.append({"sweep": sweep, "ask": question.count, "id": question.id})
        self._send(*messages)

    def _send(self, *messages: dict[str, Any]) -> None:
        assert self.process is not None
        self.process.send(b"".join(msgspec.json.encode(message) + b"\n" for message in messages))

    # -- in -----------------------------------------------------------------------------

    def _heard(self, line: bytes) -> None:
        try:
            reply = msgspec.json.decode(line, type=Reply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._died(f"it answered {line[:80]!r}")
            return
        talk = self.talks.get(reply.sweep)
        question = talk.question if talk is not None else None
        if talk is None or question is None or question.id != reply.id:
            return  # about a sweep that was forgotten meanwhile
        self.failures = 0
        talk.question = None
        question.answer(reply.points, reply.error, reply.done)

    # -- life and death -----------------------------------------------------------------

    def _start(self) -> None:
        self.start_at = None
        try:
            self.process = LineSubprocess(self.poller, self._heard, self._died, COMMAND)
        except OSError as error:
            self._died(f"it cannot be started: {os.strerror(error.errno or 0)}")
            return
        for sweep, talk in self.talks.items():
            talk.told = None
            if talk.question is not None:
                self._put(sweep, talk, talk.question)

    def _died(self, why: str) -> None:
        logger.warning("the sampler process failed: %s", why)
        self._let_go()
        now = time.monotonic()
        questions = [talk.question for talk in self.talks.values() if talk.question is not None]
        if not questions:
            return  # the next question starts another
        if self.failures < RESTARTS:
            self.start_at = now + FIRST_PAUSE * 2**self.failures
            self.failures += 1
            for question in questions:
                question.since = now
            return
        self.failures = 0
        for talk in self.talks.values():
            talk.question = None
        for question in questions:
            question.answer([], f"the process that suggests parameters has failed: {why}", False)

    def _let_go(self) -> None:
        process, self.process = self.process, None
        for talk in self.talks.values():
            talk.told = None
        if process is not None:
            process.close()
            if not process.reap():
                self.leaving.append(process)


def _brief(trial: dict[str, Any]) -> dict[str, Any]:
    """What a sampler learns from a trial: while it runs, only that it does."""
    state = trial["state"]
    brief = {"trial": trial["trial"], "params": trial["params"], "state": state}
    if state in {"complete", "pruned"}:
        brief["value"] = trial.get("value")
    if state == "pruned" and trial.get("steps"):
        brief["steps"] = [max(trial["steps"], key=lambda pair: pair[0])]
    return brief
