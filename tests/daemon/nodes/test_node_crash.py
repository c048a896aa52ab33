"""A daemon killed at any step of a remote job: the job runs once and nothing is lost."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from daemon.fake_node import NAME, build_loop, first_events, submission
from memory_store import MemoryStore
from specs import spec_of
from stoker.core import events as e
from stoker.core.model.job import JobState
from stoker.core.model.resources import ResourceRequest
from stoker.daemon.control.daemon import Daemon
from stoker.daemon.control.journal_sync import AfterSync
from stoker.executors.agent.attempt_ends import AttemptEnds
from stoker.executors.agent.executor import AgentExecutor
from stoker.executors.agent.result_collector import ResultCollector
from stoker.executors.agent.session.remote_shell import RemoteShell
from stoker.executors.agent.session.session import AgentSession
from stoker.executors.agent.transfer.uploads import TreeUploads
from stoker.executors.ssh.address import Address

LINE = 'echo "$STOKER_JOB_ID" >>"$HOME/ran"; echo begin; cat input; echo result >result; echo end'


class Killed(BaseException):
    """The daemon is killed; nothing may catch it."""


class KillSteps:
    """Kills the daemon at a step of its communication with a node, and then once more."""

    def __init__(self, patch: pytest.MonkeyPatch, fatal: str) -> None:
        self.fatal, self.kills = fatal, 0
        self._patch = patch
        self._count(AgentSession, "_send", lambda _, verb, *__: [f"{verb} request"])
        self._count(AgentSession, "_on_line", lambda words: [f"{words[1]} message"])
        self._count(MemoryStore, "commit", lambda batch, **_: [
            f"commit of {type(event).__name__}" for event in batch.events
        ])  # fmt: skip
        for kind, name in ((TreeUploads, "_on_snapshot"), (TreeUploads, "_finish"),
                           (ResultCollector, "_on_collected"), (ResultCollector, "_on_installed"),
                           (AttemptEnds, "on_collected"),
                           (AgentExecutor, "acknowledge")):  # fmt: skip
            self._count(kind, name, lambda *_, name=name: [name])  # type: ignore[misc]

    def _count(self, kind: type, name: str, labels: Callable[..., list[str]]) -> None:
        method = getattr(kind, name)

        def counted(owner: object, *args: Any, **more: Any) -> Any:
            names = labels(*args, **more)
            self._step("before", names)
            result = method(owner, *args, **more)
            self._step("after", names)
            return result

        self._patch.setattr(kind, name, counted)

    def _step(self, when: str, names: list[str]) -> None:
        if self.kills < 2 and self.fatal in [f"{when} {name}" for name in names]:
            self.kills += 1
            raise Killed


@contextmanager
def daemon(base: Path, store: MemoryStore) -> Iterator[Daemon]:
    """Run a daemon; clean up after its end or its death."""
    loop = build_loop(base, store)
    try:
        yield loop
    finally:
        for machine in loop.registry.nodes.values():
            link = machine.executor.connection.session
            if link is not None:  # ssh and the agent end with the daemon
                link.process.kill()
                link.process.wait()
                for stream in (link.process.stdin, link.process.stdout, link.process.stderr):
                    assert stream is not None
                    stream.close()
            machine.executor.pool.close()
        loop.sync.close(AfterSync())
        loop.training.close()
        loop.reactor.close()


def recover(loop: Daemon) -> None:
    """Recover the state like a daemon at its start."""
    term = loop.store.rows.term  # type: ignore[attr-defined]
    started = e.DaemonStarted(
        at=time.time(), term=term, boot="b", pid=1, version="0", clock=time.monotonic()
    )
    loop.engine.cycle([started])
    loop.registry.gangs.recover(loop.engine.state.running.values())
    loop.registry.sync(loop.engine.state)
    loop.training.start()


def serve(loop: Daemon, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not until():
        assert time.monotonic() < deadline, loop.engine.state.jobs
        loop.turn()
        loop.reactor.wait(0.05)


def is_complete(loop: Daemon, base: Path) -> bool:
    """Return whether the job has ended and its claims are deleted."""
    job = loop.engine.state.jobs.get(1)
    if job is None or not job.finished:
        return False
    claims = (base / "home/.stoker/run").glob("*/1.*.claim")
    with suppress(FileNotFoundError):  # removed meanwhile
        return {path.read_text() for path in claims} <= {"taken\n"}  # revoked claims stay for a day
    return False


def run(base: Path) -> Any:
    """Run one job with as many daemons as needed; return the job."""
    store, begun = MemoryStore(), False
    spec = spec_of(ResourceRequest(nodes=(NAME,)), directory=str(base / "user"), environment="")
    while True:
        try:
            with daemon(base, store) as loop:
                if not begun:
                    loop.record([*first_events(shared=False), *submission(spec, 1, LINE)])
                    begun = True
                recover(loop)
                serve(loop, lambda: is_complete(loop, base))
                assert loop.faults.report() == []
                return loop.engine.state.jobs[1]
        except Killed:
            store = store.another()


POINTS = [
    f"{when} {what}"
    for when in ("before", "after")
    for what in (
        "hello message", "list_attempts request", "reading-end message", "commit of AttemptPlanned",
        "_on_snapshot", "has_tree request", "_finish", "start request", "started message",
        "commit of ProcessStarted", "exited message", "collect request",
        "_on_collected", "_on_installed",
        "commit of ProcessExited", "acknowledge", "forget request",
    )
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_daemon_killed_anywhere_loses_nothing_and_runs_nothing_twice(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("home", "user"):
        (tmp_path / name).mkdir()
    (tmp_path / "user/input").write_text("input\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(Address, "command", lambda *_: ["sh", "-c"])  # the node is this host
    monkeypatch.setattr(RemoteShell, "uses_rsync", property(lambda _: False))
    steps = KillSteps(monkeypatch, point)
    job = run(tmp_path)
    assert steps.kills > 0
    assert (job.state, job.code, job.requeues) == (JobState.COMPLETED, 0, 0), job
    assert (tmp_path / "home/ran").read_text() == "1\n"
    logs = "".join(path.read_text() for path in sorted((tmp_path / "logs").glob("1*.out")))
    assert logs == "begin\ninput\nend\n"
    assert (tmp_path / "user/result").read_text() == "result\n"
    assert {path.name for path in (tmp_path / "user").iterdir()} == {"input", "result"}
    assert list((tmp_path / "notes").iterdir()) == []
