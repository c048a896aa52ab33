"""The agent in each supported shell: claims, exits, logs and results."""

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
    """A running agent, its notifications, and requests to it."""

    def __init__(self, base: Path) -> None:
        self.base, self.reactor, self.notifications = base, EpollReactor(), list[list[str]]()
        # Unique: agents of other tests on this host find processes by it, too.
        self.install = f"t{secrets.token_hex(4)}"
        self.run = base / f"home of a user/.stoker/run/{self.install}"
        self.closed: list[str] = []
        names = {"ROOT": ".stoker", "INSTALL": self.install, "RUN_NAME": self.install}
        self.session = AgentSession(
            LocalTransport(), names, self.reactor, self.notifications.append, self.closed.append
        )
        self.wait_for("hello")

    def wait(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 20
        while not (result := condition()):
            assert time.monotonic() < deadline, str(self.notifications)
            self.reactor.wait(0.02)
        return result

    def wait_for(self, kind: str) -> list[str]:
        latest: list[str] = self.wait(
            lambda: [words for words in self.notifications if words[0] == kind]
        )[-1]
        return latest

    def request(self, verb: str, *words: str) -> list[list[str]]:
        reply: list[list[str]] = []
        several = verb in ("poll", "poll_records", "list_attempts")
        self.session.request(reply.append, verb, *words, max_lines=1000 if several else 1)
        self.wait(lambda: reply and (reply[-1][0] == "done" or not several))
        return reply

    def fetch(self, verb: str, *words: str) -> dict[str, bytes]:
        replies: list[bytes] = []
        self.session.request_bytes(replies.append, verb, *words, max_bytes=4 << 20)
        received = pieces(self.wait(lambda: replies)[0] if verb else b"")
        return {f"{piece.key} {piece.what} {piece.offset}": piece.data for piece in received}

    def start(
        self,
        key: str,
        line: str,
        *values: str,
        results: str = "nothing",
        words: tuple[str, ...] = (),
    ) -> None:
        kind = "argv" if words else "line"
        self.session.request(None, "start", key, "empty", "separate", kind, "0", results, "1", "22",
                      str(len(values)), *values, *(words or (line,)))  # fmt: skip

    def state_of(self, key: str) -> list[str]:
        return self.request("poll", key)[0]


@pytest.fixture(params=SHELLS)
def agent(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Agent]:
    home = tmp_path / "home of a user"
    home.mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").symlink_to(str(shutil.which(request.param)))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NONCE", "exported")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    running = Agent(tmp_path)
    yield running
    running.session.close("done")


def test_a_job_gets_its_variables_and_its_output_and_exit_are_recorded(agent: Agent) -> None:
    show = 'printf "%s|" "$ODD" "$RUN" "$key" "${NONCE-none}"; echo err >&2; exit 7'
    agent.start("1.0", show, f"ODD={ODD}", "RUN=9", "key=8")
    assert agent.wait_for("exited")[1:] == ["1.0", "7", "0", "0"]
    assert (agent.run / "1.0.out").read_bytes() == os.fsencode(f"{ODD}|9|8|none|")
    assert (agent.run / "1.0.err").read_text() == "err\n"
    agent.start("2.0", "", words=("printf", "%s|", ODD, "a=b", "", "x" * 100_000))
    agent.wait(lambda: ["exited", "2.0", "0", "0", "0"] in agent.notifications)
    assert (agent.run / "2.0.out").read_bytes() == os.fsencode(f"{ODD}|a=b||{'x' * 100_000}|")


def test_a_start_request_after_the_claim_was_revoked_has_no_effect(
    agent: Agent, tmp_path: Path
) -> None:
    assert agent.state_of("1.0") == ["revoked", "1.0"]
    agent.start("1.0", f"touch '{tmp_path}/ran'")
    assert agent.wait_for("late")[1] == "1.0"
    assert agent.state_of("1.0") == ["revoked", "1.0"]
    assert not (tmp_path / "ran").exists()


def test_several_start_requests_for_one_attempt_start_it_once(agent: Agent, tmp_path: Path) -> None:
    for number in range(5):
        for _ in range(3):
            agent.start(f"{number}.0", f"echo {number} >>'{tmp_path}/ran'")
    agent.wait(
        lambda: (
            len([words for words in agent.notifications if words[0] in ("late", "exited")]) == 15
        )
    )
    assert sorted((tmp_path / "ran").read_text().split()) == list("01234")


