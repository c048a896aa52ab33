"""A real loop with a node at the other end of three pipes: the test is the node, and may lie."""

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
from stoker.core.cluster import DeviceFacts, NodeFacts
from stoker.core.job import Spec
from stoker.core.request import Request
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


class Process:
    """What a link takes for its ssh: the near ends of three pipes."""

    pid = 0

    def __init__(self) -> None:
        ends = [os.pipe() for _ in range(3)]
        self.stdin = os.fdopen(ends[0][1], "wb", buffering=0)
        self.stdout = os.fdopen(ends[1][0], "rb", buffering=0)
        self.stderr = os.fdopen(ends[2][0], "rb", buffering=0)
        self.far: dict[str, int] = {"in": ends[0][0], "out": ends[1][1], "err": ends[2][1]}
        for fd in (ends[0][0], ends[1][1], ends[2][1]):
            os.set_blocking(fd, False)
        self.returncode: int | None = None

    def end(self, *names: str) -> None:
        """Close far ends, as a program that ends does."""
        for name in names or tuple(self.far):
            if name in self.far:
                os.close(self.far.pop(name))

    def kill(self) -> None:
        self.returncode = -9
        self.end()

    def wait(self, _seconds: float | None = None) -> int | None:
        return self.returncode

    poll = wait


def build_loop(place: Path, store: MemoryStore) -> Daemon:
    """A loop that has taken a store over, without supervisors: nothing is to run here."""
    for name in ("run", "exits", "scripts", "logs", "notes", "work"):
        (place / name).mkdir(exist_ok=True)
    reactor = EpollReactor()
    store.acquire_term()
    local = LocalExecutor(
        ExecutorPaths(str(place / "run"), str(place / "exits"), str(place / "scripts"), str(place)),
        INSTALL, [], reactor, lambda _: b"", lambda _: None,
    )  # fmt: skip
    agents = AgentEnvironment(
        INSTALL, str(place / "notes"), reactor, lambda _: b"", lambda _: None, remote_facts.parse
    )
    return assemble_daemon(
        store, local, {"ssh": SshExecutorFactory(str(place / "run"), agents)}, Reading(), reactor,
        Settings(), "here", str(place / "logs"), str(place), FaultTracker(system_clock),
        JobSource(),
    )  # fmt: skip


def first_events(shared: bool) -> list[e.Event]:
    """This machine, with one core, and the node."""
    now, here = time.time(), NodeFacts("here", {"cpu": (DeviceFacts("pool", 1000),)})
    return [
        e.NodeJoined(at=now, facts=here),
        e.NodeAdded(at=now, name=NAME, address="me@10.0.0.2", key=None, shared=shared),
    ]


def submission(spec: Spec, jobs: int, line: str = "true") -> list[e.Event]:
    """Jobs with ids from 1 on."""
    now, hash = time.time(), content_hash(encode(spec))
    return [
        e.SpecRecorded(at=now, hash=hash, spec=spec),
        e.JobsSubmitted(
            at=now, first=1, count=jobs, spec=hash, key="k", lines=(line,) * jobs,
            indexes=None, priority=0, held=False,
        ),
    ]  # fmt: skip


