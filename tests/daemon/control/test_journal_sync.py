"""JournalSync: deferred actions run after a successful sync, never before, and none is lost."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from memory_store import MemoryStore
from stoker.core.events import ProcessExited
from stoker.core.events.instructions import StartProcess
from stoker.core.model.job import AttemptId
from stoker.core.model.resources import Placement
from stoker.daemon import daemon_log
from stoker.daemon.bootstrap import build_daemon
from stoker.daemon.control import journal_sync
from stoker.daemon.control.daemon import Daemon
from stoker.daemon.control.journal_sync import AfterSync, JournalSync
from stoker.daemon.paths import DaemonPaths
from stoker.store.port import Store, StoreError, StoreFenced
from virtual_reactor import VirtualReactor

HERE = os.uname().nodename.partition(".")[0]
START = StartProcess(3, 0, Placement("far", ()))


class FailingStore(MemoryStore):
    """A store with failing syncs."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)
        self.syncs = 0

    def sync(self) -> None:
        self.syncs += 1
        if self.failures:
            raise self.failures.pop(0)


class FakeClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Fixture:
    """A JournalSync with its store and clock."""

    def __init__(self, *failures: Exception) -> None:
        self.disk, self.time = FailingStore(*failures), FakeClock()
        self.reactor = VirtualReactor(self.time)
        self.sync = JournalSync(cast("Store", self.disk), self.reactor)

    def seconds_left(self) -> float | None:
        """Return the time until the next sync."""
        self.reactor.run_timers()
        return self.reactor.seconds_until_timer()

    def run(self, more: AfterSync | None = None) -> AfterSync | None:
        """Sync once, like the loop."""
        self.reactor.run_timers()
        assert self.sync.is_due
        self.sync.begin(more or AfterSync())
        assert self.reactor.woken.wait(10)
        self.reactor.woken.clear()
        return self.sync.finish()


def waiting(directory: Path) -> AfterSync:
    report = directory / "report"
    report.mkdir()
    return AfterSync({"far": [AttemptId(3, 0)]}, [str(report)], [START])


def io_error() -> OSError:
    return OSError(5, "Input/output error")


def test_after_a_sync_all_deferred_actions_are_done(tmp_path: Path):
    fixture = Fixture()
    fixture.sync.request(0)
    done = fixture.run(waiting(tmp_path))
    assert done is not None
    assert (done.ended, done.starts) == ({"far": [(3, 0)]}, [START])
    assert list(tmp_path.iterdir()) == []
    assert fixture.seconds_left() is None


@pytest.mark.parametrize("error", [io_error(), StoreError("no"), ZeroDivisionError()])
@pytest.mark.parametrize("times", [1, 2, 7])
def test_failed_syncs_lose_no_deferred_action(tmp_path: Path, times: int, error: Exception):
    fixture = Fixture(*[error] * times)
    fixture.sync.request(0)
    assert fixture.run(waiting(tmp_path)) is None
    for number in range(1, times):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["report"]
        assert "cannot be synced" in str(fixture.sync.error)
        fixture.time.now += fixture.seconds_left() or 0.0
        assert fixture.run(AfterSync(starts=[StartProcess(4, number, START.placement)])) is None
    fixture.time.now += fixture.seconds_left() or 0.0
    done = fixture.run(AfterSync(ended={"far": [(5, 0)], "near": [(6, 0)]}))
    assert done is not None
    assert done.ended == {"far": [(3, 0), (5, 0)], "near": [(6, 0)]}
    assert [start.job for start in done.starts] == [3] + [4] * (times - 1)
    assert list(tmp_path.iterdir()) == []
    assert fixture.sync.error is None


def test_a_failed_sync_is_repeated_with_growing_pauses():
    fixture = Fixture(*[io_error()] * 8)
    pauses = []
    fixture.sync.request(0)
    while fixture.run() is None:
        fixture.sync.request(0)  # a start has to wait
        pauses.append(fixture.seconds_left())
        assert not fixture.sync.is_due
        fixture.time.now += pauses[-1] or 0.0
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert fixture.disk.syncs == 9


def test_a_slow_sync_is_not_repeated_at_once():
    fixture = Fixture()
    fixture.disk.sync = lambda: setattr(fixture.time, "now", fixture.time.now + 2)  # type: ignore[method-assign]
    fixture.sync.request(0)
    fixture.run()
    fixture.sync.request(0)
    assert fixture.seconds_left() == 8


