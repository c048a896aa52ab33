"""Early stopping: who goes on at a rung, and who does not."""

from collections import Counter
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.job import Job, Score
from stoker.core.policy.early import first_rung, hopeless, shares
from stoker.core.sweep import Board, Rule, Sweep, trial_of, worst
from stoker.sweep import validation
from stoker.sweep.definition.rungs import MAX_RUNGS, rungs
from stoker.sweep.definition.stopping import stop_of


class Field:
    """Trials that come to rungs, one after the other."""

    def __init__(self, rule: Rule, maximize: bool = False) -> None:
        self.sweep = Sweep(
            id=1, name="s", user="ada", identity="", definition="", method="random",
            created_at=0.0, metric="loss", maximize=maximize, rule=rule,
        )  # fmt: skip
        self.board = Board()
        self.jobs: dict[int, Job] = {}

    def comes(self, number: int, value: float | None) -> bool:
        """A trial comes to its next rung; whether it goes on."""
        job = self.jobs.get(number)
        if job is None:
            job = self.jobs[number] = Job(
                id=number + 2, spec="", name="s", user="ada", submitted_at=0.0, array=1,
                index=number, params=str(number), score=Score(),
            )  # fmt: skip
        rung = len(job.score.rungs)
        known = worst(self.sweep) if value is None else value
        job.score = Score(value=value, rungs=(*job.score.rungs, known))
        self.board.enter(trial_of(job), self.sweep)
        return not hopeless(self.sweep, self.board, job, rung)

    def all_come(self, values: list[float | None]) -> list[bool]:
        """One trial for each figure comes to its first rung."""
        begin = len(self.jobs)
        return [self.comes(begin + number, value) for number, value in enumerate(values)]


def halving(eta: float = 3, **more: object) -> Rule:
    return Rule("halving", (1.0, 3.0, 9.0, 27.0), eta=eta, **more)  # type: ignore[arg-type]


def median(trials: int = 1) -> Rule:
    return Rule("median", (1.0, 2.0, 3.0, 4.0), trials=trials)


RULES = [halving(), halving(2), halving(4.5), halving(trials=4), median(), median(5)]
FIGURES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80)


# -- successive halving -------------------------------------------------------------------


def test_the_first_goes_on_and_then_only_who_is_better_until_there_are_enough():
    assert Field(halving()).all_come([5, 6, 4, 7, 3]) == [True, False, True, False, True]


def test_of_nine_the_best_three_go_on():
    field = Field(halving())
    field.all_come([1, 2, 3, 4, 5, 6, 7, 8])
    assert field.comes(8, 2.5)
    assert not field.comes(9, 3.5)


def test_so_many_go_on_in_any_case_as_the_rule_waits_for():
    assert Field(halving(trials=4)).all_come([1, 2, 3, 4, 5]) == [True, True, True, False, False]


def test_each_rung_is_a_comparison_of_its_own():
    field = Field(halving())
    field.all_come([1, 2, 3, 4, 5, 6])
    assert field.comes(1, 9.0)  # the first that comes to the second rung
    assert field.comes(0, 8.0)
    assert not field.comes(2, 8.5)


