"""The process that is asked: spaces as Optuna sees them, what it suggests, what it says."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from stoker.sweep.sampling import optuna_study
from stoker.sweep.sampling.optuna_space import Axis, InvalidParameterValue, axes_and_constants
from stoker.sweep.sampling.optuna_study import MIN_RESULTS, Study
from stoker.sweep.sampling.sampler_process import MISSING, SamplerServer
from stoker.sweep.sampling.samplers import points
from stoker.sweep.sampling.space import at
from stoker.sweep.values import canonical

SPACE: dict[str, Any] = {
    "lr": {"distribution": "log_uniform", "min": 1e-5, "max": 0.1},
    "x": {"distribution": "uniform", "min": -1, "max": 1},
    "q": {"distribution": "q_uniform", "min": 0.1, "max": 0.9, "q": 0.1},
    "ql": {"distribution": "q_log_uniform", "min": 8, "max": 1024, "q": 8},
    "n": {"distribution": "int_uniform", "min": 1, "max": 8},
    "nl": {"distribution": "int_log_uniform", "min": 1, "max": 1024},
    "g": {"distribution": "normal", "mu": 3, "sigma": 0.5},
    "gl": {"distribution": "log_normal", "mu": 0, "sigma": 1},
    "gq": {"distribution": "q_normal", "mu": 0, "sigma": 10, "q": 5},
    "gql": {"distribution": "q_log_normal", "mu": 0, "sigma": 1, "q": 0.25},
    "any": {"values": [1, True, 1.5, "1", None, [1, {"a": 2}]]},
    "some": {"values": ["a", "b", "c"], "probabilities": [0.5, 0, 0.5]},
}
FIXED: dict[str, Any] = {
    "seed": {"value": 7},
    "only": {"values": ["one"]},
    "narrow": {"distribution": "uniform", "min": 2, "max": 2},
}


def sweep(method: str = "tpe", goal: str = "minimize", **parameters: Any) -> dict[str, Any]:
    return {"method": method, "seed": 0, "metric": {"goal": goal}, "parameters": parameters}


def trial(
    number: int, params: dict[str, Any], state: str = "complete", **more: Any
) -> dict[str, Any]:
    return {"trial": number, "params": params, "state": state, **more}


def loss(params: dict[str, Any]) -> float:
    return float((math.log10(params["lr"]) + 3) ** 2 + params["x"] ** 2)


VALLEY = sweep(lr=SPACE["lr"], seed=FIXED["seed"], x=SPACE["x"])


def told(study: Study, count: int) -> Study:
    """With so many results of a random search."""
    for number, params in enumerate(
        points({**VALLEY, "method": "random"} | {"samples": count}, 0, count)
    ):
        study.tell(trial(number, params, value=loss(params)))
    return study


def states(study: Study) -> list[TrialState]:
    study._catch_up()
    return [study._storage.get_trial(id).state for id, _ in study._optuna_trials.values()]


# ------------------------------------------------------------------------- distributions


@given(st.sampled_from(sorted(SPACE)), st.floats(0, 1, exclude_max=True))
def test_every_value_has_its_place_in_optunas_space_and_comes_back(name: str, u: float) -> None:
    axis, value = Axis(SPACE[name]), at(SPACE[name], u)
    inside = axis.inside(value)
    assert axis.distribution._contains(axis.distribution.to_internal_repr(inside))
    back = axis.value(inside)
    assert type(back) is type(value)
    if name in {"g", "gl"}:
        assert back == pytest.approx(value, rel=1e-4)
    else:
        assert canonical({"": back}) == canonical({"": value})


def test_the_distributions_are_of_the_right_kind() -> None:
    axes, _ = axes_and_constants(SPACE)
    found = {name: axis.distribution._asdict() for name, axis in axes.items()}
    assert found["lr"] == {"low": 1e-5, "high": 0.1, "log": True, "step": None}
    assert found["n"] == {"low": 1, "high": 8, "log": False, "step": 1}
    assert found["nl"]["log"] is True
    assert found["q"] == {"low": 1, "high": 9, "log": False, "step": 1}
    assert found["ql"] == {"low": 1, "high": 128, "log": True, "step": 1}
    assert found["some"] == {"choices": (0, 1)}


def test_what_has_one_value_only_is_no_dimension() -> None:
    assert axes_and_constants(FIXED)[0] == {}
    constants = axes_and_constants(FIXED | SPACE)[1]
    assert constants == {"seed": 7, "only": "one", "narrow": 2.0}


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", 0.2), ("n", 2.5), ("n", "2"), ("x", True), ("any", 2), ("some", "b"), ("q", 1.0)],
)
def test_a_value_of_another_space_does_not_fit(name: str, value: object) -> None:
    with pytest.raises(InvalidParameterValue):
        Axis(SPACE[name]).inside(value)


# --------------------------------------------------------------------------- suggestions


def test_the_first_points_are_spread_evenly_and_complete() -> None:
    study = Study(sweep(**SPACE, **FIXED))
    found, done = study.ask(8)
    assert not done
    assert [list(point) for point in found] == [[*SPACE, *FIXED]] * 8
    assert sorted(int((point["x"] + 1) * 4) for point in found) == list(range(8))
    assert {(point["seed"], point["only"], point["narrow"]) for point in found} == {(7, "one", 2.0)}


def test_every_kind_of_parameter_is_suggested_within_its_space() -> None:
    study = Study(sweep(**SPACE, **FIXED))
    for number, params in enumerate(study.ask(MIN_RESULTS)[0]):
        study.tell(trial(number, params, value=params["x"]))
    found, done = study.ask(6)
    assert not done
    for point in found:
        assert list(point) == [*SPACE, *FIXED]
        for name, spec in SPACE.items():
            Axis(spec).inside(point[name])  # fits


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_it_learns_where_the_best_is(goal: str) -> None:
    study = Study({**VALLEY, "metric": {"goal": goal}})
    sign = 1 if goal == "minimize" else -1
    losses = []
    for number in range(60):
        (params,), _ = study.ask(1)
        losses.append(loss(params))
        study.tell(trial(number, params, value=sign * losses[-1]))
    assert sorted(losses[40:])[10] < 0.3  # by chance it would be about 1.3


def test_the_same_knowledge_gives_the_same_suggestions() -> None:
    one, other = told(Study(VALLEY), 12), told(Study(VALLEY), 12)
    assert one.ask(2) == other.ask(2)
    assert one.ask(1) == other.ask(1)
    other.tell(trial(12, {"lr": 0.01, "seed": 7, "x": 0.0}, value=1.0))
    assert one.ask(1) != other.ask(1)


def test_running_trials_are_known_to_the_sampler() -> None:
    study = told(Study(VALLEY), 12)
    (first, *_), _ = study.ask(1)
    study.tell(trial(12, first, "running"))
    assert states(study).count(TrialState.RUNNING) == 1
    (second,), _ = study.ask(1)
    assert canonical(second) != canonical(first)
    # What was asked for and never told of does not go on running for ever.
    everything = study._storage.get_all_trials(study._study_id)
    assert [t.state for t in everything].count(TrialState.RUNNING) == 1


def test_a_trial_reported_twice_is_replaced() -> None:
    study = Study(VALLEY)
    params = {"lr": 0.01, "seed": 7, "x": 0.0}
    for state, more, expected in [
        ("running", {}, TrialState.RUNNING),
        ("complete", {"value": 1.0}, TrialState.COMPLETE),
        ("complete", {"value": 2.0}, TrialState.COMPLETE),
        ("running", {}, TrialState.RUNNING),
        ("fail", {}, TrialState.FAIL),
        ("running", {}, TrialState.RUNNING),
        ("pruned", {"steps": [[3, 0.5], [9, 0.25], [6, 0.75]]}, TrialState.PRUNED),
    ]:
        study.tell(trial(0, params, state, **more))
        assert states(study) == [expected]
        frozen = study._storage.get_trial(study._optuna_trials[0][0])
        assert frozen.value == more.get("value")
    assert frozen.intermediate_values == {9: 0.25}


def test_results_that_say_nothing_teach_nothing() -> None:
    study = Study(VALLEY)
    params = {"lr": 0.01, "seed": 7, "x": 0.0}
    study.tell(trial(0, params, value=None))
    study.tell(trial(1, {**params, "x": 0.5}, value=math.nan))
    study.tell(trial(2, {**params, "x": 7}, value=1.0))  # of an older, wider definition
    study.tell(trial(3, {"lr": 0.01}, value=1.0))
    study.tell(trial(4, {**params, "x": 0.25}, "pruned", value=0.5))
    assert states(study) == [TrialState.FAIL, TrialState.FAIL, TrialState.PRUNED]
    assert len(study.known) == 5


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_a_finite_space_is_tried_to_its_end_without_repeats(batch: int) -> None:
    study = Study(sweep(a={"values": [1, True, "x"]}, n=SPACE["n"], c=FIXED["seed"]))
    found: list[dict[str, Any]] = []
    done = False
    while not done:
        some, done = study.ask(batch)
        for params in some:
            state = "fail" if len(found) % 5 == 0 else "complete"
            study.tell(trial(len(found), params, state, value=float(params["n"])))
            found.append(params)
    assert len({canonical(params) for params in found}) == len(found) == 24
    assert study.ask(1) == ([], True)


def test_a_sweep_of_constants_has_one_point() -> None:
    study = Study(sweep(**FIXED))
    assert study.ask(3) == ([{"seed": 7, "only": "one", "narrow": 2.0}], True)


# ------------------------------------------------------------------------------ protocol


def said(server: SamplerServer, **message: Any) -> dict[str, Any] | None:
    return server.answer(json.dumps({"sweep": 17, **message}))


def test_only_questions_are_answered() -> None:
    server = SamplerServer()
    assert said(server, generation=1, definition=VALLEY) is None
    assert said(server, tell=[trial(0, {"lr": 0.01, "seed": 7, "x": 0.0}, "running")]) is None
    reply = said(server, ask=2, id="r1")
    assert reply is not None
    assert (reply["sweep"], reply["id"], reply["done"], len(reply["points"])) == (
        17,
        "r1",
        False,
        2,
    )
    assert said(server, forget=True) is None
    assert said(server, ask=1, id="r2") == {
        "sweep": 17, "id": "r2", "error": "sweep 17 has not been defined",
    }  # fmt: skip


def test_a_new_definition_restarts_the_sweep() -> None:
    server = SamplerServer()
    one = sweep(a={"values": [1]})
    said(server, generation=1, definition=one)
    said(server, tell=[trial(0, {"a": 1}, "running")])
    assert said(server, ask=1, id="a") == {"sweep": 17, "id": "a", "points": [], "done": True}
    said(server, generation=2, definition=one)
    reply = said(server, ask=1, id="b")
    assert reply is not None
    assert reply["points"] == [{"a": 1}]


def test_gp_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optuna_study, "find_spec", lambda name: None)
    server = SamplerServer()
    said(server, definition={**VALLEY, "method": "gp"})
    assert said(server, ask=1, id="r1") == {
        "sweep": 17, "id": "r1",
        "error": "method gp needs scipy and torch; pip install scipy torch",
    }  # fmt: skip


def test_without_optuna_every_reply_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    server = SamplerServer()
    said(server, definition=VALLEY)
    said(server, tell=[trial(0, {"lr": 0.01, "seed": 7, "x": 0.0}, "running")])
    for id in ("r1", "r2"):
        assert said(server, ask=1, id=id) == {"sweep": 17, "id": id, "error": MISSING}


@pytest.mark.parametrize(
    "definition",
    [sweep("grid", **SPACE), {"method": "tpe"}, sweep(x={"distribution": "strange"}), 3, None],
)
def test_a_definition_that_makes_no_sense_is_the_answer_to_its_questions(definition: Any) -> None:
    server = SamplerServer()
    said(server, definition=definition)
    reply = said(server, ask=1, id="r1")
    assert reply is not None
    assert reply["id"] == "r1"
    assert reply["error"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(["sweep", "tell", "ask", "id", "definition", "forget", "generation"])
LINES = st.binary(max_size=30) | st.dictionaries(KEYS, JSON).map(lambda m: json.dumps(m).encode())


@settings(max_examples=60)
@given(
    st.lists(
        LINES | st.tuples(KEYS, JSON).map(lambda p: json.dumps({"sweep": 17, p[0]: p[1]}).encode()),
        max_size=4,
    )
)
def test_nonsense_is_answered_with_an_error_and_changes_nothing(lines: list[bytes]) -> None:
    server = SamplerServer()
    said(server, definition=sweep(a={"values": [1, 2]}))
    for line in lines:
        reply = server.answer(line)
        assert reply is None or "error" in reply or "points" in reply
    said(server, definition=sweep(a={"values": [1, 2]}))
    reply = said(server, ask=1, id="r")
    assert reply is not None
    assert reply["points"][0]["a"] in {1, 2}


def test_the_process_says_nothing_but_the_protocol_and_ends_with_its_input() -> None:
    seen = enumerate(points({**VALLEY, "method": "random", "samples": None}, 0, 12))
    results = [trial(number, params, value=loss(params)) for number, params in seen]
    lines = [
        json.dumps({"sweep": 1, "generation": 1, "definition": VALLEY}),
        "nonsense",
        json.dumps({"sweep": 1, "tell": results}),
        json.dumps({"sweep": 1, "ask": 2, "id": "r1"}),
        json.dumps({"sweep": 1, "ask": "many", "id": "r2"}),
        json.dumps({"sweep": 1, "ask": 10**9, "id": "r3"}),
    ]
    noisy = (
        "import stoker.sweep.sampling.sampler_process as it\n"
        "serve = it.serve\n"
        "it.serve = lambda *pipes: (print('noise', flush=True), serve(*pipes))\n"
        "it.main()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", noisy], input="\n".join(lines), capture_output=True, text=True,
        timeout=50, check=True,
    )  # fmt: skip
    nonsense, reply, *failures = map(json.loads, run.stdout.splitlines())
    assert "invalid request" in nonsense["error"]
    assert [set(point) for point in reply["points"]] == [{"lr", "seed", "x"}] * 2
    assert [(failure["id"], "error" in failure) for failure in failures] == [
        ("r2", True), ("r3", True),
    ]  # fmt: skip
    assert "noise" in run.stderr
