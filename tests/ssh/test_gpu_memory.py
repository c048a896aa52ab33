"""The GPU memory of jobs on SSH nodes."""

from e2e.daemon_fixture import DaemonFixture, until
from e2e.journal import journal
from ssh.node_actions import add, release_jobs, submit_to
from ssh.ssh_cluster import SshCluster
from ssh.ssh_host import SshHost

LINE = (
    "setsid sh -c 'echo $$ >$HOME/child; until [ -e $HOME/go ]; do sleep 0.05; done' & "
    "echo $$ >$HOME/self; wait"
)


def pid(machine: SshHost, name: str) -> int:
    """Return the pid inside the host."""
    path = machine.home / name
    return int(until(lambda: path.exists() and path.read_text().strip()))


def test_kub_63_the_processes_of_a_remote_job_are_summed(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    machine = cluster.machine("memory", gpus=2)
    add(box, machine)
    job = submit_to(box, machine, LINE, "--gpus", "2")
    itself, child = pid(machine, "self"), pid(machine, "child")
    machine.gpus(
        [{"memory.used": 1000}, {"memory.used": 400}],
        apps=[
            {"gpu": 0, "pid": itself, "used_memory": 700},
            {"gpu": 0, "pid": child, "used_memory": 300},
            {"gpu": 1, "pid": itself, "used_memory": 400},
        ],
    )
    until(lambda: journal(box, "MemoryMeasured"))
    measured = [(event["job"], event["memory"]) for event in journal(box, "MemoryMeasured")]
    assert measured == [(job, 1000)]
    release_jobs(machine)
    assert box.end_of(job)["state"] == "COMPLETED"
