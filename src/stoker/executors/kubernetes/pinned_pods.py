"""PinnedPods: attempts with an image, in pods beside a pilot that share its GPUs.

A pinned pod requests nothing. It runs on the node of the pilot, and the container runtime gives it
those GPUs of the pilot that the planner chose for its attempt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from stoker.core.events import Event
from stoker.core.model.job import AttemptId
from stoker.executors.agent.executor import AgentEnvironment
from stoker.executors.kubernetes.api.client import MERGE, PODS, ApiClient, OnReply, Reply
from stoker.executors.kubernetes.api.pods import PodList
from stoker.executors.kubernetes.handover.attempt import PodAttempt
from stoker.executors.kubernetes.handover.executor import HandoverExecutor, HandoverSettings
from stoker.executors.kubernetes.handover.pod_spec import HOST, INSTALL, host_selector
from stoker.executors.kubernetes.handover.pod_template import PilotHost
from stoker.executors.kubernetes.pilot_pod import CONTAINER
from stoker.executors.port import (
    NODE,
    AttemptRecords,
    ExecutorSink,
    NodeReading,
    PartHost,
    RecoverableAttempt,
)
from stoker.executors.reactor import Timer

RETRY_SECONDS = 5.0
"""Before a start is tried again, or a pod is deleted again whose pilot has ended."""
EXPEL_GRACE_SECONDS = 5
"""The grace period of pods whose pilot has ended: their GPUs may be given to others."""
HOLD, RELEASE = ': >"$HOME/.pods"', 'rm -f "$HOME/.pods"'
"""Shell lines in a pilot; its first process looks for this file."""
PERMANENT = re.compile("forbidden|Unauthorized|is not installed", re.IGNORECASE)
"""Why pods cannot be watched, and will not be soon."""


class PilotHold:
    """Keeps a pilot from ending by itself while pods use its GPUs, also without a daemon."""

    def __init__(self, run: Callable[[str, OnReply], None]) -> None:
        """`run` runs a shell line in the pilot."""
        self._run = run
        self.is_held = self._is_busy = False
        self._waiting: list[Callable[[str], None]] = []

    def hold(self, on_done: Callable[[str], None]) -> None:
        """Hold the pilot, then call back with an error, or with an empty text."""
        if self.is_held:
            on_done("")
            return
        self._waiting.append(on_done)
        self._advance()

    def _advance(self) -> None:
        if self._waiting and not self._is_busy:
            self._is_busy = True
            self._run(HOLD, self._on_held)

    def _on_held(self, reply: Reply) -> None:
        self.is_held, self._is_busy = reply.succeeded, False
        waiting, self._waiting = self._waiting, []
        for on_done in waiting:
            on_done("" if reply.succeeded else f"its pilot did not answer: {reply.why}")

    def release(self) -> None:
        """Let the pilot end when nothing else runs in it."""
        if self.is_held and not self._is_busy:
            self.is_held, self._is_busy = False, True
            self._run(RELEASE, self._on_released)

    def _on_released(self, _: Reply) -> None:
        self._is_busy = False
        self._advance()


class PinnedPods(HandoverExecutor):
    """Runs attempts in pods on the node of one pilot, with its GPUs."""

    def __init__(
        self,
        name: str,
        pilot: str,
        api: ApiClient,
        environment: AgentEnvironment,
        records: AttemptRecords,
        settings: HandoverSettings,
    ) -> None:
        """`name` is that of the pilot's node, `pilot` that of its pod."""
        self._hold = PilotHold(self._run_in_pilot)
        self._exec_words = (*settings.kubectl, "exec", pilot, "-c", CONTAINER, "--", "sh", "-c")
        settings = replace(
            settings, selector=host_selector(environment.install, pilot), reserve=self._reserve
        )
        super().__init__(name, api, environment, records, settings)
        self.failure = ""
        """Why the pods cannot be watched."""
        self._is_expelling = False
        self._expelling = Timer(self.reactor, self._expel)

    def _run_in_pilot(self, line: str, on_reply: OnReply) -> None:
        self.api.run([*self._exec_words, line], on_reply)

    def _reserve(self, on_done: Callable[[str], None]) -> None:
        if self.template.host is None or self._is_expelling:
            on_done("its pilot does not run")
        else:
            self._hold.hold(on_done)

    def set_host(self, host: PilotHost) -> None:
        """Note where the pilot runs."""
        self.template = replace(self.template, host=host)

    def on_failed(self, why: str) -> None:
        """Note why the pods cannot be watched; they continue."""
        self.failure = why
        super().on_failed(why)

    def refuse(self, attempt: PodAttempt) -> None:
        """Report a start that is not possible here, or not now."""
        why = f"the pods beside {self.name} cannot be watched: {self.failure}"
        if PERMANENT.search(self.failure):
            self.ends.lack(attempt, why)
        else:
            self.ends.cancel(attempt, why, RETRY_SECONDS)

    def _list_nodes(self) -> None:
        """Ask for nothing: the GPUs are those of the pilot."""
        self._knows_nodes = True

    def recover(self, attempts: Sequence[RecoverableAttempt]) -> None:
        """Look for the pods of these attempts; the pilot is held for them."""
        self._hold.is_held = self._hold.is_held or bool(attempts)
        super().recover(attempts)

    def acknowledge(self, attempts: Sequence[AttemptId]) -> None:
        """Let the cluster forget attempts, and after the last one release the pilot."""
        super().acknowledge(attempts)
        if not self.attempts and self.ends.are_acknowledged:
            self._hold.release()

    def expel(self) -> None:
        """Delete the pods: the pilot, and with it the right to use its GPUs, has ended."""
        if not self._is_expelling:
            self._is_expelling = True
            self._expelling.request(0.0)

    def _expel(self) -> float | None:
        for name in self.attempts:
            self.ends.delete(name, grace=EXPEL_GRACE_SECONDS)
        return RETRY_SECONDS if self.attempts else None

    def remove(self) -> None:
        """Delete the pods that are left, within seconds: their pilot is deleted, too."""
        self._expelling.cancel()
        for name in self.pods:
            self.ends.delete(name, grace=EXPEL_GRACE_SECONDS)
        super().remove()

    def close(self) -> None:
        """Close the connection; pods continue."""
        self._expelling.cancel()
        super().close()


