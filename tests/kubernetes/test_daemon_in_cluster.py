"""The daemon as a Deployment: the manifests of packaging/kubernetes on a real kubelet."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, Run
from e2e.daemon_fixture import until
from kubernetes.control_plane import BIN, KubernetesCluster
from kubernetes.kubelet_node import IMAGE, KubeletNode
from kubernetes.python_image import PILOT_TOOLS
from kubernetes.test_manifests import MANIFESTS, manifests

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]
DAEMON_IMAGE, NAMESPACE = "localhost/stoker:test", "ml"
PACKAGES = (
    "starlette", "uvicorn", "msgspec", "pyjson5", "ruamel", "cloudpickle", "anyio", "click", "h11",
    "idna", "lightkube", "httpx2", "httpcore2", "certifi", "yaml", "truststore", "h2", "hpack",
    "hyperframe", "psycopg", "psycopg_binary", "psycopg_binary.libs",
)  # fmt: skip
"""What stoker[kubernetes,postgres] needs, as far as it is in this environment."""
SECONDS = 90.0


class InCluster:
    """A namespace with the daemon of the manifests."""

    def __init__(self, node: KubeletNode, namespace: str = NAMESPACE) -> None:
        self.cluster, self.namespace = node.cluster, namespace
        node.import_image(DAEMON_IMAGE, (*PILOT_TOOLS, "openssl"), **daemon_files())
        self.cluster.start_proxy(node.name)
        self.cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        )

    def add_volume(self, storage: Path) -> None:
        """Provide what the manifests claim."""
        storage.mkdir()
        os.chown(storage, 1000, 1000)  # hostPath volumes do not heed fsGroup
        self.cluster.apply(
            {
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "stoker"},
                "spec": {
                    "capacity": {"storage": "20Gi"}, "accessModes": ["ReadWriteOnce"],
                    "hostPath": {"path": str(storage)},
                    "claimRef": {"namespace": self.namespace, "name": "stoker"},
                },
            }
        )  # fmt: skip

    def apply(self, *options: str) -> None:
        """Apply the manifests, with more options of the cluster.

        There is no DNS, so pods reach the Service at its address.
        """
        text = manifests(DAEMON_IMAGE, IMAGE)
        self.kubectl("apply", "-f", str(MANIFESTS / "service.yaml"))
        service = self.cluster.get("service", "stoker", "-n", self.namespace)
        address = f'"{service["spec"]["clusterIP"]}:25647"'
        lines = [f"report_address = {address}", *options]
        text = text.replace('report_address = "stoker:25647"', "\n    ".join(lines))
        self.kubectl("apply", "-f", "-", input=text)

    def kubectl(self, *words: str, input: str = "") -> str:
        return self.cluster.kubectl("-n", self.namespace, *words, input=input)

    def wait_until_ready(self) -> None:
        self.kubectl("rollout", "status", "deployment/stoker", "--timeout=90s")

    def stoker(self, *words: str) -> str:
        """Run the command in the daemon's pod."""
        return self.kubectl("exec", "deploy/stoker", "--", "python3", "-m", "stoker", *words)

    def job(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stoker("show", id, "--json"))
        return found

    def submit(self, line: str) -> str:
        words = ("--gpus", "1", "--chdir", "/tmp", "--wrap", line)
        return self.stoker("submit", *words).strip()

    def read_token(self) -> str:
        """Return the token for clients."""
        script = "cat ~/.local/state/stoker/*/token"
        return self.kubectl("exec", "deploy/stoker", "--", "sh", "-c", script)

    def pilots(self) -> list[str]:
        return [name for name in self.cluster.pods(self.namespace) if "-here-" in name]


def daemon_files() -> dict[str, Any]:
    """Return what the image has besides Python."""
    here = Path(pytest.__file__).parents[1]
    found = {f"/app/{name}": here / name for name in PACKAGES if (here / name).exists()}
    extra = [
        here / "pynvml.py",
        here / "typing_extensions.py",
        *here.glob("*mypyc*.so"),
        *here.glob("http*2-*.dist-info"),  # from which they read their versions
    ]
    found |= {f"/app/{path.name}": path for path in extra if path.exists()}
    return {
        "trees": found | {"/app/stoker": ROOT / "src/stoker",
                          "/app/kubernetesdlprofile": ROOT / "src/kubernetesdlprofile",
                          "/usr/local/bin/kubectl": BIN / "kubectl",
            "/usr/lib/ssl/openssl.cnf": Path("/etc/ssl/openssl.cnf").resolve()},
        "environment": ("PYTHONPATH=/app", "PYTHONDONTWRITEBYTECODE=1"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def daemon(
    kubelet_node: KubeletNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InCluster]:
    kubelet_node.cluster.use_nodes("real")
    try:
        made = InCluster(kubelet_node)
        made.add_volume(tmp_path_factory.mktemp("volume") / "stoker")
        made.apply()
        made.wait_until_ready()
        yield made
    finally:
        kubelet_node.cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
        kubelet_node.cluster.kubectl("delete", "pv", "stoker", "--ignore-not-found")


def test_the_daemon_is_not_root_and_cannot_write_to_its_image(daemon: InCluster) -> None:
    script = "id -u; touch /usr/x 2>/dev/null || echo read-only"
    output = daemon.kubectl("exec", "deploy/stoker", "--", "sh", "-c", script)
    assert output.split() == ["1000", "read-only"]


def test_its_rights_are_enough(daemon: InCluster) -> None:
    assert "all 13 that are needed in namespace ml" in daemon.stoker("nodes", "check", "here")


def test_a_job_survives_a_rollout_of_the_daemon(daemon: InCluster) -> None:
    job = daemon.submit("echo one; until [ -e /tmp/go ]; do sleep 0.1; done; exit 5")
    until(lambda: daemon.job(job)["state"] == "RUNNING", SECONDS)
    (pilot,) = daemon.pilots()
    before = set(daemon.cluster.pods(NAMESPACE))
    daemon.kubectl("rollout", "restart", "deployment/stoker")
    daemon.wait_until_ready()
    assert set(daemon.cluster.pods(NAMESPACE)) != before
    assert daemon.job(job)["state"] == "RUNNING"
    daemon.kubectl("exec", pilot, "--", "touch", "/tmp/go")
    until(lambda: daemon.job(job)["state"] == "FAILED", SECONDS)
    assert daemon.job(job)["exit_code"] == 5
    assert daemon.pilots() == [pilot]


def test_a_laptop_reaches_it_by_a_forwarded_port(
    daemon: InCluster, home: Path, stoker: Run, kubernetes_cluster: KubernetesCluster
) -> None:
    path = home.parent / "token"
    path.write_text(daemon.read_token())
    path.chmod(0o600)
    status = json.loads(daemon.stoker("daemon", "status", "--json"))
    fingerprint = next(
        each["fingerprint"] for each in status["listeners"] if each.get("fingerprint")
    )
    argv = daemon.cluster._kubectl(
        ["-n", NAMESPACE, "port-forward", "service/stoker", ":25647"], None
    )
    with subprocess.Popen(
        [word for word in argv if not word.startswith("--request-timeout")],
        stdout=subprocess.PIPE, text=True,
    ) as forward:  # fmt: skip
        try:
            assert forward.stdout is not None
            port = forward.stdout.readline().split("127.0.0.1:")[1].split()[0]
            done = stoker("nodes", env={
                "STOKER_SERVER": f"tls://127.0.0.1:{port}", "STOKER_TOKEN_FILE": str(path),
                "STOKER_FINGERPRINT": fingerprint,
            })  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert "here" in done.stdout
        finally:
            forward.kill()
