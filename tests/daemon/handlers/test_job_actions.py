"""Cancel, kill, pause, resume, hold, release, retry, dismiss: what is done and what is skipped."""

from functools import partial
from typing import Any

import pytest

from daemon.handler_fixture import HandlerFixture
from stoker.core import events as e
from stoker.daemon.handlers import job_actions as actions
from stoker.engine import CommandRejected
from stoker.schema import requests as r


def done(reply: dict[str, Any]) -> list[int]:
    return [view["id"] for view in reply["done"]]


def why(reply: dict[str, Any]) -> str:
    (skipped,) = reply["skipped"]
    text: str = skipped["why"]
    return text


ALL_ACTIONS = [
    (actions.cancel, r.Cancel), (actions.kill, r.Kill), (actions.pause, r.Pause),
    (actions.resume, r.Resume), (actions.hold, r.Hold), (actions.release, r.Release),
    (actions.retry, r.Retry),
]  # fmt: skip


@pytest.mark.parametrize(("action", "body"), ALL_ACTIONS)
def test_an_action_without_a_selector_is_rejected(
    handlers: HandlerFixture, action: Any, body: Any
) -> None:
    handlers.rejects(partial(action, handlers.context, body()), "usage", "named")


@pytest.mark.parametrize(("action", "body"), ALL_ACTIONS)
def test_an_action_on_an_unknown_job_is_rejected(
    handlers: HandlerFixture, action: Any, body: Any
) -> None:
    handlers.rejects(partial(action, handlers.context, body(["99"])), "not_found", "99")


@pytest.mark.parametrize("selector", ["1-", "x y", "!"])
def test_a_selector_that_names_no_job_is_rejected(handlers: HandlerFixture, selector: str) -> None:
    handlers.submit()
    with pytest.raises(CommandRejected) as error:
        handlers.ask(partial(actions.cancel, handlers.context, r.Cancel([selector])))
    assert error.value.code in ("usage", "not_found")


def test_cancel_ends_a_pending_job_and_stops_a_running_one(handlers: HandlerFixture) -> None:
    running, pending = handlers.submit(gpus="2"), handlers.submit(gpus="2")
    handlers.run(running)
    reply = handlers.ask(partial(actions.cancel, handlers.context, r.Cancel(["all"])))
    assert done(reply) == [running, pending]
    assert [handlers.status(id) for id in (running, pending)] == ["COMPLETING", "CANCELLED"]


def test_cancel_skips_a_finished_job_in_memory_and_in_the_store(handlers: HandlerFixture) -> None:
    job = handlers.submit()
    handlers.exit(job)
    assert "ended" in why(
        handlers.ask(partial(actions.cancel, handlers.context, r.Cancel([str(job)])))
    )
    handlers.unload(job)
    assert "ended" in why(
        handlers.ask(partial(actions.cancel, handlers.context, r.Cancel([str(job)])))
    )


@pytest.mark.parametrize(
    ("only", "expected"), [("waiting", "it is running"), ("running", "it is not running")]
)
def test_cancel_with_a_filter_skips_jobs_in_other_states(
    handlers: HandlerFixture, only: str, expected: str
) -> None:
    running, pending = handlers.submit(gpus="2"), handlers.submit(gpus="2")
    reply = handlers.ask(partial(actions.cancel, handlers.context, r.Cancel(["all"], only=only)))
    assert why(reply) == expected
    assert done(reply) == [pending if only == "waiting" else running]


def test_cancel_with_a_client_skips_jobs_of_other_clients(handlers: HandlerFixture) -> None:
    handlers.submit()
    body = r.Cancel(["all"], client="execute-batch")
    assert "execute-batch" in why(handlers.ask(partial(actions.cancel, handlers.context, body)))


def test_kill_without_a_signal_ends_jobs_at_once(handlers: HandlerFixture) -> None:
    job = handlers.submit()
    handlers.run(job)
    assert done(handlers.ask(partial(actions.kill, handlers.context, r.Kill([str(job)])))) == [job]
    (event,) = [event for event in handlers.events if isinstance(event, e.JobCancelled)]
    assert event.at_once


def test_kill_with_a_signal_reaches_running_jobs_only(handlers: HandlerFixture) -> None:
    running, pending = handlers.submit(gpus="2"), handlers.submit(gpus="2")
    handlers.run(running)
    reply = handlers.ask(partial(actions.kill, handlers.context, r.Kill(["all"], signal="USR1")))
    assert (done(reply), why(reply)) == ([running], "it is not running")
    assert handlers.status(pending) == "PENDING"


def test_kill_rejects_an_unknown_signal_and_skips_what_is_excluded(
    handlers: HandlerFixture,
) -> None:
    unknown = r.Kill(["all"], signal="NOPE")
    handlers.rejects(partial(actions.kill, handlers.context, unknown), "usage", "NOPE")
    job = handlers.submit()
    body = r.Kill([str(job)], only="waiting")
    assert why(handlers.ask(partial(actions.kill, handlers.context, body))) == "it is running"
    handlers.exit(job)
    assert "ended" in why(handlers.ask(partial(actions.kill, handlers.context, r.Kill([str(job)]))))


