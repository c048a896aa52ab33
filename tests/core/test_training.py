"""Training jobs in the core: epochs that count, room that is made, memory that is shared."""

from typing import Any

import msgspec
import pytest

from core.scenario import Afar, gpus
from stoker.core import events as e
from stoker.core.events import instructions as i
from stoker.core.launch.training_env import training_variables
from stoker.core.measurement.estimator import epochs_of, remaining
from stoker.core.model.job import Job, Progress
from stoker.core.model.resources import SHARED_SLOT, ResourceRequest
from stoker.core.model.spec import EarlySignal, Retry, Training
from stoker.core.state.restore import restore

MIB = 1024


def training(
    story: Afar, ask: ResourceRequest | None = None, priority: int = 0, **more: Any
) -> int:
    """A training job that shares its GPU by memory, if it says how much it needs."""
    fields = {"training": Training(epochs=10), **more}
    return story.submit(ask or gpus(1), priority=priority, **fields)


def sharing(memory: int | None, **more: Any) -> ResourceRequest:
    return gpus(1, shareable=True, memory=memory, **more)


def listens(story: Afar, *jobs: int) -> None:
    """They have started, and their library has spoken up."""
    story.run(*jobs)
    for job in jobs:
        story.about(e.TrainingBegan, job)


def progress(story: Afar, job: int) -> Progress:
    found = story.job(job).progress
    assert found is not None
    return found


def counted(story: Afar, job: int, done: int, **more: Any) -> None:
    story.about(e.EpochsCounted, job, done=done, **more)


def told(story: Afar, job: int) -> dict[str, str]:
    """The variables of an attempt."""
    found = story.job(job)
    return training_variables(found, story.state.spec(found), story.placed(job), ("box",), "abc-1")


# -- preemption ---------------------------------------------------------------------------


def test_the_more_urgent_asks_the_less_urgent_to_stop_and_takes_its_gpu() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    high = training(story, priority=5)
    story.plan()
    assert story.is_(low) == "RUNNING"
    assert progress(story, low).stop is not None
    assert progress(story, low).stop.preemptor == high  # type: ignore[union-attr]
    counted(story, low, 3)
    story.exited(low, 75, stopped=True)
    assert story.plan() == [high]
    assert (story.is_(low), story.is_(high)) == ("PENDING", "CONFIGURING")
    assert (progress(story, low).preemptions, progress(story, low).epochs) == (1, 3)
    assert story.job(low).retries == story.job(low).requeues == 0


def test_it_is_asked_once_however_often_there_is_something_to_plan() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    training(story, priority=5)
    assert story.plan() == [low]
    assert story.plan() == []


def test_the_wish_goes_out_to_the_library() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    instructions = story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    assert instructions == [i.RequestStop(low, 0)]


def test_a_job_asked_before_its_library_spoke_hears_of_it_then() -> None:
    story = Afar(gpus=1)
    low = training(story, early_signal=EarlySignal(10, 60))
    story.run(low)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    assert story.about(e.TrainingBegan, low) == [i.RequestStop(low, 0)]


def test_equal_priority_asks_nobody() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    training(story)
    assert story.plan() == []


def test_nobody_is_asked_who_cannot_stop() -> None:
    story = Afar(gpus=1)
    low = training(story)
    story.run(low)
    training(story, priority=5)
    assert story.plan() == []


def test_as_few_as_possible_stop_and_the_least_urgent_first() -> None:
    story = Afar(gpus=4)
    a, b, c = training(story, priority=1), training(story), training(story, gpus(2), priority=2)
    listens(story, a, b, c)
    training(story, gpus(2), priority=5)
    assert story.plan() == [b, a]  # not c, although it alone would do: it is more urgent
    assert progress(story, c).stop is None


def test_who_need_not_stop_is_left_out() -> None:
    story = Afar(gpus=4)
    a, b = training(story), training(story, gpus(3))
    listens(story, a, b)
    training(story, gpus(3), priority=5)
    assert story.plan() == [b]


