"""What users of a system daemon see of the jobs of others, and what is recorded of their acts."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from daemon.handler_fixture import HandlerFixture
from daemon.users_fixture import ADA, ANA, BO, LEA, ROOT, Users
from stoker.core import events as e
from stoker.core.model.alarm import Alarm
from stoker.daemon.handlers import acts, job_actions, job_list, queries
from stoker.daemon.handlers.job_list import ListFilter
from stoker.daemon.rights import Private
from stoker.daemon.views.visible import PUBLIC_FIELDS, sees_event
from stoker.schema import requests as r
from stoker.schema.job import JobView

SECRET = "train --password hunter2"
HIDDEN = ("command", "directory", "comment", "params", "log", "labels", "pid", "cause", "account")


def views(users: Users, uid: int, *jobs: int) -> list[dict[str, Any]]:
    return list(users.ask(uid, queries.list_views, list(jobs), 5))


@pytest.fixture
def users(handlers: HandlerFixture) -> Users:
    return Users(handlers)


def test_others_see_label_user_resources_and_state(users: Users) -> None:
    job = users.submit(ANA, SECRET, comment="hunter2", label="hunter2", name="net")
    [view] = views(users, BO, job)
    assert (view["name"], view["user"]) == ("net", "ana")
    assert "hunter2" not in repr(view)
    assert view["directory"] == ""
    assert view["log"] is None
    for uid in (ANA, LEA, ADA, ROOT):
        assert views(users, uid, job)[0]["command"] == SECRET


def test_names_of_variables_and_dependents_are_shown_with_the_rights_of_the_caller(
    users: Users,
) -> None:
    first = users.submit(ANA, export="TOKEN=hunter2")
    others = [users.submit(uid, dependency=f"afterany:{first}") for uid in (ANA, BO)]
    seen = {}
    for uid in (ANA, BO, ADA):
        listing = partial(queries.list_views, has_details=True)
        [view] = users.ask(uid, listing, [first], 0)
        assert "hunter2" not in repr(view)
        seen[uid] = view.get("variables"), view.get("dependents")
    assert seen[BO] == (None, None)
    labels = [str(id) for id in others]
    assert "TOKEN" in seen[ANA][0]
    assert seen[ANA][1] == labels[:1]
    assert seen[ADA][1] == labels
    assert "variables" not in views(users, ANA, first)[0]


@pytest.mark.parametrize(("private", "sees"), [("all", False), ("logs", True), ("none", True)])
def test_what_is_private_is_a_setting(
    handlers: HandlerFixture, private: Private, sees: bool
) -> None:
    users = Users(handlers, private)
    job = users.submit(ANA, SECRET)
    assert (views(users, BO, job)[0]["command"] == SECRET) is sees
    users.ask(ANA, queries.jobs_for_log, str(job), None, 0)
    if private == "none":
        users.ask(BO, queries.jobs_for_log, str(job), None, 0)
    else:
        users.rejects(BO, "permission", "belongs", queries.jobs_for_log, str(job), None, 0)


def test_every_field_of_a_job_is_public_or_hidden() -> None:
    fields = set(JobView.__struct_fields__)
    assert set(PUBLIC_FIELDS) <= fields
    assert fields - set(PUBLIC_FIELDS) >= set(HIDDEN)


def test_a_search_does_not_find_what_is_hidden(users: Users) -> None:
    job = users.submit(ANA, SECRET, label="hunter2")
    for chosen in (ListFilter(words=("hunter2",)), ListFilter(labels=frozenset({"hunter2"}))):
        for uid, found in ((BO, 0), (ANA, 1), (ADA, 1)):
            rows, _ = users.ask(uid, job_list.select_matching, chosen, [job])
            assert len(rows) == found


def test_metrics_and_the_log_of_others_are_refused(users: Users) -> None:
    job = users.submit(ANA)
    for handler, more in ((queries.job_for_metrics, ()), (queries.jobs_for_log, (None, 0))):
        users.rejects(BO, "permission", "belongs to ana", handler, str(job), *more)
        users.ask(LEA, handler, str(job), *more)


def test_history_and_explanations_hide_the_same(users: Users) -> None:
    job = users.submit(ANA, SECRET)
    users.handlers.exit(job)
    reply = users.ask(BO, queries.history, [str(job)], queries.JobQuery())
    assert "hunter2" not in repr(reply)
    assert "hunter2" not in repr(users.ask(BO, queries.explain, str(job)))


def test_the_evidence_of_an_alarm_is_for_those_who_see_the_job(users: Users) -> None:
    job = users.submit(ANA)
    alarm = Alarm(kind="hung", job=job, since=1.0, text="nothing", evidence="in hunter2()")
    users.handlers.apply(e.AlarmRaised(at=1.0, alarm=alarm))
    assert "hunter2" not in repr(users.ask(BO, queries.list_alarms))
    assert "hunter2" in repr(users.ask(ANA, queries.list_alarms))


def test_the_event_stream_has_the_events_of_own_jobs(users: Users) -> None:
    job = users.submit(ANA, SECRET)
    users.handlers.exit(job)
    state = users.handlers.state
    recorded = [event for _, event in users.handlers.context.store.events(0, 1000)]
    for uid, sees in ((ANA, True), (LEA, True), (ADA, True), (BO, False)):
        context = users.context(uid)
        seen = [event for event in recorded if sees_event(context, event, state)]
        assert any(isinstance(event, e.JobsSubmitted) for event in seen) is sees
        assert any(isinstance(event, e.ProcessExited) for event in seen) is sees


def test_changes_are_recorded_with_their_user(users: Users) -> None:
    first, second = (users.submit(ANA, hold=True) for _ in range(2))
    handler = partial(
        job_actions.cancel, users.context(LEA), r.Cancel(select=[str(first), str(second)])
    )
    caller = users.context(LEA).caller
    assert caller is not None
    users.handlers.ask(acts.recorded(handler, caller, "POST /cancel", ""))
    acted = [event for event in users.handlers.events if isinstance(event, e.Acted)]
    assert [(each.uid, each.user, each.verb) for each in acted] == [(LEA, "lea", "POST /cancel")]
    assert acted[0].jobs in (((first, second),), ((first, first), (second, second)))


def test_what_changed_nothing_is_not_recorded(users: Users) -> None:
    caller = users.context(LEA).caller
    assert caller is not None
    handler = partial(job_actions.dismiss, users.context(LEA), r.Dismiss())
    users.handlers.ask(acts.recorded(handler, caller, "POST /jobs/dismiss", ""))
    assert not any(isinstance(event, e.Acted) for event in users.handlers.events)
