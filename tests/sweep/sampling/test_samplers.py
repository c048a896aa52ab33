"""Spaces and sequences of points: what a number stands for, and that numbers stay what they are."""

from itertools import islice, product
from statistics import NormalDist
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.sweep.sampling.samplers import length, new_points, points, sequence
from stoker.sweep.sampling.space import at, grid_values, size
from stoker.sweep.values import canonical

UNITS = st.floats(0, 1, exclude_max=True)


def sweep(
    method: str, samples: int | None = None, seed: int = 0, **parameters: Any
) -> dict[str, Any]:
    return {"method": method, "samples": samples, "seed": seed, "parameters": parameters}


def spec(distribution: str, **numbers: float) -> dict[str, Any]:
    return {"distribution": distribution, **numbers}


EVERY = {
    "lr": spec("log_uniform", min=1e-5, max=0.1),
    "x": spec("uniform", min=-1, max=1),
    "q": spec("q_uniform", min=0, max=10, q=2),
    "ql": spec("q_log_uniform", min=0.1, max=10, q=0.1),
    "n": spec("int_uniform", min=1, max=8),
    "nl": spec("int_log_uniform", min=1, max=1024),
    "g": spec("normal", mu=3, sigma=0.5),
    "gl": spec("log_normal", mu=0, sigma=1),
    "gq": spec("q_normal", mu=0, sigma=10, q=5),
    "gql": spec("q_log_normal", mu=0, sigma=1, q=0.25),
    "bs": {"values": [16, 32, 64]},
    "opt": {"values": ["sgd", "adam", None], "probabilities": [0.2, 0.8, 0]},
    "fixed": {"value": 1},
}

# ------------------------------------------------------------------------------- values


@given(st.sampled_from(sorted(EVERY)), UNITS)
def test_every_value_is_one_of_its_space(name: str, u: float) -> None:
    one, value = EVERY[name], at(EVERY[name], u)
    values = grid_values(one)
    if values is not None:
        assert value in list(values)
        assert type(value) in {type(v) for v in values}
    else:
        assert isinstance(value, float | int)
        assert one.get("min", value) <= value <= one.get("max", value)
    canonical({name: value})  # refuses what is not a number


