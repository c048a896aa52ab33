"""Make, list and cancel advance reservations."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from daemon.handler_fixture import HandlerFixture
from daemon.users_fixture import ADA, ANA, BO, LEA, Users
from stoker.daemon.handlers import reservations
from stoker.daemon.handlers.edit import edit
from stoker.schema import requests as r


@pytest.fixture
def users(handlers: HandlerFixture) -> Users:
    return Users(handlers)


def make(users: Users, **fields: Any) -> dict[str, Any]:
    reply: dict[str, Any] = users.ask(ADA, reservations.make, request(**fields))
    return reply


def request(**fields: Any) -> r.Reserve:
    return r.Reserve(**{"begin": "now+1hours", "duration": "2h", **fields})


def listed(users: Users) -> list[str]:
    shown = users.handlers.ask(reservations.show)["reservations"]
    return [view["name"] for view in shown]


def test_a_reservation_is_made_listed_and_cancelled(users: Users) -> None:
    reply = make(users, gpus="1", subjects=["ana"])
    assert (reply["name"], reply["subjects"], reply["user"]) == ("r1", ["ana"], "ada")
    assert reply["gpus"] == ["box/0"]
    assert not reply["has_begun"]
    assert make(users, devices=["1"], name="demo")["subjects"] == ["ada"]
    assert listed(users) == ["demo", "r1"]
    users.ask(ADA, reservations.cancel, "r1")
    assert listed(users) == ["demo"]
    users.rejects(ADA, "not_found", "r1", reservations.cancel, "r1")


@pytest.mark.parametrize("uid", [ANA, LEA])
def test_only_administrators_reserve_and_cancel(users: Users, uid: int) -> None:
    users.rejects(uid, "permission", "administrators", reservations.make, request(gpus="1"))
    make(users, gpus="1")
    users.rejects(uid, "permission", "administrators", reservations.cancel, "r1")


@pytest.mark.parametrize(
    ("fields", "code", "word"),
    [
        ({}, "usage", "--gpus"),
        ({"gpus": "1", "nodes": ["box"]}, "usage", "one of"),
        ({"gpus": "0.5"}, "usage", "whole"),
        ({"gpus": "3"}, "failed", "Only 2"),
        ({"gpus": "1", "begin": "yestreday"}, "usage", "yestreday"),
        ({"gpus": "1", "begin": "1969-12-31T12:00+00:00"}, "usage", "over"),
        ({"gpus": "1", "duration": "0m"}, "usage", "--for"),
        ({"devices": ["9"]}, "not_found", "9"),
        ({"nodes": ["nowhere"]}, "not_found", "nowhere"),
        ({"gpus": "1", "subjects": ["nobody-here"]}, "not_found", "nobody-here"),
    ],
)
def test_what_cannot_be_reserved_is_refused(
    users: Users, fields: dict[str, Any], code: str, word: str
) -> None:
    users.rejects(ADA, code, word, reservations.make, request(**fields))


def test_two_reservations_of_a_device_must_not_overlap(users: Users) -> None:
    make(users, devices=["0"], name="first")
    users.rejects(ADA, "failed", "first", reservations.make, request(devices=["0"]))
    users.rejects(ADA, "failed", "first", reservations.make, request(nodes=["box"]))
    users.rejects(ADA, "failed", "already", reservations.make, request(gpus="1", name="first"))
    make(users, devices=["0"], begin="now+3hours")
    assert make(users, gpus="1")["gpus"] == ["box/1"]
    users.rejects(ADA, "failed", "Only 0", reservations.make, request(gpus="1"))


def test_gpus_are_chosen_that_will_be_free(users: Users) -> None:
    job = users.submit(BO, gpus="1")
    users.handlers.run(job)
    assert make(users, gpus="1")["gpus"] == ["box/1"]


def test_it_is_said_which_jobs_stop_and_which_may_still_run(users: Users) -> None:
    stops, runs = users.submit(BO, gpus="1", requeue=True), users.submit(BO, gpus="1")
    users.handlers.run(stops, runs)
    reply = make(users, nodes=["box"], subjects=["@vision"])
    assert (reply["preempts"], reply["continues"]) == ([str(stops)], [str(runs)])
    assert (reply["nodes"], reply["gpus"], reply["subjects"]) == (["box"], [], ["@vision"])


def test_users_cannot_extend_a_running_job_into_a_reservation(users: Users) -> None:
    job = users.submit(ANA, gpus="1", time="30")
    users.handlers.run(job)
    make(users, nodes=["box"])
    longer = r.Edit(select=[str(job)], options={"time": "2:00:00"})
    users.rejects(ANA, "permission", "r1", edit, longer)
    users.ask(ANA, edit, r.Edit(select=[str(job)], options={"time": "40"}))
    users.ask(ADA, edit, longer)
    assert users.handlers.state.spec(users.handlers.job(job)).limit == 7200


def test_a_daemon_of_one_user_reserves_for_no_job_or_for_a_queue(handlers: HandlerFixture) -> None:
    make_own = partial(reservations.make, handlers.context)
    handlers.rejects(partial(make_own, request(gpus="1", subjects=["ada"])), "usage", "queue")
    assert handlers.ask(partial(make_own, request(gpus="2", begin="now")))["subjects"] == []
    job = handlers.submit(gpus="1", time="1")
    assert handlers.status(job) == "PENDING"
    handlers.ask(partial(reservations.cancel, handlers.context, "r1"))
    assert handlers.status(job) == "CONFIGURING"
