"""Begin times, time limits, warnings and deadlines."""

from core.scenario import Scenario
from stoker.core import events as e
from stoker.core.events.instructions import SignalAttempt, TerminateAttempt
from stoker.core.model.spec import EarlySignal, Retry
from stoker.core.state.timers import due_events, next_wakeup


def until_due(story: Scenario) -> float | None:
    return next_wakeup(story.state, story.now, story.now)


def test_nothing_is_due_when_nothing_has_a_time():
    story = Scenario()
    story.run(story.submit())
    assert until_due(story) is None


def test_a_job_waits_for_its_begin_time():
    story = Scenario()
    job = story.submit(begin_at=1060.0)
    assert story.plan() == []
    assert until_due(story) == 60
    story.wait(60)
    assert story.plan() == [job]


def test_a_held_job_past_its_begin_time_starts_when_released():
    story = Scenario()
    job = story.submit(begin_at=1060.0, held=True)
    story.wait(100)
    story.fact(e.JobReleased, job)
    story.wait(0)
    assert story.plan() == [job]


def test_a_begin_time_that_was_changed_counts_as_changed():
    story = Scenario()
    job = story.submit(begin_at=1060.0)
    spec = story.job(job).spec
    story.fact(e.JobEdited, job, spec=spec, name="job", priority=0, begin_at=1500.0)
    story.wait(60)
    assert story.plan() == []
    story.wait(440)
    assert story.plan() == [job]


def test_a_time_limit_counts_from_the_start_and_ends_the_job():
    story = Scenario()
    job = story.submit(limit=60)
    story.plan()
    story.now += 20
    story.started(job)
    assert until_due(story) == 60
    assert story.wait(59) == []
    story.now += 1
    facts = due_events(story.state, story.now, story.now)
    assert facts == [e.TimeLimitReached(at=story.now, job=job, attempt=0)]
    assert story.tell(facts[0]) == [TerminateAttempt(job, 0)]
    assert due_events(story.state, story.now + 5, story.now + 5) == []
    assert until_due(story) is None
    story.exited(job, None, signal=15)
    assert (story.is_(job), story.job(job).result) == ("TIMEOUT", 124)


def test_limits_go_by_the_boot_clock_whatever_the_wall_clock_does():
    story = Scenario()
    job = story.submit(limit=60)
    story.run(job)
    assert due_events(story.state, story.now + 1e9, story.now + 59) == []
    assert len(due_events(story.state, story.now - 1e9, story.now + 60)) == 1


def test_a_pause_does_not_count_against_the_limit():
    story = Scenario()
    job = story.submit(limit=60)
    story.run(job)
    story.now += 50
    story.fact(e.JobPaused, job, boot=story.now)
    assert story.wait(1000) == []
    assert until_due(story) is None
    story.fact(e.JobResumed, job, boot=story.now)
    assert story.job(job).slack == 1000
    assert until_due(story) == 10
    assert len(story.wait(10)) == 1


def test_the_warning_comes_once_and_before_the_limit():
    story = Scenario()
    job = story.submit(limit=60, early_signal=EarlySignal(10, 20))
    story.run(job)
    assert until_due(story) == 40
    story.now += 40
    [near] = due_events(story.state, story.now, story.now)
    assert story.tell(near) == [SignalAttempt(job, 0, 10)]
    assert until_due(story) == 20
    assert story.wait(19) == []


def test_the_warning_may_be_for_the_script_alone():
    story = Scenario()
    job = story.submit(limit=60, early_signal=EarlySignal(10, 20, to_script=True))
    story.run(job)
    story.now += 40
    [near] = due_events(story.state, story.now, story.now)
    assert story.tell(near) == [SignalAttempt(job, 0, 10, to_script=True)]


def test_no_warning_reaches_a_job_that_is_being_ended():
    story = Scenario()
    job = story.submit(limit=60, early_signal=EarlySignal(10, 20))
    story.run(job)
    assert [type(fact) for fact in story.wait(100)] == [e.TimeLimitReached]
    assert story.wait(1) == []


def test_every_attempt_has_its_own_time_and_its_own_warning():
    story = Scenario()
    job = story.submit(limit=60, early_signal=EarlySignal(10, 20), retry=Retry(1))
    story.run(job)
    story.wait(45)
    story.exited(job, 1)
    story.wait(100)
    story.run(job)
    assert story.wait(39) == []
    assert [type(fact) for fact in story.wait(1)] == [e.TimeLimitNear]


def test_a_deadline_ends_what_waits_and_what_runs():
    story = Scenario(gpus=1)
    runs, waits = story.submit(deadline_at=1060.0), story.submit(deadline_at=1060.0)
    story.run(runs)
    assert until_due(story) == 60
    story.wait(60)
    assert (story.is_(runs), story.is_(waits)) == ("COMPLETING", "DEADLINE")
    story.exited(runs, 0)
    assert story.is_(runs) == "DEADLINE"


def test_a_job_past_its_deadline_is_not_tried_again():
    story = Scenario()
    job = story.submit(deadline_at=1060.0, limit=50, retry=Retry(9))
    story.run(job)
    story.wait(55)
    assert story.is_(job) == "COMPLETING"
    story.wait(10)  # the deadline passes while it is being ended
    story.exited(job, None, signal=15)
    assert story.is_(job) == "PENDING"
    story.wait(0)
    assert story.is_(job) == "DEADLINE"


def test_a_job_lost_while_it_was_ended_for_its_deadline_is_not_tried_again():
    story = Scenario()
    job = story.submit(deadline_at=1060.0, retry=Retry(9))
    story.run(job)
    story.wait(60)
    story.about(e.AttemptLost, job, why="the node restarted")
    assert story.is_(job) == "DEADLINE"


def test_a_deadline_no_longer_counts_for_a_job_that_its_owner_retries_after_it():
    from stoker.core.state.restore import restore

    story = Scenario()
    job = story.submit(deadline_at=1060.0, held=True)
    story.wait(60)
    story.fact(e.JobRetried, job)
    story.run(job)
    assert story.wait(10) == []
    again = restore(story.state.record, story.state.specs, [story.job(job)])
    assert due_events(again, story.now, story.now) == []


def test_a_pending_job_finishes_when_it_cannot_end_by_its_deadline() -> None:
    story = Scenario(gpus=1)
    story.run(story.submit())
    late = story.submit(limit=60, deadline_at=story.now + 100)
    story.wait(39)
    assert story.is_(late) == "PENDING"
    story.wait(2)
    assert story.is_(late) == "DEADLINE"


def test_a_job_that_started_late_keeps_its_deadline():
    story = Scenario(gpus=1)
    job = story.submit(limit=60, deadline_at=story.now + 45)
    story.run(job)
    assert not story.wait(1)
    assert [type(fact) for fact in story.wait(50)] == [e.DeadlinePassed]
    assert story.is_(job) == "COMPLETING"
