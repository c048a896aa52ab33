"""Early stopping: which trials continue at a rung."""

from collections import Counter
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.model.job import Job, Score
from stoker.core.model.sweep import EarlyStoppingRule, Sweep, TrialBoard, trial_of
from stoker.core.planner.early_stopping import bracket_shares, first_rung, should_stop
from stoker.sweep import validation
from stoker.sweep.definition.rungs import MAX_RUNGS, rungs
from stoker.sweep.definition.stopping import stop_of


class Trials:
    """Trials that reach rungs one by one."""

    def __init__(self, rule: EarlyStoppingRule, maximize: bool = False) -> None:
        self.sweep = Sweep(
            id=1, name="s", user="ada", identity="", definition="", method="random",
            created_at=0.0, metric="loss", maximize=maximize, rule=rule,
        )  # fmt: skip
        self.board = TrialBoard()
        self.jobs: dict[int, Job] = {}

    def reach_rung(self, number: int, value: float | None) -> bool:
        """Let a trial reach its next rung; return whether it continues."""
        job = self.jobs.get(number)
        if job is None:
            job = self.jobs[number] = Job(
                id=number + 2, spec="", name="s", user="ada", submitted_at=0.0, array=1,
                index=number, params=str(number), score=Score(),
            )  # fmt: skip
        rung = len(job.score.rungs)
        known = self.sweep.worst_value if value is None else value
        job.score = Score(value=value, rungs=(*job.score.rungs, known))
        self.board.update(trial_of(job))
        return not should_stop(self.sweep, self.board, job, rung)

    def reach_first_rung(self, values: list[float | None]) -> list[bool]:
        """Let a trial per value reach its first rung; return which continue."""
        begin = len(self.jobs)
        return [self.reach_rung(begin + number, value) for number, value in enumerate(values)]


def halving(eta: float = 3, **more: object) -> EarlyStoppingRule:
    return EarlyStoppingRule("halving", (1.0, 3.0, 9.0, 27.0), eta=eta, **more)  # type: ignore[arg-type]


def median(trials: int = 1) -> EarlyStoppingRule:
    return EarlyStoppingRule("median", (1.0, 2.0, 3.0, 4.0), trials=trials)


RULES = [halving(), halving(2), halving(4.5), halving(trials=4), median(), median(5)]
VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80)


# -- successive halving -------------------------------------------------------------------


def test_first_trial_continues_and_then_only_better_ones():
    assert Trials(halving()).reach_first_rung([5, 6, 4, 7, 3]) == [True, False, True, False, True]


def test_best_three_of_nine_continue():
    trials = Trials(halving())
    trials.reach_first_rung([1, 2, 3, 4, 5, 6, 7, 8])
    assert trials.reach_rung(8, 2.5)
    assert not trials.reach_rung(9, 3.5)


def test_first_trials_continue_until_the_minimum_is_reached():
    assert Trials(halving(trials=4)).reach_first_rung([1, 2, 3, 4, 5]) == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_rungs_are_compared_separately():
    trials = Trials(halving())
    trials.reach_first_rung([1, 2, 3, 4, 5, 6])
    assert trials.reach_rung(1, 9.0)  # the first that comes to the second rung
    assert trials.reach_rung(0, 8.0)
    assert not trials.reach_rung(2, 8.5)


