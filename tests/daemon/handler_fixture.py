"""Handlers in process: a RequestContext, a MemoryStore and a real Engine on a virtual clock."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.scenario import node
from memory_store import MemoryStore
from stoker.core import events as e
from stoker.core.model.job import Job, JobState
from stoker.core.state.record import ChangeSet
from stoker.core.state.state import State
from stoker.daemon.context import CommandHandler, RequestContext
from stoker.daemon.submission.submit import submit_jobs
from stoker.engine import Command, CommandRejected, CommandResult, Engine, Instant
from stoker.schema import requests as r


class RecordedCommand:
    """A command that keeps its reply or rejection."""

    def __init__(self, handler: CommandHandler) -> None:
        self._handler = handler
        self.value: Any = None
        self.rejection: CommandRejected | None = None

    def handle(self, state: State, now: Instant) -> CommandResult:
        return self._handler(state, now)

    def reply(self, value: Any) -> None:
        self.value = as_json(value)

    def reject(self, rejection: CommandRejected) -> None:
        self.rejection = rejection


class HandlerFixture:
    """The node `box`, user `ada`, and the means to submit, run and end jobs without processes."""

    def __init__(self, directory: Path, gpus: int = 2) -> None:
        self.directory = directory
        self.now = 1000.0
        self.store = MemoryStore()
        self.store.acquire_term()
        self.engine = Engine(self.store, lambda: Instant(self.now, self.now))
        self.context = RequestContext(self.store, str(directory / "logs"), "box", "ada")
        self.events: list[e.Event] = []
        """Events of the last cycle."""
        self.changes = ChangeSet()
        """What the last cycle changed."""
        self.apply(e.NodeJoined(at=self.now, facts=node(gpus)))

    @property
    def state(self) -> State:
        return self.engine.state

    def cycle(self, events: list[e.Event], commands: list[Command]) -> None:
        result = self.engine.cycle(events, commands)
        self.events, self.changes = result.events, result.changes
        for reply in result.replies:
            reply.send()
        result.raise_error()

    def apply(self, *events: e.Event) -> None:
        """Run a cycle with these events."""
        self.cycle(list(events), [])

    def ask(self, handler: CommandHandler) -> Any:
        """Run a cycle with one command; return its reply or raise its rejection."""
        command = RecordedCommand(handler)
        self.cycle([], [command])
        if command.rejection is not None:
            raise command.rejection
        return command.value

    def rejects(self, handler: CommandHandler, code: str, word: str) -> None:
        """Expect a rejection with this code and a message that contains this word."""
        with pytest.raises(CommandRejected) as error:
            self.ask(handler)
        assert_rejection(error.value, code, word)

    def submission(self, line: str = "true", **options: Any) -> r.Submit:
        return r.Submit(
            what=r.What(line=line), directory=str(self.directory), options=options,
            environment={"PATH": "/bin:/usr/bin", "HOME": "/home/ada"},
        )  # fmt: skip

    def submit(self, line: str = "true", **options: Any) -> int:
        """Submit a job; return its id (of an array: the first)."""
        receipt = self.ask(partial(submit_jobs, self.context, self.submission(line, **options)))
        return int(receipt["first"])

    def job(self, id: int) -> Job:
        return self.state.jobs[id]

    def status(self, id: int) -> str:
        return self.job(id).state.value

    def run(self, *ids: int) -> None:
        """The processes of these jobs have started."""
        for id in ids:
            attempt = self.job(id).attempt
            self.apply(e.ProcessStarted(at=self.now, job=id, attempt=attempt, pid=7, boot=self.now))

    def exit(self, id: int, code: int = 0) -> None:
        """The process of this job has ended."""
        if self.job(id).state is JobState.CONFIGURING:
            self.run(id)
        self.now += 1.0
        attempt = self.job(id).attempt
        self.apply(e.ProcessExited(at=self.now, job=id, attempt=attempt, code=code))

    def unload(self, *ids: int) -> None:
        """These finished jobs leave memory, as old ones do."""
        self.apply(e.JobsUnloaded(at=self.now, jobs=ids))

    def kinds(self) -> list[str]:
        """The kinds of the events of the last cycle."""
        return [type(event).__name__ for event in self.events]


def as_json(value: Any) -> Any:
    """Return a reply with its views as clients get them."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    is_view = type(value).__module__.startswith("stoker.schema")
    return msgspec.to_builtins(value) if is_view else value


def assert_rejection(rejection: CommandRejected, code: str, word: str) -> None:
    assert (rejection.code, word in rejection.message) == (code, True), rejection.message
