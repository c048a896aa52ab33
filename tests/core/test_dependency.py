"""Waiting for other jobs."""

import pytest

from core.scenario import Scenario
from stoker.core import events as e
from stoker.core.admission import dependency_standing
from stoker.core.dependency import Clause, Dependency, Standing, parse_dependency
from stoker.core.units import BadValue


def behind(story: Scenario, kind: str, *jobs: int, delay: int = 0, **more: object) -> int:
    dependency = Dependency((Clause(kind, jobs, delay),))
    return story.submit(dependency=dependency, **more)  # type: ignore[arg-type]


def ran(story: Scenario, job: int, code: int = 0) -> None:
    story.run(job)
    story.exited(job, code)


@pytest.mark.parametrize(
    ("kind", "after_success", "after_failure"),
    [("afterok", True, False), ("afterany", True, True), ("afternotok", False, True),
     ("aftercorr", True, False)],
)  # fmt: skip
def test_how_the_other_ends_decides(kind: str, after_success: bool, after_failure: bool):
    for code, expected in ((0, after_success), (1, after_failure)):
        story = Scenario()
        first = story.submit()
        second = behind(story, kind, first)
        assert second not in story.plan()
        story.started(first)
        assert story.plan() == []
        story.exited(first, code)
        assert (story.plan() == [second]) == expected
        how, _, _ = dependency_standing(story.state, story.job(second), story.now)
        assert how is (Standing.MET if expected else Standing.NEVER)


def test_a_cancelled_job_is_no_success():
    story = Scenario()
    first = story.submit()
    second, third = behind(story, "afterok", first), behind(story, "afterany", first)
    story.fact(e.JobCancelled, first)
    assert story.plan() == [third]
    assert story.is_(second) == "PENDING"


def test_after_waits_for_the_start_only():
    story = Scenario()
    first = story.submit()
    second = behind(story, "after", first)
    story.plan()
    assert story.ready() == []
    story.started(first)
    assert story.plan() == [second]


def test_after_with_minutes_waits_so_long_after_the_start():
    story = Scenario()
    first = story.submit()
    second = behind(story, "after", first, delay=600)
    story.run(first)
    story.wait(599)
    assert story.plan() == []
    story.wait(1)
    assert story.plan() == [second]


def test_all_clauses_or_any_of_them():
    for any, expected in ((False, False), (True, True)):
        story = Scenario()
        one, two = story.submit(), story.submit()
        clauses = (Clause("afterok", (one,)), Clause("afterok", (two,)))
        last = story.submit(dependency=Dependency(clauses, any=any))
        story.run(one, two)
        story.exited(one)
        assert (last in story.plan()) == expected
        story.exited(two)
        story.plan()
        assert story.is_(last) == "CONFIGURING"


def test_members_of_an_array_wait_for_their_counterparts():
    story = Scenario(gpus=4)
    first = story.submit(count=3, array=True)
    members = tuple(range(first, first + 3))
    second = behind(story, "aftercorr", *members, count=3, array=True)
    story.run(*members)
    story.exited(first + 1)
    assert story.plan() == [second + 1]
    story.exited(first)
    assert story.plan() == [second]


def test_a_failure_is_never_made_good_unless_it_is_retried():
    story = Scenario()
    first = story.submit()
    second = behind(story, "afterok", first)
    ran(story, first, code=1)
    assert story.plan() == []
    story.fact(e.JobRetried, first)
    ran(story, first)
    assert story.plan() == [second]


def test_a_retried_dependency_also_revives_the_wait_of_one_that_was_ready():
    story = Scenario(gpus=1)
    first = story.submit()
    second = behind(story, "afterok", first)
    ran(story, first)
    assert story.ready() == [second]
    story.fact(e.JobRetried, first)
    assert story.ready() == [first]
    ran(story, first)
    assert story.ready() == [second]


def test_an_automatic_retry_is_not_yet_an_end():
    from stoker.core.job import Retry

    story = Scenario()
    first = story.submit(retry=Retry(1))
    second = behind(story, "afterany", first)
    ran(story, first, code=1)
    assert second not in story.plan()
    story.wait(5)
    ran(story, first, code=1)
    assert story.plan() == [second]


