"""What comes back, and what goes out, when daemons, machines and directories do not hold still."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.daemon_fixture import DaemonFixture, kill, until
from ssh.moves import HOLD, ONCE, add, bytes_of, let_go, on, ran, stands
from ssh.ssh_cluster import SshCluster
from ssh.ssh_host import SshHost

Field = tuple[DaemonFixture, SshCluster]


# -- results ----------------------------------------------------------------------------


def test_what_ends_while_no_daemon_is_there_is_brought_by_the_next(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a)
    for round in range(2):
        hold = f"until [ -e $HOME/go{round} ]; do sleep 0.02; done"
        job = on(box, cluster.a, f"{hold}; echo {round} >r.{round}")
        box.becomes(job, "RUNNING")
        box.stoker("daemon", "stop")
        (cluster.a.home / f"go{round}").touch()
        until(lambda: written_down(cluster.a))
        box.up()
        assert box.end_of(job)["result"] == 0
        assert (box.user / f"r.{round}").read_text() == f"{round}\n"


def test_a_daemon_killed_again_and_again_brings_all_results(field: Field) -> None:
    box, cluster = field
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


def test_after_a_reboot_a_job_goes_on_from_its_checkpoint(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a)
    job = on(box, cluster.a, GO_ON, "--requeue")
    until(lambda: wrote(cluster.a, "checkpoint") == "3\n")
    let_go(cluster.a)  # for the second time; the first one does not hear of it any more
    cluster.a.fake_reboot()
    assert box.end_of(job)["result"] == 0
    assert (cluster.a.home / "began").read_text() in ("0\n3\n", "0\n5\n")
    assert (box.user / "checkpoint").read_text() == "5\n"


def test_what_was_written_before_a_reboot_comes_back_named_or_large(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a)
    line = f"seq 500000 >large; mkdir out; echo x >out/x; echo y >y; {ONCE}; {HOLD}"
    lost = on(box, cluster.a, line, "--no-requeue")
    named = on(box, cluster.a, line, "--no-requeue", "--bring", "out", "--bring-into", "named")
    until(lambda: len(ran(cluster.a)) == 2)
    cluster.a.fake_reboot()
    assert box.end_of(lost)["cause"] == box.end_of(named)["cause"]
    assert box.end_of(lost)["state"] == box.end_of(named)["state"] == "NODE_FAIL"
    assert (box.user / "large").read_text().endswith("\n500000\n")
    assert [path.name for path in (box.user / "named").rglob("*")] == ["out", "x"]
    until(lambda: not list((cluster.a.home / ".stoker/work").iterdir()))


def test_what_was_lost_and_cannot_be_brought_is_kept_there(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a)
    (box.user / "out").write_text("not a directory\n")
    line = f"rm out; mkdir out; echo x >out/x; {ONCE}; {HOLD}"
    job = on(box, cluster.a, line, "--no-requeue")
    until(lambda: ran(cluster.a))
    cluster.a.fake_reboot()
    end = box.end_of(job)
    assert end["state"] == "NODE_FAIL"
    assert "a restarted; " in end["cause"]
    assert "see a:~/.stoker/kept/" in end["cause"]
    (kept,) = (cluster.a.home / ".stoker/kept").glob("*/out/x")
    assert kept.read_text() == "x\n"


def test_what_an_attempt_without_a_record_of_its_end_wrote_comes_back(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a)
    job = on(box, cluster.a, f"echo x >x; sleep 305 & {ONCE}; {HOLD}", "--no-requeue")
    until(lambda: ran(cluster.a))
    (claim,) = (cluster.a.home / ".stoker/run").glob("*/*.claim")
    kill(cluster.a.here(int(claim.read_text().split()[1])))  # who would have written it down
    kill(cluster.a.here(box.job(job)["pid"]))
    assert cluster.a.pids("sleep 305")
    cluster.a.kill_connections()  # so that the daemon looks now
    assert box.end_of(job)["state"] == "NODE_FAIL"
    assert (box.user / "x").read_text() == "x\n"
    assert cluster.a.pids("sleep 305") == []


def wrote(machine: SshHost, name: str) -> str:
    """What a job has in a file so far, on its machine."""
    found = list((machine.home / ".stoker/work").glob(f"*/{name}"))
    return found[0].read_text() if found else ""


def written_down(machine: SshHost) -> bool:
    """Whether the machine has an end on record."""
    exits = (machine.home / ".stoker/run").glob("*/*.exit")
    return any("exited" in path.read_text() for path in exits)


# -- a machine that was given up ---------------------------------------------------------


def test_what_a_removed_machine_still_runs_ends_when_it_is_added_again(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a, cluster.b)
    again = on(box, "a,b", f"{ONCE}; {HOLD}; exit 3", "--requeue")
    until(lambda: ran(cluster.a) or ran(cluster.b))
    first, second = (cluster.a, cluster.b) if ran(cluster.a) else (cluster.b, cluster.a)
    over = on(box, first, f"{ONCE}; {HOLD}", "--no-requeue")
    until(lambda: len(ran(first)) == 2)
    assert box.stoker("nodes", "remove", first.name, "--force").returncode == 0
    assert box.end_of(over)["state"] == "NODE_FAIL"
    until(lambda: ran(second))
    assert len(first.pids("STOKER_TOKEN=")) > 0
    add(box, first)
    stands(box, first, "up")
    assert first.pids("STOKER_TOKEN=") == []
    let_go(second)
    assert box.end_of(again)["result"] == 3
    assert (sorted(ran(first)), ran(second)) == ([again, over], [again])


# -- inputs -----------------------------------------------------------------------------


def test_a_job_sees_its_files_as_they_were_when_it_was_submitted_or_later(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a)
    said = []
    for round in range(10):
        (box.user / "config").write_text(f"lr={round}\n")
        said.append(box.stoker("run", "-w", "a", "cat config").stdout)
    assert said == [f"lr={round}\n" for round in range(10)]


@contextmanager
def restless(directory: Path) -> Iterator[None]:
    """Files come and go in a directory all the time."""
    over = threading.Event()

    def stir() -> None:
        for number in itertools.count():
            path = directory / f"tmp.{number}"
            path.write_bytes(b"x" * 5000)
            if over.wait(0.002):
                break
            path.unlink()

    thread = threading.Thread(target=stir)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_files_that_come_and_go_while_others_are_sent_fail_no_job(field: Field) -> None:
    box, cluster = field
    bare = cluster.machine("bare", bare=True)
    add(box, cluster.a, bare)
    (box.user / "data").write_text("data\n")
    with restless(box.user):
        for machine in (cluster.a, bare):
            for _ in range(8):
                job = on(box, machine, "cat data; exit 3", "--no-bring")
                end = box.end_of(job)
                assert (end["result"], bytes_of(box, job)) == (3, b"data\n"), end


def test_a_job_that_follows_others_sees_what_they_brought(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a)
    first = on(box, cluster.a, "echo one >one")
    second = on(box, cluster.a, "cat one; exit 3", "-d", f"afterok:{first}")
    assert box.end_of(second)["result"] == 3
    assert bytes_of(box, second) == b"one\n"


# -- trees ------------------------------------------------------------------------------


def test_trees_that_were_not_used_for_an_hour_go_but_for_the_latest(field: Field) -> None:
    box, cluster = field
    make = "mkdir $n; echo x >$n/x; : >$n.used; touch -d"
    cluster.a.sh(
        "mkdir -p .stoker/trees; cd .stoker/trees; umask 077;"
        f'for n in $(seq 10 34); do {make} "$n hours ago" $n.used; done;'
        f'for n in $(seq 35 50); do {make} "$((n - 30)) minutes ago" $n.used; done; mkdir 51'
    )
    trees = cluster.a.home / ".stoker/trees"
    add(box, cluster.a)
    stands(box, cluster.a, "up")
    left = {str(number) for number in (*range(10, 13), *range(35, 52))}
    until(lambda: {path.name for path in trees.iterdir() if path.is_dir()} == left)
    until(lambda: {path.stem for path in trees.glob("*.used")} == left)


def test_trees_go_while_others_are_sent(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a)
    stands(box, cluster.a, "up")
    cluster.a.sh(
        "cd .stoker/trees; for n in $(seq 10 50); do"
        ' mkdir $n; touch -d "$n hours ago" $n.used; done'
    )
    for round in range(10):
        (box.user / "config").write_text(f"{round}\n")
        assert box.end_of(on(box, cluster.a, "true"))["result"] == 0
    trees = cluster.a.home / ".stoker/trees"
    until(lambda: not (trees / "50").exists() and len(list(trees.glob("*.used"))) <= 21)


def test_a_tree_that_has_gone_is_sent_again(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a)
    (box.user / "data").write_text("data\n")
    for _ in range(2):
        job = on(box, cluster.a, "cat data; exit 3", "--no-bring")
        assert box.end_of(job)["result"] == 3
        assert bytes_of(box, job) == b"data\n"
        cluster.a.sh("rm -r .stoker/trees/*")
