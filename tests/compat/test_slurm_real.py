"""The titles of squeue, sinfo and sacct are those of the Slurm that is installed here."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.fake_daemon import FakeDaemon, in_home
from compat.slurm_facts import (
    SACCT_WIDTHS,
    SINFO_CODES,
    SINFO_NAMES,
    SQUEUE_CODES,
    SQUEUE_NAMES,
)
from stoker.compat.slurm.__main__ import main

SLURMCTLD = "/usr/sbin/slurmctld"
CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
JobCompType=jobcomp/filetxt
JobCompLoc={base}/jobs.txt
StateSaveLocation={base}
SlurmctldPidFile={base}/slurmctld.pid
SlurmctldLogFile={base}/slurmctld.log
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={node_port} CPUs=8
PartitionName=gpu Nodes=ALL Default=YES State=UP
"""

pytestmark = pytest.mark.needs(SLURMCTLD, "/usr/bin/squeue", "/usr/bin/sinfo", "/usr/bin/sacct")


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a Slurm without jobs."""
    base = tmp_path_factory.mktemp("slurm")
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        port, node_port = first.getsockname()[1], second.getsockname()[1]
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    text = CONFIGURATION.format(base=base, port=port, node_port=node_port, user=user)
    (base / "slurm.conf").write_text(text)
    (base / "jobs.txt").touch()
    environment = {"PATH": os.environ["PATH"], "SLURM_CONF": str(base / "slurm.conf")}
    daemon = subprocess.Popen(
        [SLURMCTLD, "-D"], env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 30
        while subprocess.run(
            ["/usr/bin/sinfo"], env=environment, capture_output=True, check=False
        ).returncode:
            assert time.monotonic() < deadline, (base / "slurmctld.log").read_text()
            time.sleep(0.1)
        yield environment
    finally:
        daemon.kill()
        daemon.wait(10)


@pytest.fixture
def daemon(home: Path) -> Iterator[FakeDaemon]:
    """A daemon without jobs and nodes."""
    fake = in_home(home)
    fake.answers = {
        "GET /v1/jobs": (200, {"jobs": [], "more": 0, "counts": {}}),
        "GET /v1/history": (200, {"jobs": [], "more": 0}),
        "GET /v1/queues": (200, {"queues": []}),
        "GET /v1/nodes": (200, {"nodes": []}),
    }
    yield fake
    fake.close()


def _codes(codes: dict[str, str]) -> str:
    """Return a format with every code, aligned both ways, cut off and padded."""
    return "".join(f"%{code}|%3{code}|%.3{code}|%20{code}|%.20{code}|" for code in codes)


def _names(names: dict[str, str]) -> str:
    return ",".join(f"{name}:{size}" for name in names for size in ("|", "6", ".24"))


COMMANDS = (
    ["squeue"],
    ["squeue", "--start"],
    ["squeue", "-o", _codes(SQUEUE_CODES)],
    ["squeue", "-O", ",".join(SQUEUE_NAMES)],
    ["squeue", "-O", _names(SQUEUE_NAMES)],
    ["sinfo"],
    ["sinfo", "-s"],
    ["sinfo", "-N"],
    ["sinfo", "-R"],
    ["sinfo", "-o", _codes(SINFO_CODES)],
    ["sinfo", "-O", ",".join(SINFO_NAMES)],
    ["sinfo", "-O", _names(SINFO_NAMES)],
    ["sacct", "-o", ",".join(SACCT_WIDTHS)],
    ["sacct", "-o", "jobid%3,jobname%30,state%-20"],
)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:20])
def test_titles(
    words: list[str],
    controller: dict[str, str],
    daemon: FakeDaemon,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, *options = words
    # Without an accounting database sacct reads the file of completed jobs, which is empty.
    extra = ["-c"] if name == "sacct" else []
    real = subprocess.run(
        [f"/usr/bin/{name}", *extra, *options], env=controller, capture_output=True, text=True,
        check=True, timeout=20,
    )  # fmt: skip
    assert main(words) == 0
    ours = capsys.readouterr()
    assert ours.out.split("\n")[0] == real.stdout.split("\n")[0]
    assert ours.err == ""
