"""A real daemon loop and a fake node at the other end of three pipes, driven by the test."""

import contextlib
import fcntl
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.json import encode

from memory_store import MemoryStore
from specs import spec_of
from stoker.core import events as e
from stoker.core.model.resources import DeviceFacts, NodeFacts, ResourceRequest
from stoker.core.model.spec import Spec
from stoker.daemon.bootstrap import assemble_daemon
from stoker.daemon.context import content_hash
from stoker.daemon.control.daemon import Daemon
from stoker.daemon.control.job_source import JobSource
from stoker.daemon.control.journal_sync import AfterSync
from stoker.daemon.runtime.clock import system_clock
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.daemon.settings import Settings
from stoker.executors.agent.executor import AgentEnvironment, AgentExecutor
from stoker.executors.agent.session.session import AgentSession
from stoker.executors.launch.paths import ExecutorPaths
from stoker.executors.local.executor import LocalExecutor
from stoker.executors.report_tokens import ReportTokens
from stoker.executors.ssh.factory import SshExecutorFactory
from stoker.faults import FaultTracker
from stoker.probes import remote_facts
from stoker.probes.gpu_reading import Reading

NAME = "gpu1"
INSTALL = f"{os.getpid():012x}"
"""Unique on this host: agents find the processes of an attempt by it."""
FACTS = """boot 11-22
home /home/me
connection 10.0.0.1 50000 10.0.0.2 22
cores 8
tool bash
MemTotal: 32768000 kB
MemAvailable: 16384000 kB
cpu 100 20 30 800 50 1 2 3 90 9
load 0.00 0.00 0.00 1/900 4242
disk /dev/sda 1000000 200 2048000 30% /home
gpu 0, GPU-a, NVIDIA A100, 81920, 400, 7, 40, 61.25
apps
end"""


class FakeSsh:
    """A fake ssh process of a session: the daemon's ends of three pipes."""

    pid = 0

    def __init__(self) -> None:
        ends = [os.pipe() for _ in range(3)]
        self.stdin = os.fdopen(ends[0][1], "wb", buffering=0)
        self.stdout = os.fdopen(ends[1][0], "rb", buffering=0)
        self.stderr = os.fdopen(ends[2][0], "rb", buffering=0)
        self.node_ends: dict[str, int] = {"in": ends[0][0], "out": ends[1][1], "err": ends[2][1]}
        for fd in (ends[0][0], ends[1][1], ends[2][1]):
            os.set_blocking(fd, False)
        self.returncode: int | None = None

    def end(self, *names: str) -> None:
        """Close the node's ends, like a program that ends."""
        for name in names or tuple(self.node_ends):
            if name in self.node_ends:
                os.close(self.node_ends.pop(name))

    def kill(self) -> None:
        self.returncode = -9
        self.end()

    def wait(self, _seconds: float | None = None) -> int | None:
        return self.returncode

    poll = wait


def build_loop(base: Path, store: MemoryStore) -> Daemon:
    """Return a daemon with this store and without supervisors: no local job runs."""
    for name in ("run", "exits", "scripts", "logs", "notes", "work"):
        (base / name).mkdir(exist_ok=True)
    reactor = EpollReactor()
    store.acquire_term()
    local = LocalExecutor(
        ExecutorPaths(str(base / "run"), str(base / "exits"), str(base / "scripts"), str(base)),
        INSTALL, [], reactor, lambda _: b"", lambda _: None,
    )  # fmt: skip
    agents = AgentEnvironment(
        INSTALL, str(base / "notes"), reactor, lambda _: b"", lambda _: None, remote_facts.parse
    )
    return assemble_daemon(
        store, local, {"ssh": SshExecutorFactory(str(base / "run"), agents).node}, Reading(),
        reactor, Settings(), "here", str(base / "logs"), str(base), FaultTracker(system_clock),
        ReportTokens(lambda: "key"), JobSource(),
    )  # fmt: skip


def first_events(shared: bool) -> list[e.Event]:
    """Return the events of the local node, with one core, and of the remote node."""
    now, local = time.time(), NodeFacts("here", {"cpu": (DeviceFacts("pool", 1000),)})
    return [
        e.NodeJoined(at=now, facts=local),
        e.NodeAdded(at=now, name=NAME, address="me@10.0.0.2", key=None, shared=shared),
    ]


def submission(spec: Spec, jobs: int, line: str = "true") -> list[e.Event]:
    """Return the events of a submission of jobs with ids from 1 on."""
    now, hash = time.time(), content_hash(encode(spec))
    return [
        e.SpecRecorded(at=now, hash=hash, spec=spec),
        e.JobsSubmitted(
            at=now, first=1, count=jobs, spec=hash, key="k", lines=(line,) * jobs,
            indexes=None, priority=0, held=False,
        ),
    ]  # fmt: skip


