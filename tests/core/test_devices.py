"""Nodes that join with fewer devices, drained devices, and foreign use."""

import pytest

from core.scenario import Scenario, gpus, node
from stoker.core import events as e
from stoker.core.cluster.overlay import Overlay
from stoker.core.model.resources import DeviceFacts, NodeFacts, ResourceRequest
from stoker.core.placement.placer import find_placement
from stoker.daemon.selectors import find_devices

ZERO = (("box", "gpu", "0"),)


def test_a_drained_gpu_finishes_its_work_and_takes_no_new():
    story = Scenario(gpus=1)
    job, waits = story.submit(), story.submit()
    story.run(job)
    story.tell(e.DevicesDrained(at=0, devices=ZERO, reason="fan"))
    assert story.is_(job) == "RUNNING"
    story.exited(job)
    assert story.plan() == []
    story.tell(e.DevicesUndrained(at=0, devices=ZERO))
    assert story.plan() == [waits]


def test_a_drained_gpu_stays_drained_when_its_node_joins_again():
    story = Scenario(gpus=1)
    story.tell(e.DevicesDrained(at=0, devices=ZERO, reason="fan"))
    story.tell(e.NodeJoined(at=0, facts=node(2)))
    story.submit(count=2)
    assert len(story.plan()) == 1
    assert story.state.cluster.nodes["box"].by_name["gpu", "0"].drained == "fan"


def test_draining_means_the_device_of_that_name_and_no_other():
    swapped = NodeFacts(
        name="box",
        types={"gpu": (DeviceFacts(name="0", index=1), DeviceFacts(name="1", index=0))},
    )
    story = Scenario()
    story.tell(e.DevicesDrained(at=0, devices=ZERO, reason="fan"))
    story.tell(e.NodeJoined(at=0, facts=swapped))
    drained = {each.name: each.drained for each in story.state.cluster.nodes["box"].devices()}
    assert drained == {"0": "fan", "1": None}


def test_a_gpu_with_a_foreign_process_is_unavailable_until_it_ends():
    story = Scenario(gpus=1)
    job = story.submit()
    story.tell(e.ForeignUseChanged(at=0, node="box", device="0", foreign_user="bob", memory=100))
    assert story.plan() == []
    story.tell(e.ForeignUseChanged(at=0, node="box", device="0", foreign_user=None))
    assert story.plan() == [job]
    assert story.state.record.foreign_use == {}


def test_memory_of_a_foreign_process_is_not_allocated():
    story = Scenario(gpus=1)
    story.tell(e.ForeignUseChanged(at=0, node="box", device="0", foreign_user=None, memory=20_000))
    story.submit(gpus(0.1, memory=5_000))
    small = story.submit(gpus(0.1, memory=4_000))
    assert story.plan() == [small]


def test_a_new_daemon_measures_foreign_use_again():
    story = Scenario(gpus=1)
    job = story.submit()
    story.tell(e.ForeignUseChanged(at=0, node="box", device="0", foreign_user="bob"))
    story.tell(e.DaemonStarted(at=0, term=2, boot="b", pid=1, version="1"))
    assert story.plan() == [job]


def test_a_node_that_joins_again_keeps_the_allocations_of_its_attempts():
    story = Scenario(gpus=2)
    job = story.submit()
    story.run(job)
    story.tell(e.NodeJoined(at=0, facts=node(2)))
    assert story.free() == {"0": 0, "1": 1000}
    story.exited(job)
    assert story.free() == {"0": 1000, "1": 1000}


def test_a_gpu_that_vanished_under_a_running_attempt_stays_until_its_end():
    story = Scenario(gpus=2)
    halves = [story.submit(gpus(0.5)) for _ in range(2)]
    other = story.submit()
    story.run(*halves, other)
    story.tell(e.NodeJoined(at=0, facts=_only("1")))
    story.submit(gpus(0.5))
    assert story.plan() == []
    story.exited(halves[0])
    assert story.plan() == []
    story.exited(halves[1])
    assert story.free() == {"1": 0}
    story.exited(other)
    assert story.plan() != []


def _only(*names: str) -> NodeFacts:
    cards = tuple(DeviceFacts(name=name) for name in names)
    return NodeFacts(name="box", types={"gpu": cards})


