"""W&B's sweep files, unchanged."""

import math

import pytest

from stoker.sweep.definition.definition import InvalidSweep
from stoker.sweep.definition.template import command_of
from stoker.sweep.notations.wandb import read_yaml

HEAD = "program: train.py\nmethod: random\n"


def read(text: str) -> dict:
    return read_yaml(text, "sweep.yaml")


def one(spec: str) -> dict:
    """The parameter that a line of YAML describes."""
    return read(f"{HEAD}parameters:\n  x: {spec}\n")["parameters"]["x"]


def said(text: str) -> str:
    with pytest.raises(InvalidSweep) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_first_example_of_the_manual() -> None:
    found = read(
        """\
program: train.py
name: sweepdemo
method: bayes
metric:
  goal: minimize
  name: validation_loss
parameters:
  learning_rate:
    min: 0.0001
    max: 0.1
  batch_size:
    values: [16, 32, 64]
  epochs:
    values: [5, 10, 15]
  optimizer:
    values: ["adam", "sgd"]
"""
    )
    assert found == {
        "name": "sweepdemo",
        "method": "tpe",
        "parameters": {
            "learning_rate": {"distribution": "uniform", "min": 0.0001, "max": 0.1},
            "batch_size": {"values": [16, 32, 64]},
            "epochs": {"values": [5, 10, 15]},
            "optimizer": {"values": ["adam", "sgd"]},
        },
        "samples": None,
        "seed": 0,
        "metric": {
            "name": "validation_loss",
            "goal": "minimize",
            "target": None,
            "summary": "last",
            "source": {"kind": "report"},
        },
        "stop": None,
        "command": ["${env}", "${interpreter}", "train.py", "${args}"],
        "max_running": None,
    }
    params = {"learning_rate": 0.01, "batch_size": 16, "epochs": 5, "optimizer": "adam"}
    assert command_of(found, params) == [
        "/usr/bin/env", "python", "train.py",
        "--learning_rate=0.01", "--batch_size=16", "--epochs=5", "--optimizer=adam",
    ]  # fmt: skip


def test_parameters_in_parameters_get_dotted_names() -> None:
    found = read(
        HEAD
        + """\
parameters:
  top_level_param:
    min: 0
    max: 5
  nested_param:
    parameters:
      learning_rate:
        values: [0.01, 0.001]
      double_nested_param:
        parameters:
          x:
            value: 0.9
          y:
            value: 0.8
"""
    )
    assert found["parameters"] == {
        "top_level_param": {"distribution": "int_uniform", "min": 0, "max": 5},
        "nested_param.learning_rate": {"values": [0.01, 0.001]},
        "nested_param.double_nested_param.x": {"value": 0.9},
        "nested_param.double_nested_param.y": {"value": 0.8},
    }


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ("{distribution: constant, value: 2.71828}", {"value": 2.71828}),
        ("{distribution: categorical, values: [elu, relu]}", {"values": ["elu", "relu"]}),
        ("{values: [1, 2], probabilities: [0.1, 0.9]}",
         {"values": [1, 2], "probabilities": [0.1, 0.9]}),
        ("{distribution: categorical_w_probabilities, values: [a, b], probabilities: [0.5, 0.5]}",
         {"values": ["a", "b"], "probabilities": [0.5, 0.5]}),
        ("{distribution: uniform, min: 0, max: 1}",
         {"distribution": "uniform", "min": 0, "max": 1}),
        ("{min: 1e-4, max: 1e-1}", {"distribution": "uniform", "min": 0.0001, "max": 0.1}),
        ("{min: '1e-4', max: '1e-1'}", {"distribution": "uniform", "min": 0.0001, "max": 0.1}),
        ("{values: [1e-4, '1e-4', 1E3]}", {"values": [0.0001, "1e-4", 1000.0]}),
        ("{value: '3'}", {"value": "3"}),
        ("{value: 2020-01-01}", {"value": "2020-01-01"}),
        ("{distribution: log_uniform_values, min: 1e-5, max: 0.1}",
         {"distribution": "log_uniform", "min": 1e-5, "max": 0.1}),
        ("{distribution: inv_log_uniform_values, min: 1e-5, max: 0.1}",
         {"distribution": "log_uniform", "min": 1e-5, "max": 0.1}),
        ("{distribution: log_uniform, min: -9, max: '-2'}",
         {"distribution": "log_uniform", "min": math.exp(-9), "max": math.exp(-2)}),
        ("{distribution: inv_log_uniform, min: 2, max: 9}",
         {"distribution": "log_uniform", "min": math.exp(-9), "max": math.exp(-2)}),
        ("{distribution: q_uniform, min: 0, max: 256, q: 16}",
         {"distribution": "q_uniform", "min": 0, "max": 256, "q": 16}),
        ("{distribution: q_uniform, min: 0.4, max: 3.6}",
         {"distribution": "q_uniform", "min": 0, "max": 4, "q": 1}),
        ("{distribution: q_log_uniform, min: 0, max: 6}",
         {"distribution": "q_log_uniform", "min": 1, "max": 403, "q": 1}),
        ("{distribution: q_log_uniform, min: -3, max: 6, q: 8}",
         {"distribution": "q_log_uniform", "min": 8, "max": 400, "q": 8}),
        ("{distribution: q_log_uniform_values, q: 8, min: 32, max: 256}",
         {"distribution": "q_log_uniform", "min": 32, "max": 256, "q": 8}),
        ("{distribution: q_log_uniform_values, q: 0.5, min: 1.5, max: 8}",
         {"distribution": "q_log_uniform", "min": 1.5, "max": 8, "q": 0.5}),
        ("{distribution: normal, mu: 100, sigma: 10}",
         {"distribution": "normal", "mu": 100, "sigma": 10}),
        ("{distribution: log_normal}", {"distribution": "log_normal", "mu": 0, "sigma": 1}),
        ("{distribution: q_normal, q: 5}",
         {"distribution": "q_normal", "mu": 0, "sigma": 1, "q": 5}),
        ("{distribution: q_log_normal}",
         {"distribution": "q_log_normal", "mu": 0, "sigma": 1, "q": 1}),
        ("{distribution: int_uniform, min: 1, max: 8}",
         {"distribution": "int_uniform", "min": 1, "max": 8}),
    ],
)  # fmt: skip
def test_each_distribution_is_understood(spec: str, found: dict) -> None:
    assert one(spec) == found
    assert all(type(one(spec)[key]) is type(value) for key, value in found.items())


