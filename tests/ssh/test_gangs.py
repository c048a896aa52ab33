"""Jobs on several nodes: all parts or none, and one rendezvous address."""

from e2e.daemon_fixture import DaemonFixture, until
from ssh.node_actions import add
from ssh.ssh_cluster import SshCluster


def gang(box: DaemonFixture, line: str, *more: str) -> int:
    done = box.stoker("submit", "--nodes", "2", "-w", "a,b", *more, "--wrap", line)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def part(box: DaemonFixture, job: int, rank: int) -> str:
    return box.stoker("logs", "--part", str(rank), str(job)).stdout


SAY = "echo $NODE_RANK/$WORLD_SIZE $NODELIST $MASTER_ADDR:$MASTER_PORT on $(hostname)"


def test_every_part_has_the_addresses_of_all_nodes(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a, cluster.b)
    job = gang(box, SAY)
    assert box.end_of(job)["result"] == 0
    assert part(box, job, 0) == f"0/2 a,b {cluster.a.address}:29500 on a\n"
    assert part(box, job, 1) == f"1/2 a,b {cluster.a.address}:29500 on b\n"


def test_the_rendezvous_address_is_a_free_port_of_the_first_node(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a, cluster.b)
    waits = "until [ -e go ]; do [ -e $HOME/go ] && break; sleep 0.05; done"
    first = gang(box, f"echo $MASTER_PORT; {waits}")
    until(lambda: box.job(first)["state"] == "RUNNING")
    second = gang(box, "echo $MASTER_PORT")
    assert box.end_of(second)["result"] == 0
    assert box.output(second) == "29501\n"
    for machine in (cluster.a, cluster.b):
        (machine.home / "go").touch()
    assert box.end_of(first)["result"] == 0
    assert box.output(first) == "29500\n"


def test_the_death_of_one_part_ends_the_whole_job(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a, cluster.b)
    job = gang(box, "if [ $NODE_RANK = 1 ]; then exit 9; fi; sleep 300")
    end = box.end_of(job)
    assert (end["state"], end["result"]) == ("FAILED", 9)
    assert cluster.a.pids("sleep 300") == []


def test_the_local_node_can_be_one_of_the_nodes(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    local = box.client.nodes()["nodes"][0]["name"]
    done = box.stoker("submit", "--nodes", "2", "--wrap", "echo $NODE_RANK $NODELIST $MASTER_ADDR")
    job = int(done.stdout)
    assert box.end_of(job)["result"] == 0
    first = cluster.a.address if box.output(job).split()[1].startswith("a,") else "198.18."
    assert first in box.output(job)
    assert local in box.output(job)


def test_a_killed_daemon_is_replaced_and_all_parts_continue(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a, cluster.b)
    job = gang(box, "echo up; until [ -e $HOME/go ]; do sleep 0.05; done; exit $NODE_RANK")
    until(lambda: cluster.a.pids("STOKER_TOKEN=") and cluster.b.pids("STOKER_TOKEN="))
    box.crash()
    (cluster.a.home / "go").touch()
    (cluster.b.home / "go").touch()
    box.up()
    assert box.end_of(job)["result"] == 1
    assert part(box, job, 1) == "up\n"


def test_a_cancel_ends_all_parts(daemon_and_cluster: tuple[DaemonFixture, SshCluster]) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a, cluster.b)
    job = gang(box, "sleep 300")
    until(lambda: cluster.a.pids("sleep 300") and cluster.b.pids("sleep 300"))
    box.stoker("cancel", str(job))
    assert box.end_of(job)["state"] == "CANCELLED"
    assert cluster.a.pids("sleep 300") == cluster.b.pids("sleep 300") == []


def test_no_part_runs_if_one_cannot_start(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a, cluster.b)
    cluster.b.kill_connections()
    cluster.b.stop_sshd()
    job = gang(box, "touch $HOME/ran; exit 0")
    until(lambda: box.job(job)["state"] == "PENDING")
    cluster.b.start_sshd()
    assert box.end_of(job)["result"] == 0
    assert box.job(job)["attempts"][-1]["exit_code"] == 0


def test_all_nodes_and_logs_are_shown_also_after_the_end(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a, cluster.b)
    hold = "echo $NODE_RANK; until [ -e $HOME/go ]; do sleep 0.05; done"
    job = gang(box, hold, "--output", f"{box.user}/%N.txt", "--error", f"{box.user}/%t.err")
    box.becomes(job, "RUNNING")

    def shown() -> list[str]:
        lines = box.stoker("show", job).stdout.splitlines()
        prefixes = ("nodes", "log ", "error log")
        return [line.strip() for line in lines if line.strip().startswith(prefixes)]

    expected = ["nodes           a,b"]
    for rank, name in enumerate("ab"):
        expected.append(f"log {rank}           {box.user}/{name}.txt ({name})")
        expected.append(f"error log {rank}     {box.user}/{rank}.err ({name})")
    assert shown() == expected
    for machine in (cluster.a, cluster.b):
        (machine.home / "go").touch()
    assert box.end_of(job)["result"] == 0
    assert shown() == expected
    assert [part(box, job, rank) for rank in (0, 1)] == ["0\n", "1\n"]
    done = box.stoker("logs", "--part", "2", job)
    assert (done.returncode, "has 2 parts, counted from 0" in done.stderr) == (3, True)
