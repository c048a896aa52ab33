"""Strangers on the GPUs of a machine over SSH are judged like those here."""

from core.scenario import Scenario
from stoker.core.events import Event, ForeignUseChanged, NodeJoined
from stoker.core.foreign import Thresholds
from stoker.daemon.gpus.foreign_usage import ForeignUsageDetector, ForeignUsageThresholds
from stoker.daemon.gpus.memory import GpuMemoryTracker
from stoker.probes.remote_facts import RemoteFacts, parse
from stoker.schema import requests as r

GPU = "gpu 0, GPU-a, A100, 80000, {used}, 0, 40, 50\napps\n"
IDLE = GPU.format(used=100) + "end\n"
ALICE = GPU.format(used=4100) + "app GPU-a, 77, 4000\nowner 77 70 alice - /bin/python x\nend\n"
OURS = GPU.format(used=4100) + "app GPU-a, 77, 4000\nowner 77 70 me abc.1.1 python x\nend\n"
DEAD = GPU.format(used=100) + "app GPU-a, 77, 4000\nend\n"


class Far:
    """One remote machine, and the judge of its GPUs."""

    def __init__(self, **thresholds: float) -> None:
        self.scenario = Scenario(gpus=0)
        self.scenario.tell(NodeJoined(at=self.scenario.now, facts=look(IDLE).node_facts("far")))
        self.thresholds = ForeignUsageThresholds(Thresholds(leave_seconds=0, **thresholds))
        self.detector = ForeignUsageDetector("far", self.thresholds, GpuMemoryTracker())

    def sees(self, text: str) -> list[Event]:
        """What a look changes; it is told to the core."""
        seen = look(text)
        events = self.detector.update(
            self.scenario.state, seen.reading, seen.owner_lookup("abc", {}), seen.identify
        )
        for event in events:
            self.scenario.tell(event)
        return events


def look(text: str) -> RemoteFacts:
    return parse(f"cores 4\nhome /home/me\nMemTotal: 8000000 kB\n{text}".encode())


def test_a_foreign_process_on_a_remote_node_is_published_once_and_leaves_once() -> None:
    far = Far()
    assert far.sees(IDLE) == []
    (event,) = far.sees(ALICE)
    assert isinstance(event, ForeignUseChanged)
    assert (event.node, event.device, event.memory) == ("far", "0", 4000)
    assert event.stranger == "alice's python (pid 77)"
    assert far.detector.latest["GPU-a"]["foreign"][0].user == "alice"
    assert far.sees(ALICE) == []
    far.sees(IDLE)  # the memory is gone at once, he himself after a moment without him
    far.sees(IDLE)
    assert far.scenario.state.cluster.nodes["far"].types["gpu"][0].stranger is None
    assert far.detector.latest["GPU-a"]["foreign"] == []


def test_own_and_dead_processes_on_a_remote_node_are_not_foreign() -> None:
    far = Far()
    assert far.sees(OURS) == []
    assert far.sees(DEAD) == []


def test_a_gpu_that_the_driver_no_longer_shows_is_out_of_use() -> None:
    far = Far()
    (event,) = far.sees("gpu NVIDIA-SMI has failed.\nend\n")
    assert isinstance(event, ForeignUseChanged)
    assert event.stranger == "unavailable: the driver lost it"


def test_changed_thresholds_apply_to_every_detector() -> None:
    first, second = Far(), Far()
    second.detector.thresholds = first.thresholds
    full = GPU.format(used=30_000) + "end\n"
    first.thresholds.change(r.Thresholds(memory=0.5))
    assert first.sees(full) == second.sees(full) == []
    first.thresholds.change(r.Thresholds(memory=0.2))
    assert first.sees(full)
    assert second.sees(full)
    view = first.thresholds.view()
    assert (view.load, view.memory, view.processes) == (0.1, 0.2, True)
