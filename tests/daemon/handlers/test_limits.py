"""Set and list limits; refuse what exceeds them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from daemon.handler_fixture import HandlerFixture
from daemon.users_fixture import ADA, ANA, BO, LEA, VISION, Users
from stoker.core import events as e
from stoker.core.state.limits import HOUR_SECONDS
from stoker.daemon.handlers import limits
from stoker.daemon.handlers.edit import edit
from stoker.daemon.submission.submit import submit_jobs
from stoker.schema import requests as r


@pytest.fixture
def users(handlers: HandlerFixture) -> Users:
    return Users(handlers)


def set_limits(users: Users, subject: str, by: int = ADA, **given: Any) -> dict[str, Any]:
    reply: dict[str, Any] = users.ask(by, limits.change, r.Limits(subject=subject, **given))
    return reply


def listed(users: Users, by: int) -> dict[str, dict[str, Any]]:
    return {view["subject"]: view for view in users.ask(by, limits.show)["limits"]}


def test_limits_are_set_changed_and_cleared(users: Users) -> None:
    reply = set_limits(users, "ana", max_gpus="1.5", max_time="2h")
    assert (reply["changed"], reply["limits"]["max_gpus"]) == (True, "1.5")
    reply = set_limits(users, "ana", max_gpus="none", max_running="3")
    shown = reply["limits"]
    assert (shown["max_gpus"], shown["max_running"], shown["max_time"]) == (None, 3, "2:00:00")
    assert not set_limits(users, "ana", max_running="3")["changed"]
    assert set_limits(users, "ana", clear=True)["limits"] is None
    assert users.handlers.state.record.limits == {}


@pytest.mark.parametrize(
    ("by", "subject", "given", "code", "word"),
    [
        (ANA, "ana", {"max_gpus": "9"}, "permission", "administrators"),
        (LEA, "@vision", {"max_gpus": "9"}, "permission", "administrators"),
        (ADA, "ana", {}, "usage", "--max-gpus"),
        (ADA, "ana", {"clear": True, "max_gpus": "1"}, "usage", "--clear"),
        (ADA, "nobody-here", {"max_gpus": "1"}, "not_found", "nobody-here"),
        (ADA, "@nothing", {"max_gpus": "1"}, "not_found", "nothing"),
        (ADA, "ana", {"max_gpus": "x"}, "usage", "x"),
        (ADA, "ana", {"max_running": "1.5"}, "usage", "1.5"),
    ],
)
def test_what_cannot_be_set_is_refused(
    users: Users, by: int, subject: str, given: dict[str, Any], code: str, word: str
) -> None:
    users.rejects(by, code, word, limits.change, r.Limits(subject=subject, **given))


def test_a_daemon_of_one_user_has_limits_of_queues_only(handlers: HandlerFixture) -> None:
    change = partial(limits.change, handlers.context)
    handlers.rejects(partial(change, r.Limits(subject="ada", max_gpus="1")), "usage", "queue")
    handlers.ask(partial(change, r.Limits(subject="queue:default", max_running="1")))
    first, second = handlers.submit(), handlers.submit()
    assert (handlers.status(first), handlers.status(second)) == ("CONFIGURING", "PENDING")


def test_users_see_the_limits_that_concern_them(users: Users) -> None:
    for subject in ("ana", "bo", "@vision", "queue:night", "*"):
        set_limits(users, subject, max_gpus="1")
    assert set(listed(users, ADA)) == {"ana", "bo", "@vision", "queue:night", "*"}
    assert set(listed(users, ANA)) == {"ana", "@vision", "queue:night", "*"}
    assert set(listed(users, BO)) == {"bo", "queue:night", "*"}


def test_use_is_listed_beside_its_limit(users: Users) -> None:
    set_limits(users, "ana", max_gpus="1", max_pending="5")
    for _ in range(3):
        users.submit(ANA, gpus="1")
    view = listed(users, ANA)["ana"]
    assert (view["gpus"], view["running"], view["pending"]) == ("1", 1, 2)


def test_a_submission_over_the_pending_limit_is_refused(users: Users) -> None:
    set_limits(users, "@vision", max_pending="2", max_running="0")
    users.submit(ANA)
    body = users.handlers.submission(array="0-1")
    users.rejects(LEA, "queue_full", "Group vision", submit_jobs, body)
    users.submit(LEA)
    users.rejects(ANA, "queue_full", "2 pending", submit_jobs, users.handlers.submission())
    users.submit(BO)


@pytest.mark.parametrize(
    ("given", "options"),
    [({"max_job_gpus": "1"}, {"gpus": "2"}), ({"max_time": "1h"}, {"time": "2h"})],
)
def test_a_job_over_a_limit_for_each_job_is_refused(
    users: Users, given: dict[str, str], options: dict[str, str]
) -> None:
    set_limits(users, "*", **given)
    body = users.handlers.submission(**options)
    users.rejects(ANA, "impossible", "ser ana", submit_jobs, body)
    job = users.submit(BO, hold=True)
    change = r.Edit(select=[str(job)], options=options)
    users.rejects(BO, "impossible", "ser bo", edit, change)


def test_a_job_without_a_time_limit_gets_the_longest_that_it_may_have(users: Users) -> None:
    set_limits(users, "ana", max_time="1h")
    set_limits(users, "queue:default", max_time="2h")
    reply = users.ask(ANA, submit_jobs, users.handlers.submission())
    assert users.handlers.state.spec(users.handlers.job(reply["first"])).limit == 3600
    assert "user ana" in reply["warnings"][0]


def test_groups_are_recorded_with_a_submission_and_with_a_limit(users: Users) -> None:
    users.submit(ANA)
    record = users.handlers.state.record
    assert VISION in record.groups[f"user:{ANA}"]
    users.submit(ANA)
    assert not any(isinstance(event, e.GroupsRecorded) for event in users.handlers.events)
    users.handlers.apply(e.GroupsRecorded(at=users.handlers.now, uid=ANA, groups=()))
    set_limits(users, "@vision", max_gpus="1")
    assert VISION in record.groups[f"user:{ANA}"]


@pytest.mark.parametrize("subject", ["ana", "@vision", "queue:default", "*"])
def test_gpu_hours_before_the_limit_was_set_count(users: Users, subject: str) -> None:
    handlers = users.handlers
    jobs = [users.submit(uid, gpus="1") for uid in (ANA, BO)]
    handlers.run(*jobs)
    handlers.now += 2 * HOUR_SECONDS
    for job in jobs:
        handlers.exit(job)
    handlers.unload(jobs[0])
    set_limits(users, subject, gpu_hours="3")
    own = f"user:{ANA}" if subject == "*" else None
    expected = 4.0 if subject == "queue:default" else 2.0
    state = handlers.state
    key = own or next(iter(state.record.limits))
    assert state.limits.gpu_seconds(key, handlers.now) / HOUR_SECONDS == pytest.approx(
        expected, abs=0.01
    )
