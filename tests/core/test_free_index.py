"""The free-capacity index finds the nodes that a scan of all nodes finds."""

import random
from heapq import nsmallest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.free_amounts import after_placement
from stoker.core.cluster import free_index
from stoker.core.cluster.fragmentation import (
    DemandHistogram,
    FreeResources,
    ResourceDemand,
    placement_cost,
)
from stoker.core.cluster.free_index import FreeCapacityIndex

HISTOGRAM = DemandHistogram([ResourceDemand(1000, 4000)] * 20 + [ResourceDemand(500, 1000)] * 20)


def index_of(**free_by_node: FreeResources) -> FreeCapacityIndex:
    index = FreeCapacityIndex()
    for number, (name, free) in enumerate(free_by_node.items()):
        index.update(name, free, number)
    return index


def best(
    index: FreeCapacityIndex, demand: ResourceDemand, histogram: DemandHistogram, count: int = 1
) -> list[str]:
    """Return the nodes with the lowest cost, or none if there are too few."""
    names = [name for *_, name in nsmallest(count, index.ranked(demand, histogram, count))]
    return names if len(names) == count else []


def test_the_fullest_node_with_enough_is_best():
    index = index_of(
        empty=FreeResources((1000,) * 4, 16000),
        half=FreeResources((1000, 1000, 0, 0), 8000),
        full=FreeResources((0,) * 4),
    )
    assert best(index, ResourceDemand(1000, 4000), HISTOGRAM) == ["half"]
    assert best(index, ResourceDemand(4000, 4000), HISTOGRAM) == ["empty"]
    assert best(index, ResourceDemand(4001, 4000), HISTOGRAM) == []
    assert best(index, ResourceDemand(1000, 17000), HISTOGRAM) == []


def test_a_part_of_a_gpu_is_placed_in_the_remainder_of_its_size():
    index = index_of(
        a=FreeResources((1000,), 4000), b=FreeResources((700,), 4000), c=FreeResources((500,), 4000)
    )
    assert best(index, ResourceDemand(500, 1000), HISTOGRAM) == ["c"]
    assert best(index, ResourceDemand(501, 1000), HISTOGRAM) == ["b"]


def test_the_parts_of_a_gang_are_on_different_nodes_or_none_is_placed():
    index = index_of(
        a=FreeResources((1000,) * 4), b=FreeResources((1000,) * 4), c=FreeResources((1000, 0, 0, 0))
    )
    histogram = DemandHistogram([ResourceDemand(1000)] * 9)
    assert best(index, ResourceDemand(1000), histogram, 2) == ["c", "a"]
    assert best(index, ResourceDemand(1000), histogram, 3) == ["c", "a", "b"]
    assert best(index, ResourceDemand(2000), histogram, 2) == ["a", "b"]
    assert best(index, ResourceDemand(2000), histogram, 3) == []


def test_models_and_named_amounts_are_respected():
    disk = (("disk", 10),)
    index = index_of(
        a=FreeResources((1000,), model="A"),
        b=FreeResources((1000,), model="B", more=disk),
        c=FreeResources((), 1000),
    )
    assert best(index, ResourceDemand(1000, models=("B", "C")), HISTOGRAM) == ["b"]
    assert best(index, ResourceDemand(1000, models=("C",)), HISTOGRAM) == []
    assert best(index, ResourceDemand(1000, more=(("disk", 10),)), HISTOGRAM) == ["b"]
    assert best(index, ResourceDemand(0, more=(("disk", 11),)), HISTOGRAM) == []
    assert best(index, ResourceDemand(0, 1000), HISTOGRAM) == ["c"]


def test_a_removed_node_is_not_found_until_it_is_updated():
    index = index_of(a=FreeResources((1000,)), b=FreeResources((1000,)))
    index.remove("a")
    assert best(index, ResourceDemand(1000), HISTOGRAM) == ["b"]
    index.update("a", FreeResources((1000,)), 0)
    assert best(index, ResourceDemand(1000), HISTOGRAM) == ["a"]
    index.update("a", None, 0)
    assert best(index, ResourceDemand(1000), HISTOGRAM) == ["b"]
    assert list(index.unindexed) == ["a"]
    index.remove("a")
    assert not index.unindexed


def test_nodes_that_an_overlay_modified_are_left_out():
    index = index_of(a=FreeResources((1000,)), b=FreeResources((1000,)), c=FreeResources((1000,)))
    ranked = index.ranked(ResourceDemand(1000), HISTOGRAM, 1, {"a": None})
    assert [name for *_, name in ranked] == ["b"]


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


@given(STEPS, st.sampled_from([1, 256]))
def test_the_cheapest_nodes_of_a_scan_are_found(
    steps: list[tuple[int, FreeResources | None, ResourceDemand, int]], cached: int
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(free_index, "MAX_TYPICAL_DEMANDS", cached)
        index, histogram = FreeCapacityIndex(), DemandHistogram()
        free_by_node: dict[int, FreeResources] = {}
        for number, free, demand, count in steps:
            if free is not None:
                index.update(f"n{number}", free, number)
                free_by_node[number] = free
            else:
                index.remove(f"n{number}")
                free_by_node.pop(number, None)
            histogram.count(demand, +1)
            costs = sorted(
                (cost, node)
                for node, left in free_by_node.items()
                if (cost := placement_cost(left, demand, histogram)) is not None
            )
            expected = [f"n{node}" for _, node in costs[:count]] if len(costs) >= count else []
            assert best(index, demand, histogram, count) == expected
        assert sum(len(group.members) for group in index.groups.values()) == len(free_by_node)


def placements(seed: int) -> list[tuple[ResourceDemand, list[str]]]:
    """Place random demands for good, and return the nodes of each."""
    rng = random.Random(seed)
    histogram, nodes = DemandHistogram(), dict[str, FreeResources]()
    for number in range(60):
        cores = rng.choice([8000, 32000])
        gpus = (1000,) * rng.choice([2, 4, 8])
        nodes[f"n{number}"] = FreeResources(gpus, cores, 64000, "AB"[number % 2])
    index = index_of(**nodes)
    history = []
    for _ in range(400):
        demand = ResourceDemand(
            rng.choice([0, 300, 500, 700, 1000, 1000, 2000]),
            rng.choice([500, 4000]),
            100,
        )
        histogram.count(demand, +1)
        chosen = best(index, demand, histogram, rng.choice([1, 1, 1, 2]))
        history.append((demand, chosen))
        for name in chosen:
            cost = placement_cost(nodes[name], demand, histogram)
            assert cost is not None
            nodes[name] = after_placement(nodes[name], demand, cost[-1])
            index.update(name, nodes[name], int(name[1:]))
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
        best(index, demand, HISTOGRAM), best(shuffled, demand, HISTOGRAM), strict=True
    ):
        assert placement_cost(by_name[one], demand, HISTOGRAM) == placement_cost(
            by_name[other], demand, HISTOGRAM
        )
