"""Uploads and results while daemons, nodes and directories change."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.daemon_fixture import DaemonFixture, kill, until
from ssh.node_actions import HOLD, ONCE, add, bytes_of, ran, release_jobs, submit_to, wait_for_state
from ssh.ssh_cluster import SshCluster
from ssh.ssh_host import SshHost

DaemonAndCluster = tuple[DaemonFixture, SshCluster]


# -- results ----------------------------------------------------------------------------


def test_results_of_a_job_that_ends_without_a_daemon_are_fetched_by_the_next(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    for round in range(2):
        hold = f"until [ -e $HOME/go{round} ]; do sleep 0.02; done"
        job = submit_to(box, cluster.a, f"{hold}; echo {round} >r.{round}")
        box.becomes(job, "RUNNING")
        box.stoker("daemon", "stop")
        (cluster.a.home / f"go{round}").touch()
        until(lambda: has_exit_record(cluster.a))
        box.up()
        assert box.end_of(job)["result"] == 0
        assert (box.user / f"r.{round}").read_text() == f"{round}\n"


def test_a_daemon_killed_repeatedly_fetches_all_results(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    line = "sleep 0.$((STOKER_ARRAY_INDEX % 7)); echo $STOKER_ARRAY_INDEX >r.$STOKER_ARRAY_INDEX"
    jobs = box.submit("-w", "a", "--array", "0-23", "--wrap", line)
    for brought in (1, 8, 16):
        until(lambda least=brought: len(list(box.user.glob("r.*"))) >= least)
        box.crash()
        box.up()
    box.client.wait([jobs], timeout=60)
    assert {job["result"] for job in box.jobs(jobs)} == {0}
    assert [(box.user / f"r.{n}").read_text() for n in range(24)] == [f"{n}\n" for n in range(24)]


GO_ON = """
read -r step <checkpoint; step=${step:-0}; echo from $step; echo $step >>$HOME/began
for step in $(seq $((step + 1)) 5); do
    echo $step >checkpoint
    [ $step != 3 ] || until [ -e $HOME/go ]; do sleep 0.05; done
