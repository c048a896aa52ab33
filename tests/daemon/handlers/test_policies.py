"""Scheduling policies: shown, chosen, reset."""

from functools import partial
from typing import Any

import pytest

from daemon.handler_fixture import HandlerFixture
from stoker.core.policies.policy import AUTO, DEFAULT_POLICY, PLANNER, POLICIES
from stoker.daemon.handlers.policies import choose, show, summary
from stoker.schema.requests import Policy


def shown(handlers: HandlerFixture, queue: str = "default") -> dict[str, Any]:
    views = {view["queue"]: view for view in handlers.ask(show)["queues"]}
    view: dict[str, Any] = views[queue]
    return view


def test_all_queues_start_with_the_usual_policy(handlers: HandlerFixture) -> None:
    view = shown(handlers)
    assert (view["policy"], view["own"], view["since"]) == (DEFAULT_POLICY.name, False, None)
    names = [policy["name"] for policy in handlers.ask(show)["policies"]]
    assert names == [AUTO, *POLICIES]
    assert summary(handlers.state) == DEFAULT_POLICY.name


def test_a_queue_gets_a_policy_of_its_own_and_gives_it_up(handlers: HandlerFixture) -> None:
    handlers.submit(gpus="2", queue="night")
    handlers.submit(gpus="2", queue="night")
    chosen = Policy("night", PLANNER.name, {"quantum": "20m"})
    reply = handlers.ask(partial(choose, handlers.context, chosen))
    assert (reply["changed"], reply["waiting"], reply["known"]) == (True, 1, True)
    assert (reply["before"]["policy"], reply["after"]["policy"]) == (
        DEFAULT_POLICY.name,
        PLANNER.name,
    )
    assert reply["preempts"] is PLANNER.preempts
    assert shown(handlers, "night")["parameters"]["quantum"] == 1200
    assert "night" in summary(handlers.state)
    assert not handlers.ask(partial(choose, handlers.context, chosen))["changed"]
    handlers.ask(partial(choose, handlers.context, Policy("night")))
    assert not shown(handlers, "night")["own"]


def test_a_policy_of_all_queues_leaves_those_with_their_own(handlers: HandlerFixture) -> None:
    handlers.ask(partial(choose, handlers.context, Policy("night", "fifo")))
    reply = handlers.ask(partial(choose, handlers.context, Policy("*", PLANNER.name)))
    assert (reply["kept"], reply["known"]) == (["night"], True)
    assert shown(handlers)["policy"] == PLANNER.name
    assert shown(handlers, "night")["policy"] == "fifo"
    assert handlers.ask(partial(choose, handlers.context, Policy()))["after"]["chosen"] == AUTO
    assert shown(handlers)["why"] is not None


def test_a_queue_without_jobs_is_unknown_but_accepted(handlers: HandlerFixture) -> None:
    assert not handlers.ask(partial(choose, handlers.context, Policy("nowhere", "fifo")))["known"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (Policy("*", "nosuch"), "nosuch"),
        (Policy("*", "", {"quantum": 3}), "policy"),
        (Policy("*", PLANNER.name, {"nosuch": 3}), "nosuch"),
    ],
)
def test_an_unknown_policy_or_parameter_is_rejected(
    handlers: HandlerFixture, body: Policy, word: str
) -> None:
    handlers.rejects(partial(choose, handlers.context, body), "usage", word)