def test_what_is_waited_for_stays_in_memory_and_what_was_waited_for_does_not():
    story = Scenario()
    first = story.submit()
    second = behind(story, "afterok", first)
    assert story.state.dependents == {first: {second}}
    story.fact(e.JobCancelled, second)
    assert story.state.dependents == {}


def test_a_held_job_with_a_met_dependency_still_waits_for_its_owner():
    story = Scenario()
    first = story.submit()
    second = behind(story, "afterok", first, held=True)
    ran(story, first)
    assert story.plan() == []
    story.fact(e.JobReleased, second)
    assert story.plan() == [second]


def test_a_stage_of_many_behind_a_stage_of_many_starts_with_the_last_end():
    story = Scenario(gpus=1)
    count = 150
    first = story.submit(count=count)
    second = behind(story, "afterok", *range(first, first + count), count=count)
    for job in range(first, first + count):
        assert story.plan() == [job]
        story.exited(job)
    assert story.ready() == list(range(second, second + count))


# -- as typed -----------------------------------------------------------------------------


def read(text: str) -> Dependency | None:
    return parse_dependency(text, lambda word: [int(word)], lambda: [3, 4])


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("afterok:5", [Clause("afterok", (5,))]),
        ("afterok:5:6,afterany:7", [Clause("afterok", (5, 6)), Clause("afterany", (7,))]),
        ("5,6", [Clause("afterok", (5, 6))]),
        ("after:5+10", [Clause("after", (5,), 600)]),
        ("after:5+10:6", [Clause("after", (5,), 600), Clause("after", (6,))]),
        ("singleton", [Clause("afterany", (3, 4))]),
        ("singleton,afterok:1", [Clause("afterany", (3, 4)), Clause("afterok", (1,))]),
    ],
)
def test_dependencies_as_typed(text: str, clauses: list[Clause]):
    assert read(text) == Dependency(tuple(clauses))


def test_a_question_mark_means_or():
    assert read("afterok:5?afterany:6") == Dependency(
        (Clause("afterok", (5,)), Clause("afterany", (6,))), any=True
    )


def test_a_singleton_with_nobody_before_it_waits_for_nothing():
    assert parse_dependency("singleton", lambda _: [], list) is None


@pytest.mark.parametrize(
    "text",
    ["", "afterok", "afterok:", "before:5", "afterok:5+3", "after:5+x",
     "afterok:1?afterany:2,after:3", "after:5+" + "9" * 5000, "singleton:3"],
)  # fmt: skip
def test_what_is_no_dependency(text: str):
    with pytest.raises(BadValue):
        read(text)


def test_a_delay_that_was_over_once_stays_over_when_the_clock_is_set_back():
    from stoker.core.restore import restore

    story = Scenario(gpus=1)
    first = story.submit()
    second = behind(story, "after", first, delay=600)
    story.run(first)
    story.wait(600)
    assert story.ready() == [second]
    story.now -= 3600
    again = restore(story.state.rest, story.state.specs, list(story.state.jobs.values()))
    assert sorted(again.line.where) == [second]


def test_whoever_waits_for_a_job_that_can_never_start_can_never_start_either() -> None:
    story = Scenario(gpus=1)
    first = story.submit()
    second = story.submit(dependency=Dependency((Clause("afterok", (first,)),)))
    third = story.submit(dependency=Dependency((Clause("afterany", (second,)),)))
    story.run(first)
    story.exited(first, code=1)
    assert story.state.doomed == {second, third}
    story.fact(e.JobRetried, first)
    assert story.state.doomed == set()


def test_a_chain_of_thousands_is_no_trouble() -> None:
    story = Scenario(gpus=1)
    first = last = story.submit()
    for _ in range(3000):
        last = story.submit(dependency=Dependency((Clause("afterok", (last,)),)))
    story.run(first)
    story.exited(first, code=1)
    assert len(story.state.doomed) == 3000
    assert last in story.state.doomed


def test_a_doomed_job_that_is_cancelled_is_over_for_those_who_wait_for_any_end():
    story = Scenario()
    failed = story.submit()
    story.run(failed)
    doomed = story.submit(dependency=Dependency((Clause("afterok", (failed,)),)))
    story.exited(failed, 1)
    story.fact(e.JobCancelled, doomed)
    behind = story.submit(dependency=Dependency((Clause("afterany", (doomed,)),)))
    assert story.plan() == [behind]
