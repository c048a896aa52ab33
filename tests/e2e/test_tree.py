"""The end of a job ends all its processes, and only then is its GPU free."""

import contextlib
import os
import time
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, alive, until

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def note(word):
    with open(sys.argv[1], "a") as file:
        file.write(f"{word} {os.getpid()}\\n")
note("main")
if os.fork() == 0:
    note("child")
    if os.fork() == 0:
        note("grandchild")
    elif os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        note("daemon")
while True:
    time.sleep(0.1)
"""


HEEDS = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(12))
print("ready", flush=True)
time.sleep(60)
"""


def written_pids(path: Path, count: int) -> dict[str, int]:
    """Wait for the pids that processes wrote; return them by name."""

    def read_pids() -> dict[str, int]:
        lines = path.read_text().splitlines() if path.exists() else []
        return (
            {word: int(pid) for word, pid in map(str.split, lines)} if len(lines) >= count else {}
        )

    pids: dict[str, int] = until(read_pids)
    return pids


def test_cancel_ends_children_grandchildren_and_escaped_daemons_that_ignore_term(
    idle: DaemonFixture,
) -> None:
    (idle.home / "config.toml").write_text("grace = 1\n")
    box = idle.start()
    box.script("stubborn.py", STUBBORN)
    job = box.submit("--gpus", "1", "python3", "stubborn.py", "pids")
    pids = written_pids(box.user / "pids", 4)
    assert len(set(map(os.getsid, pids.values()))) == 2
    box.client.cancel([job])
    # While one of them lives the GPU is not released.
    while (state := box.job(job)["state"]) != "CANCELLED":
        assert state == "COMPLETING"
        time.sleep(0.02)
    assert [word for word, pid in pids.items() if alive(pid)] == []
    assert box.gpus()["0"]["state"] == "free"
    assert box.job(job)["result"] == 143


def test_the_gpu_of_a_terminating_job_is_not_allocated(idle: DaemonFixture) -> None:
    (idle.home / "config.toml").write_text("grace = 1\n")
    box = idle.start("{gpu:1,cpu:4}")
    job = box.submit(
        "--gpus", "1", f"trap '' TERM; echo $$ > {box.user}/pid; while :; do sleep 0.05; done"
    )
    until((box.user / "pid").exists)
    pid = until(lambda: (box.user / "pid").read_text().strip())
    check = f"kill -0 {pid} 2>/dev/null && exit 66; exit 0"
    after = box.submit("--gpus", "1", check)
    box.client.cancel([job])
    assert box.end_of(after)["result"] == 0


def test_kill_does_not_wait_for_a_grace(box: DaemonFixture) -> None:
    job = box.submit("trap '' TERM; echo ready; while :; do sleep 0.1; done")
    box.says(job, "ready")
    assert box.stoker("kill", job).returncode == 0
    assert box.end_of(job, seconds=8)["state"] == "CANCELLED"  # the grace would be ten seconds


def test_background_processes_of_a_job_are_terminated_with_it_and_reported(
    box: DaemonFixture,
) -> None:
    job = box.submit("--gpus", "1", "sleep 300 & echo $! > pid; exit 0")
    ended = box.end_of(job)
    pid = int((box.user / "pid").read_text())
    assert not alive(pid)
    assert (ended["state"], ended["result"]) == ("COMPLETED", 0)
    assert "left 1 process behind" in ended["termination_note"]


def test_a_daemon_of_a_job_in_another_session_is_ended_too(
    box: DaemonFixture,
) -> None:
    job = box.submit(
        "--gpus", "1", "setsid sh -c 'echo $$ > pid; exec sleep 300' & sleep 0.3; exit 4"
    )
    ended = box.end_of(job)
    pid = int((box.user / "pid").read_text())
    with contextlib.suppress(OSError):
        assert b"sleep" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert not alive(pid)
    assert ended["result"] == 4
    assert "left 1 process behind" in ended["termination_note"]


FLEES = "(env -i setsid sh -c 'echo $$ > pid; exec sleep 300' </dev/null >/dev/null 2>&1 &)"
CHAIN = """
import os, sys, time
if "STOKER_TOKEN" in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.argv], {})
file, end = os.open("trace", os.O_WRONLY | os.O_CREAT | os.O_APPEND), time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
    os.write(file, b"%d\\n" % os.getpid())
"""
"""Processes without the job's environment, each in a session of its own: one forks the next."""


@pytest.mark.parametrize("daemon", ["the same", "another"])
def test_cancel_ends_a_process_without_environment_session_and_parents(
    box: DaemonFixture, daemon: str
) -> None:
    job = box.submit("--gpus", "1", f"{FLEES}; echo ready; exec sleep 300")
    box.says(job, "ready")
    until((box.user / "pid").exists)
    fled = int(until((box.user / "pid").read_text))
    if daemon == "another":
        box.crash()
        box.up()
    box.client.cancel([job])
    assert box.end_of(job)["state"] == "CANCELLED"
    assert not alive(fled)
    assert box.gpus()["0"]["state"] == "free"


def test_a_process_that_escaped_an_ended_job_is_terminated_and_reported(
    box: DaemonFixture,
) -> None:
    job = box.submit("--gpus", "1", f"{FLEES}; until [ -s pid ]; do sleep 0.05; done; exit 4")
    ended = box.end_of(job)
    assert not alive(int((box.user / "pid").read_text()))
    assert (ended["result"], ended["termination_note"]) == (
        4,
        "left 1 process behind, ended with the job",
    )


def test_kill_ends_a_chain_of_processes_that_fork_and_exit(idle: DaemonFixture) -> None:
    (idle.home / "config.toml").write_text("grace = 1\n")
    box = idle.start()
    box.script("chain.py", CHAIN)
    trace = box.user / "trace"
    job = box.submit("--gpus", "1", "python3 chain.py & sleep 300")
    until(lambda: trace.exists() and len(trace.read_bytes()) > 500)
    box.client.cancel([job])
    assert box.end_of(job)["state"] == "CANCELLED"
    links = trace.read_bytes()
    assert box.gpus()["0"]["state"] == "free"
    time.sleep(0.3)
    assert trace.read_bytes() == links


def test_a_signal_goes_to_the_program_and_not_only_to_its_shell(box: DaemonFixture) -> None:
    box.script("heeds.py", HEEDS)
    job = box.submit("python3 heeds.py; exit $?")
    box.says(job, "ready")
    assert box.stoker("kill", "-s", "USR1", job).returncode == 0
    assert box.end_of(job)["result"] == 12


def test_a_cancelled_job_may_clean_up_during_its_grace(box: DaemonFixture) -> None:
    job = box.submit("trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    box.says(job, "ready")
    box.client.cancel([job])
    ended = box.end_of(job)
    assert (ended["state"], ended["result"]) == ("CANCELLED", 143)
    assert "cleaned" in box.output(job)


def test_a_paused_job_can_be_cancelled(box: DaemonFixture) -> None:
    job = box.submit("echo ready; sleep 60")
    box.says(job, "ready")
    box.client.pause([job])
    pid = box.pid_of(job)
    box.client.cancel([job])
    assert box.end_of(job)["state"] == "CANCELLED"
    assert not alive(pid)
