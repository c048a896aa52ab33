"""The pods of a gang, by what an API server reports of them: they run together or not at all."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from executors.kubernetes.fake_api import FakeApi
from executors.process_bench import Records
from executors.recording_sink import RecordingSink
from specs import launch_of
from stoker.core import events as e
from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId
from stoker.core.model.resources import DeviceAllocation, Placement
from stoker.core.model.spec import Container, FileTransfer, Training
from stoker.executors.agent.executor import AgentEnvironment
from stoker.executors.kubernetes.api.pods import Pod
from stoker.executors.kubernetes.handover.executor import HandoverExecutor, HandoverSettings
from stoker.executors.kubernetes.handover.pod_spec import PodIdentity
from stoker.executors.kubernetes.handover.pod_template import PodTemplate
from stoker.executors.port import Barrier, PartHost, RecoverableAttempt
from stoker.probes import remote_facts
from virtual_reactor import VirtualReactor

ID = AttemptId(7, 0)
PART = Placement("lab", (DeviceAllocation("gpu", "*", 1000),))
TIME = "2026-11-20T09:00:00.000000001Z"


class Lab:
    """An executor, and the cluster that the test simulates for it."""

    def __init__(self, base: Path) -> None:
        self.base, self.api = base, FakeApi()
        self.open()

    def open(self) -> None:
        self.sink, self.reactor = RecordingSink(), VirtualReactor()
        environment = AgentEnvironment(
            "abcdef01", str(self.base), self.reactor, lambda _: b"", lambda _: None,
            remote_facts.parse,
        )  # fmt: skip
        settings = HandoverSettings(PodTemplate("lab"))
        self.executor = HandoverExecutor(
            "lab",
            self.api,
            environment,
            Records(),
            settings,  # type: ignore[arg-type]
        )
        self.executor.open(self.sink)
        self.executor.on_listed([self.pod(name) for name in self.api.pods])

    def launch(self, rank: int, **more: Any) -> Launch:
        return launch_of(
            directory="/work", extra={"STOKER_TOKEN": "t"}, out=f"{self.base}/out.{rank}",
            placement=replace(PART, other_parts=(PART,)),
            container=Container("img", in_job_directory=False, ports=((31346, 6006),)),
            transfer=FileTransfer(send=()), **more,
        )  # fmt: skip

    def start(self, **more: Any) -> None:
        for rank in range(2):
            self.executor.start(self.launch(rank, **more), Barrier(rank, timeout=300))

    def identity(self, rank: int) -> PodIdentity:
        return PodIdentity("abcdef01", "lab", ID, rank)

    def pod(self, name: str) -> Pod:
        return msgspec.convert(self.api.pods[name], Pod)

    def report(self, rank: int, state: dict[str, Any], **more: Any) -> None:
        """Report a state of the container of a part."""
        pod = self.api.pods[self.identity(rank).name]
        pod["status"] = {
            "podIP": f"10.0.0.{rank}", "containerStatuses": [{"name": "main", "state": state}],
            **more,
        }  # fmt: skip
        pod["spec"] = {"nodeName": f"n{rank}"}
        self.executor.on_pod(self.pod(self.identity(rank).name))

    def runs(self, rank: int) -> None:
        self.report(rank, {"running": {"startedAt": TIME}})

    def ends(self, rank: int, code: int = 0) -> None:
        """Report the end of a container whose log was read."""
        ended = {"exitCode": code, "startedAt": TIME}
        self.report(rank, {"terminated": ended})
        self.api.logs[self.identity(rank).name].on_log_end(200, "")

    def says(self, rank: int, *words: str) -> None:
        """Let the wrapper of a part write lines into its log."""
        identity = self.identity(rank)
        for word in words:
            self.api.logs[identity.name].on_log(f"{TIME} {identity.nonce} {word}\n".encode())

    def of(self, kind: type[e.Event]) -> list[Any]:
        return [event for event in self.sink.events if isinstance(event, kind)]

    def written(self, name: str) -> list[int]:
        """Return the ranks whose containers got a control file."""
        names = [words[2] for words in self.api.commands if words[-2] == name]
        return [int(each.rpartition("-")[2]) for each in names]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_each_part_is_a_pod_that_starts_when_it_is_released(lab: Lab) -> None:
    lab.start()
    assert list(lab.api.pods) == ["stoker-abcdef01-7-0-0", "stoker-abcdef01-7-0-1"]
    assert lab.executor.waiting_count == 1
    for rank in range(2):
        lab.runs(rank)
        lab.says(rank, "b")
    assert sorted(lab.sink.ready_parts) == [(ID, rank, 29507) for rank in range(2)]
    assert lab.sink.hosts == {rank: PartHost(f"n{rank}", f"10.0.0.{rank}") for rank in range(2)}
    assert lab.of(e.ProcessStarted) == []
    lab.executor.release(ID, 1, {"MASTER_ADDR": "10.0.0.0"})
    assert lab.written(".go") == [1]
    assert lab.api.commands[-1][-1] == "export MASTER_ADDR=10.0.0.0\n"
    lab.executor.release(ID, 0, {"MASTER_ADDR": "10.0.0.0"})
    lab.says(1, "g")
    lab.says(0, "g")
    started = lab.of(e.ProcessStarted)
    assert [(event.part, event.hosts) for event in started] == [(1, ("n1",)), (0, ("n0",))]


def test_the_ends_of_parts_are_acknowledged_one_by_one(lab: Lab) -> None:
    lab.start()
    for rank in (1, 0):
        lab.runs(rank)
        lab.says(rank, "b", "g")
    for rank in (1, 0):
        lab.says(rank, f"x {rank}")
        lab.ends(rank, rank)
    assert [(event.part, event.code) for event in lab.of(e.ProcessExited)] == [(1, 1), (0, 0)]
    assert not lab.executor.has_attempts()
    lab.executor.acknowledge([AttemptId(7, 1)])
    assert lab.api.deleted == []
    for rank in (1, 0):
        lab.executor.acknowledge([ID])
        assert lab.api.deleted[-1] == lab.identity(rank).name
    assert list(lab.base.glob("lab.*")) == []


def test_a_part_without_the_others_is_no_end_of_the_job(lab: Lab) -> None:
    lab.start()
    lab.runs(0)
    lab.says(0, "b", "x cancelled")
    lab.ends(0)
    lab.executor.release(ID, 1, None)
    assert lab.api.deleted == [lab.identity(1).name]
    lab.report(1, {}, phase="Failed")
    assert [event.part for event in lab.of(e.StartCancelled)] == [0, 1]
    assert len(lab.sink.events) - len(lab.of(e.AttemptQueued)) == 2


def test_a_part_that_is_killed_at_its_barrier_has_not_run(lab: Lab) -> None:
    lab.start()
    lab.runs(0)
    lab.says(0, "b")
    lab.ends(0, 137)
    assert [event.part for event in lab.of(e.StartCancelled)] == [0]
    assert lab.of(e.ProcessExited) == []


def test_a_part_that_is_terminated_at_its_barrier_does_not_pass_it(lab: Lab) -> None:
    lab.start()
    lab.runs(0)
    lab.says(0, "b")
    lab.executor.terminate(ID, 10.0)
    assert lab.written(".cancelled") == [0]
    assert lab.api.deleted == [lab.identity(1).name]
    assert not any("TERM" in words[-1] for words in lab.api.commands)


def test_the_reason_to_wait_says_how_many_pods_run(lab: Lab) -> None:
    lab.start()
    lab.runs(0)
    lab.says(0, "b")
    condition = {"type": "PodScheduled", "status": "False", "message": "no GPU"}
    lab.report(1, {}, conditions=[condition])
    reasons = [event.reason for event in lab.of(e.AttemptQueued)]
    assert reasons[-1] == "1 of 2 pods run: no GPU"
    assert {event.external_id for event in lab.of(e.AttemptQueued)} == {"pod stoker-abcdef01-7-0-0"}


def test_control_files_and_ports_are_those_of_one_part(lab: Lab) -> None:
    lab.start()
    for rank in range(2):
        lab.runs(rank)
        lab.says(rank, "b", "g")
    lab.executor.send_control(ID, 1, "stop_at", "5")
    assert lab.written("stop_at") == [1]
    ports = [attempt.ports for attempt in lab.executor.attempts.values()]
    assert ports == [((31346, 6006),), ()]


def test_a_training_gang_is_stopped_when_the_cluster_ends_one_of_its_pods(lab: Lab) -> None:
    lab.start(training=Training())
    for rank in range(2):
        lab.runs(rank)
        lab.says(rank, "b", "g")
    lab.api.pods[lab.identity(1).name]["metadata"]["deletionTimestamp"] = TIME
    for _ in range(2):
        lab.runs(1)
    (requested,) = lab.of(e.PreemptionRequested)
    assert requested.job == 7
    assert not requested.at_once


def test_a_later_daemon_learns_from_the_logs_which_parts_wait_and_run(lab: Lab) -> None:
    lab.start()
    for rank in range(2):
        lab.runs(rank)
        lab.says(rank, "b")
    lab.executor.close()
    lab.open()
    job: Any = SimpleNamespace(id=7, attempt=0, started_at=5.0, state=None)
    spec: Any = SimpleNamespace(container=None, training=Training(epochs=1))
    parts = [
        RecoverableAttempt(job, spec, f"{lab.base}/out.{rank}", rank=rank) for rank in range(2)
    ]
    lab.executor.recover(parts)
    for rank in range(2):
        lab.runs(rank)
        lab.says(rank, "b")
    lab.says(0, "g")
    assert {rank for _, rank, _ in lab.sink.ready_parts} == {0, 1}
    assert [event.part for event in lab.of(e.ProcessStarted)] == [0]


def test_a_removed_cluster_reports_nothing_of_another_with_its_name(lab: Lab) -> None:
    ups = list(lab.sink.ups)
    lab.executor.remove()
    lab.executor.on_failed("no answer")
    lab.executor.on_listed([])
    assert (lab.sink.downs, lab.sink.ups) == ([], ups)
