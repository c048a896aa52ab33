"""A bench for the executor of a pilot on a real kubelet."""

import secrets
import time
from pathlib import Path

from e2e.daemon_fixture import until
from executors.process_bench import GRACE_SECONDS, AgentBench, Records
from kubernetes.kubelet_node import IMAGE, KubeletNode
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.agent.executor import AgentEnvironment
from stoker.executors.kubernetes.kubectl import Kubectl
from stoker.executors.kubernetes.monitor import PilotMonitor
from stoker.executors.kubernetes.options import parse_options
from stoker.executors.kubernetes.pilot import Pilot, PilotExecutor
from stoker.executors.kubernetes.pilot_pod import build_pilot, selector
from stoker.probes import remote_facts

INSTALL = "bench000"
"""In the labels of the pod, which all benches share."""
OPTIONS = parse_options({"pilot": f"gpus=1 cores=2 image={IMAGE}"})


class BenchPod:
    """A pod for the benches of several tests, and its home directory as this host has it."""

    def __init__(self, node: KubeletNode) -> None:
        self.name = f"stoker-{INSTALL}-lab-{secrets.token_hex(4)}"
        self.manifest = build_pilot(self.name, INSTALL, "lab", OPTIONS)
        node.cluster.apply(self.manifest)

        def uid() -> str | None:
            pod = node.cluster.pods()[self.name]
            is_running = pod["status"].get("phase") == "Running"
            return str(pod["metadata"]["uid"]) if is_running else None

        self.home = node.volume(until(uid, 60), "home")


class PilotBench(AgentBench):
    """The executor of a pilot that exists."""

    def __init__(self, base: Path, pod: BenchPod) -> None:
        self.pod = pod
        super().__init__(base, pod.home, f"c{secrets.token_hex(4)}")

    def open(self) -> None:
        (self.base / "notes").mkdir(exist_ok=True)
        self.reactor = EpollReactor()
        environment = AgentEnvironment(
            self.install, str(self.base / "notes"), self.reactor, lambda _: b"", lambda _: None,
            remote_facts.parse, GRACE_SECONDS,
        )  # fmt: skip
        monitor = PilotMonitor(Kubectl(), selector(INSTALL, "lab"), self.reactor)
        pilot = Pilot("node", self.pod.name, self.pod.manifest, time.time())
        self.executor = PilotExecutor(pilot, OPTIONS.pilot, monitor, environment, Records(), False)
        self.executor.open(self.sink)
        self.is_open = True

    def claims(self) -> list[str]:
        run = self.home / f".stoker/run/{self.install}"
        return [path.name for path in run.glob("*.claim")]