def test_nobody_stops_for_one_who_could_not_start_all_the_same() -> None:
    story = Afar(gpus=2)
    low = training(story)
    other = story.submit(gpus(1))  # it cannot stop
    listens(story, low)
    story.started(other)
    training(story, gpus(2), priority=5)
    assert story.plan() == []


def test_what_is_freed_is_kept_for_whom_it_was_freed() -> None:
    story = Afar(gpus=2)
    a, b = training(story), training(story)
    listens(story, a, b)
    high = training(story, gpus(2), priority=5)
    story.plan()
    low = training(story)
    story.exited(a, 75, stopped=True)
    assert story.plan() == []
    story.exited(b, 75, stopped=True)
    assert story.plan() == [high]
    assert story.is_(low) == "PENDING"


def test_code_zero_of_one_that_was_stopped_is_no_completion() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    story.about(e.PreemptionRequested, low, why="job 2 needs room", boot=story.boot)
    story.exited(low, 0, stopped=True)
    assert story.is_(low) == "PENDING"
    assert story.job(low).past[-1].cause == "stopped: job 2 needs room"


def test_one_that_was_asked_and_came_to_its_end_is_complete() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    story.exited(low, 0)
    assert story.is_(low) == "COMPLETED"


def test_one_that_fails_while_it_is_asked_to_stop_has_failed() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    story.exited(low, 1)
    assert story.is_(low) == "FAILED"


def test_a_cancelled_job_that_stops_is_cancelled() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    story.fact(e.JobCancelled, low)
    story.exited(low, 75, stopped=True)
    assert story.is_(low) == "CANCELLED"


def test_it_goes_on_with_what_was_counted() -> None:
    story = Afar(gpus=2)
    low = training(story)
    listens(story, low)
    assert told(story, low)["JOB_RESTARTED"] == "FALSE"
    counted(story, low, 4)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    story.exited(low, 75, stopped=True)
    story.plan()
    assert told(story, low)["JOB_RESTARTED"] == "TRUE"
    assert told(story, low)["EPOCHS_DONE"] == "4"


def test_stopped_before_any_epoch_counted_it_is_not_restarted() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    story.exited(low, 75, stopped=True)
    story.plan()
    assert (told(story, low)["JOB_RESTARTED"], told(story, low)["EPOCHS_DONE"]) == ("FALSE", "0")


def test_epochs_never_count_backwards_nor_for_an_older_attempt() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    counted(story, low, 4)
    counted(story, low, 2)
    assert progress(story, low).epochs == 4
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    story.exited(low, 75, stopped=True)
    story.plan()
    story.fact(e.EpochsCounted, low, attempt=0, done=9)
    assert progress(story, low).epochs == 4


def test_a_job_that_checkpoints_on_a_signal_is_sent_it_and_goes_on_later() -> None:
    story = Afar(gpus=1)
    low = story.submit(gpus(1), early_signal=EarlySignal(10, 120))
    story.run(low)
    high = story.submit(gpus(1), priority=1)
    assert story.plan() == [low]
    assert story.state.jobs[low].state.value == "RUNNING"
    story.exited(low, 0)
    assert story.is_(low) == "PENDING"
    assert story.plan() == [high]


@pytest.mark.parametrize(("code", "signal"), [(75, None), (138, None), (None, 10)])
def test_dying_of_the_signal_is_a_way_to_stop(code: int | None, signal: int | None) -> None:
    story = Afar(gpus=1)
    low = story.submit(gpus(1), early_signal=EarlySignal(10, 120))
    story.run(low)
    instructions = story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    assert instructions == [i.SignalAttempt(low, 0, 10, if_caught=True)]
    story.exited(low, code, signal=signal)
    assert story.is_(low) == "PENDING"


def test_one_that_never_heard_the_signal_and_is_done_is_done() -> None:
    story = Afar(gpus=1)
    low = story.submit(gpus(1), early_signal=EarlySignal(10, 120))
    story.run(low)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    story.exited(low, 0, uncaught=True)
    assert story.is_(low) == "COMPLETED"


