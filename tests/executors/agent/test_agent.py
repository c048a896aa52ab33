"""The agent in every shell that may be there: claims, ends, logs and results."""

import contextlib
import io
import os
import secrets
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.daemon_fixture import alive, children_named, kill
from executors.agent.local_transport import LocalTransport
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.agent.session import reconnecting as connections
from stoker.executors.agent.session.session import AgentSession
from stoker.executors.agent.transfer.log_mirror import pieces

SHELLS = [
    pytest.param(program, marks=pytest.mark.skipif(
        shutil.which(program) is None, reason=f"no {program} here"))
    for program in ("dash", "bash", "busybox")
]  # fmt: skip
ODD = "a'b\"c$HOME`date`\\n!x *? \t;é\x01\x7f\n\n  end "


class Agent:
    """An agent and what it said."""

    def __init__(self, place: Path) -> None:
        self.place, self.reactor, self.news = place, EpollReactor(), list[list[str]]()
        # A name of its own: agents of other tests on this computer find processes by it, too.
        self.install = f"t{secrets.token_hex(4)}"
        self.run = place / f"home of one/.stoker/run/{self.install}"
        self.over: list[str] = []
        names = {"ROOT": ".stoker", "INSTALL": self.install}
        self.link = AgentSession(
            LocalTransport(), names, self.reactor, self.news.append, self.over.append
        )
        self.hears("hello")

    def wait(self, what: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 20
        while not (found := what()):
            assert time.monotonic() < deadline, str(self.news)
            self.reactor.wait(0.02)
        return found

    def hears(self, what: str) -> list[str]:
        found: list[str] = self.wait(lambda: [each for each in self.news if each[0] == what])[-1]
        return found

    def asks(self, verb: str, *words: str) -> list[list[str]]:
        said: list[list[str]] = []
        several = verb in ("look", "keys")
        self.link.request(said.append, verb, *words, max_lines=1000 if several else 1)
        self.wait(lambda: said and (said[-1][0] == "done" or not several))
        return said

    def fetches(self, verb: str, *words: str) -> dict[str, bytes]:
        said: list[bytes] = []
        self.link.request_bytes(said.append, verb, *words, max_bytes=4 << 20)
        found = pieces(self.wait(lambda: said)[0] if verb else b"")
        return {f"{piece.key} {piece.what} {piece.offset}": piece.data for piece in found}

    def start(
        self, key: str, line: str, *values: str, bring: str = "nothing", words: tuple[str, ...] = ()
    ) -> None:
        kind = "words" if words else "line"
        self.link.request(None, "start", key, "empty", "apart", kind, "0", bring, "1", "22",
                      str(len(values)), *values, *(words or (line,)))  # fmt: skip

    def stands(self, key: str) -> list[str]:
        return self.asks("look", key)[0]


@pytest.fixture(params=SHELLS)
def agent(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Agent]:
    home = tmp_path / "home of one"
    home.mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").symlink_to(str(shutil.which(request.param)))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NONCE", "exported")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    found = Agent(tmp_path)
    yield found
    found.link.close("done")


def test_a_job_its_variables_its_output_and_its_end(agent: Agent) -> None:
    show = 'printf "%s|" "$ODD" "$RUN" "$key" "${NONCE-none}"; echo err >&2; exit 7'
    agent.start("1.0", show, f"ODD={ODD}", "RUN=9", "key=8")
    assert agent.hears("exited")[1:] == ["1.0", "7", "0", "0"]
    assert (agent.run / "1.0.out").read_bytes() == os.fsencode(f"{ODD}|9|8|none|")
    assert (agent.run / "1.0.err").read_text() == "err\n"
    agent.start("2.0", "", words=("printf", "%s|", ODD, "a=b", "", "x" * 100_000))
    agent.wait(lambda: ["exited", "2.0", "0", "0", "0"] in agent.news)
    assert (agent.run / "2.0.out").read_bytes() == os.fsencode(f"{ODD}|a=b||{'x' * 100_000}|")


def test_an_order_that_comes_too_late_is_not_carried_out(agent: Agent, tmp_path: Path) -> None:
    assert agent.stands("1.0") == ["free", "1.0"]
    agent.start("1.0", f"touch '{tmp_path}/ran'")
    assert agent.hears("late")[1] == "1.0"
    assert agent.stands("1.0") == ["free", "1.0"]
    assert not (tmp_path / "ran").exists()