class World:
    """A loop with one node, and what the node was asked."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch, jobs: int = 3) -> None:
        self.place = place
        self.process: Process | None = None
        self.requests: list[list[str]] = []
        """Number, verb and words of each request that the node has read and not answered."""
        self._unread = b""
        patch.setattr(AgentSession, "_spawn", lambda link, *_: self._spawn(link))
        self.loop = build_loop(place, MemoryStore())
        self.events: list[e.Event] = []
        self.loop.publisher.add_stream(lambda _, events: self.events.extend(events))
        self.loop.record([
            *first_events(shared=True),
            *submission(spec_of(Request(nodes=(NAME,)), directory=str(place / "work")), jobs),
        ])  # fmt: skip
        self.loop.training.start()
        self.turn()

    # -- the near side ------------------------------------------------------------------

    def _spawn(self, link: AgentSession) -> Process:
        if self.process is not None:
            self.process.kill()
        self.process, self.requests, self._unread = Process(), [], b""
        self.link = link
        link._unsent = b"0 agent\n"
        return self.process

    @property
    def executor(self) -> AgentExecutor:
        return cast("AgentExecutor", self.loop.registry.nodes[NAME].executor)

    @property
    def connected(self) -> bool:
        return self.executor.connection.session is not None

    def turn(self, count: int = 3) -> None:
        """Let the daemon do what there is to do."""
        for _ in range(count):
            self.loop.turn()
            self.loop.reactor.wait(0)
        self._read()

    def until(self, what: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 10
        while not (found := what()):
            assert time.monotonic() < deadline
            self.loop.turn()
            self.loop.reactor.wait(0.01)
            self._read()
        return found

    def told(self, kind: type[e.Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def reasons(self) -> list[str]:
        """Why the node was unreachable."""
        return [event.why for event in self.told(e.NodeUnreachable)]

    def close(self) -> None:
        self.loop.sync.close(AfterSync())
        self.loop.registry.close()
        self.loop.training.close()
        if self.process is not None:
            self.process.kill()
        self.loop.reactor.close()

    # -- the far side -------------------------------------------------------------------

    def _read(self) -> None:
        """What the daemon asked."""
        process = self.process
        if process is None or "in" not in process.far:
            return
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(process.far["in"], 1 << 16):
                self._unread += piece
        *lines, self._unread = self._unread.split(b"\n")
        found = [shlex.split(os.fsdecode(line)) for line in lines]
        self.requests += [words for words in found if words != ["0", "agent"]]

    def send(self, data: bytes, pipe: str = "out") -> None:
        """Send bytes as they are; what does not fit into the pipe is lost."""
        if self.process is None or pipe not in self.process.far:
            return
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self.process.far[pipe], data)

    def say(self, *words: str) -> None:
        """Send a line of ours."""
        self.send(os.fsencode(f"{self.link.nonce} {' '.join(words)}\n"))

    def bulk(self, request: str, *pieces: bytes) -> None:
        """Send bulk data."""
        for piece in (*pieces, b""):
            self.send(f"{self.link.nonce} {request} {len(piece)}\n".encode() + piece, "err")

    def large(self) -> None:
        """Make its pipes as large as they may be."""
        assert self.process is not None
        for name in ("out", "err"):
            fcntl.fcntl(self.process.far[name], fcntl.F_SETPIPE_SZ, 1 << 20)

    def answer(self, how: dict[str, str] | None = None) -> None:
        """Answer all that was asked, as an honest agent does; attempts stand as `how` says."""
        asked, self.requests = self.requests, []
        for number, verb, *words in asked:
            match verb:
                case "measure":
                    for line in FACTS.split("\n"):
                        self.say("-", "reading", line)
                    self.say("-", "reading-end")
                case "poll":
                    for word in words:
                        state, _, rest = (how or {}).get(word, "revoked").partition(" ")
                        self.say(number, state, word, rest)
                    self.say(number, "done")
                case "read_new" | "collect" | "read_file":
                    self.bulk(number)
                case "ping":
                    self.bulk(number)
                    self.say(number, "done")
                case "start":
                    self.say("-", "started", words[0], "4242")
                case _:
                    self.say(number, "done")
        self.turn()

    def come_up(self) -> None:
        """Have the daemon take the node for a working one, with its jobs started there."""
        self.until(lambda: self.process is not None)
        self.say("-", "hello", "11-22")
        self.until(lambda: self.requests)
        while not self.loop.registry.nodes[NAME].is_up:
            self.answer()
        self.until(lambda: any(words[1] == "start" for words in self.requests))
        self.answer()
        assert all(job.pid == 4242 for job in self.loop.engine.state.jobs.values())

    def check(self) -> None:
        """What must hold whatever the node has done."""
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
