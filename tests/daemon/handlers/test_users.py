"""Several users of one daemon: whose jobs selectors name, and who may change them."""

from __future__ import annotations

from functools import partial

import pytest

from daemon.handler_fixture import HandlerFixture
from daemon.users_fixture import ADA, ANA, BO, LEA, Users
from stoker.core import events as e
from stoker.core.model.sweep import Sweep
from stoker.daemon.handlers import edit, job_actions, reorder
from stoker.daemon.submission.submit import submit_jobs
from stoker.daemon.sweeps import queries as sweep_queries
from stoker.engine import CommandRejected
from stoker.schema import requests as r


@pytest.fixture
def users(handlers: HandlerFixture) -> Users:
    return Users(handlers)


def test_a_job_belongs_to_the_user_of_the_connection(users: Users) -> None:
    job = users.submit(ANA)
    spec = users.handlers.state.spec(users.handlers.job(job))
    assert (spec.user, spec.uid, users.handlers.job(job).user) == ("ana", ANA, "ana")


def test_equal_submissions_of_two_users_are_two_specs(users: Users) -> None:
    first, second = users.submit(ANA), users.submit(BO)
    assert users.handlers.job(first).spec != users.handlers.job(second).spec


@pytest.mark.parametrize("selector", ["last", "-1", "run", "all", "%tag"])
def test_selectors_other_than_ids_are_about_own_jobs(users: Users, selector: str) -> None:
    mine, others = (users.submit(uid, name="run", label="tag") for uid in (ANA, BO))
    state = users.handlers.state
    assert users.context(ANA).resolve([selector], state) == [mine]
    assert users.context(BO).resolve([selector], state) == [others]
    if selector != "all":
        with pytest.raises(CommandRejected) as error:
            users.context(LEA).resolve([selector], state)
        assert error.value.code == "not_found"


def test_the_name_of_an_own_finished_job_is_found(users: Users) -> None:
    mine, others = (users.submit(uid, name="run") for uid in (ANA, BO))
    for job in (mine, others):
        users.handlers.exit(job)
    users.handlers.unload(mine, others)
    assert users.context(ANA).resolve(["run"], users.handlers.state) == [mine]


def test_a_singleton_waits_for_own_jobs_only(users: Users) -> None:
    users.submit(BO, name="one")
    mine = users.submit(ANA, name="one")
    later = users.submit(ANA, name="one", dependency="singleton")
    dependency = users.handlers.state.spec(users.handlers.job(later)).dependency
    assert dependency is not None
    assert set(dependency.jobs()) == {mine}


@pytest.mark.parametrize("verb", ["cancel", "kill", "hold", "pause", "retry", "edit", "move"])
def test_a_job_is_changed_by_its_user_leaders_and_administrators(users: Users, verb: str) -> None:
    handler = {"edit": edit.edit, "move": reorder.move}.get(verb) or getattr(job_actions, verb)
    more = {"edit": {"options": {"time": "5"}}}.get(verb, {})
    body = getattr(r, verb.capitalize())
    for uid in (BO,):
        job = users.submit(ANA)
        users.rejects(uid, "permission", "belongs to ana", handler, body(select=[str(job)], **more))
        assert users.handlers.events == []
    for uid in (ANA, LEA, ADA):
        job = users.submit(ANA)
        users.ask(uid, handler, body(select=[str(job)], **more))


def test_jobs_of_others_in_a_range_are_skipped(users: Users) -> None:
    first, second = users.submit(ANA), users.submit(BO)
    body = r.Cancel(select=[f"{first}-{second}"])
    reply = users.ask(ANA, job_actions.cancel, body)
    assert [view["id"] for view in reply["done"]] == [first]
    assert [view["why"] for view in reply["skipped"]] == ["it belongs to bo"]


def test_all_cancels_own_jobs_also_for_an_administrator(users: Users) -> None:
    other, mine = users.submit(ANA), users.submit(ADA)
    users.ask(ADA, job_actions.cancel, r.Cancel(select=["all"]))
    assert users.handlers.status(mine) in ("CANCELLED", "COMPLETING")
    assert users.handlers.status(other) in ("PENDING", "CONFIGURING", "RUNNING")


