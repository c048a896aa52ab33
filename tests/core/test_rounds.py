"""Elastic jobs where equals make room for each other: dealt out in rounds, a minute apart."""

from typing import Any

from core.scenario import Afar, gpus
from core.test_training import counted, listens, progress
from stoker.core import events as e
from stoker.core.clock import seconds_until_due
from stoker.core.cycle import after_requests
from stoker.core.job import Training
from stoker.core.policy.rounds import ROUND
from stoker.core.request import Request


def lab(machines: int = 2, each: int = 4) -> Afar:
    """Machines on which the planner decides."""
    story = Afar(gpus=each)
    for name in ["bee", "cat", "dog"][: machines - 1]:
        story.add(name, gpus=each)
    story.tell(e.PolicyChosen(at=story.now, queue="*", name="planner"))
    return story


def elastic(story: Afar, most: int = 8, distributed: bool = True, **more: Any) -> int:
    """An elastic job of a kind of its own."""
    fields = {"training": Training(epochs=100, distributed=distributed), **more}
    return story.submit(gpus(1, most=most * 1000), **{"name": f"job {story.now}", **fields})


def held(story: Afar, job: int) -> int:
    return sum(len(part.names("gpu")) for part in story.placed(job).parts)


def asked(story: Afar, job: int) -> int | None:
    """How many GPUs it is to go on with, if it was asked to stop."""
    stop = progress(story, job).stop
    return stop.gpus if stop is not None else None


def again(story: Afar, *jobs: int) -> None:
    """They stop as they were asked to, and go on."""
    for job in jobs:
        story.exited(job, 75, stopped=True)
    listens(story, *jobs)


def later(story: Afar, seconds: float = ROUND) -> list[int]:
    """Time passes, and who is asked or begins then."""
    story.now += seconds
    return story.plan()


def test_nothing_is_known_of_it_so_it_has_one_machine_at_most() -> None:
    story = lab()
    a = elastic(story)
    listens(story, a)
    assert held(story, a) == 4
    assert later(story) == []


def test_it_grows_over_several_machines_when_that_pays() -> None:
    story = lab()
    a = elastic(story)
    listens(story, a)
    counted(story, a, 1, seconds=1000.0)
    assert later(story) == [a]
    assert asked(story, a) == 8
    again(story, a)
    assert (held(story, a), sorted(story.where(a))) == (8, ["bee", "box"])
    assert progress(story, a).preemptions == 0


def test_only_what_was_made_for_it_goes_beyond_one_machine() -> None:
    story = lab()
    a = elastic(story, distributed=False)
    listens(story, a)
    counted(story, a, 1, seconds=1000.0)
    assert later(story) == []
    assert held(story, a) == 4


def test_nothing_changes_that_does_not_repay_the_restart_several_times() -> None:
    story = lab()
    a = elastic(story)
    listens(story, a)
    counted(story, a, 1, seconds=2.0)  # over in three minutes
    assert later(story) == []


def grown(story: Afar) -> int:
    """One that has two machines, and was measured there."""
    a = elastic(story)
    listens(story, a)
    counted(story, a, 1, seconds=1000.0)
    later(story)
    again(story, a)
    counted(story, a, 2, seconds=600.0)
    return a


def test_it_shrinks_for_a_newcomer_that_has_nothing() -> None:
    story = lab()
    a = grown(story)
    later(story)
    b = elastic(story, name="b")
    assert later(story) == [a]
    assert asked(story, a) == 4
    again(story, a)
    assert (held(story, a), held(story, b)) == (4, 4)
    assert set(story.where(a)).isdisjoint(story.where(b))


def test_it_shrinks_for_one_that_is_not_elastic_no_more_than_it_must() -> None:
    story = lab()
    a = grown(story)
    later(story)
    b = story.submit(gpus(1), name="b", training=Training(epochs=10))
    assert later(story) == [a]
    assert asked(story, a) == 4
    story.exited(a, 75, stopped=True)
    assert sorted(story.plan()) == [a, b]


def test_nobody_is_changed_twice_within_a_minute() -> None:
    story = lab()
    a = grown(story)  # it has just begun again
    b = elastic(story, name="b")
    assert later(story, ROUND - 1) == []
    due = seconds_until_due(story.state, story.now, story.boot)
    assert due is not None
    assert due <= 1
    story.now += 1
    decided = list(after_requests(story.state, story.now, story.boot))
    assert isinstance(decided[0], e.StopAsked)
    assert decided[0].job == a
    assert b in story.ready()


