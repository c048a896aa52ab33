"""`stoker sweep`: parsing of command lines, and output."""

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from client.fake_daemon import FakeDaemon, view
from stoker.cli.options import sweep as sweep_words
from stoker.cli.submit import sweep_show
from stoker.client.errors import UsageError
from stoker.main import main

Captured = pytest.CaptureFixture[str]
RECEIPT: dict[str, Any] = {
    "sweep": 17, "label": "17", "name": "train", "added": 12, "retried": 1, "total": 20,
    "counts": {"waiting": 13, "done": 6, "stopped": 1}, "warnings": [],
}  # fmt: skip
SWEEP: dict[str, Any] = {
    "id": 17, "label": "17", "name": "train", "user": "ana", "method": "grid", "metric": "loss",
    "goal": "minimize", "state": "RUNNING", "issued": 20, "total": 20,
    "counts": {"waiting": 10, "running": 2, "done": 5, "stopped": 2, "failed": 1, "cancelled": 0},
    "best": {"value": 0.31, "id": 20, "label": "17_2", "params": {"lr": 0.1, "bs": 16}},
    "max_running": None, "priority": 0, "held": False, "note": None,
    "created_at": "2026-11-15T20:31:02.512Z", "ended_at": None,
    "foreseen": {"end": {
        "low": "2090-01-01T00:00:00Z", "likely": "2090-01-01T00:00:00Z", "high": None,
        "kind": "similar", "basis": "20 runs of train with other arguments",
    }},
}  # fmt: skip


def trial(number: int, value: float | None, state: str = "COMPLETED", **more: Any) -> Any:
    params = {"lr": [0.1, 0.01][number % 2], "bs": 16 * (number + 1), "seed": 1}
    return {
        "id": 18 + number, "label": f"17_{number}", "number": number, "state": state,
        "state_code": state[:2], "params": params, "value": value, "step": 9.0, "stopped": False,
        "attempt": 0, "started_at": "2026-11-15T20:31:02Z", "ended_at": None, "elapsed": 61.0,
        "cause": None, "node": "box", "devices": {}, **more,
    }  # fmt: skip


WHOLE: dict[str, Any] = {
    "sweep": SWEEP,
    "definition": {
        "method": "grid",
        "parameters": {"lr": {"values": [0.1, 0.01]}, "bs": {"values": [16, 32, 48, 64]},
                       "seed": {"value": 1}},
    },
    "trials": [
        trial(0, 0.9), trial(1, 0.4, stopped=True), trial(2, 0.31),
        trial(3, None, "FAILED", cause="exit 3"), trial(4, None, "PENDING", elapsed=None),
    ],
}  # fmt: skip


def definition(*argv: str) -> dict[str, Any]:
    return sweep_words.build_definition(sweep_words.parse_sweep(argv), [])


def refused(*argv: str) -> str:
    with pytest.raises(UsageError) as error:
        definition(*argv)
    assert "\n" not in error.value.message
    return error.value.message


# ----------------------------------------------------------------------- what is asked for


def test_hydra_overrides_stand_behind_the_command() -> None:
    found = definition("python", "train.py", "lr=0.1,1e-2", "db=mysql", "seed=range(0,3)")
    assert found["method"] == "grid"
    assert found["parameters"] == {"lr": {"values": [0.1, 0.01]}, "seed": {"values": [0, 1, 2]}}
    assert found["command"][:2] == ["python", "train.py"]
    assert "db=mysql" in found["command"]
    assert found["name"] == "train"


def test_parameters_without_a_placeholder_are_appended() -> None:
    from stoker.sweep.definition.template import command_of

    found = definition("--param", "lr=0.1,0.01", "--param", "wd=0", "python", "t.py", "--x", "{lr}")
    command = command_of(found, {"lr": 0.1, "wd": 0})
    assert command == ["python", "t.py", "--x", "0.1", "--wd=0"]


def test_one_word_is_a_shell_line() -> None:
    found = definition("--param", "lr=1,2", "python train.py --lr {lr} | tee log")
    assert found["line"] == "python train.py --lr {lr} | tee log"
    assert "command" not in found
    assert definition("--param", "lr=1,2", "--wrap", "echo {lr}")["line"] == "echo {lr}"


