"""Queries: lists of jobs, explanations, history, logs, GPUs, counts."""

from functools import partial
from typing import Any

import pytest

from core.scenario import node
from daemon.handler_fixture import HandlerFixture, assert_rejection
from stoker.core import events as e
from stoker.daemon.handlers import queries
from stoker.daemon.handlers.queries import JobFilter
from stoker.engine import PLANNING, CommandRejected
from stoker.faults import FaultTracker
from stoker.schema.job import UploadView
from stoker.store.port import JobQuery


def listing(handlers: HandlerFixture, *selectors: str, limit: int = 100, **more: Any) -> Any:
    fields = {"states": [], "user": "", "queue": "", "client": "", "tail": 0, **more}
    job_filter = JobFilter(limit=limit, **fields)
    return handlers.ask(
        partial(
            queries.list_ids, handlers.context, list(selectors), job_filter, lambda: {"general": 1}
        )
    )


@pytest.fixture
def mixed(handlers: HandlerFixture) -> HandlerFixture:
    """Jobs 1 failed, 2 succeeded, 3 runs, 4 is pending, 5 is held in queue night."""
    for code in (1, 0):
        handlers.exit(handlers.submit(), code)
    handlers.submit(gpus="2")
    handlers.submit(gpus="2")
    handlers.submit(queue="night", hold=True)
    handlers.run(3)
    return handlers