def test_a_poll_reports_the_state_of_an_attempt(agent: Agent) -> None:
    agent.start("1.0", "exit 3")
    agent.wait_for("exited")
    assert agent.state_of("1.0") == ["exited", "1.0", "3", "0", "0"]
    agent.start("2.0", "sleep 60")
    agent.wait(lambda: agent.notifications[-1][:2] == ["started", "2.0"])
    pid = agent.notifications[-1][2]
    assert agent.state_of("2.0") == ["running", "2.0", pid]
    (agent.run / "3.0.claim").write_text("another-boot 1 1\n")
    assert agent.state_of("3.0") == ["rebooted", "3.0"]
    boot, supervisor_pid, start_time = (agent.run / "2.0.claim").read_text().split()
    (agent.run / "4.0.claim").write_text(f"{boot} {supervisor_pid} {start_time}\n")
    assert agent.state_of("4.0") == ["busy", "4.0"]
    kill(int(supervisor_pid))
    assert agent.state_of("2.0") == ["running", "2.0", pid]
    assert agent.state_of("4.0") == ["not-begun", "4.0"]
    agent.request("signal", "9", "2.0")
    agent.wait(lambda: agent.state_of("2.0") == ["gone", "2.0"])


class Pipe:
    """A named pipe in place of a file: the agent blocks when it reads it, until a test writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._make()

    def _make(self) -> None:
        self.path.unlink(missing_ok=True)
        os.mkfifo(self.path)

    def read_by_agent(self, meanwhile: Callable[[], object], text: str) -> None:
        """Wait until the agent opens it, call `meanwhile`, then let it read this text."""
        with open(self.path, "w") as pipe:
            self._make()  # for the next read
            meanwhile()
            pipe.write(text)


class FakeSupervisor:
    """A process that stands in for the supervisor of an attempt, and the files of the attempt."""

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

    def record_exit_and_end(self) -> None:
        """Record the exit, then end, in the order of a real supervisor."""
        self.write_exit()
        self.end()


def poll_meanwhile(
    agent: Agent, key: str, *pipes: tuple[Pipe, Callable[[], object], str], verb: str = "poll"
) -> list[str]:
    """Poll an attempt and act at the points where the agent reads these pipes."""
    # The end of its clean-up would interrupt a busybox that waits for a pipe to be opened.
    pid, reply = agent.session.process.pid, list[list[str]]()
    children = Path(f"/proc/{pid}/task/{pid}/children")
    agent.wait(lambda: not any(alive(int(child)) for child in children.read_text().split()))
    agent.session.request(reply.append, verb, key, max_lines=3)
    for pipe, meanwhile, text in pipes:
        pipe.read_by_agent(meanwhile, text)
    agent.wait(lambda: ["done"] in reply)
    return reply[0]


def test_an_attempt_that_ends_during_a_poll_is_reported_with_its_exit(agent: Agent) -> None:
    supervisor = FakeSupervisor(agent, "1.0")
    (agent.run / "1.0.begun").touch()
    (agent.run / "1.0.gate").touch()
    pipe = Pipe(agent.run / "1.0.port")
    assert poll_meanwhile(agent, "1.0", (pipe, supervisor.record_exit_and_end, "29500\n"))[:3] == [
        "exited",
        "1.0",
        "0",
    ]


def test_an_attempt_that_ended_before_a_poll_is_reported_with_its_exit(agent: Agent) -> None:
    supervisor = FakeSupervisor(agent, "1.0")
    supervisor.record_exit_and_end()
    assert agent.state_of("1.0")[:3] == ["exited", "1.0", "0"]


def test_an_attempt_without_a_record_is_gone_only_once_nothing_can_write_one(agent: Agent) -> None:
    supervisor = FakeSupervisor(agent, "1.0")
    (agent.run / "1.0.begun").touch()
    (agent.run / "1.0.gate").touch()
    pipe = Pipe(agent.run / "1.0.port")
    assert poll_meanwhile(agent, "1.0", (pipe, supervisor.end, "29500\n")) == ["busy", "1.0"]
    assert agent.state_of("1.0") == ["gone", "1.0"]


def test_a_part_with_a_dead_supervisor_is_not_ready(agent: Agent) -> None:
    supervisor = FakeSupervisor(agent, "1.0")
    (agent.run / "1.0.port").write_text("29500\n")
    assert agent.state_of("1.0") == ["ready", "1.0", "29500"]
    supervisor.end()
    assert agent.state_of("1.0") == ["not-begun", "1.0"]


def test_a_job_that_begins_and_ends_during_a_poll_is_gone(agent: Agent) -> None:
    supervisor = FakeSupervisor(agent, "1.0")
    supervisor.end()
    pipe, begun = Pipe(agent.run / "1.0.pid"), agent.run / "1.0.begun"
    state = poll_meanwhile(
        agent, "1.0", (pipe, lambda: None, "none\n"), (pipe, begun.touch, "none\n")
    )
    assert state == ["gone", "1.0"]


def test_an_attempt_that_was_reported_as_not_begun_never_begins(
    agent: Agent, tmp_path: Path
) -> None:
    supervisor = FakeSupervisor(agent, "1.0")
    supervisor.end()
    assert agent.state_of("1.0") == ["not-begun", "1.0"]
    assert agent.state_of("1.0") == ["revoked", "1.0"]  # and stays revoked
    (agent.run / "1.0.claim").unlink()  # as if its first process were about to begin
    agent.start("1.0", f"touch '{tmp_path}/ran'")
    agent.wait_for("exited")
    assert not (tmp_path / "ran").exists()


def test_a_start_that_failed_does_not_hide_the_others(agent: Agent) -> None:
    agent.session.request(
        None, "start", "1.0", "/no such place", "joined", "line", "0", "nothing", "1", "22", "0",
        "true",
    )  # fmt: skip
    agent.wait_for("failed")
    agent.start("2.0", "exit 3")
    agent.wait_for("exited")
    assert [state[:2] for state in agent.request("poll", "1.0", "2.0")] == [
        ["failed", "1.0"], ["exited", "2.0"], ["done"],
    ]  # fmt: skip


def test_processes_with_an_empty_environment_are_found_by_their_session(agent: Agent) -> None:
    agent.start("1.0", "env -i sleep 61 & echo $! >&2; wait")
    agent.wait(lambda: (agent.run / "1.0.err").exists() and (agent.run / "1.0.err").read_text())
    child = int((agent.run / "1.0.err").read_text())
    agent.request("signal", "15", "1.0")
    agent.wait(lambda: not alive(child))


class DetachedProcess:
    """A process that left its job's session and has neither its parent nor its environment."""

    def __init__(self) -> None:
        self.seconds = 100 + secrets.randbelow(10_000) / 10_000  # it is recognised by these
        self.line = f"env -i setsid sh -c 'sleep {self.seconds} & exit' & sleep 0.2;"

    @property
    def is_running(self) -> bool:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if path.read_bytes() == f"sleep\0{self.seconds}\0".encode():
                    return True
        return False


