"""The contract of executors, for one that hands attempts over to a real kubelet."""

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
from kubernetes.handover_bench import HandoverBench
from kubernetes.kubelet_node import KubeletNode

pytestmark = [pytest.mark.proof, pytest.mark.timeout(240)]


class TestHandover(
    ExecutorContract, SuspendContract, BarrierContract, ProcessContract, ProcessBarrierContract
):
    @pytest.fixture
    def bench(
        self, tmp_path: Path, kubelet_node: KubeletNode, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[HandoverBench]:
        for name, value in kubelet_node.cluster.environment.items():
            monkeypatch.setenv(name, value)
        kubelet_node.cluster.use_nodes("real")
        made = HandoverBench(tmp_path, kubelet_node.cluster)
        yield made
        made.stop()
        kubelet_node.cluster.delete_pods()