def test_a_list_has_running_then_pending_then_failed_jobs(mixed: HandlerFixture) -> None:
    reply = listing(mixed)
    assert (reply["ids"], reply["more"], reply["general"]) == ([3, 4, 5, 1], 0, 1)
    assert reply["counts"] == {"RUNNING": 1, "PENDING": 2, "FAILED": 1}
    short = listing(mixed, limit=2)
    assert (short["ids"], short["more"]) == ([3, 4], 2)


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ({"states": ["FAILED"]}, [1]), ({"queue": "night"}, [5]), ({"user": "bob"}, []),
        ({"user": "ada"}, [3, 4, 5, 1]), ({"client": "grass"}, []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("arrays", [False, True])
def test_filters_narrow_a_list(
    mixed: HandlerFixture, filters: dict[str, Any], ids: list[int], arrays: bool
) -> None:
    assert listing(mixed, arrays=arrays, **filters)["ids"] == ids


def test_jobs_with_a_dependency_that_can_never_be_met_are_a_list(mixed: HandlerFixture) -> None:
    stuck = [mixed.submit(dependency="afterok:1") for _ in range(3)]
    mixed.submit(dependency="afterok:4")
    reply = listing(mixed, never=True, limit=2)
    assert (reply["ids"], reply["more"]) == (stuck[:2], 1)


def test_selectors_list_finished_jobs_too(mixed: HandlerFixture) -> None:
    mixed.unload(2)
    assert listing(mixed, "1-3")["ids"] == [1, 2, 3]
    with pytest.raises(CommandRejected) as error:
        listing(mixed, "77")
    assert_rejection(error.value, "not_found", "77")


def test_members_of_an_array_that_are_alike_are_one_row(handlers: HandlerFixture) -> None:
    array = handlers.submit(gpus="1", array="0-4")
    for arrays in (True, False):
        reply = listing(handlers, arrays=arrays)
        assert reply["ids"][:2] == [array, array + 1]
        assert len(reply["ids"]) == (3 if arrays else 5)
    assert list(listing(handlers, arrays=True)["members"]) == [array + 2]


def test_unknown_states_are_rejected() -> None:
    assert queries.check_states(["PENDING"]) == ["PENDING"]
    assert queries.check_states(["FAILED"], finished=True) == ["FAILED"]
    for state, finished in (("NOPE", False), ("PENDING", True)):
        with pytest.raises(CommandRejected) as error:
            queries.check_states([state], finished)
        assert_rejection(error.value, "usage", state)


def test_views_show_uploads_while_a_job_is_being_started(handlers: HandlerFixture) -> None:
    job = handlers.submit()
    upload = UploadView(node="gpu1", sent_bytes=1, text="sends 3 files")
    handlers.context.uploads = lambda _: [upload]
    (view,) = handlers.ask(partial(queries.list_views, handlers.context, [job], 0))
    assert (view["uploads"][0]["node"], view["reason_text"]) == ("gpu1", "sends 3 files")
    handlers.run(job)
    (view,) = handlers.ask(partial(queries.list_views, handlers.context, [job], 0))
    assert "uploads" not in view


def test_explain_says_why_a_job_is_pending(mixed: HandlerFixture) -> None:
    reply = mixed.ask(partial(queries.explain, mixed.context, "4"))
    assert (reply["state"], reply["position"], reply["ahead"]) == ("PENDING", 1, [])
    assert "foreseen" not in reply
    (view,) = reply["nodes"]
    assert (view["node"], view["fits_empty"]) == ("box", True)
    assert view["constraints"][0]["name"] == "gpus"


def test_explain_of_a_job_in_the_store_says_how_it_ended(mixed: HandlerFixture) -> None:
    mixed.unload(2)
    reply = mixed.ask(partial(queries.explain, mixed.context, "2"))
    assert (reply["state"], reply["reason"], reply["nodes"]) == ("COMPLETED", None, [])
    mixed.rejects(partial(queries.explain, mixed.context, "77"), "not_found", "77")


def test_explain_names_the_error_that_stops_the_planner(mixed: HandlerFixture) -> None:
    faults = mixed.context.faults = FaultTracker(mixed.engine.clock)
    faults.contain(PLANNING, None, int, "boom")
    reply = mixed.ask(partial(queries.explain, mixed.context, "4"))
    assert reply["reason"] == "PlanningFailed"
    assert "boom" in reply["text"]


def test_the_log_is_that_of_the_last_attempt_that_started(handlers: HandlerFixture) -> None:
    job = handlers.submit()
    handlers.run(job)
    files = handlers.ask(partial(queries.jobs_for_log, handlers.context, str(job), None, 0))
    assert (files.job, files.attempt, files.err) == (job, 0, None)
    assert files.out.startswith(handlers.context.logs)
    other = handlers.ask(partial(queries.jobs_for_log, handlers.context, "last", 3, 0))
    assert other.attempt == 3
    handlers.rejects(
        partial(queries.jobs_for_log, handlers.context, str(job), None, 1), "not_found", "one part"
    )


class FollowedRegistry:
    """Keeps which jobs are followed."""

    def __init__(self) -> None:
        self.followed: list[int] = []

    def follow_log(self, job: int) -> None:
        self.followed.append(job)


def test_an_attempt_is_over_when_it_ended_or_another_began(handlers: HandlerFixture) -> None:
    registry: Any = FollowedRegistry()
    job = handlers.submit()
    assert not handlers.ask(partial(queries.is_attempt_over, job, 0, registry))
    assert handlers.ask(partial(queries.is_attempt_over, 99, 0, registry))
    handlers.exit(job)
    assert handlers.ask(partial(queries.is_attempt_over, job, 0, registry))
    assert registry.followed == [job]


def test_metrics_need_a_single_job(handlers: HandlerFixture) -> None:
    job = handlers.submit(array="0-1")
    context = handlers.context
    assert handlers.ask(partial(queries.job_for_metrics, context, f"{job}_0")) == (
        job,
        f"{job}_0",
        0,
    )
    handlers.rejects(partial(queries.job_for_metrics, context, str(job)), "usage", "2 jobs")


def test_history_lists_finished_jobs_by_selector_or_query(mixed: HandlerFixture) -> None:
    mixed.unload(2)

    def ids(*selectors: str, **query: Any) -> tuple[list[int], int]:
        reply = mixed.ask(
            partial(queries.history, mixed.context, list(selectors), JobQuery(**query))
        )
        return [view["id"] for view in reply["jobs"]], reply["more"]

    assert ids(limit=10) == ([1, 2], 0)
    assert ids(limit=1) == ([2], 1)
    assert ids("1,3", limit=10) == ([1, 3], 0)
    assert ids(states=["FAILED"], limit=10) == ([1], 0)


def test_gpus_are_listed_with_readings_and_jobs(handlers: HandlerFixture) -> None:
    job = handlers.submit(gpus="1")
    handlers.run(job)
    handlers.now += 5
    reply = handlers.ask(partial(queries.list_gpus, lambda _: {}, lambda: ["driver gone"]))
    busy, free = reply["gpus"]
    assert (busy["jobs"][0]["id"], busy["jobs"][0]["elapsed"], free["jobs"]) == (job, 5.0, [])
    assert (reply["machines"], reply["note"]) == (["box"], "driver gone")


def test_nodes_that_were_not_reached_yet_are_named_with_the_gpus(handlers: HandlerFixture) -> None:
    handlers.apply(e.NodeAdded(at=handlers.now, name="ant", address="ssh://ant"))
    assert handlers.ask(partial(queries.list_gpus, lambda _: {}, list))["machines"] == [
        "box",
        "ant",
    ]
    handlers.apply(e.NodeJoined(at=handlers.now, facts=node(1, name="ant")))
    assert len(handlers.ask(partial(queries.list_gpus, lambda _: {}, list))["gpus"]) == 3


def test_times_are_iso() -> None:
    assert queries.parse_iso_time(None, "since") is None
    assert queries.parse_iso_time("1970-01-01T00:01:00+00:00", "since") == 60.0
    with pytest.raises(CommandRejected) as error:
        queries.parse_iso_time("noon", "since")
    assert_rejection(error.value, "usage", "since")
