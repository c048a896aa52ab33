"""POST /jobs in process: what is accepted, with which warnings, and what is rejected."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core.scenario import node
from daemon.handler_fixture import HandlerFixture, assert_rejection
from stoker.core import events as e
from stoker.core.explain.forecast import Kind, StartEndEstimate, TimeInterval
from stoker.daemon.handlers.queues import define_queue
from stoker.daemon.submission.submit import resubmit_line, submit_jobs
from stoker.engine import CommandRejected, Instant
from stoker.schema import requests as r


def send(handlers: HandlerFixture, what: r.What, **more: Any) -> Any:
    options = more.pop("options", {})
    fields = {"directory": str(handlers.directory), "environment": {"PATH": "/bin"}, **more}
    body = r.Submit(what=what, options=options, **fields)
    return handlers.ask(partial(submit_jobs, handlers.context, body))


def spec_of(handlers: HandlerFixture, job: int) -> Any:
    return handlers.state.spec(handlers.job(job))


@pytest.mark.parametrize(
    ("what", "word"),
    [
        (r.What(), "exactly one"),
        (r.What(line="a", argv=["a"]), "exactly one"),
        (r.What(line="a\0b"), "NUL"),
        (r.What(line="   "), "empty"),
        (r.What(lines=["a", " "]), "empty"),
        (r.What(argv=["echo", "x" * (128 << 10)]), "128 KiB"),
    ],
)
def test_a_command_that_cannot_be_executed_is_rejected(
    handlers: HandlerFixture, what: r.What, word: str
) -> None:
    with pytest.raises(CommandRejected) as error:
        send(handlers, what)
    assert_rejection(error.value, "usage", word)


@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        ({"time": "soon"}, "usage", "--time"),
        ({"nosuch": 1}, "usage", "nosuch"),
        ({"chdir": "nowhere"}, "usage", "does not exist"),
        ({"gpus": "3"}, "impossible", "Cannot be satisfied"),
        ({"nodelist": "ant"}, "not_found", "ant"),
        ({"nodes": 2}, "impossible", "only one node"),
        ({"dependency": "afterok:9"}, "not_found", "9"),
        ({"send": ["nosuch"]}, "usage", "--send"),
        ({"snapshots_dir": "/no/such", "epochs": 1}, "usage", "--snapshots-dir"),
        ({"env": ["=x"]}, "usage", "="),
    ],
)
def test_a_submission_that_could_only_fail_is_rejected(
    handlers: HandlerFixture, options: dict[str, Any], code: str, word: str
) -> None:
    with pytest.raises(CommandRejected) as error:
        send(handlers, r.What(line="true"), options=options)
    assert_rejection(error.value, code, word)
    assert not handlers.state.jobs


def test_without_any_gpu_the_message_says_how_to_declare_some(tmp_path: Path) -> None:
    handlers = HandlerFixture(tmp_path, gpus=0)
    with pytest.raises(CommandRejected) as error:
        send(handlers, r.What(line="true"), options={"gpus": "1"})
    assert_rejection(error.value, "impossible", "--gpus 0,1")


def test_the_receipt_names_the_ids(handlers: HandlerFixture) -> None:
    assert send(handlers, r.What(line="true"))["label"] == "1"
    array = send(handlers, r.What(line="true"), options={"array": "0-2"})
    assert (array["first"], array["last"], array["label"]) == (2, 4, "2")
    lines = send(handlers, r.What(lines=["a", "b"]))
    assert (lines["count"], lines["label"]) == (2, "5-6")
    with pytest.raises(CommandRejected) as error:
        send(handlers, r.What(lines=["a", "b"]), options={"array": "0-1"})
    assert_rejection(error.value, "usage", "--each-line")


def test_the_same_key_is_the_same_submission(handlers: HandlerFixture) -> None:
    first = send(handlers, r.What(line="true"), key="k", options={"array": "0-1"})
    again = send(handlers, r.What(line="true"), key="k", options={"array": "0-1"})
    assert (again["first"], again["count"], again["label"]) == (1, 2, first["label"])
    assert len(handlers.state.jobs) == 2


@pytest.mark.parametrize(
    ("text", "kind"), [("#!/bin/sh\ntrue\n", "script"), ("true\n", "shell-script")]
)
def test_a_script_is_stored_once(handlers: HandlerFixture, text: str, kind: str) -> None:
    send(handlers, r.What(script=text, script_name="/x/train.sh", args=["1"]))
    spec = spec_of(handlers, 1)
    assert (spec.kind, spec.name, spec.args) == (kind, "train.sh", ("1",))
    assert handlers.store.blob(spec.script) == text.encode()


def test_a_program_must_exist_unless_other_nodes_may_have_it(handlers: HandlerFixture) -> None:
    with pytest.raises(CommandRejected) as error:
        send(handlers, r.What(argv=["nosuch"]))
    assert_rejection(error.value, "usage", "nosuch")
    assert send(handlers, r.What(argv=["sh", "-c", "true"]))["warnings"] == []
    handlers.apply(e.NodeAdded(at=handlers.now, name="ant", address="ssh://ant"))
    (warning,) = send(handlers, r.What(argv=["nosuch"]))["warnings"]
    assert "other nodes" in warning


def test_a_node_that_was_not_reached_yet_is_named_in_the_rejection(
    handlers: HandlerFixture,
) -> None:
    handlers.apply(e.NodeAdded(at=handlers.now, name="ant", address="ssh://ant"))
    with pytest.raises(CommandRejected) as error:
        send(handlers, r.What(line="true"), options={"gpus": "8"})
    assert_rejection(error.value, "impossible", "ant has not been reached yet")


def test_a_job_for_unreachable_nodes_only_gets_a_warning(handlers: HandlerFixture) -> None:
    handlers.apply(
        e.NodeAdded(at=handlers.now, name="ant", address="ssh://ant"),
        e.NodeJoined(at=handlers.now, facts=node(4, name="ant")),
        e.NodeReached(at=handlers.now, node="ant"),
        e.NodeUnreachable(at=handlers.now, node="ant", why="no route", boot=handlers.now),
    )
    (warning,) = send(handlers, r.What(line="true"), options={"gpus": "4"})["warnings"]
    assert "no route" in warning
    assert send(handlers, r.What(line="true"), options={"gpus": "2"})["warnings"] == []


def test_limits_of_a_queue_are_enforced(handlers: HandlerFixture) -> None:
    queue = r.Queue("small", max_job_gpus="1", max_waiting=1, priority=4)
    handlers.ask(partial(define_queue, handlers.context, queue))
    options = {"queue": "small", "gpus": "2"}
    with pytest.raises(CommandRejected) as error:
        send(handlers, r.What(line="true"), options=options)
    assert_rejection(error.value, "impossible", "at most 1 GPU")
    handlers.submit(gpus="2")
    assert send(handlers, r.What(line="true"), options={**options, "gpus": "1"})["warnings"] == []
    assert handlers.job(2).priority == 4
    with pytest.raises(CommandRejected) as error:
        send(handlers, r.What(line="true"), options={**options, "gpus": "1"})
    assert_rejection(error.value, "queue_full", "limit is 1")
    (warning,) = send(handlers, r.What(line="true"), options={"queue": "new"})["warnings"]
    assert "not defined" in warning


def test_alerts_of_the_daemon_are_shown_once(handlers: HandlerFixture) -> None:
    handlers.context.alerts = ["the disk was full"]
    assert send(handlers, r.What(line="true"))["warnings"] == ["the disk was full"]
    assert send(handlers, r.What(line="true"))["warnings"] == []


def test_a_training_job_without_gpus_runs_on_the_cpu(tmp_path: Path) -> None:
    handlers = HandlerFixture(tmp_path, gpus=0)
    (warning,) = send(handlers, r.What(line="true"), options={"epochs": 3})["warnings"]
    assert "without a GPU" in warning
    assert spec_of(handlers, 1).request.gpus is None


def test_a_terminal_and_named_gpus_belong_to_this_node(handlers: HandlerFixture) -> None:
    send(handlers, r.What(line="true"), options={"pty": True})
    assert spec_of(handlers, 1).request.nodes == ("box",)


def test_placeholders_in_the_environment_are_noticed(handlers: HandlerFixture) -> None:
    send(handlers, r.What(line="true"), environment={"DEVICE": "cuda:{gpu}"})
    send(handlers, r.What(line="true"), environment={"DEVICE": "cuda"})
    assert [bool(spec_of(handlers, id).fill) for id in (1, 2)] == [True, False]


def test_a_dependency_on_a_job_in_the_store_loads_it(handlers: HandlerFixture) -> None:
    first = handlers.submit(name="first")
    handlers.exit(first)
    handlers.unload(first)
    send(handlers, r.What(line="true"), options={"dependency": f"afterok:{first}"})
    assert "JobLoaded" in handlers.kinds()
    send(handlers, r.What(line="true"), options={"dependency": "singleton", "name": "first"})


def test_a_dry_run_says_where_and_when_without_submitting(handlers: HandlerFixture) -> None:
    reply = send(handlers, r.What(line="true"), options={"gpus": "2"}, dry_run=True)
    assert (reply["nodes"], reply["first"], handlers.state.jobs) == (["box"], None, {})
    assert reply["expected_start"] is not None
    handlers.submit(gpus="2")
    handlers.submit(gpus="2")
    reply = send(handlers, r.What(line="true"), dry_run=True)
    assert (reply["nodes"], reply["expected_start"]) == ([], None)

    def forecast(id: int, state: Any, now: Instant) -> StartEndEstimate:
        span = TimeInterval(now.wall, now.wall + 60, now.wall + 90, Kind.STATED, "")
        return StartEndEstimate(now.wall, start=span)

    handlers.context.forecast = forecast
    reply = send(handlers, r.What(line="true"), dry_run=True)
    assert reply["expected_start"] == "1970-01-01T00:17:40.000Z"


def test_another_line_repeats_the_submission_of_the_first(handlers: HandlerFixture) -> None:
    handlers.submit("echo 1", gpus="1")
    (first,) = [event for event in handlers.events if isinstance(event, e.JobsSubmitted)]
    receipt = handlers.ask(lambda state, now: resubmit_line(first, "echo 2", state, now))
    assert receipt["first"] == 2
    assert handlers.job(2).spec == handlers.job(1).spec
    assert handlers.job(2).command == "echo 2"


def test_gpus_named_by_hand_with_a_share_are_declared(handlers: HandlerFixture) -> None:
    handlers.submit(use_gpus="0,5", share="0.5", explicit=True)
    assert "NodeJoined" in handlers.kinds()
    assert [device.name for device in handlers.state.cluster.nodes["box"].types["gpu"]] == [
        "0",
        "1",
        "5",
    ]
    assert spec_of(handlers, 1).request.nodes == ("box",)
    handlers.submit(use_gpus="0,5", share="0.5", explicit=True)
    assert "NodeJoined" not in handlers.kinds()
