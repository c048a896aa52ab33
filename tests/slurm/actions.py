"""Actions of the Slurm suites: add a cluster, submit jobs to it, count what ran."""

from pathlib import Path
from typing import Any

from e2e.daemon_fixture import DaemonFixture, until

PILOT = "gpus=2 cores=2 mem=1G time=30m max=2 idle=60s"
HOLD = "until [ -e $HOME/go ]; do sleep 0.05; done"
"""A job that waits for `release_jobs`."""
ONCE = "echo $STOKER_JOB_ID >>$HOME/ran"
"""A job that records every run."""


def add_cluster(box: DaemonFixture, *options: str, pilot: str = PILOT) -> None:
    """Start a daemon with a Slurm cluster."""
    box.up()
    words = options or ("--", "-p", "gpu")
    done = box.stoker("nodes", "add", "lab", "slurm://", "--pilot", pilot, *words)
    assert done.returncode == 0, done.stderr


def submit(box: DaemonFixture, line: str, *options: str) -> int:
    """Submit a line of shell that needs a pilot; return the job id."""
    return int(box.submit("--gpus", "1", *options, "--wrap", line))


def release_jobs(box: DaemonFixture) -> None:
    """Let waiting jobs continue."""
    (box.user / "go").touch()


def ran(box: DaemonFixture) -> list[int]:
    """Return the jobs that ran, once for each run."""
    trace = box.user / "ran"
    return [int(line) for line in trace.read_text().split()] if trace.exists() else []


def nodes(box: DaemonFixture) -> dict[str, dict[str, Any]]:
    """Return the API's views of the nodes by name."""
    return {view["name"]: view for view in box.client.nodes()["nodes"]}


def pilots(box: DaemonFixture) -> list[str]:
    """Return the names of the pilots."""
    return [name for name in nodes(box) if name.startswith("lab-")]


def wait_for_pilot(box: DaemonFixture, state: str = "up", name: str = "lab-1") -> dict[str, Any]:
    """Wait until a pilot is in a state; return its view."""
    view: dict[str, Any] = until(
        lambda: (found := nodes(box).get(name)) and found["state"] == state and found
    )
    return view


def relays(box: DaemonFixture) -> list[int]:
    """Return the srun processes that connect a daemon to its pilots."""
    token = b"stoker-" + (box.state / "install").read_bytes()[:8]
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == "srun":
                found += [int(entry.name)] if token in (entry / "cmdline").read_bytes() else []
        except OSError:
            continue
    return found
