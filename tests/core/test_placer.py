"""The placement of requests on nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.scenario import Scenario, gpus, node
from stoker.core import events as e
from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.overlay import Overlay
from stoker.core.model.resources import (
    DeviceFacts,
    GpuRequest,
    NodeFacts,
    Placement,
    ResourceRequest,
)
from stoker.core.placement.capacity import capacity_test
from stoker.core.placement.fit import fit
from stoker.core.placement.infeasible import infeasibility_reason
from stoker.core.placement.placer import find_placement
from stoker.core.placement.request_shape import request_amounts, request_shape


def cluster(**types: tuple[DeviceFacts, ...]) -> Cluster:
    found = Cluster()
    found.add_node(NodeFacts(name="box", types=types), [])
    return found


def cards(*facts: dict[str, object]) -> Cluster:
    made = [DeviceFacts(name=str(n), index=n, **each) for n, each in enumerate(facts)]  # type: ignore[arg-type]
    return cluster(gpu=tuple(made))


def put(where: Cluster, request: ResourceRequest) -> list[str] | None:
    """Place and take; the names of the GPUs."""
    found = find_placement(where, request)
    if found is None:
        return None
    where.allocate(found)
    return found.names("gpu")


def test_whole_gpus_go_in_order():
    box = cards({}, {}, {})
    assert put(box, gpus(2)) == ["0", "1"]
    assert put(box, gpus(2)) is None
    assert put(box, gpus(1)) == ["2"]


def test_ten_tenths_fill_exactly_one_gpu_and_the_eleventh_waits():
    box = cards({})
    assert [put(box, gpus(0.1)) for _ in range(10)] == [["0"]] * 10
    assert box.nodes["box"].by_name["gpu", "0"].unallocated == 0
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


@pytest.mark.parametrize("named", [{"required": ("0", "1")}, {"prefer": ("0", "1")}])
def test_named_gpus_serve_a_mixed_amount_whenever_they_can(named: dict[str, tuple[str, ...]]):
    box = cards({}, {})
    put(box, gpus(0.5, required=("1",)))
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
    assert put(box, gpus(1, required=("GPU-1234",))) == ["2"]
    assert put(box, gpus(1, prefer=("2", "1"))) == ["1"]
    assert put(box, gpus(1, avoid=("0",))) is None
    assert put(box, gpus(1, prefer=("7",))) == ["0"]


def test_a_whole_node_needs_all_of_it():
    box = Cluster()
    box.add_node(node(2), [])
    box.allocate(found := find_placement(box, gpus(0.5)))  # type: ignore[arg-type]
    assert find_placement(box, ResourceRequest(exclusive=True)) is None
    box.release(found)  # type: ignore[arg-type]
    everything = find_placement(box, ResourceRequest(exclusive=True))
    assert everything is not None
    assert {take.type for take in everything.allocations} == {"gpu", "cpu", "mem"}
    box.allocate(everything)
    assert find_placement(box, ResourceRequest(cpus=1)) is None


def test_a_larger_device_is_never_split_over():
    disks = (DeviceFacts(name="a", capacity=32_000), DeviceFacts(name="b", capacity=64_000))
    box = cluster(hdd=disks)

    def put_on(amount: int) -> list[str] | None:
        found = find_placement(box, ResourceRequest(named=(("hdd", amount * 1000),)))
        if found is None:
            return None
        box.allocate(found)
        return found.names("hdd")

    assert put_on(30) == ["a"]  # the smaller one that has room
    assert put_on(40) == ["b"]
    assert put_on(20) == ["b"]
    assert put_on(5) is None


def test_cores_and_ram_are_pools():
    box = Cluster()
    box.add_node(node(0, cpus=4, memory=1000), [])
    assert put(box, ResourceRequest(cpus=3500, memory=600)) == []
    assert find_placement(box, ResourceRequest(cpus=600)) is None
    assert find_placement(box, ResourceRequest(memory=401)) is None
    assert put(box, ResourceRequest(cpus=500, memory=400)) == []


def test_drained_gone_and_foreign_gpus_take_nothing_new():
    story = Scenario(gpus=3)
    story.tell(e.DevicesDrained(at=0, devices=(("box", "gpu", "0"),), reason="fan"))
    story.tell(e.ForeignUseChanged(at=0, node="box", device="1", foreign_user="bob's python"))
    assert put(story.state.cluster, gpus(1)) == ["2"]
    assert put(story.state.cluster, gpus(1)) is None
    assert put(story.state.cluster, gpus(1, required=("1",), ignore_foreign_use=True)) == ["1"]


def test_the_nodes_asked_for():
    both = Cluster()
    both.add_node(node(1, name="a"), [])
    both.add_node(node(1, name="b"), [])
    one = GpuRequest(1000)
    assert find_placement(both, ResourceRequest(gpus=one, nodes=("b",))).node == "b"  # type: ignore[union-attr]
    assert find_placement(both, ResourceRequest(gpus=one, not_nodes=("a",))).node == "b"  # type: ignore[union-attr]
    assert find_placement(both, ResourceRequest(gpus=one)).node == "a"  # type: ignore[union-attr]


def lab(*names: str, **more: int) -> Cluster:
    found = Cluster()
    for name in names:
        found.add_node(node(name=name, **more), [])  # type: ignore[arg-type]
    return found


def nodes(found: Placement | None) -> list[str] | None:
    return [part.node for part in found.parts] if found is not None else None


def test_a_closed_node_takes_nothing_also_in_a_copy():
    both = lab("a", "b")
    both.nodes["a"].unavailable_reason = "it does not answer"
    both.mark_changed("a")
    assert nodes(find_placement(both, gpus(1))) == ["b"]
    assert nodes(find_placement(Overlay(both), gpus(1))) == ["b"]
    both.nodes["b"].unavailable_reason = "nor does this one"
    both.mark_changed("b")
    assert find_placement(both, ResourceRequest()) is None
    assert find_placement(both, replace(ResourceRequest(), node_count=2)) is None


def test_what_others_use_is_not_there_also_in_a_copy():
    box = lab("a", cpus=4, memory=1000)
    for device in box.nodes["a"].types["cpu"] + box.nodes["a"].types["mem"]:
        device.used_by_others = 700
    for each in (box, Overlay(box)):
        assert find_placement(each, ResourceRequest(cpus=3300, memory=300)) is not None
        assert find_placement(each, ResourceRequest(cpus=3301)) is None
        assert find_placement(each, ResourceRequest(memory=301)) is None


def test_a_node_of_one_core_does_not_fit_for_a_whole_one_beside_others():
    box = lab("a", cpus=1)
    box.nodes["a"].by_name["cpu", "cpu"].used_by_others = 250
    assert find_placement(box, ResourceRequest(cpus=1000)) is None
    assert find_placement(box, ResourceRequest(cpus=750)) is not None


def test_several_nodes_or_none():
    three = lab("a", "b", "c")
    assert nodes(find_placement(three, replace(gpus(2), node_count=3))) == ["a", "b", "c"]
    assert find_placement(three, replace(gpus(1), node_count=4)) is None
    three.allocate(find_placement(three, gpus(1, required=("1",))))  # type: ignore[arg-type]
    assert find_placement(three, replace(gpus(2), node_count=3)) is None
    assert nodes(find_placement(three, replace(gpus(1), node_count=2))) == ["a", "b"]
    assert nodes(find_placement(three, replace(gpus(2), node_count=2))) == ["b", "c"]
    wanted = replace(gpus(1), node_count=2, nodes=("c", "b"))
    assert nodes(find_placement(three, wanted)) == ["b", "c"]
    assert find_placement(three, replace(wanted, not_nodes=("b",))) is None
    assert nodes(find_placement(three, ResourceRequest(exclusive=True, node_count=2))) == ["b", "c"]


def test_a_placement_on_several_nodes_is_taken_and_given_back_as_one():
    three = lab("a", "b", "c")
    found = find_placement(three, replace(gpus(2), node_count=3))
    assert found is not None
    three.allocate(found)
    assert find_placement(three, gpus(0.1)) is None
    assert (found.on("b"), found.on("d")) == (found.other_parts[0], None)
    three.release(found)
    assert all(device.unallocated == device.facts.capacity for each in "abc" for device in
               three.nodes[each].devices())  # fmt: skip


HDD = (DeviceFacts(name="a", capacity=32_000), DeviceFacts(name="b", capacity=64_000))


@pytest.mark.parametrize(
    ("request_", "lack"),
    [
        (gpus(2), None),
        (gpus(1.5), None),
        (gpus(2.5), "has 2 GPUs, not 2.5"),
        (gpus(1, model="h100"), "has 0 GPUs of model h100, not 1"),
        (gpus(2, required=("1",)), "has 1 GPU among those named, not 2"),
        (gpus(1, min_vram=99_000), "has 0 GPUs with 99000 MiB, not 1"),
        (ResourceRequest(cpus=9000), "has 8 cpu in all, not 9"),
        (ResourceRequest(memory=99_000), "has 32000 MiB mem in all, not 99000 MiB"),
        (ResourceRequest(named=(("tape", 1000),)), "has no resource 'tape'"),
        (ResourceRequest(named=(("hdd", 64_000),)), None),
        (ResourceRequest(named=(("hdd", 65_000),)), "has 64 hdd on one device in all, not 65"),
        (ResourceRequest(nodes=("other",)), "is not one of the requested nodes"),
        (ResourceRequest(not_nodes=("box",)), "is excluded"),
    ],
)
def test_what_a_node_can_never_give_it_says(request_: ResourceRequest, lack: str | None):
    facts = node(2)
    box = Cluster()
    box.add_node(NodeFacts(name="box", types={**facts.types, "hdd": HDD}), [])
    assert infeasibility_reason(box.nodes["box"], request_) == lack


def test_a_node_without_gpus_says_so():
    box = Cluster()
    box.add_node(node(0), [])
    assert infeasibility_reason(box.nodes["box"], gpus(0.1)) == "has no GPU"


AMOUNTS = st.integers(1, 4000)


@given(st.lists(st.tuples(AMOUNTS, st.booleans()), max_size=25), st.integers(1, 4))
def test_no_device_is_ever_given_out_twice(steps: list[tuple[int, bool]], count: int):
    box = cards(*[{}] * count)
    held = []
    for amount, release in steps:
        if release and held:
            box.release(held.pop(0))
        found = find_placement(box, ResourceRequest(gpus=GpuRequest(amount)))
        if found is not None:
            box.allocate(found)  # raises when over-committed
            assert found.gpu_amount == amount
            assert len({take.device for take in found.allocations}) == len(found.allocations)
            held.append(found)
    for each in held:
        box.release(each)
    assert all(device.unallocated == 1000 for device in box.nodes["box"].devices())


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
        put(box, ResourceRequest(gpus=GpuRequest(amount)))
        put(box, ResourceRequest(cpus=amount))
    found.by_name["cpu", "cpu"].used_by_others, found.by_name["mem", "mem"].used_by_others = (
        others,
        memory,
    )
    found.unavailable_reason = "it does not answer" if closed else None
    cards, cpus, ram = asked
    request = ResourceRequest(gpus=GpuRequest(cards) if cards else None, cpus=cpus, memory=ram)
    box.mark_changed("a")
    for ledger in (box, Overlay(box)):
        fits = capacity_test(ledger, request_shape(request))(request_amounts(request))
        assert fits == (fit(found, request) is not None)


@given(AMOUNTS)
def test_what_could_ever_fit_fits_an_empty_node(amount: int):
    box = cards({}, {}, {})
    request = ResourceRequest(gpus=GpuRequest(amount))
    assert (infeasibility_reason(box.nodes["box"], request) is None) == (
        find_placement(box, request) is not None
    )