def test_failures_are_dismissed_and_retried_per_user(users: Users) -> None:
    mine, others = users.submit(ANA), users.submit(BO)
    for job in (mine, others):
        users.handlers.exit(job, 1)
    assert [view["id"] for view in users.ask(LEA, job_actions.dismiss, r.Dismiss())["done"]] == []
    retried = users.ask(ANA, job_actions.retry, r.Retry(failed=True))
    assert [view["id"] for view in retried["done"]] == [mine]
    dismissed = users.ask(BO, job_actions.dismiss, r.Dismiss())
    assert [view["id"] for view in dismissed["done"]] == [others]


@pytest.mark.parametrize("option", ["chdir", "output", "container", "comment", "name"])
def test_what_a_job_does_is_changed_by_its_user_only(users: Users, option: str) -> None:
    job = users.submit(ANA, hold=True)
    body = r.Edit(select=[str(job)], options={option: "/tmp"})
    for uid in (LEA, ADA):
        reply = users.ask(uid, edit.edit, body)
        changed = [view["id"] for view in reply["done"]]
        assert changed == ([job] if option == "comment" else [])
    assert users.handlers.state.spec(users.handlers.job(job)).uid == ANA


def test_an_edit_by_a_leader_keeps_the_user(users: Users) -> None:
    job = users.submit(ANA, hold=True)
    users.ask(LEA, edit.edit, r.Edit(select=[str(job)], options={"time": "7"}))
    spec = users.handlers.state.spec(users.handlers.job(job))
    assert (spec.uid, spec.limit) == (ANA, 420)


def test_only_administrators_raise_a_priority(users: Users) -> None:
    users.submit(ANA, priority=-5)
    submission = users.handlers.submission(priority=1)
    users.rejects(ANA, "permission", "administrators", submit_jobs, submission)
    job = users.submit(ADA, priority=1)
    assert users.handlers.job(job).priority == 1
    held = users.submit(ANA, hold=True)
    body = r.Edit(select=[str(held)], options={"priority": "3"})
    users.rejects(ANA, "permission", "administrators", edit.edit, body)


def test_moving_exchanges_own_jobs_only(users: Users) -> None:
    users.submit(BO, gpus="2")  # runs
    first, others, second, third = (users.submit(u, gpus="2") for u in (ANA, BO, ANA, ANA))
    users.ask(ANA, reorder.move, r.Move(select=[str(third)]))
    pending = sorted(
        (users.handlers.job(id) for id in (first, others, second, third)), key=lambda j: j.order
    )
    assert [job.id for job in pending] == [third, others, first, second]
    body = r.Move(select=[str(third)], where="before", other=str(others))
    users.rejects(ANA, "usage", "not another pending job of this user", reorder.move, body)
    users.ask(ADA, reorder.move, r.Move(select=[str(second)]))
    assert users.handlers.job(second).order < users.handlers.job(third).order


def test_a_sweep_is_changed_by_its_user_leaders_and_administrators(users: Users) -> None:
    fixture = users.handlers
    sweep = Sweep(id=fixture.state.record.next_id, name="lr", user="ana", identity="i",
                  definition="d", method="grid", created_at=1.0, uid=ANA, total=3)  # fmt: skip
    fixture.apply(e.SweepDefined(at=1.0, sweep=sweep))
    change = partial(r.ChangeSweep, max_running=2)
    users.rejects(BO, "permission", "belongs to ana", sweep_queries.change_sweep,
                  str(sweep.id), change())  # fmt: skip
    users.rejects(BO, "not_found", "lr", sweep_queries.change_sweep, "lr", change())
    for uid in (ANA, LEA, ADA):
        users.ask(uid, sweep_queries.change_sweep, str(sweep.id), change())
    users.rejects(BO, "permission", "belongs to ana", sweep_queries.show_sweep, str(sweep.id))


def test_the_daemon_of_all_users_lends_its_environment_and_rights_to_no_job(users: Users) -> None:
    own = users.handlers.submission()
    own.own_environment = True
    users.rejects(ANA, "usage", "environment", submit_jobs, own)
    hook = users.handlers.submission(on_end="touch x")
    users.rejects(ANA, "permission", "--on-end", submit_jobs, hook)
    mail = users.handlers.submission(notify="boss@lab.org:end")
    users.rejects(ANA, "permission", "ana only", submit_jobs, mail)
    users.submit(ANA, notify="ana@lab.org:end")


def test_a_directory_that_only_its_user_can_see_is_accepted(users: Users) -> None:
    body = users.handlers.submission()
    body.directory = "/home/ana/private"
    users.ask(ANA, submit_jobs, body)
