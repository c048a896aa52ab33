"""Expected losses of GPUs by fragmentation, compared with values computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.free_amounts import after_placement
from stoker.core.cluster import fragmentation
from stoker.core.cluster.fragmentation import (
    DemandHistogram,
    FreeResources,
    ResourceDemand,
    fits,
    placement_cost,
    remainders,
)


def expected_loss(histogram: DemandHistogram, free: FreeResources) -> float:
    model = histogram.model_for(free.model)
    return sum(map(model.gpu_remainder, free.gpus)) + model.stranded_gpus(
        sum(free.gpus), free.cpu, free.mem
    )


def test_a_demand_fits_only_if_every_amount_and_the_model_do():
    free = FreeResources((1000, 1000, 400, 0), 8000, 100, "A", (("disk", 5),))
    assert (free.whole, free.max_remainder) == (2, 2400)
    assert fits(free, ResourceDemand(2400, 8000, 100, ("B", "A"), (("disk", 5),)))
    assert fits(free, ResourceDemand(1900))
    assert not fits(free, ResourceDemand(2401))
    assert not fits(free, ResourceDemand(cpu=8001))
    assert not fits(free, ResourceDemand(mem=101))
    assert not fits(free, ResourceDemand(models=("B",)))
    assert not fits(free, ResourceDemand(more=(("disk", 6),)))
    assert not fits(free, ResourceDemand(more=(("tape", 1),)))


def test_the_part_of_a_gpu_may_come_from_any_remainder_that_is_large_enough():
    free = FreeResources((1000, 1000, 400), 8, 9, "A", (("disk", 5),))
    assert remainders(free, ResourceDemand(300)) == [400, 1000]
    assert remainders(free, ResourceDemand(1300)) == [400, 1000]
    assert remainders(free, ResourceDemand(2000)) == []
    assert after_placement(free, ResourceDemand(300, 1, 2)).gpus == (1000, 1000, 100)
    assert after_placement(free, ResourceDemand(300), 1000).gpus == (1000, 700, 400)
    after = after_placement(free, ResourceDemand(1300, 1, 2, (), (("disk", 3),)))
    assert after == FreeResources((1000, 100, 0), 7, 7, "A", (("disk", 2),))


def test_a_remainder_smaller_than_all_demands_is_lost():
    histogram = DemandHistogram([ResourceDemand(810)] * 50)
    assert expected_loss(histogram, FreeResources((190,))) == 190
    assert expected_loss(histogram, FreeResources((1000,))) == pytest.approx(190)
    assert expected_loss(histogram, FreeResources((0,))) == 0


def test_a_remainder_is_filled_by_typical_demands():
    histogram = DemandHistogram([ResourceDemand(500)] * 50)
    assert expected_loss(histogram, FreeResources((500,))) == pytest.approx(0)
    assert expected_loss(histogram, FreeResources((700,))) == pytest.approx(200)
    assert expected_loss(histogram, FreeResources((490,))) == 490


def test_a_rare_demand_does_not_save_a_remainder():
    often = DemandHistogram([ResourceDemand(1000)] * 20 + [ResourceDemand(200)] * 20)
    seldom = DemandHistogram([ResourceDemand(1000)] * 499 + [ResourceDemand(200)])
    assert expected_loss(often, FreeResources((200,))) < 1
    assert 180 < expected_loss(seldom, FreeResources((200,))) < 200


def test_gpus_without_cores_are_lost():
    histogram = DemandHistogram([ResourceDemand(1000, cpu=4000)] * 20)
    assert expected_loss(histogram, FreeResources((1000, 1000), cpu=8000)) == pytest.approx(0)
    assert expected_loss(histogram, FreeResources((1000, 1000), cpu=4000)) == pytest.approx(1000)
    assert expected_loss(histogram, FreeResources((1000, 1000), cpu=0)) == pytest.approx(2000)


def test_the_scarcer_of_cores_and_memory_counts():
    histogram = DemandHistogram(
        [ResourceDemand(1000, 4000, 100)] * 10 + [ResourceDemand(1000)] * 10
    )
    assert expected_loss(histogram, FreeResources((1000, 1000), cpu=4000, mem=0)) == pytest.approx(
        1000
    )
    assert expected_loss(histogram, FreeResources((1000, 1000), cpu=0, mem=100)) == pytest.approx(
        1000
    )
    assert expected_loss(
        histogram, FreeResources((1000, 1000), cpu=4000, mem=100)
    ) == pytest.approx(500)


def test_gpus_are_not_stranded_if_demands_need_nothing_else():
    histogram = DemandHistogram([ResourceDemand(1000)] * 20)
    assert expected_loss(histogram, FreeResources((1000, 1000))) == 0


def test_without_any_demand_best_fit_decides():
    assert placement_cost(FreeResources((1000, 600)), ResourceDemand(500), DemandHistogram())[0][
        1:
    ] == (1100, 0)


def better(
    demand: ResourceDemand, histogram: DemandHistogram, first: FreeResources, second: FreeResources
) -> bool:
    return (
        placement_cost(first, demand, histogram)[0] < placement_cost(second, demand, histogram)[0]
    )


def test_the_exact_complement_is_better_than_a_new_gpu():
    histogram = DemandHistogram([ResourceDemand(700)] * 20 + [ResourceDemand(300)] * 20)
    assert placement_cost(FreeResources((1000, 700, 300)), ResourceDemand(300), histogram)[1] == 300
    assert better(ResourceDemand(700), histogram, FreeResources((700,)), FreeResources((1000,)))


def test_demands_with_few_cores_are_placed_where_few_are_free():
    histogram = DemandHistogram(
        [ResourceDemand(1000, 2000)] * 20 + [ResourceDemand(1000, 12000)] * 20
    )
    poor, rich = FreeResources((1000,) * 4, 16000), FreeResources((1000,) * 4, 48000)
    assert better(ResourceDemand(1000, 2000), histogram, poor, rich)
    assert better(ResourceDemand(1000, 12000), histogram, rich, poor)


def test_a_demand_without_gpus_is_placed_where_cores_are_left_over():
    histogram = DemandHistogram([ResourceDemand(1000, 4000)] * 20 + [ResourceDemand(0, 4000)] * 5)
    assert better(
        ResourceDemand(0, 4000),
        histogram,
        FreeResources((1000,), 40000),
        FreeResources((1000,), 4000),
    )
    assert better(
        ResourceDemand(0, 4000), histogram, FreeResources((), 4000), FreeResources((1000,), 40000)
    )


def test_among_equal_nodes_the_fullest_is_taken():
    histogram = DemandHistogram([ResourceDemand(1000)] * 20)
    assert better(
        ResourceDemand(1000),
        histogram,
        FreeResources((1000, 1000, 0)),
        FreeResources((1000, 1000, 1000)),
    )


def test_a_model_in_demand_is_left_to_the_requests_that_need_it():
    histogram = DemandHistogram(
        [ResourceDemand(1000)] * 10 + [ResourceDemand(1000, models=("A",))] * 10
    )
    rare, common = FreeResources((1000,), model="A"), FreeResources((1000, 1000), model="B")
    assert better(ResourceDemand(1000), histogram, common, rare)


def test_the_histogram_drops_old_demands_and_stays_small():
    histogram = DemandHistogram([ResourceDemand(300)] * 100)
    for number in range(20 * fragmentation.DEMAND_WINDOW):
        histogram.record(ResourceDemand(1000, cpu=number % 999))
        assert len(histogram._weights) <= 2 * fragmentation.MAX_DEMAND_CLASSES
    assert ResourceDemand(300) not in histogram._weights
    assert expected_loss(histogram, FreeResources((300,), cpu=300)) == 300


DEMANDS = st.builds(
    ResourceDemand,
    st.integers(0, 40).map(lambda n: n * 50) | st.integers(0, 3000),
    st.integers(0, 9000),
    st.integers(0, 9000),
    st.sampled_from([(), ("A",), ("A", "B")]),
)
FREE = st.builds(
    lambda gpus, cpu, mem, model: FreeResources(tuple(sorted(gpus, reverse=True)), cpu, mem, model),
    st.lists(st.sampled_from([0, 1000, 1000]) | st.integers(0, 1000), max_size=8),
    st.integers(0, 30000),
    st.integers(0, 30000),
    st.sampled_from("AB"),
)


@given(st.lists(DEMANDS, max_size=40), FREE, DEMANDS)
def test_losses_are_bounded_by_what_is_free_and_independent_of_the_order_of_demands(
    demands: list[ResourceDemand], free: FreeResources, demand: ResourceDemand
):
    histogram = DemandHistogram(demands)
    histogram._rebuild()
    model = histogram.model_for(free.model)
    total = sum(free.gpus)
    assert -1e-6 <= sum(map(model.gpu_remainder, free.gpus)) <= total + 1e-6
    assert -1e-6 <= model.stranded_gpus(total, free.cpu, free.mem) <= total + 1e-6
    other = DemandHistogram(demands[::-1])
    other._rebuild()
    assert expected_loss(other, free) == pytest.approx(expected_loss(histogram, free))
    if fits(free, demand):
        (_, gpus, cpu), remainder = placement_cost(free, demand, histogram)
        after = after_placement(free, demand, remainder)
        assert (sum(after.gpus), after.cpu) == (gpus, cpu)
        assert min((*after.gpus, after.cpu, after.mem)) >= 0
        assert len(after.gpus) == len(free.gpus)
