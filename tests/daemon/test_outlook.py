"""The process that looks ahead: what becomes of one that hangs, dies or talks nonsense."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core import events as e
from stoker.core.state import State
from stoker.daemon import outlook
from stoker.daemon.desk import Desk, clock
from stoker.daemon.loop import Poller
from stoker.store.memory import MemoryStore


@pytest.fixture
def outlooks(tmp_path: Path) -> Iterator[outlook.Outlooks]:
    desk = Desk(MemoryStore(), str(tmp_path), "box", "ana")
    found = outlook.Outlooks(desk, Poller())
    yield found
    found.close()
    for process in found.leaving:
        process.process.wait(10)


def settle(outlooks: outlook.Outlooks) -> None:
    """Let the process say what it has to say."""
    for _ in range(1000):
        if outlooks.process is None:
            return
        outlooks.poller.wait(0.05)  # type: ignore[attr-defined]
    pytest.fail("it does not end")


def test_the_answer_is_kept_until_something_happens(outlooks: outlook.Outlooks) -> None:
    state, done = State(), []
    assert not outlooks.look(state, clock(), lambda: done.append(1))
    assert not done
    settle(outlooks)
    assert outlooks.trouble is None
    assert outlooks.latest is not None
    assert done == [1]
    outlooks.after([e.JobsSeen(at=0.0, jobs=())])
    assert outlooks.look(state, clock(), lambda: done.append(2))
    assert (outlooks.process, done) == (None, [1, 2])
    outlooks.after([e.JobHeld(at=0.0, job=1)])
    assert outlooks.look(state, clock())
    second = outlooks.process
    assert second is not None
    outlooks.look(state, clock())
    assert outlooks.process is second, "one at a time"
    outlooks.close()
    assert outlooks.process is None


@pytest.mark.parametrize(
    ("code", "why"),
    [("raise SystemExit('no luck')", "no luck"), ("print('?', flush=True)", "it answered b'?'")],
)
def test_one_that_fails_is_told(
    outlooks: outlook.Outlooks, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    monkeypatch.setattr(outlook, "COMMAND", ("-c", code))
    done: list[int] = []
    outlooks.look(State(), clock(), lambda: done.append(1))
    settle(outlooks)
    assert outlooks.latest is None
    assert outlooks.trouble is not None
    assert why in outlooks.trouble
    assert done == [1]


def test_one_that_is_killed_is_started_anew_and_what_there_is_says_so(
    outlooks: outlook.Outlooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State()
    outlooks.look(state, clock())
    settle(outlooks)
    first = outlooks.latest
    assert first is not None
    outlooks.after([e.JobHeld(at=0.0, job=1)])
    with monkeypatch.context() as slow:
        slow.setattr(outlook, "COMMAND", ("-c", "import time; time.sleep(600)"))
        outlooks.look(state, clock())
    assert outlooks.process is not None
    outlooks.process.process.kill()
    settle(outlooks)
    assert outlooks.latest is first

    decide = outlook.told(outlooks, outlooks.desk, [], 10)
    reply = decide(state, clock()).reply
    assert reply is not None
    said = reply(state)
    assert "the forecast process failed" in said["trouble"]
    assert said["age"] >= 0
    assert said["newer"], "nobody has to ask again"
    settle(outlooks)
    assert outlooks.latest is not first
    assert outlooks.trouble is None


def test_one_that_dies_again_and_again_is_not_started_for_every_answer(
    outlooks: outlook.Outlooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State()
    outlooks.look(state, clock())
    settle(outlooks)
    monkeypatch.setattr(outlook, "COMMAND", ("-c", "raise SystemExit('no luck')"))
    outlooks.after([e.JobHeld(at=0.0, job=1)])
    for times in (1, 2):
        outlooks.look(state, clock())
        settle(outlooks)
        assert outlooks.failed == times
    reply = outlook.told(outlooks, outlooks.desk, [], 10)(state, clock()).reply
    assert reply is not None
    assert not reply(state)["newer"]
    outlooks.look(state, clock())
    assert outlooks.process is not None, "a client that asks has another try"


def test_one_that_hangs_is_given_up(
    outlooks: outlook.Outlooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlook, "COMMAND", ("-c", "import time; time.sleep(600)"))
    outlooks.look(State(), clock())
    process = outlooks.process
    assert process is not None
    left = outlooks.tick()
    assert left is not None
    assert left > 0
    monkeypatch.setattr(outlook, "PATIENCE", 0.0)
    assert outlooks.tick() is None
    assert outlooks.trouble is not None
    assert "took longer" in outlooks.trouble
    process.process.wait(10)
    outlooks.tick()
    assert outlooks.leaving == []
