"""Which job on which model of GPU: cases worked by hand, and what holds for all."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.policy import match
from stoker.core.policy.match import Company, Option

FAST, MIDDLE, SLOW = "v100", "p100", "k80"
TIMES = st.floats(1.0, 1e6)
SHARES = st.floats(0.05, 1.0)
BY_MODEL = st.dictionaries(st.sampled_from([FAST, MIDDLE, SLOW]), TIMES, min_size=1)
SUPPLY = {FAST: 8.0, MIDDLE: 16.0, SLOW: 24.0}


# ------------------------------------------------------------------------- what is known


def test_the_usual_is_the_median_of_ratios() -> None:
    families = [{FAST: 1.0, SLOW: 4.0}, {FAST: 10.0, SLOW: 60.0}, {FAST: 5.0, SLOW: 50.0}]
    assert match.usual(families) == {FAST: 1.0, SLOW: 6.0}


def test_families_measured_once_teach_nothing_of_ratios() -> None:
    assert match.usual([{FAST: 3.0}, {SLOW: 9.0}]) == {}


def test_models_are_tied_to_the_one_that_most_know() -> None:
    families = [{MIDDLE: 2.0, FAST: 1.0}, {MIDDLE: 2.0, SLOW: 8.0}]
    assert match.usual(families) == {FAST: 1.0, MIDDLE: 2.0, SLOW: 8.0}


def test_what_was_not_measured_is_as_usual() -> None:
    typical = {FAST: 1.0, MIDDLE: 2.0, SLOW: 6.0}
    found = match.expected({MIDDLE: 30.0}, typical, [FAST, MIDDLE, SLOW])
    assert found == {FAST: 15.0, MIDDLE: 30.0, SLOW: 90.0}


def test_a_model_that_nobody_knows_is_worth_a_try() -> None:
    assert match.expected({SLOW: 30.0}, {}, [FAST, SLOW]) == {FAST: 30.0, SLOW: 30.0}


def test_of_a_job_never_measured_nothing_is_expected() -> None:
    assert match.expected({}, {FAST: 1.0}, [FAST]) == {}


@given(BY_MODEL, BY_MODEL)
def test_measurements_are_never_overruled(
    measured: dict[str, float], typical: dict[str, float]
) -> None:
    found = match.expected(measured, typical, SUPPLY)
    assert found.keys() == SUPPLY.keys()
    assert all(found[model] == seconds for model, seconds in measured.items())


# -------------------------------------------------------------------------- short waits


def test_with_nobody_behind_a_job_goes_where_it_is_fastest() -> None:
    dear = match.dearness({FAST: 1.0, SLOW: 4.0}, 0, 48)
    options = [Option(SLOW, 101.0), Option(FAST, 100.0)]
    assert match.choose(options, 1, dear) == options[1]


def test_in_a_crowd_a_fast_gpu_is_left_to_those_who_gain_by_it() -> None:
    dear = match.dearness({FAST: 1.0, SLOW: 4.0}, 48, 48)
    assert dear == {FAST: 0.5, SLOW: 0.125}
    # 100 × 1.5 = 150 on the fast one, 120 × 1.125 = 135 on the slow one; 150 × 1.125 = 168.75
    hardly = [Option(FAST, 100.0), Option(SLOW, 120.0)]
    clearly = [Option(FAST, 100.0), Option(SLOW, 150.0)]
    assert match.choose(hardly, 1, dear) == hardly[1]
    assert match.choose(clearly, 1, dear) == clearly[0]


def test_a_gang_keeps_others_from_more() -> None:
    dear = {FAST: 0.5, SLOW: 0.125}
    options = [Option(FAST, 100.0), Option(SLOW, 150.0)]  # 4 GPUs: 300 and 225
    assert match.choose(options, 4, dear) == options[1]


def test_a_job_moves_only_for_more_than_a_fifth() -> None:
    here = Option(SLOW, 1000.0, here=True)
    assert match.choose([Option(FAST, 801.0), here], 1, {}) == here
    assert match.choose([Option(FAST, 799.0), here], 1, {}) == Option(FAST, 799.0)


def test_nowhere_is_no_place() -> None:
    assert match.choose([], 1, {}) is None
    assert match.choose([Option(FAST, inf)], 1, {}) is None


OPTIONS = st.lists(st.builds(Option, st.sampled_from(list(SUPPLY)), TIMES, st.booleans()))


@given(OPTIONS, st.integers(1, 8), st.floats(0, 100))
def test_nothing_costs_less_than_what_is_chosen(
    options: list[Option], gpus: int, behind: float
) -> None:
    dear = match.dearness({FAST: 1.0, MIDDLE: 1.5, SLOW: 5.0}, behind, 48)
    found = match.choose(options, gpus, dear)
    if not options:
        assert found is None
        return
    assert found is not None
    assert all(match.cost(found, gpus, dear) <= match.cost(each, gpus, dear) for each in options)


# ------------------------------------------------------------------------------ sharing


@pytest.mark.parametrize(
    ("mine", "other", "expected"),
    [(0.7, 0.7, True), (0.6, 0.6, False), (1.0, 0.3, True), (0.0, 1.0, False), (1.0, 0.0, False)],
)
def test_sharing_pays_when_clearly_more_than_one_gets_done(
    mine: float, other: float, expected: bool
) -> None:
    assert match.pays(mine, other) is expected


def test_speed_on_a_gpu_that_suits_badly_is_worth_less() -> None:
    # a newcomer to whom the GPU is half as good: 0.8 × 0.5 - 0.2 × 1
    assert match.gain(0.8, 0.8, 0.5, 1.0) == pytest.approx(0.2)


def test_the_survivor_goes_on_alone() -> None:
    # At half speed the first ends after 20 s; the other has done 10 of 30, and needs 20 more.
    assert match.together(10.0, 30.0, 0.5, 0.5) == (20.0, 40.0)
    assert match.together(30.0, 10.0, 0.5, 0.5) == (40.0, 20.0)


def test_one_joins_where_both_together_end_soonest() -> None:
    slow = Company(mine=100.0, other=100.0, share=0.65, others=0.65)
    good = Company(mine=100.0, other=100.0, share=0.9, others=0.9)
    assert match.join([slow, good]) == 1


def test_one_rather_waits_than_shares_for_nothing() -> None:
    assert match.join([Company(mine=10.0, other=10.0, share=0.5, others=0.5)]) is None
    assert match.join([Company(mine=10.0, other=10.0, share=0.0, others=0.0)]) is None
    assert match.join([]) is None


def test_those_who_share_go_on_sharing_unless_another_is_clearly_better() -> None:
    now = Company(mine=100.0, other=100.0, share=0.8, others=0.8, here=True)  # 125 + 25, less 1/5
    better = Company(mine=100.0, other=100.0, share=0.9, others=0.9)  # 111 + 11
    assert match.join([better, now]) == 1


@given(TIMES, TIMES, SHARES, SHARES)
def test_nobody_ends_sooner_in_company_and_no_work_is_lost(
    one: float, other: float, share: float, others: float
) -> None:
    first, second = match.together(one, other, share, others)
    assert first >= one * (1 - 1e-9)
    assert second >= other * (1 - 1e-9)
    # Until the first of them ends, both run at their shares, and then one at full speed.
    both = min(first, second)
    assert both * share + (first - both) == pytest.approx(one)
    assert both * others + (second - both) == pytest.approx(other)


@given(TIMES, TIMES, SHARES, SHARES)
def test_when_sharing_pays_the_later_of_two_ends_sooner_than_one_after_the_other(
    one: float, other: float, share: float, others: float
) -> None:
    if match.pays(share, others):
        assert max(match.together(one, other, share, others)) <= (one + other) * (1 + 1e-9)


# ------------------------------------------------------------- the earliest end of all


def test_each_goes_where_it_is_fast_compared_with_others() -> None:
    # Both are faster on the fast model; the first by four times, the second by a little.
    much, little = {FAST: 100.0, SLOW: 400.0}, {FAST: 100.0, SLOW: 120.0}
    price = match.prices([much, little], {FAST: 1.0, SLOW: 1.0}, {})
    assert match.home(much, price) == FAST
    assert match.home(little, price) == SLOW


def test_twice_as_slow_is_half_the_price() -> None:
    price = match.prices([{FAST: 10.0, SLOW: 20.0}] * 9, {FAST: 4.0, SLOW: 8.0}, {})
    assert price[FAST] == 1.0
    assert price[SLOW] == pytest.approx(0.5, rel=0.1)


def test_a_model_that_nobody_can_use_becomes_cheap_but_not_free() -> None:
    price = match.prices([{FAST: 10.0}], SUPPLY, {})
    assert price[FAST] == 1.0
    assert 0 < price[SLOW] < 1.0


def test_without_demand_or_supply_prices_stay() -> None:
    assert match.prices([], {FAST: 1.0}, {FAST: 0.7}) == {FAST: 0.7}
    assert match.prices([{FAST: 1.0}], {FAST: 0.0}, {}) == {}


def test_a_job_stays_on_a_model_that_suits_it_nearly_as_well() -> None:
    price = {FAST: 1.0, SLOW: 0.25}
    assert match.suits({FAST: 100.0, SLOW: 480.0}, price)[SLOW] == pytest.approx(100 / 120)
    assert match.home({FAST: 100.0, SLOW: 480.0}, price) == FAST
    assert match.home({FAST: 100.0, SLOW: 480.0}, price, now=SLOW) == SLOW
    assert match.home({FAST: 100.0, SLOW: 520.0}, price, now=SLOW) == FAST
    assert match.home({}, price) is None


def test_who_loses_least_takes_what_is_left() -> None:
    waiting = {"a": {FAST: 1.0, SLOW: 0.3}, "b": {FAST: 1.0, SLOW: 0.6}, "c": {FAST: 1.0}}
    assert match.least_loss(waiting, [SLOW]) == "b"
    assert match.least_loss(waiting, [FAST]) == "a"
    assert match.least_loss(waiting, []) is None
    assert match.least_loss({"c": {FAST: 1.0}}, [SLOW]) is None


@given(st.lists(BY_MODEL, max_size=20))
def test_the_dearest_costs_1_and_nothing_is_for_nothing(demands: list[dict[str, float]]) -> None:
    price = match.prices(demands, SUPPLY, {})
    assert price.keys() == SUPPLY.keys()
    assert max(price.values()) == 1.0
    assert min(price.values()) >= match.CHEAPEST


@given(st.lists(BY_MODEL, min_size=1, max_size=10), st.integers(2, 5))
def test_jobs_of_a_family_may_be_counted_together(
    demands: list[dict[str, float]], times: int
) -> None:
    apart = match.prices([each for each in demands for _ in range(times)], SUPPLY, {})
    sums = [{model: seconds * times for model, seconds in each.items()} for each in demands]
    assert match.prices(sums, SUPPLY, {}) == pytest.approx(apart)


@given(BY_MODEL, st.lists(BY_MODEL, max_size=10))
def test_a_model_suits_best_where_the_job_is_at_home(
    seconds: dict[str, float], others: list[dict[str, float]]
) -> None:
    price = match.prices([seconds, *others], SUPPLY, {})
    fitness = match.suits(seconds, price)
    at_home = match.home(seconds, price)
    assert at_home is not None
    assert fitness[at_home] == max(fitness.values()) == 1.0
    assert all(each > 0 for each in fitness.values())