@given(values=VALUES, eta=st.sampled_from([2.0, 3.0, 4.0, 2.5]))
def test_continuing_trial_is_among_the_best_share(values, eta):
    trials = Trials(halving(eta))
    for number, value in enumerate(values):
        better = sum(other < value for other in values[:number])
        assert trials.reach_rung(number, value) == (better < max((number + 1) // eta, 1))


@pytest.mark.parametrize("eta", [2, 3, 4])
def test_about_one_in_eta_continues_in_any_order(eta):
    figures = [float(number) for number in range(3000)]
    Random(eta).shuffle(figures)
    share = sum(Trials(halving(eta)).reach_first_rung(list(figures))) / len(figures)
    assert 0.9 / eta < share < 1.1 / eta


# -- whatever the rule --------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=repr)
@given(values=VALUES)
def test_best_trial_so_far_is_never_stopped(rule, values):
    trials, best = Trials(rule), inf
    for number, value in enumerate(values):
        goes_on = trials.reach_rung(number, value)
        assert goes_on or value > best
        best = min(best, value)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@given(values=st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=1, max_size=40))
def test_maximizing_mirrors_minimizing(rule, values):
    mirrored = [None if value is None else -value for value in values]
    assert Trials(rule).reach_first_rung(values) == Trials(rule, maximize=True).reach_first_rung(
        mirrored
    )


@pytest.mark.parametrize("rule", RULES, ids=repr)
@given(value=st.floats(-1e6, 1e6), count=st.integers(1, 20))
def test_trial_equal_to_the_best_continues(rule, value, count):
    assert all(Trials(rule).reach_first_rung([value] * count))


@given(values=st.lists(st.integers(0, 3), min_size=2, max_size=30))
def test_later_equal_trial_has_no_disadvantage(values):
    trials = Trials(halving())
    trials.reach_first_rung(list(values))
    for value in range(4):
        first = trials.reach_rung(len(trials.jobs), value)
        second = trials.reach_rung(len(trials.jobs), value)
        assert second >= first


@pytest.mark.parametrize("rule", RULES, ids=repr)
@given(before=st.lists(st.one_of(st.none(), st.floats(-9, 9)), max_size=20))
def test_diverged_trial_is_stopped_at_the_first_comparison(rule, before):
    trials = Trials(rule)
    trials.reach_first_rung(before)
    assert trials.reach_rung(len(before), None) == (len(before) + 1 < rule.trials)


def test_diverged_trials_count_as_worst():
    trials = Trials(halving())
    trials.reach_first_rung([1.0, None, None, None, None])
    assert trials.reach_rung(5, 2.0)  # the second of six


# -- the median rule ----------------------------------------------------------------------


def test_trial_below_the_median_is_stopped():
    trials = Trials(median())
    trials.reach_first_rung([1, 2, 3, 4])
    assert trials.reach_rung(4, 2.5)
    assert not trials.reach_rung(5, 2.6)  # the middle one of five is 2.5


def test_median_rule_compares_the_best_value_of_a_trial():
    trials = Trials(median())
    for number, (first, second) in enumerate([(1, 1), (2, 2), (3, 3), (1.5, 9)]):
        trials.reach_rung(number, first)
        goes_on = trials.reach_rung(number, second)
    assert goes_on


def test_median_rule_waits_for_the_minimum_of_trials():
    assert Trials(median(5)).reach_first_rung([1, 2, 3, 4, 5, 6]) == [True] * 4 + [False] * 2


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60))
def test_median_rule_stops_only_the_worse_half(values):
    trials = Trials(median())
    trials.reach_first_rung(list(values))
    ordered = sorted(values)
    assert trials.reach_rung(len(values), ordered[(len(ordered) - 1) // 2])
    trials = Trials(median())
    trials.reach_first_rung(list(values))
    assert not trials.reach_rung(len(values), ordered[len(ordered) // 2] + 1)


# -- brackets -----------------------------------------------------------------------------


def test_without_brackets_all_trials_are_compared_at_the_first_rung():
    assert {first_rung(halving(), number) for number in range(50)} == {0}


def test_brackets_have_the_shares_of_hyperband():
    assert bracket_shares(3, 5) == [81, 34, 15, 8, 5]  # table 1 of Li et al. 2018
    assert bracket_shares(3, 1) == [1]


@pytest.mark.parametrize("brackets", [2, 3, 4])
def test_each_bracket_has_its_share_of_any_number_of_trials(brackets):
    rule, expected = halving(brackets=brackets), bracket_shares(3, brackets)
    for many in (20, 100, 1000):
        found = Counter(first_rung(rule, number) for number in range(many))
        for bracket, share in enumerate(expected):
            assert abs(found[bracket] - many * share / sum(expected)) <= 3


def test_trial_of_a_later_bracket_is_not_compared_before():
    rule = halving(brackets=2)
    late = next(number for number in range(99) if first_rung(rule, number) == 1)
    trials = Trials(rule)
    others = [number for number in range(20) if first_rung(rule, number) == 0]
    for number in others:
        trials.reach_rung(number, 1.0)
        trials.reach_rung(number, 1.0)
    assert trials.reach_rung(late, 5.0)
    assert not trials.reach_rung(late, 5.0)


def test_number_of_brackets_is_limited_by_rungs():
    rule = EarlyStoppingRule("halving", (1.0, 3.0), eta=3, brackets=9)
    assert {first_rung(rule, number) for number in range(99)} == {0, 1}
    assert first_rung(EarlyStoppingRule("halving", (), brackets=3), 7) == 0


# -- rungs --------------------------------------------------------------------------------


def halved(**more: object) -> list[float]:
    return rungs({"kind": "asha", "min": 1, "eta": 3, "max": None, "brackets": 1, **more})


def test_rungs_of_halving_grow_by_eta_and_end_before_the_last_epoch():
    assert halved(max=81) == [1, 3, 9, 27]
    assert halved(max=82) == [1, 3, 9, 27, 81]
    assert halved(min=5, eta=2, max=100) == [5, 10, 20, 40, 80]
    assert halved(min=0.1, max=1) == [0.1, 0.3, 0.9]


@pytest.mark.parametrize("most", [10, 27, 100, 1000, 7, 0.3])
def test_first_rung_as_a_share_is_before_the_last_epoch(most):
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
def test_default_first_rung_is_a_share_of_the_known_length(asked, expected):
    stop = stop_of(validation.Field("sweep.yaml", "stop", asked))
    assert stop is not None
    assert rungs(stop) == expected


def test_rungs_without_a_known_length_cover_any_training():
    found = halved()
    assert found[:4] == [1, 3, 9, 27]
    assert 1e13 < found[-1] < 1e15
    assert len(halved(eta=1.1)) == MAX_RUNGS


@given(first=st.floats(1e-3, 1e4), every=st.floats(1e-3, 1e4))
def test_rungs_of_the_median_rule_ascend_and_are_few(first, every):
    found = rungs({"kind": "median", "min": first, "every": every, "trials": 5})
    assert found[0] == pytest.approx(first)
    assert found[1] == pytest.approx(first + every)
    assert found == sorted(set(found))
    assert len(found) == MAX_RUNGS


def test_median_rule_compares_at_every_step_at_first():
    found = rungs({"kind": "median", "min": 5, "every": 1, "trials": 5})
    assert found[:20] == [float(step) for step in range(5, 25)]
    assert found[-1] > 10_000


# -- targets ------------------------------------------------------------------------------


def test_target_is_reached_when_the_best_value_is_no_worse():
    sweep = Trials(halving()).sweep
    sweep.target = 0.5
    assert not sweep.target_reached
    for best, enough in ((0.6, False), (0.5, True), (0.1, True)):
        sweep.best = best
        assert sweep.target_reached is enough
    sweep.maximize = True
    assert not sweep.target_reached
    sweep.best = 0.5
    assert sweep.target_reached
