"""Show fair share between users, and set weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from daemon.handler_fixture import HandlerFixture
from daemon.users_fixture import ADA, ANA, BO, LEA, Users
from stoker.daemon.handlers import policies, shares
from stoker.schema import requests as r


@pytest.fixture
def users(handlers: HandlerFixture) -> Users:
    users = Users(handlers)
    users.ask(ADA, policies.choose, r.Policy(name="fair"))
    return users


def listed(users: Users) -> dict[str, dict[str, Any]]:
    return {view["user"]: view for view in users.handlers.ask(shares.show)["shares"]}


def set_share(users: Users, subject: str, weight: float | None) -> dict[str, Any]:
    body = r.SetShare(subject=subject, weight=weight)
    reply: dict[str, Any] = users.ask(ADA, shares.change, body)
    return reply


def test_users_are_listed_with_use_part_and_penalty(users: Users) -> None:
    job = users.submit(ANA, gpus="2")
    users.handlers.run(job)
    users.handlers.now += 100_000.0
    users.submit(BO, gpus="1")
    views = listed(users)
    assert list(views) == ["ana", "bo"]
    ana, bo = views.values()
    assert (ana["gpus"], ana["usage_part"], ana["part"], ana["weight"]) == (2.0, 1.0, 0.5, 1.0)
    assert (bo["gpus"], bo["pending"], bo["source"]) == (0.0, 1, None)
    assert ana["penalty"] > 0 > bo["penalty"]
    set_share(users, "ana", 9.0)
    views = listed(users)
    assert views["ana"]["part"] == 0.9
    assert views["ana"]["penalty"] < ana["penalty"]


def test_weights_are_set_and_removed(users: Users) -> None:
    users.submit(ANA)
    assert set_share(users, "@vision", 3.0)["changed"]
    assert listed(users)["ana"]["source"] == "@vision"
    assert set_share(users, "ana", 2.0)["changed"]
    assert not set_share(users, "ana", 2.0)["changed"]
    assert (listed(users)["ana"]["weight"], listed(users)["ana"]["source"]) == (2.0, "ana")
    set_share(users, "ana", None)
    assert listed(users)["ana"]["weight"] == 3.0
    (group,) = users.handlers.ask(shares.show)["groups"]
    assert (group["group"], group["weight"]) == ("vision", 3.0)


@pytest.mark.parametrize(
    ("by", "subject", "code", "word"),
    [
        (LEA, "ana", "permission", "administrators"),
        (ADA, "queue:default", "usage", "Users"),
        (ADA, "*", "usage", "Users"),
        (ADA, "nobody-here", "not_found", "nobody-here"),
    ],
)
def test_what_cannot_be_set_is_refused(
    users: Users, by: int, subject: str, code: str, word: str
) -> None:
    users.rejects(by, code, word, shares.change, r.SetShare(subject=subject, weight=2.0))


def test_a_daemon_of_one_user_has_no_shares(handlers: HandlerFixture) -> None:
    body = r.SetShare(subject="ada", weight=2.0)
    handlers.rejects(partial(shares.change, handlers.context, body), "usage", "one user")