@given(values=FIGURES, eta=st.sampled_from([2.0, 3.0, 4.0, 2.5]))
def test_whoever_goes_on_has_few_before_it_fewer_than_one_in_eta_or_none(values, eta):
    field = Field(halving(eta))
    for number, value in enumerate(values):
        better = sum(other < value for other in values[:number])
        assert field.comes(number, value) == (better < max((number + 1) // eta, 1))


@pytest.mark.parametrize("eta", [2, 3, 4])
def test_of_many_that_come_in_any_order_about_one_in_eta_goes_on(eta):
    figures = [float(number) for number in range(3000)]
    Random(eta).shuffle(figures)
    share = sum(Field(halving(eta)).all_come(list(figures))) / len(figures)
    assert 0.9 / eta < share < 1.1 / eta


# -- whatever the rule --------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=repr)
@given(values=FIGURES)
def test_the_best_so_far_is_never_stopped(rule, values):
    field, best = Field(rule), inf
    for number, value in enumerate(values):
        goes_on = field.comes(number, value)
        assert goes_on or value > best
        best = min(best, value)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@given(values=st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=1, max_size=40))
def test_more_is_better_is_the_mirror_of_less_is_better(rule, values):
    mirrored = [None if value is None else -value for value in values]
    assert Field(rule).all_come(values) == Field(rule, maximize=True).all_come(mirrored)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@given(value=st.floats(-1e6, 1e6), count=st.integers(1, 20))
def test_who_is_as_good_as_the_best_goes_on_whenever_it_comes(rule, value, count):
    assert all(Field(rule).all_come([value] * count))


@given(values=st.lists(st.integers(0, 3), min_size=2, max_size=30))
def test_of_equals_who_come_one_after_the_other_the_later_has_no_worse_chances(values):
    field = Field(halving())
    field.all_come(list(values))
    for value in range(4):
        first = field.comes(len(field.jobs), value)
        second = field.comes(len(field.jobs), value)
        assert second >= first


@pytest.mark.parametrize("rule", RULES, ids=repr)
@given(before=st.lists(st.one_of(st.none(), st.floats(-9, 9)), max_size=20))
def test_no_number_is_the_worst_and_is_stopped_as_soon_as_there_is_a_comparison(rule, before):
    field = Field(rule)
    field.all_come(before)
    assert field.comes(len(before), None) == (len(before) + 1 < rule.trials)


def test_those_that_went_astray_count_as_trials_that_were_worse():
    field = Field(halving())
    field.all_come([1.0, None, None, None, None])
    assert field.comes(5, 2.0)  # the second of six


# -- the median rule ----------------------------------------------------------------------


def test_whoever_is_worse_than_the_middle_of_the_others_is_stopped():
    field = Field(median())
    field.all_come([1, 2, 3, 4])
    assert field.comes(4, 2.5)
    assert not field.comes(5, 2.6)  # the middle one of five is 2.5


def test_the_best_that_a_trial_ever_had_counts():
    field = Field(median())
    for number, (first, second) in enumerate([(1, 1), (2, 2), (3, 3), (1.5, 9)]):
        field.comes(number, first)
        goes_on = field.comes(number, second)
    assert goes_on


def test_the_median_rule_waits_for_as_many_as_it_is_told():
    assert Field(median(5)).all_come([1, 2, 3, 4, 5, 6]) == [True] * 4 + [False] * 2


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60))
def test_the_median_rule_stops_the_worse_half_and_no_more(values):
    field = Field(median())
    field.all_come(list(values))
    ordered = sorted(values)
    assert field.comes(len(values), ordered[(len(ordered) - 1) // 2])
    field = Field(median())
    field.all_come(list(values))
    assert not field.comes(len(values), ordered[len(ordered) // 2] + 1)


# -- brackets -----------------------------------------------------------------------------


def test_without_brackets_everybody_is_compared_at_the_first_rung():
    assert {first_rung(halving(), number) for number in range(50)} == {0}


def test_brackets_have_the_shares_that_hyperband_gives_them():
    assert shares(3, 5) == [81, 34, 15, 8, 5]  # table 1 of Li et al. 2018
    assert shares(3, 1) == [1]


@pytest.mark.parametrize("brackets", [2, 3, 4])
def test_however_many_trials_there_are_each_bracket_has_its_share(brackets):
    rule, expected = halving(brackets=brackets), shares(3, brackets)
    for many in (20, 100, 1000):
        found = Counter(first_rung(rule, number) for number in range(many))
        for bracket, share in enumerate(expected):
            assert abs(found[bracket] - many * share / sum(expected)) <= 3


def test_a_trial_of_a_later_bracket_is_left_alone_until_then():
    rule = halving(brackets=2)
    late = next(number for number in range(99) if first_rung(rule, number) == 1)
    field = Field(rule)
    others = [number for number in range(20) if first_rung(rule, number) == 0]
    for number in others:
        field.comes(number, 1.0)
        field.comes(number, 1.0)
    assert field.comes(late, 5.0)
    assert not field.comes(late, 5.0)


def test_there_are_no_more_brackets_than_rungs():
    rule = Rule("halving", (1.0, 3.0), eta=3, brackets=9)
    assert {first_rung(rule, number) for number in range(99)} == {0, 1}
    assert first_rung(Rule("halving", (), brackets=3), 7) == 0


# -- rungs --------------------------------------------------------------------------------


def halved(**more: object) -> list[float]:
    return rungs({"kind": "asha", "min": 1, "eta": 3, "max": None, "brackets": 1, **more})


def test_the_rungs_of_halving_grow_by_eta_and_end_before_the_end():
    assert halved(max=81) == [1, 3, 9, 27]
    assert halved(max=82) == [1, 3, 9, 27, 81]
    assert halved(min=5, eta=2, max=100) == [5, 10, 20, 40, 80]
    assert halved(min=0.1, max=1) == [0.1, 0.3, 0.9]


@pytest.mark.parametrize("most", [10, 27, 100, 1000, 7, 0.3])
def test_a_first_rung_that_is_a_share_of_the_end_does_not_end_with_the_end(most):
    assert len(halved(min=most / 27, max=most)) == 3


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"kind": "asha", "max": 81}, [3, 9, 27]),
        ({"kind": "asha", "max": 27}, [1, 3, 9]),
        ({"kind": "asha", "max": 10}, [1, 3, 9]),
        ({"kind": "asha", "max": 81, "min": 1}, [1, 3, 9, 27]),
        ({"kind": "hyperband", "max": 81}, [1, 3, 9, 27]),
    ],
)
def test_where_nobody_names_the_first_rung_it_is_at_a_part_of_what_is_known(asked, expected):
    stop = stop_of(validation.Field("sweep.yaml", "stop", asked))
    assert stop is not None
    assert rungs(stop) == expected


def test_without_an_end_there_are_rungs_for_any_training():
    found = halved()
    assert found[:4] == [1, 3, 9, 27]
    assert 1e13 < found[-1] < 1e15
    assert len(halved(eta=1.1)) == MAX_RUNGS


@given(first=st.floats(1e-3, 1e4), every=st.floats(1e-3, 1e4))
def test_the_rungs_of_the_median_rule_rise_and_are_few(first, every):
    found = rungs({"kind": "median", "min": first, "every": every, "trials": 5})
    assert found[0] == pytest.approx(first)
    assert found[1] == pytest.approx(first + every)
    assert found == sorted(set(found))
    assert len(found) == MAX_RUNGS


def test_the_median_rule_looks_at_every_step_at_first():
    found = rungs({"kind": "median", "min": 5, "every": 1, "trials": 5})
    assert found[:20] == [float(step) for step in range(5, 25)]
    assert found[-1] > 10_000


# -- targets ------------------------------------------------------------------------------


def test_a_target_is_reached_when_the_best_is_no_worse():
    sweep = Field(halving()).sweep
    sweep.target = 0.5
    assert not sweep.reached
    for best, enough in ((0.6, False), (0.5, True), (0.1, True)):
        sweep.best = best
        assert sweep.reached is enough
    sweep.maximize = True
    assert not sweep.reached
    sweep.best = 0.5
    assert sweep.reached
