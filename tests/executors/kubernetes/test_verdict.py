"""What the states of pods say about their attempts."""

from typing import Any

import msgspec
import pytest

from stoker.executors.kubernetes.api.pods import Pod
from stoker.executors.kubernetes.handover.pod_spec import REVOKED
from stoker.executors.kubernetes.handover.verdict import Kind, Verdict, assess, with_record

STARTED = "2026-11-20T09:00:00Z"
DELETED = {"deletionTimestamp": STARTED, "deletionGracePeriodSeconds": 30}
CONFIRMED = DELETED | {"deletionGracePeriodSeconds": 0}


def pod(
    state: dict[str, Any] | None = None, phase: str = "Running", node: str = "n1",
    metadata: dict[str, Any] | None = None, **status: Any,
) -> Pod:  # fmt: skip
    containers = [{"name": "main", "state": state}] if state is not None else []
    return msgspec.convert(
        {
            "metadata": {"name": "p", **(metadata or {})},
            "spec": {"nodeName": node},
            "status": {"phase": phase, "containerStatuses": containers, **status},
        },
        Pod,
    )


def terminated(code: int, reason: str = "Error", started: str | None = STARTED) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": started}}


RUNNING = {"running": {"startedAt": STARTED}}
UNSCHEDULABLE = [{
    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
    "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
}]  # fmt: skip
DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "message": "preempting"}]


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        (pod(phase="Pending", node=""), Verdict(Kind.WAITING)),
        (
            pod(phase="Pending", node="", conditions=UNSCHEDULABLE),
            Verdict(Kind.WAITING, UNSCHEDULABLE[0]["message"]),
        ),
        (
            pod(waiting("ContainerCreating"), "Pending"),
            Verdict(Kind.WAITING, "ContainerCreating on n1"),
        ),
        (
            pod(waiting("ErrImagePull", "no such image"), "Pending"),
            Verdict(Kind.STUCK, "ErrImagePull: no such image"),
        ),
        (pod(RUNNING), Verdict(Kind.RUNNING, has_log=True)),
        (
            pod(terminated(0, "Completed"), "Succeeded"),
            Verdict(Kind.EXITED, code=0, has_log=True),
        ),
        (pod(terminated(3), "Failed"), Verdict(Kind.EXITED, code=3, has_log=True)),
        (
            pod(terminated(137, "OOMKilled"), "Failed"),
            Verdict(Kind.EXITED, code=137, lacks_memory=True, has_log=True),
        ),
        (
            pod(terminated(137), "Failed", reason="DeadlineExceeded"),
            Verdict(Kind.EXITED, code=137, timed_out=True, has_log=True),
        ),
        (
            pod(terminated(143), "Failed", reason="Evicted", message="low on disk"),
            Verdict(Kind.LOST, "Evicted: low on disk", preempted=True, has_log=True),
        ),
        (
            pod(terminated(137), "Failed", conditions=DISRUPTED),
            Verdict(Kind.LOST, "preempting", preempted=True, has_log=True),
        ),
        # It ended by itself while it was evicted: its own code counts.
        (
            pod(terminated(75), "Failed", conditions=DISRUPTED),
            Verdict(Kind.EXITED, code=75, has_log=True),
        ),
        (
            pod(terminated(143), "Failed", metadata=DELETED),
            Verdict(Kind.LOST, "its pod was deleted", preempted=True, has_log=True),
        ),
        (
            pod(terminated(128, "StartError", "1970-01-01T00:00:00Z"), "Failed"),
            Verdict(Kind.FAILED_START, "StartError"),
        ),
        (pod(phase="Failed", reason="Evicted"), Verdict(Kind.CANCELLED, "Evicted")),
        (
            pod(RUNNING, "Failed", reason="NodeLost"),
            Verdict(Kind.LOST, "NodeLost", preempted=True, has_log=True),
        ),
        (
            pod(terminated(137, "ContainerStatusUnknown"), "Failed", metadata=DELETED),
            Verdict(Kind.LOST, "its pod was deleted", preempted=True, has_log=True),
        ),
        (
            pod(RUNNING, "Failed", metadata=DELETED),
            Verdict(Kind.LOST, "its pod was deleted", preempted=True, has_log=True),
        ),
        # The node does not answer: nothing is known until the deletion is confirmed.
        (pod(RUNNING, metadata=DELETED), Verdict(Kind.RUNNING, has_log=True)),
        (
            pod(RUNNING, metadata=CONFIRMED),
            Verdict(Kind.LOST, "its pod was deleted", preempted=True),
        ),
        (
            pod(phase="Pending", node="", metadata=DELETED),
            Verdict(Kind.CANCELLED, "the pod was deleted before it began"),
        ),
        (
            pod(waiting("ContainerCreating"), "Pending", metadata=DELETED),
            Verdict(Kind.WAITING, "the pod is being deleted"),
        ),
        (
            pod(waiting("ContainerCreating"), "Pending", metadata=CONFIRMED),
            Verdict(Kind.CANCELLED, "the pod was deleted before it began"),
        ),
        (
            pod(phase="Pending", node="", metadata={"labels": {REVOKED: "true"}}),
            Verdict(Kind.CANCELLED, "the job was not started"),
        ),
    ],
)
def test_a_pod_that_stoker_does_not_end(state: Pod, verdict: Verdict) -> None:
    assert assess(state, is_ending=False) == verdict


def test_an_attempt_that_has_run_is_lost_although_its_pod_shows_no_container() -> None:
    evicted = pod(phase="Failed", reason="Evicted", message="low on memory")
    why = "Evicted: low on memory"
    expected = Verdict(Kind.LOST, why, preempted=True, has_log=True)
    assert assess(evicted, is_ending=False, has_run=True) == expected
    deadline = pod(phase="Failed", reason="DeadlineExceeded")
    verdict = assess(deadline, is_ending=False, has_run=True)
    assert (verdict.kind, verdict.timed_out) == (Kind.EXITED, True)


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        (
            pod(terminated(143), "Failed", metadata=DELETED),
            Verdict(Kind.EXITED, code=143, has_log=True),
        ),
        (
            pod(RUNNING, metadata=CONFIRMED),
            Verdict(Kind.LOST, "its pod was deleted", preempted=False),
        ),
    ],
)
def test_a_pod_that_stoker_ends(state: Pod, verdict: Verdict) -> None:
    assert assess(state, is_ending=True) == verdict


def test_the_record_of_the_exit_decides_unless_it_is_a_signal() -> None:
    lost = Verdict(Kind.LOST, "its pod was deleted", preempted=True, has_log=True)
    assert with_record(lost, 0) == Verdict(Kind.EXITED, code=0, has_log=True)
    assert with_record(lost, 143) == lost
    assert with_record(lost, None) == lost
    running = Verdict(Kind.RUNNING, has_log=True)
    assert with_record(running, 0) == running
