"""POST and GET /sweeps in process: created, resumed, shown, changed, rejected."""

from functools import partial
from typing import Any

import pytest

from daemon.handler_fixture import HandlerFixture, assert_rejection
from stoker.core import events as e
from stoker.core.model.spec import MetricsSource
from stoker.daemon.handlers import job_actions, queries
from stoker.daemon.handlers.edit import edit
from stoker.daemon.sweeps import submit
from stoker.daemon.sweeps.queries import change_sweep, list_sweeps, show_sweep
from stoker.daemon.sweeps.submit import handle_submit_sweep
from stoker.engine import CommandRejected
from stoker.schema import requests as r

GRID = {"method": "grid", "parameters": {"x": {"values": [1, 2]}}, "line": "train {x}"}
RANDOM = {"method": "random", "parameters": {"x": {"min": 0.0, "max": 1.0}}, "line": "train {x}"}
LOSS = {"name": "loss"}


def body(handlers: HandlerFixture, definition: dict[str, Any], **more: Any) -> r.Sweep:
    fields = {"directory": str(handlers.directory), "environment": {"PATH": "/bin"}, **more}
    return r.Sweep(definition=definition, **fields)


def send(handlers: HandlerFixture, definition: dict[str, Any] | None = None, **more: Any) -> Any:
    sweep = body(handlers, GRID if definition is None else definition, **more)
    return handlers.ask(handle_submit_sweep(handlers.context, sweep))


def values(*numbers: int) -> dict[str, Any]:
    return {**GRID, "parameters": {"x": {"values": list(numbers)}}}


def test_a_grid_is_submitted_whole(handlers: HandlerFixture) -> None:
    reply = send(handlers)
    assert (reply["sweep"], reply["added"], reply["total"]) == (1, 2, 2)
    assert [handlers.job(id).command for id in (2, 3)] == ["train 1", "train 2"]
    assert [handlers.status(id) for id in (2, 3)] == ["CONFIGURING", "CONFIGURING"]


def test_an_argv_command_and_the_source_of_the_metric_become_part_of_the_spec(
    handlers: HandlerFixture,
) -> None:
    source = {"kind": "log", "pattern": "loss=(.*)"}
    definition = {
        "method": "grid", "parameters": {"x": {"values": [1, 2]}}, "command": ["sh", "{x}"],
        "metric": {**LOSS, "source": source}, "stop": {"kind": "asha", "max": 9},
    }  # fmt: skip
    send(handlers, definition)
    assert handlers.job(2).command == ("sh", "1")
    spec = handlers.state.spec(handlers.job(2))
    assert spec.source == MetricsSource("log", "loss=(.*)", "loss")
    rule = handlers.state.sweeps[1].rule
    assert rule is not None
    assert rule.kind == "halving"


@pytest.mark.parametrize(
    ("definition", "options", "word"),
    [
        ({"method": "nosuch"}, {}, "method"),
        (GRID, {"array": "0-1"}, "--array"),
        (GRID, {"time": "soon"}, "--time"),
        ({**RANDOM, "samples": 100_001}, {}, "too many"),
        (
            {
                "method": "grid", "line": "train {a} {b}",
                "parameters": {key: {"min": 1, "max": 400} for key in ("a", "b")},
            },
            {}, "combinations",
        ),
    ],
)  # fmt: skip
def test_a_definition_that_cannot_be_run_is_rejected(
    handlers: HandlerFixture, definition: dict[str, Any], options: dict[str, Any], word: str
) -> None:
    with pytest.raises(CommandRejected) as error:
        send(handlers, definition, options=options)
    assert_rejection(error.value, "usage", word)


def test_a_method_with_missing_packages_is_rejected(
    handlers: HandlerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "find_spec", lambda _: None)
    with pytest.raises(CommandRejected) as error:
        send(handlers, {**RANDOM, "method": "gp", "metric": LOSS})
    assert_rejection(error.value, "usage", "stoker[gp]")


def test_the_same_key_is_the_same_sweep(handlers: HandlerFixture) -> None:
    send(handlers, key="k")
    assert send(handlers, key="k")["added"] == 0
    assert len(handlers.state.jobs) == 2


def test_a_sweep_submitted_again_gets_only_missing_and_failed_trials(
    handlers: HandlerFixture,
) -> None:
    send(handlers)
    handlers.exit(2)
    handlers.exit(3, 1)
    reply = send(handlers, values(1, 2, 3), options={"time": "5"})
    assert (reply["sweep"], reply["added"], reply["retried"]) == (1, 1, 1)
    assert (handlers.job(3).attempt, handlers.state.spec(handlers.job(3)).limit) == (1, 300)
    assert handlers.job(4).command == "train 3"
    assert send(handlers, new=True)["sweep"] == 5


def test_a_sweep_with_unloaded_trials_is_loaded_when_it_is_resumed(
    handlers: HandlerFixture,
) -> None:
    send(handlers)
    for job in (2, 3):
        handlers.exit(job)
    handlers.unload(2, 3)
    handlers.apply(e.TrialsUnloaded(at=handlers.now, sweep=1))
    assert send(handlers, values(1, 2, 3))["added"] == 1
    assert "TrialsLoaded" in handlers.kinds()


