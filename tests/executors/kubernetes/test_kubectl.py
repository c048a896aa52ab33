"""What kubectl prints: states of pods, and errors in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.executors.kubernetes.api.process import find_config
from stoker.executors.kubernetes.checks import role_yaml
from stoker.executors.kubernetes.kubectl import (
    UNANSWERED,
    UNCONFIGURED_TEXT,
    Kubectl,
    KubectlError,
    error_text,
    parse_pod,
)

REFUSED = "The connection to the server 10.0.0.1:6443 was refused - did you specify the right port?"
QUOTA = 'pods "p" is forbidden: exceeded quota: none'
NO_ROOM = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def pod(phase: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {}, "status": {"phase": phase, **more}}


def state(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "pilot", "state": state}]


@pytest.mark.parametrize(
    ("found", "reason", "is_failing", "is_fatal"),
    [
        (pod("Pending"), "it has not been scheduled yet", False, False),
        (
            pod("Pending", conditions=[
                {"type": "PodScheduled", "status": "False", "message": NO_ROOM}
            ]),
            NO_ROOM, False, False,
        ),
        (
            pod("Pending", containerStatuses=state(waiting={"reason": "ContainerCreating"})),
            "its container is being created", False, False,
        ),
        (
            pod("Pending", containerStatuses=state(
                waiting={"reason": "ErrImagePull", "message": "not found"}
            )),
            "ErrImagePull: not found", True, False,
        ),
        (
            pod("Pending", containerStatuses=state(waiting={"reason": "InvalidImageName"})),
            "InvalidImageName", True, True,
        ),
        (pod("Running", containerStatuses=state(running={})), "", False, False),
        (
            pod("Failed", containerStatuses=state(
                terminated={"exitCode": 1, "reason": "Error", "message": "the image lacks: grep\n"}
            )),
            "the image lacks: grep", False, False,
        ),
        (
            pod("Failed", containerStatuses=state(
                terminated={"exitCode": 137, "reason": "OOMKilled"}
            )),
            "OOMKilled, exit code 137", False, False,
        ),
        (pod("Failed", reason="Evicted", message="low on memory"), "Evicted: low on memory",
         False, False),
    ],
)  # fmt: skip
def test_the_state_of_a_pod(
    found: dict[str, Any], reason: str, is_failing: bool, is_fatal: bool
) -> None:
    parsed = parse_pod(found)
    assert (parsed.reason, parsed.is_failing, parsed.is_fatal) == (reason, is_failing, is_fatal)


def test_a_pod_ends_when_it_is_deleted_or_at_its_limit() -> None:
    found = pod("Running", startTime="1970-01-01T00:01:40Z")
    assert parse_pod(found).end is None
    found["spec"]["activeDeadlineSeconds"] = 50
    assert parse_pod(found).end == 150.0
    found["metadata"]["deletionTimestamp"] = "1970-01-01T00:02:00Z"
    assert (parse_pod(found).end, parse_pod(found).is_deleting) == (120.0, True)


@pytest.mark.parametrize(
    ("stderr", "text", "is_unanswered"),
    [
        (
            f"{REFUSED}\n", REFUSED, True,
        ),
        (
            f'Error from server (Forbidden): error when creating "STDIN": {QUOTA}\n', QUOTA, False,
        ),
        ("E1118 21:00:00.1 12 x.go:1] plugin\nerror: unable to upgrade connection\n",
         "unable to upgrade connection", False),
        ("", "", False),
        ("error: current-context must exist in order to minify\n", UNCONFIGURED_TEXT, False),
        ("The connection to the server localhost:8080 was refused\n", UNCONFIGURED_TEXT, True),
    ],
)  # fmt: skip
def test_errors_are_one_sentence(stderr: str, text: str, is_unanswered: bool) -> None:
    assert error_text(stderr) == text
    assert bool(UNANSWERED.search(stderr)) == is_unanswered


def test_a_kubeconfig_that_does_not_exist_is_named(tmp_path: Path) -> None:
    pytest.importorskip("lightkube")
    with pytest.raises(ValueError, match=f"there is no file {tmp_path}/config"):
        find_config(f"{tmp_path}/config", "")


def test_a_role_for_a_service_account_names_its_namespace() -> None:
    rules = {("", "pods"): ["get", "list"]}
    text = role_yaml("ml", "system:serviceaccount:tools:stoker", rules)
    assert "{kind: ServiceAccount, namespace: tools, name: stoker}" in text
    assert 'resources: ["pods"]\n    verbs: [get, list]\n' in text
    assert "metadata: {name: stoker, namespace: ml}" in text


def test_a_pod_that_takes_long_is_failing_if_its_events_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    creating = pod("Pending", containerStatuses=state(waiting={"reason": "ContainerCreating"}))
    creating["status"]["startTime"] = "2020-01-01T00:00:00Z"
    creating["spec"] = {"nodeName": "n1"}
    event = {
        "involvedObject": {"name": "p"}, "type": "Warning", "reason": "FailedMount",
        "message": "no such volume", "lastTimestamp": "2026-11-20T09:00:20Z",
    }  # fmt: skip
    replies: dict[str, dict[str, Any]] = {
        "pods": {"items": [creating]}, "events": {"kind": "EventList", "items": [event]}
    }  # fmt: skip

    def run(self: Kubectl, *words: str, input: str = "") -> str:
        if words[1] not in replies:
            raise KubectlError("forbidden")
        return json.dumps(replies[words[1]])

    monkeypatch.setattr(Kubectl, "run", run)
    (found,) = Kubectl().pods("a=b")
    assert (found.reason, found.is_failing) == ("FailedMount: no such volume", True)
    del replies["events"]
    (found,) = Kubectl().pods("a=b")
    assert (found.reason, found.is_failing) == ("its container is being created", False)