def test_one_that_ignores_its_signal_is_ended_only_if_it_may_be_begun_anew() -> None:
    story = Afar(gpus=1)
    low = story.submit(gpus(1), early_signal=EarlySignal(10, 120))
    story.run(low)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    assert [type(fact) for fact in story.wait(121)] == [e.PreemptionTimedOut]
    assert story.is_(low) == "RUNNING"
    assert story.wait(10_000) == []


def test_nobody_who_says_so_is_ever_asked() -> None:
    story = Afar(gpus=3)
    jobs = [
        training(story, non_preemptible=True),
        story.submit(gpus(1), non_preemptible=True, early_signal=EarlySignal(10, 120)),
        story.submit(gpus(1), non_preemptible=True),
    ]
    story.run(*jobs)
    story.about(e.TrainingBegan, jobs[0])
    training(story, priority=5)
    assert story.plan() == []


def test_when_one_has_not_stopped_in_time_another_is_asked() -> None:
    story = Afar(gpus=2)
    a = training(story)
    listens(story, a)
    story.now += 1
    b = training(story)
    listens(story, b)
    training(story, priority=5)
    assert story.plan() == [b]
    story.wait(601)
    assert story.plan() == [a]


def test_a_wish_is_taken_back_when_nobody_needs_the_room_any_more() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    high = training(story, priority=5)
    story.plan()
    story.fact(e.JobCancelled, high)
    assert story.plan() == [low]
    assert progress(story, low).stop is None
    training(story, priority=5)
    assert story.plan() == [low]
    assert progress(story, low).stop is not None


def test_so_it_is_when_that_one_is_less_urgent_now_or_waits_for_another_time() -> None:
    for changed in ({"priority": -5}, {"priority": 5, "begin_at": 99_999.0}):
        story = Afar(gpus=1)
        low = training(story)
        listens(story, low)
        high = training(story, priority=5)
        story.plan()
        story.fact(e.JobEdited, high, spec=story.job(high).spec, name="job", **changed)
        assert story.plan() == [low]
        assert progress(story, low).stop is None


def test_so_it_is_when_the_victim_was_paused_meanwhile() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    high = training(story, priority=5)
    story.plan()
    story.fact(e.JobPaused, low, boot=story.boot)
    story.fact(e.JobCancelled, high)
    assert story.plan() == []
    story.fact(e.JobResumed, low, boot=story.boot)
    assert story.state.pending.planning_requested
    assert story.plan() == [low]


def test_whatever_lives_on_of_one_that_has_saved_and_stopped_is_ended() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    assert story.about(e.PreemptionTimedOut, low, has_saved=True) == [i.TerminateAttempt(low, 0)]
    story.exited(low, None, signal=15, stopped=True)
    assert story.is_(low) == "PENDING"


def test_so_it_is_if_the_wish_was_taken_back_too_late() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    story.about(e.PreemptionCancelled, low)
    story.about(e.PreemptionTimedOut, low, has_saved=True)
    story.exited(low, None, signal=15, stopped=True)
    assert story.is_(low) == "PENDING"


def test_one_that_ignores_its_signal_is_ended_when_the_time_it_named_is_over() -> None:
    story = Afar(gpus=1)
    low = story.submit(gpus(1), early_signal=EarlySignal(10, 120), requeueable=True)
    story.run(low)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    assert story.wait(119) == []
    assert [type(fact) for fact in story.wait(2)] == [e.PreemptionTimedOut]
    assert story.is_(low) == "COMPLETING"
    story.exited(low, None, signal=15)
    assert story.is_(low) == "PENDING"


def test_a_job_that_listens_is_never_ended_unless_it_may_be_begun_anew() -> None:
    story = Afar(gpus=2)
    patient, restartable = training(story), training(story, requeueable=True)
    listens(story, patient, restartable)
    for job in (patient, restartable):
        story.about(e.PreemptionRequested, job, why="", boot=story.boot)
    story.wait(100_000)
    assert (story.is_(patient), story.is_(restartable)) == ("RUNNING", "COMPLETING")


