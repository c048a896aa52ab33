"""Wait requests: when they get their reply, and what it says."""

from typing import Any

import pytest

from daemon.handler_fixture import HandlerFixture, as_json, assert_rejection
from stoker.core.events import SweepChanged
from stoker.daemon.handlers import wait
from stoker.daemon.handlers.wait import JobWaiter, JobWaiters
from stoker.daemon.sweeps.controller import AddTrials, SweepController
from stoker.daemon.sweeps.submit import handle_submit_sweep
from stoker.engine import CommandRejected
from stoker.schema.requests import Sweep
from virtual_reactor import VirtualReactor


class Waiting:
    """Wait requests of one daemon, checked after every cycle."""

    def __init__(self, handlers: HandlerFixture) -> None:
        self.handlers = handlers
        self.reactor = VirtualReactor(lambda: handlers.now)
        self.waiters = JobWaiters(self.reactor)
        self.replies: list[Any] = []
        self.rejections: list[CommandRejected] = []

    def start(self, *selectors: str, any: bool = False, timeout: float | None = None) -> JobWaiter:
        waiter = JobWaiter(
            self.waiters, self.handlers.context, list(selectors), any, timeout, self._done
        )
        self.handlers.cycle([], [waiter])
        self.check()
        return waiter

    def _done(self, value: Any, rejection: CommandRejected | None) -> None:
        if rejection is not None:
            self.rejections.append(rejection)
        else:
            self.replies.append(as_json(value))

    def check(self) -> None:
        handlers = self.handlers
        self.waiters.check(handlers.state, handlers.engine.clock(), handlers.events)

    def exit(self, job: int, code: int = 0) -> None:
        self.handlers.exit(job, code)
        self.check()


@pytest.fixture
def waiting(handlers: HandlerFixture) -> Waiting:
    return Waiting(handlers)


def test_the_reply_comes_when_all_jobs_have_finished(waiting: Waiting) -> None:
    jobs = [waiting.handlers.submit() for _ in range(2)]
    waiting.start(*map(str, jobs))
    waiting.exit(jobs[0])
    assert waiting.replies == []
    waiting.exit(jobs[1], 3)
    (reply,) = waiting.replies
    assert (reply["finished"], reply["count"]) == (True, 2)
    assert [view["result"] for view in reply["jobs"]] == [0, 3]
    assert waiting.waiters.waiting == []


def test_any_is_satisfied_by_the_first_finished_job(waiting: Waiting) -> None:
    jobs = [waiting.handlers.submit() for _ in range(2)]
    waiting.start(*map(str, jobs), any=True)
    assert waiting.replies == []
    waiting.exit(jobs[1])
    assert waiting.replies[0]["finished"]


def test_finished_jobs_in_the_store_get_a_reply_at_once(waiting: Waiting) -> None:
    job = waiting.handlers.submit()
    waiting.exit(job)
    waiting.handlers.unload(job)
    waiting.start(str(job))
    assert waiting.replies[0]["jobs"][0]["id"] == job


def test_the_timeout_is_counted_from_the_request(waiting: Waiting) -> None:
    handlers = waiting.handlers
    waiting.start(str(handlers.submit()), timeout=60.0)
    waiting.start(str(handlers.submit()), timeout=100.0)
    handlers.now += 59
    waiting.check()
    assert (waiting.replies, waiting.reactor.seconds_until_timer()) == ([], 1.0)
    handlers.now += 1
    waiting.reactor.run_timers()
    waiting.check()
    assert not waiting.replies[0]["finished"]
    assert waiting.reactor.seconds_until_timer() == 40.0


def test_a_closed_connection_gets_no_reply(waiting: Waiting) -> None:
    waiter = waiting.start(str(waiting.handlers.submit()))
    waiter.disconnect()
    waiting.check()
    assert (waiting.replies, waiting.waiters.waiting) == ([], [])


def test_a_job_with_a_failed_dependency_ends_the_wait(waiting: Waiting) -> None:
    handlers = waiting.handlers
    first = handlers.submit(gpus="1")
    second = handlers.submit(gpus="1", dependency=f"afterok:{first}")
    waiting.start(str(second))
    assert waiting.replies == []
    waiting.exit(first, 1)
    (reply,) = waiting.replies
    assert not reply["finished"]
    assert reply["stuck"][0]["id"] == second
    waiting.start(str(second))
    assert waiting.replies[1]["stuck"], "a later request is not kept waiting either"


@pytest.mark.parametrize(("selectors", "code"), [((), "usage"), (("99",), "not_found")])
def test_a_wait_for_no_job_is_rejected(
    waiting: Waiting, selectors: tuple[str, ...], code: str
) -> None:
    waiting.start(*selectors)
    (rejection,) = waiting.rejections
    assert_rejection(rejection, code, "job")


def test_of_many_jobs_only_the_one_with_the_highest_exit_code_is_shown(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "MAX_VIEWS", 2)
    jobs = [waiting.handlers.submit() for _ in range(3)]
    waiting.start("all")
    for job, code in zip(jobs, (1, 7, 0), strict=True):
        waiting.exit(job, code)
    (reply,) = waiting.replies
    assert (reply["count"], [view["id"] for view in reply["jobs"]]) == (3, [jobs[1]])


def test_a_wait_for_a_sweep_includes_the_trials_to_come(waiting: Waiting) -> None:
    handlers = waiting.handlers
    definition = {
        "method": "random", "parameters": {"x": {"min": 0.0, "max": 1.0}}, "line": "train {x}",
        "samples": None, "metric": {"name": "loss"},
    }  # fmt: skip
    body = Sweep(definition=definition, directory=str(handlers.directory))
    handlers.ask(handle_submit_sweep(handlers.context, body))
    waiting.start("1")
    sampler: Any = None
    handlers.cycle([], [AddTrials(SweepController(handlers.context, list, sampler), 1, None)])
    waiting.check()
    waiting.exit(2)
    assert waiting.replies == [], "the sweep wants more trials"
    handlers.context.jobs_being_read = lambda: [2]
    handlers.apply(SweepChanged(at=handlers.now, sweep=1, ended=True))
    waiting.check()
    assert waiting.replies == [], "the metrics of a trial are still being read"
    handlers.context.jobs_being_read = tuple
    waiting.check()
    assert [view["id"] for view in waiting.replies[0]["jobs"]] == [2]


def test_a_wait_ends_when_a_sweep_cannot_continue(waiting: Waiting) -> None:
    handlers = waiting.handlers
    definition = {
        "method": "random", "parameters": {"x": {"min": 0.0, "max": 1.0}}, "line": "train {x}",
    }  # fmt: skip
    body = Sweep(definition=definition, directory=str(handlers.directory))
    handlers.ask(handle_submit_sweep(handlers.context, body))
    waiting.start("1")
    handlers.apply(SweepChanged(at=handlers.now, sweep=1, note="optuna crashed"))
    waiting.check()
    (reply,) = waiting.replies
    assert (reply["finished"], "crashed" in reply["notes"][0]) == (False, True)