def test_one_word_that_is_a_program_is_run_with_its_parameters(tmp_path: Path) -> None:
    program = tmp_path / "go"
    program.write_text("#!/bin/sh\n")
    assert "Write: stoker sweep ... sh" in refused("--param", "lr=1,2", str(program))
    program.chmod(0o755)
    assert definition("--param", "lr=1,2", str(program))["command"] == [str(program)]


@pytest.mark.parametrize(
    ("argv", "method"),
    [
        (("--param", "lr=1,2"), "grid"),
        (("--param", "lr=1,2", "-n", "1"), "random"),
        (("--param", "lr=log_uniform(1e-5,1e-2)"), "random"),
        (("--param", "lr=1,2", "--method", "sobol"), "sobol"),
        (("--param", "lr=1,2", "--method", "bayes", "--minimize", "loss"), "tpe"),
    ],
)
def test_the_default_method_depends_on_the_parameters(argv: tuple[str, ...], method: str) -> None:
    assert definition(*argv, "python", "train.py")["method"] == method


def test_a_file_is_read_and_options_win(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "program: train.py\nmethod: random\nrun_cap: 5\nmetric: {name: loss, goal: minimize}\n"
        "parameters:\n  lr: {min: 1e-4, max: 0.1, distribution: log_uniform_values}\n"
    )
    found = definition(str(path))
    assert (found["method"], found["samples"], found["stop"]) == ("random", 5, None)
    changed = definition(
        "--gpus", "1", str(path), "-n", "50", "--seed", "7", "--maximize", "acc", "--stop", "asha",
        "--max-steps", "81", "--max-running", "4", "--name", "other", "--param", "bs=16,32",
    )  # fmt: skip
    assert (changed["samples"], changed["seed"], changed["max_running"]) == (50, 7, 4)
    assert (changed["metric"]["name"], changed["metric"]["goal"]) == ("acc", "maximize")
    assert changed["stop"]["max"] == 81
    assert (changed["name"], list(changed["parameters"])) == ("other", ["lr", "bs"])


