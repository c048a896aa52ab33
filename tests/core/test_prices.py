"""Prices of GPU models and expected runtimes: worked examples and properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.heterogeneous.prices import equilibrium_prices
from stoker.core.heterogeneous.throughput import model_ratios, typical_ratios
from stoker.core.model.profile import EpochTime, JobProfile

FAST, MIDDLE, SLOW = "v100", "p100", "k80"
TIMES = st.floats(1.0, 1e6)
BY_MODEL = st.dictionaries(st.sampled_from([FAST, MIDDLE, SLOW]), TIMES, min_size=1)
SUPPLY = {FAST: 8.0, MIDDLE: 16.0, SLOW: 24.0}


def profile(**epoch_times: float) -> JobProfile:
    """Return a profile with these epoch times on one GPU by model."""
    times = tuple(EpochTime(1, model, seconds) for model, seconds in epoch_times.items())
    return JobProfile(epoch_times=times)


# -- expected runtimes --------------------------------------------------------------------


def test_typical_ratio_is_the_median_of_profiles() -> None:
    profiles = [
        profile(v100=1.0, k80=4.0),
        profile(v100=10.0, k80=60.0),
        profile(v100=5.0, k80=50.0),
    ]
    assert typical_ratios(profiles) == {FAST: 1.0, SLOW: 6.0}


def test_profiles_with_one_model_give_no_ratio() -> None:
    assert typical_ratios([profile(v100=3.0), profile(k80=9.0)]) == {}


def test_unmeasured_model_has_the_typical_ratio() -> None:
    typical = {FAST: 1.0, MIDDLE: 2.0, SLOW: 6.0}
    ratios = model_ratios(profile(p100=30.0), 1, [FAST, MIDDLE, SLOW], typical)
    assert ratios == {FAST: 0.5, MIDDLE: 1.0, SLOW: 3.0}


def test_model_without_any_measurement_counts_as_the_fastest() -> None:
    assert model_ratios(profile(k80=30.0), 1, [FAST, SLOW], {}) == {FAST: 1.0, SLOW: 1.0}


def test_unmeasured_job_has_typical_ratios() -> None:
    assert model_ratios(JobProfile(), 1, [FAST, SLOW], {SLOW: 6.0}) == {FAST: 1.0, SLOW: 6.0}


@given(BY_MODEL, BY_MODEL)
def test_measurements_are_never_changed(
    measured: dict[str, float], typical: dict[str, float]
) -> None:
    ratios = model_ratios(profile(**measured), 1, list(SUPPLY), typical)
    assert ratios.keys() == SUPPLY.keys()
    fastest = min(measured.values())
    assert all(ratios[model] == seconds / fastest for model, seconds in measured.items())


# -- prices -------------------------------------------------------------------------------


def test_job_goes_where_it_is_fast_compared_with_others() -> None:
    # Both are faster on the fast model; the first by four times, the second by a little.
    much, little = {FAST: 100.0, SLOW: 400.0}, {FAST: 100.0, SLOW: 120.0}
    prices = equilibrium_prices([much, little], {FAST: 1.0, SLOW: 1.0})
    assert much[FAST] * prices[FAST] < much[SLOW] * prices[SLOW]
    assert little[FAST] * prices[FAST] > little[SLOW] * prices[SLOW]


def test_model_twice_as_slow_costs_half() -> None:
    prices = equilibrium_prices([{FAST: 10.0, SLOW: 20.0}] * 9, {FAST: 4.0, SLOW: 8.0})
    assert prices[FAST] == 1.0
    assert prices[SLOW] == pytest.approx(0.5, rel=0.1)


def test_model_without_demand_becomes_cheap_but_not_free() -> None:
    prices = equilibrium_prices([{FAST: 10.0}], SUPPLY)
    assert prices[FAST] == 1.0
    assert 0 < prices[SLOW] < 1.0


def test_without_demand_prices_are_equal_and_without_supply_there_is_none() -> None:
    assert equilibrium_prices([], {FAST: 1.0}) == {FAST: 1.0}
    assert equilibrium_prices([{FAST: 1.0}], {}) == {}


@given(st.lists(BY_MODEL, max_size=20))
def test_highest_price_is_1_and_no_price_is_0(demands: list[dict[str, float]]) -> None:
    prices = equilibrium_prices(demands, SUPPLY)
    assert prices.keys() == SUPPLY.keys()
    assert max(prices.values()) == 1.0
    assert min(prices.values()) > 0.0


@given(st.lists(BY_MODEL, min_size=1, max_size=10), st.integers(2, 5))
def test_demands_of_a_profile_may_be_summed(demands: list[dict[str, float]], times: int) -> None:
    apart = equilibrium_prices([demand for demand in demands for _ in range(times)], SUPPLY)
    sums = [{model: seconds * times for model, seconds in demand.items()} for demand in demands]
    assert equilibrium_prices(sums, SUPPLY) == pytest.approx(apart)