def test_the_grace_of_a_measured_job_is_twice_its_epoch_and_a_minute() -> None:
    story = Afar(gpus=1)
    low = training(story, requeueable=True)
    listens(story, low)
    counted(story, low, 1, seconds=100.0)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    assert story.wait(259) == []
    assert [type(fact) for fact in story.wait(2)] == [e.PreemptionTimedOut]


def test_a_restartable_job_without_any_other_way_is_ended_at_once() -> None:
    story = Afar(gpus=1)
    low = story.submit(gpus(1), requeueable=True)
    story.run(low)
    assert story.about(e.PreemptionRequested, low, why="", boot=story.boot) == [
        i.TerminateAttempt(low, 0)
    ]
    story.exited(low, None, signal=15)
    assert story.is_(low) == "PENDING"


def test_a_lost_attempt_that_was_being_ended_goes_on_later() -> None:
    story = Afar(gpus=1)
    low = story.submit(gpus(1), requeueable=True)
    story.run(low)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    story.about(e.AttemptLost, low, why="gone")
    assert story.is_(low) == "PENDING"


def test_a_finished_job_that_is_retried_starts_anew_and_a_failed_one_goes_on() -> None:
    story = Afar(gpus=2)
    done, failed = training(story), training(story)
    listens(story, done, failed)
    counted(story, done, 10)
    counted(story, failed, 6)
    story.exited(done, 0)
    story.exited(failed, 1)
    for job in (done, failed):
        story.fact(e.JobRetried, job)
    story.plan()
    assert told(story, done)["EPOCHS_DONE"] == "0"
    assert told(story, failed)["EPOCHS_DONE"] == "6"


# -- several machines ---------------------------------------------------------------------


def gang(story: Afar) -> int:
    story.add("gpu1", gpus=2)
    job = training(story, ResourceRequest(gpus=gpus(1).gpus, node_count=2))
    story.plan()
    for part in (0, 1):
        story.part(e.ProcessStarted, job, part, pid=7 + part, boot=story.boot)
    story.about(e.TrainingBegan, job)
    story.about(e.PreemptionRequested, job, why="", boot=story.boot)
    return job


def test_a_rank_that_stopped_does_not_end_the_one_that_still_saves() -> None:
    story = Afar(gpus=1)
    job = gang(story)
    assert story.part(e.ProcessExited, job, 1, code=75) == []
    story.part(e.ProcessExited, job, 0, code=75, stopped=True)
    assert story.is_(job) == "PENDING"
    assert progress(story, job).preemptions == 1


def test_when_the_first_rank_has_saved_and_stopped_the_others_are_ended() -> None:
    story = Afar(gpus=1)
    job = gang(story)
    ended = story.part(e.ProcessExited, job, 0, code=75, stopped=True)
    assert ended == [i.TerminateAttempt(job, 0)]
    story.part(e.ProcessExited, job, 1, code=None, signal=9)
    assert story.is_(job) == "PENDING"


# -- sharing by memory --------------------------------------------------------------------


def test_jobs_that_say_what_they_need_share_a_gpu_as_long_as_it_fits() -> None:
    story = Afar(gpus=1)  # 24,000 MiB
    jobs = [training(story, sharing(10_000), name=f"job{n}") for n in range(3)]
    assert story.plan() == jobs[:2]
    assert [take.amount for take in story.placed(jobs[0]).allocations] == [SHARED_SLOT]


def test_idle_gpus_come_first() -> None:
    story = Afar(gpus=2)
    a, b = training(story, sharing(1000)), training(story, sharing(1000))
    story.plan()
    assert story.on(a) != story.on(b)


def test_one_that_wants_its_gpu_for_itself_never_shares() -> None:
    story = Afar(gpus=1)
    a = training(story, sharing(1000))
    b = training(story, gpus(1, memory=1000))
    assert story.plan() == [a]
    story.started(a)
    story.exited(a, 0)
    assert story.plan() == [b]
    training(story, sharing(1000))
    assert story.plan() == []


def test_nobody_is_put_beside_one_that_says_nothing_of_its_memory() -> None:
    story = Afar(gpus=1)
    half = story.submit(gpus(0.5))
    training(story, sharing(1000))
    assert story.plan() == [half]


