"""Short words for what the ssh suites do: add machines, submit to one, count what ran."""

from pathlib import Path
from typing import Any

from e2e.daemon_fixture import DaemonFixture, until
from ssh.ssh_cluster import SshCluster
from ssh.ssh_host import SshHost

HOLD = "until [ -e $HOME/go ]; do sleep 0.05; done"
"""A job that waits until it is let go (see `let_go`)."""
ONCE = "echo $STOKER_JOB_ID >>$HOME/ran"
"""A job that leaves a trace of every time it ran."""


def add(box: DaemonFixture, *machines: SshHost) -> None:
    """Have a daemon with these machines."""
    box.up()
    for machine in machines:
        done = box.stoker("nodes", "add", machine.name, machine.url, "--key", str(machine.key))
        assert done.returncode == 0, done.stderr


def on(box: DaemonFixture, machine: SshHost | str, line: str, *more: str) -> int:
    """Queue a line of shell for a machine; return its number."""
    name = machine if isinstance(machine, str) else machine.name
    return int(box.submit("-w", name, *more, "--wrap", line))


def let_go(*machines: SshHost) -> None:
    """Let the jobs go that wait."""
    for machine in machines:
        (machine.home / "go").touch()


def ran(machine: SshHost) -> list[int]:
    """The jobs that ran there, once for each time."""
    trace = machine.home / "ran"
    return [int(line) for line in trace.read_text().split()] if trace.exists() else []


def node(box: DaemonFixture, name: str) -> dict[str, Any]:
    """A machine as the API shows it."""
    found: dict[str, Any] = next(
        each for each in box.client.nodes()["nodes"] if each["name"] == name
    )
    return found


def stands(box: DaemonFixture, machine: SshHost, state: str) -> dict[str, Any]:
    """Wait until a machine is in this state."""
    until(lambda: node(box, machine.name)["state"] == state)
    return node(box, machine.name)


def shut(machine: SshHost) -> None:
    """Break its connections, and take no new ones."""
    machine.stop_sshd()
    machine.kill_connections()


def reopen(box: DaemonFixture, machine: SshHost) -> None:
    """Take connections again, and have the daemon try at once."""
    machine.start_sshd()
    box.client.refresh_nodes([machine.name])


def bytes_of(box: DaemonFixture, job: int) -> bytes:
    """What a job wrote."""
    return Path(box.job(job)["log"]).read_bytes()


def all_of(cluster: SshCluster) -> list[SshHost]:
    """The three machines."""
    return [cluster.a, cluster.b, cluster.c]
