"""Daemon: a turn from events and commands to instructions, replies and published events."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.fake_node import build_loop
from memory_store import MemoryStore
from stoker.core import events as e
from stoker.core.model.resources import DeviceFacts, NodeFacts
from stoker.core.state.state import State
from stoker.daemon.control.daemon import Daemon
from stoker.daemon.control.job_source import JobSource
from stoker.daemon.runtime.command_queue import QueuedCommand
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.store.port import StoreError, StoreFenced

NODE = NodeFacts("here", {"cpu": (DeviceFacts("pool", 1000),)})


class Replies:
    def __init__(self) -> None:
        self.values: list[Any] = []
        self.rejections: list[CommandRejected] = []

    def __call__(self, value: Any, rejection: CommandRejected | None) -> None:
        if rejection is None:
            self.values.append(value)
        else:
            self.rejections.append(rejection)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = build_loop(tmp_path, MemoryStore())
    made.record([e.NodeJoined(at=0, facts=NODE)])
    yield made
    made.close()
    made.reactor.close()


def put(daemon: Daemon, handler: Callable[[State, Instant], CommandResult]) -> Replies:
    replies = Replies()
    daemon.commands.put(QueuedCommand(handler, replies))
    return replies


def hide_history(state: State, now: Instant) -> CommandResult:
    return CommandResult(events=[e.FailuresDismissed(at=now.wall, jobs=())], reply=lambda _: "done")


def test_a_command_is_answered_and_its_events_are_published_in_one_turn(daemon: Daemon):
    published: list[e.Event] = []
    daemon.publisher.add_stream(lambda _, events: published.extend(events))
    replies = put(daemon, hide_history)
    daemon.turn()
    assert replies.values == ["done"]
    assert [type(item) for item in published] == [e.FailuresDismissed]
    assert daemon.engine.unsynced
    assert daemon.sync.is_requested
    due = daemon.reactor.next_due()
    assert due is not None
    assert due - daemon.reactor.time() <= 0.05


def test_an_executor_that_fails_keeps_no_command_from_its_reply(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
):
    def fail(_: object) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(daemon.dispatcher, "execute", fail)
    result = daemon.engine.cycle([], [QueuedCommand(hide_history, replies := Replies())])
    result.instructions.append(object())  # type: ignore[arg-type]
    daemon._act_on_safely(result)
    assert replies.values == ["done"]
    assert "executing instructions" in daemon.faults.report()[0]


def test_a_store_that_fails_is_logged_and_the_daemon_goes_on(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def commit(*_: Any, **__: Any) -> int:
        raise StoreError("the disk is on fire")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "stoker"):
        patch.setattr(daemon.store, "commit", commit)
        replies = put(daemon, hide_history)
        daemon.turn()
    assert [item.code for item in replies.rejections] == ["unavailable"]
    assert "the disk is on fire" in caplog.text
    assert put(daemon, hide_history).values == []
    daemon.turn()
    assert not daemon.lifecycle.is_stopped


def test_fencing_stops_the_daemon(daemon: Daemon, monkeypatch: pytest.MonkeyPatch):
    def commit(*_: Any, **__: Any) -> int:
        raise StoreFenced("another daemon")

    with monkeypatch.context() as patch:
        patch.setattr(daemon.store, "commit", commit)
        put(daemon, hide_history)
        with pytest.raises(StoreFenced):
            daemon.turn()
    assert daemon.lifecycle.is_stopped


def test_a_drained_daemon_stops_after_its_turn(daemon: Daemon):
    daemon.lifecycle.drain()
    daemon.turn()
    assert daemon.lifecycle.is_stopped


def test_the_loop_runs_until_it_is_stopped_and_survives_a_turn_that_fails(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
):
    turns: list[int] = []

    def turn() -> None:
        turns.append(1)
        if len(turns) == 1:
            raise KeyError("a bug")
        daemon.lifecycle.stop()

    monkeypatch.setattr(daemon.lifecycle, "listen_for_signals", lambda: None)
    monkeypatch.setattr(daemon, "turn", turn)
    monkeypatch.setattr(daemon.reactor, "wait", lambda _=None: None)
    daemon.run()
    assert len(turns) == 2
    assert "a turn of the daemon" in daemon.faults.report()[0]


def test_an_error_of_a_job_source_ends_the_loop(daemon: Daemon, monkeypatch: pytest.MonkeyPatch):
    class Broken(JobSource):
        def commands(self) -> list[Any]:
            raise KeyError("a bug")

    monkeypatch.setattr(daemon.lifecycle, "listen_for_signals", lambda: None)
    monkeypatch.setattr(daemon, "job_source", Broken())
    with pytest.raises(KeyError):
        daemon.run()


def test_a_stopping_daemon_rejects_commands(daemon: Daemon):
    replies = put(daemon, hide_history)
    daemon.reject_commands()
    assert [item.code for item in replies.rejections] == ["stopping"]


def test_a_plain_job_source_has_nothing_to_do():
    source = JobSource()
    source.on_events([])
    assert (source.commands(), source.next_wakeup(), source.on_signal(15)) == ([], None, False)