def test_two_orders_for_one_attempt_start_it_once(agent: Agent, tmp_path: Path) -> None:
    for number in range(5):
        for _ in range(3):
            agent.start(f"{number}.0", f"echo {number} >>'{tmp_path}/ran'")
    agent.wait(lambda: len([each for each in agent.news if each[0] in ("late", "exited")]) == 15)
    assert sorted((tmp_path / "ran").read_text().split()) == list("01234")


def test_how_attempts_stand(agent: Agent) -> None:
    agent.start("1.0", "exit 3")
    agent.hears("exited")
    assert agent.stands("1.0") == ["exited", "1.0", "3", "0", "0"]
    agent.start("2.0", "sleep 60")
    agent.wait(lambda: agent.news[-1][:2] == ["started", "2.0"])
    pid = agent.news[-1][2]
    assert agent.stands("2.0") == ["running", "2.0", pid]
    (agent.run / "3.0.claim").write_text("another-boot 1 1\n")
    assert agent.stands("3.0") == ["rebooted", "3.0"]
    boot, keeper, since = (agent.run / "2.0.claim").read_text().split()
    (agent.run / "4.0.claim").write_text(f"{boot} {keeper} {since}\n")
    assert agent.stands("4.0") == ["busy", "4.0"]
    kill(int(keeper))
    assert agent.stands("2.0") == ["running", "2.0", pid]
    assert agent.stands("4.0") == ["void", "4.0"]
    agent.asks("signal", "9", "2.0")
    agent.wait(lambda: agent.stands("2.0") == ["gone", "2.0"])


class Pipe:
    """A pipe in the place of a file: the agent waits where it reads it, until it is fed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._make()

    def _make(self) -> None:
        self.path.unlink(missing_ok=True)
        os.mkfifo(self.path)

    def read_by_agent(self, meanwhile: Callable[[], object], text: str) -> None:
        """Wait until the agent reads it, do something, then let it read this text."""
        with open(self.path, "w") as pipe:
            self._make()  # the next time that it is read
            meanwhile()
            pipe.write(text)


class Keeper:
    """A process that stands for the shell that looks after an attempt."""

    def __init__(self, agent: Agent, key: str) -> None:
        self.process = subprocess.Popen(["sleep", "60"])
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.record = agent.run / f"{key}.exit"
        (agent.run / f"{key}.claim").write_text(f"{boot} {self.process.pid} {fields[19]}\n")
        (agent.run / f"{key}.pid").write_text("none\n")
        self.record.write_text(f"none{' ' * 60}\n")

    def write_exit(self) -> None:
        with open(self.record, "r+") as file:
            file.write("exited 0 0 0\n")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def leave(self) -> None:
        """Write the exit down, then end: as the agent's own shells do."""
        self.write_exit()
        self.end()


def looks(agent: Agent, key: str, *pipes: tuple[Pipe, Callable[[], object], str]) -> list[str]:
    """Ask how an attempt stands, and do things while the agent finds out."""
    said: list[list[str]] = []
    agent.link.request(said.append, "look", key, max_lines=2)
    for pipe, meanwhile, text in pipes:
        pipe.read_by_agent(meanwhile, text)
    agent.wait(lambda: ["done"] in said)
    return said[0]


def test_an_attempt_that_ends_while_it_is_looked_at_has_its_exit(agent: Agent) -> None:
    keeper = Keeper(agent, "1.0")
    (agent.run / "1.0.begun").touch()
    (agent.run / "1.0.gate").touch()
    pipe = Pipe(agent.run / "1.0.port")
    assert looks(agent, "1.0", (pipe, keeper.leave, "29500\n"))[:3] == ["exited", "1.0", "0"]


def test_an_attempt_that_ended_before_it_is_looked_at_has_its_exit(agent: Agent) -> None:
    keeper = Keeper(agent, "1.0")
    keeper.leave()
    assert agent.stands("1.0")[:3] == ["exited", "1.0", "0"]


def test_an_attempt_without_a_record_is_gone_only_once_nothing_can_write_one(agent: Agent) -> None:
    keeper = Keeper(agent, "1.0")
    (agent.run / "1.0.begun").touch()
    (agent.run / "1.0.gate").touch()
    pipe = Pipe(agent.run / "1.0.port")
    assert looks(agent, "1.0", (pipe, keeper.end, "29500\n")) == ["busy", "1.0"]
    assert agent.stands("1.0") == ["gone", "1.0"]


