"""Expected losses of GPUs by fragmentation, compared with values computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.free_amounts import after_placement
from stoker.core.cluster.fragmentation import (
    Cost,
    DemandHistogram,
    FreeResources,
    ResourceDemand,
    fits,
    max_request_amount,
    placement_cost,
    remainders,
)


def remainder_loss(histogram: DemandHistogram, left: int) -> float:
    return histogram.model_for("").remainder_loss(left)


def unserved_share(histogram: DemandHistogram, free: FreeResources) -> float:
    model = histogram.model_for(free.model)
    return model.unserved_share(max_request_amount(free.gpus), free.cpu, free.mem)


def cost(free: FreeResources, demand: ResourceDemand, histogram: DemandHistogram) -> Cost:
    """Return the cost of a demand that fits."""
    found = placement_cost(free, demand, histogram)
    assert found is not None
    return found


def test_a_demand_fits_only_if_every_amount_and_the_model_do():
    free = FreeResources((1000, 1000, 400, 0), 8000, 100, "A", (("disk", 5),))
    assert max_request_amount(free.gpus) == 2400
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
    assert after_placement(free, ResourceDemand(300, 1, 2)).gpus == (1000, 1000, 100)
    assert after_placement(free, ResourceDemand(300), 1000).gpus == (1000, 700, 400)
    after = after_placement(free, ResourceDemand(1300, 1, 2, (), (("disk", 3),)))
    assert after == FreeResources((1000, 100, 0), 7, 7, "A", (("disk", 2),))


def test_a_remainder_smaller_than_all_demands_is_lost():
    histogram = DemandHistogram([ResourceDemand(810)] * 50)
    assert remainder_loss(histogram, 190) == 190
    assert remainder_loss(histogram, 1000) == pytest.approx(190)
    assert remainder_loss(histogram, 0) == 0


def test_a_remainder_is_filled_by_typical_demands():
    histogram = DemandHistogram([ResourceDemand(500)] * 50)
    assert remainder_loss(histogram, 500) == pytest.approx(0)
    assert remainder_loss(histogram, 700) == pytest.approx(200)
    assert remainder_loss(histogram, 490) == 490


def test_a_rare_demand_does_not_save_a_remainder():
    often = DemandHistogram([ResourceDemand(1000)] * 20 + [ResourceDemand(200)] * 20)
    seldom = DemandHistogram([ResourceDemand(1000)] * 499 + [ResourceDemand(200)])
    assert remainder_loss(often, 200) < 1
    assert 180 < remainder_loss(seldom, 200) < 200


def test_a_node_serves_the_demands_for_which_every_amount_suffices():
    histogram = DemandHistogram(
        [ResourceDemand(1000, 4000, 100)] * 2
        + [ResourceDemand(2000, 8000)] * 5
        + [ResourceDemand(500, models=("A",))] * 2
        + [ResourceDemand(0, 9000)] * 99
    )
    two, levels = (1000, 1000), (1.25**3, 1.25**7)  # 2 and 5 demands, rounded down
    few, many = (level / (2 * levels[0] + levels[1]) for level in levels)
    assert unserved_share(histogram, FreeResources(two, 8000, 100, "A")) == pytest.approx(0)
    assert unserved_share(histogram, FreeResources(two, 8000, 100, "B")) == pytest.approx(few)
    assert unserved_share(histogram, FreeResources(two, 7999, 100, "A")) == pytest.approx(many)
    assert unserved_share(histogram, FreeResources(two, 8000, 99, "A")) == pytest.approx(few)
    assert unserved_share(histogram, FreeResources((1000, 999), 8000, 100, "A")) == pytest.approx(
        many
    )
    assert unserved_share(histogram, FreeResources((), 8000, 100, "A")) == pytest.approx(1)


def test_without_any_demand_best_fit_decides():
    assert cost(FreeResources((1000, 600)), ResourceDemand(500), DemandHistogram())[1:] == (
        1100,
        0,
        600,
    )


def test_the_cores_that_whole_nodes_need_are_left_to_them():
    histogram = DemandHistogram(
        [ResourceDemand(8000, 64000)] * 10 + [ResourceDemand(1000, 8000)] * 10
    )
    whole_node = FreeResources((1000,) * 8, 64000)
    for demand in (ResourceDemand(0, 8000), ResourceDemand(1000, 8000)):
        assert better(demand, histogram, FreeResources((1000,) * 8, 56000), whole_node)
        assert better(demand, histogram, FreeResources((1000,) * 2, 16000), whole_node)


def test_demands_without_gpus_are_spread_over_nodes_where_they_cost_the_same():
    histogram, demand = DemandHistogram(), ResourceDemand(0, 1000)
    assert better(demand, histogram, FreeResources((), 8000), FreeResources((), 7000))
    assert better(demand, histogram, FreeResources((), 7000, 90), FreeResources((), 8000, 30))


def better(
    demand: ResourceDemand, histogram: DemandHistogram, first: FreeResources, second: FreeResources
) -> bool:
    return cost(first, demand, histogram) < cost(second, demand, histogram)


def test_the_exact_complement_is_better_than_a_new_gpu():
    histogram = DemandHistogram([ResourceDemand(700)] * 20 + [ResourceDemand(300)] * 20)
    assert cost(FreeResources((1000, 700, 300)), ResourceDemand(300), histogram)[-1] == 300
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


def test_the_losses_are_those_of_the_demands_that_are_left():
    histogram = DemandHistogram([ResourceDemand(300)] * 3)
    for _ in range(40):
        histogram.count(ResourceDemand(1000), +1)
    assert remainder_loss(histogram, 300) < 300
    for _ in range(3):
        histogram.count(ResourceDemand(300), -1)
    assert remainder_loss(histogram, 300) == 300


def test_the_losses_are_computed_again_when_a_demand_becomes_much_more_frequent():
    histogram = DemandHistogram([ResourceDemand(1000)] * 100)
    for _ in range(100):
        histogram.count(ResourceDemand(1000), +1)
    assert histogram.version == 3  # at 108, 135 and 169


def test_demands_that_are_rare_do_not_count():
    histogram = DemandHistogram([ResourceDemand(1000)] * 1000 + [ResourceDemand(300)])
    assert remainder_loss(histogram, 300) == 300
    version = histogram.version
    histogram.count(ResourceDemand(200), +1)
    assert histogram.version == version


DEMANDS = st.builds(
    ResourceDemand,
    st.integers(0, 40).map(lambda n: n * 50) | st.integers(0, 3000),
    st.integers(0, 9000),
    st.integers(0, 9000),
    st.sampled_from([(), ("A",), ("A", "B")]),
    st.just(()),
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
    model = histogram.model_for(free.model)
    other = DemandHistogram(demands[::-1])
    for left in free.gpus:
        assert -1e-6 <= model.remainder_loss(left) <= left + 1e-6
    assert -1e-6 <= unserved_share(histogram, free) <= 1 + 1e-6
    assert unserved_share(other, free) == pytest.approx(unserved_share(histogram, free))
    found = placement_cost(free, demand, histogram)
    assert (found is not None) == fits(free, demand) == fits_device_by_device(free, demand)
    if found is not None:
        _, gpus, _, remainder = found
        after = after_placement(free, demand, remainder)
        assert sum(after.gpus) == gpus
        assert min((*after.gpus, after.cpu, after.mem)) >= 0
        assert len(after.gpus) == len(free.gpus)


def fits_device_by_device(free: FreeResources, demand: ResourceDemand) -> bool:
    whole, part = divmod(demand.gpus, 1000)
    others = sorted(free.gpus)
    for _ in range(whole):
        if not others or others.pop() < 1000:
            return False
    if part and not any(left >= part for left in others):
        return False
    right_model = not demand.models or free.model in demand.models
    return right_model and demand.cpu <= free.cpu and demand.mem <= free.mem