def test_what_was_measured_over_an_epoch_counts_not_what_was_said() -> None:
    """KUB-19: a job that said 18 GB and uses 3 leaves room for another."""
    story = Afar(gpus=1)
    a, b = training(story, sharing(18_000), name="a"), training(story, sharing(18_000), name="b")
    listens(story, a)
    story.about(e.MemoryMeasured, a, memory=3000)
    assert story.plan() == []  # it has only just begun
    counted(story, a, 1, seconds=5.0)
    assert story.placed(a).allocations[0].memory == 3300
    assert story.plan() == [b]


def test_what_is_left_is_known_when_only_the_script_says_how_many_epochs_there_are() -> None:
    story = Afar(gpus=1)
    job = story.submit(gpus(1))
    listens(story, job)
    counted(story, job, 1, seconds=10.0, total=30)
    state = story.state
    spec = state.spec(story.job(job))
    assert epochs_of(story.job(job), spec) == 30
    left = remaining(state.record.profiles, state.cluster, story.job(job), spec, story.now)
    assert left == pytest.approx(290.0)


def test_growing_is_heeded_at_once() -> None:
    story = Afar(gpus=1)
    a = training(story, sharing(2000), name="a")
    listens(story, a)
    story.about(e.MemoryMeasured, a, memory=20_000)
    assert story.placed(a).allocations[0].memory == 22_000
    training(story, sharing(4000), name="b")
    assert story.plan() == []


def test_the_next_of_the_same_kind_is_planned_by_what_was_learned() -> None:
    story = Afar(gpus=1)
    a = training(story, sharing(18_000), name="a")
    listens(story, a)
    story.about(e.MemoryMeasured, a, memory=3000)
    counted(story, a, 1, seconds=5.0)
    story.exited(a, 0)
    again = training(story, sharing(18_000), name="a")
    story.plan()
    assert story.placed(again).allocations[0].memory == 3300


def test_one_that_said_nothing_gets_a_whole_gpu_until_it_was_measured() -> None:
    story = Afar(gpus=1)
    a, b = training(story, sharing(None), name="a"), training(story, sharing(None), name="a")
    listens(story, a)
    assert story.free() == {"0": 0}
    story.about(e.MemoryMeasured, a, memory=3000)
    counted(story, a, 1, seconds=5.0)
    assert story.free() == {"0": 1000 - SHARED_SLOT}
    assert story.plan() == [b]


def test_two_who_need_more_than_there_is_do_not_stay_together() -> None:
    story = Afar(gpus=1)
    a, b = training(story, sharing(10_000), name="a"), training(story, sharing(10_000), name="b")
    listens(story, a)
    story.now += 1
    listens(story, b)
    story.about(e.MemoryMeasured, a, memory=18_000)
    assert story.plan() == [b]
    assert "memory" in progress(story, b).stop.reason  # type: ignore[union-attr]
    assert story.plan() == []


# -- out of memory ------------------------------------------------------------------------


def test_out_of_memory_by_its_own_fault_it_goes_on_with_more() -> None:
    story = Afar(gpus=1)
    a = training(story, sharing(4000), name="a")
    listens(story, a)
    counted(story, a, 2, seconds=1.0)
    story.exited(a, 1, memory="cuda")
    assert story.is_(a) == "PENDING"
    assert story.job(a).begin_at is None
    assert (progress(story, a).preemptions, progress(story, a).oom_count) == (0, 1)
    story.plan()
    assert story.placed(a).allocations[0].memory >= 6000
    assert told(story, a)["EPOCHS_DONE"] == "2"
    assert told(story, a)["RESERVED_MEM"] == str(story.placed(a).allocations[0].memory)


def test_its_whole_family_has_learned_from_that() -> None:
    story = Afar(gpus=1)
    a, b = training(story, sharing(4000), name="a"), training(story, sharing(4000), name="a")
    listens(story, a)
    story.started(b)
    story.about(e.MemoryMeasured, a, memory=5000)
    story.exited(a, 1, memory="cuda")
    story.exited(b, 0)
    later = training(story, sharing(4000), name="a")
    story.plan()
    assert story.placed(later).allocations[0].memory > 5000