@pytest.mark.parametrize(
    ("stopping", "rungs"),
    [
        ("{type: hyperband, min_iter: 3}", {"min": 3, "eta": 3, "max": None}),
        ("{type: hyperband, min_iter: 5, eta: 2, strict: true}", {"min": 5, "eta": 2, "max": None}),
        ("{type: hyperband, s: 2, eta: 3, max_iter: 27}", {"min": 3, "eta": 3, "max": 27}),
        ("{type: hyperband, max_iter: 27, s: 9}", {"min": 1, "eta": 3, "max": 27}),
        ("{type: hyperband, max_iter: 5, s: 2, eta: 2}", {"min": 1.25, "eta": 2, "max": 5}),
        ("{type: hyperband, min_iter: 2, max_iter: 40}", {"min": 2, "eta": 3, "max": 40}),
    ],
)  # fmt: skip
def test_hyperband_stops_at_the_same_steps(stopping: str, rungs: dict) -> None:
    tail = f"metric: {{name: acc, goal: maximize, target: 0.95}}\nearly_terminate: {stopping}\n"
    found = read(f"{HEAD}parameters: {{x: {{value: 1}}}}\n{tail}")
    assert found["stop"] == {"kind": "asha", "brackets": 1, **rungs}
    assert (found["metric"]["goal"], found["metric"]["target"]) == ("maximize", 0.95)


def test_what_says_where_the_sweep_is_kept_changes_nothing() -> None:
    plain = f"{HEAD}parameters: {{x: {{value: 1}}}}\n"
    more = (
        "project: p\nentity: e\ndescription: |\n  long\ncontroller: {type: local}\nkind: sweep\n"
        "early_terminate:\n"
    )
    assert read(plain + more) == read(plain)


def test_our_own_keys_stand_beside() -> None:
    found = read(
        "program: ./fit.sh\nmethod: sobol\nrun_cap: 20\nmax_running: 4\nseed: 7\n"
        "parameters: {x: {min: 0.0, max: 1}}\n"
        "metric: {name: loss, regex: 'loss=(\\S+)', impute: worst}\nstop: {kind: median}\n"
    )
    assert (found["samples"], found["max_running"], found["seed"]) == (20, 4, 7)
    assert found["metric"]["source"] == {"kind": "log", "pattern": "loss=(\\S+)"}
    assert found["stop"]["kind"] == "median"
    assert found["command"] == ["./fit.sh", "${args}"]
    assert found["name"] == "fit"


def test_json_is_yaml() -> None:
    found = read(
        '{"program": "train.py", "method": "grid", "parameters": {"x": {"values": [1e-4]}}}'
    )
    assert found["parameters"] == {"x": {"values": [0.0001]}}


def test_a_command_of_its_own() -> None:
    found = read(
        """\
program: train.py
method: grid
parameters:
  batch_size:
    value: 8
  lr:
    value: 0.0001
command:
  - ${env}
  - python3
  - ${program}
  - "-b"
  - your-training-config
  - 3
  - ${args_no_hyphens}
"""
    )
    assert command_of(found, {"lr": 0.0001, "batch_size": 8}) == [
        "/usr/bin/env", "python3", "train.py", "-b", "your-training-config", "3",
        "batch_size=8", "lr=0.0001",
    ]  # fmt: skip


def test_a_command_that_leaves_the_parameters_out_gets_none() -> None:
    tail = "parameters: {x: {value: 1}}\n"
    found = read(f"{HEAD}command: [python, '${{program}}']\n{tail}")
    assert command_of(found, {"x": 1}) == ["python", "train.py"]
    found = read(f"{HEAD}command: python train.py --fast\n{tail}")
    assert command_of(found, {"x": 1}) == ["python", "train.py", "--fast", "--x=1"]


