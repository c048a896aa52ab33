"""A real kubelet with containerd, in the network namespace of a control plane."""

import contextlib
import functools
import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.daemon_fixture import until
from kubernetes.control_plane import BIN, KubernetesCluster
from kubernetes.python_image import PILOT_TOOLS, write_image

TOOLS = ("containerd", "runc", "ctr", "/usr/lib/cni/bridge", "ip", "nsenter", "iptables")
IMAGE, BARE_IMAGE = "localhost/python:test", "localhost/bare:test"
"""With the tools that a pilot needs, and without."""
MOUNTS = """
for name in pods containers; do
    mkdir -p "/var/log/$name" "$1/$name" && mount --bind "$1/$name" "/var/log/$name" || exit 1
done
touch "$2"
exec sleep infinity
"""
CONTAINERD = """
version = 2
root = "{base}/containerd/root"
state = "{base}/containerd/state"
oom_score = 0
[grpc]
  address = "{base}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{base}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.internal.v1.opt"]
  path = "{base}/containerd/opt"
"""


class KubeletNode:
    """A node on which pods really run; `cluster` is its control plane."""

    def __init__(
        self, cluster: KubernetesCluster, name: str, gpus: int = 4, index: int = 1
    ) -> None:
        """`index`, from 1 to 3, is another one for each node of a cluster."""
        self.cluster, self.name, self.gpus = cluster, name, gpus
        self.base = cluster.base / f"node-{name}"
        self.base.mkdir()
        self.bridge = f"br{cluster.number}-{index}"
        self.subnet = f"10.78.{cluster.number}.{index * 64}/26"
        self.address = f"10.77.{cluster.number}.{10 + index}"
        self.containerd_socket = self.base / "containerd.sock"
        cluster.run_inside("ip", "addr", "add", f"{self.address}/32", "dev", "lo")
        self._write_configuration(20250 + index)
        self._create_mount_namespace()
        try:
            self._start_containerd()
            self.import_image(IMAGE, PILOT_TOOLS)
            self.import_image(BARE_IMAGE, ())
            self.start_kubelet()
        except BaseException:
            self.close()
            raise

    def _write_configuration(self, port: int) -> None:
        for name in ("containerd", "cni", "kubelet"):
            (self.base / name).mkdir()
        (self.base / "containerd.toml").write_text(CONTAINERD.format(base=self.base, image=IMAGE))
        ipam = {
            "type": "host-local", "dataDir": str(self.base / "ipam"),
            "ranges": [[{"subnet": self.subnet}]], "routes": [{"dst": "0.0.0.0/0"}],
        }  # fmt: skip
        plugins = [
            {"type": "bridge", "bridge": self.bridge, "isGateway": True, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ]
        network = {"cniVersion": "0.4.0", "name": self.bridge, "plugins": plugins}
        (self.base / "cni/10-test.conflist").write_text(json.dumps(network))
        never = ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available")
        configuration: Mapping[str, Any] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": self.address, "port": port, "readOnlyPort": 0, "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"}, "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False, "enforceNodeAllocatable": [], "failSwapOn": False,
            "oomScoreAdj": 0, "resolvConf": "", "imageGCHighThresholdPercent": 100,
            "evictionHard": dict.fromkeys(never, "0%"), "nodeStatusUpdateFrequency": "3s",
            "volumePluginDir": str(self.base / "plugins"),
        }  # fmt: skip
        (self.base / "kubelet.json").write_text(json.dumps(configuration))

    def _create_mount_namespace(self) -> None:
        """Give the node /var/log directories of its own.

        Their paths are fixed, and a kubelet removes the logs of pods that it does not know. All
        other mounts of the node end with this namespace, too.
        """
        name = f"mounts-{self.name}"
        logs, is_ready = self.base / "log", self.base / "mounted"
        self.cluster.start_daemon(
            name, "unshare", "--mount", "--propagation", "private", "sh", "-c", MOUNTS, "sh",
            str(logs), str(is_ready),
        )  # fmt: skip
        self._holder = self.cluster.pid(name)
        until(is_ready.exists)

    def _start_containerd(self) -> None:
        config = str(self.base / "containerd.toml")
        self.cluster.start_inside(
            f"containerd-{self.name}", "containerd", "-c", config, mounts_of=self._holder
        )
        until(lambda: self._ctr("version").returncode == 0)

    def start_kubelet(self) -> None:
        """Start the kubelet, and wait until pods can be scheduled on it."""
        self.cluster.start_inside(
            f"kubelet-{self.name}", str(BIN / "kubelet"), f"--config={self.base}/kubelet.json",
            f"--kubeconfig={self.cluster.kubeconfig}", f"--root-dir={self.base}/kubelet",
            f"--cert-dir={self.base}/kubelet/pki", f"--hostname-override={self.name}",
            f"--node-ip={self.address}", "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{self.containerd_socket}",
            mounts_of=self._holder,
        )  # fmt: skip
        until(lambda: self.cluster.is_ready(self.name), 60)
        # GPUs that no driver has: the scheduler counts them like those of a device plugin.
        path = f"/api/v1/nodes/{self.name}/status"
        operation = {
            "op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(self.gpus)
        }  # fmt: skip
        self._patch(path, [operation])
        until(
            lambda: "nvidia.com/gpu" in self.cluster.get("node", self.name)["status"]["allocatable"]
        )

    def _patch(self, path: str, operations: list[dict[str, str]]) -> None:
        done = subprocess.run(
            ["curl", "-skf", "-o", "/dev/null", "-X", "PATCH", "-d", json.dumps(operations),
             "-H", f"Authorization: Bearer {self.cluster.token}",
             "-H", "Content-Type: application/json-patch+json", f"{self.cluster.server}{path}"],
            check=False,
        )  # fmt: skip
        assert done.returncode == 0

    def stop_kubelet(self) -> None:
        """Kill the kubelet; containers continue."""
        self.cluster.end_daemon(f"kubelet-{self.name}", 9)

    def import_image(
        self, name: str, tools: tuple[str, ...], files: dict[str, str] | None = None, **more: Any
    ) -> None:
        """Let pods use an image of Python with these tools and files; `more`: see write_image."""
        if files or more:
            path = self.base / "image.tar"
            write_image(path, name, tools, files, **more)
        else:
            path = _image(name, tools)
        done = self._ctr("-n", "k8s.io", "images", "import", str(path))
        assert done.returncode == 0, done.stderr

    def _ctr(self, *words: str) -> "subprocess.CompletedProcess[str]":
        argv = ["ctr", "-a", str(self.containerd_socket), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    def volume(self, pod_uid: str, name: str) -> Path:
        """Return an emptyDir of a pod, as this host has it."""
        return self.base / f"kubelet/pods/{pod_uid}/volumes/kubernetes.io~empty-dir/{name}"

    def containers(self) -> list[str]:
        """Return the ids of all containers and sandboxes."""
        return self._ctr("-n", "k8s.io", "containers", "ls", "-q").stdout.split()

    def close(self) -> None:
        """End the kubelet, all containers and containerd, and unmount what is left."""
        with contextlib.suppress(KeyError):
            self.stop_kubelet()
        k8s = ("-n", "k8s.io")
        if self.containerd_socket.exists():
            for id in self._ctr(*k8s, "tasks", "ls", "-q").stdout.split():
                self._ctr(*k8s, "tasks", "kill", "-s", "KILL", id)
            for id in self.containers():
                self._ctr(*k8s, "tasks", "rm", "-f", id)
                self._ctr(*k8s, "containers", "rm", id)
        with contextlib.suppress(KeyError):
            self.cluster.end_daemon(f"containerd-{self.name}")
        with contextlib.suppress(KeyError):
            self.cluster.end_daemon(f"mounts-{self.name}")


@functools.cache
def _image(name: str, tools: tuple[str, ...]) -> Path:
    """Return the archive of an image."""
    path = Path(tempfile.mkdtemp(prefix="stoker-image-")) / "image.tar"
    write_image(path, name, tools)
    return path