def test_a_part_whose_shell_has_died_is_not_ready(agent: Agent) -> None:
    keeper = Keeper(agent, "1.0")
    (agent.run / "1.0.port").write_text("29500\n")
    assert agent.stands("1.0") == ["ready", "1.0", "29500"]
    keeper.end()
    assert agent.stands("1.0") == ["void", "1.0"]


def test_a_job_that_begins_and_ends_while_it_is_looked_at_is_not_void(agent: Agent) -> None:
    keeper = Keeper(agent, "1.0")
    keeper.end()
    pipe, begun = Pipe(agent.run / "1.0.pid"), agent.run / "1.0.begun"
    found = looks(agent, "1.0", (pipe, lambda: None, "none\n"), (pipe, begun.touch, "none\n"))
    assert found == ["gone", "1.0"]


def test_what_is_void_never_begins(agent: Agent, tmp_path: Path) -> None:
    keeper = Keeper(agent, "1.0")
    keeper.end()
    assert agent.stands("1.0") == ["void", "1.0"]
    assert agent.stands("1.0") == ["free", "1.0"]  # and stays so until nothing can come any more
    (agent.run / "1.0.claim").unlink()  # as if its first process had been on its way
    agent.start("1.0", f"touch '{tmp_path}/ran'")
    agent.hears("exited")
    assert not (tmp_path / "ran").exists()


def test_a_start_that_failed_does_not_hide_the_others(agent: Agent) -> None:
    agent.link.request(
        None, "start", "1.0", "/no such place", "joined", "line", "0", "nothing", "1", "22", "0",
        "true",
    )  # fmt: skip
    agent.hears("failed")
    agent.start("2.0", "exit 3")
    agent.hears("exited")
    assert [each[:2] for each in agent.asks("look", "1.0", "2.0")] == [
        ["failed", "1.0"], ["exited", "2.0"], ["done"],
    ]  # fmt: skip


def test_processes_that_hide_their_environment_are_found_by_their_session(agent: Agent) -> None:
    agent.start("1.0", "env -i sleep 61 & echo $! >&2; wait")
    agent.wait(lambda: (agent.run / "1.0.err").exists() and (agent.run / "1.0.err").read_text())
    child = int((agent.run / "1.0.err").read_text())
    agent.asks("signal", "15", "1.0")
    agent.wait(lambda: not alive(child))


class Runaway:
    """A process without parents, session and environment of its job."""

    def __init__(self) -> None:
        self.seconds = 100 + secrets.randbelow(10_000) / 10_000  # known by that
        self.line = f"env -i setsid sh -c 'sleep {self.seconds} & exit' & sleep 0.2;"

    @property
    def runs(self) -> bool:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if path.read_bytes() == f"sleep\0{self.seconds}\0".encode():
                    return True
        return False


def test_what_has_fled_is_killed_with_the_rest(agent: Agent) -> None:
    runaway = Runaway()
    agent.start("1.0", f"{runaway.line} sleep 65", f"STOKER_TOKEN={agent.install}.1.0.")
    agent.wait(lambda: runaway.runs)
    agent.asks("signal", "9", "1.0")
    assert agent.hears("exited")[:3] == ["exited", "1.0", "137"]
    assert not runaway.runs


def test_what_has_fled_is_ended_when_the_job_ends(agent: Agent) -> None:
    runaway = Runaway()
    agent.start("1.0", f"{runaway.line} exit 3", f"STOKER_TOKEN={agent.install}.1.0.")
    exited = agent.hears("exited")
    assert exited[:3] == ["exited", "1.0", "3"]
    assert int(exited[4]) >= 1
    assert not runaway.runs


def test_what_has_fled_is_killed_when_its_shell_is_gone(agent: Agent) -> None:
    runaway = Runaway()
    agent.start("1.0", f"{runaway.line} sleep 65", f"STOKER_TOKEN={agent.install}.1.0.")
    agent.wait(lambda: runaway.runs)
    kill(int((agent.run / "1.0.claim").read_text().split()[1]))
    kill(int((agent.run / "1.0.pid").read_text().split()[0]))
    assert agent.stands("1.0") == ["gone", "1.0"]
    agent.wait(lambda: agent.asks("salvage", "1.0", "nothing")[0][0] == "done")
    assert not runaway.runs


