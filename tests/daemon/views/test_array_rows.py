"""Rows of a listing that stand for several members of an array."""

from core.scenario import Scenario
from stoker.core import events as e
from stoker.core.queue.pending_queue import first_jobs, first_rows
from stoker.daemon.handlers.queries import _current_rows
from stoker.daemon.views.array_rows import rows, spans, summary
from stoker.schema.job import MembersView


def listed(scenario: Scenario, limit: int = 100) -> list[str]:
    rows = _current_rows(scenario.state, limit, fold=True, arrays=True)
    return [
        summary(row, scenario.state).label if len(row) > 1 else scenario.job(row[0]).label
        for row in rows
    ]


def test_pending_members_are_one_row_with_the_limit_of_their_array() -> None:
    scenario = Scenario(gpus=2)
    array = scenario.submit(count=10, array=True, array_limit=2)
    other = scenario.submit()
    scenario.plan()
    assert listed(scenario) == [f"{array}_0", f"{array}_1", f"{array}_[2-9%2]", str(other)]


def test_members_that_differ_have_rows_of_their_own() -> None:
    scenario = Scenario(gpus=1)
    array = scenario.submit(count=6, array=True)
    scenario.tell(e.JobHeld(at=scenario.now, job=array + 3))
    assert listed(scenario) == [f"{array}_[0-2,4-5]", f"{array}_3"]
    ids = [id for row in _current_rows(scenario.state, 100, fold=True, arrays=True) for id in row]
    single = _current_rows(scenario.state, 100, fold=False, arrays=False)
    assert sorted([id] for id in ids) == sorted(single)


def test_a_group_has_the_position_of_its_first_member() -> None:
    scenario = Scenario(gpus=1)
    before, array = scenario.submit(), scenario.submit(count=4, array=True)
    urgent = scenario.submit(count=2, array=True, priority=5)
    after = scenario.submit()
    heads = [ids[0] for ids in first_rows(scenario.state.pending, scenario.state.jobs, 10)]
    assert heads == [urgent, before, array, after]
    assert [ids[0] for ids in first_rows(scenario.state.pending, scenario.state.jobs, 2)] == heads[
        :2
    ]
    first = first_jobs(scenario.state.pending, scenario.state.jobs, 1)[0]
    assert first.id == heads[0]


def test_failed_members_are_one_row_with_the_newest_first_and_their_causes() -> None:
    scenario = Scenario(gpus=3)
    array = scenario.submit(count=3, array=True)
    for member in range(3):
        scenario.run(array + member)
        scenario.exited(array + member, code=3 if member else 4)
    (row,) = _current_rows(scenario.state, 100, fold=True, arrays=True)
    assert row[0] == array + 2
    assert summary(row, scenario.state) == MembersView(
        label=f"{array}_[0-2]", count=3, causes={"exit 3": 2, "exit 4": 1}
    )


def test_jobs_of_no_array_are_never_grouped() -> None:
    scenario = Scenario(gpus=1)
    scenario.submit(count=3)
    assert [len(row) for row in rows(scenario.state.jobs.values())] == [1, 1, 1]


def test_long_lists_of_members_are_cut() -> None:
    assert spans([2, 3, 4, 7, 9, 10]) == "2-4,7,9-10"
    assert spans(list(range(0, 40, 2))) == "0,2,4,6,8,10,..."
