"""Foreign processes on the GPUs of an SSH node are detected like local ones."""

from core.scenario import Scenario
from stoker.core.events import Event, ForeignUseChanged, NodeJoined
from stoker.core.measurement.foreign_use import Thresholds
from stoker.daemon.gpus.foreign_usage import ForeignUsageDetector, ForeignUsageThresholds
from stoker.daemon.gpus.memory import GpuMemoryTracker
from stoker.probes.remote_facts import RemoteFacts, parse
from stoker.schema import requests as r

GPU = "gpu 0, GPU-a, A100, 80000, {used}, 0, 40, 50\napps\n"
IDLE = GPU.format(used=100) + "end\n"
ALICE = GPU.format(used=4100) + "app GPU-a, 77, 4000\nowner 77 70 alice - /bin/python x\nend\n"
OURS = GPU.format(used=4100) + "app GPU-a, 77, 4000\nowner 77 70 me abc.1.1 python x\nend\n"
DEAD = GPU.format(used=100) + "app GPU-a, 77, 4000\nend\n"


class RemoteGpus:
    """A remote node and the detector of its GPUs."""

    def __init__(self, **thresholds: float) -> None:
        self.scenario = Scenario(gpus=0)
        self.scenario.tell(
            NodeJoined(at=self.scenario.now, facts=parse_reading(IDLE).node_facts("far"))
        )
        self.thresholds = ForeignUsageThresholds(Thresholds(leave_seconds=0, **thresholds))
        self.detector = ForeignUsageDetector("far", self.thresholds, GpuMemoryTracker())

    def measure(self, text: str) -> list[Event]:
        """Apply a measurement; return the events."""
        seen = parse_reading(text)
        events = self.detector.update(
            self.scenario.state, seen.reading, seen.owner_lookup("abc", {}), seen.identify
        )
        for event in events:
            self.scenario.tell(event)
        return events


def parse_reading(text: str) -> RemoteFacts:
    return parse(f"cores 4\nhome /home/me\nMemTotal: 8000000 kB\n{text}".encode())


def test_a_foreign_process_on_a_remote_node_is_published_once_and_leaves_once() -> None:
    remote = RemoteGpus()
    assert remote.measure(IDLE) == []
    (event,) = remote.measure(ALICE)
    assert isinstance(event, ForeignUseChanged)
    assert (event.node, event.device, event.memory) == ("far", "0", 4000)
    assert event.foreign_user == "alice's python (pid 77)"
    assert remote.detector.latest["GPU-a"]["foreign"][0].user == "alice"
    assert remote.measure(ALICE) == []
    remote.measure(IDLE)  # the memory is free at once, the process is gone after a delay
    remote.measure(IDLE)
    assert remote.scenario.state.cluster.nodes["far"].types["gpu"][0].foreign_user is None
    assert remote.detector.latest["GPU-a"]["foreign"] == []


def test_own_and_dead_processes_on_a_remote_node_are_not_foreign() -> None:
    remote = RemoteGpus()
    assert remote.measure(OURS) == []
    assert remote.measure(DEAD) == []


def test_a_gpu_that_the_driver_no_longer_shows_is_out_of_use() -> None:
    remote = RemoteGpus()
    (event,) = remote.measure("gpu NVIDIA-SMI has failed.\nend\n")
    assert isinstance(event, ForeignUseChanged)
    assert event.foreign_user == "unavailable: the driver lost it"


def test_changed_thresholds_apply_to_every_detector() -> None:
    first, second = RemoteGpus(), RemoteGpus()
    second.detector.thresholds = first.thresholds
    full = GPU.format(used=30_000) + "end\n"
    first.thresholds.change(r.Thresholds(memory=0.5))
    assert first.measure(full) == second.measure(full) == []
    first.thresholds.change(r.Thresholds(memory=0.2))
    assert first.measure(full)
    assert second.measure(full)
    view = first.thresholds.view()
    assert (view.load, view.memory, view.processes) == (0.1, 0.2, True)
