"""Preemption thresholds of nodes, compared with a computation from scratch."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from core.scenario import gpus, node
from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.fragmentation import max_request_amount
from stoker.core.cluster.overlay import Overlay
from stoker.core.model.resources import (
    DeviceAllocation,
    DeviceFacts,
    GpuRequest,
    NodeFacts,
    Placement,
    ResourceRequest,
)
from stoker.core.placement.placer import find_placement
from stoker.core.placement.request_shape import gpu_bucket_of
from stoker.core.preemption.candidate_nodes import UNREACHABLE
from stoker.core.running.thresholds import NodeThreshold, PreemptionThresholds
from stoker.core.running.victims import VictimIndex, VictimKey

# -- by hand --------------------------------------------------------------------------------


class ThresholdFixture:
    """Nodes, running jobs, and the thresholds derived from them."""

    def __init__(self, *sizes: int, cpus: int = 8, memory: int = 32_000) -> None:
        self.cluster, self.victims = Cluster(), VictimIndex()
        for number, size in enumerate(sizes):
            self.cluster.add_node(node(size, f"m{number}", cpus, memory), ())
        self.stopping: tuple[int, ...] = ()
        self.thresholds = PreemptionThresholds(
            self.cluster, self.victims, lambda job: job not in self.stopping
        )
        self.held: dict[int, Placement] = {}

    def runs(
        self,
        job: int,
        request: ResourceRequest,
        level: float,
        can_stop: bool = True,
        on: str = "m0",
    ) -> None:
        at = replace(request, nodes=(on,)) if on else request
        placement = find_placement(self.cluster, at)
        assert placement is not None
        self.cluster.allocate(placement)
        self.held[job] = placement
        if can_stop:
            self.victims.add((0, level, float(job), job), placement)

    def stops(self, *jobs: int) -> None:
        """Follow the ledger after these jobs have stopped."""
        future, self.stopping = Overlay(self.cluster), jobs
        for job in jobs:
            future.release(self.held[job])
        self.thresholds.follow(future)

    def down(self, need: int) -> list[tuple[int, str]]:
        """Return the last victim of each node, the highest threshold first."""
        return [(last[3], name) for last, name in self.thresholds.descending(need)]

    def on(self, name: str, need: int, cores: int = 0, memory: int = 0) -> tuple[float, float]:
        last = self.thresholds.last_victim(name, need, cores, memory)
        return last[:2] if last is not None else UNREACHABLE


def test_the_last_victim_needed_is_the_threshold() -> None:
    lab = ThresholdFixture(4)
    for job, level in ((1, 5.0), (2, 9.0), (3, 7.0)):
        lab.runs(job, gpus(1), level)
    assert lab.down(1000) == [(2, "m0")]  # one GPU is free, but that is not asked here
    assert lab.down(2000) == [(2, "m0")]
    assert lab.down(3000) == [(3, "m0")]
    assert lab.on("m0", 4000) == (0, 5.0)
    assert lab.on("m0", 5000) == UNREACHABLE


def test_of_two_equal_nodes_the_one_with_the_lower_ranked_victims_comes_first() -> None:
    lab = ThresholdFixture(1, 1)
    lab.runs(1, gpus(1), 6.0, on="m0")
    lab.runs(2, gpus(1), 8.0, on="m1")
    assert lab.down(1000) == [(2, "m1"), (1, "m0")]
    lab.victims.add((0, 9.0, 1.0, 1))
    assert lab.down(1000) == [(1, "m0"), (2, "m1")]


def test_a_node_without_enough_cores_and_memory_to_free_is_unreachable() -> None:
    lab = ThresholdFixture(2)
    lab.runs(1, gpus(1), 9.0)
    lab.runs(2, ResourceRequest(cpus=6000, memory=30_000), 0.0, can_stop=False)
    assert lab.on("m0", 1000, cores=2000, memory=2000) == (0, 9.0)
    assert lab.on("m0", 1000, cores=3000) == UNREACHABLE
    assert lab.on("m0", 1000, memory=3000) == UNREACHABLE


def test_a_part_of_a_gpu_is_not_made_of_what_is_left_of_two() -> None:
    lab = ThresholdFixture(2)
    for job in (1, 2):
        lab.runs(job, gpus(0.75, required=(str(job - 1),)), 1.0, can_stop=False)
    lab.runs(3, gpus(0.25, required=("0",)), 5.0)
    lab.runs(4, gpus(0.25, required=("1",)), 7.0)
    assert lab.on("m0", 250) == (0, 7.0)
    assert lab.on("m0", 500) == UNREACHABLE


def test_only_gpus_without_other_jobs_count_as_whole() -> None:
    assert max_request_amount([1000, 500, 750, 1000]) == 2750
    assert max_request_amount([999, 999]) == 999
    assert max_request_amount([]) == 0


@pytest.mark.parametrize(
    ("request_", "need"),
    [
        (gpus(2), 2000), (gpus(0.3), 250), (gpus(1.6), 1500), (None, 0),
        (ResourceRequest(cpus=4000), 0), (gpus(1, shareable=True, memory=900), 0),
        (ResourceRequest(GpuRequest(1000), exclusive=True), 0),
        (ResourceRequest(GpuRequest(3000), node_count=2), 3000),
    ],
)  # fmt: skip
def test_what_must_be_left_at_least(request_: ResourceRequest | None, need: int) -> None:
    assert gpu_bucket_of(request_) == need


def test_an_unavailable_node_has_no_threshold() -> None:
    lab = ThresholdFixture(1)
    lab.runs(1, gpus(1), 5.0)
    assert lab.down(1000) == [(1, "m0")]
    lab.cluster.nodes["m0"].unavailable_reason = "it is to be moved"
    lab.cluster.mark_changed("m0")
    assert lab.down(1000) == []
    assert lab.on("m0", 0) == UNREACHABLE


def test_a_stopping_job_frees_nothing_in_a_ledger_where_it_has_stopped() -> None:
    lab = ThresholdFixture(2)
    lab.runs(1, gpus(1), 5.0)
    lab.runs(2, gpus(1), 7.0)
    assert lab.down(1000) == [(2, "m0")]
    lab.stops(2)
    assert lab.down(1000) == [(1, "m0")]
    assert lab.on("m0", 2000) == (0, 5.0)


def test_a_job_that_need_not_stop_is_a_victim_again() -> None:
    lab = ThresholdFixture(1, 1)
    lab.runs(1, gpus(1), 5.0, on="m0")
    lab.runs(2, gpus(1), 7.0, on="m1")
    lab.stops(2)
    assert lab.down(1000) == [(1, "m0")]
    lab.stops()
    assert lab.down(1000) == [(2, "m1"), (1, "m0")]


def test_a_sharer_frees_no_more_than_the_whole_gpu() -> None:
    """A job may have had all of a GPU when it began, and hold a sliver of it since."""
    lab = ThresholdFixture(2)
    for job in (1, 2):
        lab.runs(job, gpus(1), float(job))
        held = lab.held[job]
        (gpu,) = held.allocations
        lab.cluster.release(held)
        lab.cluster.allocate(Placement("m0", (DeviceAllocation("gpu", gpu.device, 1, 9000),)))
    assert lab.on("m0", 2000) == (0, 1.0)


def test_a_device_that_counts_as_several_gpus_is_freed_whole() -> None:
    lab = ThresholdFixture(0)
    lab.cluster.add_node(NodeFacts("big", {"gpu": (DeviceFacts("0", capacity=4000),)}), ())
    lab.runs(1, gpus(4), 9.0, on="big")
    assert lab.on("big", 3000) == (0, 9.0)


# -- against working it out from scratch ------------------------------------------------------

REQUESTS = [
    gpus(1),
    gpus(2),
    gpus(3),
    gpus(0.5),
    gpus(0.25),
    gpus(1.5),
    ResourceRequest(cpus=3000),
    ResourceRequest(GpuRequest(1000), cpus=2000, memory=9000),
    ResourceRequest(GpuRequest(1000), node_count=2),
    ResourceRequest(GpuRequest(500), cpus=1000, node_count=2),
]
NEEDS = (0, 250, 500, 1000, 1500, 2000, 3000)
POOLS = ((0, 0), (2000, 0), (8000, 0), (0, 20_000), (3000, 9000))


def scratch(
    thresholds: PreemptionThresholds, held: dict[int, Placement], name: str, *asked: int
) -> VictimKey | None:
    """Return the last victim on a node, found by evicting one after the other."""
    there, victims = thresholds.future.node(name), thresholds.victims
    if there is None or there.unavailable_reason is not None:
        return None
    twin, (need, cores, memory) = there.copy(), asked
    here = {
        job: part.allocations for job in held if (part := held[job].on(name)) and job in victims
    }
    for seat in sorted([victims.key_of(job) for job in here], reverse=True):
        if not thresholds.can_preempt(seat[3]):
            continue
        twin.release(here[seat[3]])
        cards, cpus, mems = (
            [
                each.available
                for each in twin.types[type]
                if each.drained is None and not each.removed
            ]
            for type in ("gpu", "cpu", "mem")
        )
        parts = [left for left in cards if left < 1000]
        most = 1000 * cards.count(1000) + max(parts, default=0)
        if most >= need and sum(cpus) >= cores and sum(mems) >= memory:
            return seat
    return None


def agree(thresholds: PreemptionThresholds, held: dict[int, Placement], names: list[str]) -> None:
    """Assert that the thresholds equal a computation from scratch."""
    for need in NEEDS:
        found = [(scratch(thresholds, held, name, need, 0, 0), name) for name in names]
        rows: list[NodeThreshold] = [(last, name) for last, name in found if last is not None]
        assert list(thresholds.descending(need)) == sorted(rows, reverse=True)
        for cores, memory in POOLS:
            for name in names:
                last = scratch(thresholds, held, name, need, cores, memory)
                assert thresholds.last_victim(name, need, cores, memory) == last


def something_happens(lab: ThresholdFixture, random: Random, number: int) -> None:
    """Let a job start, end or change its rank, or a node change."""
    cluster, held = lab.cluster, lab.held
    what = random.choice(
        ["come", "come", "come", "end", "move", "move", "drain", "close", "others"]
    )
    name = random.choice(list(cluster.nodes))
    if what == "come" and find_placement(cluster, request := random.choice(REQUESTS)) is not None:
        lab.runs(number, request, 0.0, can_stop=False, on="")
        if random.random() < 0.8:
            lab.victims.add((-random.choice([0, 1]), 4.0, 0.0, number), held[number])
    elif what == "end" and held:
        job = random.choice(list(held))
        cluster.release(held.pop(job))
        lab.victims.remove(job)
    elif what == "move" and held:
        job, level = random.choice(list(held)), random.choice([1.0, 4.0, 7.0, 9.0])
        if job in lab.victims:
            lab.victims.add((-random.choice([0, 0, 1]), level, 0.0, job))
    elif what == "drain":
        device = random.choice(cluster.nodes[name].types["gpu"])
        device.drained = None if device.drained else "dust"
        cluster.mark_changed(name)
    elif what == "close":
        cluster.nodes[name].unavailable_reason = (
            None if cluster.nodes[name].unavailable_reason else "moved"
        )
        cluster.mark_changed(name)
    elif what == "others":
        cluster.nodes[name].types["cpu"][0].used_by_others = random.choice([0, 3000])
        cluster.mark_changed(name)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_they_are_what_comes_out_from_scratch(seed: int) -> None:
    random = Random(seed)
    lab = ThresholdFixture(*[random.choice([1, 2, 3]) for _ in range(4)])
    names = list(lab.cluster.nodes)
    for number in range(25):
        something_happens(lab, random, number)
        if random.random() < 0.4:
            agree(lab.thresholds, lab.held, names)
    agree(lab.thresholds, lab.held, names)
    for number in range(25):
        lab.stops(*[job for job in lab.held if job in lab.victims and random.random() < 0.4])
        agree(lab.thresholds, lab.held, names)
        something_happens(lab, random, 100 + number)
