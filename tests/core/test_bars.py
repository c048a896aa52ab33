"""How urgent one must be to be made room for on a machine, worked out anew each time."""

from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from core.scenario import gpus, node
from stoker.core.cluster import Cluster, DeviceFacts, NodeFacts, Placement, Take
from stoker.core.policy.bars import NOBODY, Bars, Row, most_of, need_of
from stoker.core.policy.fit import room
from stoker.core.policy.place import place
from stoker.core.policy.victims import Seat, Victims
from stoker.core.request import GpuAsk, Request

# -- by hand --------------------------------------------------------------------------------


class ThresholdFixture:
    """Machines, who runs there, and the bars that follow."""

    def __init__(self, *sizes: int, cpus: int = 8, memory: int = 32_000) -> None:
        self.cluster, self.victims = Cluster(), Victims()
        for number, size in enumerate(sizes):
            self.cluster.join(node(size, f"m{number}", cpus, memory), ())
        self.bars = Bars(self.cluster, self.victims)
        self.held: dict[int, Placement] = {}

    def runs(
        self, job: int, request: Request, level: float, can_stop: bool = True, on: str = "m0"
    ) -> None:
        at = replace(request, nodes=(on,)) if on else request
        placement = place(self.cluster, at)
        assert placement is not None
        self.cluster.take(placement)
        self.held[job] = placement
        if can_stop:
            self.victims.put(job, placement, 0, level, float(job), inf)

    def refresh(self) -> None:
        self.bars.refresh(self.victims.moved)
        self.victims.moved.clear()

    def down(self, need: int) -> list[tuple[int, str]]:
        """Whom each machine's bar is, the highest first."""
        self.refresh()
        return [(last[3], name) for last, name in self.bars.down(need)]

    def on(self, name: str, need: int, cores: int = 0, memory: int = 0) -> tuple[float, float]:
        self.refresh()
        return self.bars.on(name, need, cores, memory)


def test_the_last_who_has_to_stop_is_the_bar() -> None:
    lab = ThresholdFixture(4)
    for job, level in ((1, 5.0), (2, 9.0), (3, 7.0)):
        lab.runs(job, gpus(1), level)
    assert lab.down(1000) == [(2, "m0")]  # one GPU is free, but that is not asked here
    assert lab.down(2000) == [(2, "m0")]
    assert lab.down(3000) == [(3, "m0")]
    assert lab.on("m0", 4000) == (0, 5.0)
    assert lab.on("m0", 5000) == NOBODY


def test_of_two_equal_machines_the_one_comes_first_whose_jobs_can_wait_best() -> None:
    lab = ThresholdFixture(1, 1)
    lab.runs(1, gpus(1), 6.0, on="m0")
    lab.runs(2, gpus(1), 8.0, on="m1")
    assert lab.down(1000) == [(2, "m1"), (1, "m0")]
    lab.victims.put(1, lab.held[1], 0, 9.0, 1.0, inf)
    assert lab.down(1000) == [(1, "m0"), (2, "m1")]


def test_cores_and_memory_that_nobody_gives_back_rule_a_machine_out() -> None:
    lab = ThresholdFixture(2)
    lab.runs(1, gpus(1), 9.0)
    lab.runs(2, Request(cpus=6000, memory=30_000), 0.0, can_stop=False)
    assert lab.on("m0", 1000, cores=2000, memory=2000) == (0, 9.0)
    assert lab.on("m0", 1000, cores=3000) == NOBODY
    assert lab.on("m0", 1000, memory=3000) == NOBODY


def test_a_part_of_a_gpu_is_not_made_of_what_is_left_of_two() -> None:
    lab = ThresholdFixture(2)
    for job in (1, 2):
        lab.runs(job, gpus(0.75, only=(str(job - 1),)), 1.0, can_stop=False)
    lab.runs(3, gpus(0.25, only=("0",)), 5.0)
    lab.runs(4, gpus(0.25, only=("1",)), 7.0)
    assert lab.on("m0", 250) == (0, 7.0)
    assert lab.on("m0", 500) == NOBODY