def test_the_victim_of_a_neighbour_goes_on_alone() -> None:
    story = Afar(gpus=1)
    a, b = training(story, sharing(4000), name="a"), training(story, sharing(4000), name="b")
    listens(story, a, b)
    story.about(e.MemoryMeasured, b, memory=3000)
    story.about(e.MemoryMeasured, a, memory=20_000)  # far more than it said
    story.exited(b, 1, memory="cuda")
    assert progress(story, b).exclusive_only
    assert story.plan() == []
    story.exited(a, 0)
    assert story.plan() == [b]
    assert story.free() == {"0": 0}
    training(story, sharing(1000), name="c")
    assert story.plan() == []


def test_where_all_others_kept_to_their_own_its_family_needs_more() -> None:
    """It never had what it wanted, so that nobody could see it use that."""
    story = Afar(gpus=1)
    a, b = training(story, sharing(4000), name="a"), training(story, sharing(4000), name="b")
    listens(story, a, b)
    story.about(e.MemoryMeasured, a, memory=3000)
    story.about(e.MemoryMeasured, b, memory=3000)
    story.exited(b, 1, memory="cuda")
    assert progress(story, b).exclusive_only
    story.exited(a, 0)
    later = training(story, sharing(4000), name="b", priority=1)
    story.plan()
    assert story.placed(later).allocations[0].memory >= 5900


def test_the_fault_of_a_neighbour_teaches_nothing_about_its_victim() -> None:
    story = Afar(gpus=1)
    a, b = training(story, sharing(4000), name="a"), training(story, sharing(4000), name="b")
    listens(story, a, b)
    story.about(e.MemoryMeasured, b, memory=3000)
    story.about(e.MemoryMeasured, a, memory=20_000)
    story.exited(b, 1, memory="cuda")
    story.exited(a, 0)
    later = training(story, sharing(4000), name="b", priority=1)
    story.plan()
    assert story.placed(later).allocations[0].memory == 4000


def test_out_of_memory_with_a_whole_gpu_is_the_end() -> None:
    story = Afar(gpus=1)
    a = training(story, sharing(None), name="a")
    listens(story, a)
    story.exited(a, 1, memory="cuda")
    assert story.is_(a) == "OUT_OF_MEMORY"


def test_however_often_it_runs_out_there_is_an_end() -> None:
    story = Afar(gpus=1)
    a = training(story, sharing(1000), name="a")
    for _ in range(20):
        listens(story, a)
        story.exited(a, 1, memory="cuda")
        if story.job(a).finished:
            break
    assert story.is_(a) == "OUT_OF_MEMORY"


def test_a_job_that_does_not_share_follows_its_retry_rule() -> None:
    story = Afar(gpus=1)
    a = story.submit(gpus(1), retry=Retry(1, ("oom",)))
    story.run(a)
    story.exited(a, 1, memory="cuda")
    assert (story.is_(a), story.job(a).retries) == ("PENDING", 1)


# -- elastic ------------------------------------------------------------------------------


def elastic(least: int = 1, most: int = 4) -> ResourceRequest:
    return gpus(least, max_amount=most * 1000)


def test_an_elastic_job_of_an_unknown_kind_starts_with_the_least() -> None:
    story = Afar(gpus=4)
    a = training(story, elastic())
    story.plan()
    assert len(story.on(a)) == 1


def test_it_grows_when_that_repays_the_restart_and_nobody_waits() -> None:
    story = Afar(gpus=4)
    a = training(story, elastic())
    listens(story, a)
    counted(story, a, 1, seconds=1000.0)
    assert story.plan() == [a]
    assert progress(story, a).stop.resize_to == 2  # type: ignore[union-attr]
    story.exited(a, 75, stopped=True)
    story.plan()
    assert len(story.on(a)) == 2


def test_it_does_not_grow_when_the_restart_costs_more_than_it_saves() -> None:
    story = Afar(gpus=4)
    a = training(story, elastic())
    listens(story, a)
    counted(story, a, 1, seconds=1.0)
    assert story.plan() == []


