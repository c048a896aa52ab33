"""Moves of pending jobs in the queue."""

from functools import partial

import pytest

from daemon.handler_fixture import HandlerFixture
from stoker.core.queue.pending_queue import first_jobs
from stoker.daemon.handlers.reorder import move
from stoker.schema.requests import Move


@pytest.fixture
def queue(handlers: HandlerFixture) -> list[int]:
    """Three pending jobs behind one that takes both GPUs."""
    handlers.submit(gpus="2")
    return [handlers.submit(gpus="2") for _ in range(3)]


def order(handlers: HandlerFixture) -> list[int]:
    return [job.id for job in first_jobs(handlers.state.pending, handlers.state.jobs, 100, {})]


def moved(handlers: HandlerFixture, job: int, where: str, other: int | None = None) -> list[int]:
    body = Move([str(job)], where=where, other=None if other is None else str(other))
    handlers.ask(partial(move, handlers.context, body))
    return order(handlers)


def test_a_job_moves_to_either_end_or_next_to_another(
    handlers: HandlerFixture, queue: list[int]
) -> None:
    a, b, c = queue
    assert moved(handlers, c, "first") == [c, a, b]
    assert moved(handlers, c, "last") == [a, b, c]
    assert moved(handlers, c, "before", b) == [a, c, b]
    assert moved(handlers, a, "after", c) == [c, a, b]
    assert moved(handlers, a, "after", b) == [c, b, a]


def test_a_job_takes_the_priority_of_its_new_neighbours(
    handlers: HandlerFixture, queue: list[int]
) -> None:
    a, b, c = queue
    urgent = handlers.submit(gpus="2", priority=9)
    assert moved(handlers, b, "first") == [b, urgent, a, c]
    assert moved(handlers, urgent, "after", c) == [b, a, c, urgent]
    assert (handlers.job(b).priority, handlers.job(urgent).priority) == (9, 0)


def test_a_move_without_a_pending_job_is_rejected_or_skipped(
    handlers: HandlerFixture, queue: list[int]
) -> None:
    a, b, _ = queue
    context = handlers.context
    handlers.rejects(partial(move, context, Move()), "usage", "named")
    handlers.rejects(partial(move, context, Move(["99"])), "not_found", "99")
    for other in (None, str(a), "1", f"{a},{b}"):
        body = Move([str(a)], where="before", other=other)
        handlers.rejects(partial(move, context, body), "usage", "another pending job")
    reply = handlers.ask(partial(move, context, Move(["1"])))
    assert (reply["done"], reply["skipped"][0]["why"]) == ([], "it is not pending")


def test_a_move_into_a_used_up_gap_is_rejected(handlers: HandlerFixture, queue: list[int]) -> None:
    a, b, c = queue
    for _ in range(40):
        moved(handlers, c, "after", a)
        if handlers.job(c).order - handlers.job(a).order <= 1:
            break
        b, c = c, b
    handlers.rejects(
        partial(move, handlers.context, Move([str(b)], where="after", other=str(a))),
        "failed",
        "--first",
    )