def test_a_name_is_cleaned_so_that_it_can_be_typed() -> None:
    tail = "parameters: {x: {value: 1}}\n"
    assert read(f"{HEAD}name: My sweep (lr)!\n{tail}")["name"] == "My-sweep-lr"


TAIL = "parameters: {x: {value: 1}}\n"


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("", "sweep.yaml: the file is empty"),
        ("a: [1,\n", "sweep.yaml, line 2: this is not YAML"),
        ("method: grid\nmethod: random\n", "sweep.yaml, line 2: the key method is given twice"),
        (f"{HEAD}{TAIL}early_terminate: {{type: envelope}}\n",
         "sweep.yaml: early_terminate.type envelope is not supported"),
        (f"{HEAD}{TAIL}early_terminate: {{type: hyperband}}\n",
         "sweep.yaml: early_terminate has neither min_iter nor max_iter with s"),
        (f"{HEAD}{TAIL}early_terminate: {{type: hyperband, min_iter: 3}}\n",
         "sweep.yaml: metric is missing"),
        (f"{HEAD}{TAIL}run_cap: many\n",
         "sweep.yaml: run_cap is 'many'"),
        (f"{HEAD}{TAIL}run_cap: 3\nsamples: 3\n",
         "sweep.yaml: run_cap and samples mean the same"),
        (f"{HEAD}{TAIL}runcap: 3\n", "sweep.yaml: runcap is not known"),
        (f"method: grid\n{TAIL}",
         "sweep.yaml: program is missing"),
        (f"program: a.py\nmethod: custom\n{TAIL}",
         "sweep.yaml: method is 'custom'"),
        (f"program: a.py\nmethod: bayes\n{TAIL}",
         "sweep.yaml: metric is missing"),
        ((f"{HEAD}{TAIL}metric: {{name: loss}}\nearly_terminate: {{type: hyperband, min_iter: 9, "
         "max_iter: 3}\n"),
         "sweep.yaml: early_terminate.max_iter is 3"),
        (f"{HEAD}{TAIL}metric: {{name: loss, regex: 'acc=(?P<acc>.*)'}}\n",
         "sweep.yaml: metric.regex is 'acc=(?P<acc>.*)'"),
        (f"{HEAD}parameters: {{x: {{distribution: beta}}}}\n",
         "sweep.yaml: parameters.x.distribution beta is not supported"),
        (f"{HEAD}parameters: {{x: {{distribution: log_uniform, min: 1, max: 1000}}}}\n",
         "sweep.yaml: parameters.x.max is 1000"),
        (f"{HEAD}parameters: {{x: {{min: abc, max: 1}}}}\n",
         "sweep.yaml: parameters.x.min is 'abc'"),
        (f"{HEAD}parameters: {{a.b: {{value: 1}}, a: {{parameters: {{b: {{value: 2}}}}}}}}\n",
         "sweep.yaml: parameters.a.parameters.b is the second parameter with the name a.b"),
        (f"method: grid\ncommand: ['${{program}}']\n{TAIL}",
         "sweep.yaml: command has ${program}, but the definition has no program"),
        (f"{HEAD}{TAIL}metric: {{name: a, regex: '(a)', file: b}}\n",
         "sweep.yaml: metric has regex and file"),
        (f"{HEAD}{TAIL}command: [python, {{a: 1}}]\n",
         "sweep.yaml: command[1] is a table of keys"),
        (f"{HEAD}{TAIL}1: 2\n", "sweep.yaml: the file has the key 1"),
        ("a: !!python/object:os.system x",
         "sweep.yaml, line 1: this is not YAML"),
        ("a: " + "[" * 1000, "sweep.yaml is not a sweep: it is nested too deep"),
    ],
)  # fmt: skip
def test_an_invalid_file_is_refused_with_its_key(text: str, keyword: str) -> None:
    assert keyword in said(text)


def test_files_that_say_they_are_older_are_read_all_the_same() -> None:
    found = read(f"%YAML 1.1\n---\n{HEAD}parameters: {{x: {{values: [1e-4]}}}}\n")
    assert found["parameters"] == {"x": {"values": [0.0001]}}


def test_what_is_probably_not_meant_is_doubted() -> None:
    limits = "min: 1e-4, max: 0.1"
    kinds = ", ".join(
        f"{name}: {{distribution: {kind}, {limits}}}"
        for name, kind in (("a", "log_uniform"), ("b", "log_uniform_values"))
    )
    doubts: list[str] = []
    text = (
        f"program: t.py\nmethod: random\nparameters: {{{kinds}}}\njob: me/train:v1\nimage_uri: x\n"
    )
    read_yaml(text, "sweep.yaml", doubts=doubts)
    assert doubts == [
        (
            "sweep.yaml: parameters.a runs from 1.0001 to 1.10517, since W&B's log_uniform takes "
            "exponents of e; if 0.0001 and 0.1 are the limits themselves, use log_uniform_values."
        ),
        "sweep.yaml: W&B keys without effect here: job, image_uri.",
    ]
