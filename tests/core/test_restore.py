"""Finished jobs leave memory and are loaded again; the state is built from rows."""

import pytest

from core.scenario import Scenario
from simulation.state_comparison import fold, state_as_dict
from stoker.core import events as e
from stoker.core.model.dependency import Clause, Dependency
from stoker.core.state import restore as restore_module
from stoker.core.state.restore import restore, unloadable_jobs


@pytest.fixture(autouse=True)
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_module, "KEEP_FINISHED", 8)


def finished(story: Scenario, count: int, code: int = 0) -> list[int]:
    jobs = []
    for _ in range(count):
        job = story.submit()
        story.run(job)
        story.exited(job, code)
        jobs.append(job)
    return jobs


def forget(story: Scenario) -> tuple[int, ...]:
    story.state.take_changes()  # a commit
    chosen = unloadable_jobs(story.state)
    if chosen:
        story.tell(e.JobsUnloaded(at=story.now, jobs=chosen))
    return chosen


def test_the_oldest_ends_leave_memory_once_there_are_enough():
    story = Scenario()
    jobs = finished(story, 9)
    assert forget(story) == ()
    jobs += finished(story, 1)
    assert forget(story) == tuple(jobs[:2])
    assert story.state.take_changes().unloaded == jobs[:2]
    assert sorted(story.state.jobs) == jobs[2:]


def test_an_end_that_is_not_yet_on_record_stays():
    story = Scenario()
    finished(story, 17)
    assert unloadable_jobs(story.state) == ()


def test_unseen_failures_stay_longer_but_not_without_bound():
    story = Scenario()
    failures = finished(story, 33, code=1)
    assert forget(story) == ()
    failures += finished(story, 3, code=1)
    assert forget(story) == tuple(failures[:4])


def test_a_job_that_others_wait_for_stays():
    story = Scenario()
    [needed] = finished(story, 1, code=1)
    story.tell(e.FailuresDismissed(at=0, jobs=(needed,)))
    story.submit(dependency=Dependency((Clause("afterok", (needed,)),)))
    jobs = finished(story, 9)
    assert needed not in forget(story)
    assert forget(story) == ()
    assert jobs[0] not in story.state.jobs


def test_a_forgotten_job_is_recalled_as_it_was():
    story = Scenario()
    finished(story, 1, code=3)
    job, spec = story.job(1), story.state.spec(story.job(1))
    story.tell(e.JobsUnloaded(at=0, jobs=(1,)))
    assert story.state.specs == {}
    story.tell(e.JobLoaded(at=0, job=job, spec=spec))
    assert (story.is_(1), list(story.state.unacknowledged)) == ("FAILED", [1])
    assert story.state.live == 0


def test_the_fact_of_a_recall_does_not_change_with_the_job():
    story = Scenario()
    finished(story, 1, code=3)
    job, spec = story.job(1), story.state.spec(story.job(1))
    story.tell(e.JobsUnloaded(at=0, jobs=(1,)))
    recalled = e.JobLoaded(at=0, job=job, spec=spec)
    story.tell(recalled)
    story.fact(e.JobRetried, 1)
    assert recalled.job.state.value == "FAILED"
    assert state_as_dict(fold(story.journal)) == state_as_dict(story.state)


def test_replay_and_rows_give_the_same_state():
    story = Scenario(gpus=2)
    story.tell(e.QueueDefined(at=0, name="q", max_running=2))
    story.submit(queue="q", count=3, array=True, array_limit=2)
    story.submit(held=True)
    story.submit(begin_at=2000.0, deadline_at=3000.0)
    story.submit(dependency=Dependency((Clause("afterok", (1,)),)))
    story.run(1)
    story.exited(1, 1)
    story.run(2)
    story.tell(e.DevicesDrained(at=0, devices=(("box", "gpu", "0"),), reason="fan"))
    story.tell(e.ForeignUseChanged(at=0, node="box", device="1", foreign_user="bob", memory=9))
    state = story.state
    assert state_as_dict(fold(story.journal)) == state_as_dict(state)
    rows = restore(state.record, state.specs, list(state.jobs.values()))
    assert state_as_dict(rows) == state_as_dict(state)
