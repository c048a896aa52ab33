"""Drain and undrain: which devices a name selects, and the jobs that still run on them."""

from functools import partial
from typing import Any

from core.scenario import node
from daemon.handler_fixture import HandlerFixture
from stoker.core import events as e
from stoker.daemon.handlers.drain import drain, undrain
from stoker.schema.requests import Drain, Undrain


def drained(handlers: HandlerFixture, *devices: str) -> Any:
    return handlers.ask(partial(drain, handlers.context, Drain(list(devices))))


def test_running_tasks_of_an_array_are_named_by_their_labels(handlers: HandlerFixture) -> None:
    handlers.submit(gpus="1")
    array = handlers.submit(gpus="1", array="0-1")
    reply = drained(handlers, "1")
    assert (reply["running"], reply["labels"]) == ([array], [f"{array}_0"])
    assert handlers.ask(partial(undrain, handlers.context, Undrain(["1"])))["labels"] == []


def test_no_job_starts_on_a_drained_device(handlers: HandlerFixture) -> None:
    drained(handlers, "0,1")
    job = handlers.submit(gpus="1")
    assert handlers.status(job) == "PENDING"
    handlers.ask(partial(undrain, handlers.context, Undrain(["box"])))
    assert handlers.status(job) == "CONFIGURING"


def test_a_name_selects_a_device_a_node_or_a_device_of_a_node(handlers: HandlerFixture) -> None:
    handlers.apply(
        e.NodeAdded(at=handlers.now, name="ant", address="ssh://ant"),
        e.NodeJoined(at=handlers.now, facts=node(1, name="ant")),
    )
    assert drained(handlers, "1")["devices"] == ["box/gpu:1"]
    assert drained(handlers, "ant:0")["devices"] == ["ant/gpu:0"]
    assert drained(handlers, "box/0", "box/0")["devices"] == ["box/gpu:0"]
    assert drained(handlers, "ant")["machines"] == ["ant"]
    assert set(drained(handlers, "all")["machines"]) == {"box", "ant"}
    handlers.rejects(partial(drain, handlers.context, Drain(["0"])), "usage", "ant/0")


def test_a_request_without_a_known_device_is_rejected(handlers: HandlerFixture) -> None:
    handlers.rejects(partial(drain, handlers.context, Drain()), "usage", "named")
    handlers.rejects(partial(undrain, handlers.context, Undrain(["9"])), "not_found", "9")
    handlers.apply(e.NodeAdded(at=handlers.now, name="ant", address="ssh://ant"))
    handlers.rejects(partial(drain, handlers.context, Drain(["ant"])), "failed", "not reached yet")