def test_it_does_not_grow_into_what_was_measured_to_be_no_use() -> None:
    story = Afar(gpus=4)
    a = training(story, elastic(), name="a")
    listens(story, a)
    counted(story, a, 1, seconds=1000.0)
    story.plan()
    story.exited(a, 75, stopped=True)
    listens(story, a)
    counted(story, a, 2, seconds=1010.0)  # with two GPUs slower
    assert story.plan() == [a]  # four are measured once
    story.exited(a, 75, stopped=True)
    listens(story, a)
    counted(story, a, 3, seconds=1020.0)
    story.exited(a, 0)
    b = training(story, elastic(), name="a")
    story.plan()
    assert len(story.on(b)) == 1


def test_it_shrinks_when_somebody_of_equal_priority_has_nothing() -> None:
    story = Afar(gpus=2)
    a = training(story, elastic(), name="a")
    listens(story, a)
    counted(story, a, 1, seconds=1000.0)
    story.plan()
    story.exited(a, 75, stopped=True)
    listens(story, a)
    assert len(story.on(a)) == 2
    b = training(story, gpus(1), name="b")
    assert story.plan() == []  # it has just begun
    counted(story, a, 2, seconds=550.0)
    assert story.plan() == [a]
    story.exited(a, 75, stopped=True)
    assert story.plan() == [a, b]
    assert len(story.on(a)) == 1


def test_it_does_not_grow_onto_gpus_on_which_others_compute() -> None:
    story = Afar(gpus=2)
    ask = gpus(1, max_amount=2000, shareable=True, memory=1000)
    a, b = training(story, ask, name="a"), training(story, ask, name="b")
    listens(story, a, b)
    assert story.on(a) != story.on(b)
    counted(story, a, 1, seconds=1000.0)
    counted(story, b, 1, seconds=1000.0)
    assert story.plan() == []


def test_growing_is_not_counted_as_making_room() -> None:
    story = Afar(gpus=2)
    a = training(story, elastic())
    listens(story, a)
    counted(story, a, 1, seconds=1000.0)
    story.plan()
    story.exited(a, 75, stopped=True)
    assert progress(story, a).preemptions == 0


def test_a_known_kind_starts_with_what_is_best_for_it() -> None:
    story = Afar(gpus=4)
    a = training(story, elastic(), name="a")
    listens(story, a)
    counted(story, a, 1, seconds=1000.0)
    story.plan()
    story.exited(a, 75, stopped=True)
    listens(story, a)
    counted(story, a, 2, seconds=500.0)
    story.exited(a, 0)
    b = training(story, elastic(most=3), name="a")
    story.plan()
    assert len(story.on(b)) == 2


# -- estimates ----------------------------------------------------------------------------


def test_a_job_far_over_what_it_said_is_marked_and_keeps_its_priority() -> None:
    story = Afar(gpus=1)
    a = training(story, training=Training(epochs=10, expected=3600))
    listens(story, a)
    b = training(story)
    assert story.plan() == []
    assert story.wait(7199) == []
    assert [type(fact) for fact in story.wait(2)] == [e.EstimateExceeded]
    assert progress(story, a).overran
    assert story.plan() == []
    story.exited(a, 75, stopped=True)
    assert story.state.class_key(story.job(a))[1] == story.state.class_key(story.job(b))[1] == 0
    assert story.plan() == [a]


def test_a_job_that_an_older_version_has_put_back_has_its_priority_again() -> None:
    story = Afar(gpus=1)
    a = training(story, held=True, training=Training(epochs=10, expected=3600))
    row = msgspec.json.encode(
        msgspec.structs.replace(story.job(a), progress=Progress(previous_runtime=8000.0))
    )
    row = row.replace(b'"ran":8000.0', b'"demoted":true,"ran":8000.0')
    old = msgspec.json.decode(row, type=Job)
    assert old.progress is not None
    assert old.progress.overran
    state = restore(
        story.state.record, story.state.specs, [msgspec.structs.replace(old, held=False)]
    )
    assert [found.priority for found in state.pending.classes.values()] == [0]