class PodsSink:
    """Passes on what is reported of pinned pods, but nothing about their node: that is a pilot."""

    def __init__(self, sink: ExecutorSink, on_change: Callable[[], None]) -> None:
        """`on_change` is called when the pods are listed or cannot be, and after every end."""
        self._sink, self._on_change = sink, on_change

    def event(self, event: Event) -> None:
        """Pass on what became of an attempt."""
        self._sink.event(event)
        self._on_change()

    def report_data(self, attempt: AttemptId, rank: int | None, offset: int, data: bytes) -> None:
        """Pass on new data of a training report."""
        self._sink.report_data(attempt, rank, offset, data)

    def node_up(self, ended: Sequence[AttemptId]) -> None:
        """Note that all pods are accounted for; the pilot reports what has ended."""
        self._on_change()

    def node_down(self, why: str) -> None:
        """Note that the pods cannot be watched."""
        self._on_change()

    def node_gone(self, why: str) -> None:
        """Never called."""

    def node_reading(self, reading: NodeReading) -> None:
        """Drop it: the pilot measures its node."""

    def reading_failed(self, error: str | None) -> None:
        """Never called."""

    def ready(self, attempt: AttemptId, rank: int, port: int, host: PartHost = NODE) -> None:
        """Pass on that a part of a gang is ready."""
        self._sink.ready(attempt, rank, port, host)

    def checkpoints_left_behind(self, attempt: AttemptId) -> None:
        """Never called: checkpoints are in a volume."""


def release_orphans(
    api: ApiClient, install: str, prefix: str, is_known: Callable[[str], bool]
) -> None:
    """Let go of pinned pods whose pilot the journal does not know any more.

    A daemon that ended while it removed a pilot leaves them, held by their finalizers. `prefix`
    begins the names of the pilots of a cluster.
    """

    def on_listed(reply: Reply) -> None:
        if not reply.succeeded:
            return
        for pod in msgspec.json.decode(reply.body, type=PodList).items:
            host = pod.metadata.labels.get(HOST, "")
            if host.rpartition("-")[0] == prefix and not is_known(host):
                path = f"{PODS}/{pod.name}"
                patch = {"metadata": {"finalizers": None}}
                api.request("PATCH", path, lambda _: None, patch, type=MERGE)
                api.request("DELETE", path, lambda _: None)

    api.request("GET", PODS, on_listed, params={"labelSelector": f"{INSTALL}={install[:8]},{HOST}"})