def test_pause_and_resume_suspend_and_continue_a_running_job(handlers: HandlerFixture) -> None:
    job = handlers.submit()
    assert "hold" in why(
        handlers.ask(partial(actions.pause, handlers.context, r.Pause([str(job)])))
    )
    handlers.run(job)
    assert "not paused" in why(
        handlers.ask(partial(actions.resume, handlers.context, r.Resume(["all"])))
    )
    handlers.ask(partial(actions.pause, handlers.context, r.Pause([str(job)])))
    assert handlers.status(job) == "SUSPENDED"
    handlers.ask(partial(actions.resume, handlers.context, r.Resume([str(job)])))
    assert handlers.status(job) == "RUNNING"


def test_hold_and_release_keep_a_pending_job_from_starting(handlers: HandlerFixture) -> None:
    running, pending = handlers.submit(gpus="2"), handlers.submit(gpus="2")
    select = [str(pending)]
    assert "not held" in why(
        handlers.ask(partial(actions.release, handlers.context, r.Release(select)))
    )
    reply = handlers.ask(partial(actions.hold, handlers.context, r.Hold(["all"])))
    assert (done(reply), why(reply)) == ([pending], "it is not pending (configuring)")
    assert done(handlers.ask(partial(actions.hold, handlers.context, r.Hold(select)))) == [pending]
    assert handlers.kinds() == [], "holding twice changes nothing"
    handlers.exit(running)
    assert handlers.status(pending) == "PENDING"
    handlers.ask(partial(actions.release, handlers.context, r.Release(select)))
    assert handlers.status(pending) == "CONFIGURING"


def test_retry_requeues_a_finished_job_from_the_store(handlers: HandlerFixture) -> None:
    job = handlers.submit()
    retry = partial(actions.retry, handlers.context, r.Retry([str(job)]))
    assert "not ended" in why(handlers.ask(retry))
    handlers.exit(job)
    handlers.unload(job)
    assert job not in handlers.state.jobs
    assert done(handlers.ask(retry)) == [job]
    assert handlers.kinds()[:2] == ["JobLoaded", "JobRetried"]
    assert handlers.job(job).attempt == 1


def test_retry_of_a_running_job_terminates_and_requeues_it(handlers: HandlerFixture) -> None:
    job, pending = handlers.submit(gpus="2", signal="USR1@60"), handlers.submit(gpus="2")
    handlers.run(job)
    body = r.Retry([f"{job}-{pending}"], running=True)
    reply = handlers.ask(partial(actions.retry, handlers.context, body))
    assert done(reply) == [job]
    assert "not ended (pending)" in why(reply)
    assert handlers.status(job) == "COMPLETING"  # at once, without its early signal
    handlers.exit(job, 143)
    assert handlers.job(job).attempt == 1
    assert handlers.status(job) in ("PENDING", "CONFIGURING")


def test_retry_of_failures_skips_dismissed_ones_by_default(handlers: HandlerFixture) -> None:
    good, bad, dismissed = handlers.submit(), handlers.submit(), handlers.submit()
    for job, code in ((good, 0), (bad, 3), (dismissed, 4)):
        handlers.exit(job, code)
    handlers.ask(partial(actions.dismiss, handlers.context, r.Dismiss([str(dismissed)])))
    count = r.Retry(failed=True, dry_run=True)
    assert handlers.ask(partial(actions.retry, handlers.context, count)) == {"count": 1}
    for body in (
        r.Retry(failed=True, all=True, dry_run=True),
        r.Retry(failed=True, since="1970-01-01T00:00:00+00:00", dry_run=True),
    ):
        assert handlers.ask(partial(actions.retry, handlers.context, body)) == {"count": 2}
    late = r.Retry(failed=True, since="2100-01-01T00:00:00+00:00", dry_run=True)
    assert handlers.ask(partial(actions.retry, handlers.context, late)) == {"count": 0}
    assert "succeeded" in why(
        handlers.ask(partial(actions.retry, handlers.context, r.Retry([str(good)], failed=True)))
    )
    assert done(handlers.ask(partial(actions.retry, handlers.context, r.Retry(failed=True)))) == [
        bad
    ]
    wrong = r.Retry(failed=True, since="yesterday")
    handlers.rejects(partial(actions.retry, handlers.context, wrong), "usage", "since")


def test_dismiss_takes_failures_off_the_list(handlers: HandlerFixture) -> None:
    good, bad, other = handlers.submit(), handlers.submit(), handlers.submit()
    for job, code in ((good, 0), (bad, 3), (other, 4)):
        handlers.exit(job, code)
    select = [str(good), str(bad)]
    assert done(handlers.ask(partial(actions.dismiss, handlers.context, r.Dismiss(select)))) == [
        bad
    ]
    assert done(handlers.ask(partial(actions.dismiss, handlers.context, r.Dismiss()))) == [other]
    assert done(handlers.ask(partial(actions.dismiss, handlers.context, r.Dismiss()))) == []
    assert handlers.kinds() == []
