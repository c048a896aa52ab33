"""Matching of jobs and GPU models: worked examples and properties."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.heterogeneous import matching
from stoker.core.heterogeneous.matching import Option

FAST, MIDDLE, SLOW = "v100", "p100", "k80"
TIMES = st.floats(1.0, 1e6)
BY_MODEL = st.dictionaries(st.sampled_from([FAST, MIDDLE, SLOW]), TIMES, min_size=1)
SUPPLY = {FAST: 8.0, MIDDLE: 16.0, SLOW: 24.0}


# -- expected seconds ---------------------------------------------------------------------


def test_typical_speed_is_the_median_of_ratios() -> None:
    profiles = [{FAST: 1.0, SLOW: 4.0}, {FAST: 10.0, SLOW: 60.0}, {FAST: 5.0, SLOW: 50.0}]
    assert matching.typical_speeds(profiles) == {FAST: 1.0, SLOW: 6.0}


def test_profiles_with_one_model_give_no_ratio() -> None:
    assert matching.typical_speeds([{FAST: 3.0}, {SLOW: 9.0}]) == {}


def test_models_are_compared_by_the_one_measured_most() -> None:
    profiles = [{MIDDLE: 2.0, FAST: 1.0}, {MIDDLE: 2.0, SLOW: 8.0}]
    assert matching.typical_speeds(profiles) == {FAST: 1.0, MIDDLE: 2.0, SLOW: 8.0}


def test_unmeasured_model_has_the_typical_ratio() -> None:
    typical = {FAST: 1.0, MIDDLE: 2.0, SLOW: 6.0}
    chosen = matching.expected_seconds({MIDDLE: 30.0}, typical, [FAST, MIDDLE, SLOW])
    assert chosen == {FAST: 15.0, MIDDLE: 30.0, SLOW: 90.0}


def test_model_without_any_measurement_counts_as_the_fastest() -> None:
    assert matching.expected_seconds({SLOW: 30.0}, {}, [FAST, SLOW]) == {FAST: 30.0, SLOW: 30.0}


def test_unmeasured_job_has_no_expected_seconds() -> None:
    assert matching.expected_seconds({}, {FAST: 1.0}, [FAST]) == {}


@given(BY_MODEL, BY_MODEL)
def test_measurements_are_never_changed(
    measured: dict[str, float], typical: dict[str, float]
) -> None:
    chosen = matching.expected_seconds(measured, typical, SUPPLY)
    assert chosen.keys() == SUPPLY.keys()
    assert all(chosen[model] == seconds for model, seconds in measured.items())


# -- mean completion time -----------------------------------------------------------------


def test_without_later_jobs_a_job_goes_where_it_is_fastest() -> None:
    costs = matching.opportunity_cost({FAST: 1.0, SLOW: 4.0}, 0, 48)
    options = [Option(SLOW, 101.0), Option(FAST, 100.0)]
    assert matching.choose(options, 1, costs) == options[1]


def test_with_many_later_jobs_a_fast_gpu_is_left_to_jobs_that_gain_by_it() -> None:
    costs = matching.opportunity_cost({FAST: 1.0, SLOW: 4.0}, 48, 48)
    assert costs == {FAST: 0.5, SLOW: 0.125}
    # 100 × 1.5 = 150 on the fast one, 120 × 1.125 = 135 on the slow one; 150 × 1.125 = 168.75
    hardly = [Option(FAST, 100.0), Option(SLOW, 120.0)]
    clearly = [Option(FAST, 100.0), Option(SLOW, 150.0)]
    assert matching.choose(hardly, 1, costs) == hardly[1]
    assert matching.choose(clearly, 1, costs) == clearly[0]


def test_opportunity_cost_grows_with_the_number_of_gpus() -> None:
    costs = {FAST: 0.5, SLOW: 0.125}
    options = [Option(FAST, 100.0), Option(SLOW, 150.0)]  # 4 GPUs: 300 and 225
    assert matching.choose(options, 4, costs) == options[1]


def test_job_moves_only_for_more_than_a_fifth() -> None:
    current = Option(SLOW, 1000.0, is_preferred=True)
    assert matching.choose([Option(FAST, 801.0), current], 1, {}) == current
    assert matching.choose([Option(FAST, 799.0), current], 1, {}) == Option(FAST, 799.0)


def test_no_option_gives_none() -> None:
    assert matching.choose([], 1, {}) is None
    assert matching.choose([Option(FAST, inf)], 1, {}) is None


OPTIONS = st.lists(st.builds(Option, st.sampled_from(list(SUPPLY)), TIMES, st.booleans()))


@given(OPTIONS, st.integers(1, 8), st.floats(0, 100))
def test_chosen_option_is_the_cheapest(options: list[Option], gpus: int, behind: float) -> None:
    costs = matching.opportunity_cost({FAST: 1.0, MIDDLE: 1.5, SLOW: 5.0}, behind, 48)
    chosen = matching.choose(options, gpus, costs)
    if not options:
        assert chosen is None
        return
    assert chosen is not None
    assert all(
        matching.cost(chosen, gpus, costs) <= matching.cost(option, gpus, costs)
        for option in options
    )


# -- makespan -----------------------------------------------------------------------------


def test_job_goes_where_it_is_fast_compared_with_others() -> None:
    # Both are faster on the fast model; the first by four times, the second by a little.
    much, little = {FAST: 100.0, SLOW: 400.0}, {FAST: 100.0, SLOW: 120.0}
    prices = matching.equilibrium_prices([much, little], {FAST: 1.0, SLOW: 1.0})
    assert matching.cheapest_model(much, prices) == FAST
    assert matching.cheapest_model(little, prices) == SLOW


def test_model_twice_as_slow_costs_half() -> None:
    prices = matching.equilibrium_prices([{FAST: 10.0, SLOW: 20.0}] * 9, {FAST: 4.0, SLOW: 8.0})
    assert prices[FAST] == 1.0
    assert prices[SLOW] == pytest.approx(0.5, rel=0.1)


def test_model_without_demand_becomes_cheap_but_not_free() -> None:
    prices = matching.equilibrium_prices([{FAST: 10.0}], SUPPLY)
    assert prices[FAST] == 1.0
    assert 0 < prices[SLOW] < 1.0


def test_without_demand_prices_are_equal_and_without_supply_there_is_none() -> None:
    assert matching.equilibrium_prices([], {FAST: 1.0}) == {FAST: 1.0}
    assert matching.equilibrium_prices([{FAST: 1.0}], {FAST: 0.0}) == {}


def test_job_stays_on_a_model_that_suits_it_nearly_as_well() -> None:
    prices = {FAST: 1.0, SLOW: 0.25}
    assert matching.relative_fitness({FAST: 100.0, SLOW: 480.0}, prices)[SLOW] == pytest.approx(
        100 / 120
    )
    assert matching.cheapest_model({FAST: 100.0, SLOW: 480.0}, prices) == FAST
    assert matching.cheapest_model({FAST: 100.0, SLOW: 480.0}, prices, current=SLOW) == SLOW
    assert matching.cheapest_model({FAST: 100.0, SLOW: 520.0}, prices, current=SLOW) == FAST
    assert matching.cheapest_model({}, prices) is None


def test_job_that_loses_least_takes_what_is_left() -> None:
    assert matching.least_regret({"a": {SLOW: 0.3}, "b": {SLOW: 0.6}, "c": {}}) == ("b", SLOW)
    assert matching.least_regret({"a": {SLOW: 0.3, FAST: 0.9}, "b": {FAST: 0.9}}) == ("a", FAST)
    assert matching.least_regret({"c": {}}) is None
    assert matching.least_regret({}) is None


@given(st.lists(BY_MODEL, max_size=20))
def test_highest_price_is_1_and_no_price_is_0(demands: list[dict[str, float]]) -> None:
    prices = matching.equilibrium_prices(demands, SUPPLY)
    assert prices.keys() == SUPPLY.keys()
    assert max(prices.values()) == 1.0
    assert min(prices.values()) >= matching.MIN_PRICE


@given(st.lists(BY_MODEL, min_size=1, max_size=10), st.integers(2, 5))
def test_demands_of_a_profile_may_be_summed(demands: list[dict[str, float]], times: int) -> None:
    apart = matching.equilibrium_prices(
        [demand for demand in demands for _ in range(times)], SUPPLY
    )
    sums = [{model: seconds * times for model, seconds in demand.items()} for demand in demands]
    assert matching.equilibrium_prices(sums, SUPPLY) == pytest.approx(apart)


@given(BY_MODEL, st.lists(BY_MODEL, max_size=10))
def test_fitness_is_1_on_the_cheapest_model(
    seconds: dict[str, float], others: list[dict[str, float]]
) -> None:
    prices = matching.equilibrium_prices([seconds, *others], SUPPLY)
    fitness = matching.relative_fitness(seconds, prices)
    cheapest = matching.cheapest_model(seconds, prices)
    assert cheapest is not None
    assert fitness[cheapest] == max(fitness.values()) == 1.0
    assert all(value > 0 for value in fitness.values())
