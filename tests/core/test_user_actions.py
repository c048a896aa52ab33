"""User actions on jobs: cancel, hold, release, pause, retry, edit and move."""

import pytest

from core.scenario import Afar, Scenario, gpus
from stoker.core import events as e
from stoker.core.events.instructions import (
    ResumeAttempt,
    RunJobEndHook,
    RunQueueEmptyHook,
    SignalAttempt,
    SuspendAttempt,
    TerminateAttempt,
)
from stoker.core.model.spec import EarlySignal, Spec


def test_cancelling_a_waiting_job_ends_it_there_and_then():
    story = Scenario()
    job = story.submit()
    assert story.fact(e.JobCancelled, job) == [RunJobEndHook(job), RunQueueEmptyHook()]
    assert (story.is_(job), story.job(job).result) == ("CANCELLED", 143)
    assert story.plan() == []


@pytest.mark.parametrize("more", [{"held": True}, {"begin_at": 9e9}])
def test_cancelling_a_job_that_waits_for_something_else(more: dict[str, object]):
    story = Scenario()
    job = story.submit(**more)  # type: ignore[arg-type]
    story.fact(e.JobCancelled, job)
    assert story.is_(job) == "CANCELLED"


@pytest.mark.parametrize("stage", ["configuring", "running", "suspended"])
def test_cancelling_a_job_that_holds_devices_ends_its_tree_first(stage: str):
    story = Scenario(gpus=1)
    job = story.submit()
    story.plan()
    if stage != "configuring":
        story.started(job)
    if stage == "suspended":
        story.fact(e.JobPaused, job, boot=story.now)
    assert story.fact(e.JobCancelled, job) == [TerminateAttempt(job, 0)]
    assert story.free() == {"0": 0}
    story.exited(job, None, signal=15)
    assert (story.is_(job), story.free()) == ("CANCELLED", {"0": 1000})


def test_a_second_cancel_may_insist():
    story = Scenario()
    job = story.submit()
    story.run(job)
    story.fact(e.JobCancelled, job)
    assert story.fact(e.JobCancelled, job, at_once=True) == [TerminateAttempt(job, 0, at_once=True)]


def test_cancelling_a_job_at_its_time_limit_records_it_as_cancelled():
    story = Scenario()
    job = story.submit(limit=60)
    story.run(job)
    story.wait(60)
    story.state.take_changes()
    story.fact(e.JobCancelled, job)
    assert story.state.take_changes().jobs == {job}
    story.exited(job, None, signal=15)
    assert story.is_(job) == "CANCELLED"


def test_cancelling_what_is_over_changes_nothing():
    story = Scenario()
    job = story.submit()
    story.run(job)
    story.exited(job)
    assert story.fact(e.JobCancelled, job) == []
    assert story.is_(job) == "COMPLETED"


def test_hold_and_release():
    story = Scenario()
    job = story.submit()
    story.fact(e.JobHeld, job)
    assert story.plan() == []
    story.fact(e.JobReleased, job)
    assert story.plan() == [job]


def test_pause_keeps_the_devices():
    story = Scenario(gpus=1)
    job = story.submit()
    story.run(job)
    assert story.fact(e.JobPaused, job, boot=story.now) == [SuspendAttempt(job, 0)]
    story.submit()
    assert story.plan() == []
    assert story.fact(e.JobResumed, job, boot=story.now) == [ResumeAttempt(job, 0)]


def test_a_signal_is_passed_on():
    story = Scenario()
    job = story.submit()
    story.run(job)
    assert story.fact(e.JobSignalled, job, signal=10) == [SignalAttempt(job, 0, 10)]
    to_script = story.fact(e.JobSignalled, job, signal=10, to_script=True)
    assert to_script == [SignalAttempt(job, 0, 10, to_script=True)]


def edit(story: Scenario, job: int, **fields: object) -> None:
    from msgspec.structs import replace

    spec: Spec = replace(story.state.spec(story.job(job)), **fields)
    hash = repr(spec)
    story.tell(e.SpecRecorded(at=story.now, hash=hash, spec=spec))
    story.fact(
        e.JobEdited, job, spec=hash, name=spec.name, priority=3, begin_at=story.job(job).begin_at
    )


def test_an_edited_job_asks_for_something_else():
    story = Scenario(gpus=2)
    jobs = [story.submit(gpus(2)) for _ in range(2)]
    old = story.job(jobs[0]).spec
    edit(story, jobs[1], request=gpus(1), name="other")
    assert (story.job(jobs[1]).name, story.job(jobs[1]).priority) == ("other", 3)
    assert story.plan() == [jobs[1]]
    assert old in story.state.specs


