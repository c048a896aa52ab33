"""Where a job goes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.scenario import Scenario, gpus, node
from stoker.core import events as e
from stoker.core.cluster import Cluster, DeviceFacts, NodeFacts, Placement
from stoker.core.policy.fit import amounts, could_ever, fit, room, shape_of
from stoker.core.policy.place import place
from stoker.core.policy.shelf import content
from stoker.core.request import GpuAsk, Request


def cluster(**types: tuple[DeviceFacts, ...]) -> Cluster:
    found = Cluster()
    found.join(NodeFacts(name="box", types=types), [])
    return found


def cards(*facts: dict[str, object]) -> Cluster:
    made = [DeviceFacts(name=str(n), index=n, **each) for n, each in enumerate(facts)]  # type: ignore[arg-type]
    return cluster(gpu=tuple(made))


def put(where: Cluster, request: Request) -> list[str] | None:
    """Place and take; the names of the GPUs."""
    found = place(where, request)
    if found is None:
        return None
    where.take(found)
    return found.names("gpu")


def test_whole_gpus_go_in_order():
    box = cards({}, {}, {})
    assert put(box, gpus(2)) == ["0", "1"]
    assert put(box, gpus(2)) is None
    assert put(box, gpus(1)) == ["2"]


def test_ten_tenths_fill_exactly_one_gpu_and_the_eleventh_waits():
    box = cards({})
    assert [put(box, gpus(0.1)) for _ in range(10)] == [["0"]] * 10
    assert box.nodes["box"].by_name["gpu", "0"].free == 0
    assert put(box, gpus(0.1)) is None


def test_fractions_share_the_fullest_gpu_so_that_whole_ones_stay_whole():
    box = cards({}, {})
    assert put(box, gpus(0.5)) == ["0"]
    assert put(box, gpus(0.3)) == ["0"]
    assert put(box, gpus(1)) == ["1"]


def test_a_part_is_taken_of_the_gpu_that_is_wished_for():
    box = cards({}, {}, {})
    assert put(box, gpus(1.5)) == ["0", "1"]
    for gap, name in ((0, "1"), (500, "1"), (1000, "2"), (700, "1")):
        takes = fit(box.nodes["box"], gpus(0.3), gap)
        assert takes is not None
        assert [take.device for take in takes] == [name]


def test_a_mixed_amount_takes_whole_gpus_and_a_part():
    box = cards({}, {}, {})
    assert put(box, gpus(2.5)) == ["0", "1", "2"]
    assert put(box, gpus(0.6)) is None
    assert put(box, gpus(0.5)) == ["2"]


def test_the_part_of_a_mixed_amount_goes_where_others_share_already():
    box = cards({}, {}, {})
    put(box, gpus(0.5))
    assert put(box, gpus(1.5)) == ["1", "0"]
    assert put(box, gpus(1)) == ["2"]


@pytest.mark.parametrize("named", [{"only": ("0", "1")}, {"prefer": ("0", "1")}])
def test_named_gpus_serve_a_mixed_amount_whenever_they_can(named: dict[str, tuple[str, ...]]):
    box = cards({}, {})
    put(box, gpus(0.5, only=("1",)))
    assert put(box, gpus(1.5, **named)) == ["0", "1"]


def test_model_and_memory():
    box = cards(
        {"model": "NVIDIA RTX 2080", "memory": 8_000}, {"model": "NVIDIA A100", "memory": 40_000}
    )
    assert put(box, gpus(1, model="a100")) == ["1"]
    assert put(box, gpus(1, min_vram=10_000)) is None
    assert put(box, gpus(1, min_vram=8_192)) == ["0"]  # sold as 8 GB


def test_the_memory_of_a_shared_gpu_is_counted():
    box = cards({"memory": 10_000})
    assert put(box, gpus(0.2, memory=6_000)) == ["0"]
    assert put(box, gpus(0.2, memory=6_000)) is None
    assert put(box, gpus(0.2, memory=4_000)) == ["0"]


def test_a_gpu_of_unknown_memory_gives_none():
    assert put(cards({}), gpus(0.2, memory=1)) is None


def test_only_prefer_avoid():
    box = cards({}, {}, {"uuid": "GPU-1234abcd"})
    assert put(box, gpus(1, only=("GPU-1234",))) == ["2"]
    assert put(box, gpus(1, prefer=("2", "1"))) == ["1"]
    assert put(box, gpus(1, avoid=("0",))) is None
    assert put(box, gpus(1, prefer=("7",))) == ["0"]


def test_a_whole_machine_needs_all_of_it():
    box = Cluster()
    box.join(node(2), [])
    box.take(found := place(box, gpus(0.5)))  # type: ignore[arg-type]
    assert place(box, Request(exclusive=True)) is None
    box.release(found)  # type: ignore[arg-type]
    everything = place(box, Request(exclusive=True))
    assert everything is not None
    assert {take.type for take in everything.takes} == {"gpu", "cpu", "mem"}
    box.take(everything)
    assert place(box, Request(cpus=1)) is None


def test_a_larger_device_is_never_split_over():
    disks = (DeviceFacts(name="a", capacity=32_000), DeviceFacts(name="b", capacity=64_000))
    box = cluster(hdd=disks)

    def put_on(amount: int) -> list[str] | None:
        found = place(box, Request(named=(("hdd", amount * 1000),)))
        if found is None:
            return None
        box.take(found)
        return found.names("hdd")

    assert put_on(30) == ["a"]  # the smaller one that has room
    assert put_on(40) == ["b"]
    assert put_on(20) == ["b"]
    assert put_on(5) is None


def test_cores_and_ram_are_pools():
    box = Cluster()
    box.join(node(0, cpus=4, memory=1000), [])
    assert put(box, Request(cpus=3500, memory=600)) == []
    assert place(box, Request(cpus=600)) is None
    assert place(box, Request(memory=401)) is None
    assert put(box, Request(cpus=500, memory=400)) == []


def test_drained_gone_and_foreign_gpus_take_nothing_new():
    story = Scenario(gpus=3)
    story.tell(e.DevicesDrained(at=0, devices=(("box", "gpu", "0"),), reason="fan"))
    story.tell(e.ForeignUseChanged(at=0, node="box", device="1", stranger="bob's python"))
    assert put(story.state.cluster, gpus(1)) == ["2"]
    assert put(story.state.cluster, gpus(1)) is None
    assert put(story.state.cluster, gpus(1, only=("1",), despite_strangers=True)) == ["1"]


def test_the_machines_asked_for():
    both = Cluster()
    both.join(node(1, name="a"), [])
    both.join(node(1, name="b"), [])
    one = GpuAsk(1000)
    assert place(both, Request(gpus=one, nodes=("b",))).node == "b"  # type: ignore[union-attr]
    assert place(both, Request(gpus=one, not_nodes=("a",))).node == "b"  # type: ignore[union-attr]
    assert place(both, Request(gpus=one)).node == "a"  # type: ignore[union-attr]


def lab(*names: str, **more: int) -> Cluster:
    found = Cluster()
    for name in names:
        found.join(node(name=name, **more), [])  # type: ignore[arg-type]
    return found


def nodes(found: Placement | None) -> list[str] | None:
    return [part.node for part in found.parts] if found is not None else None


def test_a_closed_machine_takes_nothing_also_in_a_copy():
    both = lab("a", "b")
    both.nodes["a"].closed = "it does not answer"
    assert nodes(place(both, gpus(1))) == ["b"]
    assert nodes(place(both.shadow(), gpus(1))) == ["b"]
    assert room(both.nodes["a"], gpus(1)) is None
    both.nodes["b"].closed = "nor does this one"
    assert place(both, Request()) is None
    assert place(both, replace(Request(), machines=2)) is None


def test_what_others_use_is_not_there_also_in_a_copy():
    box = lab("a", cpus=4, memory=1000)
    for device in box.nodes["a"].types["cpu"] + box.nodes["a"].types["mem"]:
        device.others = 700
    for each in (box, box.shadow()):
        assert place(each, Request(cpus=3300, memory=300)) is not None
        assert place(each, Request(cpus=3301)) is None
        assert place(each, Request(memory=301)) is None
        assert room(each.node("a"), Request(cpus=1, memory=1)) == (3300, 300)


def test_a_machine_of_one_core_has_no_room_for_a_whole_one_beside_others():
    box = lab("a", cpus=1)
    box.nodes["a"].by_name["cpu", "cpu"].others = 250
    assert room(box.nodes["a"], Request(cpus=1)) == (750,)
    assert place(box, Request(cpus=1000)) is None
    assert place(box, Request(cpus=750)) is not None


def test_several_machines_or_none():
    three = lab("a", "b", "c")
    assert nodes(place(three, replace(gpus(2), machines=3))) == ["a", "b", "c"]
    assert place(three, replace(gpus(1), machines=4)) is None
    three.take(place(three, gpus(1, only=("1",))))  # type: ignore[arg-type]
    assert place(three, replace(gpus(2), machines=3)) is None
    assert nodes(place(three, replace(gpus(1), machines=2))) == ["a", "b"]
    assert nodes(place(three, replace(gpus(2), machines=2))) == ["b", "c"]
    wanted = replace(gpus(1), machines=2, nodes=("c", "b"))
    assert nodes(place(three, wanted)) == ["b", "c"]
    assert place(three, replace(wanted, not_nodes=("b",))) is None
    assert nodes(place(three, Request(exclusive=True, machines=2))) == ["b", "c"]


def test_a_placement_on_several_machines_is_taken_and_given_back_as_one():
    three = lab("a", "b", "c")
    found = place(three, replace(gpus(2), machines=3))
    assert found is not None
    three.take(found)
    assert place(three, gpus(0.1)) is None
    assert (found.on("b"), found.on("d")) == (found.more[0], None)
    three.release(found)
    assert all(device.free == device.facts.capacity for each in "abc" for device in
               three.nodes[each].devices())  # fmt: skip


HDD = (DeviceFacts(name="a", capacity=32_000), DeviceFacts(name="b", capacity=64_000))


@pytest.mark.parametrize(
    ("request_", "lack"),
    [
        (gpus(2), None),
        (gpus(1.5), None),
        (gpus(2.5), "has 2 GPUs, not 2.5"),
        (gpus(1, model="h100"), "has 0 GPUs of model h100, not 1"),
        (gpus(2, only=("1",)), "has 1 GPU among those named, not 2"),
        (gpus(1, min_vram=99_000), "has 0 GPUs with 99000 MiB, not 1"),
        (Request(cpus=9000), "has 8 cpu in all, not 9"),
        (Request(memory=99_000), "has 32000 MiB mem in all, not 99000 MiB"),
        (Request(named=(("tape", 1000),)), "has no resource 'tape'"),
        (Request(named=(("hdd", 64_000),)), None),
        (Request(named=(("hdd", 65_000),)), "has 64 hdd on one device in all, not 65"),
        (Request(nodes=("other",)), "is not one of the requested nodes"),
        (Request(not_nodes=("box",)), "is excluded"),
    ],
)
def test_what_a_machine_can_never_give_it_says(request_: Request, lack: str | None):
    facts = node(2)
    box = Cluster()
    box.join(NodeFacts(name="box", types={**facts.types, "hdd": HDD}), [])
    assert could_ever(box.nodes["box"], request_) == lack


def test_a_machine_without_gpus_says_so():
    box = Cluster()
    box.join(node(0), [])
    assert could_ever(box.nodes["box"], gpus(0.1)) == "has no GPU"


AMOUNTS = st.integers(1, 4000)


@given(st.lists(st.tuples(AMOUNTS, st.booleans()), max_size=25), st.integers(1, 4))
def test_no_device_is_ever_given_out_twice(steps: list[tuple[int, bool]], count: int):
    box = cards(*[{}] * count)
    held = []
    for amount, release in steps:
        if release and held:
            box.release(held.pop(0))
        found = place(box, Request(gpus=GpuAsk(amount)))
        if found is not None:
            box.take(found)  # raises when over-committed
            assert found.gpu_amount == amount
            assert len({take.device for take in found.takes}) == len(found.takes)
            held.append(found)
    for each in held:
        box.release(each)
    assert all(device.free == 1000 for device in box.nodes["box"].devices())


@given(
    st.integers(0, 3), st.integers(1, 4), st.lists(st.integers(1, 1500), max_size=3),
    st.integers(0, 3000), st.integers(0, 1200), st.booleans(),
    st.tuples(st.integers(0, 3500), st.integers(0, 4500), st.integers(0, 1100)),
)  # fmt: skip
def test_room_is_for_what_fits_and_for_nothing_else(
    count: int, cores: int, held: list[int], others: int, memory: int, closed: bool,
    asked: tuple[int, int, int],
):  # fmt: skip
    box = lab("a", gpus=count, cpus=cores, memory=1000)
    found = box.nodes["a"]
    for amount in held:
        put(box, Request(gpus=GpuAsk(amount)))
        put(box, Request(cpus=amount))
    found.by_name["cpu", "cpu"].others, found.by_name["mem", "mem"].others = others, memory
    found.closed = "it does not answer" if closed else None
    cards, cpus, ram = asked
    request = Request(gpus=GpuAsk(cards) if cards else None, cpus=cpus, memory=ram)
    there = room(found, shape_of(request))
    enough = there is not None and content(amounts(request), there)
    assert enough == (fit(found, request) is not None)


@given(AMOUNTS)
def test_what_could_ever_fit_fits_an_empty_machine(amount: int):
    box = cards({}, {}, {})
    request = Request(gpus=GpuAsk(amount))
    assert (could_ever(box.nodes["box"], request) is None) == (place(box, request) is not None)