def test_a_detached_process_is_killed_with_its_job(agent: Agent) -> None:
    detached = DetachedProcess()
    agent.start("1.0", f"{detached.line} sleep 65", f"STOKER_TOKEN={agent.install}.1.0.")
    agent.wait(lambda: detached.is_running)
    agent.request("signal", "9", "1.0")
    assert agent.wait_for("exited")[:3] == ["exited", "1.0", "137"]
    assert not detached.is_running


def test_a_detached_process_is_ended_when_its_job_ends(agent: Agent) -> None:
    detached = DetachedProcess()
    agent.start("1.0", f"{detached.line} exit 3", f"STOKER_TOKEN={agent.install}.1.0.")
    exited = agent.wait_for("exited")
    assert exited[:3] == ["exited", "1.0", "3"]
    assert int(exited[4]) >= 1
    assert not detached.is_running


def test_a_detached_process_is_killed_when_its_supervisor_has_died(agent: Agent) -> None:
    detached = DetachedProcess()
    agent.start("1.0", f"{detached.line} sleep 65", f"STOKER_TOKEN={agent.install}.1.0.")
    agent.wait(lambda: detached.is_running)
    kill(int((agent.run / "1.0.claim").read_text().split()[1]))
    kill(int((agent.run / "1.0.pid").read_text().split()[0]))
    assert agent.state_of("1.0") == ["gone", "1.0"]
    agent.wait(lambda: agent.request("end_unrecorded", "1.0", "nothing")[0][0] == "done")
    assert not detached.is_running


