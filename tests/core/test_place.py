"""Where a job goes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.story import Story, gpus, node
from stoker.core import events as e
from stoker.core.cluster import Cluster, DeviceFacts, NodeFacts
from stoker.core.policy.place import could_ever, place
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
    story = Story(gpus=3)
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
        (Request(named=(("tape", 1000),)), "has no resource called 'tape'"),
        (Request(named=(("hdd", 64_000),)), None),
        (Request(named=(("hdd", 65_000),)), "has 64 hdd on one device in all, not 65"),
        (Request(nodes=("other",)), "is not one of the machines asked for"),
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


@given(AMOUNTS)
def test_what_could_ever_fit_fits_an_empty_machine(amount: int):
    box = cards({}, {}, {})
    request = Request(gpus=GpuAsk(amount))
    assert (could_ever(box.nodes["box"], request) is None) == (place(box, request) is not None)