def test_the_demand_of_an_edited_job_is_that_of_its_new_request():
    edited, fresh = Scenario(gpus=4), Scenario(gpus=4)
    edit(edited, edited.submit(gpus(4)), request=gpus(1))
    fresh.submit(gpus(1))
    demands = [story.state.cluster.demand_histogram._counts for story in (edited, fresh)]
    assert demands[0] == demands[1]


def test_unused_specs_leave_memory_with_the_next_unloaded_jobs():
    story = Scenario()
    job, other = story.submit(), story.submit(user="ben")
    old, unloaded = story.job(job).spec, story.job(other).spec
    edit(story, job, limit=60)
    story.fact(e.JobCancelled, other)
    assert story.state.specs.keys() == {old, unloaded, story.job(job).spec}
    story.tell(e.JobsUnloaded(at=story.now, jobs=(other,)))
    assert story.state.specs.keys() == {story.job(job).spec}


def test_an_edited_dependency_replaces_the_old_one():
    from stoker.core.model.dependency import Clause, Dependency

    story = Scenario(gpus=1)
    first, other = story.submit(held=True), story.submit(held=True)
    job = story.submit(dependency=Dependency((Clause("afterok", (first,)),)))
    edit(story, job, dependency=Dependency((Clause("afterany", (other,)),)))
    assert story.state.dependents == {other: {job}}
    story.fact(e.JobCancelled, other)
    assert story.plan() == [job]


def test_seen_failures_leave_the_listing():
    story = Scenario()
    job = story.submit()
    story.run(job)
    story.exited(job, 1)
    assert list(story.state.unacknowledged) == [job]
    story.tell(e.FailuresDismissed(at=0, jobs=(job, 99)))
    assert (list(story.state.unacknowledged), story.job(job).seen) == ([], True)


def test_ids_are_never_used_again():
    story = Scenario()
    first = story.submit(count=3)
    for job in range(first, first + 3):
        story.fact(e.JobCancelled, job)
    story.tell(e.JobsUnloaded(at=0, jobs=(first, first + 1, first + 2)))
    assert story.submit() == first + 3


def edit_running(story: Scenario, job: int, priority: int = 0, **fields: object) -> None:
    from msgspec.structs import replace

    spec: Spec = replace(story.state.spec(story.job(job)), **fields)
    if repr(spec) not in story.state.specs:
        story.tell(e.SpecRecorded(at=story.now, hash=repr(spec), spec=spec))
    story.fact(e.JobEdited, job, spec=repr(spec), name=spec.name, priority=priority)


def test_a_longer_limit_of_a_running_job_counts_from_its_start():
    story = Afar()
    job = story.submit(limit=60)
    story.run(job)
    story.wait(50)
    edit_running(story, job, limit=100)
    assert story.wait(49) == []
    assert story.is_(job) == "RUNNING"
    assert [type(fact) for fact in story.wait(1)] == [e.TimeLimitReached]


def test_a_limit_that_a_running_job_has_used_already_ends_it():
    story = Afar()
    job = story.submit()
    story.run(job)
    story.wait(50)
    edit_running(story, job, limit=20)
    assert [type(fact) for fact in story.wait(0)] == [e.TimeLimitReached]
    story.exited(job, None, signal=15)
    assert story.is_(job) == "TIMEOUT"


def test_a_running_job_without_a_limit_any_more_is_warned_of_the_next_one():
    story = Afar()
    job = story.submit(limit=60, early_signal=EarlySignal(10, 20))
    story.run(job)
    assert [type(fact) for fact in story.wait(45)] == [e.TimeLimitNear]
    edit_running(story, job, limit=None)
    assert story.wait(1000) == []
    edit_running(story, job, limit=2000)
    assert [type(fact) for fact in story.wait(940)] == [e.TimeLimitNear]


def test_the_new_priority_of_a_running_job_counts_for_preemption():
    story = Afar(gpus=1)
    runs = story.submit(requeueable=True, priority=5)
    story.run(runs)
    waits = story.submit(priority=3)
    story.plan()
    assert story.is_(runs) == "RUNNING"
    edit_running(story, runs, priority=1)
    assert story.state.pending.planning_requested
    assert story.plan() == [runs]  # it is asked to stop
    assert story.is_(runs) == "COMPLETING"
    story.exited(runs, None, signal=15)
    assert story.plan() == [waits]


def test_a_running_job_of_raised_priority_is_not_preempted():
    story = Afar(gpus=1)
    runs = story.submit(requeueable=True)
    story.run(runs)
    edit_running(story, runs, priority=5)
    story.submit(priority=3)
    assert story.plan() == []
    assert story.is_(runs) == "RUNNING"