def test_whole_gpus_are_those_that_nobody_else_is_on() -> None:
    assert most_of([1000, 500, 750, 1000]) == 2750
    assert most_of([999, 999]) == 999
    assert most_of([]) == 0


@pytest.mark.parametrize(
    ("request_", "need"),
    [
        (gpus(2), 2000), (gpus(0.3), 250), (gpus(1.6), 1500), (Request(cpus=4000), 0), (None, 0),
        (gpus(1, beside=True, memory=900), 0), (Request(GpuAsk(1000), exclusive=True), 0),
        (Request(GpuAsk(3000), machines=2), 3001),
    ],
)  # fmt: skip
def test_what_must_be_left_at_least(request_: Request | None, need: int) -> None:
    assert need_of(request_) == need


def test_nobody_makes_room_where_nothing_new_is_put() -> None:
    lab = ThresholdFixture(1)
    lab.runs(1, gpus(1), 5.0)
    assert lab.down(1000) == [(1, "m0")]
    lab.cluster.nodes["m0"].closed = "it is to be moved"
    lab.cluster.changed("m0")
    assert lab.down(1000) == []
    assert lab.on("m0", 0) == NOBODY


def test_only_what_has_changed_is_new() -> None:
    lab = ThresholdFixture(1, 1)
    lab.runs(1, gpus(1), 5.0, on="m0")
    lab.runs(2, gpus(1), 5.0, on="m1")
    lab.down(1000)
    lab.bars.anew.clear()
    lab.victims.put(2, lab.held[2], 0, 5.0, 2.0, 99.0)  # it stands where it stood
    lab.down(1000)
    assert list(lab.bars.anew) == []
    lab.victims.put(2, lab.held[2], 0, 6.0, 2.0, inf)
    lab.down(1000)
    assert list(lab.bars.anew) == ["m1"]


def test_one_who_was_asked_gives_nothing_more_in_a_ledger_where_it_has_stopped() -> None:
    lab = ThresholdFixture(2)
    lab.runs(1, gpus(1), 5.0)
    lab.runs(2, gpus(1), 7.0)
    later = lab.cluster.shadow()
    bars = Bars(later, lab.victims, lambda job: job != 2)
    later.release(lab.held[2])
    bars.refresh()
    assert [row[0][3] for row in bars.down(1000)] == [1]
    assert bars.on("m0", 2000) == (0, 5.0)


def test_what_shares_a_gpu_by_now_gives_no_more_than_the_whole_of_it() -> None:
    """A job may have had all of a GPU when it began, and hold a sliver of it since."""
    lab = ThresholdFixture(2)
    for job in (1, 2):
        lab.runs(job, gpus(1), float(job))
        held = lab.held[job]
        (gpu,) = held.takes
        lab.cluster.release(held)
        lab.cluster.take(Placement("m0", (Take("gpu", gpu.device, 1, 9000),)))
    assert lab.on("m0", 2000) == (0, 1.0)


def test_a_device_that_counts_as_several_gpus_is_given_back_whole() -> None:
    lab = ThresholdFixture(0)
    lab.cluster.join(NodeFacts("big", {"gpu": (DeviceFacts("0", capacity=4000),)}), ())
    lab.runs(1, gpus(4), 9.0, on="big")
    assert lab.on("big", 3000) == (0, 9.0)


def test_what_is_known_of_a_machine_is_forgotten_when_it_changes() -> None:
    cluster = Cluster()
    cluster.join(node(2, "m0"), ())
    there = cluster.nodes["m0"]
    shape = gpus(0)
    before = room(there, shape)
    assert shape in there.rooms
    cluster.changed("m0")
    assert there.rooms == {}
    taken = place(cluster, gpus(1))
    assert taken is not None
    assert room(there, shape) == before
    cluster.take(taken)
    assert there.rooms == {}
    assert room(there, shape) != before
    shadow = cluster.shadow()
    shadow.release(taken)
    assert room(shadow.nodes["m0"], shape) == before


# -- against working it out from scratch ------------------------------------------------------

