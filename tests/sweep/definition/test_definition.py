"""Valid definitions, and the messages for invalid ones."""

import copy
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.sweep.definition.definition import KEYS, METHODS, InvalidSweep, check
from stoker.sweep.sampling import samplers

METRIC = {"name": "loss"}


def sweep(**changes: object) -> dict:
    base = {
        "method": "random",
        "parameters": {"lr": {"distribution": "log_uniform", "min": 1e-5, "max": 0.1}},
        "command": ["python", "train.py", "${args}"],
    }
    return {key: value for key, value in {**base, **changes}.items() if value is not ...}


def with_parameter(spec: object, **changes: object) -> dict:
    return sweep(parameters={"lr": spec}, **changes)


def said(raw: object) -> str:
    with pytest.raises(InvalidSweep) as caught:
        check(raw, "sweep.yaml")
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_is_left_out_is_filled_in() -> None:
    assert check(sweep()) == {
        "name": "train",
        "method": "random",
        "parameters": {"lr": {"distribution": "log_uniform", "min": 1e-5, "max": 0.1}},
        "samples": None,
        "seed": 0,
        "metric": None,
        "stop": None,
        "command": ["python", "train.py", "${args}"],
        "max_running": None,
    }


def test_a_metric_is_reported_minimized_and_its_last_value_counts() -> None:
    assert check(sweep(metric=METRIC))["metric"] == {
        "name": "loss",
        "goal": "minimize",
        "target": None,
        "summary": "last",
        "source": {"kind": "report"},
    }


@pytest.mark.parametrize(
    ("raw", "filled"),
    [
        ({"kind": "asha"}, {"kind": "asha", "min": 1, "eta": 3, "max": None, "brackets": 1}),
        (
            {"kind": "hyperband", "max": 81},
            {"kind": "hyperband", "min": 1, "eta": 3, "max": 81, "brackets": 3},
        ),
        ({"kind": "median"}, {"kind": "median", "min": 5, "trials": 5, "every": 1}),
    ],
)
def test_early_stopping_is_filled_in(raw: dict, filled: dict) -> None:
    assert check(sweep(metric=METRIC, stop=raw))["stop"] == filled


@pytest.mark.parametrize(
    ("raw", "checked"),
    [
        ({"min": 1, "max": 8}, {"distribution": "int_uniform", "min": 1, "max": 8}),
        ({"min": 0, "max": 1.0}, {"distribution": "uniform", "min": 0, "max": 1.0}),
        ({"distribution": "normal"}, {"distribution": "normal", "mu": 0, "sigma": 1}),
        ({"distribution": "q_log_normal"},
         {"distribution": "q_log_normal", "mu": 0, "sigma": 1, "q": 1}),
        ({"distribution": "q_uniform", "min": 0, "max": 10},
         {"distribution": "q_uniform", "min": 0, "max": 10, "q": 1}),
        ({"distribution": "categorical", "values": [1]}, {"values": [1]}),
        ({"distribution": "constant", "value": None}, {"value": None}),
        ({"values": [[1, 2], {"a": 1}], "probabilities": [0.25, 0.75]},
         {"values": [[1, 2], {"a": 1}], "probabilities": [0.25, 0.75]}),
    ],
)  # fmt: skip
def test_a_parameter_takes_its_shortest_form(raw: dict, checked: dict) -> None:
    assert check(with_parameter(raw))["parameters"]["lr"] == checked


