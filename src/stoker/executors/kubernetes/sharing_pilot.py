"""SharingPilotExecutor: a pilot with pinned pods, in which attempts with an image run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from stoker.core.launch.launch import Launch
from stoker.executors.agent.executor import AgentEnvironment
from stoker.executors.kubernetes.handover.pod_template import PilotHost
from stoker.executors.kubernetes.kubectl import PodState
from stoker.executors.kubernetes.monitor import PilotMonitor
from stoker.executors.kubernetes.options import KubernetesPilotShape
from stoker.executors.kubernetes.pilot import Pilot, PilotExecutor
from stoker.executors.kubernetes.pinned_pods import PinnedPods, PodsSink
from stoker.executors.port import (
    AttemptId,
    AttemptRecords,
    Barrier,
    ExecutorSink,
    RecoverableAttempt,
)


class SharingPilotExecutor(PilotExecutor):
    """Runs attempts with an image in pinned pods, all others by the agent."""

    def __init__(
        self,
        pilot: Pilot,
        shape: KubernetesPilotShape,
        monitor: PilotMonitor,
        environment: AgentEnvironment,
        records: AttemptRecords,
        shares_files: bool,
        pods: PinnedPods,
    ) -> None:
        super().__init__(pilot, shape, monitor, environment, records, shares_files)
        self.pods, self._is_gone = pods, False

    def open(self, sink: ExecutorSink) -> None:
        """Find the pilot and its pods."""
        super().open(sink)
        self.pods.open(PodsSink(sink, self._on_pods_changed))

    def has_attempts(self) -> bool:
        """Return whether it looks after any attempt."""
        return super().has_attempts() or self.pods.has_attempts()

    # -- the pilot ----------------------------------------------------------------------

    def on_pod(self, pod: PodState | None) -> None:
        """Handle what the API says of the pilot."""
        if pod is not None and pod.node:
            self.pods.set_host(PilotHost(pod.name, pod.uid, pod.node))
        super().on_pod(pod)

    def _report_up(self) -> None:
        """Report the node as up once its pods are known, too, or if none of them matters."""
        if self.pods.is_up or (self.pods.failure and not self._needs_pods):
            super()._report_up()

    @property
    def _needs_pods(self) -> bool:
        return self.pods.has_attempts() or bool(self.records.abandoned_attempts(self.name))

    def _on_pods_changed(self) -> None:
        if self.end_reason is not None:
            self._report_gone(self.end_reason)
        else:
            self._report_up()

    def _report_gone(self, why: str) -> None:
        """Report that the node is gone, after its pods: until then, attempts may run."""
        if self.pods.has_attempts():
            self.pods.expel()
        elif not self._is_gone:  # its name may be that of another pilot afterwards
            self._is_gone = True
            super()._report_gone(why)

    # -- instructions -------------------------------------------------------------------

    def recover(self, attempts: Sequence[RecoverableAttempt]) -> None:
        """Look after attempts of an earlier daemon."""
        self.pods.recover([each for each in attempts if each.spec.container is not None])
        super().recover([each for each in attempts if each.spec.container is None])

    def start(self, launch: Launch, barrier: Barrier | None = None) -> None:
        """Start an attempt: in a pod if it has an image."""
        if launch.container is not None:
            self.pods.start(launch, barrier)
        else:
            super().start(launch, barrier)

    def release(self, attempt: AttemptId, rank: int, environment: Mapping[str, str] | None) -> None:
        """Let a part that waits at its barrier run, or give it up."""
        super().release(attempt, rank, environment)
        self.pods.release(attempt, rank, environment)

    def terminate(self, attempt: AttemptId, grace: float) -> None:
        """Terminate all processes: TERM now, KILL after `grace` seconds."""
        super().terminate(attempt, grace)
        self.pods.terminate(attempt, grace)

    def signal(
        self,
        attempt: AttemptId,
        number: int,
        only_if_handled: bool = False,
        to_script: bool = False,
    ) -> None:
        """Send a signal to the processes of an attempt."""
        super().signal(attempt, number, only_if_handled, to_script)
        self.pods.signal(attempt, number, only_if_handled, to_script)

    def abandon(self, attempt: AttemptId) -> None:
        """See that an attempt that the core gave up does not go on."""
        self.pods.abandon(attempt)
        super().abandon(attempt)

    def send_control(self, attempt: AttemptId, rank: int, name: str, text: str) -> None:
        """Write a control file for the training library of one part."""
        super().send_control(attempt, rank, name, text)
        self.pods.send_control(attempt, rank, name, text)

    def exchange_control_files(
        self, attempt: AttemptId, rank: int, written: Collection[str], wait: float
    ) -> dict[str, str] | None:
        """Return the control files for a part that reports over HTTP."""
        return self.pods.exchange_control_files(attempt, rank, written, wait)

    def acknowledge(self, attempts: Sequence[AttemptId]) -> None:
        """Forget attempts: their ends are on disk."""
        super().acknowledge(attempts)
        self.pods.acknowledge(attempts)

    def remove(self) -> None:
        """Delete the pilot, and the pods beside it."""
        self.pods.remove()
        super().remove()

    def close(self) -> None:
        """Close all connections; the pilot and all attempts continue."""
        self.pods.close()
        super().close()
