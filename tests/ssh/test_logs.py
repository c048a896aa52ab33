"""Output of remote jobs: every byte once, whatever happens to the connection."""

import hashlib
import os
import subprocess
from pathlib import Path
from random import Random

import pytest

from e2e.daemon_fixture import DaemonFixture, until
from ssh.node_actions import HOLD, add, bytes_of, release_jobs, submit_to, wait_for_state
from ssh.ssh_cluster import SshCluster
from stoker.executors.agent.result_collector import PIECE

DaemonAndCluster = tuple[DaemonFixture, SshCluster]

TALK = """
import os, random, sys, time
chance = random.Random(7)
for burst in range(30):
    os.write(1, chance.randbytes(chance.choice((1, 100, 200_000, 400_000))))
    os.write(2, chance.randbytes(chance.choice((0, 10, 5_000))))
    time.sleep(0.05)
"""


def talked() -> tuple[bytes, bytes]:
    """Return stdout and stderr of TALK."""
    chance = Random(7)
    out = err = b""
    for _ in range(30):
        out += chance.randbytes(chance.choice((1, 100, 200_000, 400_000)))
        err += chance.randbytes(chance.choice((0, 10, 5_000)))
    return out, err


def test_no_byte_is_lost_or_duplicated(daemon_and_cluster: DaemonAndCluster) -> None:
    box, cluster = daemon_and_cluster
    box.script("talk.py", TALK)
    add(box, cluster.a)
    job = submit_to(box, cluster.a, f"python3 talk.py; {HOLD}", "-o", "o", "-e", "e")
    follower = box.popen("logs", "-f", job)
    out = box.user / "o"
    for size in (1, 1_000_000):
        until(lambda size=size: out.exists() and out.stat().st_size > size)
        cluster.a.kill_connections()
        wait_for_state(box, cluster.a, "up")
    box.crash()
    box.up()
    release_jobs(cluster.a)
    assert box.end_of(job)["result"] == 0
    expected = talked()
    assert (out.read_bytes(), (box.user / "e").read_bytes()) == expected
    followed, complaint = follower.communicate(timeout=30)
    assert follower.returncode == 0, complaint
    assert followed == expected[0]


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_output_that_ends_at_the_boundary_of_a_piece_is_complete(
    daemon_and_cluster: DaemonAndCluster, size: int
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    line = f"head -c {size} /dev/urandom | tee copy; head -c {size} copy >&2"
    job = submit_to(box, cluster.a, line, "-o", "o", "-e", "e")
    assert box.end_of(job)["result"] == 0
    copy = (box.user / "copy").read_bytes()
    assert len(copy) == size
    assert (box.user / "o").read_bytes() == copy
    assert (box.user / "e").read_bytes() == copy


def test_much_output_of_one_job_does_not_delay_others(daemon_and_cluster: DaemonAndCluster) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a, cluster.b)
    size = 60 << 20
    flood = submit_to(box, cluster.a, f"yes | head -c {size}; {HOLD}", "--no-send", "--no-bring")
    log = Path(box.job(flood)["log"])
    until(lambda: log.stat().st_size > PIECE)
    others = [
        submit_to(box, machine, "echo $STOKER_JOB_ID")
        for machine in (cluster.a, cluster.b, cluster.a)
    ]
    for job in others:
        assert box.end_of(job)["result"] == 0
        assert bytes_of(box, job) == f"{job}\n".encode()
    release_jobs(cluster.a)
    assert box.end_of(flood)["result"] == 0
    assert log.stat().st_size == size
    with log.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    assert digest == hashlib.sha256(b"y\n" * (size // 2)).digest()


def test_a_log_that_its_job_truncates_is_copied_from_the_start(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    (box.user / "o").write_text("before\n")
    add(box, cluster.a)
    line = f"echo {'x' * 500}; {HOLD}; echo new >/dev/stdout; echo more"
    job = submit_to(box, cluster.a, line, "-o", "o")
    until(lambda: b"xxx" in (box.user / "o").read_bytes())
    release_jobs(cluster.a)
    assert box.end_of(job)["result"] == 0
    assert (box.user / "o").read_text() in ("before\nnew\nmore\n", "new\nmore\n")


def test_output_that_imitates_the_agent_is_output(daemon_and_cluster: DaemonAndCluster) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    line = "echo - exited $STOKER_JOB_ID.0 9 0 0; for fd in 1 2 8 9; do echo - exited >&$fd; done"
    job = submit_to(box, cluster.a, f"{line}; exit 3")
    assert box.end_of(job)["result"] == 3


def test_a_client_that_stops_following_changes_nothing(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    job = submit_to(box, cluster.a, "while [ ! -e $HOME/go ]; do echo line; sleep 0.02; done")
    reader = box.popen("logs", "-f", job, stdout=subprocess.PIPE)
    assert reader.stdout is not None
    assert os.read(reader.stdout.fileno(), 4) == b"line"[:4]
    reader.kill()
    reader.communicate()
    release_jobs(cluster.a)
    assert box.end_of(job)["result"] == 0
    assert set(bytes_of(box, job).split()) == {b"line"}
