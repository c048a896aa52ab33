"""A bench for the executor that hands attempts over to a real kubelet."""

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from executors.process_bench import GRACE_SECONDS, ProcessBench, Records
from kubernetes.control_plane import BIN, KubernetesCluster
from kubernetes.kubelet_node import IMAGE
from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.agent.executor import AgentEnvironment
from stoker.executors.kubernetes.api.client import ApiClient
from stoker.executors.kubernetes.handover.executor import HandoverExecutor, HandoverSettings
from stoker.executors.kubernetes.handover.pod_spec import FINALIZER
from stoker.executors.kubernetes.handover.pod_template import PodTemplate, VolumeRule
from stoker.probes import remote_facts

TIMEOUT_SECONDS = 90.0


class HandoverBench(ProcessBench):
    """The executor of a cluster; pods take seconds to start, signals half a second."""

    scale = 0.05

    def __init__(
        self,
        base: Path,
        cluster: KubernetesCluster,
        kubeconfig: Path | None = None,
        stuck_seconds: float = 300.0,
        image: str = IMAGE,
        annotations: dict[str, str] | None = None,
    ) -> None:
        """`annotations` decide how fake nodes run the pods."""
        self.cluster, self.kubeconfig = cluster, kubeconfig or cluster.kubeconfig
        self.stuck_seconds, self.image, self.annotations = stuck_seconds, image, annotations or {}
        super().__init__(base, base / "work", secrets.token_hex(4))
        self.until(lambda: self.sink.ups)

    def open(self) -> None:
        (self.base / "notes").mkdir(exist_ok=True)
        self.reactor = EpollReactor()
        environment = AgentEnvironment(
            self.install, str(self.base / "notes"), self.reactor, lambda _: b"", lambda _: None,
            remote_facts.parse, GRACE_SECONDS,
        )  # fmt: skip
        template = PodTemplate(
            "lab", self.image, (VolumeRule(str(self.base), path=str(self.base)),),
            annotations=self.annotations,
        )  # fmt: skip
        settings = HandoverSettings(
            template, (str(BIN / "kubectl"), "--kubeconfig", str(self.kubeconfig)),
            stuck_seconds=self.stuck_seconds, log_seconds=15.0,
        )  # fmt: skip
        self.api = ApiClient(self.reactor, str(self.kubeconfig))
        self.executor = HandoverExecutor("lab", self.api, environment, Records(), settings)
        self.executor.open(self.sink)
        self.is_open = True

    def restart(self, *attempts: AttemptId) -> None:
        super().restart(*attempts)
        self.until(lambda: self.sink.ups)

    def until(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not (value := condition()):
            assert time.monotonic() < deadline, (self.sink.events, self.cluster.pods())
            self.turn()
        return value

    def script(self, attempt: AttemptId, script: str) -> Launch:
        launch = super().script(attempt, script)
        launch = replace(launch, extra=launch.extra | {"HOME": str(self.home)})
        self.launches[attempt] = launch
        return launch

    def output(self, attempt: AttemptId) -> str:
        """Return the output of an attempt."""
        return Path(self.launches[attempt].out).read_text()

    def pod(self, attempt: AttemptId) -> str:
        """Return the name of the pod of an attempt."""
        return f"stoker-{self.install[:8]}-{attempt.job}-{attempt.attempt}"

    def helper(self) -> int:
        """Return the pid of the helper process."""
        mark = b"stoker.executors.kubernetes.api.process"
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        (pid,) = (int(pid) for pid in children if mark in Path(f"/proc/{pid}/cmdline").read_bytes())
        return pid

    def claims(self) -> list[str]:
        return [
            name
            for name, pod in self.cluster.pods().items()
            if FINALIZER in pod["metadata"].get("finalizers", ())
        ]