@pytest.mark.parametrize(
    ("raw", "keyword"),
    [
        ([], "sweep.yaml: the definition is an empty list"),
        (sweep(parametres={}), "sweep.yaml: parametres is not known"),
        (sweep(method="bayes"),
         "sweep.yaml: method is 'bayes'"),
        (sweep(method=...),
         "sweep.yaml: method is empty"),
        (sweep(parameters={}),
         "sweep.yaml: parameters is empty"),
        (with_parameter({"min": "abc", "max": 1}),
         "sweep.yaml: parameters.lr.min is 'abc'"),
        (with_parameter({"min": True, "max": 1}),
         "sweep.yaml: parameters.lr.min is True"),
        (with_parameter({"min": 1}),
         "sweep.yaml: parameters.lr has no max"),
        (with_parameter({"min": 2, "max": 1}),
         "sweep.yaml: parameters.lr.min is 2"),
        (with_parameter({"distribution": "log_uniform", "min": 0, "max": 1}),
         "sweep.yaml: parameters.lr.min is 0"),
        (with_parameter({"distribution": "int_uniform", "min": 0, "max": 1.5}),
         "sweep.yaml: parameters.lr.max is 1.5"),
        (with_parameter({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0}),
         "sweep.yaml: parameters.lr.q is 0"),
        (with_parameter(0.1),
         "sweep.yaml: parameters.lr is 0.1"),
        (with_parameter({"value": 1, "values": [2]}),
         "sweep.yaml: parameters.lr has value as well as values"),
        (with_parameter({"vales": [1]}),
         "sweep.yaml: parameters.lr.vales is not known"),
        (with_parameter({}),
         "sweep.yaml: parameters.lr has no value, values, min and max, or distribution"),
        (with_parameter({"min": 0, "max": 1, "step": 2}),
         "sweep.yaml: parameters.lr.step is not known"),
        (with_parameter({"values": []}),
         "sweep.yaml: parameters.lr.values is an empty list"),
        (with_parameter({"values": [1, float("nan")]}),
         "sweep.yaml: parameters.lr.values[1] is nan"),
        (with_parameter({"values": [1, 2], "probabilities": [0.5]}),
         "sweep.yaml: parameters.lr.probabilities is a list"),
        (with_parameter({"values": [1, 2], "probabilities": [0.5, 0.4]}),
         "sweep.yaml: parameters.lr.probabilities add up to 0.9"),
        (with_parameter({"distribution": "unifrom", "min": 0, "max": 1}),
         "sweep.yaml: parameters.lr.distribution is 'unifrom'"),
        (with_parameter({"distribution": "uniform", "min": 0, "max": 1}, method="grid"),
         "sweep.yaml: parameters.lr is uniform, which has infinitely many values"),
        (sweep(parameters={"learning rate": {"value": 1}}),
         "sweep.yaml: parameters has the name 'learning rate'"),
        (sweep(parameters={f"p{i}": {"value": 1} for i in range(1001)}),
         "sweep.yaml: parameters has 1,001 names"),
        (with_parameter({"values": list(range(100_001))}),
         "sweep.yaml: parameters.lr.values[100000] is one value too many"),
        (with_parameter({"value": "a\0b"}),
         "sweep.yaml: parameters.lr.value has a zero byte"),
        (with_parameter({"value": "\udc80"}),
         "sweep.yaml: parameters.lr.value is not UTF-8: '\\udc80'"),
        (sweep(method="tpe"), "sweep.yaml: metric is missing"),
        (sweep(stop={"kind": "asha"}),
         "sweep.yaml: metric is missing"),
        (sweep(metric=METRIC, stop={"kind": "asha", "trials": 5}),
         "sweep.yaml: stop.trials is not known"),
        (sweep(metric=METRIC, stop={"kind": "median", "eta": 3}),
         "sweep.yaml: stop.eta is not known"),
        (sweep(metric=METRIC, stop={"kind": "asha", "eta": 1}),
         "sweep.yaml: stop.eta is 1"),
        (sweep(metric=METRIC, stop={"kind": "asha", "min": 9, "max": 9}),
         "sweep.yaml: stop.max is 9"),
        (sweep(metric=METRIC, stop={"kind": "asha", "brackets": 2}),
         "sweep.yaml: stop.brackets is 2"),
        (sweep(samples=0), "sweep.yaml: samples is 0"),
        (sweep(max_running=True),
         "sweep.yaml: max_running is True"),
        (sweep(seed=-1), "sweep.yaml: seed is -1"),
        (sweep(name="a b"),
         "sweep.yaml: name is 'a b'"),
        (sweep(command=...),
         "sweep.yaml: command or line is missing"),
        (sweep(line="x {lr}"),
         "sweep.yaml: command and line"),
        (sweep(command=["python", 3]), "sweep.yaml: command[1] is 3"),
        (sweep(metric={"name": ""}),
         "sweep.yaml: metric.name is ''"),
        (sweep(metric={"name": "loss", "goal": "min"}),
         "sweep.yaml: metric.goal is 'min'"),
        (sweep(points=[{"lr": 1}]),
         "sweep.yaml: points belong to method list, and the method is random"),
        (sweep(method="list", points=[{"lr": 1}]),
         "sweep.yaml: parameters cannot be combined with the points of method list"),
        (sweep(method="list", parameters=..., points=[{"lr": 1}, {"lr": 2, "bs": 3}]),
         "sweep.yaml: points[1] has bs, unlike the first row"),
        (sweep(method="list", parameters=..., points=[{"lr": 1}, {"bs": 2}]),
         "sweep.yaml: points[1] has bs, unlike the first row"),
        (sweep(method="list", parameters=..., points=[]),
         "sweep.yaml: points is an empty list"),
    ],
)  # fmt: skip
def test_an_invalid_definition_is_refused_with_its_file_and_key(raw: object, keyword: str) -> None:
    assert keyword in said(raw)


def test_lists_without_end_are_refused() -> None:
    endless: list = []
    endless.append(endless)
    assert "nested more than 20 deep" in said(with_parameter({"values": endless}))
    laughter: list = ["ha"]
    for _ in range(19):
        laughter = [laughter] * 10
    assert "one value too many" in said(with_parameter({"values": laughter}))


@pytest.mark.parametrize(
    "pattern",
    [r"loss=(?P<loss>\S+)", r"loss=(?P<value>\S+) (x)", r"loss=(\S+)", r"(?P<step>\d+) l=(\S+)"],
)
def test_a_pattern_shows_where_the_value_is(pattern: str) -> None:
    source = {"kind": "log", "pattern": pattern}
    assert check(sweep(metric={**METRIC, "source": source}))["metric"]["source"] == source


