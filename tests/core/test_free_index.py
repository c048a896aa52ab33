"""The free-capacity index finds a node exactly when a scan of all nodes does."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.free_amounts import after_placement
from stoker.core.cluster import free_index
from stoker.core.cluster.fragmentation import (
    DemandHistogram,
    FreeResources,
    ResourceDemand,
    fits,
    placement_cost,
)
from stoker.core.cluster.free_index import FreeCapacityIndex

HISTOGRAM = DemandHistogram([ResourceDemand(1000, 4000)] * 20 + [ResourceDemand(500, 1000)] * 20)


def index_of(**free_by_node: FreeResources) -> FreeCapacityIndex:
    index = FreeCapacityIndex()
    for name, free in free_by_node.items():
        index.update(name, free)
    return index


def test_the_fullest_node_with_enough_is_best():
    index = index_of(
        empty=FreeResources((1000,) * 4, 16000),
        half=FreeResources((1000, 1000, 0, 0), 8000),
        full=FreeResources((0,) * 4),
    )
    assert index.best(ResourceDemand(1000, 4000), HISTOGRAM) == ["half"]
    assert index.best(ResourceDemand(4000, 4000), HISTOGRAM) == ["empty"]
    assert index.best(ResourceDemand(4001, 4000), HISTOGRAM) == []
    assert index.best(ResourceDemand(1000, 17000), HISTOGRAM) == []


def test_a_part_of_a_gpu_is_placed_in_the_remainder_of_its_size():
    index = index_of(
        a=FreeResources((1000,), 4000), b=FreeResources((700,), 4000), c=FreeResources((500,), 4000)
    )
    assert index.best(ResourceDemand(500, 1000), HISTOGRAM) == ["c"]
    assert index.best(ResourceDemand(501, 1000), HISTOGRAM) == ["b"]


def test_the_parts_of_a_gang_are_on_different_nodes_or_none_is_placed():
    index = index_of(
        a=FreeResources((1000,) * 4), b=FreeResources((1000,) * 4), c=FreeResources((1000, 0, 0, 0))
    )
    histogram = DemandHistogram([ResourceDemand(1000)] * 9)
    assert index.best(ResourceDemand(1000), histogram, 2) == ["c", "a"]
    assert index.best(ResourceDemand(1000), histogram, 3) == ["c", "a", "b"]
    assert index.best(ResourceDemand(2000), histogram, 2) == ["a", "b"]
    assert index.best(ResourceDemand(2000), histogram, 3) == []


def test_models_and_named_amounts_are_respected():
    disk = (("disk", 10),)
    index = index_of(
        a=FreeResources((1000,), model="A"),
        b=FreeResources((1000,), model="B", more=disk),
        c=FreeResources((), 1000),
    )
    assert index.best(ResourceDemand(1000, models=("B", "C")), HISTOGRAM) == ["b"]
    assert index.best(ResourceDemand(1000, models=("C",)), HISTOGRAM) == []
    assert index.best(ResourceDemand(1000, more=(("disk", 10),)), HISTOGRAM) == ["b"]
    assert index.best(ResourceDemand(0, more=(("disk", 11),)), HISTOGRAM) == []
    assert index.best(ResourceDemand(0, 1000), HISTOGRAM) == ["c"]


def test_a_removed_node_is_not_found_until_it_is_updated():
    index = index_of(a=FreeResources((1000,)), b=FreeResources((1000,)))
    index.remove("a")
    assert (index.best(ResourceDemand(1000), HISTOGRAM), len(index), index.free_resources("a")) == (
        ["b"],
        1,
        None,
    )
    index.update("a", FreeResources((1000,)))
    assert (index.best(ResourceDemand(1000), HISTOGRAM), len(index)) == (["a"], 2)
    with pytest.raises(KeyError):
        index.remove("unknown")


def test_a_node_is_found_however_few_buckets_are_scored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(free_index, "MAX_MISSES_PER_BUCKET", 1)
    monkeypatch.setattr(free_index, "MAX_BUCKETS_PER_QUERY", 1)
    index = FreeCapacityIndex()
    for number in range(200):
        index.update(f"n{number}", FreeResources((1000,), 1000 + number, 1400 - number))
    assert index.best(ResourceDemand(1000, 1150, 1250), HISTOGRAM) == ["n150"]
    assert index.best(ResourceDemand(1000, 1150, 1251), HISTOGRAM) == []


AMOUNT = st.integers(0, 8) | st.integers(0, 5000)
GPUS = st.sampled_from([0, 200, 500, 810, 1000, 1500, 2000, 4000]) | st.integers(0, 3000)
FREE = st.builds(
    lambda gpus, cpu, mem, model, disk: FreeResources(
        tuple(sorted(gpus, reverse=True)), cpu, mem, model, (("disk", disk),) if disk else ()
    ),
    st.lists(st.sampled_from([0, 190, 500, 1000, 1000]) | st.integers(0, 1000), max_size=5),
    AMOUNT, AMOUNT, st.sampled_from("AB"), st.integers(0, 3),
)  # fmt: skip
DEMANDS = st.builds(
    ResourceDemand, GPUS, AMOUNT, AMOUNT, st.sampled_from([(), (), ("A",), ("A", "B"), ("C",)]),
    st.sampled_from([(), (), (("disk", 1),), (("disk", 3),)]),
)  # fmt: skip
STEPS = st.lists(st.tuples(st.integers(0, 12), FREE | st.none(), DEMANDS, st.integers(1, 4)))


@given(STEPS, st.sampled_from([1, 16]), st.sampled_from([1, 128]))
def test_a_demand_fits_exactly_when_a_scan_of_all_nodes_finds_it(
    steps: list[tuple[int, FreeResources | None, ResourceDemand, int]], misses: int, buckets: int
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(free_index, "MAX_MISSES_PER_BUCKET", misses)
        patch.setattr(free_index, "MAX_BUCKETS_PER_QUERY", buckets)
        index, free_by_node, histogram = (
            FreeCapacityIndex(),
            dict[str, FreeResources](),
            DemandHistogram(),
        )
        for number, free, demand, count in steps:
            name = f"n{number}"
            if free is not None:
                index.update(name, free)
                free_by_node[name] = free
            elif name in free_by_node:
                index.remove(name)
                del free_by_node[name]
            histogram.record(demand)
            fitting = {node for node, left in free_by_node.items() if fits(left, demand)}
            chosen = index.best(demand, histogram, count)
            assert len(chosen) == len(set(chosen)) == (count if len(fitting) >= count else 0)
            assert fitting.issuperset(chosen)
        assert len(index) == len(free_by_node)


def placements(seed: int) -> list[tuple[ResourceDemand, list[str]]]:
    """Place random demands for good, and return the nodes of each."""
    rng = random.Random(seed)
    index, histogram = FreeCapacityIndex(), DemandHistogram()
    for number in range(60):
        cores = rng.choice([8000, 32000])
        index.update(
            f"n{number}",
            FreeResources((1000,) * rng.choice([2, 4, 8]), cores, 64000, "AB"[number % 2]),
        )
    history = []
    for _ in range(400):
        demand = ResourceDemand(
            rng.choice([0, 300, 500, 700, 1000, 1000, 2000]),
            rng.choice([500, 4000]),
            100,
        )
        histogram.record(demand)
        chosen = index.best(demand, histogram, rng.choice([1, 1, 1, 2]))
        history.append((demand, chosen))
        for name in chosen:
            free = index.free_resources(name)
            assert free is not None
            index.update(
                name, after_placement(free, demand, placement_cost(free, demand, histogram)[1])
            )
    return history


def test_placements_are_deterministic():
    assert placements(1) == placements(1)
    assert placements(1) != placements(2)


@given(st.lists(FREE, min_size=1, max_size=20), DEMANDS, st.randoms())
def test_the_order_of_registration_decides_only_among_equal_nodes(
    free_by_node: list[FreeResources], demand: ResourceDemand, rng: random.Random
):
    by_name = {f"n{number}": free for number, free in enumerate(free_by_node)}
    index = index_of(**by_name)
    order = list(by_name)
    rng.shuffle(order)
    shuffled = index_of(**{name: by_name[name] for name in order})
    for one, other in zip(
        index.best(demand, HISTOGRAM), shuffled.best(demand, HISTOGRAM), strict=True
    ):
        assert (
            placement_cost(by_name[one], demand, HISTOGRAM)[0]
            == placement_cost(by_name[other], demand, HISTOGRAM)[0]
        )
