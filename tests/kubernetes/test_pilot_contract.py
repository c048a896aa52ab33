"""The contract of executors, for a pilot on a real kubelet."""

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
from kubernetes.kubelet_node import KubeletNode
from kubernetes.pilot_bench import BenchPod, PilotBench

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]


@pytest.fixture(scope="class")
def pod(kubelet_node: KubeletNode) -> Iterator[BenchPod]:
    """One pod for all tests."""
    kubelet_node.cluster.use_nodes("real")
    yield BenchPod(kubelet_node)
    kubelet_node.cluster.delete_pods()


class TestPilot(
    ExecutorContract, SuspendContract, BarrierContract, ProcessContract, ProcessBarrierContract
):
    @pytest.fixture
    def bench(
        self,
        tmp_path: Path,
        pod: BenchPod,
        kubelet_node: KubeletNode,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[PilotBench]:
        for name, value in kubelet_node.cluster.environment.items():
            monkeypatch.setenv(name, value)
        (pod.home / "ran").unlink(missing_ok=True)
        made = PilotBench(tmp_path, pod)
        yield made
        made.stop()
