"""Which parameters matter, on made data where the answer is known."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.sweep.results.importance import importance
from stoker.sweep.sampling.samplers import points

PARAMETERS = {
    "lr": {"distribution": "log_uniform", "min": 1e-5, "max": 1e-1},
    "opt": {"values": ["sgd", "adam", "lion"]},
    "layers": {"distribution": "int_uniform", "min": 1, "max": 4},
    "flag": {"values": [True, False]},
    "noise": {"distribution": "uniform", "min": 0, "max": 1},
    "fixed": {"value": 3},
}


def made(count: int, seed: int = 0) -> list[tuple[dict[str, Any], float]]:
    definition = {"method": "random", "seed": seed, "samples": None, "parameters": PARAMETERS}
    rows = []
    for point in points(definition, 0, count):
        loss = 2 * (math.log10(point["lr"]) + 3) ** 2  # a valley: no straight line sees it
        loss += {"sgd": 0.0, "adam": 2.0, "lion": 1.0}[point["opt"]]
        rows.append((point, loss + 0.2 * point["layers"]))
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_the_order_is_that_of_the_effects(seed: int) -> None:
    found = importance(made(300, seed))
    assert list(found) == list(PARAMETERS)
    assert found["lr"] > 0.5
    assert found["lr"] > found["opt"] > found["layers"]
    assert found["noise"] < 0.05
    assert found["flag"] < 0.05
    assert found["fixed"] == 0


def test_a_parameter_that_decides_everything_has_the_whole_share() -> None:
    rows = [({"a": i % 3, "b": i}, float(i % 3)) for i in range(30)]
    found = importance(rows)
    assert found["a"] == 1.0
    assert found["b"] < 0.2


def test_the_scale_makes_no_difference() -> None:
    rows = made(60)
    logarithms = [({**p, "lr": math.log(p["lr"])}, value * 1e300) for p, value in rows]
    assert importance(logarithms) == pytest.approx(importance(rows))


def test_values_that_are_equal_stay_together() -> None:
    rows = [({"a": 0.0 if i % 2 else 1.0 + i}, float(i % 2)) for i in range(40)]
    assert importance(rows)["a"] > 0.8


def test_true_is_not_one_and_lists_are_values() -> None:
    rows = [({"a": value}, float(i)) for i in range(4) for value in (1, True, [1], None)]
    assert importance(rows)["a"] == 0.0


def test_too_few_trials_say_nothing() -> None:
    assert importance(made(3)) == {}
    assert importance([*made(3), ({"lr": 1.0}, math.nan), ({"lr": 1.0}, math.inf)]) == {}


def test_an_objective_that_never_changes_depends_on_nothing() -> None:
    assert set(importance([(params, 0.0) for params, _ in made(20)]).values()) == {0.0}


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(-1, 1), st.text())


@given(
    st.lists(
        st.tuples(st.dictionaries(st.sampled_from("abc"), VALUES), st.floats(allow_nan=True)),
        max_size=30,
    )
)
def test_every_share_is_one(rows: list[tuple[dict[str, Any], float]]) -> None:
    assert all(0.0 <= share <= 1.0 for share in importance(rows).values())
