"""Named queues: definition, deletion, hidden history."""

from functools import partial

import pytest

from core.scenario import node
from daemon.handler_fixture import HandlerFixture
from stoker.core import events as e
from stoker.daemon.handlers.queries import history, list_queues
from stoker.daemon.handlers.queues import define_queue, delete_queue, hide_history
from stoker.schema.requests import HideHistory, Queue, Resource
from stoker.store.port import JobQuery


def test_a_queue_is_defined_changed_and_deleted(handlers: HandlerFixture) -> None:
    context = handlers.context
    queue = Queue("night", max_running=1, max_gpus="1.5", devices=["1"], max_job_gpus="1")
    assert handlers.ask(partial(define_queue, context, queue)) == {"name": "night"}
    defined = handlers.state.record.queues["night"]
    assert (defined.max_running, defined.max_gpus, defined.devices) == (1, 1500, ("1",))
    handlers.ask(partial(define_queue, context, Queue("night", priority=3)))
    (view,) = handlers.ask(list_queues)["queues"]
    assert (view["name"], view["priority"]) == ("night", 3)
    handlers.ask(partial(delete_queue, "night"))
    assert handlers.ask(list_queues) == {"queues": []}


@pytest.mark.parametrize(
    ("queue", "code", "word"),
    [
        (Queue("old", new=True), "failed", "exists"),
        (Queue("q", devices=["7"]), "not_found", "7"),
        (Queue("q", max_gpus="many"), "usage", "max_gpus"),
        (Queue("q", resources=[Resource("cpu", "cpu")]), "usage", "pooled"),
        (Queue("q", resources=[Resource("gpu", "x")]), "usage", "'x'"),
        (Queue("q", resources=[Resource("gpu", "0", "0.5")]), "usage", "capacity"),
        (Queue("q", resources=[Resource("slot", "s", "3")]), "usage", "capacity"),
    ],
)
def test_a_queue_that_contradicts_nodes_or_queues_is_rejected(
    handlers: HandlerFixture, queue: Queue, code: str, word: str
) -> None:
    old = Queue("old", resources=[Resource("slot", "s", "2")])
    handlers.ask(partial(define_queue, handlers.context, old))
    handlers.rejects(partial(define_queue, handlers.context, queue), code, word)


def test_gpus_that_are_counted_over_several_nodes_must_exist(handlers: HandlerFixture) -> None:
    handlers.apply(e.NodeJoined(at=handlers.now, facts=node(1, name="ant")))
    context = handlers.context

    def queue(count: int) -> Queue:
        return Queue("q", resources=[Resource("gpu", str(n), "1") for n in range(count)])

    handlers.ask(partial(define_queue, context, queue(3)))
    handlers.rejects(partial(define_queue, context, queue(4)), "usage", "3 GPUs")


def test_a_queue_with_pending_jobs_cannot_be_deleted(handlers: HandlerFixture) -> None:
    context = handlers.context
    handlers.rejects(partial(delete_queue, "night"), "not_found", "night")
    handlers.ask(partial(define_queue, context, Queue("night")))
    handlers.submit(gpus="2")
    handlers.submit(gpus="2", queue="night")
    handlers.rejects(partial(delete_queue, "night"), "failed", "1 job is pending")
    handlers.submit(gpus="2", queue="night")
    handlers.rejects(partial(delete_queue, "night"), "failed", "2 jobs are pending")


def test_hidden_jobs_are_missing_in_the_history_of_their_client_only(
    handlers: HandlerFixture,
) -> None:
    context = handlers.context
    first = handlers.submit(client="grass")
    handlers.exit(first)
    handlers.now += 10
    handlers.ask(partial(hide_history, context, HideHistory("grass")))
    second = handlers.submit(client="grass")
    handlers.exit(second)

    def listed(query: JobQuery) -> list[int]:
        return [view["id"] for view in handlers.ask(partial(history, context, [], query))["jobs"]]

    assert listed(JobQuery(door="grass", limit=9)) == [second]
    assert listed(JobQuery(limit=9)) == [first, second]
