"""The agent's barrier: an attempt is ready, and waits for a limited time."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from executors.agent.local_transport import LocalTransport
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.agent.session.session import AgentSession

Notifications = list[list[str]]


@pytest.fixture
def agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[AgentSession, Notifications]]:
    monkeypatch.setenv("HOME", str(tmp_path))
    reactor, notifications = EpollReactor(), Notifications()
    names = {"ROOT": ".stoker", "INSTALL": tmp_path.name, "RUN_NAME": tmp_path.name}
    session = AgentSession(LocalTransport(), names, reactor, notifications.append, lambda why: None)
    wait(session, lambda: ["hello"] in [words[:1] for words in notifications])
    yield session, notifications
    session.close("done")


def wait(session: AgentSession, until: Callable[[], bool]) -> None:
    for _ in range(400):
        if until():
            return
        session.reactor.wait(0.05)  # type: ignore[attr-defined]
    raise AssertionError("nothing happened")


def find(notifications: Notifications, kind: str) -> list[str] | None:
    return next((words for words in notifications if words[0] == kind), None)


def start(session: AgentSession, line: str, barrier: int) -> None:
    session.request(None, "start", "7.0", "empty", "joined", "line", str(barrier), "nothing", "5",
             "22", "1", "A=1", line)  # fmt: skip


def log(tmp_path: Path) -> str:
    return (tmp_path / f".stoker/run/{tmp_path.name}/7.0.out").read_text()


def test_a_job_runs_after_its_barrier_with_the_variables_sent_then(
    agent: tuple[AgentSession, Notifications], tmp_path: Path
) -> None:
    session, notifications = agent
    start(session, 'echo $A $MASTER_PORT "$ODD"', 60)
    wait(session, lambda: find(notifications, "ready") is not None)
    assert find(notifications, "started") is None
    session.request(None, "pass_barrier", "7.0", "MASTER_PORT=29500", "ODD=a 'b' \"c\" $d \\n")
    wait(session, lambda: find(notifications, "exited") is not None)
    assert log(tmp_path) == "1 29500 a 'b' \"c\" $d \\n\n"


def test_a_barrier_that_times_out_cancels_the_start(
    agent: tuple[AgentSession, Notifications], tmp_path: Path
) -> None:
    session, notifications = agent
    start(session, f"touch {tmp_path}/ran", 1)
    wait(session, lambda: find(notifications, "released") is not None)
    reply: Notifications = []
    session.request(reply.append, "pass_barrier", "7.0")
    wait(session, lambda: reply == [["failed"]])
    assert not (tmp_path / "ran").exists()


def test_a_cancelled_start_does_not_run(
    agent: tuple[AgentSession, Notifications], tmp_path: Path
) -> None:
    session, notifications = agent
    start(session, f"touch {tmp_path}/ran", 60)
    wait(session, lambda: find(notifications, "ready") is not None)
    session.request(None, "cancel_start", "7.0")
    wait(session, lambda: find(notifications, "released") is not None)
    assert not (tmp_path / "ran").exists()


def test_a_port_that_a_process_listens_on_is_not_reserved(
    agent: tuple[AgentSession, Notifications],
) -> None:
    session, notifications = agent
    with socket.socket() as listener:
        with contextlib.suppress(OSError):  # another process listens on it: equally good
            listener.bind(("127.0.0.1", 29500))
            listener.listen()
        start(session, "true", 60)
        wait(session, lambda: find(notifications, "ready") is not None)
    ready = find(notifications, "ready")
    assert ready is not None
    assert int(ready[2]) > 29500
