"""Actions of the ssh suites: add nodes, submit to one, count what ran."""

from pathlib import Path
from typing import Any

from e2e.daemon_fixture import DaemonFixture, until
from ssh.ssh_cluster import SshCluster
from ssh.ssh_host import SshHost

HOLD = "until [ -e $HOME/go ]; do sleep 0.05; done"
"""A job that waits for `release_jobs`."""
ONCE = "echo $STOKER_JOB_ID >>$HOME/ran"
"""A job that records every run."""


def add(box: DaemonFixture, *machines: SshHost) -> None:
    """Start a daemon with these nodes."""
    box.up()
    for machine in machines:
        done = box.stoker("nodes", "add", machine.name, machine.url, "--key", str(machine.key))
        assert done.returncode == 0, done.stderr


def submit_to(box: DaemonFixture, machine: SshHost | str, line: str, *more: str) -> int:
    """Submit a line of shell to a node; return the job id."""
    name = machine if isinstance(machine, str) else machine.name
    return int(box.submit("-w", name, *more, "--wrap", line))


def release_jobs(*machines: SshHost) -> None:
    """Let waiting jobs continue."""
    for machine in machines:
        (machine.home / "go").touch()


def ran(machine: SshHost) -> list[int]:
    """Return the jobs that ran on a node, once for each run."""
    trace = machine.home / "ran"
    return [int(line) for line in trace.read_text().split()] if trace.exists() else []


def node(box: DaemonFixture, name: str) -> dict[str, Any]:
    """Return the API's view of a node."""
    view: dict[str, Any] = next(
        node_view for node_view in box.client.nodes()["nodes"] if node_view["name"] == name
    )
    return view


def wait_for_state(box: DaemonFixture, machine: SshHost, state: str) -> dict[str, Any]:
    """Wait until a node is in this state; return its view."""
    until(lambda: node(box, machine.name)["state"] == state)
    return node(box, machine.name)


def disconnect(machine: SshHost) -> None:
    """Kill the connections of a node and accept no new ones."""
    machine.stop_sshd()
    machine.kill_connections()


def reopen(box: DaemonFixture, machine: SshHost) -> None:
    """Accept connections again, and make the daemon connect at once."""
    machine.start_sshd()
    box.client.refresh_nodes([machine.name])


def bytes_of(box: DaemonFixture, job: int) -> bytes:
    """Return the log of a job."""
    return Path(box.job(job)["log"]).read_bytes()


def all_of(cluster: SshCluster) -> list[SshHost]:
    """Return the three nodes."""
    return [cluster.a, cluster.b, cluster.c]
