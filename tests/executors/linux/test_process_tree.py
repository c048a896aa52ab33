"""Finding every process of an attempt, and killing those that detach."""

import contextlib
import itertools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.daemon_fixture import alive, until
from stoker.executors.linux import cgroup
from stoker.executors.linux import process_tree as tree
from stoker.wire import RLIMIT_LOCKS

NUMBERS = itertools.count()
CHAIN = """
import os, sys, time
file, end = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND), time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
    os.write(file, b"%d\\n" % os.getpid())
"""
"""One process after the other, each in a session of its own and the parent of the next."""
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def token() -> str:
    """A unique token: zombies of other tests may not have been reaped yet."""
    return f"test{os.getpid()}.{next(NUMBERS)}.0"


@pytest.fixture
def start(token: str) -> Iterator[Start]:
    """Start commands like a supervisor; their processes are killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*argv: str, marked: bool = True) -> "subprocess.Popen[bytes]":
        soft, hard = resource.getrlimit(RLIMIT_LOCKS)
        if marked:
            resource.setrlimit(RLIMIT_LOCKS, (tree.mark_of(token), hard))
        try:
            started.append(
                subprocess.Popen(
                    argv, start_new_session=True, stdout=subprocess.PIPE,
                    env={"PATH": os.environ["PATH"], tree.TOKEN: token},
                )
            )  # fmt: skip
        finally:
            resource.setrlimit(RLIMIT_LOCKS, (soft, hard))
        return started[-1]

    yield run
    tree.kill(lambda: tree.Snapshot(stop=[token]).members(token))
    for process in started:
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def pids(process: "subprocess.Popen[bytes]", count: int) -> set[int]:
    """Return the pids that the processes of a tree print."""
    assert process.stdout is not None
    return {int(process.stdout.readline()) for _ in range(count)}


FAMILY = (
    "sleep 60 & (sleep 60 & echo $! ; exec sleep 60) & "
    "setsid sh -c 'echo $$; exec sleep 60' & echo $$; wait"
)


@pytest.mark.parametrize("marked", [True, False])
def test_members_are_the_session_its_descendants_and_all_with_the_token(
    start: Start, token: str, marked: bool
) -> None:
    leader = start("sh", "-c", FAMILY, marked=marked)
    known = pids(leader, 3)
    members = until(lambda: (all := tree.Snapshot().members(token, leader.pid)) and all[4:] and all)
    assert known <= set(members)
    assert len(members) == 5
    assert tree.Snapshot().members(token) == members  # without the session, too
    assert os.getpid() not in members
    assert tree.group_alive(leader.pid)


def test_the_tokens_of_live_processes_are_listed(start: Start, token: str) -> None:
    pids(start("sh", "-c", "echo $$; exec sleep 60"), 1)
    # Killed processes of the test before may take a moment to die.
    until(lambda: tree.Snapshot().tokens(f"test{os.getpid()}.") == {token})
    assert tree.Snapshot().tokens("no-such.") == set()


def test_a_process_without_token_session_and_parents_is_a_member(start: Start, token: str) -> None:
    away = "sh -c 'echo $$; exec sleep 60 </dev/null >/dev/null 2>&1 &'"
    leader = start("sh", "-c", f"(env -i setsid {away}); exec sleep 60")
    pids(leader, 1)

    def detached_processes() -> list[int]:
        """Return the other member, once the shell that started it has ended."""
        others = [pid for pid in tree.Snapshot().members(token, leader.pid) if pid != leader.pid]
        with contextlib.suppress(OSError):
            if [Path(f"/proc/{pid}/comm").read_text() for pid in others] == ["sleep\n"]:
                return others
        return []

    (detached,) = until(detached_processes)
    assert os.getsid(detached) != leader.pid
    assert tree.token_of(detached) is None
    tree.kill(lambda: tree.Snapshot(stop=[token]).members(token))
    until(lambda: not alive(detached) and not alive(leader.pid))


@pytest.mark.parametrize("again", range(5))
def test_a_chain_of_processes_that_fork_and_exit_is_killed(
    start: Start, token: str, tmp_path: Path, again: int
) -> None:
    trace = tmp_path / "trace"
    start(sys.executable, "-c", CHAIN, str(trace))
    until(lambda: trace.exists() and len(trace.read_bytes().splitlines()) > 50)
    tree.kill(lambda: tree.Snapshot(stop=[token]).members(token))
    links = trace.read_bytes()
    until(lambda: not tree.Snapshot().members(token))  # a killed process may take a moment to die
    assert trace.read_bytes() == links


def test_a_process_that_appears_while_others_are_read_is_not_missed(
    start: Start, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was forked after the listing, by a process that ended before it was read."""
    process = start("sh", "-c", "echo $$; exec sleep 60")
    (pid,) = pids(process, 1)
    real, before = tree._last_pid, iter([pid - 1])
    monkeypatch.setattr(tree, "_pids", list)
    monkeypatch.setattr(tree, "_last_pid", lambda: next(before, None) or max(real(), pid))
    assert tree.Snapshot().members(token) == [pid]