def test_one_alone_grows_at_its_first_checkpoint() -> None:
    story = lab(machines=1)
    fixed = story.submit(gpus(3), name="fixed")
    story.run(fixed)
    a = elastic(story, most=4)
    listens(story, a)
    assert held(story, a) == 1
    story.exited(fixed)
    assert later(story, 5) == []  # nothing is measured yet
    for done, size in ((1, 2), (2, 4)):
        story.now += 5
        counted(story, a, done, seconds=1000.0 / size)
        assert story.plan() == [a]
        assert asked(story, a) == size
        again(story, a)
        assert held(story, a) == size
    assert story.now - story.job(a).submitted_at < ROUND


def test_one_alone_shrinks_in_rounds_only() -> None:
    story = lab()
    a = elastic(story)
    listens(story, a)
    counted(story, a, 4, seconds=1000.0)
    assert story.plan() == [a]
    again(story, a)
    counted(story, a, 5, seconds=2000.0)  # two machines are slower
    assert story.plan() == []
    assert later(story) == [a]
    assert asked(story, a) == 4


def test_one_that_is_not_alone_waits_for_the_round() -> None:
    story = lab(machines=1)
    fixed = story.submit(gpus(2), name="fixed")
    story.run(fixed)
    a, b = elastic(story, most=4, name="a"), elastic(story, most=4, name="b")
    listens(story, a, b)
    story.exited(fixed)
    story.now += 5
    for job in (a, b):
        counted(story, job, 1, seconds=1000.0)
    assert story.plan() == []
    assert sorted(later(story)) == [a, b]


def test_a_newcomer_need_not_wait_for_the_next_round_when_there_is_room() -> None:
    story = lab(machines=3)
    a = elastic(story)
    listens(story, a)
    story.now += 1
    b = elastic(story, name="b")
    assert story.plan() == [b]
    assert held(story, b) == 4


def test_whoever_has_no_room_to_grow_goes_on_where_it_is() -> None:
    story = lab()
    fixed = story.submit(Request(gpus=gpus(1).gpus, nodes=("bee",)), name="fixed")
    a = elastic(story)
    story.run(fixed)
    listens(story, a)
    counted(story, a, 1, seconds=1000.0)
    assert later(story) == []
    assert held(story, a) == 4


def test_nobody_is_asked_whose_script_does_not_listen() -> None:
    story = lab()
    a = elastic(story, restartable=True)
    story.run(a)
    b = elastic(story, name="b")
    c = elastic(story, name="c")
    later(story)
    assert {held(story, b), held(story, c)} <= {1, 2, 4}
    assert later(story, 10 * ROUND) == []


def test_those_who_come_are_more_than_there_are_gpus_so_the_longest_waits() -> None:
    story = lab(machines=1, each=2)
    a, b = elastic(story, name="a"), elastic(story, name="b")
    listens(story, a, b)
    counted(story, a, 1, seconds=1000.0)
    counted(story, b, 1, seconds=100.0)
    c = elastic(story, name="c")
    assert later(story) == [a]
    assert asked(story, a) is None
    story.exited(a, 75, stopped=True)
    assert story.plan() == [c]
    assert progress(story, a).preemptions == 1


def test_what_it_was_at_an_earlier_stage_does_not_hold_it_back_for_good() -> None:
    story = lab()
    a = elastic(story)
    listens(story, a)
    counted(story, a, 4, seconds=1000.0)
    later(story)
    again(story, a)
    counted(story, a, 5, seconds=1100.0)  # two machines are slower
    assert later(story) == [a]
    again(story, a)
    assert held(story, a) == 4
    later(story)
    counted(story, a, 60, seconds=900.0)  # much later in its training
    assert later(story) == [a]
    assert asked(story, a) == 8


def test_few_measurements_of_one_job_are_kept() -> None:
    story = lab()
    a = elastic(story)
    listens(story, a)
    for done in range(1, 100):
        counted(story, a, done, seconds=10.0 + done)
    kept = progress(story, a).paces
    assert len(kept) <= 7
    assert kept[-1][1:] == (4, 109.0)