REQUESTS = [
    gpus(1), gpus(2), gpus(3), gpus(0.5), gpus(0.25), gpus(1.5), Request(cpus=3000),
    Request(GpuAsk(1000), cpus=2000, memory=9000), Request(GpuAsk(1000), machines=2),
    Request(GpuAsk(500), cpus=1000, machines=2),
]  # fmt: skip
NEEDS = (0, 250, 500, 1000, 1500, 2000, 3000)
POOLS = ((0, 0), (2000, 0), (8000, 0), (0, 20_000), (3000, 9000))


def scratch(bars: Bars, held: dict[int, Placement], name: str, *asked: int) -> Seat | None:
    """The last who has to stop on a machine: stop them one after the other, and look."""
    there, victims = bars.ledger.node(name), bars.victims
    if there is None or there.closed is not None:
        return None
    twin, (need, cores, memory) = there.copy(), asked
    here = {job: part.takes for job in held if (part := held[job].on(name)) and job in victims}
    for seat in sorted([victims.seat(job) for job in here], reverse=True):
        if bars.can_stop is not None and not bars.can_stop(seat[3]):
            continue
        twin.release(here[seat[3]])
        cards, cpus, mems = (
            [each.left for each in twin.types[type] if each.drained is None and not each.gone]
            for type in ("gpu", "cpu", "mem")
        )
        parts = [left for left in cards if left < 1000]
        most = 1000 * cards.count(1000) + max(parts, default=0)
        if most >= need and sum(cpus) >= cores and sum(mems) >= memory:
            return seat
    return None


def agree(bars: Bars, held: dict[int, Placement], names: list[str]) -> None:
    """The bars of these machines are what comes out from scratch."""
    bars.refresh([name for name in bars.victims.moved if name in names])
    for need in NEEDS:
        found = [(scratch(bars, held, name, need, 0, 0), name) for name in names]
        rows: list[Row] = [(last, name) for last, name in found if last is not None]
        assert list(bars.down(need)) == sorted(rows, reverse=True)
        for cores, memory in POOLS:
            for name in names:
                last = scratch(bars, held, name, need, cores, memory)
                assert bars.on(name, need, cores, memory) == (last[:2] if last else NOBODY)


def something_happens(lab: ThresholdFixture, random: Random, number: int) -> None:
    """One comes, ends or stands elsewhere, or a machine changes."""
    cluster, held = lab.cluster, lab.held
    what = random.choice(
        ["come", "come", "come", "end", "move", "move", "drain", "close", "others"]
    )
    name = random.choice(list(cluster.nodes))
    if what == "come" and place(cluster, request := random.choice(REQUESTS)) is not None:
        lab.runs(number, request, 0.0, can_stop=False, on="")
        if random.random() < 0.8:
            lab.victims.put(number, held[number], random.choice([0, 1]), 4.0, 0.0, inf)
    elif what == "end" and held:
        job = random.choice(list(held))
        cluster.release(held.pop(job))
        lab.victims.drop(job)
    elif what == "move" and held:
        job, level = random.choice(list(held)), random.choice([1.0, 4.0, 7.0, 9.0])
        if job in lab.victims:
            lab.victims.put(job, held[job], random.choice([0, 0, 1]), level, 0.0, inf)
    elif what == "drain":
        device = random.choice(cluster.nodes[name].types["gpu"])
        device.drained = None if device.drained else "dust"
        cluster.changed(name)
    elif what == "close":
        cluster.nodes[name].closed = None if cluster.nodes[name].closed else "moved"
        cluster.changed(name)
    elif what == "others":
        cluster.nodes[name].types["cpu"][0].others = random.choice([0, 3000])
        cluster.changed(name)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_they_are_what_comes_out_from_scratch(seed: int) -> None:
    random = Random(seed)
    lab = ThresholdFixture(*[random.choice([1, 2, 3]) for _ in range(4)])
    names = list(lab.cluster.nodes)
    for number in range(25):
        something_happens(lab, random, number)
        if random.random() < 0.4:
            agree(lab.bars, lab.held, names)
    agree(lab.bars, lab.held, names)
    later = lab.cluster.shadow()
    gone = {job for job in lab.victims._seat if random.random() < 0.4}
    bars = Bars(later, lab.victims, lambda job: job not in gone)
    for job in gone:
        later.release(lab.held[job])
        agree(bars, lab.held, list(later.nodes))
