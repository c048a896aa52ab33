"""The GPU memory of jobs on machines over SSH."""

from e2e.daemon_fixture import DaemonFixture, until
from e2e.journal import journal
from ssh.moves import add, let_go, on
from ssh.ssh_cluster import SshCluster
from ssh.ssh_host import SshHost

LINE = (
    "setsid sh -c 'echo $$ >$HOME/child; until [ -e $HOME/go ]; do sleep 0.05; done' & "
    "echo $$ >$HOME/self; wait"
)


def pid(machine: SshHost, name: str) -> int:
    """As the machine itself counts."""
    path = machine.home / name
    return int(until(lambda: path.exists() and path.read_text().strip()))


def test_kub_63_the_processes_of_a_job_far_away_are_summed(
    field: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = field
    machine = cluster.machine("memory", gpus=2)
    add(box, machine)
    job = on(box, machine, LINE, "--gpus", "2")
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
    told = [(event["job"], event["memory"]) for event in journal(box, "MemoryMeasured")]
    assert told == [(job, 1000)]
    let_go(machine)
    assert box.end_of(job)["state"] == "COMPLETED"
