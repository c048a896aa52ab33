"""Dependencies: status, eligibility, parsing."""

import pytest

from core.scenario import Scenario
from stoker.core import events as e
from stoker.core.model.dependency import Clause, Dependency, DependencyStatus, parse_dependency
from stoker.core.model.units import BadValue
from stoker.core.state.eligibility import dependency_status_of


def behind(scenario: Scenario, kind: str, *jobs: int, delay: int = 0, **more: object) -> int:
    dependency = Dependency((Clause(kind, jobs, delay),))
    return scenario.submit(dependency=dependency, **more)  # type: ignore[arg-type]


def ran(scenario: Scenario, job: int, code: int = 0) -> None:
    scenario.run(job)
    scenario.exited(job, code)


@pytest.mark.parametrize(
    ("kind", "after_success", "after_failure"),
    [("afterok", True, False), ("afterany", True, True), ("afternotok", False, True),
     ("aftercorr", True, False)],
)  # fmt: skip
def test_the_end_of_the_other_job_decides(kind: str, after_success: bool, after_failure: bool):
    for code, expected in ((0, after_success), (1, after_failure)):
        scenario = Scenario()
        first = scenario.submit()
        second = behind(scenario, kind, first)
        assert second not in scenario.plan()
        scenario.started(first)
        assert scenario.plan() == []
        scenario.exited(first, code)
        assert (scenario.plan() == [second]) == expected
        how, _, _ = dependency_status_of(scenario.state, scenario.job(second), scenario.now)
        assert how is (DependencyStatus.MET if expected else DependencyStatus.NEVER)


def test_a_cancelled_job_is_no_success():
    scenario = Scenario()
    first = scenario.submit()
    second, third = behind(scenario, "afterok", first), behind(scenario, "afterany", first)
    scenario.fact(e.JobCancelled, first)
    assert scenario.plan() == [third]
    assert scenario.is_(second) == "PENDING"


def test_after_waits_for_the_start_only():
    scenario = Scenario()
    first = scenario.submit()
    second = behind(scenario, "after", first)
    scenario.plan()
    assert scenario.ready() == []
    scenario.started(first)
    assert scenario.plan() == [second]


def test_after_with_minutes_adds_a_delay_to_the_start():
    scenario = Scenario()
    first = scenario.submit()
    second = behind(scenario, "after", first, delay=600)
    scenario.run(first)
    scenario.wait(599)
    assert scenario.plan() == []
    scenario.wait(1)
    assert scenario.plan() == [second]


def test_all_clauses_or_any_of_them():
    for any, expected in ((False, False), (True, True)):
        scenario = Scenario()
        one, two = scenario.submit(), scenario.submit()
        clauses = (Clause("afterok", (one,)), Clause("afterok", (two,)))
        last = scenario.submit(dependency=Dependency(clauses, any=any))
        scenario.run(one, two)
        scenario.exited(one)
        assert (last in scenario.plan()) == expected
        scenario.exited(two)
        scenario.plan()
        assert scenario.is_(last) == "CONFIGURING"


def test_members_of_an_array_depend_on_their_counterparts():
    scenario = Scenario(gpus=4)
    first = scenario.submit(count=3, array=True)
    members = tuple(range(first, first + 3))
    second = behind(scenario, "aftercorr", *members, count=3, array=True)
    scenario.run(*members)
    scenario.exited(first + 1)
    assert scenario.plan() == [second + 1]
    scenario.exited(first)
    assert scenario.plan() == [second]


def test_a_failed_dependency_is_met_only_after_a_retry():
    scenario = Scenario()
    first = scenario.submit()
    second = behind(scenario, "afterok", first)
    ran(scenario, first, code=1)
    assert scenario.plan() == []
    scenario.fact(e.JobRetried, first)
    ran(scenario, first)
    assert scenario.plan() == [second]


def test_a_retried_dependency_makes_an_eligible_job_ineligible():
    scenario = Scenario(gpus=1)
    first = scenario.submit()
    second = behind(scenario, "afterok", first)
    ran(scenario, first)
    assert scenario.ready() == [second]
    scenario.fact(e.JobRetried, first)
    assert scenario.ready() == [first]
    ran(scenario, first)
    assert scenario.ready() == [second]


