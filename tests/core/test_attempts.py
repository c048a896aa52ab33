"""An attempt's life: started, over, lost, called off; and messages that come too late."""

import pytest

from core.scenario import Scenario, gpus
from simulation.state_comparison import state_as_dict
from stoker.core import events as e
from stoker.core.events.instructions import (
    Instruction,
    RunJobEndHook,
    RunQueueEmptyHook,
    StartProcess,
    TerminateAttempt,
)
from stoker.core.model.resources import DeviceAllocation, Placement
from stoker.core.model.spec import Retry


def test_a_planned_attempt_allocates_its_devices_and_is_started():
    story = Scenario(gpus=1)
    job = story.submit()
    story.plan()
    placed = story.placed(job)
    assert story.is_(job) == "CONFIGURING"
    assert story.free() == {"0": 0}
    assert story.tell(e.FailuresDismissed(at=0, jobs=())) == []
    assert placed.names("gpu") == ["0"]


def test_a_start_is_instructed_once_per_attempt():
    story = Scenario()
    job = story.submit()
    planned = e.AttemptPlanned(
        at=1, job=job, attempt=0, placement=_first_gpu(story), boot=1.0
    )  # fmt: skip
    assert story.tell(planned) == [StartProcess(job, 0, planned.placement)]


def _first_gpu(story: Scenario):
    from stoker.core.placement.placer import find_placement

    placement = find_placement(story.state.cluster, gpus(1))
    assert placement is not None
    return placement


def test_the_end_gives_the_devices_back_and_is_announced():
    story = Scenario()
    one, two = story.submit(), story.submit()
    story.run(one, two)
    assert story.exited(one) == [RunJobEndHook(one)]
    assert story.exited(two, 3) == [RunJobEndHook(two), RunQueueEmptyHook()]
    assert story.free() == {"0": 1000, "1": 1000}
    assert (story.job(two).code, story.job(two).cause) == (3, "exit 3")


def test_an_end_seen_before_its_start_is_an_end():
    story = Scenario()
    job = story.submit()
    story.plan()
    story.exited(job, 0)
    assert story.is_(job) == "COMPLETED"
    assert story.fact(e.ProcessStarted, job, attempt=0, pid=7, boot=1.0) == []
    assert story.is_(job) == "COMPLETED"


def test_a_job_with_a_cancelled_start_keeps_its_order_with_a_new_attempt():
    story = Scenario(gpus=1)
    one, two = story.submit(), story.submit()
    story.plan()
    story.about(e.StartCancelled, one, why="bob was first")
    assert (story.is_(one), story.job(one).attempt) == ("PENDING", 1)
    assert story.plan() == [one]
    assert story.is_(two) == "PENDING"


def test_a_job_that_cannot_start_has_failed_whatever_its_retry_rule():
    story = Scenario()
    job = story.submit(retry=Retry(5))
    story.plan()
    story.about(e.StartFailed, job, why="no such directory: /gone")
    assert (story.is_(job), story.job(job).cause) == ("FAILED", "no such directory: /gone")
    assert story.job(job).result == 1


STALE = [
    lambda job: e.ProcessStarted(at=5000, job=job, attempt=0, pid=99, boot=5000),
    lambda job: e.ProcessExited(at=5000, job=job, attempt=0, code=9),
    lambda job: e.AttemptLost(at=5000, job=job, attempt=0, why="late"),
    lambda job: e.StartFailed(at=5000, job=job, attempt=0, why="late"),
    lambda job: e.StartCancelled(at=5000, job=job, attempt=0, why="late"),
    lambda job: e.TimeLimitReached(at=5000, job=job, attempt=0),
    lambda job: e.TimeLimitNear(at=5000, job=job, attempt=0),
]


@pytest.mark.parametrize("stale", STALE)
@pytest.mark.parametrize("stage", ["waiting", "running", "over", "forgotten"])
def test_a_message_about_an_older_attempt_changes_nothing(stale, stage: str):
    story = Scenario()
    job = story.submit(retry=Retry(1))
    story.run(job)
    story.exited(job, 1)
    if stage != "waiting":
        story.wait(10)
        story.run(job)
    if stage in ("over", "forgotten"):
        story.exited(job, 0)
    if stage == "forgotten":
        story.tell(e.JobsUnloaded(at=0, jobs=(job,)))
    before = state_as_dict(story.state)
    assert story.tell(stale(job)) == []
    assert state_as_dict(story.state) == before


