"""GET /export in process: what can be submitted elsewhere, in which order, and what stays."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert
from msgspec.structs import replace

from daemon.handler_fixture import HandlerFixture
from stoker.core import events as e
from stoker.core.model.spec import Spec
from stoker.daemon.handlers.export import export_jobs
from stoker.daemon.handlers.job_actions import hold
from stoker.daemon.submission.submit import submit_jobs
from stoker.daemon.sweeps.submit import handle_submit_sweep
from stoker.schema import requests as r


@pytest.fixture
def other(tmp_path: Path) -> HandlerFixture:
    """The daemon that the jobs are submitted to."""
    return HandlerFixture(tmp_path)


def export(handlers: HandlerFixture, *held: int) -> Any:
    """Hold jobs, and return what can be moved."""
    if held:
        select = [f"{id}-{id}" for id in held]
        handlers.ask(partial(hold, handlers.context, r.Hold(select=select)))
    return handlers.ask(partial(export_jobs, handlers.context, False))


def submit_again(handlers: HandlerFixture, exported: Any) -> int:
    body = convert(exported["submission"], r.Submit)
    return int(handlers.ask(partial(submit_jobs, handlers.context, body))["first"])


def spec_of(handlers: HandlerFixture, job: int) -> Spec:
    return replace(handlers.state.spec(handlers.job(job)), directory="")


def test_a_submission_elsewhere_makes_the_same_held_job(
    handlers: HandlerFixture, other: HandlerFixture
) -> None:
    id = handlers.submit("echo {gpu}", gpus="1", time="1h", env=["A=b c"], nice="5", hold=True)
    exported = export(handlers)["jobs"]
    assert [each["ids"] for each in exported] == [[id]]
    copy = submit_again(other, exported[0])
    assert spec_of(other, copy) == spec_of(handlers, id)
    assert (other.job(copy).priority, other.job(copy).held) == (-5, True)
    assert other.job(copy).command == "echo {gpu}"
    hash = spec_of(handlers, id).environment
    assert other.store.secret(hash) == handlers.store.secret(hash)


def test_a_begun_array_is_moved_without_the_members_that_have_started(
    handlers: HandlerFixture, other: HandlerFixture
) -> None:
    first = handlers.submit("true", gpus="1", array="3,5,8-9%2")
    exported = export(handlers, *range(first, first + 4))
    assert [job["is_running"] for job in exported["kept"]] == [True, True]
    (array,) = exported["jobs"]
    assert array["ids"] == [first + 2, first + 3]
    copy = submit_again(other, array)
    assert [other.job(id).index for id in (copy, copy + 1)] == [8, 9]
    assert spec_of(other, copy).array_limit == 2


def test_equal_lines_are_one_submission(handlers: HandlerFixture, other: HandlerFixture) -> None:
    ids = [handlers.submit(line, hold=True) for line in ("a", "b", "c")]
    (lines,) = export(handlers)["jobs"]
    assert lines["ids"] == ids
    copy = submit_again(other, lines)
    assert [other.job(copy + i).command for i in range(3)] == ["a", "b", "c"]


def test_scripts_and_arguments_are_exported(
    handlers: HandlerFixture, other: HandlerFixture
) -> None:
    for what in (r.What(script="#!/bin/sh\necho $1\n", script_name="x.sh", args=["1"]),
                 r.What(argv=["echo", "a b"])):  # fmt: skip
        body = replace(handlers.submission(hold=True), what=what)
        handlers.ask(partial(submit_jobs, handlers.context, body))
    exported = export(handlers)["jobs"]
    copies = [submit_again(other, each) for each in exported]
    assert spec_of(other, copies[0]).script == spec_of(handlers, 1).script
    assert other.job(copies[1]).command == ("echo", "a b")


def test_jobs_come_after_those_that_they_depend_on(handlers: HandlerFixture) -> None:
    first = handlers.submit("first", hold=True)
    last = handlers.submit("last", hold=True, dependency=f"afterok:{first}", priority="9")
    exported = export(handlers)["jobs"]
    assert [each["ids"] for each in exported] == [[first], [last]]
    assert exported[1]["clauses"] == [{"kind": "afterok", "jobs": [first], "delay": 0}]
    assert "dependency" not in exported[1]["submission"]["options"]


def test_a_dependency_that_is_met_is_left_out(handlers: HandlerFixture) -> None:
    first = handlers.submit("first")
    last = handlers.submit("last", dependency=f"afterok:{first}", hold=True)
    handlers.exit(first)
    (exported,) = export(handlers)["jobs"]
    assert (exported["ids"], exported["clauses"]) == ([last], [])


def test_jobs_that_are_joined_to_a_running_one_stay(handlers: HandlerFixture) -> None:
    running = handlers.submit("running", gpus="2")
    handlers.run(running)
    after = handlers.submit("after", dependency=f"afterok:{running}")
    last = handlers.submit("last", dependency=f"afterany:{after}")
    alone = handlers.submit("alone", gpus="1")
    exported = export(handlers, after, last, alone)
    assert [each["ids"] for each in exported["jobs"]] == [[alone]]
    assert {job["id"] for job in exported["kept"]} == {running, after, last}


def test_a_job_that_one_which_stays_depends_on_stays_too(handlers: HandlerFixture) -> None:
    first = handlers.submit("first", gpus="2")
    handlers.submit("free", gpus="2", hold=True)
    handlers.run(first)
    handlers.apply(e.JobHeld(at=handlers.now, job=2))
    waits = handlers.submit("both", dependency=f"afterok:{first},afterok:2", hold=True)
    exported = export(handlers)
    assert exported["jobs"] == []
    assert {job["id"] for job in exported["kept"]} == {first, 2, waits}


def test_a_job_that_has_run_or_is_not_held_stays(handlers: HandlerFixture) -> None:
    first = handlers.submit("true", gpus="2", retries="1")
    handlers.exit(first, 1)
    free = handlers.submit("true", gpus="2", begin="now+1hours")
    exported = export(handlers, first)
    assert exported["jobs"] == []
    kept = {job["id"]: job["why"] for job in exported["kept"]}
    assert "run before" in kept[first]
    assert "not held" in kept[free]
    (listed,) = handlers.ask(partial(export_jobs, handlers.context, True))["jobs"]
    assert (listed["ids"], listed["unheld"]) == ([free], [free])


def sweep(handlers: HandlerFixture, **more: Any) -> int:
    definition = {"parameters": {"lr": {"values": [1, 2]}}, "command": ["true", "${args}"]}
    definition |= {"method": "grid", "metric": {"name": "loss", "goal": "minimize"}}
    base = handlers.submission()
    body = r.Sweep(
        definition=definition, directory=base.directory, environment=base.environment,
        options={"gpus": "1", **more},
    )  # fmt: skip
    return int(handlers.ask(handle_submit_sweep(handlers.context, body))["sweep"])


def test_a_sweep_that_has_not_begun_is_moved_as_a_whole(
    handlers: HandlerFixture, other: HandlerFixture
) -> None:
    id = sweep(handlers, hold=True, time="1h")
    (exported,) = export(handlers)["jobs"]
    assert (exported["ids"], exported["sweep"], exported["unheld"]) == ([id], True, [])
    body = convert(exported["submission"], r.Sweep)
    copy = int(other.ask(handle_submit_sweep(other.context, body))["sweep"])
    mine, theirs = handlers.state.sweeps[id], other.state.sweeps[copy]
    assert theirs.held
    assert (theirs.method, theirs.metric, theirs.total) == (mine.method, mine.metric, 2)
    trials = [job for job in other.state.jobs.values() if job.array == copy]
    assert {job.params for job in trials} == {'{"lr":1}', '{"lr":2}'}
    assert {other.state.spec(job).limit for job in trials} == {3600}


def test_a_sweep_that_a_job_depends_on_stays_with_that_job(handlers: HandlerFixture) -> None:
    id = sweep(handlers, hold=True)
    after = handlers.submit("true", dependency=f"afterany:{id}", hold=True)
    exported = export(handlers)
    assert exported["jobs"] == []
    assert {job["id"] for job in exported["kept"]} == {id, after}


def test_a_sweep_that_has_begun_stays(handlers: HandlerFixture) -> None:
    id = sweep(handlers)
    handlers.run(id + 1)
    exported = export(handlers)
    assert exported["jobs"] == []
    assert [(job["id"], job["is_running"]) for job in exported["kept"]] == [(id, False)]
