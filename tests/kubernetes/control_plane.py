"""A real Kubernetes control plane in a network namespace of its own, ended by pid.

This host reaches the namespace through a pair of veth devices, so that tests, kubectl and daemons
need not enter it: the API server listens at 10.77.N.1, this host is 10.77.N.2, pods get addresses
in 10.78.N.0/24.
"""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conftest import ROOT
from e2e.daemon_fixture import until
from slurm.slurm_cluster import DaemonGroup

DIRECTORY = ".kubernetes"
TOOLS = (f"{DIRECTORY}/.installed", "etcd", "ip", "nsenter", "openssl", "iptables")
BIN = ROOT / DIRECTORY / "bin"
PORT, ETCD_PORT = 6443, 2379
USER = "stoker"
"""The user of `user.kubeconfig`."""


class KubernetesCluster(DaemonGroup):
    """etcd, API server, controller manager and scheduler; nodes are added afterwards."""

    def __init__(self, base: Path, apiserver_options: Sequence[str] = ()) -> None:
        super().__init__(base)
        self.apiserver_options = list(apiserver_options)
        self._has_proxy = False
        self.number = _create_network()
        self.network = f"stoker-{self.number}"
        self.address, self.host_address = f"10.77.{self.number}.1", f"10.77.{self.number}.2"
        self.server = f"https://{self.address}:{PORT}"
        self.token = secrets.token_hex(16)
        self.kubeconfig = self._write_kubeconfig("admin", self.token)
        """All rights."""
        user_token = secrets.token_hex(16)
        self.user_kubeconfig = self._write_kubeconfig("user", user_token)
        """No rights, except those that a test grants to the user `stoker`."""
        path = f"{BIN}:{os.environ['PATH']}"
        self.environment = {"KUBECONFIG": str(self.kubeconfig), "PATH": path}
        """With these variables `kubectl` is the client of this cluster."""
        (base / "tokens.csv").write_text(
            f"{self.token},admin,admin,system:masters\n{user_token},{USER},{USER},\n"
        )
        (base / "tokens.csv").chmod(0o600)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _write_kubeconfig(self, name: str, token: str) -> Path:
        cluster = {"server": self.server, "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
        }  # fmt: skip
        path = self.base / f"{name}.kubeconfig"
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path

    # -- processes ----------------------------------------------------------------------

    def start_inside(self, name: str, *command: str, mounts_of: int | None = None) -> None:
        """Start a daemon in the network namespace, and in the mount namespace of a process."""
        inside = ["nsenter", f"--net=/run/netns/{self.network}"]
        inside += [] if mounts_of is None else [f"--mount=/proc/{mounts_of}/ns/mnt"]
        self.start_daemon(name, *inside, *command)

    def run_inside(self, *command: str) -> str:
        """Run a command in the network namespace; return its output."""
        inside = ["nsenter", f"--net=/run/netns/{self.network}"]
        return _run([*inside, *command])

    def _start(self) -> None:
        key = self.base / "sa.key"
        _run(["openssl", "genrsa", "-out", str(key), "2048"])
        _run(["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(self.base / "sa.pub")])
        peers = "http://127.0.0.1:2380"
        etcd = f"http://127.0.0.1:{ETCD_PORT}"
        self.start_inside(
            "etcd", "etcd", "--data-dir", str(self.base / "etcd"), "--unsafe-no-fsync",
            "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
            "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
            "--initial-cluster", f"default={peers}",
        )  # fmt: skip
        self.start_apiserver()
        self.start_inside(
            "controller-manager", str(BIN / "kube-controller-manager"),
            f"--kubeconfig={self.kubeconfig}", f"--service-account-private-key-file={key}",
            f"--root-ca-file={self.base}/pki/apiserver.crt", "--leader-elect=false",
            "--controllers=*,-nodeipam,-route,-cloud-node-lifecycle,-service",
            "--node-monitor-period=1s", "--node-monitor-grace-period=12s", "--port=0",
            "--secure-port=0",
        )  # fmt: skip
        self.start_inside(
            "scheduler", str(BIN / "kube-scheduler"), f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false", "--port=0", "--secure-port=0",
        )  # fmt: skip
        account = ("get", "serviceaccount", "default", "-o", "jsonpath={.secrets}")
        until(lambda: self.succeeds(*account) and self.kubectl(*account))

    def start_apiserver(self) -> None:
        """Start the API server, and wait until it answers."""
        self.start_inside(
            "apiserver", str(BIN / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}", f"--bind-address={self.address}",
            f"--advertise-address={self.address}", f"--secure-port={PORT}",
            f"--cert-dir={self.base}/pki", "--authorization-mode=RBAC",
            f"--token-auth-file={self.base}/tokens.csv",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.base}/sa.pub",
            f"--service-account-signing-key-file={self.base}/sa.key",
            "--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP", *self.apiserver_options,
        )  # fmt: skip
        until(lambda: self.succeeds("get", "--raw", "/readyz"), 60)

    def start_proxy(self, node: str) -> None:
        """Start kube-proxy, so that services have addresses and ports of nodes; once."""
        if self._has_proxy:
            return
        self._has_proxy = True
        self.start_inside(
            "proxy", str(BIN / "kube-proxy"), f"--kubeconfig={self.kubeconfig}",
            f"--hostname-override={node}", "--proxy-mode=iptables",
            f"--cluster-cidr=10.78.{self.number}.0/24", "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
            "--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249",
        )  # fmt: skip

    def stop_apiserver(self) -> None:
        """Kill the API server."""
        self.end_daemon("apiserver", 9)

    def compact_etcd(self) -> None:
        """Compact etcd at its newest revision, so that older watches get 410."""
        url = f"http://127.0.0.1:{ETCD_PORT}/v3/kv"
        found = json.loads(self.run_inside("curl", "-s", f"{url}/range", "-d", '{"key": "AA=="}'))
        revision = json.dumps({"revision": found["header"]["revision"]})
        self.run_inside("curl", "-s", f"{url}/compaction", "-d", revision)

    # -- kubectl ------------------------------------------------------------------------

    def kubectl(self, *words: str, input: str = "", kubeconfig: Path | None = None) -> str:
        """Run kubectl with all rights, or with another kubeconfig; return its output."""
        return _run(self._kubectl(words, kubeconfig), input)

    def succeeds(self, *words: str, kubeconfig: Path | None = None) -> bool:
        """Return whether kubectl ends with code 0."""
        argv = self._kubectl(words, kubeconfig)
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0

    def _kubectl(self, words: Sequence[str], kubeconfig: Path | None) -> list[str]:
        # Its cache of what the server offers would be in the home directory of a test.
        options = [
            f"--kubeconfig={kubeconfig or self.kubeconfig}",
            f"--cache-dir={self.base}/cache",
        ]
        return [str(BIN / "kubectl"), *options, "--request-timeout=10s", *words]

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Create or change objects."""
        items = {"apiVersion": "v1", "kind": "List", "items": manifests}
        self.kubectl("apply", "-f", "-", input=json.dumps(items))

    def get(self, *words: str) -> Any:
        """Return an object, or the items of a list: `get("pods", "-n", "x")`."""
        found = json.loads(self.kubectl("get", *words, "-o", "json"))
        return found["items"] if found["kind"] == "List" else found

    def pods(self, namespace: str = "default") -> dict[str, Any]:
        """Return the pods of a namespace by name."""
        return {pod["metadata"]["name"]: pod for pod in self.get("pods", "-n", namespace)}

    def grant(self, rules: Sequence[Mapping[str, Any]], namespace: str = "default") -> None:
        """Let the user of `user.kubeconfig` do this in a namespace, and nothing else there."""
        group = "rbac.authorization.k8s.io"
        metadata = {"name": "stoker-test", "namespace": namespace}
        self.apply(
            {
                "apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata,
                "rules": list(rules),
            },
            {
                "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": metadata,
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "stoker-test"},
                "subjects": [{"apiGroup": group, "kind": "User", "name": USER}],
            },
        )  # fmt: skip

    def revoke(self, namespace: str = "default") -> None:
        """Take back what `grant` gave."""
        self.kubectl(
            "delete", "role/stoker-test", "rolebinding/stoker-test", "-n", namespace,
            "--ignore-not-found",
        )  # fmt: skip

    def delete_pods(self, namespace: str = "default") -> None:
        """Delete all pods and services of tests in a namespace, whatever finalizers they have."""
        for name, pod in self.pods(namespace).items():
            if pod["metadata"].get("finalizers"):
                patch = '{"metadata": {"finalizers": null}}'
                self.succeeds("patch", "pod", name, "-n", namespace, "--type=merge", "-p", patch)
        self.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force")
        self.kubectl(
            "delete", "services", "-n", namespace, "-l", "stoker.dev/install", "--ignore-not-found"
        )
        until(lambda: not self.pods(namespace))

    # -- nodes in pretence --------------------------------------------------------------

    def add_fake_nodes(self, count: int = 2, gpus: int = 4, prefix: str = "fake") -> list[str]:
        """Add nodes with GPUs that run pods in pretence; see fake_kubelet.py."""
        program = Path(__file__).parent / "fake_kubelet.py"
        self.start_daemon(
            f"fake-kubelet-{prefix}", sys.executable, str(program), str(self.kubeconfig),
            str(count), str(gpus), prefix,
        )  # fmt: skip
        names = [f"{prefix}{number}" for number in range(1, count + 1)]
        until(lambda: all(self.is_ready(name) for name in names))
        return names

    def is_ready(self, node: str) -> bool:
        """Return whether pods can be scheduled on a node."""
        if not self.succeeds("get", "node", node):
            return False
        found = self.get("node", node)
        conditions = found["status"].get("conditions", [])
        is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        return is_ready and not found["spec"].get("taints")

    def use_nodes(self, *prefixes: str) -> None:
        """Let pods be scheduled on the nodes whose names begin so, and on no others."""
        for node in self.get("nodes"):
            name, is_cordoned = node["metadata"]["name"], node["spec"].get("unschedulable", False)
            if is_cordoned == name.startswith(prefixes):
                self.kubectl("uncordon" if is_cordoned else "cordon", name)

    def set_node_down(self, node: str, is_down: bool = True) -> None:
        """Cut a fake node off, or connect it again."""
        path = self.base / f"down.{node}"
        if is_down:
            path.touch()
        else:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """End everything, and remove the network."""
        super().close()
        _delete_network(self.number)
        shutil.rmtree(self.base / "etcd", ignore_errors=True)


def _run(argv: Sequence[str], input: str = "") -> str:
    done = subprocess.run(argv, input=input, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (argv, done.stdout, done.stderr)
    return done.stdout


def _create_network() -> int:
    """Create a network namespace that this host reaches; return its number."""
    for number in range(1, 250):
        name = f"stoker-{number}"
        done = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
        if done.returncode == 0:
            break
    else:
        raise AssertionError(done.stderr)
    inside = ["nsenter", f"--net=/run/netns/{name}"]
    link = f"stoker-b{number}"
    for words in (
        ["ip", "link", "add", link, "type", "veth", "peer", "name", "host", "netns", name],
        ["ip", "addr", "add", f"10.77.{number}.2/24", "dev", link],
        ["ip", "link", "set", link, "up"],
        [*inside, "ip", "link", "set", "lo", "up"],
        [*inside, "ip", "addr", "add", f"10.77.{number}.1/24", "dev", "host"],
        [*inside, "ip", "link", "set", "host", "up"],
        [*inside, "ip", "route", "add", "default", "via", f"10.77.{number}.2"],
        [*inside, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"],
        ["ip", "route", "add", f"10.78.{number}.0/24", "via", f"10.77.{number}.1"],
    ):
        _run(words)
    return number


def _delete_network(number: int) -> None:
    for words in (["link", "del", f"stoker-b{number}"], ["netns", "del", f"stoker-{number}"]):
        subprocess.run(["ip", *words], capture_output=True, check=False)


@contextlib.contextmanager
def running(base: Path, *apiserver_options: str) -> Iterator[KubernetesCluster]:
    """Run a control plane without nodes."""
    cluster = KubernetesCluster(base, apiserver_options)
    try:
        yield cluster
    finally:
        cluster.close()