@pytest.mark.parametrize(
    ("source", "keyword"),
    [
        ({"kind": "log", "pattern": "loss="},
         "sweep.yaml: metric.source.pattern is 'loss='"),
        ({"kind": "log", "pattern": "(a)(b)"},
         "sweep.yaml: metric.source.pattern is '(a)(b)'"),
        ({"kind": "log", "pattern": "(?P<step>a)"},
         "sweep.yaml: metric.source.pattern is '(?P<step>a)'"),
        ({"kind": "log", "pattern": "(a"},
         "sweep.yaml: metric.source.pattern is not a valid regular expression"),
        ({"kind": "log"},
         "sweep.yaml: metric.source.pattern is empty"),
        ({"kind": "file", "pattern": "x"},
         "sweep.yaml: metric.source.pattern is not known"),
        ({"kind": "stdout"},
         "sweep.yaml: metric.source.kind is 'stdout'"),
    ],
)  # fmt: skip
def test_a_source_that_cannot_be_read_is_refused(source: dict, keyword: str) -> None:
    assert keyword in said(sweep(metric={**METRIC, "source": source}))


def test_a_grid_takes_what_can_be_counted_and_each_value_once() -> None:
    found = check(
        sweep(
            method="grid",
            parameters={
                "n": {"min": 1, "max": 2},
                "q": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.5},
                "x": {"values": [1, 1.0, 1, True]},
                "y": {"values": ["a", "b", "a"], "probabilities": [0.25, 0.5, 0.25]},
            },
        )
    )
    assert found["parameters"]["x"] == {"values": [1, 1.0, True]}
    assert found["parameters"]["y"] == {"values": ["a", "b"], "probabilities": [0.5, 0.5]}
    assert samplers.length(found) == 2 * 3 * 3 * 2


def test_rows_that_repeat_are_tried_once() -> None:
    rows = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 2.0}]
    found = check(sweep(method="list", parameters=..., points=rows))
    assert found["points"] == [{"a": 1, "b": 2}, {"a": 1, "b": 2.0}]
    assert list(found["points"][0]) == ["a", "b"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py"], "train"),
        (["FOO=1", "/usr/bin/env", "python3.11", "src/fit.py", "--x", "a/b"], "fit"),
        (["torchrun", "--nproc-per-node", "2", "train.py"], "train"),
        (["python", "-m", "project.training"], "training"),
        (["./run.sh"], "run"),
        (["${env}", "${interpreter}"], "sweep"),
        (["a b c"], "a-b-c"),
    ],
)
def test_a_sweep_is_called_like_its_program(command: list[str], name: str) -> None:
    assert check(sweep(command=command))["name"] == name


NUMBERS = st.integers(-1000, 1000) | st.floats(-1e6, 1e6)
SPECS = st.one_of(
    st.builds(lambda v: {"value": v}, st.none() | st.booleans() | NUMBERS | st.text(max_size=5)),
    st.builds(lambda v: {"values": v}, st.lists(NUMBERS, min_size=1, max_size=5)),
    st.builds(lambda a, b: {"min": min(a, b), "max": max(a, b)}, NUMBERS, NUMBERS),
    st.builds(lambda m: {"distribution": "normal", "mu": m}, NUMBERS),
)


@settings(max_examples=50)
@given(
    st.dictionaries(st.sampled_from(["a", "b.c", "d-e", "f"]), SPECS, min_size=1),
    st.sampled_from(["random", "sobol", "gp", "tpe"]),
)
def test_what_was_checked_stays_as_it_is(parameters: dict, method: str) -> None:
    raw = sweep(parameters=parameters, method=method, metric=METRIC)
    before = copy.deepcopy(raw)
    try:
        checked = check(raw)
    except InvalidSweep:
        assert any("\0" in str(spec.get("value")) for spec in parameters.values())
        return
    assert raw == before
    assert check(checked) == checked


JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8)
    | st.sampled_from(["report", "log", "asha", "median", "normal", "{lr}", "${args}", "minimize"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["kind", "name", "min", "max", "values", "value", "q", "lr", "source",
                         "distribution", "probabilities", "pattern", "eta", "goal"]),
        inner, max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=50)
@given(
    st.dictionaries(st.sampled_from(KEYS), JSON),
    st.sampled_from(METHODS),
    st.booleans(),
)
def test_whatever_is_given_is_understood_or_refused(raw: dict, method: str, named: bool) -> None:
    if named:
        raw |= {"method": method, "command": ["t"]}
    try:
        checked = check(raw)
    except InvalidSweep:
        assert said(raw).startswith("sweep.yaml: ")
    else:
        assert check(checked) == checked


def test_importing_the_language_is_cheap() -> None:
    code = (
        "import sys; from stoker.sweep.notations import overrides, points_table, wandb; "
        "print(*sorted({'json', 'dataclasses', 'typing', 'csv', 'difflib', 'ruamel', 'shlex', "
        "'subprocess', 'asyncio', 'decimal', 'random'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == []
