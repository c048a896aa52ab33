"""A full disk: new jobs are rejected with a message, exits are still recorded."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, Run, alive, until

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk"),
    pytest.mark.needs("mount", "umount"),
]


@pytest.fixture
def small(idle: DaemonFixture, home: Path, stoker: Run) -> Iterator[DaemonFixture]:
    """A daemon with a home on a disk of 24 MiB."""
    options = ["-t", "tmpfs", "-o", "size=24m,mode=700", "stoker-test", str(home)]
    done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount: {done.stderr.strip()}")
    try:
        yield idle.start()
    finally:
        for path in (home / "filler").parent.glob("filler*"):
            path.unlink()
        stoker("daemon", "stop", "--cancel")
        subprocess.run(["umount", "--lazy", str(home)], check=False)


def fill(box: DaemonFixture) -> None:
    """Fill the disk completely."""
    with open(box.home / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)


def test_a_full_disk_rejects_new_jobs_records_exits_and_recovers(small: DaemonFixture) -> None:
    box = small
    go = box.user / "go"
    jobs = [
        box.submit(f"echo ready; until [ -e {go} ]; do sleep 0.05; done; exit {code}")
        for code in (0, 5)
    ]
    for job in jobs:
        box.says(job, "ready")
    fill(box)
    refused = None
    for _ in range(60):  # reserved space may admit a few more
        done = box.stoker("submit", "--hold", "true", env={"SOME": "x" * 60_000})
        fill(box)
        if done.returncode:
            refused = done
            break
    assert refused is not None
    assert refused.returncode == 7
    assert refused.stdout == ""
    assert refused.stderr.count("\n") == 1
    assert "Traceback" not in refused.stderr
    before = len(box.client.jobs()["jobs"])
    go.touch()
    for job, code in zip(jobs, (0, 5), strict=True):
        assert box.end_of(job)["result"] == code
    assert len(box.client.jobs()["jobs"]) <= before
    (box.home / "filler").unlink()

    def queued() -> str:
        return box.stoker("submit", "exit 3").stdout.strip()

    after = until(queued)
    assert box.end_of(after)["result"] == 3
    box.crash()
    box.up()
    assert [box.job(job)["result"] for job in jobs] == [0, 5]


def test_exits_that_did_not_fit_into_the_reserve_are_not_lost(
    small: DaemonFixture,
) -> None:
    box = small
    go = box.user / "go"
    job = box.submit(f"echo ready; until [ -e {go} ]; do sleep 0.05; done; exit 7")
    box.says(job, "ready")
    for path in box.state.glob("*.ballast"):
        path.unlink()
    fill(box)
    pid = box.pid_of(job)
    go.touch()
    until(lambda: not alive(pid))
    assert (
        box.job(job)["state"] == "RUNNING"
    )  # its exit is not recorded, and a query needs no space
    assert box.stoker("queue").returncode == 0
    (box.home / "filler").unlink()
    assert box.end_of(job)["result"] == 7
