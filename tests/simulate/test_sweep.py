"""Sweeps under the virtual clock: whatever happens, no trial is lost, doubled or wronged."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from simulate.box import Box, gpus, machine, spec_of_trials
from simulate.test_any_course import SMALL
from stoker.core.job import Retry
from stoker.core.lifecycle import JobState
from stoker.core.sweep import Rule
from stoker.simulate import requests as ask
from stoker.simulate.executor import Faults
from stoker.simulate.processes import Model
from stoker.simulate.trainee import Trainee

RUNGS = (1, 2, 4)
HALVING = Rule("halving", (1.0, 2.0, 4.0), eta=2)
RULES = [
    None, HALVING, Rule("halving", (1.0, 2.0, 4.0), eta=3, brackets=2),
    Rule("median", (1.0, 2.0, 4.0), trials=2),
]  # fmt: skip


def trainee(end: float | None, epochs: int = 6, **more: object) -> Trainee:
    """One whose figures come down to this one, or that goes astray."""
    falls = tuple(end + 1 / (n + 1) for n in range(epochs)) if end is not None else (3.0, None)
    fields = {"epochs": epochs, "seconds": 20.0, "figures": falls, "rungs": RUNGS, **more}
    return Trainee(**fields)  # type: ignore[arg-type]


def test_the_worse_half_is_stopped_and_its_gpus_are_used_by_others():
    box = Box(gpus=2)
    sweep = box.sweep([trainee(end) for end in (0.1, 0.5, 0.2, 0.6, 0.3, 0.7)], rule=HALVING)
    trials = box.trials(sweep)
    box.finish()
    found = box.state.sweeps[sweep]
    assert found.counts == {"done": 1, "stopped": 5}
    assert (found.best_job, found.best) == (trials[0], pytest.approx(0.1 + 1 / 6))
    assert [box.job(id).progress.epochs for id in trials[1:]] == [1] * 5
    box.check_all_over()


def test_a_trial_that_makes_room_goes_on_as_the_same_trial():
    box = Box(gpus=1)
    sweep = box.sweep([trainee(0.1)], rule=HALVING)
    (trial,) = box.trials(sweep)
    box.run(30)
    box.submit(gpus(1), (Model(seconds=30),), priority=5)
    box.finish()
    assert (box.runs(trial), box.job(trial).state) == ([0, 1], JobState.COMPLETED)
    assert len(box.job(trial).score.rungs) == 3
    assert box.state.sweeps[sweep].counts == {"done": 1}


def test_whoever_is_good_enough_ends_the_sweep():
    box = Box(gpus=2)
    sweep = box.sweep([trainee(end) for end in (0.9, 0.1, 0.2, 0.3)], target=0.3)
    box.finish()
    assert box.state.sweeps[sweep].counts == {"done": 2, "cancelled": 2}


def busy(box: Box) -> int:
    """A sweep that is compared, preempted, limited, cut short and retried."""
    ends = [0.4, 0.1, None, 0.3, 0.5]
    sweep = box.sweep(
        [trainee(end, epochs=4) for end in ends], rule=HALVING, asks=True, total=len(ends) + 1,
        retry=Retry(3, ("lost",)),
    )  # fmt: skip
    trials = box.trials(sweep)
    box.run(35)
    box.submit(gpus(2), (Model(seconds=15),), priority=5)
    box.run(30)
    box.do(ask.change_sweep(sweep, max_running=1))
    box.run(60)
    box.do(ask.change_sweep(sweep, max_running=0, priority=3))
    box.do(ask.more_trials(sweep, spec_of_trials(), 1))
    box.run(300)
    box.do(ask.retry(trials[1]))
    box.run(150)
    box.do(ask.change_sweep(sweep, ended=True))
    box.check()
    box.check_all_over()
    found = box.state.sweeps[sweep]
    assert found.issued == sum(found.counts.values()) == len(ends) + 1
    assert (found.open, box.job(trials[2]).score.stopped) == (False, True)
    return sweep


def test_killed_beside_any_commit_no_trial_is_lost_and_none_is_there_twice():
    whole = Box(gpus=2, check_every=100)
    begin = whole.driver.fuse.passed
    busy(whole)
    places = whole.driver.fuse.places
    instants = [n + 1 for n, place in enumerate(places) if n >= begin and "commit" in place]
    assert len(instants) > 100
    for instant in instants:
        box = Box(gpus=2, check_every=100)
        box.driver.fuse.at = instant
        busy(box)
        assert box.driver.crashes == 1, instant


TRAINEES = [
    trainee(0.1), trainee(0.2, seconds=45.0), trainee(0.3, ignores=True), trainee(None),
    trainee(0.15, dies_after=2), trainee(0.25, epochs=2), trainee(0.1, epochs=3, seconds=5.0),
]  # fmt: skip


class AnySweep(RuleBasedStateMachine):
    """Owners, samplers and mishaps in any order; the checks run after every turn."""

    sweeps = Bundle("sweeps")

    @initialize(seed=st.integers(0, 99), faulty=st.booleans())
    def begin(self, seed: int, faulty: bool) -> None:
        faults = Faults(lost=0.2, repeated=0.2, late=0.3, start_delay=2.0) if faulty else Faults()
        self.box = Box(gpus=3, seed=seed, faults=faults, check_every=5)

    @rule(
        target=sweeps,
        trainees=st.lists(st.sampled_from(TRAINEES), min_size=1, max_size=6),
        judged=st.sampled_from(RULES),
        asks=st.booleans(),
        maximize=st.sampled_from([False, False, True]),
        hoped=st.sampled_from([None, None, 0.3]),
        most=st.sampled_from([None, None, 1, 2]),
        request=st.sampled_from([gpus(1), gpus(1), gpus(0.5), gpus(2)]),
        retry=st.sampled_from([Retry(), Retry(2)]),
    )
    def sweep(self, trainees, judged, asks, maximize, hoped, most, request, retry):
        return self.box.sweep(
            trainees, request, retry, rule=judged, asks=asks, maximize=maximize, target=hoped,
            max_running=most, total=len(trainees) + 3 if asks else len(trainees),
        )  # fmt: skip

    @rule(sweep=sweeps, count=st.sampled_from([1, 1, 3]), trains=st.sampled_from(TRAINEES))
    def more(self, sweep, count, trains):
        first = self.box.state.rest.next_id
        self.box.models.update({first + n: (Model(trains=trains),) for n in range(count)})
        self.box.do(ask.more_trials(sweep, spec_of_trials(), count))

    @rule(sweep=sweeps, most=st.integers(0, 2), held=st.booleans())
    def change(self, sweep, most, held):
        self.box.do(ask.change_sweep(sweep, max_running=most, held=held))

    @rule(sweep=sweeps)
    def cancel(self, sweep):
        self.box.do(ask.cancel_sweep(sweep))

    @rule(sweep=sweeps, number=st.integers(1, 6))
    def retry(self, sweep, number):
        if (
            sweep + number < self.box.state.rest.next_id
            and sweep + number not in self.box.state.sweeps
        ):
            self.box.do(ask.retry(sweep + number))

    @rule(sweep=sweeps, number=st.integers(1, 6), act=st.sampled_from([ask.pause, ask.resume]))
    def stop_or_go(self, sweep, number, act):
        self.box.do(act(sweep + number))

    @rule(seconds=st.sampled_from([5.0, 60.0]))
    def something_more_urgent(self, seconds):
        self.box.submit(gpus(2), (Model(seconds=seconds),), priority=5)

    @rule(seconds=st.sampled_from([0.0, 1.0, 20.0, 60.0, 200.0]))
    def wait(self, seconds):
        self.box.run(seconds)

    @rule(instant=st.integers(1, 25), seconds=st.sampled_from([0.0, 30.0]))
    def crash_soon(self, instant, seconds):
        self.box.driver.fuse.passed, self.box.driver.fuse.at = 0, instant
        self.box.run(seconds)
        self.box.driver.fuse.at = None

    @rule(keeps_records=st.booleans())
    def reboot(self, keeps_records):
        self.box.driver.reboot(keeps_records)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "box"):
            self.box.check()

    def teardown(self) -> None:
        if not hasattr(self, "box"):
            return
        box = self.box
        box.driver.rejoin(machine(3))
        for sweep in list(box.state.sweeps):
            box.do(ask.change_sweep(sweep, ended=True, max_running=0))
        for id, job in list(box.state.jobs.items()):
            if job.state is JobState.SUSPENDED:
                box.do(ask.resume(id))
        box.finish()
        box.check()
        box.check_all_over()
        assert not any(sweep.open for sweep in box.state.sweeps.values())


TestAnySweep = AnySweep.TestCase
TestAnySweep.settings = settings(SMALL, max_examples=30, stateful_step_count=20)


@pytest.fixture(autouse=True)
def few_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boards of sweeps that are over leave memory all the time."""
    monkeypatch.setattr("stoker.core.state.KEEP_BOARDS", 1)