def test_what_earlier_attempts_ran_counts_too() -> None:
    story = Afar(gpus=1)
    a = training(story, training=Training(epochs=10, expected=3600))
    listens(story, a)
    story.wait(7000)
    story.about(e.PreemptionRequested, a, why="", boot=story.boot)
    story.exited(a, 75, stopped=True)
    story.now += 50_000  # waiting does not count
    listens(story, a)
    assert story.wait(150) == []
    assert [type(fact) for fact in story.wait(60)] == [e.EstimateExceeded]


# -- found by random courses --------------------------------------------------------------


def test_one_that_made_room_does_not_slip_back_into_it() -> None:
    story = Afar(gpus=2)
    a, b = training(story, limit=600), training(story)
    listens(story, a, b)
    training(story, gpus(2), priority=5)
    assert sorted(story.plan()) == [a, b]
    story.exited(a, 75, stopped=True)
    assert story.plan() == []


def test_nobody_with_a_limit_slips_into_room_that_is_being_made() -> None:
    story = Afar(gpus=2)
    a, b = training(story), training(story)
    listens(story, a, b)
    training(story, gpus(2), priority=5)
    story.plan()
    story.submit(gpus(1), limit=36_000)
    story.exited(a, 75, stopped=True)
    assert story.plan() == []


def test_a_part_of_a_gpu_is_not_given_out_beside_those_who_share_it() -> None:
    story = Afar(gpus=1)
    a = training(story, sharing(4000), name="a")
    listens(story, a)
    story.submit(gpus(0.5))
    assert story.plan() == []


def test_one_that_was_paused_over_a_restart_can_stop_when_it_goes_on() -> None:
    story = Afar(gpus=1)  # after every fact, it compares memory with what rows would give
    low = training(story)
    listens(story, low)
    story.fact(e.JobPaused, low, boot=story.boot)
    story.fact(e.JobResumed, low, boot=story.boot)
    training(story, priority=5)
    assert story.plan() == [low]


def test_a_stop_whose_wish_was_lost_is_still_no_completion() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    story.exited(low, 0, stopped=True)
    assert (story.is_(low), story.job(low).requeues) == ("PENDING", 1)


def test_a_pause_does_not_count_against_the_grace() -> None:
    story = Afar(gpus=1)
    low = training(story, requeueable=True)
    listens(story, low)
    counted(story, low, 1, seconds=100.0)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    story.fact(e.JobPaused, low, boot=story.boot)
    story.now += 10_000
    story.fact(e.JobResumed, low, boot=story.boot)
    assert story.wait(1) == []


def test_the_grace_goes_on_when_the_machine_of_the_daemon_was_restarted() -> None:
    story = Afar(gpus=1)
    story.add("far", gpus=1)
    low = training(story, ResourceRequest(gpus=gpus(1).gpus, nodes=("far",)), requeueable=True)
    listens(story, low)
    story.about(e.PreemptionRequested, low, why="", boot=story.boot)
    story.now += 100
    story.restart(rebooted=True)
    story.reached("far")
    assert [type(fact) for fact in story.wait(700)] == [e.PreemptionTimedOut]


def test_a_shared_gpu_counts_as_one_in_the_limits_of_a_queue() -> None:
    story = Afar(gpus=4)
    story.tell(e.QueueDefined(at=story.now, name="one", max_gpus=1000))
    jobs = [training(story, sharing(20_000), queue="one", name=f"n{n}") for n in range(2)]
    assert story.plan() == jobs[:1]


def test_what_was_saved_on_a_machine_that_is_given_up_does_not_count() -> None:
    story = Afar(gpus=1)
    story.add("far", gpus=1)
    low = training(story, ResourceRequest(gpus=gpus(1).gpus, nodes=("far",)), if_unreachable=60)
    listens(story, low)
    counted(story, low, 4)
    story.silent("far")
    story.wait(61)
    assert story.is_(low) == "PENDING"
    assert progress(story, low).epochs == 0
