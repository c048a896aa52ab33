"""Sweeps from Python, with a real daemon."""

import sys
from pathlib import Path

import pytest

import stoker

SOON = 40.0
SCORE = [
    sys.executable,
    "-c",
    "import sys, stoker.training as t; a, b = map(float, sys.argv[1:]); t.report(loss=a*b, step=1)",
    "{a}",
    "{b}",
]


def test_a_grid_from_beginning_to_end(client: stoker.Client) -> None:
    sweep = client.sweep(
        SCORE, parameters={"a": [3, 1, 2], "b": (5,)}, metric="loss", name="grid", cpus=1
    )
    assert (sweep.name, sweep.method, sweep.total, sweep.added) == ("grid", "grid", 3, 3)
    client.wait(sweep, timeout=SOON)
    found = client.sweep_show(sweep)
    assert (found.sweep.state, found.sweep.finished) == ("DONE", True)
    assert [trial.params for trial in found.trials] == [
        {"a": 3, "b": 5}, {"a": 1, "b": 5}, {"a": 2, "b": 5},
    ]  # fmt: skip
    assert [trial.value for trial in found.trials] == [15.0, 5.0, 10.0]
    assert found.sweep.best is not None
    assert found.sweep.best.params == {"a": 1, "b": 5}
    assert found.definition["metric"]["name"] == "loss"
    again = client.sweep(
        SCORE, parameters={"a": [3, 1, 2, 4], "b": (5,)}, metric="loss", name="grid", cpus=1
    )
    assert (again.id, again.added) == (sweep.id, 1)
    client.wait(again, timeout=SOON)
    assert again.id in [each.id for each in client.sweeps(all=True)]
    assert client.show(found.trials[0].label).params == {"a": 3, "b": 5}
    curve = client.metrics(found.trials[0], "loss")["loss"]
    assert [(point.step, point.value) for point in curve] == [(1, 15.0)]


def test_other_ways_to_say_it(client: stoker.Client, tmp_path: Path) -> None:
    single = client.sweep(["true", "{y}"], parameters={"y": 5}, hold=True)
    assert (single.method, single.total) == ("grid", 1)
    rows = client.sweep(["true", "{x}"], points=[{"x": 1}, {"x": 2}], hold=True)
    assert (rows.method, rows.total) == ("list", 2)
    drawn = client.sweep(
        "true {lr}", parameters={"lr": "log_uniform(1e-5,0.1)"}, samples=2, max_running=1, hold=True
    )
    assert (drawn.method, drawn.max_running) == ("random", 1)
    assert client.sweep_edit(drawn, max_running=2).max_running == 2
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "program: train.py\nmethod: grid\nparameters:\n  lr: {values: [1e-4, 0.1]}\n"
        "command: ['true', '${args}']\n"
    )
    read = client.sweep(file=file, hold=True)
    assert read.total == 2
    client.cancel(single, rows, drawn, read)
    assert client.sweep_show(rows).sweep.state == "CANCELLED"


def test_what_makes_no_sense(client: stoker.Client, tmp_path: Path) -> None:
    with pytest.raises(stoker.UsageError, match="Nothing varies"):
        client.sweep(["true"])
    with pytest.raises(stoker.UsageError, match="There is no command"):
        client.sweep(parameters={"a": [1]})
    with pytest.raises(stoker.UsageError, match="A goal needs a metric"):
        client.sweep(["true"], parameters={"a": [1]}, goal="max")
    with pytest.raises(stoker.UsageError, match=r"the sweep: parameters\.a"):
        client.sweep(["true"], parameters={"a": {"distribution": "sideways"}})
    with pytest.raises(stoker.UsageError, match="lr=cube"):
        client.sweep(["true"], parameters={"lr": "cube(1)"})
    with pytest.raises(stoker.UsageError, match="cannot be read"):
        client.sweep(file=tmp_path / "none.yaml")
    with pytest.raises(stoker.UsageError, match="Did you mean metric"):
        client.sweep(["true"], parameters={"a": [1]}, metirc="x")  # type: ignore[call-arg]
    with pytest.raises(stoker.UsageError, match="Did you mean gpus"):
        client.sweep(["true"], parameters={"a": [1]}, gpuss=1)  # type: ignore[call-arg]
    with pytest.raises(stoker.UsageError, match="A metric is a name"):
        client.sweep(["true"], parameters={"a": [1]}, metric=3)  # type: ignore[arg-type]
    with pytest.raises(stoker.NotFound, match="no sweep 4242"):
        client.sweep_show(4242)