class NodeScenario:
    """A daemon with one fake node, and the requests that the node has received."""

    def __init__(self, base: Path, patch: pytest.MonkeyPatch, jobs: int = 3) -> None:
        self.base = base
        self.process: FakeSsh | None = None
        self.requests: list[list[str]] = []
        """Number, verb and words of each request that the node has read and not answered."""
        self._unread = b""
        patch.setattr(AgentSession, "_spawn", lambda link, *_: self._spawn(link))
        self.loop = build_loop(base, MemoryStore())
        self.events: list[e.Event] = []
        self.loop.publisher.add_stream(lambda _, events: self.events.extend(events))
        self.loop.record(
            [
                *first_events(shared=True),
                *submission(
                    spec_of(ResourceRequest(nodes=(NAME,)), directory=str(base / "work")), jobs
                ),
            ]
        )
        self.loop.training.start()
        self.turn()

    # -- the daemon ---------------------------------------------------------------------

    def _spawn(self, link: AgentSession) -> FakeSsh:
        if self.process is not None:
            self.process.kill()
        self.process, self.requests, self._unread = FakeSsh(), [], b""
        self.link = link
        link._unsent = b"0 agent\n"
        return self.process

    @property
    def executor(self) -> AgentExecutor:
        return cast("AgentExecutor", self.loop.registry.nodes[NAME].executor)

    @property
    def is_connected(self) -> bool:
        return self.executor.connection.session is not None

    def turn(self, count: int = 3) -> None:
        """Run turns of the daemon."""
        for _ in range(count):
            self.loop.turn()
            self.loop.reactor.wait(0)
        self._read()

    def until(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 10
        while not (result := condition()):
            assert time.monotonic() < deadline
            self.loop.turn()
            self.loop.reactor.wait(0.01)
            self._read()
        return result

    def events_of(self, kind: type[e.Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def reasons(self) -> list[str]:
        """The reasons for which the node was unreachable."""
        return [event.why for event in self.events_of(e.NodeUnreachable)]

    def close(self) -> None:
        self.loop.sync.close(AfterSync())
        self.loop.registry.close()
        self.loop.training.close()
        if self.process is not None:
            self.process.kill()
        self.loop.reactor.close()

    # -- the node -----------------------------------------------------------------------

    def _read(self) -> None:
        """Read requests of the daemon."""
        process = self.process
        if process is None or "in" not in process.node_ends:
            return
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(process.node_ends["in"], 1 << 16):
                self._unread += piece
        *lines, self._unread = self._unread.split(b"\n")
        requests = [shlex.split(os.fsdecode(line)) for line in lines]
        self.requests += [words for words in requests if words != ["0", "agent"]]

    def send(self, data: bytes, pipe: str = "out") -> None:
        """Send raw bytes; what does not fit into the pipe is lost."""
        if self.process is None or pipe not in self.process.node_ends:
            return
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self.process.node_ends[pipe], data)

    def send_line(self, *words: str) -> None:
        """Send a line of the agent."""
        self.send(os.fsencode(f"{self.link.nonce} {' '.join(words)}\n"))

    def bulk(self, request: str, *pieces: bytes) -> None:
        """Send bulk data."""
        for piece in (*pieces, b""):
            self.send(f"{self.link.nonce} {request} {len(piece)}\n".encode() + piece, "err")

    def enlarge_pipes(self) -> None:
        """Make the pipes as large as possible."""
        assert self.process is not None
        for name in ("out", "err"):
            fcntl.fcntl(self.process.node_ends[name], fcntl.F_SETPIPE_SZ, 1 << 20)

    def answer(self, states: dict[str, str] | None = None) -> None:
        """Reply to all requests like a real agent, with these states of attempts."""
        requests, self.requests = self.requests, []
        for number, verb, *words in requests:
            match verb:
                case "measure":
                    for line in FACTS.split("\n"):
                        self.send_line("-", "reading", line)
                    self.send_line("-", "reading-end")
                case "poll":
                    for word in words:
                        state, _, details = (states or {}).get(word, "revoked").partition(" ")
                        self.send_line(number, state, word, details)
                    self.send_line(number, "done")
                case "read_new" | "collect" | "read_file":
                    self.bulk(number)
                case "ping":
                    self.bulk(number)
                    self.send_line(number, "done")
                case "start":
                    self.send_line("-", "started", words[0], "4242")
                case _:
                    self.send_line(number, "done")
        self.turn()

    def come_up(self) -> None:
        """Connect the node and start its jobs."""
        self.until(lambda: self.process is not None)
        self.send_line("-", "hello", "11-22")
        self.until(lambda: self.requests)
        while not self.loop.registry.nodes[NAME].is_up:
            self.answer()
        self.until(lambda: any(words[1] == "start" for words in self.requests))
        self.answer()
        assert all(job.pid == 4242 for job in self.loop.engine.state.jobs.values())

    def check(self) -> None:
        """Assert what must hold after any behaviour of the node."""
        assert self.loop.faults.report() == []
        assert not any("internal error" in why for why in self.reasons), self.reasons
        connection = self.executor.connection
        assert (connection.session is None) == connection.retry.is_set
        if connection.session is not None:
            link = connection.session
            assert len(link._in_lines._rest) <= 1 << 17
            assert len(link._in_bulk._rest) <= 1 << 17
            assert len(link._in_bulk._body) <= 20 << 20
            assert len(link._requests) < 1000
            assert self.executor.readings._size <= 1 << 20
        for event in self.events:
            assert not isinstance(event, e.StartFailed | e.AttemptLost) or len(event.why) <= 2000
