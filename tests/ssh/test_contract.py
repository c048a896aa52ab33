"""The contract of executors, for the one behind an agent over SSH."""

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.contract import (
    BarrierContract,
    ExecutorContract,
    ProcessBarrierContract,
    ProcessContract,
    SuspendContract,
)
from executors.process_bench import AgentBench
from ssh.ssh_cluster import SshCluster
from stoker.executors.ssh.address import parse_address
from stoker.executors.ssh.transport import SshTransport


class TestSshNode(
    ExecutorContract, SuspendContract, BarrierContract, ProcessContract, ProcessBarrierContract
):
    @pytest.fixture
    def bench(
        self, tmp_path: Path, cluster: SshCluster, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[AgentBench]:
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        address = parse_address(cluster.a.url, str(cluster.a.key))
        with tempfile.TemporaryDirectory() as run:  # paths of sockets are limited
            transport = SshTransport(address, f"{run}/ssh")
            made = AgentBench(tmp_path, cluster.a.home, f"c{secrets.token_hex(4)}", transport)
            yield made
            made.stop()
