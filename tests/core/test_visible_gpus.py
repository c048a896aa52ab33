"""Environment variables with the GPUs of an attempt."""

from core.scenario import Scenario, gpus
from stoker.core import events as e
from stoker.core.launch.launch import Launch, fill_path, launch
from stoker.core.model.resources import DeviceFacts, NodeFacts, ResourceRequest


def launched(request: ResourceRequest, *cards: DeviceFacts, command: str = "true") -> Launch:
    """The launch of a job with this request on a machine with these GPUs."""
    scenario = Scenario()
    scenario.tell(e.NodeJoined(at=0, facts=NodeFacts(name="box", types={"gpu": cards})))
    job = scenario.submit(request, name="train")
    scenario.job(job).command = command
    scenario.plan()
    given = {
        "job": scenario.job(job), "spec": scenario.state.spec(scenario.job(job)),
        "placement": scenario.placed(job), "node": scenario.state.cluster.nodes["box"],
        "logs": "/l", "token": "t.1.0", "scripts": "/s", "at": 0.0, "home": "/h",
    }  # fmt: skip
    return launch(**given)


def card(n: int, **more: object) -> DeviceFacts:
    return DeviceFacts(name=str(n), index=n, **more)  # type: ignore[arg-type]


def test_a_job_sees_its_gpus_by_index_in_the_order_of_the_bus():
    extra = launched(gpus(2, required=("2", "1")), card(0), card(1), card(2)).extra
    assert extra["CUDA_VISIBLE_DEVICES"] == extra["STOKER_GPUS"] == "2,1"
    assert extra["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_slice_of_a_gpu_is_named_by_its_uuid():
    extra = launched(gpus(1), card(0, mig=True, uuid="MIG-1234")).extra
    assert extra["CUDA_VISIBLE_DEVICES"] == "MIG-1234"


def test_a_job_without_gpus_sees_none_of_any_vendor():
    nvidia = launched(ResourceRequest(), card(0, vendor="nvidia")).extra
    assert (nvidia["CUDA_VISIBLE_DEVICES"], nvidia["CUDA_DEVICE_ORDER"]) == ("", "PCI_BUS_ID")
    amd = launched(ResourceRequest(), card(0, vendor="amd")).extra
    assert (amd["CUDA_VISIBLE_DEVICES"], amd["ROCR_VISIBLE_DEVICES"]) == ("", "")


def test_a_job_on_amd_sees_its_gpus_there():
    extra = launched(gpus(1, required=("1",)), card(0, vendor="amd"), card(1, vendor="amd")).extra
    assert extra["ROCR_VISIBLE_DEVICES"] == "1"
    assert extra["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_the_gpu_may_be_written_into_the_command():
    found = launched(gpus(1, required=("1",)), card(0), card(1), command="train --device {gpu}")
    assert found.argv[-1] == "train --device 1"


def test_names_of_files_are_filled_in():
    scenario = Scenario()
    first = scenario.submit(count=2, array=True, name="a/b")
    job = scenario.job(first + 1)
    spec = scenario.state.spec(job)
    assert fill_path("out/%x-%A_%a.%j.%%", job, spec, "box") == "//out/a_b-1_1.2.%"