@given(st.sampled_from(sorted(set(EVERY) - {"bs", "opt", "fixed"})), UNITS, UNITS)
def test_a_larger_share_gives_no_smaller_value(name: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert at(EVERY[name], low) <= at(EVERY[name], high)


@pytest.mark.parametrize(
    ("one", "first", "last"),
    [
        (spec("log_uniform", min=3e-5, max=0.7), 3e-5, 0.7),
        (spec("uniform", min=0.1, max=0.3), 0.1, 0.3),
        (spec("int_uniform", min=-3, max=7), -3, 7),
        (spec("int_log_uniform", min=1, max=1000), 1, 1000),
        (spec("q_uniform", min=1, max=10, q=4), 4, 8),
        (spec("q_uniform", min=0.1, max=0.3, q=0.1), 0.1, 0.3),
        (spec("q_log_uniform", min=8, max=1000, q=8), 8, 1000),
    ],
)
def test_the_ends_are_exact_and_of_the_right_kind(one: Any, first: float, last: float) -> None:
    ends = [at(one, 0.0), at(one, 1 - 2**-53), at(one, 1.0)]
    assert ends == [first, last, last]
    assert {type(end) for end in ends} == {type(first)}


def test_the_middle_of_each_distribution_is_where_it_belongs() -> None:
    assert at(spec("uniform", min=2, max=4), 0.5) == 3.0
    assert at(spec("log_uniform", min=1e-4, max=1e-2), 0.5) == 1e-3
    assert at(spec("normal", mu=3, sigma=2), 0.5) == 3.0
    assert at(spec("normal", mu=0, sigma=2), NormalDist().cdf(1)) == pytest.approx(2)
    assert at(spec("log_normal", mu=0, sigma=1), 0.5) == 1.0
    assert at(spec("q_normal", mu=7, sigma=1, q=5), 0.5) == 5
    assert at(spec("int_log_uniform", min=1, max=100), 0.5) in {9, 10}


def test_multiples_read_as_people_write_them() -> None:
    one = spec("q_uniform", min=0, max=1, q=0.1)
    assert [at(one, tenth / 10 + 0.01) for tenth in range(10)][3] == 0.3
    values = grid_values(one)
    assert values is not None
    assert list(values) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def test_the_tails_of_a_normal_distribution_are_numbers() -> None:
    for one in (spec("normal", mu=0, sigma=1), spec("log_normal", mu=800, sigma=1)):
        assert abs(at(one, 0.0)) < float("inf")
        assert abs(at(one, 1 - 2**-53)) < float("inf")


def test_choices_come_as_often_as_their_probabilities_say() -> None:
    one = {"values": ["a", "b", "c"], "probabilities": [0.5, 0, 0.5]}
    found = [at(one, i / 1000) for i in range(1000)]
    assert (found.count("a"), found.count("b"), found.count("c")) == (500, 0, 500)
    assert at({"values": ["a", "b"], "probabilities": [0.3, 0]}, 1 - 2**-53) == "a"


def test_the_size_of_a_space() -> None:
    assert size({}) == 1
    assert size({"a": {"values": [1, 2]}, "b": EVERY["n"], "c": EVERY["fixed"]}) == 16
    assert size({"a": EVERY["q"]}) == 6
    assert size({"a": {"values": [1]}, "b": EVERY["x"]}) is None
    assert size({"a": EVERY["gq"]}) is None
    assert size({"a": spec("uniform", min=2, max=2)}) == 1


# ------------------------------------------------------------------------- grid and list


def test_hyp_03_a_grid_goes_in_product_order_the_last_parameter_fastest() -> None:
    grid = sweep("grid", a={"values": [1, 2]}, c={"value": 9}, b={"values": ["x", "y", "z"]})
    expected = [{"a": a, "c": 9, "b": b} for a, b in product([1, 2], "xyz")]
    assert points(grid, 0, 100) == expected
    assert points(grid, 4, 100) == expected[4:]
    assert [list(point) for point in points(grid, 0, 1)] == [["a", "c", "b"]]


def test_hyp_05_samples_are_the_first_of_a_grid() -> None:
    grid = sweep("grid", samples=4, a={"values": [1, 2]}, b={"values": [1, 2, 3]})
    assert points(grid, 0, 100) == points({**grid, "samples": None}, 0, 4)
    assert length(grid) == 4
    assert length({**grid, "samples": 100}) == 6


def test_a_grid_of_a_million_millions_is_no_burden() -> None:
    grid = sweep("grid", **{f"p{i}": spec("int_uniform", min=0, max=999) for i in range(4)})
    assert size(grid["parameters"]) == 10**12
    assert points(grid, 123_456_789_012, 1) == [{"p0": 123, "p1": 456, "p2": 789, "p3": 12}]
    assert len(points(grid, 10**12 - 3, 10)) == 3


def test_a_grid_of_numbers_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="parameter x has infinitely many values"):
        points(sweep("grid", samples=3, x=EVERY["x"]), 0, 3)


def test_a_list_is_itself() -> None:
    rows = [{"a": 1}, {"a": 2, "b": "x"}, {"a": 3}]
    listed = {**sweep("list"), "points": rows}
    assert points(listed, 1, 10) == rows[1:]
    assert points({**listed, "samples": 2}, 0, 10) == rows[:2]
    assert list(sequence(listed, 2)) == rows[2:]
    assert list(new_points(listed, 0, canonical({"a": 1}).__eq__)) == rows[1:]


# ---------------------------------------------------------------------- random and sobol


@pytest.mark.parametrize("method", ["random", "sobol"])
def test_each_point_depends_on_its_number_alone(method: str) -> None:
    one = sweep(method, **EVERY)
    whole = points(one, 0, 40)
    assert points(one, 17, 5) == whole[17:22]
    assert list(islice(sequence(one, 17), 5)) == whole[17:22]
    assert points({**one, "samples": 20}, 15, 10) == whole[15:20]
    assert list(islice(sequence({**one, "samples": 20}, 15), 10)) == whole[15:25]
    assert points({**one, "seed": 1}, 0, 40) != whole
    assert [list(point) for point in whole] == [list(EVERY)] * 40