def test_a_sweep_that_has_reached_its_target_gets_no_more_trials(handlers: HandlerFixture) -> None:
    metric = {**LOSS, "target": 0.5}
    send(handlers, {**GRID, "metric": metric})
    handlers.run(2)
    handlers.apply(
        e.TrialMeasured(at=handlers.now, job=2, attempt=0, value=0.1, final=True, step=1.0)
    )
    handlers.exit(2)
    reply = send(handlers, {**values(1, 2, 3), "metric": metric})
    assert (reply["added"], reply["retried"]) == (0, 0)
    assert "target" in reply["warnings"][0]


def test_a_dry_run_shows_the_first_commands(handlers: HandlerFixture) -> None:
    reply = send(handlers, dry_run=True)
    assert (reply["sweep"], reply["commands"]) == (None, ["train 1", "train 2"])
    assert not handlers.state.jobs
    argv = {**GRID, "command": ["sh", "{x}"]}
    del argv["line"]
    assert send(handlers, argv, dry_run=True)["commands"] == ["sh 1", "sh 2"]


def test_a_held_sweep_is_released_when_it_is_submitted_again(handlers: HandlerFixture) -> None:
    send(handlers, options={"hold": True})
    assert [handlers.status(id) for id in (2, 3)] == ["PENDING", "PENDING"]
    assert (
        handlers.ask(partial(list_sweeps, handlers.context, False))["sweeps"][0]["state"] == "HELD"
    )
    send(handlers)
    assert [handlers.status(id) for id in (2, 3)] == ["CONFIGURING", "CONFIGURING"]


def test_sweeps_are_listed_and_shown_with_their_trials(handlers: HandlerFixture) -> None:
    send(handlers, {**GRID, "metric": LOSS})
    handlers.run(2)
    (view,) = handlers.ask(partial(list_sweeps, handlers.context, False))["sweeps"]
    assert (view["state"], view["counts"]["running"], view["best"]) == ("RUNNING", 2, None)
    handlers.apply(
        e.TrialMeasured(at=handlers.now, job=2, attempt=0, value=0.1, final=True, step=1.0)
    )
    for job in (2, 3):
        handlers.exit(job)
    shown = handlers.ask(partial(show_sweep, handlers.context, "1"))
    assert (shown["sweep"]["state"], shown["definition"]["method"]) == ("DONE", "grid")
    assert [trial["value"] for trial in shown["trials"]] == [0.1, None]
    assert (shown["sweep"]["best"]["id"], shown["sweep"]["best"]["params"]) == (2, {"x": 1})
    assert handlers.ask(partial(list_sweeps, handlers.context, False))["sweeps"] == []
    assert len(handlers.ask(partial(list_sweeps, handlers.context, True))["sweeps"]) == 1
    handlers.rejects(partial(show_sweep, handlers.context, "2"), "not_found", "sweep 2")


def test_a_sweep_with_a_lost_definition_is_rejected(handlers: HandlerFixture) -> None:
    send(handlers)
    handlers.store.rows.blobs.clear()
    handlers.rejects(partial(show_sweep, handlers.context, "1"), "failed", "lost")


def test_a_change_reaches_the_sweep_and_its_unfinished_trials(handlers: HandlerFixture) -> None:
    send(handlers)
    handlers.exit(2)
    change = r.ChangeSweep(max_running=1, priority=7)
    view = handlers.ask(partial(change_sweep, handlers.context, "1", change))
    assert (view["max_running"], view["priority"]) == (1, 7)
    assert [handlers.job(id).priority for id in (2, 3)] == [0, 7]
    handlers.rejects(
        partial(change_sweep, handlers.context, "1", r.ChangeSweep()), "usage", "Nothing"
    )
    handlers.rejects(partial(change_sweep, handlers.context, "9", change), "not_found", "sweep 9")


def test_actions_on_a_sweep_reach_the_trials_to_come(handlers: HandlerFixture) -> None:
    context = handlers.context
    send(handlers, RANDOM)
    assert handlers.state.sweeps[1].asks
    assert handlers.ask(partial(job_actions.hold, context, r.Hold(["1"])))["sweeps"] == [1]
    assert handlers.state.sweeps[1].held
    handlers.ask(partial(job_actions.release, context, r.Release(["1"])))
    assert not handlers.state.sweeps[1].held
    handlers.ask(partial(edit, context, r.Edit(["1"], options={"priority": "4"})))
    assert handlers.state.sweeps[1].priority == 4
    handlers.rejects(partial(queries.explain, context, "1"), "not_found", "no trials")
    handlers.ask(partial(job_actions.cancel, context, r.Cancel(["all"])))
    assert handlers.state.sweeps[1].ended


def test_a_retry_of_a_sweep_leaves_what_succeeded(handlers: HandlerFixture) -> None:
    send(handlers)
    handlers.exit(2)
    handlers.exit(3, 1)
    reply = handlers.ask(partial(job_actions.retry, handlers.context, r.Retry(["1"])))
    assert [view["id"] for view in reply["done"]] == [3]
    assert "succeeded" in reply["skipped"][0]["why"]


def test_a_folded_list_has_sweeps_instead_of_trials(handlers: HandlerFixture) -> None:
    send(handlers, values(1, 2, 3, 4), options={"gpus": "1"})
    job = handlers.submit()
    job_filter = queries.JobFilter([], "", "", "", 100, 0, fold=True)
    for fold in (job_filter, queries.JobFilter([], "", "", "", 100, 0, fold=True, arrays=True)):
        reply = handlers.ask(partial(queries.list_ids, handlers.context, [], fold, dict))
        assert reply["ids"] == [job]
        assert [sweep["id"] for sweep in reply["sweeps"]] == [1]
        assert reply["more"] == 0
