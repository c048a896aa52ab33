"""Pods beside a pilot, by what an API server reports of them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from executors.kubernetes.fake_api import FakeApi
from executors.process_bench import Records
from executors.recording_sink import RecordingSink
from specs import launch_of
from stoker.core import events as e
from stoker.core.model.job import AttemptId
from stoker.core.model.resources import DeviceAllocation, Placement
from stoker.core.model.spec import Container, FileTransfer
from stoker.executors.agent.executor import AgentEnvironment
from stoker.executors.kubernetes.api.pods import Pod
from stoker.executors.kubernetes.handover.executor import HandoverSettings
from stoker.executors.kubernetes.handover.pod_template import PilotHost, PodTemplate
from stoker.executors.kubernetes.pinned_pods import (
    HOLD,
    RELEASE,
    PinnedPods,
    PodsSink,
    release_orphans,
)
from stoker.probes import remote_facts
from virtual_reactor import VirtualReactor

ID = AttemptId(7, 0)
NAME = "stoker-abcdef01-7-0"
PILOT = "stoker-abcdef01-lab-1234"
GPU = "GPU-1"
SHARED = Placement(
    "lab-1", (DeviceAllocation("gpu", "0", 20, 6000), DeviceAllocation("mem", "*", 512))
)
TIME = "2026-11-20T09:00:00.000000001Z"


class Lab:
    """The pinned pods of one pilot, and the cluster that the test simulates for them."""

    def __init__(self, base: Path) -> None:
        self.base, self.api, self.sink = base, FakeApi(), RecordingSink()
        self.now, self.changes = 0.0, 0
        self.reactor = VirtualReactor(lambda: self.now)
        environment = AgentEnvironment(
            "abcdef01", str(base), self.reactor, lambda _: b"", lambda _: None, remote_facts.parse
        )
        template = PodTemplate("lab", queue="team", node_selector={"pool": "a"})
        self.pods = PinnedPods(
            "lab-1", PILOT, self.api, environment, Records(), HandoverSettings(template)  # type: ignore[arg-type]
        )  # fmt: skip
        self.pods.open(PodsSink(self.sink, self._on_change))

    def _on_change(self) -> None:
        self.changes += 1

    def runs(self) -> None:
        """Let the pilot run, and list no pods."""
        self.pods.set_host(PilotHost(PILOT, "uid-1", "n1"))
        self.pods.on_listed([])

    def start(self, *gpus: str, placement: Placement = SHARED, **more: Any) -> None:
        launch = launch_of(
            directory="/work", extra={"STOKER_TOKEN": "t", "CUDA_VISIBLE_DEVICES": "0"},
            out=f"{self.base}/out", container=Container("img", in_job_directory=False),
            transfer=FileTransfer(send=()), placement=placement, gpus=gpus, **more,
        )  # fmt: skip
        self.pods.start(launch)

    def report(self, state: dict[str, Any], **metadata: Any) -> None:
        pod = {
            "metadata": {"name": NAME, "uid": "u", **metadata}, "spec": {"nodeName": "n1"},
            "status": {"containerStatuses": [{"name": "main", "state": state}]},
        }  # fmt: skip
        self.pods.on_pod(msgspec.convert(pod, Pod))

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while (left := self.reactor.seconds_until_timer()) is not None and self.now + left <= end:
            self.now += max(left, 0.001)
            self.reactor.run_timers()
        self.now = end

    def says(self, word: str) -> None:
        nonce = self.pods.attempts[NAME].identity.nonce
        self.api.logs[NAME].on_log(f"{TIME} {nonce} {word}\n".encode())

    def ends(self, code: int) -> None:
        """Report the end of the container, after its log was read."""
        self.report({"terminated": {"exitCode": code, "startedAt": TIME}})
        self.api.logs[NAME].on_log_end(200, "")

    def lines(self) -> list[str]:
        """Return the shell lines that ran in the pilot."""
        return [words[-1] for words in self.api.commands if PILOT in words]

    @property
    def last(self) -> Any:
        return self.sink.events[-1]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_pod_requests_nothing_and_gets_gpus_of_its_pilot(lab: Lab) -> None:
    lab.runs()
    lab.start(GPU)
    pod = lab.api.created[NAME]
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "0", "memory": "0"}, "limits": {"memory": "512Mi"}
    }  # fmt: skip
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables["NVIDIA_VISIBLE_DEVICES"] == variables["CUDA_VISIBLE_DEVICES"] == GPU
    (term,) = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == ["n1"]
    assert [owner["uid"] for owner in pod["metadata"]["ownerReferences"]] == ["uid-1"]
    assert pod["metadata"]["labels"]["stoker.dev/host"] == PILOT
    assert not [label for label in pod["metadata"]["labels"] if "kueue" in label]


def test_a_pod_without_gpus_sees_none(lab: Lab) -> None:
    lab.runs()
    lab.start(placement=Placement("lab-1", (DeviceAllocation("cpu", "*", 1000),)))
    variables = {
        each["name"]: each["value"]
        for each in lab.api.created[NAME]["spec"]["containers"][0]["env"]
    }
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert variables["CUDA_VISIBLE_DEVICES"] == ""


def test_gpus_that_have_no_uuid_are_not_given(lab: Lab) -> None:
    lab.runs()
    lab.start(f"{PILOT}-0")
    assert isinstance(lab.last, e.ProcessExited)
    assert "UUID" in str(lab.last.lacks)
    assert not lab.api.created


def test_a_container_that_sees_no_gpu_is_no_failure_of_its_image(lab: Lab) -> None:
    lab.runs()
    lab.start(GPU)
    lab.report({"running": {"startedAt": TIME}})
    lab.says("x lacks")
    lab.ends(0)
    assert isinstance(lab.last, e.ProcessExited)
    assert "NVIDIA_VISIBLE_DEVICES" in str(lab.last.lacks)


def test_the_pilot_is_held_while_pods_use_it(lab: Lab) -> None:
    lab.runs()
    lab.start(GPU)
    assert lab.lines() == [HOLD]
    lab.report({"running": {"startedAt": TIME}})
    lab.ends(3)
    assert lab.last.code == 3
    lab.pods.acknowledge([ID])
    assert lab.lines() == [HOLD, RELEASE]


def test_nothing_starts_beside_a_pilot_that_has_ended(lab: Lab) -> None:
    lab.runs()
    lab.pods.expel()
    lab.start(GPU)
    assert isinstance(lab.last, e.StartCancelled)
    assert not lab.api.created


def test_the_pods_of_a_pilot_that_has_ended_are_deleted_until_they_are_gone(lab: Lab) -> None:
    lab.runs()
    lab.start(GPU)
    lab.report({"running": {"startedAt": TIME}})
    lab.pods.expel()
    lab.advance(6.0)
    assert lab.api.deleted.count(NAME) == 2
    gone = {"metadata": {"name": NAME}, "spec": {"nodeName": "n1"}}
    lab.api.refusals[NAME] = 404
    lab.pods.on_deleted(msgspec.convert(gone, Pod))
    assert isinstance(lab.last, e.AttemptLost)
    assert lab.last.preempted
    assert not lab.pods.has_attempts()


def test_a_pilot_that_is_removed_takes_its_pods_with_it(lab: Lab) -> None:
    lab.runs()
    lab.start(GPU)
    lab.report({"running": {"startedAt": TIME}})
    lab.pods.remove()
    assert lab.api.deleted == [NAME, NAME]
    assert not lab.pods.has_attempts()


@pytest.mark.parametrize(
    ("why", "kind"),
    [("pods is forbidden: User cannot watch", e.ProcessExited), ("no route", e.StartCancelled)],
)
def test_a_start_while_pods_cannot_be_watched(lab: Lab, why: str, kind: type[e.Event]) -> None:
    lab.pods.set_host(PilotHost(PILOT, "uid-1", "n1"))
    lab.pods.on_failed(why)
    lab.start(GPU)
    assert isinstance(lab.last, kind)
    assert why in (lab.last.lacks or "" if kind is e.ProcessExited else lab.last.why)
    assert lab.sink.downs == []


def test_pods_of_pilots_that_are_not_known_are_let_go(lab: Lab) -> None:
    hosts = {"a": PILOT, "b": "stoker-abcdef01-lab-5678", "c": "stoker-abcdef01-other-1234"}
    lab.api.pods["pods"] = {"items": [
        {"metadata": {"name": name, "labels": {"stoker.dev/host": host}}}
        for name, host in hosts.items()
    ]}  # fmt: skip
    release_orphans(lab.api, "abcdef01", "stoker-abcdef01-lab", lambda host: host == PILOT)  # type: ignore[arg-type]
    assert lab.api.deleted == ["b"]


# -- why a container is not created -----------------------------------------------------------

CREATING = {"waiting": {"reason": "ContainerCreating"}}


def event(reason: str, at: str, type: str = "Warning") -> dict[str, str]:
    return {
        "type": type, "reason": reason, "message": f"about {reason}",
        "lastTimestamp": f"2026-11-20T09:{at}Z",
    }  # fmt: skip


def queued(lab: Lab) -> list[str]:
    return [each.reason for each in lab.sink.events if isinstance(each, e.AttemptQueued)]


def test_a_volume_that_cannot_be_mounted_is_shown_and_fails_the_start(lab: Lab) -> None:
    lab.runs()
    lab.start(GPU)
    lab.api.pods["events"] = {"items": [
        event("FailedMount", "00:20"), event("Scheduled", "00:01", "Normal"),
        event("MissingClusterDNS", "00:30"),
    ]}  # fmt: skip
    lab.report(CREATING)
    assert queued(lab)[-1] == "ContainerCreating on n1"
    lab.advance(16.0)
    assert queued(lab)[-1] == "FailedMount: about FailedMount"
    assert lab.api.deleted == []
    lab.advance(310.0)
    assert NAME in lab.api.deleted
    lab.api.refusals[NAME] = 404
    lab.pods.on_deleted(msgspec.convert({"metadata": {"name": NAME}}, Pod))
    assert isinstance(lab.last, e.StartFailed)
    assert lab.last.why == "FailedMount: about FailedMount"


def test_an_image_that_takes_long_is_waited_for(lab: Lab) -> None:
    lab.runs()
    lab.start(GPU)
    lab.api.pods["events"] = {"items": [
        event("FailedMount", "00:20"), event("Pulling", "00:40", "Normal"),
    ]}  # fmt: skip
    lab.report(CREATING)
    lab.advance(3600.0)
    assert queued(lab)[-1] == "ContainerCreating on n1"
    assert lab.api.deleted == []


def test_without_the_right_to_list_events_the_reason_says_so(lab: Lab) -> None:
    lab.runs()
    lab.api.refusals["events"] = 403
    lab.start(GPU)
    lab.report(CREATING)
    lab.advance(3600.0)
    assert "may not list events" in queued(lab)[-1]
    assert lab.api.deleted == []
