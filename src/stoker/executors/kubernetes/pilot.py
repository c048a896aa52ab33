"""PilotExecutor: attempts in a pod that joins as a node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from stoker.executors.agent.executor import AgentEnvironment, AgentExecutor
from stoker.executors.kubernetes.kubectl import KubectlError, KubectlUnanswered, PodState
from stoker.executors.kubernetes.monitor import PilotMonitor
from stoker.executors.kubernetes.options import KubernetesPilotShape
from stoker.executors.kubernetes.transport import PodTransport
from stoker.executors.port import Allocation, AttemptRecords, ExecutorSink

NEW_SECONDS = 60.0
"""A pilot without a pod is created if it was added within this time; the pod of an older one was
created by an earlier daemon, and is gone."""
UNANSWERED_SECONDS = 2.0
"""Time until a creation that was not answered is repeated; of one name there is one pod."""
FAILING_SECONDS = 300.0
"""Time for which an image that cannot be pulled is waited for."""


class Pilot(Struct, frozen=True):
    """One pod that is a node."""

    name: str
    """The name of its node."""
    pod_name: str
    manifest: Mapping[str, Any]
    added_at: float


def agent_variables(pod_name: str, shape: KubernetesPilotShape) -> dict[str, str]:
    """Return variables that describe its pod to the agent, which would see the whole node."""
    variables = {"STOKER_PILOT": pod_name, "PILOT_CORES": str(shape.cores)}
    if shape.memory:
        variables["PILOT_MEMORY"] = str(shape.memory)
    if shape.gpus:
        variables["PILOT_GPUS"] = ",".join(map(str, range(shape.gpus)))
    if shape.model:
        variables["PILOT_GPU_MODEL"] = shape.model
    if shape.gpu_memory:
        variables["PILOT_GPU_MEMORY"] = str(shape.gpu_memory)
    return variables


class PilotExecutor(AgentExecutor):
    """Creates a pod, connects to its agent while it runs, and reports when it is over."""

    def __init__(
        self,
        pilot: Pilot,
        shape: KubernetesPilotShape,
        monitor: PilotMonitor,
        environment: AgentEnvironment,
        records: AttemptRecords,
        shares_files: bool,
    ) -> None:
        self.pilot, self.monitor = pilot, monitor
        variables = agent_variables(pilot.pod_name, shape)
        self.pod_transport = PodTransport(monitor.kubectl, pilot.pod_name, variables)
        super().__init__(pilot.name, self.pod_transport, environment, records, shares_files)
        self._is_creating = self._is_known = False
        self._create_at = 0.0
        """Monotonic time before which it is not created again."""
        self._failing_since: float | None = None
        """Monotonic time since when its container cannot be started."""

    @property
    def address(self) -> str:
        """The IP address of the pod, where other pods reach it: its name is in no DNS."""
        pod = self.pod_transport.pod
        return pod.ip if pod is not None and pod.ip else super().address

    @property
    def allocation(self) -> Allocation | None:
        """The pod as the API described it last."""
        pod = self.pod_transport.pod
        if pod is None:
            return None
        return Allocation(pod.name, pod.is_pending, pod.reason, pod.started, pod.end)

    def open(self, sink: ExecutorSink) -> None:
        """Find the pod, or create it; connect when it runs."""
        self._sink = sink
        self.monitor.watch(self.pilot.pod_name, self)

    def on_pod(self, pod: PodState | None) -> None:
        """Handle what the API says of the pod."""
        if self.end_reason is not None:
            return
        if pod is None:
            self._on_missing()
            return
        self._is_known, self.pod_transport.pod = True, pod
        if pod.has_ended:
            self._end(f"its pod has ended: {pod.reason}")
        elif pod.is_pending:
            self._on_pending(pod)
        elif not self.connection.is_open:
            self.connection.open()

    def _on_pending(self, pod: PodState) -> None:
        now = time.monotonic()
        if not pod.is_failing:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        is_hopeless = self._failing_since is not None and (
            pod.is_fatal or now - self._failing_since >= FAILING_SECONDS
        )
        if is_hopeless:
            self._end(f"its pod cannot start: {pod.reason}")
        elif pod.is_deleting:
            self._wait_for("its pod is being deleted")
        else:
            self._wait_for(f"pod {pod.name}: {pod.reason}")

    def _on_missing(self) -> None:
        if self._is_creating:
            return
        if self._is_known:
            pod = self.pod_transport.pod
            was_deleting = pod is not None and pod.is_deleting
            self._end("its pod was deleted" if was_deleting else "its pod is gone")
        elif time.monotonic() < self._create_at:
            self.monitor.timer.request(self._create_at - time.monotonic())
        elif time.time() - self.pilot.added_at < NEW_SECONDS:
            self._is_creating = True
            self.monitor.create(self.pilot.manifest, self._on_created)
        else:
            self._end("its pod is gone")

    def _on_created(self, error: KubectlError | None) -> None:
        self._is_creating = False
        if isinstance(error, KubectlUnanswered):
            self._create_at = time.monotonic() + UNANSWERED_SECONDS
            self._wait_for(str(error))
        elif error is not None and not self._is_known:
            self._end(f"its pod was refused: {error}")

    def _wait_for(self, reason: str) -> None:
        self.pod_transport.waiting_for = reason
        self.sink.node_down(reason)

    def on_down(self, why: str) -> None:
        """Find out whether the pod is over."""
        super().on_down(why)
        if self.end_reason is None:
            self.monitor.poll_soon()

    def _end(self, why: str) -> None:
        """Report that the node is gone: its files are gone with the pod."""
        self.end_reason = why
        self.connection.close()
        super().on_down(why)
        self._report_gone(why)

    def _report_gone(self, why: str) -> None:
        self.sink.node_gone(why)

    def remove(self) -> None:
        """Delete the pod."""
        self.monitor.unwatch(self.pilot.pod_name)
        super().close()

    def close(self) -> None:
        """Close the connection; the pod and its attempts continue."""
        self.monitor.close()
        super().close()