def test_a_parameter_more_leaves_the_others_as_they_were() -> None:
    less = points(sweep("random", x=EVERY["x"], lr=EVERY["lr"]), 0, 10)
    more = points(sweep("random", a=EVERY["n"], lr=EVERY["lr"], x=EVERY["x"]), 0, 10)
    assert [(p["x"], p["lr"]) for p in less] == [(p["x"], p["lr"]) for p in more]


def test_the_points_of_a_seed_never_change() -> None:
    """Sweeps are extended long after they were begun, perhaps by another release."""
    of_random = points(sweep("random", seed=7, lr=EVERY["lr"], bs=EVERY["bs"]), 1, 1)
    of_sobol = points(sweep("sobol", seed=7, lr=EVERY["lr"], bs=EVERY["bs"]), 1, 1)
    assert of_random == [{"lr": 1.967433278e-05, "bs": 16}]
    assert of_sobol == [{"lr": 6.370297848e-05, "bs": 16}]


def test_random_numbers_are_uniform() -> None:
    values = [p["x"] for p in points(sweep("random", x=spec("uniform", min=0, max=1)), 0, 4000)]
    cells = [sum(int(v * 16) == cell for v in values) for cell in range(16)]
    chi_squared = sum((found - 250) ** 2 / 250 for found in cells)
    assert chi_squared < 37.7  # one in a thousand; the seed is fixed


def test_sobol_fills_every_interval_of_every_parameter() -> None:
    names = [f"p{i}" for i in range(40)]
    one = sweep("sobol", c={"value": 0}, **{n: spec("uniform", min=0, max=1) for n in names})
    found = points(one, 0, 64)
    for name in names:
        assert sorted(int(p[name] * 64) for p in found) == list(range(64))


def test_sobol_goes_on_at_random_beyond_its_dimensions() -> None:
    names = [f"p{i}" for i in range(70)]
    parameters = {n: spec("uniform", min=0, max=1) for n in names}
    even = points(sweep("sobol", **parameters), 0, 16)
    random = points(sweep("random", **parameters), 0, 16)
    assert [[p[n] for n in names[64:]] for p in even] == [
        [p[n] for n in names[64:]] for p in random
    ]
    assert all(a[n] != b[n] for a, b in zip(even, random, strict=True) for n in names[:64])


def test_other_methods_have_no_points_of_their_own() -> None:
    with pytest.raises(ValueError, match="tpe"):
        points(sweep("tpe", x=EVERY["x"]), 0, 1)


# -------------------------------------------------------------------------------- fresh


@pytest.mark.parametrize("method", ["random", "sobol", "grid"])
def test_a_finite_space_is_tried_to_its_end_without_repeats(method: str) -> None:
    rare = {"values": [1, 2, 3], "probabilities": [0.999, 0.001, 0]}
    one = sweep(method, samples=12 if method == "grid" else 3, n=EVERY["n"], rare=rare)
    found = [canonical(point) for point in new_points(one, 0, lambda key: False)]
    assert len(found) == len(set(found)) == (12 if method == "grid" else 16)
    known = set(found[:5])
    again = [canonical(point) for point in new_points(one, 0, known.__contains__)]
    assert sorted(again) == sorted(found[5:])
    assert not list(new_points(one, 0, lambda key: True))


def test_what_is_known_is_passed_over_however_much_it_is() -> None:
    one = sweep("random", x=EVERY["x"])
    known = {canonical(point) for point in points(one, 0, 3000)}
    assert next(new_points(one, 0, known.__contains__)) == points(one, 3000, 1)[0]


def test_a_space_without_end_that_repeats_itself_ends() -> None:
    one = sweep("random", x=spec("q_normal", mu=0, sigma=0.01, q=1))
    assert list(new_points(one, 0, lambda key: False)) == [{"x": 0}]
