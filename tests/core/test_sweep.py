"""Sweeps in the engine: many trials, counted, compared, stopped, forgotten, as one thing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.scenario import S, Swept, gpus
from stoker.core import events as e
from stoker.core.dependency import Clause, Dependency
from stoker.core.instructions import EndAttempt
from stoker.core.job import Retry, Spec
from stoker.core.selectors import NotFound, select
from stoker.core.sweep import Rule
from stoker.core.trials import KEEP_BOARDS, forgettable_boards

HALVING = Rule("halving", (1.0, 3.0, 9.0), eta=3)


def running(count: int = 2, **fields: object) -> tuple[Swept, int, list[int]]:
    """A sweep all of whose trials run."""
    story = Swept(gpus=count)
    sweep = story.sweep(**fields)
    trials = story.trials(sweep, count)
    story.run(*trials)
    return story, sweep, trials


def best(story: Swept, sweep: int) -> tuple[float | None, int | None]:
    found = story.state.sweeps[sweep]
    return found.best, found.best_job


# -- asked for ----------------------------------------------------------------------------


def test_a_sweep_takes_a_number_and_its_trials_the_next_ones():
    story = Swept()
    before = story.submit()
    sweep = story.sweep()
    trials = story.trials(sweep, 3)
    assert (before, sweep, trials) == (1, 2, [3, 4, 5])
    assert sweep not in story.state.jobs
    assert [story.job(id).label for id in trials] == ["2_0", "2_1", "2_2"]
    assert story.job(4).params == '{"x":1}'
    assert story.job(4).command == "train 1"
    assert story.submit() == 6


def test_more_trials_have_the_next_numbers():
    story = Swept()
    sweep = story.sweep(asks=True)
    story.trials(sweep, 2)
    story.submit()
    story.trials(sweep, 1)
    assert [trial.number for trial in story.state.boards[sweep].trials.values()] == [0, 1, 2]
    assert story.state.sweeps[sweep].issued == 3


def test_every_trial_is_counted_where_it_stands():
    story = Swept(gpus=2)
    sweep = story.sweep()
    first, second, third, fourth = story.trials(sweep, 4)
    assert story.counts(sweep) == {"waiting": 4}
    story.plan()
    assert story.counts(sweep) == {"waiting": 2, "running": 2}
    story.started(first)
    story.started(second)
    story.exited(first)
    story.exited(second, 1)
    assert story.counts(sweep) == {"waiting": 2, "done": 1, "failed": 1}
    story.fact(e.JobCancelled, third)
    story.run(fourth)
    story.fact(e.JobPaused, fourth, boot=story.boot)
    assert story.counts(sweep) == {"cancelled": 1, "running": 1, "done": 1, "failed": 1}
    story.fact(e.JobCancelled, fourth)
    assert story.counts(sweep)["running"] == 1  # until it is gone
    story.exited(fourth, None, signal=15)
    assert story.counts(sweep) == {"cancelled": 2, "done": 1, "failed": 1}


def test_a_sweep_is_over_when_all_its_trials_are():
    story, sweep, trials = running(2)
    found = story.state.sweeps[sweep]
    story.exited(trials[0])
    assert (found.open, found.ended_at) == (True, None)
    story.now += 9
    story.exited(trials[1], 1)
    assert (found.open, found.ended_at) == (False, story.now)


def test_a_sweep_that_thinks_of_its_trials_is_open_until_it_has_them():
    story = Swept(gpus=2)
    sweep = story.sweep(asks=True, total=2)
    found = story.state.sweeps[sweep]
    story.run(*(trials := story.trials(sweep, 1)))
    story.exited(trials[0])
    assert (found.wanting, found.open) == (True, True)
    story.run(*(trials := story.trials(sweep, 1)))
    assert not found.wanting
    story.exited(trials[0])
    assert not found.open


def test_asked_for_again_it_wants_more_and_knows_what_it_has():
    story, sweep, trials = running(2, maximize=True)
    for trial in trials:
        story.ends(trial, 0.5)
    ended = story.state.sweeps[sweep].ended_at
    story.now += 60
    assert story.sweep(id=sweep, maximize=True, total=3, max_running=1) == sweep
    found = story.state.sweeps[sweep]
    assert (found.issued, found.best, found.total, found.max_running) == (2, 0.5, 3, 1)
    assert (found.counts, found.ended_at) == ({"done": 2}, ended)
    more = story.trials(sweep, 1)
    assert story.job(more[0]).label == f"{sweep}_2"
    assert (found.ended_at, found.open) == (None, True)
    assert story.state.boards[sweep].keys['{"x":2}'] == more[0]


def test_asked_for_again_after_its_end_it_goes_on():
    story = Swept()
    sweep = story.sweep(asks=True)
    story.tell(e.SweepChanged(at=story.now, sweep=sweep, ended=True, held=True, note="no ideas"))
    story.sweep(id=sweep, asks=True)
    found = story.state.sweeps[sweep]
    assert (found.wanting, found.held, found.note, found.ended_at) == (True, False, None, None)


# -- the whole of it ----------------------------------------------------------------------


def test_the_whole_is_cancelled():
    story, sweep, trials = running(2, asks=True)
    trials += story.trials(sweep, 2)
    for trial in trials:
        story.fact(e.JobCancelled, trial)
    story.tell(e.SweepChanged(at=story.now, sweep=sweep, ended=True))
    assert story.state.sweeps[sweep].open
    for trial in trials[:2]:
        story.exited(trial, None, signal=15)
    assert story.counts(sweep) == {"cancelled": 4}
    assert not story.state.sweeps[sweep].open


def test_held_and_released_as_a_whole():
    story = Swept(gpus=2)
    sweep = story.sweep(asks=True)
    trials = story.trials(sweep, 2)
    for trial in trials:
        story.fact(e.JobHeld, trial)
    story.tell(e.SweepChanged(at=story.now, sweep=sweep, held=True))
    assert story.plan() == []
    assert story.state.sweeps[sweep].held
    for trial in trials:
        story.fact(e.JobReleased, trial)
    story.tell(e.SweepChanged(at=story.now, sweep=sweep, held=False))
    assert story.plan() == trials
    assert not story.state.sweeps[sweep].held


def test_only_so_many_run_at_a_time():
    story = Swept(gpus=4)
    sweep = story.sweep(max_running=2)
    trials = story.trials(sweep, 4)
    other = story.submit()
    assert story.plan() == [*trials[:2], other]
    story.started(trials[0])
    story.exited(trials[0])
    assert story.plan() == [trials[2]]


def test_that_limit_can_be_changed_while_it_runs():
    story = Swept(gpus=4)
    sweep = story.sweep(max_running=1)
    trials = story.trials(sweep, 4)
    assert story.plan() == trials[:1]
    story.state.line.stirred = False
    story.tell(e.SweepChanged(at=story.now, sweep=sweep, max_running=3))
    assert story.state.line.stirred
    assert story.plan() == trials[1:3]
    story.tell(e.SweepChanged(at=story.now, sweep=sweep, max_running=0))
    assert story.plan() == trials[3:]


def test_two_sweeps_do_not_share_a_limit():
    story = Swept(gpus=4)
    one, other = story.sweep(max_running=1), story.sweep(max_running=2)
    first, second = story.trials(one, 2), story.trials(other, 3)
    assert story.plan() == [first[0], *second[:2]]


# -- figures ------------------------------------------------------------------------------


@pytest.mark.parametrize(("maximize", "expected"), [(False, 0.2), (True, 0.7)])
def test_the_best_so_far_is_that_of_trials_that_came_to_their_end(maximize, expected):
    story, sweep, trials = running(3, maximize=maximize)
    for trial, value in zip(trials, (0.5, 0.2, 0.7), strict=True):
        story.ends(trial, value)
    assert best(story, sweep)[0] == expected


def test_what_failed_or_was_given_up_is_never_the_best():
    story, sweep, trials = running(3)
    story.ends(trials[0], 0.1, code=1)
    story.scored(trials[1], 0.2)
    story.fact(e.JobCancelled, trials[1])
    story.exited(trials[1], None, signal=15)
    assert best(story, sweep) == (None, None)
    story.ends(trials[2], 0.9)
    assert best(story, sweep) == (0.9, trials[2])


def test_no_number_is_never_the_best():
    story, sweep, trials = running(2)
    story.ends(trials[0], None)
    assert best(story, sweep) == (None, None)
    assert story.counts(sweep) == {"done": 1, "running": 1}


def test_of_equals_the_first_is_the_best():
    story, sweep, trials = running(2)
    story.ends(trials[1], 0.5)
    story.ends(trials[0], 0.5)
    assert best(story, sweep) == (0.5, trials[1])


def test_a_figure_may_come_after_the_end():
    story, sweep, trials = running(2)
    story.exited(trials[0])
    assert best(story, sweep) == (None, None)
    story.scored(trials[0], 0.4)
    assert best(story, sweep) == (0.4, trials[0])
    story.scored(trials[0], 0.6)  # what was read first was not all there was
    assert best(story, sweep) == (0.6, trials[0])


def test_a_figure_of_an_earlier_attempt_changes_nothing():
    story, sweep, trials = running(1)
    story.ends(trials[0], 0.4)
    story.fact(e.JobRetried, trials[0])
    story.scored(trials[0], 0.1, attempt=0)
    assert best(story, sweep) == (None, None)
    assert story.job(trials[0]).score is None


def test_figures_of_jobs_that_are_no_trials_change_nothing():
    story = Swept()
    job = story.submit()
    story.run(job)
    story.scored(job, 0.1)
    story.fact(e.TrialMeasured, 77, attempt=0, value=1.0)
    assert story.job(job).score is None


def test_a_retried_trial_begins_anew():
    story, sweep, trials = running(2, rule=HALVING)
    for trial, value in zip(trials, (0.1, 0.2), strict=True):
        story.scored(trial, value, rung=0, step=1)
        story.ends(trial, value)
    assert best(story, sweep) == (0.1, trials[0])
    story.fact(e.JobRetried, trials[0])
    assert best(story, sweep) == (0.2, trials[1])
    assert story.job(trials[0]).score is None
    assert story.state.boards[sweep].rungs == [[0.2]]
    assert story.counts(sweep) == {"waiting": 1, "done": 1}
    assert story.state.sweeps[sweep].ended_at is None
    story.fact(e.JobRetried, trials[1])
    assert best(story, sweep) == (None, None)
    assert story.state.boards[sweep].rungs == []


def test_what_is_measured_at_a_rung_is_known_at_once():
    story, sweep, trials = running(1, rule=HALVING)
    story.scored(trials[0], 0.5, rung=0, step=1)
    story.scored(trials[0], None, rung=1, step=3)
    score = story.job(trials[0]).score
    assert (score.value, score.step, len(score.rungs), score.final) == (None, 3, 2, False)
    assert best(story, sweep) == (None, None)


def test_a_rung_is_counted_once_however_often_it_is_told():
    story, sweep, trials = running(1, rule=HALVING)
    for _ in range(3):
        story.scored(trials[0], 0.5, rung=0, step=1)
    story.scored(trials[0], 0.1, rung=2, step=9)  # the one between has not been heard of
    assert story.job(trials[0]).score.rungs == (0.5,)
    assert story.state.boards[sweep].rungs == [[0.5]]


# -- a target -----------------------------------------------------------------------------


def test_as_good_as_was_hoped_for_what_waits_is_cancelled():
    story = Swept(gpus=2)
    sweep = story.sweep(target=0.3, asks=True)
    trials = story.trials(sweep, 4)
    story.run(*trials[:2])
    story.ends(trials[0], 0.4)
    assert story.judge() == []
    story.run(trials[2])
    story.ends(trials[1], 0.3)
    assert len(story.judge()) == 2
    assert story.counts(sweep) == {"done": 2, "running": 1, "cancelled": 1}
    found = story.state.sweeps[sweep]
    assert (found.ended, found.wanting, found.open) == (True, False, True)
    assert story.judge() == []
    story.ends(trials[2], 0.9)
    assert not found.open


def test_a_trial_that_is_retried_after_that_is_left_alone():
    story, _, trials = running(2, target=0.3)
    for trial in trials:
        story.ends(trial, 0.1)
    story.judge()
    story.fact(e.JobRetried, trials[1])
    assert story.judge() == []
    assert story.is_(trials[1]) == "PENDING"


# -- stopped early ------------------------------------------------------------------------


def compared(count: int = 2, **fields: object) -> tuple[Swept, int, list[int]]:
    """The second of several trials is worse at the first rung, and stopped."""
    story, sweep, trials = running(count, rule=HALVING, **fields)
    story.scored(trials[0], 0.1, rung=0, step=1)
    story.scored(trials[1], 0.5, rung=0, step=1)
    return story, sweep, trials


def test_whoever_does_worse_is_ended_at_once():
    story, sweep, trials = compared()
    assert story.judge() == [e.TrialStopped(at=story.now, job=trials[1], attempt=0)]
    assert (story.is_(trials[0]), story.is_(trials[1])) == ("RUNNING", "COMPLETING")
    assert story.counts(sweep) == {"running": 2}
    assert story.judge() == []


def test_a_wish_to_end_it_is_sent_once():
    story, _, trials = compared()
    stopped = e.TrialStopped(at=story.now, job=trials[1], attempt=0)
    assert story.tell(stopped) == [EndAttempt(trials[1], 0)]
    assert story.tell(stopped) == []


@pytest.mark.parametrize("how", [{"code": 0}, {"code": 1}, {"code": None, "signal": 15}])
def test_however_it_leaves_it_is_complete_and_says_why(how):
    story, sweep, trials = compared()
    story.judge()
    story.exited(trials[1], **how)
    job = story.job(trials[1])
    assert (job.state, job.cause) == (
        S.COMPLETED,
        "stopped early at step 1: other trials were better",
    )
    assert (job.result, job.score.stopped) == (0, True)
    assert story.counts(sweep) == {"running": 1, "stopped": 1}
    assert story.free()["1"] == 1000


def test_that_is_no_failure_which_a_retry_rule_would_answer():
    story = Swept(gpus=2)
    spec = Spec(
        kind="line", user="ada", directory="/", shell="sh", name="train", environment="none",
        request=gpus(1), retry=Retry(9),
    )  # fmt: skip
    story.tell(e.SpecRecorded(at=story.now, hash="trial", spec=spec))
    sweep = story.sweep(rule=HALVING)
    trials = story.trials(sweep, 2)
    story.run(*trials)
    story.scored(trials[0], 0.1, rung=0, step=1)
    story.scored(trials[1], 0.5, rung=0, step=1)
    story.judge()
    story.exited(trials[1], None, signal=9)
    assert story.job(trials[1]).state is S.COMPLETED


def test_lost_with_its_machine_it_is_stopped_all_the_same():
    story, sweep, trials = compared()
    story.judge()
    story.about(e.AttemptLost, trials[1], why="the node restarted")
    assert story.counts(sweep) == {"running": 1, "stopped": 1}


def test_its_device_goes_to_the_next_trial():
    story, sweep, trials = compared()
    more = story.trials(sweep, 1)
    story.judge()
    assert story.plan() == []
    story.exited(trials[1], 0)
    assert story.plan() == more


def test_it_keeps_what_it_has_saved_and_measured():
    story, _, trials = compared()
    story.about(e.TrainingBegan, trials[1])
    story.about(e.EpochsCounted, trials[1], done=4)
    story.judge()
    story.scored(trials[1], 0.45, step=2)
    story.exited(trials[1], 0)
    job = story.job(trials[1])
    assert job.progress.epochs == 4
    assert (job.score.value, job.score.step, job.score.rungs) == (0.45, 2, (0.5,))


def test_the_figure_of_a_stopped_trial_may_be_the_best():
    story, sweep, trials = compared()
    story.judge()
    story.ends(trials[1], 0.05)
    assert best(story, sweep) == (0.05, trials[1])


def test_cancelled_by_its_owner_while_it_ends_it_is_cancelled():
    story, sweep, trials = compared()
    story.judge()
    story.fact(e.JobCancelled, trials[1])
    story.exited(trials[1], None, signal=15)
    assert story.counts(sweep) == {"running": 1, "cancelled": 1}


def test_a_stopped_trial_can_be_retried_and_is_compared_anew():
    story, sweep, trials = compared()
    story.judge()
    story.exited(trials[1], 0)
    story.fact(e.JobRetried, trials[1])
    assert story.counts(sweep) == {"running": 1, "waiting": 1}
    assert story.state.boards[sweep].rungs == [[0.1]]
    story.run(trials[1])
    story.scored(trials[1], 0.05, rung=0, step=1)
    assert story.judge() == []
    assert story.job(trials[1]).score.rungs == (0.05,)


def test_a_figure_that_is_heard_before_the_start_counts_too():
    story = Swept(gpus=2)
    sweep = story.sweep(rule=HALVING)
    trials = story.trials(sweep, 2)
    story.run(trials[0])
    story.scored(trials[0], 0.1, rung=0, step=1)
    story.scored(trials[1], 0.5, rung=0, step=1)
    assert [fact.job for fact in story.judge()] == [trials[1]]


def test_one_that_is_over_by_then_is_not_stopped_but_counts_for_others():
    story, sweep, trials = running(3, rule=HALVING)
    story.exited(trials[0])
    story.scored(trials[0], 0.1, rung=0, step=1)
    story.scored(trials[1], 0.5, rung=0, step=1)
    assert [fact.job for fact in story.judge()] == [trials[1]]
    assert story.counts(sweep)["done"] == 1


# -- preempted ----------------------------------------------------------------------------


def preempted() -> tuple[Swept, int, list[int]]:
    story, sweep, trials = running(2, rule=HALVING)
    job = trials[0]
    story.about(e.TrainingBegan, job)
    story.scored(job, 0.4, rung=0, step=1)
    story.about(e.StopAsked, job, why="job 9 is more urgent", boot=story.boot)
    story.scored(job, 0.3, step=2)  # all that was known when its attempt ended
    story.exited(job, 75, stopped=True)
    return story, sweep, trials


def test_a_trial_that_made_room_is_the_same_trial_when_it_goes_on():
    story, sweep, trials = preempted()
    job = story.job(trials[0])
    assert (job.state, job.attempt, job.index) == (S.PENDING, 1, 0)
    assert story.counts(sweep) == {"waiting": 1, "running": 1}
    assert story.state.sweeps[sweep].issued == 2
    assert len(story.state.boards[sweep].trials) == 2


def test_what_it_had_by_then_is_no_result():
    story, sweep, trials = preempted()
    assert best(story, sweep) == (None, None)
    assert story.job(trials[0]).score.final is False
    assert story.state.boards[sweep].trials[trials[0]].score.final is False
    story.scored(trials[0], 0.01, attempt=0)  # heard of after its end
    assert best(story, sweep) == (None, None)
    story.run(trials[0])
    story.ends(trials[0], 0.2)
    assert best(story, sweep) == (0.2, trials[0])


def test_its_rungs_are_not_counted_twice():
    story, sweep, trials = preempted()
    story.run(trials[0])
    story.scored(trials[0], 0.9, rung=0, step=1)  # it began anew, a little before its checkpoint
    assert story.state.boards[sweep].rungs == [[0.4]]
    story.scored(trials[0], 0.2, rung=1, step=3)
    assert story.job(trials[0]).score.rungs == (0.4, 0.2)
    assert story.state.boards[sweep].rungs == [[0.4], [0.2]]


def test_a_second_try_after_a_failure_goes_on_where_it_was_as_well():
    story, sweep, trials = compared()
    story.exited(trials[0], 75)
    assert story.is_(trials[0]) == "PENDING"
    assert story.state.boards[sweep].rungs == [[0.1, 0.5]]


# -- forgotten and recalled ---------------------------------------------------------------


def test_trials_that_have_left_memory_are_still_on_the_board():
    story, sweep, trials = running(2, rule=HALVING)
    for trial, value in zip(trials, (0.1, 0.2), strict=True):
        story.scored(trial, value, rung=0, step=1)
        story.ends(trial, value)
    story.tell(e.JobsForgotten(at=story.now, jobs=(trials[0],)))
    board = story.state.boards[sweep]
    assert (list(board.trials), board.rungs) == (trials, [[0.1, 0.2]])
    assert best(story, sweep) == (0.1, trials[0])


def test_the_board_of_a_sweep_that_is_over_is_forgotten_and_recalled():
    story, sweep, trials = running(2, rule=HALVING)
    for trial, value in zip(trials, (0.1, 0.2), strict=True):
        story.scored(trial, value, rung=0, step=1)
        story.ends(trial, value)
    kept = story.state.boards[sweep]
    story.tell(e.TrialsForgotten(at=story.now, sweep=sweep))
    assert sweep not in story.state.boards
    assert best(story, sweep) == (0.1, trials[0])
    told = tuple(kept.trials.values())
    story.tell(e.TrialsRecalled(at=story.now, sweep=sweep, trials=told))
    again = story.state.boards[sweep]
    assert (again.trials, again.keys, again.rungs) == (kept.trials, kept.keys, kept.rungs)
    more = story.trials(sweep, 1)
    assert story.job(more[0]).index == 2


def test_a_late_figure_still_changes_the_best_of_a_sweep_without_its_board():
    story, sweep, trials = running(1)
    story.exited(trials[0])
    story.tell(e.TrialsForgotten(at=story.now, sweep=sweep))
    story.scored(trials[0], 0.3)
    assert best(story, sweep) == (0.3, trials[0])


def test_what_is_in_memory_is_newer_than_what_was_read():
    story, sweep, trials = running(1)
    story.exited(trials[0], 1)
    old = tuple(story.state.boards[sweep].trials.values())
    story.tell(e.TrialsForgotten(at=story.now, sweep=sweep))
    story.fact(e.JobRetried, trials[0])
    story.tell(e.TrialsRecalled(at=story.now, sweep=sweep, trials=old))
    assert story.state.boards[sweep].trials[trials[0]].state is S.PENDING


def test_a_trial_without_a_board_is_never_stopped():
    story, sweep, trials = compared()
    for trial in trials:
        story.exited(trial)
    story.tell(e.TrialsForgotten(at=story.now, sweep=sweep))
    story.fact(e.JobRetried, trials[1])
    story.run(trials[1])
    story.scored(trials[1], 0.5, rung=0, step=1)
    assert story.judge() == []


def test_a_few_boards_of_sweeps_that_are_over_are_kept():
    story = Swept(gpus=1)
    over = []
    for _ in range(KEEP_BOARDS + 2):
        over.append(story.sweep(identity=str(story.now)))
        trials = story.trials(over[-1], 1)
        story.now += 1
        story.run(*trials)
        story.exited(trials[0])
    assert forgettable_boards(story.state) == over[:2]
    goes_on = story.sweep(asks=True)
    assert goes_on not in forgettable_boards(story.state)


# -- what people type ---------------------------------------------------------------------


def chosen(story: Swept, *words: str) -> list[int]:
    past, members = getattr(story, "past", {}), getattr(story, "members", [])
    return select(list(words), story.state, past.get, lambda _: [], lambda _: members)


def typed() -> tuple[Swept, int, list[int], int]:
    story, sweep, trials = running(3)
    story.past, story.members = {}, trials  # type: ignore[attr-defined]
    other = story.submit(name="other")
    return story, sweep, trials, other


def test_a_sweep_is_meant_by_its_number_and_its_name():
    story, sweep, trials, other = typed()
    assert chosen(story, str(sweep)) == trials
    assert chosen(story, "train") == trials
    assert chosen(story, f"{sweep},{other}") == [*trials, other]
    assert chosen(story, str(trials[1])) == [trials[1]]


def test_a_trial_is_meant_by_its_number_in_the_sweep():
    story, sweep, trials, _ = typed()
    assert chosen(story, f"{sweep}_2") == [trials[2]]
    with pytest.raises(NotFound):
        chosen(story, f"{sweep}_3")


def test_a_trial_is_meant_by_the_name_of_its_sweep_and_its_number():
    story = Swept(gpus=1)
    sweep = story.sweep(name="odd")
    trials = story.trials(sweep, 2)
    assert chosen(story, "odd_1") == [trials[1]]
    with pytest.raises(NotFound):
        chosen(story, "odd_2")
    with pytest.raises(NotFound):
        chosen(story, "even_1")


def test_the_last_thing_may_be_a_sweep():
    story, sweep, trials, other = typed()
    assert chosen(story, "last") == [other]
    story.sweep(id=sweep)
    assert chosen(story, "last") == trials


def test_more_trials_of_a_sweep_are_not_what_was_submitted_last():
    story, sweep, _, other = typed()
    story.trials(sweep, 1)
    assert chosen(story, "last") == [other]


def test_a_range_has_the_trials_and_not_the_sweep():
    story, sweep, trials, other = typed()
    assert chosen(story, f"{sweep}-{other}") == [*trials, other]


def test_trials_that_have_left_memory_are_found_as_well():
    story, sweep, trials, _ = typed()
    for trial in trials:
        story.exited(trial)
    story.past = {id: story.job(id) for id in trials}  # type: ignore[attr-defined]
    story.tell(e.JobsForgotten(at=story.now, jobs=tuple(trials)))
    assert chosen(story, f"{sweep}_1") == [trials[1]]
    story.tell(e.TrialsForgotten(at=story.now, sweep=sweep))
    assert chosen(story, str(sweep)) == trials
    assert chosen(story, f"{sweep}_1") == [trials[1]]


# -- others that wait for it --------------------------------------------------------------


def after(story: Swept, kind: str, *others: int) -> int:
    return story.submit(gpus(0), dependency=Dependency((Clause(kind, others),)))


def test_a_job_waits_for_all_of_a_sweep_also_for_trials_to_come():
    story = Swept(gpus=4)
    sweep = story.sweep(asks=True, total=2)
    waits = after(story, "afterany", sweep)
    [first] = story.trials(sweep, 1)
    story.run(first)
    story.ends(first, 1.0, code=1)
    assert waits not in story.plan()
    [second] = story.trials(sweep, 1)
    story.run(second)
    assert story.job(waits).state is S.PENDING
    story.ends(second, 1.0)
    assert story.plan() == [waits]


def test_it_waits_for_ever_if_the_sweep_must_go_well_and_a_trial_failed_until_that_is_retried():
    story = Swept(gpus=4)
    sweep = story.sweep()
    waits = after(story, "afterok", sweep)
    [only] = story.trials(sweep, 1)
    story.run(only)
    story.ends(only, 1.0, code=1)
    assert waits in story.state.doomed
    story.fact(e.JobRetried, only)
    assert waits not in story.state.doomed
    story.run(only)
    story.ends(only, 1.0)
    assert story.plan() == [waits]


def test_it_waits_again_when_more_is_asked_of_the_sweep():
    story = Swept(gpus=4)
    sweep = story.sweep()
    [only] = story.trials(sweep, 1)
    story.run(only)
    waits = after(story, "afterok", sweep)
    story.fact(e.JobHeld, waits)
    story.ends(only, 1.0)
    story.trials(sweep, 1)
    story.fact(e.JobReleased, waits)
    assert waits not in story.plan()


def test_a_sweep_that_found_what_it_looked_for_went_well():
    story = Swept(gpus=1)
    sweep = story.sweep(target=0.5)
    waits = after(story, "afterok", sweep)
    first, second = story.trials(sweep, 2)
    story.run(first)
    story.ends(first, 0.1)
    story.judge()
    assert story.job(second).state is S.CANCELLED
    assert story.job(second).result == 0
    assert story.plan() == [waits]


@given(
    st.permutations(range(6)), st.sets(st.integers(0, 5)), st.sampled_from(["afterok", "afterany"])
)
def test_whoever_waits_for_many_is_told_by_the_one_that_matters(order, failing, kind):
    story = Swept(gpus=6)
    jobs = [story.submit() for _ in range(6)]
    waits = after(story, kind, *jobs)
    story.run(*jobs)
    for at, number in enumerate(order):
        story.exited(jobs[number], 1 if number in failing else 0)
        ended = order[: at + 1]
        spoiled = kind == "afterok" and any(each in failing for each in ended)
        assert (waits in story.state.doomed) == spoiled
        assert (waits in story.state.line) == (at == 5 and not spoiled)