@pytest.mark.parametrize("repeated", STALE[:5])
def test_a_message_about_a_finished_attempt_changes_nothing(repeated):
    story = Scenario()
    job = story.submit()
    story.run(job)
    story.exited(job, 0)
    before = state_as_dict(story.state)
    assert story.tell(repeated(job)) == []
    assert state_as_dict(story.state) == before


def test_a_second_start_message_changes_nothing():
    story = Scenario()
    job = story.submit()
    story.run(job)
    before = state_as_dict(story.state)
    story.now += 50
    assert story.started(job, pid=8) == []
    assert state_as_dict(story.state) == before


def test_the_first_message_of_a_cancelled_start_does_not_revive_it():
    story = Scenario()
    job = story.submit()
    story.plan()
    assert story.fact(e.JobCancelled, job) == [TerminateAttempt(job, 0)]
    story.started(job)
    assert story.is_(job) == "COMPLETING"
    story.exited(job, 0)
    assert story.is_(job) == "CANCELLED"


def test_a_number_that_a_lost_attempt_used_is_not_used_again():
    story = Scenario(gpus=1)
    waits, over, runs = (story.submit(priority=n) for n in (0, 2, 1))
    story.run(over)
    story.exited(over)
    story.run(runs)
    for job in (waits, over, runs):
        assert story.fact(e.OrphanAttemptsFound, job, attempt=3) == []
    assert [story.job(job).attempt for job in (waits, over, runs)] == [4, 4, 0]
    assert story.fact(e.OrphanAttemptsFound, 99, attempt=3) == []


def recovered(story: Scenario, job: int, attempt: int, *gpus: str) -> list[Instruction]:
    """An attempt came to light that the journal did not know."""
    placement = Placement("box", tuple(DeviceAllocation("gpu", name, 1000) for name in gpus))
    return story.fact(e.AttemptRecovered, job, attempt=attempt, placement=placement, boot=5.0)


def test_an_attempt_that_the_journal_did_not_know_holds_its_devices_and_is_not_started():
    story = Scenario()
    job = story.submit(held=True)
    assert recovered(story, job, 2, "1") == []
    assert (story.is_(job), story.job(job).attempt) == ("CONFIGURING", 2)
    assert story.free() == {"0": 1000, "1": 0}
    story.started(job)
    story.exited(job, 3)
    assert (story.is_(job), story.job(job).code) == ("FAILED", 3)
    assert story.free() == {"0": 1000, "1": 1000}


def test_a_later_attempt_than_the_known_one_takes_its_place():
    story = Scenario()
    runs, over = story.submit(), story.submit()
    story.run(runs, over)
    story.exited(over)
    assert story.free()[story.on(runs)[0]] == 0
    recovered(story, runs, 1, "0")
    recovered(story, over, 1, "1")
    assert [story.is_(job) for job in (runs, over)] == ["CONFIGURING", "CONFIGURING"]
    assert (story.on(runs), story.on(over)) == (["0"], ["1"])
    assert story.free() == {"0": 0, "1": 0}
    assert story.exited(runs) == [RunJobEndHook(runs)]


def test_an_attempt_that_the_journal_knows_is_not_recovered():
    story = Scenario()
    waits, runs, over = story.submit(held=True), story.submit(), story.submit()
    story.run(runs, over)
    story.exited(over)
    story.fact(e.OrphanAttemptsFound, waits, attempt=3)
    before = state_as_dict(story.state)
    for job, attempt in ((waits, 3), (runs, 0), (over, 0), (99, 0)):
        assert recovered(story, job, attempt, "0") == []
    assert state_as_dict(story.state) == before


def test_a_job_that_was_found_running_does_not_bring_old_ids_back():
    story = Scenario()
    story.tell(e.IdsReserved(at=0, next_id=90))
    spec = story.state.spec(story.job(story.submit()))
    next_id = story.state.record.next_id
    story.tell(e.SpecRecorded(at=0, hash="found", spec=spec))
    story.tell(e.JobsSubmitted(at=0, first=40, count=1, spec="found", argv=("true",)))
    assert story.is_(40) == "PENDING"
    assert story.state.record.next_id == next_id