def test_a_store_that_another_daemon_has_taken_over_ends_this_one():
    fixture = Fixture(StoreFenced("taken over"))
    fixture.sync.request(0)
    with pytest.raises(StoreFenced):
        fixture.run()


def test_a_thread_that_cannot_be_started_is_tried_again(tmp_path: Path):
    fixture, after = Fixture(), waiting(tmp_path)

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    fixture.sync._start_thread, start = refuse, fixture.sync._start_thread
    fixture.sync.request(0.0)
    assert fixture.run(after) is None
    assert "thread" in str(fixture.sync.error)
    fixture.sync._start_thread = start
    fixture.time.now += fixture.seconds_left() or 0.0
    assert fixture.run() is not None
    assert fixture.sync.error is None


def test_a_report_that_cannot_be_removed_does_not_block_other_actions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(_: list[str]) -> None:
        raise io_error()

    monkeypatch.setattr(journal_sync, "remove", fail)
    fixture = Fixture()
    fixture.sync.request(0)
    done = fixture.run(waiting(tmp_path))
    assert done is not None
    assert done.starts == [START]


@pytest.mark.parametrize("failures", [0, 1])
def test_at_the_end_unsynced_exits_keep_their_claims(tmp_path: Path, failures: int):
    fixture = Fixture(*[io_error()] * (1 + failures))
    fixture.sync.request(0)
    fixture.run(waiting(tmp_path))
    done = fixture.sync.close(AfterSync({"near": [AttemptId(4, 0)]}))
    assert (done is None) == bool(failures)
    if done is not None:
        assert done.ended == {"far": [(3, 0)], "near": [(4, 0)]}
    assert len(list(tmp_path.iterdir())) == (1 if failures else 0)


# -- in the loop --------------------------------------------------------------------------


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A daemon without a socket, with turns run by the test."""
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(daemon_log, "configure", lambda *_: None)
    made = build_daemon(DaemonPaths(), resources="{gpu:1}")
    yield made
    made.close()


def turns(loop: Daemon, until: Callable[[], Any]) -> None:
    for _ in range(1000):
        if until():
            return
        loop.turn()
        loop.reactor.wait(0.05)
    pytest.fail("it does not come to that")


def test_a_daemon_with_a_failing_disk_acknowledges_later_and_loses_nothing(
    loop: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    failures, acknowledgements = [io_error(), io_error(), io_error()], []
    synced = loop.store.sync

    def sync() -> None:
        if failures:
            raise failures.pop()
        synced()

    claim = Path(loop.local.claim_path(AttemptId(7, 0)))
    claim.touch()
    monkeypatch.setattr(loop.store, "sync", sync)
    monkeypatch.setattr(journal_sync, "RETRY_SECONDS", 0.0)
    acknowledge = loop.registry.acknowledge

    def acknowledged(ended: dict[str, list[AttemptId]]) -> None:
        acknowledgements.append(ended)
        acknowledge(ended)

    monkeypatch.setattr(loop.registry, "acknowledge", acknowledged)
    ended = {HERE: [AttemptId(7, 0)], "far": [AttemptId(7, 0)]}
    monkeypatch.setattr(loop.registry, "take_ended", lambda: ended)
    loop.local.expect_acknowledgement(AttemptId(7, 0))
    loop.sync.request(0)
    turns(loop, lambda: len(failures) < 3)
    monkeypatch.setattr(loop.registry, "take_ended", dict)
    turns(loop, lambda: failures == [] and loop.sync.error is not None)
    assert claim.exists()
    assert acknowledgements == []
    turns(loop, lambda: any(acknowledgements))
    assert [attempts for attempts in acknowledgements if attempts] == [ended]
    assert not claim.exists()


def test_claims_of_uncommitted_ends_are_kept(loop: Daemon, tmp_path: Path):
    exited = ProcessExited(at=1.0, job=7, attempt=0, code=0)
    loop.registry.on_event(HERE, exited)
    assert loop.registry.collect(loop.engine.state) == [exited]
    loop.engine.unwritten_events = cast("Any", ["an end"])
    assert loop._take_after_sync() == AfterSync()
    loop.engine.unwritten_events = []
    assert loop._take_after_sync() == AfterSync({HERE: [AttemptId(7, 0)]})