def test_an_automatic_retry_is_not_yet_an_end():
    from stoker.core.model.spec import Retry

    scenario = Scenario()
    first = scenario.submit(retry=Retry(1))
    second = behind(scenario, "afterany", first)
    ran(scenario, first, code=1)
    assert second not in scenario.plan()
    scenario.wait(5)
    ran(scenario, first, code=1)
    assert scenario.plan() == [second]


def test_targets_of_open_dependencies_stay_loaded():
    scenario = Scenario()
    first = scenario.submit()
    second = behind(scenario, "afterok", first)
    assert scenario.state.dependents == {first: {second}}
    scenario.fact(e.JobCancelled, second)
    assert scenario.state.dependents == {}


def test_a_held_job_with_a_met_dependency_stays_held():
    scenario = Scenario()
    first = scenario.submit()
    second = behind(scenario, "afterok", first, held=True)
    ran(scenario, first)
    assert scenario.plan() == []
    scenario.fact(e.JobReleased, second)
    assert scenario.plan() == [second]


def test_a_stage_of_many_behind_a_stage_of_many_starts_with_the_last_end():
    scenario = Scenario(gpus=1)
    count = 150
    first = scenario.submit(count=count)
    second = behind(scenario, "afterok", *range(first, first + count), count=count)
    for job in range(first, first + count):
        assert scenario.plan() == [job]
        scenario.exited(job)
    assert scenario.ready() == list(range(second, second + count))


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
def test_parse_dependencies(text: str, clauses: list[Clause]):
    assert read(text) == Dependency(tuple(clauses))


def test_a_question_mark_means_or():
    assert read("afterok:5?afterany:6") == Dependency(
        (Clause("afterok", (5,)), Clause("afterany", (6,))), any=True
    )


def test_a_singleton_without_predecessor_has_no_dependency():
    assert parse_dependency("singleton", lambda _: [], list) is None


@pytest.mark.parametrize(
    "text",
    ["", "afterok", "afterok:", "before:5", "afterok:5+3", "after:5+x",
     "afterok:1?afterany:2,after:3", "after:5+" + "9" * 5000, "singleton:3"],
)  # fmt: skip
def test_invalid_dependencies_are_rejected(text: str):
    with pytest.raises(BadValue):
        read(text)


def test_a_delay_that_has_passed_is_met_after_the_clock_is_set_back():
    from stoker.core.state.restore import restore

    scenario = Scenario(gpus=1)
    first = scenario.submit()
    second = behind(scenario, "after", first, delay=600)
    scenario.run(first)
    scenario.wait(600)
    assert scenario.ready() == [second]
    scenario.now -= 3600
    again = restore(scenario.state.record, scenario.state.specs, list(scenario.state.jobs.values()))
    assert sorted(again.pending.class_of) == [second]


def test_a_job_that_depends_on_a_never_eligible_job_is_never_eligible() -> None:
    scenario = Scenario(gpus=1)
    first = scenario.submit()
    second = scenario.submit(dependency=Dependency((Clause("afterok", (first,)),)))
    third = scenario.submit(dependency=Dependency((Clause("afterany", (second,)),)))
    scenario.run(first)
    scenario.exited(first, code=1)
    assert scenario.state.never_eligible == {second, third}
    scenario.fact(e.JobRetried, first)
    assert scenario.state.never_eligible == set()


def test_a_chain_of_thousands_of_dependencies() -> None:
    scenario = Scenario(gpus=1)
    first = last = scenario.submit()
    for _ in range(3000):
        last = scenario.submit(dependency=Dependency((Clause("afterok", (last,)),)))
    scenario.run(first)
    scenario.exited(first, code=1)
    assert len(scenario.state.never_eligible) == 3000
    assert last in scenario.state.never_eligible


def test_a_cancelled_never_eligible_job_meets_afterany():
    scenario = Scenario()
    failed = scenario.submit()
    scenario.run(failed)
    doomed = scenario.submit(dependency=Dependency((Clause("afterok", (failed,)),)))
    scenario.exited(failed, 1)
    scenario.fact(e.JobCancelled, doomed)
    behind = scenario.submit(dependency=Dependency((Clause("afterany", (doomed,)),)))
    assert scenario.plan() == [behind]
