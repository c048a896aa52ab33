"""What the state of a pod says about its attempt. Pure."""

from __future__ import annotations

from enum import Enum, auto

from msgspec import Struct

from stoker.executors.kubernetes.api.pods import Pod, Terminated
from stoker.executors.kubernetes.handover.pod_spec import REVOKED

KILLED = 128
"""An exit code above this is a signal."""
MAX_SIGNAL = 64
PREEMPTED = frozenset(
    {"Evicted", "Preempted", "Preempting", "Shutdown", "NodeShutdown", "NodeLost"}
)
"""Reasons of failed pods for which their jobs are not to blame."""
DEADLINE = "DeadlineExceeded"
PULL_ERRORS = frozenset({
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
    "ImageInspectError", "RegistryUnavailable", "CreateContainerConfigError",
    "CreateContainerError", "RunContainerError",
})  # fmt: skip
"""Why a container waits that will probably never start."""
NOT_STARTED = frozenset({"StartError", "ContainerCannotRun", "RunContainerError"})
"""Reasons of containers whose command could not be executed."""
NEVER = "1970-01-01T00:00:00Z"


class Kind(Enum):
    """What became of an attempt so far."""

    WAITING = auto()
    """It waits to be scheduled, or its image is fetched."""
    STUCK = auto()
    """Its container cannot be started at present."""
    RUNNING = auto()
    EXITED = auto()
    FAILED_START = auto()
    """Its command cannot be executed."""
    CANCELLED = auto()
    """It never began and never will."""
    LOST = auto()


class Verdict(Struct, frozen=True):
    """What became of an attempt so far, and why."""

    kind: Kind
    why: str = ""
    code: int | None = None
    lacks_memory: bool = False
    timed_out: bool = False
    """The kubelet ended it at the deadline of the pod."""
    preempted: bool = False
    """Whether the end is no failure of the job."""
    has_log: bool = False
    """Whether there is a log to read to its end."""


def assess(pod: Pod, is_ending: bool, has_run: bool = False) -> Verdict:
    """Return what a pod says; `is_ending`: stoker ends the attempt itself.

    `has_run`: it is known to have run, whatever the pod still says of its containers.
    """
    if REVOKED in pod.metadata.labels:
        return Verdict(Kind.CANCELLED, "the job was not started")
    state = pod.container
    if state.terminated is not None:
        return _ended(pod, state.terminated, is_ending)
    if pod.status.phase in ("Failed", "Succeeded"):  # its containers were removed
        return _failed(pod, has_run or state.running is not None, is_ending)
    if pod.is_deleting:
        return _deleting(pod, is_ending)
    if state.running is not None:
        return Verdict(Kind.RUNNING, has_log=True)
    waiting = state.waiting
    if waiting is not None and waiting.reason in PULL_ERRORS:
        return Verdict(Kind.STUCK, ": ".join(filter(None, (waiting.reason, waiting.message))))
    return Verdict(Kind.WAITING, _waiting_reason(pod))


def with_record(verdict: Verdict, code: int | None) -> Verdict:
    """Return the verdict by the exit code that the wrapper has recorded in the log.

    The kubelet may remove a container before it has reported its end. A signal is no end that the
    job has chosen.
    """
    is_open = verdict.kind in (Kind.EXITED, Kind.LOST)
    if code is None or not is_open or is_signal(code):
        return verdict
    return Verdict(Kind.EXITED, code=code, has_log=True)


def is_signal(code: int) -> bool:
    """Return whether an exit code means that a signal has ended the process."""
    return KILLED < code <= KILLED + MAX_SIGNAL


def is_being_created(pod: Pod) -> bool:
    """Return whether a pod has a node, and its container neither runs nor has failed."""
    state = pod.container
    return bool(pod.spec.node_name) and state.running is None and state.terminated is None


def _waiting_reason(pod: Pod) -> str:
    """Return why a pod waits, in the words of the cluster."""
    scheduled = pod.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return scheduled.message or scheduled.reason
    waiting = pod.container.waiting
    return f"{waiting.reason or 'preparing'} on {pod.spec.node_name}" if waiting else ""


def _ended(pod: Pod, end: Terminated, is_ending: bool) -> Verdict:
    has_begun = end.started_at not in (None, NEVER) and end.reason not in NOT_STARTED
    if not has_begun:
        if pod.is_deleting or pod.status.reason in PREEMPTED:
            return Verdict(Kind.CANCELLED, pod.status.message or "the pod was deleted")
        return Verdict(Kind.FAILED_START, end.message or end.reason)
    if end.exit_code == 0:
        return Verdict(Kind.EXITED, code=0, has_log=True)
    if end.reason == "OOMKilled":
        return Verdict(Kind.EXITED, code=KILLED + 9, lacks_memory=True, has_log=True)
    if pod.status.reason == DEADLINE:
        return Verdict(Kind.EXITED, code=end.exit_code, timed_out=True, has_log=True)
    why = _preemption(pod, is_ending)
    if end.reason == "ContainerStatusUnknown":
        return Verdict(Kind.LOST, why or end.message, preempted=why is not None, has_log=True)
    if why is not None and is_signal(end.exit_code):
        return Verdict(Kind.LOST, why, preempted=True, has_log=True)
    return Verdict(Kind.EXITED, code=end.exit_code, has_log=True)


def _preemption(pod: Pod, is_ending: bool) -> str | None:
    """Return why the cluster has ended a pod; None: it has not.

    Older servers mark neither what they drain nor what they preempt: a pod that is deleted, but not
    by stoker, counts as preempted.
    """
    disruption = pod.condition("DisruptionTarget")
    if disruption is not None and disruption.status == "True":
        return disruption.message or disruption.reason
    if pod.status.reason in PREEMPTED:
        return ": ".join(filter(None, (pod.status.reason, pod.status.message)))
    return "its pod was deleted" if pod.is_deleting and not is_ending else None


def _failed(pod: Pod, has_begun: bool, is_ending: bool) -> Verdict:
    why = ": ".join(filter(None, (pod.status.reason, pod.status.message))) or "its pod has failed"
    if not has_begun:
        return Verdict(Kind.CANCELLED, why)
    if pod.status.reason == DEADLINE:
        return Verdict(Kind.EXITED, code=KILLED + 9, timed_out=True, has_log=True)
    cluster = _preemption(pod, is_ending)
    return Verdict(Kind.LOST, cluster or why, preempted=cluster is not None, has_log=True)


def _deleting(pod: Pod, is_ending: bool) -> Verdict:
    """Assess a pod that is being deleted and whose container is not known to have ended."""
    is_confirmed = pod.metadata.deletion_grace_period_seconds == 0
    has_begun = pod.container.running is not None
    if not pod.spec.node_name or (is_confirmed and not has_begun):
        return Verdict(Kind.CANCELLED, "the pod was deleted before it began")
    if is_confirmed:
        why = _preemption(pod, is_ending) or "its pod was deleted"
        return Verdict(Kind.LOST, why, preempted=not is_ending)
    if has_begun:
        return Verdict(Kind.RUNNING, has_log=True)
    return Verdict(Kind.WAITING, "the pod is being deleted")
