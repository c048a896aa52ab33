"""The agent's gate: claimed and ready, but nothing runs before `go`, and not for ever."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from executors.agent.local_transport import LocalTransport
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.agent.session import session as links

News = list[list[str]]


@pytest.fixture
def agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[links.AgentSession, News]]:
    monkeypatch.setenv("HOME", str(tmp_path))
    reactor, news = EpollReactor(), News()
    names = {"ROOT": ".stoker", "INSTALL": tmp_path.name}
    link = links.AgentSession(LocalTransport(), names, reactor, news.append, lambda why: None)
    wait(link, lambda: ["hello"] in [each[:1] for each in news])
    yield link, news
    link.close("done")


def wait(link: links.AgentSession, until: Callable[[], bool]) -> None:
    for _ in range(400):
        if until():
            return
        link.reactor.wait(0.05)  # type: ignore[attr-defined]
    raise AssertionError("nothing happened")


def told(news: News, what: str) -> list[str] | None:
    return next((each for each in news if each[0] == what), None)


def start(link: links.AgentSession, line: str, gate: int) -> None:
    link.request(None, "start", "7.0", "empty", "joined", "line", str(gate), "nothing", "5",
             "22", "1", "A=1", line)  # fmt: skip


def log(tmp_path: Path) -> str:
    return (tmp_path / f".stoker/run/{tmp_path.name}/7.0.out").read_text()


def test_it_waits_for_go_and_learns_what_go_says(
    agent: tuple[links.AgentSession, News], tmp_path: Path
) -> None:
    link, news = agent
    start(link, 'echo $A $MASTER_PORT "$ODD"', 60)
    wait(link, lambda: told(news, "ready") is not None)
    assert told(news, "started") is None
    link.request(None, "go", "7.0", "MASTER_PORT=29500", "ODD=a 'b' \"c\" $d \\n")
    wait(link, lambda: told(news, "exited") is not None)
    assert log(tmp_path) == "1 29500 a 'b' \"c\" $d \\n\n"


def test_no_go_in_time_and_it_is_released_for_good(
    agent: tuple[links.AgentSession, News], tmp_path: Path
) -> None:
    link, news = agent
    start(link, f"touch {tmp_path}/ran", 1)
    wait(link, lambda: told(news, "released") is not None)
    said: News = []
    link.request(said.append, "go", "7.0")
    wait(link, lambda: said == [["failed"]])
    assert not (tmp_path / "ran").exists()


def test_released_by_word_it_does_not_run(
    agent: tuple[links.AgentSession, News], tmp_path: Path
) -> None:
    link, news = agent
    start(link, f"touch {tmp_path}/ran", 60)
    wait(link, lambda: told(news, "ready") is not None)
    link.request(None, "release", "7.0")
    wait(link, lambda: told(news, "released") is not None)
    assert not (tmp_path / "ran").exists()


def test_a_port_that_somebody_listens_on_is_not_given_out(
    agent: tuple[links.AgentSession, News],
) -> None:
    link, news = agent
    with socket.socket() as listener:
        with contextlib.suppress(OSError):  # somebody else has it: as good
            listener.bind(("127.0.0.1", 29500))
            listener.listen()
        start(link, "true", 60)
        wait(link, lambda: told(news, "ready") is not None)
    ready = told(news, "ready")
    assert ready is not None
    assert int(ready[2]) > 29500