def test_a_job_runs_if_its_mark_cannot_be_set(agent: Agent) -> None:
    agent.session.close("done")
    limit = "ulimit -w 100 2>/dev/null || ulimit -x 100; exec sh"
    agent.base.joinpath("bin/low").write_text(f'#!/bin/sh\n{limit} -c "$1"\n')
    agent.base.joinpath("bin/low").chmod(0o755)

    notifications: list[list[str]] = []
    names = {"ROOT": ".stoker", "INSTALL": agent.install, "RUN_NAME": agent.install}
    agent.session = AgentSession(
        LocalTransport("low"), names, agent.reactor, notifications.append, agent.closed.append
    )
    agent.notifications = notifications
    agent.wait_for("hello")
    agent.start("1.0", "echo fine; exit 4")
    assert agent.wait_for("exited")[2] == "4"
    assert (agent.run / "1.0.out").read_text() == "fine\n"
    assert not (agent.run / "1.0.mark").exists()


def test_processes_that_a_job_leaves_behind_are_ended_and_counted(agent: Agent) -> None:
    line = "setsid sleep 62 >/dev/null 2>&1 & (trap '' TERM; sleep 63) & exit 0"
    agent.start("1.0", line, f"STOKER_TOKEN={agent.install}.1.0.")
    assert agent.wait_for("exited")[:4] == ["exited", "1.0", "0", "0"]
    assert int(agent.wait_for("exited")[4]) >= 1
    assert children_named("sleep", agent.base) == []


def test_new_output_is_sent_from_an_offset_and_up_to_a_limit(agent: Agent) -> None:
    agent.start("1.0", "printf 0123456789; printf abc >&2")
    agent.wait_for("exited")
    assert agent.fetch("read_new", "100", "1.0", "4", "1", "0") == {
        "1.0 out 4": b"456789", "1.0 err 1": b"bc",
    }  # fmt: skip
    assert agent.fetch("read_new", "7", "1.0", "4", "0", "0") == {
        "1.0 out 4": b"456789", "1.0 err 0": b"a",
    }  # fmt: skip
    assert agent.fetch("read_new", "100", "1.0", "10", "3", "0", "9.0", "0", "0", "0") == {}
    assert agent.fetch("read_new", "100", "1.0", "11", "3", "0") == {
        "1.0 cut-out 0": b"", "1.0 out 0": b"0123456789",
    }  # fmt: skip


def test_any_offset_of_a_large_log(agent: Agent) -> None:
    data = os.urandom(200_000)
    (agent.run / "1.0.out").write_bytes(data)
    for offset in (0, 1, 65535, 65536, 65537, 131072, 199_999):
        for max_bytes in (1, 65536, 300_000):
            sent = agent.fetch("read_new", str(max_bytes), "1.0", str(offset), "0", "0")
            assert sent == {f"1.0 out {offset}": data[offset : offset + max_bytes]}


def test_results_are_sent_as_a_tar_unless_they_exceed_the_limit(agent: Agent) -> None:
    name = "odd\n\\n name"
    agent.start("1.0", 'printf hi >"$NAME"', f"NAME={name}", results="changed")
    assert agent.wait_for("exited")[3] == "1"
    sent = agent.fetch("collect", "1000000", "1.0", "0", "0", "0")
    with tarfile.open(fileobj=io.BytesIO(sent["1.0 tar 0"])) as tar:
        assert tar.getnames() == [f"./{name}"]
    assert agent.fetch("collect", "100", "1.0", "0", "0", "0") == {"1.0 tar 0": b""}
    agent.request("keep_results", "1.0")
    agent.request("forget", "1.0")
    kept = agent.run.parents[1] / f"kept/{agent.install}.1.0"
    agent.wait(lambda: not (agent.run / "1.0.claim").exists())
    assert (kept / name).read_text() == "hi"


def test_a_killed_transport_is_noticed_by_the_missing_reply(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEEPALIVE_SECONDS", 0.1)
    monkeypatch.setattr(connections, "REPLY_SECONDS", 0.3)
    calls: list[str] = []

    class Listener:
        def on_up(self) -> None:
            calls.append("up")

        def on_down(self, why: str) -> None:
            calls.append(why)

        def on_notification(self, words: list[str]) -> None:
            calls.append(words[0])

    session = connections.ReconnectingSession(LocalTransport(), "there", agent.reactor, Listener())
    session.open()

    def called(expected: str) -> Callable[[], bool]:
        return lambda: expected in calls

    agent.wait(called("up"))
    assert session.session is not None
    session.request(None, "start", "1.0", "empty", "joined", "line", "0", "nothing", "1", "22", "0",
             "sleep 60")  # fmt: skip
    agent.wait(called("started"))
    os.kill(session.session.process.pid, signal.SIGKILL)
    session.session.process.poll()
    agent.wait(called("the shell stopped answering"))
    session.close()
    agent.request("signal", "9", "1.0")
