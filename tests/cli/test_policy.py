"""`stoker policy`: show, set and reject policies; new and old homes."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client.fake_daemon import FakeDaemon
from simulation.state_comparison import fold
from stoker import places
from stoker.cli.output.times import absolute
from stoker.core import events as e
from stoker.core.model.units import BadValue
from stoker.core.policies.parameters import RANGES, parameters_of, read_parameters
from stoker.core.policies.policy import POLICIES
from stoker.main import main
from stoker.store.sqlite import SqliteStore
from store.rows import batch
from store.test_golden import JOURNALS, read

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Captured = pytest.CaptureFixture[str]
AUTO = {"own": False, "chosen": "auto", "policy": "backfill", "changed": {}}


@pytest.fixture
def two(stoker: Run) -> Run:
    """The command, with a daemon that has two declared GPUs."""
    started = stoker("daemon", "start", "--resources", "{gpu:2,cpu:8}")
    assert started.returncode == 0, started.stderr
    return stoker


def views(stoker: Run, *more: str) -> dict[str, dict[str, Any]]:
    shown = json.loads(stoker("policy", "--json", *more, check=True).stdout)
    return {view["queue"]: view for view in shown}


def why(stoker: Run, label: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stoker("why", label, "--json", check=True).stdout)
    return found


# -- a real daemon ----------------------------------------------------------------------------


@pytest.mark.e2e
def test_a_new_home_uses_auto_and_names_the_policy_in_effect(two: Run) -> None:
    found = views(two)
    assert (found["*"]["chosen"], found["*"]["own"]) == ("auto", True)
    assert found["default"]["policy"] == "backfill"
    assert found["default"]["why"] == "backfill until a job reports epochs"
    heading, row, others = two("policy").stdout.splitlines()
    assert heading.split() == [
        "QUEUE",
        "POLICY",
        "SINCE",
        "PENDING",
        "RUNNING",
        "PARAMETERS",
        "ABOUT",
    ]
    assert row.split()[:3] == ["default", "backfill", "(auto)"]
    assert others.split()[:2] == ["*", "auto"]
    assert "policy      auto" in two("daemon", "status").stdout
    assert json.loads(two("daemon", "status", "--json").stdout)["policy"] == "auto"


@pytest.mark.e2e
def test_a_choice_counts_at_once_and_after_a_restart(two: Run) -> None:
    two("submit", "--gpus", "2", "sleep", "600", check=True)
    for limit in ("5h", "1h"):
        two("submit", "--gpus", "2", "--time", limit, "sleep", "600", check=True)
    assert why(two, 3)["position"] == 2
    done = two("policy", "planner", "quantum=20m", "hysteresis=3")
    assert done.returncode == 0, done.stderr
    assert "auto → planner with quantum=20m hysteresis=3; 2 pending jobs" in done.stderr
    first = why(two, 3)
    assert (first["position"], first["standing"]["policy"]) == (1, "planner")
    text = two("why", 2).stdout
    assert "5 h × 2 GPUs = 10 GPU-hours" in text
    assert "  3  60 min × 2 GPUs = 2 GPU-hours" in text
    assert "What would let it start:\n  job 3 starts first, ahead of it" in text
    assert "cannot be preempted and resumed" in two("why", 1).stdout
    chosen = views(two)["default"]["since"]
    again = two("policy", "planner", "quantum=20m", "hysteresis=3").stderr
    assert "nothing changed" in again
    assert two("daemon", "restart").returncode == 0
    found = views(two)["default"]
    assert (found["policy"], found["waiting"], found["running"]) == ("planner", 2, 1)
    assert found["since"] == chosen
    assert found["parameters"]["quantum"] == 1200.0
    assert why(two, 3)["position"] == 1
    two("policy", "--reset", check=True)
    assert views(two)["default"]["policy"] == "backfill"
    assert why(two, 3)["position"] == 2


@pytest.mark.e2e
def test_one_queue_may_have_its_own(two: Run) -> None:
    assert "is not defined yet" in two("policy", "fifo", "--queue", "night").stderr
    assert views(two)["night"]["policy"] == "fifo"
    assert views(two)["night"]["since"] > views(two)["default"]["since"]
    shown_text = two("policy", "tiresias").stderr
    assert shown_text.startswith("stoker: all queues but night: auto → tiresias; no pending jobs")
    found = views(two)
    assert (found["night"]["policy"], found["default"]["policy"]) == ("fifo", "tiresias")
    assert found["night"]["since"] < found["default"]["since"] == found["*"]["since"]
    assert list(views(two, "-p", "night")) == ["night"]
    shown_text = two("policy", "--reset", "-p", "night").stderr
    assert shown_text.startswith("stoker: queue night: fifo → tiresias; ")
    assert "night" not in views(two)


@pytest.mark.e2e
def test_invalid_policies_are_rejected_and_change_nothing(two: Run) -> None:
    before = views(two)
    for words, shown_text in (
        (["plannr"], "There is no policy 'plannr'. Did you mean planner?"),
        (["planner", "quantm=20m"], "There is no parameter 'quantm'. Did you mean quantum?"),
        (["planner", "quantum=20"], "quantum=20 has no unit. Write quantum=20m or quantum=20s."),
        (["planner", "quantum=soon"], "quantum 'soon' is not a duration"),
        (["planner", "quantum=400d"], "quantum must be between 0 s and 30 days, not 400d."),
        (["planner", "hysteresis=0.5"], "hysteresis must be between 1 and 1000, not 0.5."),
        (["planner", "hysteresis=nan"], "hysteresis must be between 1 and 1000, not nan."),
        (["planner", "hysteresis=a"], "hysteresis takes a number, not 'a'."),
        (["fifo", "quantum=20m"], "fifo has no parameter quantum."),
        (["fifo", "skip"], "Give one policy, not fifo and skip."),
        (["quantum=20m"], "No policy given."),
        (["planner", "fair=1", "fair=2"], "fair is given twice."),
        (["--reset", "fifo"], "--reset takes no policy"),
        (["--list", "fifo"], "Write stoker policy --list"),
    ):
        done = two("policy", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"stoker: {shown_text}"), done.stderr
        assert done.stderr.count("\n") == 1
    assert two("policy", "fifo", "--queue", "a b").returncode == 2
    assert views(two) == before


@pytest.mark.e2e
@pytest.mark.parametrize("name", JOURNALS)
def test_an_old_home_keeps_its_policy(stoker: Run, home: Path, name: str) -> None:
    journal = read(name)
    begin = next(n for n, event in enumerate(journal) if isinstance(event, e.SpecRecorded))
    old = [event for event in journal[:begin] if not isinstance(event, e.PolicyChosen)]
    Path(places.state_dir()).mkdir(mode=0o700, parents=True)
    store = SqliteStore(places.journal_path())
    store.acquire_term()
    store.commit(batch(events=old, rest=fold(old).record), sync=True)
    store.close()
    stoker("daemon", "start", check=True)
    found = views(stoker)
    assert not any(view["own"] or view["since"] for view in found.values())
    assert {view["policy"] for view in found.values()} == {"backfill"}
    assert "night" in found


# -- what is typed and said -------------------------------------------------------------------


def test_every_policy_is_listed_with_a_line(fake: FakeDaemon, capsys: Captured) -> None:
    policies = [{"name": "fifo", "about": "in order", "parameters": {"fair": 0.0}}]
    fake.answers["GET /v1/policies"] = (200, {"queues": [], "policies": policies})
    assert main(["policy", "--list"]) == 0
    assert capsys.readouterr().out == "POLICY  ABOUT\nfifo    in order\n"
    assert main(["policy", "--list", "-v", "--no-header"]) == 0
    assert capsys.readouterr().out == "fifo  fair=0  in order\n"
    assert main(["policy", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == policies
    assert main(["__complete", "policy", "f"]) == 0
    assert capsys.readouterr().out == "fifo\tin order\n"


def test_the_time_since_which_a_policy_applies_is_shown(fake: FakeDaemon, capsys: Captured) -> None:
    view = {
        **AUTO, "queue": "q", "about": "in order", "why": None, "parameters": {}, "strict": False,
        "waiting": 1, "running": 2,
    }  # fmt: skip
    known, never = {**view, "since": "2020-01-01T20:31:02.512Z"}, {**view, "since": None}
    fake.answers["GET /v1/policies"] = (200, {"queues": [known, never], "policies": []})
    assert main(["policy", "--no-header"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert " days ago " in first
    assert second.split()[:4] == ["q", "backfill", "(auto)", "-"]
    assert main(["policy", "-v", "--no-header"]) == 0
    first, _ = capsys.readouterr().out.splitlines()
    assert absolute("2020-01-01T20:31:02.512Z") in first


def test_the_request_has_the_typed_parameters(fake: FakeDaemon, capsys: Captured) -> None:
    after = {**AUTO, "own": True, "chosen": "planner", "policy": "planner"}
    reply = {"queue": "q", "before": AUTO, "after": after, "changed": True, "waiting": 1,
             "preempts": True, "kept": [], "known": True}  # fmt: skip
    fake.answers["POST /v1/policies"] = (200, reply)
    assert main(["policy", "planner", "quantum=20m", "-p", "q"]) == 0
    assert main(["policy", "--reset"]) == 0
    assert fake.bodies("/v1/policies") == [
        {"queue": "q", "name": "planner", "parameters": {"quantum": "20m"}},
        {"queue": "*", "name": "", "parameters": {}},
    ]
    first, second = capsys.readouterr().err.splitlines()[:2]
    assert "queue q: auto (now backfill) → planner; 1 pending job " in first
    assert "may be preempted" in second


@pytest.mark.parametrize(
    "words", [["fifo", "--queue", ""], ["--queue="], ["-p", " "], ["--reset", "--queue", ""]]
)
def test_an_empty_name_is_not_every_queue(
    fake: FakeDaemon, capsys: Captured, words: list[str]
) -> None:
    """As where a shell's variable was never set."""
    assert main(["policy", *words]) == 2
    printed = "stoker: --queue takes the name of a queue; leave it out for all of them.\n"
    assert capsys.readouterr().err == printed
    assert not fake.requests


