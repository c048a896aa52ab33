"""Fixtures of the Kubernetes suites: a real control plane, and nodes.

`kubernetes_cluster`  (session) a `KubernetesCluster`: etcd, API server, controller manager and
                      scheduler of Kubernetes 1.20.2, and two fake nodes `fake1` and `fake2` with
                      four `nvidia.com/gpu` each, on which pods run in pretence
                      (fake_kubelet.py says which annotations decide how).
                      `.environment`      KUBECONFIG and PATH (kubectl 1.20.2 comes first)
                      `.kubeconfig`       all rights; `.user_kubeconfig` none, until `.grant(rules)`
                      `.kubectl(*words)`, `.get(*words)`, `.pods()`, `.apply(*manifests)`
                      `.start_apiserver()`, `.stop_apiserver()`, `.compact_etcd()`
                      `.set_node_down(node)`
                      `.host_address`     where pods reach servers of this host
`kubelet_node`        (session) a `KubeletNode`: a real kubelet with containerd, named `real1`, with
                      four `nvidia.com/gpu` and the image `IMAGE` (Python and the tools that a pilot
                      needs) and `BARE_IMAGE` (Python and sh only). `kubelet_node.cluster` is the
                      `kubernetes_cluster`.
`kubernetes`          (function) `kubernetes_cluster` in the environment of the test and its daemon
                      (fixture `idle`), with pods on the fake nodes only; all pods are deleted
                      afterwards.
`real`                (function) the same with pods on the real kubelet only; returns
                      `kubelet_node`.
`pair`                (function) the same with pods on two real kubelets, `real1` and `other2`,
                      each with pods and mounts of its own; returns the cluster.

All tests that use them are proofs (`pytestmark = pytest.mark.proof`): `.ci/kubernetes` builds the
programs. Without them tests are skipped; with CI=true they fail.
"""

import contextlib
from collections.abc import Iterator

import pytest

from conftest import require, stop_daemon
from e2e.conftest import idle
from e2e.daemon_fixture import DaemonFixture
from kubernetes.control_plane import TOOLS, KubernetesCluster, running
from kubernetes.kubelet_node import TOOLS as KUBELET_TOOLS
from kubernetes.kubelet_node import KubeletNode

__all__ = ["idle"]


@pytest.fixture(scope="session")
def kubernetes_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """One control plane with two fake nodes for all tests of this process."""
    require(*TOOLS)
    with running(tmp_path_factory.mktemp("kubernetes")) as cluster:
        cluster.add_fake_nodes(2, gpus=4)
        yield cluster


@pytest.fixture(scope="session")
def kubelet_node(kubernetes_cluster: KubernetesCluster) -> Iterator[KubeletNode]:
    """A real kubelet in that cluster."""
    require(*KUBELET_TOOLS)
    node = KubeletNode(kubernetes_cluster, "real1", gpus=4)
    try:
        yield node
    finally:
        node.close()


@pytest.fixture
def kubernetes(
    kubernetes_cluster: KubernetesCluster, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KubernetesCluster]:
    """The cluster, for the daemon of this test; its pods are deleted after the test."""
    with _used_by(kubernetes_cluster, idle, monkeypatch, "fake"):
        yield kubernetes_cluster


@pytest.fixture
def real(
    kubelet_node: KubeletNode, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KubeletNode]:
    """The real node, for the daemon of this test."""
    with _used_by(kubelet_node.cluster, idle, monkeypatch, "real"):
        yield kubelet_node


@pytest.fixture(scope="module")
def other_node(kubelet_node: KubeletNode) -> Iterator[KubeletNode]:
    """A second real kubelet, for one module."""
    node = KubeletNode(kubelet_node.cluster, "other2", gpus=4, index=2)
    try:
        yield node
    finally:
        node.close()
        node.cluster.kubectl("delete", "node", node.name)


@pytest.fixture
def pair(
    other_node: KubeletNode, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KubernetesCluster]:
    """Two real nodes, for the daemon of this test."""
    with _used_by(other_node.cluster, idle, monkeypatch, "real", "other"):
        yield other_node.cluster


@contextlib.contextmanager
def _used_by(
    cluster: KubernetesCluster, box: DaemonFixture, monkeypatch: pytest.MonkeyPatch, *nodes: str
) -> Iterator[None]:
    """Let the daemon of a test use the nodes whose names begin like this."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    cluster.use_nodes(*nodes)
    try:
        yield
    finally:
        stop_daemon(box.home.parent)
        cluster.delete_pods()
