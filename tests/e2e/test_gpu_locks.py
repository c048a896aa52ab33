"""GPU locks with real daemons: a full disk, and a hostile user."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, until
from e2e.other_users import other_user
from fakes.nvml import FakeNvml, Gpu

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root can mount disks and make users"),
    pytest.mark.needs("unshare", "nsenter", "mount", "setpriv", "useradd", "userdel"),
]
PLACE = "/tmp/stoker-gpus"


def with_own_locks(options: str, *command: str) -> list[str]:
    """Return a command with a private disk for GPU locks."""
    Path(PLACE).mkdir(exist_ok=True)
    setup = f'mount -t tmpfs -o {options} stoker-test {PLACE} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", setup, "sh", *command]


def inside(pid: int, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in the mount namespace of a process."""
    done = subprocess.run(
        ["nsenter", "-t", str(pid), "-m", *command],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.timeout(150)
@pytest.mark.parametrize("shortage", ["nr_inodes=1", "size=4k"])
def test_a_start_waits_if_its_gpu_lock_cannot_be_created(
    idle: DaemonFixture, nvml: FakeNvml, shortage: str
) -> None:
    nvml.set([Gpu(uuid="GPU-a"), Gpu(uuid="GPU-b")])
    subprocess.run(
        with_own_locks(f"{shortage},mode=1777", sys.executable, "-m", "stoker", "daemon", "start"),
        env=nvml.env(), check=True, timeout=60, capture_output=True,
    )  # fmt: skip
    box, pid = idle, idle.pid
    if shortage.startswith("size"):
        inside(pid, "sh", "-c", f"seq 100000 > {PLACE}/filler 2>/dev/null || :")
        inside(pid, "mount", "-o", "remount,nr_inodes=2", PLACE)
    jobs = [box.submit("--gpus", "1", "true") for _ in range(5)]
    until(lambda: "a GPU lock" in str(box.client.why(jobs[0])))
    assert "No space left on device" in str(box.client.why(jobs[0]))
    assert box.result("true")["state"] == "COMPLETED", "what needs no GPU goes on"
    time.sleep(3)  # in which the GPUs are polled again
    assert (box.pid, {box.job(job)["state"] for job in jobs}) == (pid, {"PENDING"})
    assert sum("a GPU lock" in warning for warning in box.client.daemon()["warnings"]) == 1
    messages = [line for line in box.log.splitlines() if "a GPU lock" in line]
    assert sum("WARNING" in line for line in messages) == 1
    assert sum("start of job" in line for line in messages) <= 2, "once for each GPU"
    assert "used by" not in str(messages)
    assert "a GPU lock" in box.stoker("daemon", "status").stdout
    inside(pid, "sh", "-c", f"rm -f {PLACE}/filler; mount -o remount,nr_inodes=100 {PLACE}")
    for job in jobs:
        assert box.end_of(job)["state"] == "COMPLETED"
    # The GPU that no job used is tried again at the next poll of the GPUs.
    until(lambda: box.client.daemon()["warnings"] == [])
    assert box.pid == pid


TRICKS = """
import fcntl, os, sys, time
place, victim, me = sys.argv[1], sys.argv[2], os.getuid()
def touch(name, mode=0o666):
    fd = os.open(f"{place}/{name}", os.O_RDWR | os.O_CREAT, mode)
    os.fchmod(fd, mode)
    return fd
os.umask(0)
for name in ("GPU-fifo", f"GPU-fifo.{victim}", "GPU-fifo.12345"):
    os.mkfifo(f"{place}/{name}", 0o666)
for name in ("GPU-mode", f"GPU-mode.{victim}", f"GPU-mode.{me}"):
    touch(name, 0)
for name in ("GPU-link", f"GPU-link.{victim}", "GPU-link.12345"):
    os.symlink("/etc/passwd", f"{place}/{name}")
for name in ("GPU-dangling", f"GPU-dangling.{victim}"):
    os.symlink(f"/tmp/stoker-{victim}-was-here", f"{place}/{name}")
for name in ("GPU-directory", f"GPU-directory.{victim}", "GPU-directory.12345"):
    os.mkdir(f"{place}/{name}")
held = []
for name in ("GPU-flock", f"GPU-flock.{victim}", "GPU-flock.12345"):
    held.append(touch(name))
    fcntl.flock(held[-1], fcntl.LOCK_EX)
held.append(touch(f"GPU-mine.{me}"))
fcntl.flock(held[-1], fcntl.LOCK_SH)
for number in range(2000):
    os.close(touch(f"GPU-many.{number}"))
print("ready", flush=True)
time.sleep(300)
"""
FREE = ("fifo", "mode", "link", "dangling", "directory", "flock", "many", "plain")
HELD = "mine"


@contextlib.contextmanager
def running(*command: str) -> "Iterator[subprocess.Popen[str]]":
    """Start a process that ends with the test."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/")
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_hostile_user_can_block_a_gpu_and_nothing_else(nvml: FakeNvml) -> None:
    nvml.set([Gpu(uuid=f"GPU-{name}") for name in (*FREE, HELD)])
    with (
        other_user(nvml) as them,
        running(*with_own_locks("mode=1777", "sleep", "600")) as sleeper,
    ):
        until(lambda: "stoker-test" in Path(f"/proc/{sleeper.pid}/mounts").read_text())

        def as_user(uid: int, gid: int, *command: str) -> list[str]:
            drop = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
            return ["nsenter", "-t", str(sleeper.pid), "-m", *drop, *command]

        victim = them.user.pw_uid
        tricks = as_user(65534, 65534, them.command[0], "-c", TRICKS, PLACE, str(victim))
        with running(*tricks) as attacker:
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == "ready\n"
            started = subprocess.run(
                as_user(victim, them.user.pw_gid, *them.command, "daemon", "start"),
                env=them.environment, cwd="/", capture_output=True, text=True, timeout=60,
                check=False,
            )  # fmt: skip
            assert started.returncode == 0, started.stderr
            for index in range(len(FREE) + 1):
                done = them.stoker("submit", "--use-gpus", str(index), "--gpus", "1", "true")
                assert done.returncode == 0, done.stderr
            waited = them.stoker("wait", *(str(number + 1) for number in range(len(FREE))))
            assert waited.returncode == 0, waited.stderr
            held = str(len(FREE) + 1)
            until(lambda: "the stoker of nobody" in them.stoker("why", held).stdout)
            status = them.stoker("daemon", "status").stdout
            for name in ("GPU-fifo", "GPU-mode", "GPU-link", "GPU-directory", "GPU-flock"):
                assert f"{name}.{victim}" in status
            (log,) = (path.read_text() for path in them.home.rglob("daemon.log"))
            assert log.count(f"GPU-fifo.{victim} ") == 1
            assert not Path(f"/tmp/stoker-{victim}-was-here").exists()
        until(lambda: "COMPLETED" in them.stoker("show", held).stdout)
        them.stoker("daemon", "stop", "--cancel")
