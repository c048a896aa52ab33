"""Sweeps under the virtual clock: whatever happens, no trial is lost, doubled or wronged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation import client as ask
from simulation.sim_fixture import SimFixture, gpus
from simulation.simulated_executor import Faults
from simulation.simulated_machine import Model
from simulation.test_random_commands import SMALL
from simulation.training_model import TrainingModel
from stoker.core.model.job import JobState
from stoker.core.model.spec import Retry

HALVING = {"kind": "asha", "min": 1, "max": 8, "eta": 2}
STOPS = [
    None, HALVING, {"kind": "hyperband", "min": 1, "max": 6, "eta": 2, "brackets": 2},
    {"kind": "median", "min": 1, "trials": 2},
]  # fmt: skip


def trainee(end: float | None, epochs: int = 6, **more: object) -> TrainingModel:
    """One whose figures come down to this one, or that goes astray."""
    falls = tuple(end + 1 / (n + 1) for n in range(epochs)) if end is not None else (3.0, None)
    fields = {"epochs": epochs, "seconds": 20.0, "figures": falls, **more}
    return TrainingModel(**fields)  # type: ignore[arg-type]


def test_the_worse_half_is_stopped_and_its_gpus_are_used_by_others():
    box = SimFixture(gpus=2)
    sweep = box.sweep([trainee(end) for end in (0.1, 0.5, 0.2, 0.6, 0.3, 0.7)], stop=HALVING)
    trials = box.trials(sweep)
    box.finish()
    found = box.state.sweeps[sweep]
    assert found.counts == {"done": 1, "stopped": 5}
    assert (found.best_job, found.best) == (trials[0], pytest.approx(0.1 + 1 / 6))
    assert [box.job(id).progress.epochs for id in trials[1:]] == [1] * 5
    box.check_all_over()


def test_a_trial_that_makes_room_goes_on_as_the_same_trial():
    box = SimFixture(gpus=1)
    sweep = box.sweep([trainee(0.1)], stop=HALVING)
    (trial,) = box.trials(sweep)
    box.run(30)
    box.submit(gpus(1), (Model(seconds=30),), priority=5)
    box.finish()
    assert (box.runs(trial), box.job(trial).state) == ([0, 1], JobState.COMPLETED)
    assert len(box.job(trial).score.rungs) == 3
    assert box.state.sweeps[sweep].counts == {"done": 1}


def test_whoever_is_good_enough_ends_the_sweep():
    box = SimFixture(gpus=2)
    sweep = box.sweep([trainee(end) for end in (0.9, 0.1, 0.2, 0.3)], target=0.3)
    box.finish()
    assert box.state.sweeps[sweep].counts == {"done": 2, "cancelled": 2}


def busy(box: SimFixture) -> int:
    """A sweep that is compared, preempted, limited, cut short and retried."""
    ends = [0.4, 0.1, None, 0.3, 0.5]
    sweep = box.sweep(
        [trainee(end, epochs=4) for end in ends], stop=HALVING, asks=True, total=len(ends) + 1,
        retry=Retry(3, ("lost",)),
    )  # fmt: skip
    trials = box.trials(sweep)
    box.run(35)
    box.submit(gpus(2), (Model(seconds=15),), priority=5)
    box.run(30)
    box.do(ask.change_sweep(sweep, max_running=1))
    box.run(60)
    box.do(ask.change_sweep(sweep, max_running=0, priority=3))
    box.do(ask.add_trials(sweep, [9]))
    box.run(300)
    box.do(ask.retry(trials[1]))
    box.run(150)
    box.do(ask.add_trials(sweep, [], done=True))
    box.check()
    box.check_all_over()
    found = box.state.sweeps[sweep]
    assert found.issued == sum(found.counts.values()) == len(ends) + 1
    assert (found.is_open, box.job(trials[2]).score.stopped) == (False, True)
    return sweep


def test_killed_beside_any_commit_no_trial_is_lost_and_none_is_there_twice():
    whole = SimFixture(gpus=2, check_every=100)
    begin = whole.driver.fuse.passed
    busy(whole)
    places = whole.driver.fuse.places
    instants = [n + 1 for n, place in enumerate(places) if n >= begin and "commit" in place]
    assert len(instants) > 100
    for instant in instants:
        box = SimFixture(gpus=2, check_every=100)
        box.driver.fuse.at = instant
        busy(box)
        assert box.driver.crashes == 1, instant


TRAINEES = [
    trainee(0.1), trainee(0.2, seconds=45.0), trainee(0.3, ignores=True), trainee(None),
    trainee(0.15, dies_after=2), trainee(0.25, epochs=2), trainee(0.1, epochs=3, seconds=5.0),
]  # fmt: skip


SWEEPS = st.fixed_dictionaries(
    {
        "trainees": st.lists(st.sampled_from(TRAINEES), min_size=1, max_size=6),
        "request": st.sampled_from([gpus(1), gpus(1), gpus(0.5), gpus(2)]),
        "retry": st.sampled_from([Retry(), Retry(2)]),
        "stop": st.sampled_from(STOPS),
        "asks": st.booleans(),
        "maximize": st.sampled_from([False, False, True]),
        "target": st.sampled_from([None, None, 0.3]),
        "max_running": st.sampled_from([None, None, 1, 2]),
        "total": st.sampled_from([None, 8]),
    }
)
ACTS = st.one_of(
    st.tuples(st.just("more"), st.sampled_from([1, 3])),
    st.tuples(st.just("change"), st.integers(0, 2)),
    st.tuples(st.sampled_from(["retry", "retry", "pause", "resume", "hold"]), st.integers(1, 6)),
    st.tuples(st.just("cancel_sweep"), st.just(0)),
)
MISHAPS = st.one_of(
    st.tuples(st.just("urgent"), st.sampled_from([5, 60])),
    st.tuples(st.just("crash"), st.integers(1, 25)),
    st.tuples(st.just("reboot"), st.sampled_from([0, 1])),
)


def act(box: SimFixture, sweep: int, what: str, number: int) -> None:
    """What somebody does to a sweep, or what happens to all of them."""
    if what in ("retry", "pause", "resume", "hold"):
        trial = box.state.jobs.get(sweep + number)
        if trial is not None and trial.array == sweep:
            box.do(getattr(ask, what)(trial.id))
    elif what == "more":
        first = box.state.record.next_id
        box.models.update({first + n: (Model(trains=TRAINEES[n]),) for n in range(number)})
        box.do(ask.add_trials(sweep, range(first, first + number)))
    elif what == "change":
        box.do(ask.change_sweep(sweep, max_running=number, priority=number))
    elif what == "cancel_sweep":
        box.do(ask.cancel(sweep))
    elif what == "urgent":
        box.submit(gpus(2), (Model(seconds=number),), priority=5)
    elif what == "crash":
        box.driver.fuse.passed, box.driver.fuse.at = 0, number
    elif what == "reboot":
        box.driver.reboot(keeps_records=bool(number))


def ends(box: SimFixture) -> None:
    """Nobody is in the way any more, and nobody wants more: everything comes to its end."""
    box.driver.fuse.at = None
    for sweep in list(box.state.sweeps):
        box.do(ask.change_sweep(sweep, max_running=0))
        box.do(ask.add_trials(sweep, [], done=True))
    for id, job in list(box.state.jobs.items()):
        if job.state is JobState.SUSPENDED:
            box.do(ask.resume(id))
        if job.held:
            box.do(ask.release(id))
    box.finish()
    box.check()
    box.check_all_over()
    assert not any(sweep.is_open for sweep in box.state.sweeps.values())


@settings(SMALL, max_examples=40)
@given(
    sweeps=st.lists(SWEEPS, min_size=1, max_size=3),
    acts=st.lists(st.tuples(st.one_of(ACTS, MISHAPS), st.integers(0, 9)), max_size=14),
    waits=st.lists(st.sampled_from([0.0, 1.0, 20.0, 60.0, 200.0]), min_size=14, max_size=14),
    seed=st.integers(0, 99),
    faulty=st.booleans(),
)
def test_whatever_owners_samplers_and_mishaps_do(sweeps, acts, waits, seed, faulty):
    faults = Faults(lost=0.2, repeated=0.2, late=0.3, start_delay=2.0) if faulty else Faults()
    box = SimFixture(gpus=3, seed=seed, faults=faults, check_every=5)
    known = [box.sweep(**sweep) for sweep in sweeps]
    for ((what, number), which), wait in zip(acts, waits, strict=False):
        act(box, known[which % len(known)], what, number)
        box.run(wait)
        box.check()
    ends(box)


@pytest.fixture(autouse=True)
def few_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boards of sweeps that are over leave memory all the time."""
    monkeypatch.setattr("stoker.core.state.sweep_boards.KEEP_BOARDS", 1)
