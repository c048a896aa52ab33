"""The outcome of an ended attempt."""

import pytest

from core.scenario import Scenario
from stoker.core import events as e
from stoker.core.handlers.learning import MAX_KEPT
from stoker.core.handlers.outcome import MAX_BACKOFF_SECONDS, MAX_REQUEUES
from stoker.core.model.spec import Retry
from stoker.core.model.units import BadValue
from stoker.core.options.submit import parse_retry


def end(story: Scenario, job: int, how: str) -> None:
    match how:
        case "fail":
            story.exited(job, 3)
        case "oom":
            story.exited(job, 1, memory="cuda")
        case "signal":
            story.exited(job, None, signal=11)
        case "lost":
            story.about(e.AttemptLost, job, why="the node restarted")
        case "timeout":
            story.about(e.TimeLimitReached, job)
            story.exited(job, None, signal=15)
        case "done":
            story.exited(job, 0)


COVERED = {
    "any": {"fail", "oom", "signal", "lost", "timeout"},
    "fail": {"fail", "oom", "signal"},
    "oom": {"oom"},
    "signal": {"signal"},
    "lost": {"lost"},
    "timeout": {"timeout"},
    "exit:3": {"fail"},
    "exit:4": set(),
}


@pytest.mark.parametrize("rule", COVERED)
@pytest.mark.parametrize("how", ["fail", "oom", "signal", "lost", "timeout", "done"])
def test_a_rule_covers_its_causes(rule: str, how: str):
    story = Scenario()
    job = story.submit(retry=Retry(1, (rule,)), limit=60)
    story.run(job)
    end(story, job, how)
    again = how in COVERED[rule]
    assert (story.is_(job) == "PENDING") == again
    if again:
        assert (story.job(job).attempt, story.job(job).retries) == (1, 1)
        story.wait(10)
        story.run(job)
        end(story, job, how)
        assert story.job(job).finished  # the rule allows one more, not two


@pytest.mark.parametrize(
    ("how", "state", "cause"),
    [
        ("fail", "FAILED", "exit 3"),
        ("oom", "OUT_OF_MEMORY", "CUDA out of memory"),
        ("signal", "FAILED", "killed by SIGSEGV"),
        ("lost", "NODE_FAIL", "lost: the node restarted"),
        ("timeout", "TIMEOUT", "time limit"),
        ("done", "COMPLETED", "done"),
    ],
)
def test_the_cause_is_named(how: str, state: str, cause: str):
    story = Scenario()
    job = story.submit(limit=60)
    story.run(job)
    end(story, job, how)
    assert (story.is_(job), story.job(job).cause) == (state, cause)


def test_exit_75_requeues_whatever_the_retry_rule():
    story = Scenario()
    job = story.submit()
    story.run(job)
    story.exited(job, 75)
    assert (story.is_(job), story.job(job).requeues, story.job(job).retries) == ("PENDING", 1, 0)


def test_a_job_that_asks_at_once_again_waits_longer_each_time_up_to_a_bound():
    story = Scenario()
    job = story.submit()
    waits = []
    for _ in range(11):
        story.run(job)
        story.exited(job, 75)
        waits.append(story.job(job).begin_at - story.now)
        assert story.plan() == []
        story.wait(waits[-1])
    assert waits[:4] == [1, 2, 4, 8]
    assert waits[-1] == MAX_BACKOFF_SECONDS


def test_after_an_attempt_that_got_somewhere_there_is_no_wait():
    story = Scenario()
    job = story.submit()
    story.run(job)
    story.now += 61
    story.exited(job, 75)
    assert story.plan() == [job]


def test_a_job_that_asks_for_ever_is_stopped():
    story = Scenario()
    job = story.submit()
    for _ in range(MAX_REQUEUES):
        story.run(job)
        story.exited(job, 75)
        story.wait(MAX_BACKOFF_SECONDS)
    story.run(job)
    story.exited(job, 75)
    assert (story.is_(job), story.job(job).cause) == ("FAILED", "exit 75")


def test_old_attempts_are_remembered_but_not_without_bound():
    story = Scenario()
    job = story.submit(retry=Retry(50))
    for _ in range(30):
        story.run(job)
        story.exited(job, 1)
        story.wait(MAX_BACKOFF_SECONDS)
    past = story.job(job).past
    assert [each.attempt for each in past] == list(range(30))[-MAX_KEPT:]


def test_a_retry_by_the_user_resets_the_count_of_the_rule():
    story = Scenario()
    job = story.submit(retry=Retry(1))
    story.run(job)
    story.exited(job, 1)
    story.wait(5)
    story.run(job)
    story.exited(job, 1)
    assert story.is_(job) == "FAILED"
    story.fact(e.JobRetried, job)
    assert (story.is_(job), story.job(job).attempt, story.job(job).retries) == ("PENDING", 2, 0)
    assert story.job(job).cause is None


def test_a_retry_on_the_same_gpus_waits_for_them():
    story = Scenario(gpus=2)
    one, two = story.submit(), story.submit()
    story.run(one, two)
    story.exited(two, 1)
    story.fact(e.JobRetried, two, same_devices=True)
    three = story.submit()
    assert story.plan() == [two]
    story.exited(one)
    assert story.plan() == [three]
    assert story.on(two) == ["1"]


@pytest.mark.parametrize(
    ("limit", "on", "requeue", "rule"),
    [
        ("3", None, None, Retry(3, ("any",))),
        ("2", "oom,lost", None, Retry(2, ("oom", "lost"))),
        (None, "exit:3, 4", None, Retry(3, ("exit:3", "exit:4"))),
        (None, None, True, Retry(3, ("lost",))),
        (None, None, None, Retry()),
        ("0", None, True, Retry(0, ("any",))),
    ],
)
def test_rules_as_typed(limit: str | None, on: str | None, requeue: bool | None, rule: Retry):
    assert parse_retry(limit, on, requeue) == rule


@pytest.mark.parametrize(
    ("limit", "on"), [("x", None), ("-1", None), ("9" * 5000, None), ("1", "rain"),
                      ("1", "exit:x"), ("1", "exit:"), ("1", "9" * 5000)],
)  # fmt: skip
def test_what_is_no_rule(limit: str, on: str | None):
    with pytest.raises(BadValue):
        parse_retry(limit, on, None)
