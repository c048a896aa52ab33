"""HandoverExecutor: one pod per attempt; the cluster chooses the node and the GPUs.

The name of the pod is the claim: an attempt has only one, and a finalizer keeps it until the end of
the attempt is on disk here. What the pod says decides, whatever was requested or not answered.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from stoker.core.events import AttemptQueued, PreemptionRequested, ProcessStarted
from stoker.core.launch.launch import Launch
from stoker.core.launch.training_env import FIRST_PORT, PORT_COUNT
from stoker.core.model.job import JobState
from stoker.core.model.resources import NodeFacts
from stoker.core.model.spec import Container
from stoker.executors.agent.executor import AgentEnvironment
from stoker.executors.agent.transfer.log_mirror import LogMirror
from stoker.executors.kubernetes.api.client import NOT_FOUND, PODS, ApiClient, Reply
from stoker.executors.kubernetes.api.pods import CONTAINER, NodeList, Pod
from stoker.executors.kubernetes.handover import exec_scripts
from stoker.executors.kubernetes.handover.attempt import (
    Creation,
    EndRequest,
    LogState,
    PodAttempt,
)
from stoker.executors.kubernetes.handover.creations import Creations
from stoker.executors.kubernetes.handover.logs.log_copy import LogCopy
from stoker.executors.kubernetes.handover.logs.pod_logs import PodLogs
from stoker.executors.kubernetes.handover.pod_ends import STUCK_SECONDS, PodEnds
from stoker.executors.kubernetes.handover.pod_events import PodEvents
from stoker.executors.kubernetes.handover.pod_spec import (
    PRODUCT,
    REVOKED,
    PodIdentity,
    selector,
)
from stoker.executors.kubernetes.handover.pod_template import PodTemplate
from stoker.executors.kubernetes.handover.reading import ClusterReading
from stoker.executors.kubernetes.handover.reconciliation import Reconciliation
from stoker.executors.kubernetes.handover.verdict import Kind, assess
from stoker.executors.linux.log_file import empty_logs
from stoker.executors.port import (
    AttemptId,
    AttemptRecords,
    Barrier,
    Capability,
    Executor,
    ExecutorSink,
    PartHost,
    RecoverableAttempt,
    Upload,
)
from stoker.executors.reactor import Timer
from stoker.executors.report_tokens import ReportSource

MIN_AHEAD, MAX_AHEAD = 8, 200
"""Attempts that may wait in the cluster."""
FIND_SECONDS = 2.0
"""Before a pod is looked for again whose state could not be read."""
SAVE_SECONDS = 1.0
"""Between notes of how far the logs were read."""
CLOSE_SECONDS = 10.0
"""Time for the pods of a removed cluster to be let go."""
HTTP_DELAY_SECONDS = 5.0
"""By which a report over HTTP may be late before control files are sent in another way."""
REQUEUED_CONTROL_SECONDS = 2.0
"""Before a control file is sent again."""


class HandoverSettings(Struct, frozen=True):
    """How attempts are handed over to one cluster."""

    template: PodTemplate
    kubectl: tuple[str, ...] = ("kubectl",)
    """The command, with the options that select cluster and namespace."""
    ahead: int | None = None
    """Attempts that may wait there; None: about twice as many as run."""
    pilot: NodeFacts | None = None
    """What the pilots of the cluster are; None: it has none."""
    selector: str = ""
    """Selects the pods by their labels; empty: those of the node."""
    reserve: Callable[[Callable[[str], None]], None] = lambda on_done: on_done("")
    """Called before a pod is created; calls back with an error, or with an empty text."""
    report_access: Callable[[ReportSource], str] = lambda _: ""
    """Returns how a part reports over HTTP; empty: it cannot."""
    stuck_seconds: float = STUCK_SECONDS
    log_seconds: float = 60.0
    """Time after the end of a pod for which its log is tried to be read."""


class HandoverExecutor(Executor):
    """Creates a pod for each attempt and reports what becomes of it."""

    def __init__(
        self,
        name: str,
        api: ApiClient,
        environment: AgentEnvironment,
        records: AttemptRecords,
        settings: HandoverSettings,
    ) -> None:
        self.name, self.api, self.environment = name, api, environment
        self.records, self.settings = records, settings
        self.template, self.stuck_seconds = settings.template, settings.stuck_seconds
        self.reactor = environment.reactor
        self.selector = settings.selector or selector(environment.install, name)
        """Selects its pods by their labels."""
        self.attempts: dict[str, PodAttempt] = {}
        """By the name of the pod: a gang has one for each rank."""
        self.pods: dict[str, Pod] = {}
        """All pods of the cluster's attempts, as they were described last."""
        self.products: tuple[str, ...] | None = None
        """Models of GPUs by the labels of the nodes; None: nodes may not be listed."""
        self.creations, self.logs, self.ends = Creations(self), PodLogs(self), PodEnds(self)
        self.events, self.reconciliation = PodEvents(self), Reconciliation(self)
        self.check = Timer(self.reactor, self._check)
        """Repeats what was not confirmed, and saves how far logs were read."""
        self.is_listed = self._knows_nodes = self._is_reported_up = self._is_removed = False
        self._reported_ahead: int | None = None
        self._sink: ExecutorSink | None = None

    @property
    def capabilities(self) -> Capability:
        """Everything but device binding and files of this node."""
        return (
            Capability.SUSPEND
            | Capability.SIGNAL
            | Capability.CONTROL_FILES
            | Capability.REPORTS
            | Capability.BARRIER
        )

    @property
    def address(self) -> str | None:
        """None: a cluster is no host."""
        return None

    @property
    def sink(self) -> ExecutorSink:
        """Where everything is reported."""
        assert self._sink is not None
        return self._sink

    @property
    def is_up(self) -> bool:
        """Whether all attempts are accounted for."""
        return self._is_reported_up

    def has_attempts(self) -> bool:
        """Return whether it looks after any attempt."""
        return bool(self.attempts)

    def has(self, attempt: PodAttempt) -> bool:
        """Return whether it still looks after this attempt."""
        return self.attempts.get(attempt.identity.name) is attempt

    def _parts(self, id: AttemptId) -> list[PodAttempt]:
        """Return the parts of an attempt, by rank; most have one."""
        return [attempt for attempt in self.attempts.values() if attempt.id == id]

    def open(self, sink: ExecutorSink) -> None:
        """Watch the pods from now on."""
        self._sink = sink
        self.api.watch(self.selector, self.selector, self)

    def _note_path(self, attempt: AttemptId, rank: int | None) -> str:
        """Return the file with the position in the log of a pod."""
        part = "" if rank is None else f".{rank}"
        return f"{self.environment.notes}/{self.name}.{attempt}{part}"

    # -- the cluster --------------------------------------------------------------------

    def on_listed(self, pods: Sequence[Pod]) -> None:
        """Account for all attempts."""
        self.pods = {pod.name: pod for pod in pods}
        self.creations.forget()
        self.events.forget()
        self.reconciliation.on_listed(pods)
        self.is_listed = True
        if not self._knows_nodes:
            self._list_nodes()
        self._report_up()
        for attempt in list(self.attempts.values()):
            self.advance(attempt)

    def on_pod(self, pod: Pod) -> None:
        """Handle the state of a pod."""
        self.pods[pod.name] = pod
        attempt = self.attempts.get(pod.name)
        if attempt is None:
            return
        self.reconciliation.on_read(pod.name)
        if attempt.is_over:
            return
        if attempt.creation is not Creation.CREATED and REVOKED not in pod.metadata.labels:
            attempt.creation = Creation.CREATED
            self.creations.publish_ports(attempt, pod.metadata.uid)
        is_ending = attempt.end is not None or attempt.failure is not None
        attempt.update(pod, assess(pod, is_ending, attempt.has_run))
        self.advance(attempt)
        self._report_up()

    def on_deleted(self, pod: Pod) -> None:
        """Handle the end of a pod, which something else has let go."""
        self.on_pod(pod)
        self.pods.pop(pod.name, None)
        self.reconciliation.on_gone(pod.name)
        attempt = self.attempts.get(pod.name)
        if attempt is not None and not attempt.is_over:
            self._on_missing(attempt)
        self._report_up()

    def on_failed(self, why: str) -> None:
        """Report that the cluster does not answer; its pods continue."""
        self.is_listed = self._is_reported_up = False
        if not self._is_removed:  # its name may be that of another cluster by now
            self.sink.node_down(why)

    def find(self, attempt: PodAttempt) -> None:
        """Find out whether the pod of an attempt exists."""

        def on_reply(reply: Reply) -> None:
            if not self.has(attempt):
                return
            if reply.succeeded:
                self.on_pod(reply.pod())
            elif reply.status == NOT_FOUND:
                self._on_missing(attempt)
            else:
                self.reactor.call_later(FIND_SECONDS, again)

        def again() -> None:
            if self.has(attempt):
                self.find(attempt)

        self.api.request("GET", f"{PODS}/{attempt.identity.name}", on_reply)

    def _on_missing(self, attempt: PodAttempt) -> None:
        """Handle an attempt whose pod does not exist."""
        self.reconciliation.on_read(attempt.identity.name)
        if attempt.failure is not None and not attempt.has_run:
            self.ends.fail(attempt, attempt.failure)
        elif attempt.has_run or attempt.creation is Creation.CREATED:
            is_ours = attempt.end is not None
            self.ends.lose(attempt, "its pod does not exist any more", preempted=not is_ours)
        elif attempt.creation is Creation.UNKNOWN:
            self.creations.revoke(attempt)
        self._report_up()

    def _list_nodes(self) -> None:
        """Ask for the models of the GPUs, which needs a right that is not required."""

        def on_reply(reply: Reply) -> None:
            self._knows_nodes = not reply.may_pass
            self.products = None
            if reply.succeeded:
                self.products = NodeList.products(reply.body, PRODUCT)
            self._report_up()

        self.api.request("GET", "/api/v1/nodes", on_reply, params={"labelSelector": PRODUCT})

    def _report_up(self) -> None:
        if not self.is_listed or not self.reconciliation.is_done or self._is_reported_up:
            return
        if self._is_removed:
            return
        if not self._knows_nodes:
            return
        self._is_reported_up = True
        self.sink.node_up(self.reconciliation.take_ended())
        self._reported_ahead = None
        self.report_reading()

    def report_reading(self) -> None:
        """Report how much may be handed over, if that has changed."""
        ahead = self.ahead
        if self._is_reported_up and ahead != self._reported_ahead:
            self._reported_ahead = ahead
            self.sink.node_reading(ClusterReading(self.products, ahead, self.settings.pilot))

    @property
    def ahead(self) -> int:
        """How many attempts may wait in the cluster; by default it grows in few steps."""
        ahead = self.settings.ahead
        if ahead is None:
            ahead, running = MIN_AHEAD, self._count(self.attempts.values()) - self.waiting_count
            while ahead < 2 * running:
                ahead *= 2
            ahead = min(ahead, MAX_AHEAD)
        limit = self.creations.max_ahead
        return ahead if limit is None else min(ahead, limit)

    @property
    def waiting_count(self) -> int:
        """Number of attempts that do not run yet."""
        return self._count(each for each in self.attempts.values() if not each.has_run)

    @staticmethod
    def _count(parts: Iterable[PodAttempt]) -> int:
        return len({part.id for part in parts})

    # -- progress of attempts -------------------------------------------------------------

    def advance(self, attempt: PodAttempt) -> None:
        """Do what is due for an attempt by the last state of its pod."""
        if not self.has(attempt):
            return
        verdict = attempt.verdict
        if verdict.kind in (Kind.WAITING, Kind.STUCK):
            self.events.check(attempt)
            self._report_queued(attempt)
            self.ends.check_stuck(attempt)
        if verdict.has_log:
            self.check_barrier(attempt)
            if not (attempt.has_run or attempt.waits_for_others):
                self._report_started(attempt)
            self.logs.follow(attempt)
            self.logs.check(attempt)
        if attempt.is_over:
            self.ends.conclude(attempt)
            return
        if attempt.end is not None or attempt.failure is not None:
            self.ends.pursue(attempt)
        elif attempt.pod is not None and attempt.pod.is_deleting:
            self._stop_gang(attempt)
        self._send_control_files(attempt)

    def _stop_gang(self, attempt: PodAttempt) -> None:
        """Have all parts of a training job stop at one epoch, because a pod of it is deleted."""
        if attempt.part is None or not attempt.is_training or attempt.is_gang_stopping:
            return
        if not attempt.has_run:
            return
        attempt.is_gang_stopping = True
        job, number = attempt.id
        self.sink.event(
            PreemptionRequested(
                at=time.time(), job=job, attempt=number, why="the cluster ends one of its pods",
                boot=time.clock_gettime(time.CLOCK_BOOTTIME),
            )
        )  # fmt: skip

    def _report_queued(self, attempt: PodAttempt) -> None:
        """Report why an attempt waits, if that has changed."""
        why, (job, number) = attempt.why_it_waits, attempt.id
        if attempt.part is not None:
            parts = self._parts(attempt.id)
            attempt, why = parts[0], _gang_reason(parts)
        is_new = attempt.reported is None or (why and attempt.reported != why)
        if attempt.pod is not None and is_new:
            attempt.reported = why
            self.sink.event(
                AttemptQueued(
                    at=time.time(), job=job, attempt=number,
                    external_id=f"pod {attempt.identity.name}", reason=why,
                )
            )  # fmt: skip

    def _report_started(self, attempt: PodAttempt) -> None:
        attempt.has_run = True
        node = attempt.pod.spec.node_name if attempt.pod is not None else ""
        self.sink.event(
            ProcessStarted(
                at=time.time(), job=attempt.id.job, attempt=attempt.id.attempt,
                boot=time.clock_gettime(time.CLOCK_BOOTTIME), part=attempt.part,
                external_id=f"pod {attempt.identity.name}", hosts=(node,) if node else (),
            )
        )  # fmt: skip
        self.report_reading()

    def _check(self) -> float | None:
        """Repeat what was not confirmed; requested again by what is not done yet."""
        for attempt in list(self.attempts.values()):
            self.advance(attempt)
            if self.has(attempt) and attempt.log is LogState.FOLLOWING:
                attempt.copy.save()
        return None

    # -- instructions -------------------------------------------------------------------

    def start(self, launch: Launch, barrier: Barrier | None = None) -> None:
        """Create the pod of an attempt; with a barrier, its command waits for the release."""
        rank = barrier.rank if barrier is not None else None
        attempt = self._attempt(launch.id, launch.out, launch.err, rank, launch.container)
        attempt.launch, attempt.is_training = launch, launch.spec.training is not None
        attempt.barrier_seconds = barrier.timeout if barrier is not None else 0
        self.attempts[attempt.identity.name] = attempt
        if launch.spec.truncate_output:
            empty_logs(launch.out, launch.err)
        if launch.spec.training is not None and launch.has_own_checkpoints:
            with contextlib.suppress(OSError):  # a hostPath must exist before it is mounted
                os.makedirs(os.path.dirname(launch.checkpoints), 0o700, exist_ok=True)
        try:
            attempt.copy.create(launch.spec.umask)
        except OSError as error:
            self.ends.fail(attempt, f"cannot start: {error}")
            return
        if self.is_listed:
            self.creations.create(attempt)
        else:
            self.refuse(attempt)

    def refuse(self, attempt: PodAttempt) -> None:
        """Cancel a start, because the pods of the cluster are not known at present."""
        self.ends.cancel(attempt, f"the connection to {self.name} was lost")

    def _attempt(
        self, id: AttemptId, out: str, err: str | None, rank: int | None, box: Container | None
    ) -> PodAttempt:
        identity = PodIdentity(self.environment.install, self.name, id, rank)
        copy = LogCopy(LogMirror(out, err, self._note_path(id, rank)), identity.nonce)
        # The ports of a gang are those of its first part.
        ports = box.ports if box is not None and not rank else ()
        return PodAttempt(id, identity, copy, ports=ports)

    def recover(self, attempts: Sequence[RecoverableAttempt]) -> None:
        """Look for the pods of these attempts."""
        for known in attempts:
            box, has_started = known.spec.container, known.job.started_at is not None
            attempt = self._attempt(known.id, known.out, known.err, known.rank, box)
            attempt.copy.resume()
            # When one part of a gang started, all had pods; whether others did, their logs say.
            is_part = known.rank is not None
            attempt.has_run = has_started and not is_part
            attempt.is_training = known.spec.training is not None
            was_created = has_started and is_part
            attempt.creation = Creation.CREATED if was_created else Creation.UNKNOWN
            if known.job.state is JobState.COMPLETING:
                attempt.end = EndRequest(self.reactor.time() + self.environment.grace)
            self.attempts[attempt.identity.name] = attempt
            if self.is_listed:
                self.find(attempt)

    def release(self, attempt: AttemptId, rank: int, environment: Mapping[str, str] | None) -> None:
        """Let a part that waits at its barrier run; without an environment, give it up."""
        for part in self._parts(attempt):
            if part.part != rank:
                continue
            if environment is not None:
                self._set_control(part, exec_scripts.GO, exec_scripts.exports(environment))
            elif part.is_running:
                self.cancel_barrier(part)
            else:
                self._terminate(part, 0.0)

    def check_barrier(self, attempt: PodAttempt) -> None:
        """Report that a part waits at its barrier; in a pod of its own, every port is free."""
        pod, is_at_barrier = attempt.pod, attempt.copy.reader.is_at_barrier
        if not (is_at_barrier and attempt.is_running) or pod is None or not pod.status.pod_ip:
            return
        if not attempt.is_ready_reported:
            attempt.is_ready_reported = True
            port = FIRST_PORT + attempt.id.job % PORT_COUNT
            host = PartHost(pod.spec.node_name, pod.status.pod_ip)
            self.sink.ready(attempt.id, attempt.part or 0, port, host)
        if attempt.waits_for_others:
            self._report_queued(attempt)

    def cancel_barrier(self, attempt: PodAttempt) -> None:
        """Keep a part from passing its barrier, unless it has already."""
        if not attempt.is_barrier_cancelled:
            attempt.is_barrier_cancelled = True
            self._set_control(attempt, exec_scripts.CANCELLED, "")

    def terminate(self, attempt: AttemptId, grace: float) -> None:
        """Terminate all processes: TERM now, KILL after `grace` seconds."""
        for part in self._parts(attempt):
            self._terminate(part, grace)

    def _terminate(self, attempt: PodAttempt, grace: float) -> None:
        if attempt.is_over:
            return
        kill_at = self.reactor.time() + max(grace, 0.0)
        attempt.end = attempt.end or EndRequest(kill_at)
        attempt.end.kill_at = min(attempt.end.kill_at, kill_at)
        attempt.end.next_try = 0.0
        self.advance(attempt)

    def signal(
        self,
        attempt: AttemptId,
        number: int,
        only_if_handled: bool = False,
        to_script: bool = False,
    ) -> None:
        """Send a signal to the processes of an attempt."""
        words = exec_scripts.send_signal(int(number), only_if_handled, to_script)
        for part in self._parts(attempt):
            if part.is_running and not part.waits_for_others:
                self.exec(part, words, lambda _: None)

    def suspend(self, attempt: AttemptId) -> None:
        """Stop all processes in place."""
        self.signal(attempt, signal.SIGSTOP)

    def resume(self, attempt: AttemptId) -> None:
        """Let suspended processes continue."""
        self.signal(attempt, signal.SIGCONT)

    def abandon(self, attempt: AttemptId) -> None:
        """See that an attempt that the core gave up does not go on."""
        parts = self._parts(attempt)
        for part in parts:
            del self.attempts[part.identity.name]
            self.api.stop_log(part.identity.name)
        if not parts:
            return
        self._is_reported_up = False
        self.reconciliation.on_listed(list(self.pods.values()))
        self._report_up()

    def send_control(self, attempt: AttemptId, rank: int, name: str, text: str) -> None:
        """Write a control file for the training library of one part."""
        for part in self._parts(attempt):
            if (part.part or 0) == rank:
                self._set_control(part, name, text)

    def _set_control(self, attempt: PodAttempt, name: str, text: str) -> None:
        attempt.control_files = attempt.control_files | {name: text}
        self._send_control_files(attempt)

    def _send_control_files(self, attempt: PodAttempt) -> None:
        if not attempt.is_running or attempt.is_sending_control or not attempt.control_files:
            return
        name, text = next(iter(attempt.control_files.items()))
        left = attempt.http_until - self.reactor.time()
        if left > 0 and name not in exec_scripts.BARRIER_FILES:
            self.check.request(left)  # the next report over HTTP fetches it
        else:
            self._write_file(attempt, name, text)

    def exchange_control_files(
        self, attempt: AttemptId, rank: int, written: Collection[str], wait: float
    ) -> dict[str, str] | None:
        """Return the control files for a part that reports over HTTP; forget those it has."""
        parts = (part for part in self._parts(attempt) if (part.part or 0) == rank)
        known = next(parts, None)
        if known is None:
            return None
        known.control_files = {
            name: text
            for name, text in known.control_files.items()
            if name not in written or known.http_control.get(name) != text
        }
        known.http_control = {
            name: text
            for name, text in known.control_files.items()
            if name not in exec_scripts.BARRIER_FILES
        }
        known.http_until = self.reactor.time() + 2 * wait + HTTP_DELAY_SECONDS
        return known.http_control

    def _write_file(self, attempt: PodAttempt, name: str, text: str) -> None:
        """Write a file in the container, again until that is confirmed."""

        def on_reply(reply: Reply) -> None:
            attempt.is_sending_control = False
            if reply.succeeded and attempt.control_files.get(name) == text:
                left = {key: value for key, value in attempt.control_files.items() if key != name}
                attempt.control_files = left
            if attempt.control_files and self.has(attempt):
                self.check.request(0.0 if reply.succeeded else REQUEUED_CONTROL_SECONDS)

        attempt.is_sending_control = True
        self.exec(attempt, exec_scripts.write_file(name, text), on_reply)

    def exec(
        self, attempt: PodAttempt, words: Sequence[str], on_reply: Callable[[Reply], None]
    ) -> None:
        """Run a command in the container of an attempt."""
        where = ("exec", attempt.identity.name, "-c", CONTAINER, "--")
        self.api.run([*self.settings.kubectl, *where, *words], on_reply)

    def acknowledge(self, attempts: Sequence[AttemptId]) -> None:
        """Let the cluster forget attempts: their ends are on disk."""
        self.ends.acknowledge(attempts)

    def upload_progress(self, attempt: AttemptId) -> Upload | None:
        """Return None: nothing is uploaded."""
        return None

    def follow_log(self, job: int) -> None:
        """Do nothing: logs are followed anyway."""

    def refresh(self) -> None:
        """Report the cluster again."""
        self._knows_nodes = self._is_reported_up = False
        if self.is_listed:
            self._list_nodes()

    def remove(self) -> None:
        """Delete the pods that are left, so that no finalizer holds them."""
        self._is_removed = True
        for name, pod in self.pods.items():
            self.ends.discard(name, is_running=assess(pod, True).kind is Kind.RUNNING)
        for name in self.attempts:
            self.api.stop_log(name)
        self.attempts.clear()
        self.check.cancel()
        self.reactor.call_later(CLOSE_SECONDS, lambda: self.api.unwatch(self.selector))

    def close(self) -> None:
        """Close the connection; pods continue."""
        for attempt in self.attempts.values():
            if os.path.isdir(self.environment.notes):
                attempt.copy.save()
        self.check.cancel()
        self.creations.close()
        self.api.unwatch(self.selector)


def _gang_reason(parts: Sequence[PodAttempt]) -> str:
    """Return why a gang waits: how many of its pods run, and what one of the others waits for."""
    waiting = [part for part in parts if not part.is_running]
    text = f"{len(parts) - len(waiting)} of {len(parts)} pods run"
    return ": ".join([text, *(part.why_it_waits for part in waiting if part.why_it_waits)][:2])