def test_a_gpu_that_comes_back_is_open_again():
    story = Scenario(gpus=1)
    job, waits = story.submit(), story.submit()
    story.run(job)
    story.tell(e.NodeJoined(at=0, facts=_only("9")))
    story.tell(e.NodeJoined(at=0, facts=_only("0")))
    assert story.plan() == []
    story.exited(job)
    assert story.plan() == [waits]
    assert story.on(waits) == ["0"]


def test_a_pool_that_shrank_under_its_attempts_is_closed_until_they_end_and_not_lost():
    story = Scenario(cpus=8)
    big, small = story.submit(ResourceRequest(cpus=6000)), story.submit(ResourceRequest(cpus=2000))
    story.run(big, small)
    story.tell(e.NodeJoined(at=0, facts=node(2, cpus=4)))
    waits = story.submit(ResourceRequest(cpus=1000))
    assert story.plan() == []
    story.exited(small)
    assert story.plan() == []
    story.exited(big)
    assert story.plan() == [waits]
    assert story.free("cpu") == {"cpu": 3000}


def test_devices_by_the_words_people_use():
    cards = tuple(
        DeviceFacts(name=str(n), index=n, uuid=f"GPU-{n}{n}{n}{n}-abcd") for n in range(3)
    )
    story = Scenario()
    story.tell(e.NodeJoined(at=0, facts=NodeFacts(name="box", types={"gpu": cards})))

    def found(word: str) -> list[str]:
        return [device.name for _, device in find_devices(story.state.cluster, word)]

    assert found("1") == found("gpu:1") == found("box/gpu:1") == found("GPU-1111") == ["1"]
    assert found("all") == ["0", "1", "2"]
    assert found("cpu:0") == found("other/gpu:1") == found("GPU-") == []


def without_gpu_1(policy: str) -> tuple[Scenario, int]:
    """GPU 1 is no longer offered but still held; half of GPU 0 is in use."""
    story = Scenario()
    story.tell(e.PolicyChosen(at=story.now, queue="*", name=policy, parameters={}))
    holds = story.submit(gpus(1, required=("1",)), limit=600)
    story.run(holds, story.submit(gpus(0.5, required=("0",)), limit=3600))
    story.tell(e.NodeJoined(at=0, facts=node(1)))
    return story, holds


@pytest.mark.parametrize("policy", ["backfill", "conservative", "planner"])
def test_a_reservation_never_counts_on_a_gpu_that_is_gone(policy: str):
    story, holds = without_gpu_1(policy)
    whole = story.submit(gpus(1), limit=60)
    half = story.submit(gpus(0.5), limit=1800)
    assert story.plan() == [half]
    story.exited(holds)
    assert story.free() == {"0": 0}
    story.exited(half)
    assert story.plan() == []
    story.exited(2)
    assert story.plan() == [whole]


@pytest.mark.parametrize("policy", ["backfill", "conservative"])
def test_a_whole_node_is_reserved_until_its_removed_gpu_is_released(policy: str):
    story, _ = without_gpu_1(policy)
    story.submit(ResourceRequest(exclusive=True), limit=60)
    story.submit(gpus(0.5), limit=4000)
    short = story.submit(gpus(0.5), limit=1800)
    assert story.plan() == [short]


def test_a_what_if_ledger_keeps_the_devices_of_the_true_one():
    story, holds = without_gpu_1("backfill")
    later = Overlay(story.state.cluster)
    later.release(story.placed(holds))
    assert later.node("box").by_name.keys() == story.state.cluster.node("box").by_name.keys()
    assert find_placement(later, gpus(1, required=("1",))) is None


@pytest.mark.parametrize(
    ("facts", "minor"),
    [
        (DeviceFacts("0", index=0, minor=3), 3),
        (DeviceFacts("2", index=2, uuid="GPU-2"), 2),
        (DeviceFacts("1", capacity=2000), 1),
        (DeviceFacts("left"), None),
        (DeviceFacts("amd0", index=0, vendor="amd"), None),
    ],
)
def test_the_device_file_of_a_gpu_is_that_of_the_driver_or_of_its_number(facts, minor):
    assert facts.nvidia_minor == minor