def test_an_unknown_queue_uses_the_default_policy(fake: FakeDaemon, capsys: Captured) -> None:
    view = {
        **AUTO, "about": "in order", "why": None, "parameters": {}, "strict": False,
        "waiting": 0, "running": 0, "since": None,
    }  # fmt: skip
    queues = [{**view, "queue": "default"}, {**view, "queue": "*"}]
    fake.answers["GET /v1/policies"] = (200, {"queues": queues, "policies": []})
    assert main(["policy", "--queue", "nosuch", "--no-header"]) == 0
    out, err = capsys.readouterr()
    assert out.split()[0] == "*"
    assert err == "stoker: queue 'nosuch' has no policy of its own; it uses *\n"
    for known in ("default", "*"):
        assert main(["policy", "--queue", known, "--no-header"]) == 0
        out, err = capsys.readouterr()
        assert (out.split()[0], err) == (known, "")


@pytest.mark.parametrize(
    ("name", "parameters", "shown_text"),
    [
        ("FIFO", {}, "Did you mean fifo"),
        ("planner", {"QUANTUM": "20m"}, "Did you mean quantum"),
        ("planner", {"quantum": ""}, "quantum=20m"),
    ],
)
def test_a_misspelt_policy_gets_a_suggestion(
    name: str, parameters: dict[str, str], shown_text: str
) -> None:
    with pytest.raises(BadValue) as caught:
        read_parameters(name, parameters)
    assert shown_text in str(caught.value)


def test_every_parameter_has_a_range_that_its_usual_values_are_in() -> None:
    for policy in POLICIES.values():
        for name in parameters_of(policy):
            least, most = RANGES[name]
            assert least <= getattr(policy, name) <= most, (policy.name, name)