def test_tables(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("lr,opt\n1e-4,adam\n0.1,sgd\n")
    found = definition("--csv", str(table), "python", "train.py")
    assert found["points"] == [{"lr": 1e-4, "opt": "adam"}, {"lr": 0.1, "opt": "sgd"}]
    table.write_text('{"lr": 1}\n{"lr": 2}\n')
    found = definition("--jsonl", str(table), "python", "train.py")
    assert found["points"] == [{"lr": 1}, {"lr": 2}]


def test_a_file_without_a_suffix_is_known_by_its_text(tmp_path: Path) -> None:
    path = tmp_path / "sweep"
    path.write_text("program: train.py\nmethod: grid\nparameters: {lr: {values: [1, 2]}}\n")
    assert definition(str(path))["name"] == "train"


@pytest.mark.parametrize(
    ("typed", "kept", "printed"),
    [
        ("python t.py -m lr=1,2", "python t.py lr=${param:lr}", "-m is ignored"),
        ("python -m pkg.t --multirun lr=1,2", "python -m pkg.t lr=${param:lr}", "--multirun is"),
        ("python t.py lr=1,2 hydra/launcher=stoker hydra.launcher.gpus=1",
         "python t.py lr=${param:lr}", "hydra.launcher.gpus=1 are ignored"),
        ("python t.py -m resnet lr=1,2", "python t.py -m resnet lr=${param:lr}", None),
        ("torchrun -m pkg.t lr=1,2", "torchrun -m pkg.t lr=${param:lr}", None),
    ],
)  # fmt: skip
def test_a_line_that_was_typed_for_hydra(typed: str, kept: str, printed: str | None) -> None:
    doubts: list[str] = []
    found = sweep_words.build_definition(sweep_words.parse_sweep(typed.split()), doubts)
    assert " ".join(found["command"]) == kept
    assert len(doubts) == (printed is not None)
    assert printed is None or printed in doubts[0]


def test_where_the_metric_is_found() -> None:
    base = ("--param", "lr=1,2", "--minimize", "loss")
    found = definition(*base, "--metric-regex", r"loss=(\S+)", "--summary", "best", "python", "t")
    assert found["metric"]["source"] == {"kind": "log", "pattern": r"loss=(\S+)"}
    assert found["metric"]["summary"] == "best"
    found = definition(*base, "--metric-file", "out.json", "--target", "0.1", "python", "t")
    assert found["metric"]["source"] == {"kind": "file", "path": "out.json"}
    assert found["metric"]["target"] == 0.1


@pytest.mark.parametrize(
    ("argv", "printed"),
    [
        ((), "No command given."),
        (("python", "train.py"), "No parameter varies."),
        (("cancel", "17"), "stoker cancel 17"),
        (("no-such.yaml",), "no-such.yaml cannot be read"),
        (("--csv", "no-such.csv", "x", "y"), "no-such.csv cannot be read"),
        (("--param", "lr", "x", "y"), "--param lr:"),
        (("--param", "lr=1,2", "--param", "lr=3,4", "x", "y"), "lr is swept twice"),
        (("--param", "lr=1,2", "echo hi"), "line does not contain {lr}"),
        (("--param", "lr=1,2", "echo {lr}", "--wait"), "options come before the shell"),
        (("--param", "lr=1,2", "--method", "magic", "x", "y"),
         "--method is 'magic'; one of grid, random, sobol, tpe, gp was expected."),
        (("--param", "lr=1,2", "--method", "tpe", "x", "y"),
         "--minimize NAME or --maximize NAME is missing; --method tpe needs one."),
        (("--param", "lr=1,2", "--stop", "asha", "x", "y"), "is missing; --stop needs one."),
        (("--param", "lr=1,2", "--stop", "so", "--metric", "a", "x", "y"), "--stop is 'so'"),
        (("--param", "lr=1,2", "--stop", "median", "--max-steps", "9", "--metric", "a", "x", "y"),
         "--max-steps cannot be used with --stop median"),
        (("--param", "lr=1,2", "--stop", "asha", "--min-steps", "9", "--max-steps", "3", "--metric",
          "a", "x", "y"), "--max-steps is 3; a number above"),
        (("--param", "lr=1,2", "--metric", "loss", "--metric-regex", "acc=(?P<acc>.*)", "x", "y"),
         "--metric-regex is 'acc=(?P<acc>.*)'; one group"),
        (("--param", "lr=1,2", "--max-running", "x", "x", "y"), "--max-running takes a whole"),
        (("--param", "lr=1,2", "--method", "list", "x", "y"), "--csv or --jsonl"),
        (("--param", "lr=1,2", "--eta", "4", "x", "y"), "need --stop asha"),
        (("--param", "lr=1,2", "--metric-regex", "x", "x", "y"), "No metric given."),
        (("--param", "lr=1,2", "--metric", "a", "--goal", "up", "x", "y"), "min or max"),
        (("--param", "lr=1,2", "--minimize", "a", "--maximize", "b", "x", "y"), "one metric"),
        (("--param", "lr=1,2", "-n", "many", "x", "y"), "--samples takes a whole number"),
        (("--param", "lr=1,2", "--csv", "x.csv", "x", "y"), "only one source of trials"),
    ],
)  # fmt: skip
def test_invalid_definitions_are_rejected(argv: tuple[str, ...], printed: str) -> None:
    assert printed in refused(*argv)


# -------------------------------------------------------------------------- the request


@pytest.fixture
def ready(fake: FakeDaemon) -> FakeDaemon:
    fake.answers["POST /v1/sweeps"] = (200, RECEIPT)
    fake.answers["GET /v1/sweeps"] = (200, {"sweeps": [SWEEP]})
    fake.answers["GET /v1/sweeps/17"] = (200, WHOLE)
    return fake


def test_the_id_alone_is_printed_and_the_rest_is_talk(ready: FakeDaemon, capsys: Captured) -> None:
    argv = ["sweep", "--gpus", "2", "-t", "1h", "--new", "--env", "A=1", "python", "t.py", "lr=1,2"]
    assert main(argv) == 0
    shown_text = capsys.readouterr()
    assert shown_text.out == "17\n"
    assert "sweep 17 (train): 12 new, 1 again, 7 done already of 20" in shown_text.err
    assert "stoker sweep show 17" in shown_text.err
    (body,) = ready.bodies("/v1/sweeps")
    assert body["options"] == {"gpus": "2", "time": "1h", "env": ["A=1"]}
    assert body["new"] is True
    assert body["key"]


def test_options_of_trials_come_from_variables_too(
    ready: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_GPUS", "1")
    monkeypatch.setenv("STOKER_ARRAY", "0-3")
    assert main(["sweep", "-Q", "python", "t.py", "lr=1,2"]) == 0
    assert ready.bodies("/v1/sweeps")[0]["options"] == {"gpus": "1"}


def test_a_file_from_stdin(
    ready: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    text = b"program: t.py\nmethod: grid\nparameters: {lr: {values: [1e-4, 1]}}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(["sweep", "-", "--json"]) == 0
    (body,) = ready.bodies("/v1/sweeps")
    assert body["definition"]["parameters"] == {"lr": {"values": [1e-4, 1]}}
    assert json.loads(capsys.readouterr().out)["id"] == 17


def test_a_dry_run_shows_commands(ready: FakeDaemon, capsys: Captured) -> None:
    commands = ["python t.py lr=1", "python t.py lr=2"]
    ready.answers["POST /v1/sweeps"] = (200, {**RECEIPT, "commands": commands})
    assert main(["sweep", "--dry-run", "python", "t.py", "lr=1,2"]) == 0
    shown_text = capsys.readouterr()
    assert shown_text.out.splitlines() == commands
    assert "... and 10 more" in shown_text.err
    assert "run 12 new trials and 1 again, of 20 in all" in shown_text.err


@pytest.mark.parametrize(
    ("argv", "shown", "printed"),
    [
        (("x=uniform(0,1)",), 5, ["this would run trials until it is cancelled"]),
        (("x=1,2", "--method", "random"), 2, ["this would run trials until all 2"]),
        (("x=uniform(0,1)", "-n", "3", "--method", "tpe", "--minimize", "loss"), 3,
         ["these are examples", "this would run 3 trials in all"]),
    ],
)  # fmt: skip
def test_a_dry_run_of_what_is_not_known_in_advance(
    ready: FakeDaemon, capsys: Captured, argv: tuple[str, ...], shown: int, printed: list[str]
) -> None:
    nothing = {**RECEIPT, "added": 0, "retried": 0, "commands": []}
    total = 3 if "-n" in argv else None
    ready.answers["POST /v1/sweeps"] = (200, {**nothing, "total": total, "counts": {}})
    assert main(["sweep", "--dry-run", "--param", *argv, "python", "t.py"]) == 0
    shown_text = capsys.readouterr()
    commands = shown_text.out.splitlines()
    assert len(set(commands)) == len(commands) == shown
    assert all(line.startswith("python t.py --x=") for line in commands)
    for word, line in zip(printed, shown_text.err.splitlines(), strict=True):
        assert word in line
    assert main(["sweep", "--param", *argv, "python", "t.py"]) == 0
    assert ("until it is cancelled" in capsys.readouterr().err) == (argv == ("x=uniform(0,1)",))


def test_a_misspelt_field_is_reported(ready: FakeDaemon, capsys: Captured) -> None:
    assert main(["sweep", "--param", "lr=1,2", "python", "t.py", "{lrr}"]) == 0
    assert "{lrr}" in capsys.readouterr().err


def test_a_program_called_show(ready: FakeDaemon) -> None:
    assert main(["sweep", "--", "show", "lr=1,2"]) == 0
    assert ready.bodies("/v1/sweeps")[0]["definition"]["command"][0] == "show"


def test_bad_input_is_a_usage_error(ready: FakeDaemon, capsys: Captured) -> None:
    assert main(["sweep", "python", "t.py", "lr=range(1,2,0)"]) == 2
    shown_text = capsys.readouterr()
    assert shown_text.out == ""
    assert shown_text.err.count("\n") == 1
    assert ready.requests == []


# ------------------------------------------------------------------------------- looking


def test_show_has_the_best_first_and_what_varies(ready: FakeDaemon, capsys: Captured) -> None:
    assert main(["sweep", "show", "17"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Sweep 17 train  RUNNING  grid")
    assert "7 of 20 done (2 stopped early), 2 running, 10 waiting, 1 failed" in lines[1]
    assert lines[2].startswith("  ends        in about ")
    assert lines[2].endswith(", from 20 runs of train with other arguments")
    assert "loss=0.31  (17_2: lr=0.1,bs=16)" in lines[3]
    table = lines[lines.index("") + 1 :]
    assert table[0].split() == ["TRIAL", "STATE", "LOSS", "STEP", "TIME", "lr", "bs", "CAUSE"]
    assert [line.split()[0] for line in table[1:]] == ["17_2", "17_1", "17_0", "17_4", "17_3"]
    assert "STOPPED" in table[2]
    assert "exit 3" in table[5]


def test_show_without_a_name_is_the_newest(ready: FakeDaemon, capsys: Captured) -> None:
    assert main(["sweep", "show", "--no-header"]) == 0
    assert capsys.readouterr().out.split()[0] == "17_2"


def test_the_largest_is_first_where_larger_is_better() -> None:
    reply = {**WHOLE, "sweep": {**SWEEP, "goal": "maximize"}}
    assert [found["number"] for found in sweep_show.ranked_trials(reply)] == [0, 1, 2, 4, 3]


def test_what_failed_on_its_way_is_not_compared(ready: FakeDaemon) -> None:
    trials = [trial(0, 0.9), trial(1, 0.1, "FAILED"), trial(2, 0.2, "CANCELLED"), trial(3, 0.5)]
    found = sweep_show.ranked_trials({**WHOLE, "trials": trials})
    assert [each["number"] for each in found] == [3, 0, 1, 2]


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        ({"kind": "report"}, "stoker.training.report(loss=...)"),
        ({"kind": "log", "pattern": "l=(.)"}, "no line of a log matches 'l=(.)': stoker logs 17_0"),
        ({"kind": "file", "path": "o.json"}, "o.json does not exist"),
    ],
)
def test_a_metric_that_no_trial_reports_is_noted(source: dict[str, str], printed: str) -> None:
    definition = {**WHOLE["definition"], "metric": {"name": "loss", "source": source}}
    silent = {**WHOLE, "definition": definition, "trials": [trial(0, None)]}
    assert "no trial has reported 'loss'" in sweep_show.missing_metric_text(silent)
    assert printed in sweep_show.missing_metric_text(silent)
    assert (
        sweep_show.missing_metric_text({**silent, "trials": [trial(0, None), trial(1, 0.5)]}) == ""
    )
    none = {**SWEEP, "counts": {"running": 1}}
    assert sweep_show.missing_metric_text({**silent, "sweep": none}) == ""


def test_show_as_csv_and_json(ready: FakeDaemon, capsys: Captured) -> None:
    assert main(["sweep", "show", "17", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["label"] for row in rows] == ["17_2", "17_1", "17_0", "17_4", "17_3"]
    assert (rows[0]["value"], rows[0]["lr"], rows[0]["seed"]) == ("0.31", "0.1", "1")
    assert main(["show", "17", "--json"]) == 3  # not a job of this daemon's
    capsys.readouterr()
    assert main(["sweep", "show", "17", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {
        "sweep", "definition", "trials", "importance",
    }  # fmt: skip


def test_the_report_is_written_where_it_is_wanted(
    ready: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    curve = {"series": {"loss": [[1, 0.5, 0.0], [2, 0.31, 1.0]]}}
    ready.answers["GET /v1/jobs/17_2/metrics"] = (200, curve)
    assert main(["sweep", "show", "17", "--html"]) == 0
    assert capsys.readouterr().out == "sweep-17.html\n"
    assert "[2,0.31]" in (tmp_path / "sweep-17.html").read_text()
    assert main(["sweep", "show", "17", "--html", "other.html"]) == 0
    assert (tmp_path / "other.html").read_text() == (tmp_path / "sweep-17.html").read_text()
    assert main(["sweep", "show", "17", "--html=/no/such/place.html"]) == 2


def test_the_list_of_sweeps(ready: FakeDaemon, capsys: Captured) -> None:
    assert main(["sweep", "list", "--all"]) == 0
    shown_text = capsys.readouterr().out
    assert "7/20 done, 2 run, 1 failed" in shown_text
    assert "loss=0.31" in shown_text
    assert ready.requests[-1][1].endswith("?all=1")


def test_edit(ready: FakeDaemon, capsys: Captured) -> None:
    ready.answers["POST /v1/sweeps/17"] = (200, {**SWEEP, "max_running": 2, "priority": -5})
    assert main(["sweep", "edit", "17", "--max-running", "2", "--priority", "-5"]) == 0
    assert ready.bodies("/v1/sweeps/17") == [{"max_running": 2, "priority": -5}]
    assert "at most 2 at a time, priority -5" in capsys.readouterr().err
    assert main(["sweep", "edit", "17"]) == 2
    assert main(["sweep", "edit", "--priority", "1"]) == 2


def test_the_queue_has_one_line_per_sweep(ready: FakeDaemon, capsys: Captured) -> None:
    jobs = [view(2, state="RUNNING", state_code="R", node="box"), view(1)]
    held = {**SWEEP, "label": "9", "state": "HELD", "held": True}
    reply = {"jobs": jobs, "sweeps": [SWEEP, held], "more": 0, "counts": {}}
    ready.answers["GET /v1/jobs"] = (200, reply)
    assert main(["queue"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["17", "2", "9", "1"]
    assert lines[1].endswith("7/20 done, 2 run, 1 failed, best loss=0.31")
    assert " in ~" in lines[1], "when its last trial should end"
    assert "fold=1" in ready.requests[-1][1]
    assert main(["queue", "-e"]) == 0
    assert "fold" not in ready.requests[-1][1]
    assert main(["queue", "17"]) == 0
    assert "fold" not in ready.requests[-1][1]


def test_trials_are_listed_with_their_parameters(ready: FakeDaemon, capsys: Captured) -> None:
    trials = [view(18, label="17_0", sweep=17, params={"lr": 1e-4, "opt": "adam"})]
    ready.answers["GET /v1/jobs"] = (200, {"jobs": trials, "more": 0, "counts": {}})
    assert main(["queue", "17"]) == 0
    assert "lr=0.0001,opt=adam" in capsys.readouterr().out


def test_show_of_a_sweep_is_its_table_and_of_a_trial_its_facts(
    ready: FakeDaemon, capsys: Captured
) -> None:
    worth = {"value": 0.5, "step": 9.0, "stopped": True}
    one = view(18, label="17_0", sweep=17, params={"lr": 1e-4}, objective=worth)
    ready.answers["GET /v1/jobs"] = (200, {"jobs": [one], "more": 4, "counts": {}})
    assert main(["show", "17"]) == 0
    assert capsys.readouterr().out.startswith("Sweep 17 train")
    ready.answers["GET /v1/jobs"] = (200, {"jobs": [one], "more": 0, "counts": {}})
    assert main(["show", "17_0"]) == 0
    shown_text = capsys.readouterr().out
    assert "lr=0.0001" in shown_text
    assert "0.5 at step 9, stopped early" in shown_text


def test_why_of_a_sweep_is_about_its_first_waiting_trial(
    ready: FakeDaemon, capsys: Captured
) -> None:
    over = {"label": "17_0", "state": "COMPLETED", "text": "it is over", "reason": None}
    waits = {"label": "17_4", "state": "PENDING", "text": "no GPU is free", "reason": "Resources"}
    ready.answers["GET /v1/jobs/17/why"] = (200, over)
    ready.answers["GET /v1/jobs/17_4/why"] = (200, waits)
    assert main(["why", "17"]) == 0
    shown_text = capsys.readouterr().out
    assert "Sweep 17 is RUNNING (7/20 done" in shown_text
    assert "Job 17_4 is PENDING (Resources)" in shown_text
    note = {**WHOLE, "sweep": {**SWEEP, "note": "optuna is not installed"}}
    ready.answers["GET /v1/sweeps/17"] = (200, note)
    assert main(["why", "17"]) == 0
    assert "optuna is not installed" in capsys.readouterr().out


def test_what_was_left_as_it_is_of_a_sweep_is_one_line(ready: FakeDaemon, capsys: Captured) -> None:
    skipped = [
        {"id": n, "label": f"17_{n}", "why": "it has already ended (done)"} for n in range(9)
    ]
    done = [{"id": 30, "label": "17_9", "state": "CANCELLED"}]
    ready.answers["POST /v1/cancel"] = (200, {"done": done, "skipped": skipped})
    assert main(["cancel", "17"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "stoker: cancelled 17_9"
    assert lines[1:] == ["stoker: 9 jobs of 17 not changed; 17_0: it has already ended (done)"]


@pytest.mark.parametrize(
    ("verb", "state", "printed"),
    [("hold", "PENDING", "held sweep 17 (60 waiting)"),
     ("cancel", "CANCELLED", "cancelled sweep 17 (60 trials)")],
)  # fmt: skip
def test_what_was_done_to_a_sweep_is_one_line(
    ready: FakeDaemon, capsys: Captured, verb: str, state: str, printed: str
) -> None:
    done = [{"id": 18 + n, "label": f"17_{n}", "state": state} for n in range(60)]
    over = [{"id": 90, "label": "17_99", "why": "it is over"}]
    ready.answers[f"POST /v1/{verb}"] = (200, {"done": done, "skipped": over, "sweeps": [17]})
    assert main([verb, "17"]) == 0
    assert capsys.readouterr().err == f"stoker: {printed}\n"
    ready.answers[f"POST /v1/{verb}"] = (200, {"done": done[:30], "skipped": []})
    assert main([verb, "17_1", "17_2"]) == 0
    assert "30 jobs of 17\n" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["last", "train"])
@pytest.mark.parametrize("has_trials", [True, False])
def test_a_sweep_is_waited_for_as_a_whole(
    ready: FakeDaemon, capsys: Captured, word: str, has_trials: bool
) -> None:
    jobs = [view(18, label="17_0", sweep=17)] if has_trials else []
    ready.answers["GET /v1/jobs"] = (200, {"jobs": jobs, "more": 3, "counts": {}})
    ready.answers[f"GET /v1/sweeps/{word}"] = (200, WHOLE)
    ready.answers["POST /v1/wait"] = (200, {"finished": True, "jobs": [], "notes": []})
    assert main(["wait", word]) == 0
    assert ready.bodies("/v1/wait")[0]["select"] == ["17"]


def test_a_sweep_that_cannot_go_on_ends_the_wait(ready: FakeDaemon, capsys: Captured) -> None:
    note = "sweep 17 cannot continue: optuna is not installed"
    ready.answers["POST /v1/wait"] = (200, {"finished": False, "jobs": [], "notes": [note]})
    assert main(["wait", "17"]) == 1
    assert capsys.readouterr().err == f"stoker: {note}\n"
    assert main(["wait", "17", "-Q"]) == 1
    assert main(["sweep", "--wait", "python", "t.py", "lr=1,2"]) == 1
    assert f"stoker: {note}\n" in capsys.readouterr().err


def test_completion(ready: FakeDaemon, capsys: Captured) -> None:
    def offered(*words: str) -> list[str]:
        assert main(["__complete", *words]) == 0
        return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]

    assert offered("sweep", "s") == ["show"]
    assert offered("sweep", "tr") == ["@files"]
    assert offered("sweep", "show", "") == ["17"]
    assert offered("sweep", "show", "--h") == ["--html"]
    assert "--max-running" in offered("sweep", "--max")
    ready.answers["GET /v1/jobs"] = (200, {"jobs": [], "sweeps": [SWEEP]})
    assert "17" in offered("cancel", "")


def test_sweep_and_its_subcommands_have_help(capsys: Captured) -> None:
    assert main(["sweep", "--help"]) == 0
    assert "--metric-regex" in capsys.readouterr().out
    assert main(["sweep", "show", "--help"]) == 0
    assert "--html" in capsys.readouterr().out
