"""Changes of pending and running jobs, and what cannot be changed."""

from functools import partial
from typing import Any

import pytest

from daemon.handler_fixture import HandlerFixture, assert_rejection
from stoker.daemon.handlers.edit import edit
from stoker.daemon.handlers.job_actions import cancel
from stoker.engine import CommandRejected
from stoker.schema.requests import Cancel, Edit


def change(handlers: HandlerFixture, *jobs: int, dry_run: bool = False, **options: Any) -> Any:
    body = Edit([str(job) for job in jobs], options=options, dry_run=dry_run)
    return handlers.ask(partial(edit, handlers.context, body))


def why(reply: dict[str, Any]) -> str:
    (skipped,) = reply["skipped"]
    text: str = skipped["why"]
    return text


@pytest.fixture
def pending(handlers: HandlerFixture) -> int:
    """A job behind one that takes both GPUs."""
    handlers.submit(gpus="2")
    return handlers.submit(gpus="2", name="second")


@pytest.mark.parametrize("option", ["array", "export", "env", "pty", "hold"])
def test_an_option_that_is_fixed_at_submission_is_rejected(
    handlers: HandlerFixture, option: str
) -> None:
    body = Edit(["1"], options={option: "x"})
    handlers.rejects(partial(edit, handlers.context, body), "usage", option)


def test_an_edit_without_options_or_with_a_wrong_one_is_rejected(
    handlers: HandlerFixture, pending: int
) -> None:
    select = [str(pending)]
    handlers.rejects(partial(edit, handlers.context, Edit(select)), "usage", "Nothing to change")
    wrong: list[dict[str, Any]] = [
        {"gpus": "-1"}, {"time": "soon"}, {"dependency": f"afterok:{pending}"},
        {"dependency": "afterok:99"}, {"snapshots_dir": "/no/such"}, {"send": ["nosuch"]},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(CommandRejected) as error:
            change(handlers, pending, **options)
        assert error.value.code in ("usage", "not_found"), options
    with pytest.raises(CommandRejected) as error:
        change(handlers, pending, gpus="9")
    assert_rejection(error.value, "impossible", "Cannot be satisfied")


def test_a_pending_job_gets_its_new_options(handlers: HandlerFixture, pending: int) -> None:
    change(handlers, pending, gpus="1", name="renamed", priority=5, time="10", delay="1h")
    job, spec = handlers.job(pending), handlers.state.spec(handlers.job(pending))
    assert (job.name, job.priority, spec.limit) == ("renamed", 5, 600)
    assert (spec.request.gpu_amount, job.begin_at) == (1000, handlers.now + 3600)
    change(handlers, pending, priority=1)
    assert handlers.job(pending).begin_at == job.begin_at, "other options leave it as it was"
    change(handlers, pending, time="0")
    assert handlers.state.spec(handlers.job(pending)).limit is None


def test_a_dependency_on_itself_over_another_job_is_rejected(
    handlers: HandlerFixture, pending: int
) -> None:
    later = handlers.submit(dependency=f"afterok:{pending}")
    with pytest.raises(CommandRejected) as error:
        change(handlers, pending, dependency=f"afterok:{later}")
    assert_rejection(error.value, "usage", "depend")


def test_a_dependency_on_a_finished_job_in_the_store_loads_it(handlers: HandlerFixture) -> None:
    first = handlers.submit(gpus="2")
    handlers.exit(first)
    handlers.unload(first)
    handlers.submit(gpus="2")
    pending = handlers.submit(gpus="2")
    change(handlers, pending, dependency=f"afterok:{first}")
    assert "JobLoaded" in handlers.kinds()


def test_of_a_running_job_time_and_priority_can_be_changed(handlers: HandlerFixture) -> None:
    job = handlers.submit()
    handlers.run(job)
    assert "--gpus" in why(change(handlers, job, gpus="2"))
    change(handlers, job, time="10", priority=3)
    spec = handlers.state.spec(handlers.job(job))
    assert (spec.limit, handlers.job(job).priority) == (600, 3)
    handlers.now += 300
    assert change(handlers, job, time="4", dry_run=True) == {"overdue": [str(job)]}
    assert change(handlers, job, time="6", dry_run=True) == {"overdue": []}
    assert handlers.state.spec(handlers.job(job)).limit == 600


def test_a_job_that_has_ended_or_is_being_ended_is_skipped(handlers: HandlerFixture) -> None:
    done, stopping = handlers.submit(), handlers.submit()
    handlers.exit(done)
    handlers.run(stopping)
    handlers.ask(partial(cancel, handlers.context, Cancel([str(stopping)])))
    assert "ended" in why(change(handlers, done, priority=1))
    assert why(change(handlers, stopping, priority=1)) == "it is being ended"
