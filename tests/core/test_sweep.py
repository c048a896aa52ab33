"""Sweeps in the engine: many trials, counted, compared, stopped, forgotten, as one thing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.scenario import S, Swept, gpus
from stoker.core import events as e
from stoker.core.events.instructions import TerminateAttempt
from stoker.core.model.dependency import Clause, Dependency
from stoker.core.model.spec import Retry, Spec
from stoker.core.model.sweep import EarlyStoppingRule
from stoker.core.state.sweep_boards import KEEP_BOARDS, unloadable_boards
from stoker.daemon.selectors import NotFound, select

HALVING = EarlyStoppingRule("halving", (1.0, 3.0, 9.0), eta=3)


def running(count: int = 2, **fields: object) -> tuple[Swept, int, list[int]]:
    """A sweep all of whose trials run."""
    scenario = Swept(gpus=count)
    sweep = scenario.sweep(**fields)
    trials = scenario.trials(sweep, count)
    scenario.run(*trials)
    return scenario, sweep, trials


def best(scenario: Swept, sweep: int) -> tuple[float | None, int | None]:
    found = scenario.state.sweeps[sweep]
    return found.best, found.best_job


def values(scenario: Swept, sweep: int) -> list[list[float]]:
    """The values at each rung that a trial has reached."""
    board, definition = scenario.state.boards[sweep], scenario.state.sweeps[sweep]
    rungs = (board.values_at(definition, rung) for rung in range(len(HALVING.rungs)))
    return [reached for reached in rungs if reached]


# -- asked for ----------------------------------------------------------------------------


def test_a_sweep_takes_a_number_and_its_trials_the_next_ones():
    scenario = Swept()
    before = scenario.submit()
    sweep = scenario.sweep()
    trials = scenario.trials(sweep, 3)
    assert (before, sweep, trials) == (1, 2, [3, 4, 5])
    assert sweep not in scenario.state.jobs
    assert [scenario.job(id).label for id in trials] == ["2_0", "2_1", "2_2"]
    assert scenario.job(4).params == '{"x":1}'
    assert scenario.job(4).command == "train 1"
    assert scenario.submit() == 6


def test_more_trials_have_the_next_numbers():
    scenario = Swept()
    sweep = scenario.sweep(asks=True)
    scenario.trials(sweep, 2)
    scenario.submit()
    scenario.trials(sweep, 1)
    assert [trial.number for trial in scenario.state.boards[sweep].trials.values()] == [0, 1, 2]
    assert scenario.state.sweeps[sweep].issued == 3


def test_every_trial_is_counted_where_it_stands():
    scenario = Swept(gpus=2)
    sweep = scenario.sweep()
    first, second, third, fourth = scenario.trials(sweep, 4)
    assert scenario.counts(sweep) == {"waiting": 4}
    scenario.plan()
    assert scenario.counts(sweep) == {"waiting": 2, "running": 2}
    scenario.started(first)
    scenario.started(second)
    scenario.exited(first)
    scenario.exited(second, 1)
    assert scenario.counts(sweep) == {"waiting": 2, "done": 1, "failed": 1}
    scenario.fact(e.JobCancelled, third)
    scenario.run(fourth)
    scenario.fact(e.JobPaused, fourth, boot=scenario.boot)
    assert scenario.counts(sweep) == {"cancelled": 1, "running": 1, "done": 1, "failed": 1}
    scenario.fact(e.JobCancelled, fourth)
    assert scenario.counts(sweep)["running"] == 1  # until it is gone
    scenario.exited(fourth, None, signal=15)
    assert scenario.counts(sweep) == {"cancelled": 2, "done": 1, "failed": 1}


def test_a_sweep_is_over_when_all_its_trials_are():
    scenario, sweep, trials = running(2)
    found = scenario.state.sweeps[sweep]
    scenario.exited(trials[0])
    assert (found.is_open, found.ended_at) == (True, None)
    scenario.now += 9
    scenario.exited(trials[1], 1)
    assert (found.is_open, found.ended_at) == (False, scenario.now)


def test_a_sweep_that_thinks_of_its_trials_is_open_until_it_has_them():
    scenario = Swept(gpus=2)
    sweep = scenario.sweep(asks=True, total=2)
    found = scenario.state.sweeps[sweep]
    scenario.run(*(trials := scenario.trials(sweep, 1)))
    scenario.exited(trials[0])
    assert (found.needs_trials, found.is_open) == (True, True)
    scenario.run(*(trials := scenario.trials(sweep, 1)))
    assert not found.needs_trials
    scenario.exited(trials[0])
    assert not found.is_open


def test_a_sweep_submitted_again_gets_more_trials_and_keeps_its_own():
    scenario, sweep, trials = running(2, maximize=True)
    for trial in trials:
        scenario.ends(trial, 0.5)
    ended = scenario.state.sweeps[sweep].ended_at
    scenario.now += 60
    assert scenario.sweep(id=sweep, maximize=True, total=3, max_running=1) == sweep
    found = scenario.state.sweeps[sweep]
    assert (found.issued, found.best, found.total, found.max_running) == (2, 0.5, 3, 1)
    assert (found.counts, found.ended_at) == ({"done": 2}, ended)
    more = scenario.trials(sweep, 1)
    assert scenario.job(more[0]).label == f"{sweep}_2"
    assert (found.ended_at, found.is_open) == (None, True)
    assert scenario.state.boards[sweep].keys['{"x":2}'] == more[0]


def test_a_finished_sweep_submitted_again_continues():
    scenario = Swept()
    sweep = scenario.sweep(asks=True)
    scenario.tell(
        e.SweepChanged(at=scenario.now, sweep=sweep, ended=True, held=True, note="no ideas")
    )
    scenario.sweep(id=sweep, asks=True)
    found = scenario.state.sweeps[sweep]
    assert (found.needs_trials, found.held, found.note, found.ended_at) == (True, False, None, None)


# -- the whole of it ----------------------------------------------------------------------


def test_the_whole_is_cancelled():
    scenario, sweep, trials = running(2, asks=True)
    trials += scenario.trials(sweep, 2)
    for trial in trials:
        scenario.fact(e.JobCancelled, trial)
    scenario.tell(e.SweepChanged(at=scenario.now, sweep=sweep, ended=True))
    assert scenario.state.sweeps[sweep].is_open
    for trial in trials[:2]:
        scenario.exited(trial, None, signal=15)
    assert scenario.counts(sweep) == {"cancelled": 4}
    assert not scenario.state.sweeps[sweep].is_open


def test_held_and_released_as_a_whole():
    scenario = Swept(gpus=2)
    sweep = scenario.sweep(asks=True)
    trials = scenario.trials(sweep, 2)
    for trial in trials:
        scenario.fact(e.JobHeld, trial)
    scenario.tell(e.SweepChanged(at=scenario.now, sweep=sweep, held=True))
    assert scenario.plan() == []
    assert scenario.state.sweeps[sweep].held
    for trial in trials:
        scenario.fact(e.JobReleased, trial)
    scenario.tell(e.SweepChanged(at=scenario.now, sweep=sweep, held=False))
    assert scenario.plan() == trials
    assert not scenario.state.sweeps[sweep].held


def test_only_so_many_run_at_a_time():
    scenario = Swept(gpus=4)
    sweep = scenario.sweep(max_running=2)
    trials = scenario.trials(sweep, 4)
    other = scenario.submit()
    assert scenario.plan() == [*trials[:2], other]
    scenario.started(trials[0])
    scenario.exited(trials[0])
    assert scenario.plan() == [trials[2]]


def test_that_limit_can_be_changed_while_it_runs():
    scenario = Swept(gpus=4)
    sweep = scenario.sweep(max_running=1)
    trials = scenario.trials(sweep, 4)
    assert scenario.plan() == trials[:1]
    scenario.state.pending.take_planning_request()
    scenario.tell(e.SweepChanged(at=scenario.now, sweep=sweep, max_running=3))
    assert scenario.state.pending.planning_requested
    assert scenario.plan() == trials[1:3]
    scenario.tell(e.SweepChanged(at=scenario.now, sweep=sweep, max_running=0))
    assert scenario.plan() == trials[3:]


def test_two_sweeps_do_not_share_a_limit():
    scenario = Swept(gpus=4)
    one, other = scenario.sweep(max_running=1), scenario.sweep(max_running=2)
    first, second = scenario.trials(one, 2), scenario.trials(other, 3)
    assert scenario.plan() == [first[0], *second[:2]]


# -- figures ------------------------------------------------------------------------------


@pytest.mark.parametrize(("maximize", "expected"), [(False, 0.2), (True, 0.7)])
def test_the_best_so_far_is_that_of_trials_that_came_to_their_end(maximize, expected):
    scenario, sweep, trials = running(3, maximize=maximize)
    for trial, value in zip(trials, (0.5, 0.2, 0.7), strict=True):
        scenario.ends(trial, value)
    assert best(scenario, sweep)[0] == expected


def test_what_failed_or_was_given_up_is_never_the_best():
    scenario, sweep, trials = running(3)
    scenario.ends(trials[0], 0.1, code=1)
    scenario.scored(trials[1], 0.2)
    scenario.fact(e.JobCancelled, trials[1])
    scenario.exited(trials[1], None, signal=15)
    assert best(scenario, sweep) == (None, None)
    scenario.ends(trials[2], 0.9)
    assert best(scenario, sweep) == (0.9, trials[2])


def test_no_number_is_never_the_best():
    scenario, sweep, trials = running(2)
    scenario.ends(trials[0], None)
    assert best(scenario, sweep) == (None, None)
    assert scenario.counts(sweep) == {"done": 1, "running": 1}


def test_of_equals_the_first_is_the_best():
    scenario, sweep, trials = running(2)
    scenario.ends(trials[1], 0.5)
    scenario.ends(trials[0], 0.5)
    assert best(scenario, sweep) == (0.5, trials[1])


def test_a_figure_may_come_after_the_end():
    scenario, sweep, trials = running(2)
    scenario.exited(trials[0])
    assert best(scenario, sweep) == (None, None)
    scenario.scored(trials[0], 0.4)
    assert best(scenario, sweep) == (0.4, trials[0])
    scenario.scored(trials[0], 0.6)  # what was read first was not all there was
    assert best(scenario, sweep) == (0.6, trials[0])


def test_a_figure_of_an_earlier_attempt_changes_nothing():
    scenario, sweep, trials = running(1)
    scenario.ends(trials[0], 0.4)
    scenario.fact(e.JobRetried, trials[0])
    scenario.scored(trials[0], 0.1, attempt=0)
    assert best(scenario, sweep) == (None, None)
    assert scenario.job(trials[0]).score is None


def test_figures_of_jobs_that_are_no_trials_change_nothing():
    scenario = Swept()
    job = scenario.submit()
    scenario.run(job)
    scenario.scored(job, 0.1)
    scenario.fact(e.TrialMeasured, 77, attempt=0, value=1.0)
    assert scenario.job(job).score is None


def test_a_retried_trial_has_no_score():
    scenario, sweep, trials = running(2, rule=HALVING)
    for trial, value in zip(trials, (0.1, 0.2), strict=True):
        scenario.scored(trial, value, rung=0, step=1)
        scenario.ends(trial, value)
    assert best(scenario, sweep) == (0.1, trials[0])
    scenario.fact(e.JobRetried, trials[0])
    assert best(scenario, sweep) == (0.2, trials[1])
    assert scenario.job(trials[0]).score is None
    assert values(scenario, sweep) == [[0.2]]
    assert scenario.counts(sweep) == {"waiting": 1, "done": 1}
    assert scenario.state.sweeps[sweep].ended_at is None
    scenario.fact(e.JobRetried, trials[1])
    assert best(scenario, sweep) == (None, None)
    assert values(scenario, sweep) == []


def test_what_is_measured_at_a_rung_is_known_at_once():
    scenario, sweep, trials = running(1, rule=HALVING)
    scenario.scored(trials[0], 0.5, rung=0, step=1)
    scenario.scored(trials[0], None, rung=1, step=3)
    score = scenario.job(trials[0]).score
    assert (score.value, score.step, len(score.rungs), score.final) == (None, 3, 2, False)
    assert best(scenario, sweep) == (None, None)


def test_a_rung_is_counted_once_however_often_it_is_reported():
    scenario, sweep, trials = running(1, rule=HALVING)
    for _ in range(3):
        scenario.scored(trials[0], 0.5, rung=0, step=1)
    scenario.scored(trials[0], 0.1, rung=2, step=9)  # the one between has not been heard of
    assert scenario.job(trials[0]).score.rungs == (0.5,)
    assert values(scenario, sweep) == [[0.5]]


# -- a target -----------------------------------------------------------------------------


def test_as_good_as_was_hoped_for_what_waits_is_cancelled():
    scenario = Swept(gpus=2)
    sweep = scenario.sweep(target=0.3, asks=True)
    trials = scenario.trials(sweep, 4)
    scenario.run(*trials[:2])
    scenario.ends(trials[0], 0.4)
    assert scenario.stop_early() == []
    scenario.run(trials[2])
    scenario.ends(trials[1], 0.3)
    assert len(scenario.stop_early()) == 2
    assert scenario.counts(sweep) == {"done": 2, "running": 1, "cancelled": 1}
    found = scenario.state.sweeps[sweep]
    assert (found.ended, found.needs_trials, found.is_open) == (True, False, True)
    assert scenario.stop_early() == []
    scenario.ends(trials[2], 0.9)
    assert not found.is_open


def test_a_trial_that_is_retried_after_that_is_left_alone():
    scenario, _, trials = running(2, target=0.3)
    for trial in trials:
        scenario.ends(trial, 0.1)
    scenario.stop_early()
    scenario.fact(e.JobRetried, trials[1])
    assert scenario.stop_early() == []
    assert scenario.is_(trials[1]) == "PENDING"


# -- stopped early ------------------------------------------------------------------------


def compared(count: int = 2, **fields: object) -> tuple[Swept, int, list[int]]:
    """The second of several trials is worse at the first rung, and stopped."""
    scenario, sweep, trials = running(count, rule=HALVING, **fields)
    scenario.scored(trials[0], 0.1, rung=0, step=1)
    scenario.scored(trials[1], 0.5, rung=0, step=1)
    return scenario, sweep, trials


def test_a_worse_trial_is_stopped_at_once():
    scenario, sweep, trials = compared()
    assert scenario.stop_early() == [e.TrialStopped(at=scenario.now, job=trials[1], attempt=0)]
    assert (scenario.is_(trials[0]), scenario.is_(trials[1])) == ("RUNNING", "COMPLETING")
    assert scenario.counts(sweep) == {"running": 2}
    assert scenario.stop_early() == []


def test_a_stop_is_sent_once():
    scenario, _, trials = compared()
    stopped = e.TrialStopped(at=scenario.now, job=trials[1], attempt=0)
    assert scenario.tell(stopped) == [TerminateAttempt(trials[1], 0)]
    assert scenario.tell(stopped) == []


@pytest.mark.parametrize("how", [{"code": 0}, {"code": 1}, {"code": None, "signal": 15}])
def test_however_it_leaves_it_is_complete_and_says_why(how):
    scenario, sweep, trials = compared()
    scenario.stop_early()
    scenario.exited(trials[1], **how)
    job = scenario.job(trials[1])
    assert (job.state, job.cause) == (
        S.COMPLETED,
        "stopped early at step 1: other trials were better",
    )
    assert (job.result, job.score.stopped) == (0, True)
    assert scenario.counts(sweep) == {"running": 1, "stopped": 1}
    assert scenario.free()["1"] == 1000


def test_that_is_no_failure_which_a_retry_rule_would_answer():
    scenario = Swept(gpus=2)
    spec = Spec(
        kind="line", user="ada", directory="/", shell="sh", name="train", environment="none",
        request=gpus(1), retry=Retry(9),
    )  # fmt: skip
    scenario.tell(e.SpecRecorded(at=scenario.now, hash="trial", spec=spec))
    sweep = scenario.sweep(rule=HALVING)
    trials = scenario.trials(sweep, 2)
    scenario.run(*trials)
    scenario.scored(trials[0], 0.1, rung=0, step=1)
    scenario.scored(trials[1], 0.5, rung=0, step=1)
    scenario.stop_early()
    scenario.exited(trials[1], None, signal=9)
    assert scenario.job(trials[1]).state is S.COMPLETED


def test_lost_with_its_machine_it_is_stopped_all_the_same():
    scenario, sweep, trials = compared()
    scenario.stop_early()
    scenario.about(e.AttemptLost, trials[1], why="the node restarted")
    assert scenario.counts(sweep) == {"running": 1, "stopped": 1}


def test_its_device_goes_to_the_next_trial():
    scenario, sweep, trials = compared()
    more = scenario.trials(sweep, 1)
    scenario.stop_early()
    assert scenario.plan() == []
    scenario.exited(trials[1], 0)
    assert scenario.plan() == more


def test_it_keeps_what_it_has_saved_and_measured():
    scenario, _, trials = compared()
    scenario.about(e.TrainingBegan, trials[1])
    scenario.about(e.EpochsCounted, trials[1], done=4)
    scenario.stop_early()
    scenario.scored(trials[1], 0.45, step=2)
    scenario.exited(trials[1], 0)
    job = scenario.job(trials[1])
    assert job.progress.epochs == 4
    assert (job.score.value, job.score.step, job.score.rungs) == (0.45, 2, (0.5,))


def test_the_figure_of_a_stopped_trial_may_be_the_best():
    scenario, sweep, trials = compared()
    scenario.stop_early()
    scenario.ends(trials[1], 0.05)
    assert best(scenario, sweep) == (0.05, trials[1])


def test_cancelled_by_its_owner_while_it_ends_it_is_cancelled():
    scenario, sweep, trials = compared()
    scenario.stop_early()
    scenario.fact(e.JobCancelled, trials[1])
    scenario.exited(trials[1], None, signal=15)
    assert scenario.counts(sweep) == {"running": 1, "cancelled": 1}


def test_a_stopped_trial_can_be_retried_and_is_compared_again():
    scenario, sweep, trials = compared()
    scenario.stop_early()
    scenario.exited(trials[1], 0)
    scenario.fact(e.JobRetried, trials[1])
    assert scenario.counts(sweep) == {"running": 1, "waiting": 1}
    assert values(scenario, sweep) == [[0.1]]
    scenario.run(trials[1])
    scenario.scored(trials[1], 0.05, rung=0, step=1)
    assert scenario.stop_early() == []
    assert scenario.job(trials[1]).score.rungs == (0.05,)


def test_a_value_reported_before_the_start_counts():
    scenario = Swept(gpus=2)
    sweep = scenario.sweep(rule=HALVING)
    trials = scenario.trials(sweep, 2)
    scenario.run(trials[0])
    scenario.scored(trials[0], 0.1, rung=0, step=1)
    scenario.scored(trials[1], 0.5, rung=0, step=1)
    assert [fact.job for fact in scenario.stop_early()] == [trials[1]]


def test_one_that_is_over_by_then_is_not_stopped_but_counts_for_others():
    scenario, sweep, trials = running(3, rule=HALVING)
    scenario.exited(trials[0])
    scenario.scored(trials[0], 0.1, rung=0, step=1)
    scenario.scored(trials[1], 0.5, rung=0, step=1)
    assert [fact.job for fact in scenario.stop_early()] == [trials[1]]
    assert scenario.counts(sweep)["done"] == 1


# -- preempted ----------------------------------------------------------------------------


def preempted() -> tuple[Swept, int, list[int]]:
    scenario, sweep, trials = running(2, rule=HALVING)
    job = trials[0]
    scenario.about(e.TrainingBegan, job)
    scenario.scored(job, 0.4, rung=0, step=1)
    scenario.about(e.PreemptionRequested, job, why="job 9 is more urgent", boot=scenario.boot)
    scenario.scored(job, 0.3, step=2)  # all that was known when its attempt ended
    scenario.exited(job, 75, stopped=True)
    return scenario, sweep, trials


def test_a_trial_that_made_room_is_the_same_trial_when_it_goes_on():
    scenario, sweep, trials = preempted()
    job = scenario.job(trials[0])
    assert (job.state, job.attempt, job.index) == (S.PENDING, 1, 0)
    assert scenario.counts(sweep) == {"waiting": 1, "running": 1}
    assert scenario.state.sweeps[sweep].issued == 2
    assert len(scenario.state.boards[sweep].trials) == 2


def test_what_it_had_by_then_is_no_result():
    scenario, sweep, trials = preempted()
    assert best(scenario, sweep) == (None, None)
    assert scenario.job(trials[0]).score.final is False
    assert scenario.state.boards[sweep].trials[trials[0]].score.final is False
    scenario.scored(trials[0], 0.01, attempt=0)  # heard of after its end
    assert best(scenario, sweep) == (None, None)
    scenario.run(trials[0])
    scenario.ends(trials[0], 0.2)
    assert best(scenario, sweep) == (0.2, trials[0])


def test_its_rungs_are_not_counted_twice():
    scenario, sweep, trials = preempted()
    scenario.run(trials[0])
    scenario.scored(trials[0], 0.9, rung=0, step=1)  # restarted shortly before its checkpoint
    assert values(scenario, sweep) == [[0.4]]
    scenario.scored(trials[0], 0.2, rung=1, step=3)
    assert scenario.job(trials[0]).score.rungs == (0.4, 0.2)
    assert values(scenario, sweep) == [[0.4], [0.2]]


def test_a_second_try_after_a_failure_goes_on_where_it_was_as_well():
    scenario, sweep, trials = compared()
    scenario.exited(trials[0], 75)
    assert scenario.is_(trials[0]) == "PENDING"
    assert values(scenario, sweep) == [[0.1, 0.5]]


# -- forgotten and recalled ---------------------------------------------------------------


def test_trials_that_have_left_memory_are_still_on_the_board():
    scenario, sweep, trials = running(2, rule=HALVING)
    for trial, value in zip(trials, (0.1, 0.2), strict=True):
        scenario.scored(trial, value, rung=0, step=1)
        scenario.ends(trial, value)
    scenario.tell(e.JobsUnloaded(at=scenario.now, jobs=(trials[0],)))
    board = scenario.state.boards[sweep]
    assert (list(board.trials), values(scenario, sweep)) == (trials, [[0.1, 0.2]])
    assert best(scenario, sweep) == (0.1, trials[0])


def test_the_board_of_a_sweep_that_is_over_is_forgotten_and_recalled():
    scenario, sweep, trials = running(2, rule=HALVING)
    for trial, value in zip(trials, (0.1, 0.2), strict=True):
        scenario.scored(trial, value, rung=0, step=1)
        scenario.ends(trial, value)
    kept = scenario.state.boards[sweep]
    scenario.tell(e.TrialsUnloaded(at=scenario.now, sweep=sweep))
    assert sweep not in scenario.state.boards
    assert best(scenario, sweep) == (0.1, trials[0])
    loaded = tuple(kept.trials.values())
    scenario.tell(e.TrialsLoaded(at=scenario.now, sweep=sweep, trials=loaded))
    again = scenario.state.boards[sweep]
    assert (again.trials, again.keys) == (kept.trials, kept.keys)
    more = scenario.trials(sweep, 1)
    assert scenario.job(more[0]).index == 2


def test_a_late_figure_still_changes_the_best_of_a_sweep_without_its_board():
    scenario, sweep, trials = running(1)
    scenario.exited(trials[0])
    scenario.tell(e.TrialsUnloaded(at=scenario.now, sweep=sweep))
    scenario.scored(trials[0], 0.3)
    assert best(scenario, sweep) == (0.3, trials[0])


def test_what_is_in_memory_is_newer_than_what_was_read():
    scenario, sweep, trials = running(1)
    scenario.exited(trials[0], 1)
    old = tuple(scenario.state.boards[sweep].trials.values())
    scenario.tell(e.TrialsUnloaded(at=scenario.now, sweep=sweep))
    scenario.fact(e.JobRetried, trials[0])
    scenario.tell(e.TrialsLoaded(at=scenario.now, sweep=sweep, trials=old))
    assert scenario.state.boards[sweep].trials[trials[0]].state is S.PENDING


def test_a_trial_without_a_board_is_never_stopped():
    scenario, sweep, trials = compared()
    for trial in trials:
        scenario.exited(trial)
    scenario.tell(e.TrialsUnloaded(at=scenario.now, sweep=sweep))
    scenario.fact(e.JobRetried, trials[1])
    scenario.run(trials[1])
    scenario.scored(trials[1], 0.5, rung=0, step=1)
    assert scenario.stop_early() == []


def test_a_few_boards_of_sweeps_that_are_over_are_kept():
    scenario = Swept(gpus=1)
    over = []
    for _ in range(KEEP_BOARDS + 2):
        over.append(scenario.sweep(identity=str(scenario.now)))
        trials = scenario.trials(over[-1], 1)
        scenario.now += 1
        scenario.run(*trials)
        scenario.exited(trials[0])
    assert unloadable_boards(scenario.state) == over[:2]
    goes_on = scenario.sweep(asks=True)
    assert goes_on not in unloadable_boards(scenario.state)


# -- what people type ---------------------------------------------------------------------


def chosen(scenario: Swept, *words: str) -> list[int]:
    past, members = getattr(scenario, "past", {}), getattr(scenario, "members", [])
    return select(list(words), scenario.state, past.get, lambda _: [], lambda _: members)


def typed() -> tuple[Swept, int, list[int], int]:
    scenario, sweep, trials = running(3)
    scenario.past, scenario.members = {}, trials  # type: ignore[attr-defined]
    other = scenario.submit(name="other")
    return scenario, sweep, trials, other


def test_a_sweep_is_meant_by_its_number_and_its_name():
    scenario, sweep, trials, other = typed()
    assert chosen(scenario, str(sweep)) == trials
    assert chosen(scenario, "train") == trials
    assert chosen(scenario, f"{sweep},{other}") == [*trials, other]
    assert chosen(scenario, str(trials[1])) == [trials[1]]


def test_a_trial_is_meant_by_its_number_in_the_sweep():
    scenario, sweep, trials, _ = typed()
    assert chosen(scenario, f"{sweep}_2") == [trials[2]]
    with pytest.raises(NotFound):
        chosen(scenario, f"{sweep}_3")


def test_a_trial_is_meant_by_the_name_of_its_sweep_and_its_number():
    scenario = Swept(gpus=1)
    sweep = scenario.sweep(name="odd")
    trials = scenario.trials(sweep, 2)
    assert chosen(scenario, "odd_1") == [trials[1]]
    with pytest.raises(NotFound):
        chosen(scenario, "odd_2")
    with pytest.raises(NotFound):
        chosen(scenario, "even_1")


def test_the_last_thing_may_be_a_sweep():
    scenario, sweep, trials, other = typed()
    assert chosen(scenario, "last") == [other]
    scenario.sweep(id=sweep)
    assert chosen(scenario, "last") == trials


def test_more_trials_of_a_sweep_are_not_what_was_submitted_last():
    scenario, sweep, _, other = typed()
    scenario.trials(sweep, 1)
    assert chosen(scenario, "last") == [other]


def test_a_range_has_the_trials_and_not_the_sweep():
    scenario, sweep, trials, other = typed()
    assert chosen(scenario, f"{sweep}-{other}") == [*trials, other]


def test_trials_that_have_left_memory_are_found_as_well():
    scenario, sweep, trials, _ = typed()
    for trial in trials:
        scenario.exited(trial)
    scenario.past = {id: scenario.job(id) for id in trials}  # type: ignore[attr-defined]
    scenario.tell(e.JobsUnloaded(at=scenario.now, jobs=tuple(trials)))
    assert chosen(scenario, f"{sweep}_1") == [trials[1]]
    scenario.tell(e.TrialsUnloaded(at=scenario.now, sweep=sweep))
    assert chosen(scenario, str(sweep)) == trials
    assert chosen(scenario, f"{sweep}_1") == [trials[1]]


# -- others that wait for it --------------------------------------------------------------


def after(scenario: Swept, kind: str, *others: int) -> int:
    return scenario.submit(gpus(0), dependency=Dependency((Clause(kind, others),)))


def test_a_job_waits_for_all_of_a_sweep_also_for_trials_to_come():
    scenario = Swept(gpus=4)
    sweep = scenario.sweep(asks=True, total=2)
    waits = after(scenario, "afterany", sweep)
    [first] = scenario.trials(sweep, 1)
    scenario.run(first)
    scenario.ends(first, 1.0, code=1)
    assert waits not in scenario.plan()
    [second] = scenario.trials(sweep, 1)
    scenario.run(second)
    assert scenario.job(waits).state is S.PENDING
    scenario.ends(second, 1.0)
    assert scenario.plan() == [waits]


def test_it_waits_for_ever_if_the_sweep_must_go_well_and_a_trial_failed_until_that_is_retried():
    scenario = Swept(gpus=4)
    sweep = scenario.sweep()
    waits = after(scenario, "afterok", sweep)
    [only] = scenario.trials(sweep, 1)
    scenario.run(only)
    scenario.ends(only, 1.0, code=1)
    assert waits in scenario.state.never_eligible
    scenario.fact(e.JobRetried, only)
    assert waits not in scenario.state.never_eligible
    scenario.run(only)
    scenario.ends(only, 1.0)
    assert scenario.plan() == [waits]


def test_a_dependency_on_a_sweep_is_open_again_with_more_trials():
    scenario = Swept(gpus=4)
    sweep = scenario.sweep()
    [only] = scenario.trials(sweep, 1)
    scenario.run(only)
    waits = after(scenario, "afterok", sweep)
    scenario.fact(e.JobHeld, waits)
    scenario.ends(only, 1.0)
    scenario.trials(sweep, 1)
    scenario.fact(e.JobReleased, waits)
    assert waits not in scenario.plan()


def test_a_sweep_that_found_what_it_looked_for_went_well():
    scenario = Swept(gpus=1)
    sweep = scenario.sweep(target=0.5)
    waits = after(scenario, "afterok", sweep)
    first, second = scenario.trials(sweep, 2)
    scenario.run(first)
    scenario.ends(first, 0.1)
    scenario.stop_early()
    assert scenario.job(second).state is S.CANCELLED
    assert scenario.job(second).result == 0
    assert scenario.plan() == [waits]


@given(
    st.permutations(range(6)), st.sets(st.integers(0, 5)), st.sampled_from(["afterok", "afterany"])
)
def test_a_dependency_on_many_jobs_is_decided_by_one(order, failing, kind):
    scenario = Swept(gpus=6)
    jobs = [scenario.submit() for _ in range(6)]
    waits = after(scenario, kind, *jobs)
    scenario.run(*jobs)
    for at, number in enumerate(order):
        scenario.exited(jobs[number], 1 if number in failing else 0)
        ended = order[: at + 1]
        spoiled = kind == "afterok" and any(each in failing for each in ended)
        assert (waits in scenario.state.never_eligible) == spoiled
        assert (waits in scenario.state.pending) == (at == 5 and not spoiled)