def test_a_scan_is_incomplete_while_new_processes_keep_appearing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last = iter(range(10_000_000, 20_000_000))
    monkeypatch.setattr(tree, "_last_pid", lambda: next(last))
    assert not tree.Snapshot().complete


def test_a_later_session_with_the_same_pid_is_not_a_member(start: Start) -> None:
    other = start("sh", "-c", "echo $$; exec sleep 60", marked=False)
    pids(other, 1)
    assert tree.Snapshot().members("another.1.0", other.pid) == [other.pid]
    assert tree.Snapshot().members("another.1.0", other.pid, ticks=1) == []


def test_supervisors_of_jobs_are_not_members(start: Start, token: str) -> None:
    process = start("sh", "-c", "echo $$; sleep 60; exit")
    (pid,) = pids(process, 1)
    assert pid not in tree.Snapshot(spare=[pid]).members(token, pid)


def test_an_ended_process_is_no_member_and_is_found_until_it_is_reaped(
    start: Start, token: str
) -> None:
    process = start("sh", "-c", "exit 3")
    until(lambda: not alive(process.pid))
    seen = tree.Snapshot()
    assert seen.members(token, process.pid) == []
    leader = seen.leader(token)
    assert leader is not None
    assert leader[0] == process.pid
    process.wait()
    assert tree.Snapshot().leader(token) is None


def test_everything_is_stopped_before_anything_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    scans = iter([[1, 2], [1, 2, 3], [1, 2, 3]])
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    tree.kill(lambda: next(scans))
    stopped = [pid for pid, number in sent if number == signal.SIGSTOP]
    killed = [pid for pid, number in sent if number == signal.SIGKILL]
    assert (sorted(stopped), sorted(killed)) == ([1, 2, 3], [1, 2, 3])
    assert [number for _, number in sent] == [signal.SIGSTOP] * 3 + [signal.SIGKILL] * 3
    assert next(scans, None) is None


@pytest.fixture
def group() -> Iterator[str]:
    """A real control group, if we may create one."""
    for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        path = f"{mount}/stoker-test-{os.getpid()}"
        if os.path.exists(f"{mount}/cgroup.procs") and os.access(mount, os.W_OK):
            break
    else:
        pytest.skip("needs a control group of version 2 that may be written to")
    os.mkdir(path)
    yield path
    until(lambda: not cgroup.pids(path))
    cgroup.remove(path)
    assert not os.path.exists(path)


@pytest.mark.parametrize("interface", ["cgroup.kill", "cgroup.freeze"])
def test_a_group_with_groups_below_it_is_killed(
    start: Start, group: str, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkdir(f"{group}/below")
    first = start("sh", "-c", "echo $$; exec sleep 60", marked=False)
    second = start("sh", "-c", "echo $$; exec sleep 60", marked=False)
    for process, directory in ((first, group), (second, f"{group}/below")):
        pids(process, 1)
        Path(directory, "cgroup.procs").write_text(str(process.pid))
    assert sorted(cgroup.pids(group)) == sorted([first.pid, second.pid])
    if interface == "cgroup.freeze":  # as before Linux 5.14
        real = cgroup._write
        monkeypatch.setattr(
            cgroup, "_write", lambda path, text: "kill" not in path and real(path, text)
        )
    assert cgroup.kill(group)
    until(lambda: not alive(first.pid) and not alive(second.pid))