done
"""


def test_after_a_reboot_a_job_resumes_from_its_checkpoint(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    job = submit_to(box, cluster.a, GO_ON, "--requeue")
    until(lambda: wrote(cluster.a, "checkpoint") == "3\n")
    cluster.a.fake_reboot()  # the first attempt waits, so that it is not killed during a write
    assert box.end_of(job)["result"] == 0
    assert (cluster.a.home / "began").read_text() == "0\n3\n"
    assert (box.user / "checkpoint").read_text() == "5\n"


def test_results_written_before_a_reboot_are_fetched(daemon_and_cluster: DaemonAndCluster) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    line = f"seq 500000 >large; mkdir out; echo x >out/x; echo y >y; {ONCE}; {HOLD}"
    lost = submit_to(box, cluster.a, line, "--no-requeue")
    named = submit_to(
        box, cluster.a, line, "--no-requeue", "--bring", "out", "--bring-into", "named"
    )
    until(lambda: len(ran(cluster.a)) == 2)
    cluster.a.fake_reboot()
    assert box.end_of(lost)["cause"] == box.end_of(named)["cause"]
    assert box.end_of(lost)["state"] == box.end_of(named)["state"] == "NODE_FAIL"
    assert (box.user / "large").read_text().endswith("\n500000\n")
    assert [path.name for path in (box.user / "named").rglob("*")] == ["out", "x"]
    until(lambda: not list((cluster.a.home / ".stoker/work").iterdir()))


def test_results_that_cannot_be_fetched_are_kept_on_the_node(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    (box.user / "out").write_text("not a directory\n")
    line = f"rm out; mkdir out; echo x >out/x; {ONCE}; {HOLD}"
    job = submit_to(box, cluster.a, line, "--no-requeue")
    until(lambda: ran(cluster.a))
    cluster.a.fake_reboot()
    end = box.end_of(job)
    assert end["state"] == "NODE_FAIL"
    assert "a restarted; " in end["cause"]
    assert "see a:~/.stoker/kept/" in end["cause"]
    (kept,) = (cluster.a.home / ".stoker/kept").glob("*/out/x")
    assert kept.read_text() == "x\n"


def test_results_of_an_attempt_without_an_exit_record_are_fetched(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    job = submit_to(box, cluster.a, f"echo x >x; sleep 305 & {ONCE}; {HOLD}", "--no-requeue")
    until(lambda: ran(cluster.a))
    (claim,) = (cluster.a.home / ".stoker/run").glob("*/*.claim")
    kill(cluster.a.outer_pid(int(claim.read_text().split()[1])))  # its supervisor
    kill(cluster.a.outer_pid(box.job(job)["pid"]))
    assert cluster.a.pids("sleep 305")
    cluster.a.kill_connections()  # so that the daemon polls now
    assert box.end_of(job)["state"] == "NODE_FAIL"
    assert (box.user / "x").read_text() == "x\n"
    assert cluster.a.pids("sleep 305") == []


def wrote(machine: SshHost, name: str) -> str:
    """Return what a job has written to a file on its node."""
    paths = list((machine.home / ".stoker/work").glob(f"*/{name}"))
    return paths[0].read_text() if paths else ""


def has_exit_record(machine: SshHost) -> bool:
    """Return whether the node has an exit record."""
    exits = (machine.home / ".stoker/run").glob("*/*.exit")
    return any("exited" in path.read_text() for path in exits)


# -- a node that was removed -------------------------------------------------------------


def test_attempts_on_a_removed_node_are_ended_when_it_is_added_again(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a, cluster.b)
    again = submit_to(box, "a,b", f"{ONCE}; {HOLD}; exit 3", "--requeue")
    until(lambda: ran(cluster.a) or ran(cluster.b))
    first, second = (cluster.a, cluster.b) if ran(cluster.a) else (cluster.b, cluster.a)
    over = submit_to(box, first, f"{ONCE}; {HOLD}", "--no-requeue")
    until(lambda: len(ran(first)) == 2)
    assert box.stoker("nodes", "remove", first.name, "--force").returncode == 0
    assert box.end_of(over)["state"] == "NODE_FAIL"
    until(lambda: ran(second))
    assert len(first.pids("STOKER_TOKEN=")) > 0
    add(box, first)
    wait_for_state(box, first, "up")
    assert first.pids("STOKER_TOKEN=") == []
    release_jobs(second)
    assert box.end_of(again)["result"] == 3
    assert (sorted(ran(first)), ran(second)) == ([again, over], [again])


# -- inputs -----------------------------------------------------------------------------


def test_a_job_has_its_files_as_of_the_submission_or_later(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    outputs = []
    for round in range(10):
        (box.user / "config").write_text(f"lr={round}\n")
        outputs.append(box.stoker("run", "-w", "a", "cat config").stdout)
    assert outputs == [f"lr={round}\n" for round in range(10)]


@contextmanager
def changing_files(directory: Path) -> Iterator[None]:
    """Create and delete files in a directory continuously."""
    over = threading.Event()

    def change_files() -> None:
        for number in itertools.count():
            path = directory / f"tmp.{number}"
            path.write_bytes(b"x" * 5000)
            if over.wait(0.002):
                break
            path.unlink()

    thread = threading.Thread(target=change_files)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_files_that_change_during_an_upload_fail_no_job(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    bare = cluster.machine("bare", bare=True)
    add(box, cluster.a, bare)
    (box.user / "data").write_text("data\n")
    with changing_files(box.user):
        for machine in (cluster.a, bare):
            for _ in range(8):
                job = submit_to(box, machine, "cat data; exit 3", "--no-bring")
                end = box.end_of(job)
                assert (end["result"], bytes_of(box, job)) == (3, b"data\n"), end


def test_a_dependent_job_has_the_results_of_earlier_jobs(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    first = submit_to(box, cluster.a, "echo one >one")
    second = submit_to(box, cluster.a, "cat one; exit 3", "-d", f"afterok:{first}")
    assert box.end_of(second)["result"] == 3
    assert bytes_of(box, second) == b"one\n"


# -- trees ------------------------------------------------------------------------------


def test_trees_not_used_for_an_hour_are_removed_except_the_latest(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    make = "mkdir $n; echo x >$n/x; : >$n.used; touch -d"
    cluster.a.sh(
        "mkdir -p .stoker/trees; cd .stoker/trees; umask 077;"
        f'for n in $(seq 10 34); do {make} "$n hours ago" $n.used; done;'
        f'for n in $(seq 35 50); do {make} "$((n - 30)) minutes ago" $n.used; done; mkdir 51'
    )
    trees = cluster.a.home / ".stoker/trees"
    add(box, cluster.a)
    wait_for_state(box, cluster.a, "up")
    left = {str(number) for number in (*range(10, 13), *range(35, 52))}
    until(lambda: {path.name for path in trees.iterdir() if path.is_dir()} == left)
    until(lambda: {path.stem for path in trees.glob("*.used")} == left)


def test_trees_are_removed_during_uploads(daemon_and_cluster: DaemonAndCluster) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    wait_for_state(box, cluster.a, "up")
    cluster.a.sh(
        "cd .stoker/trees; for n in $(seq 10 50); do"
        ' mkdir $n; touch -d "$n hours ago" $n.used; done'
    )
    for round in range(10):
        (box.user / "config").write_text(f"{round}\n")
        assert box.end_of(submit_to(box, cluster.a, "true"))["result"] == 0
    trees = cluster.a.home / ".stoker/trees"
    until(lambda: not (trees / "50").exists() and len(list(trees.glob("*.used"))) <= 21)


def test_a_removed_tree_is_sent_again(daemon_and_cluster: DaemonAndCluster) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    (box.user / "data").write_text("data\n")
    for _ in range(2):
        job = submit_to(box, cluster.a, "cat data; exit 3", "--no-bring")
        assert box.end_of(job)["result"] == 3
        assert bytes_of(box, job) == b"data\n"
        cluster.a.sh("rm -r .stoker/trees/*")