def test_a_limit_that_cannot_be_set_does_not_matter(agent: Agent) -> None:
    agent.link.close("done")
    lower = "ulimit -w 100 2>/dev/null || ulimit -x 100; exec sh"
    agent.place.joinpath("bin/low").write_text(f'#!/bin/sh\n{lower} -c "$1"\n')
    agent.place.joinpath("bin/low").chmod(0o755)

    news: list[list[str]] = []
    names = {"ROOT": ".stoker", "INSTALL": agent.install}
    agent.link = AgentSession(
        LocalTransport("low"), names, agent.reactor, news.append, agent.over.append
    )
    agent.news = news
    agent.hears("hello")
    agent.start("1.0", "echo fine; exit 4")
    assert agent.hears("exited")[2] == "4"
    assert (agent.run / "1.0.out").read_text() == "fine\n"
    assert not (agent.run / "1.0.mark").exists()


def test_what_is_left_behind_is_ended_and_counted(agent: Agent) -> None:
    line = "setsid sleep 62 >/dev/null 2>&1 & (trap '' TERM; sleep 63) & exit 0"
    agent.start("1.0", line, f"STOKER_TOKEN={agent.install}.1.0.")
    assert agent.hears("exited")[:4] == ["exited", "1.0", "0", "0"]
    assert int(agent.hears("exited")[4]) >= 1
    assert children_named("sleep", agent.place) == []


def test_logs_by_offset_and_within_a_budget(agent: Agent) -> None:
    agent.start("1.0", "printf 0123456789; printf abc >&2")
    agent.hears("exited")
    assert agent.fetches("grown", "100", "1.0", "4", "1", "0") == {
        "1.0 out 4": b"456789", "1.0 err 1": b"bc",
    }  # fmt: skip
    assert agent.fetches("grown", "7", "1.0", "4", "0", "0") == {
        "1.0 out 4": b"456789", "1.0 err 0": b"a",
    }  # fmt: skip
    assert agent.fetches("grown", "100", "1.0", "10", "3", "0", "9.0", "0", "0", "0") == {}
    assert agent.fetches("grown", "100", "1.0", "11", "3", "0") == {
        "1.0 cut-out 0": b"", "1.0 out 0": b"0123456789",
    }  # fmt: skip


def test_any_offset_of_a_large_log(agent: Agent) -> None:
    data = os.urandom(200_000)
    (agent.run / "1.0.out").write_bytes(data)
    for offset in (0, 1, 65535, 65536, 65537, 131072, 199_999):
        for most in (1, 65536, 300_000):
            found = agent.fetches("grown", str(most), "1.0", str(offset), "0", "0")
            assert found == {f"1.0 out {offset}": data[offset : offset + most]}


def test_results_come_as_a_tar_or_are_left_to_others(agent: Agent) -> None:
    name = "odd\n\\n name"
    agent.start("1.0", 'printf hi >"$NAME"', f"NAME={name}", bring="changed")
    assert agent.hears("exited")[3] == "1"
    found = agent.fetches("collect", "1000000", "1.0", "0", "0", "0")
    with tarfile.open(fileobj=io.BytesIO(found["1.0 tar 0"])) as tar:
        assert tar.getnames() == [f"./{name}"]
    assert agent.fetches("collect", "100", "1.0", "0", "0", "0") == {"1.0 tar 0": b""}
    agent.asks("keep", "1.0")
    agent.asks("forget", "1.0")
    kept = agent.run.parents[1] / f"kept/{agent.install}.1.0"
    agent.wait(lambda: not (agent.run / "1.0.claim").exists())
    assert (kept / name).read_text() == "hi"


def test_a_shell_that_was_killed_is_noticed(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEPALIVE_SECONDS", 0.1)
    monkeypatch.setattr(connections, "REPLY_SECONDS", 0.3)
    heard: list[str] = []

    class Owner:
        def on_up(self) -> None:
            heard.append("up")

        def on_down(self, why: str) -> None:
            heard.append(why)

        def on_notification(self, words: list[str]) -> None:
            heard.append(words[0])

    link = connections.ReconnectingSession(LocalTransport(), "there", agent.reactor, Owner())

    def turn(what: str) -> Callable[[], bool]:
        return lambda: (link.tick(), what in heard)[1]

    agent.wait(turn("up"))
    assert link.session is not None
    link.request(None, "start", "1.0", "empty", "joined", "line", "0", "nothing", "1", "22", "0",
             "sleep 60")  # fmt: skip
    agent.wait(turn("started"))
    os.kill(link.session.process.pid, signal.SIGKILL)
    link.session.process.poll()
    agent.wait(turn("the shell stopped answering"))
    link.close()
    agent.asks("signal", "9", "1.0")
