"""Long lists in pages: the same jobs in the same order as a short list, filtered and sorted."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.handler_fixture import HandlerFixture
from stoker.daemon.handlers import job_list, queries
from stoker.daemon.handlers.job_list import JobOrder, ListFilter
from stoker.daemon.handlers.queries import JobFilter
from stoker.daemon.views.job_columns import CODED_COLUMNS, Dictionary, job_columns, job_rows


@pytest.fixture
def mixed(handlers: HandlerFixture) -> HandlerFixture:
    """1 failed, 2 succeeded, 3 runs, 4 to 8 are pending, 9 is held in queue night."""
    for code in (1, 0):
        handlers.exit(handlers.submit(), code)
    handlers.submit(gpus="2", name="train", label=["lr"])
    handlers.submit(gpus="0.5", array="0-2")
    handlers.submit(gpus="2", priority="5", time="1h")
    handlers.submit(line="python eval.py", gpus="1")
    handlers.submit(queue="night", hold=True)
    handlers.run(3)
    return handlers


def order_of(handlers: HandlerFixture, finished: bool = False) -> JobOrder:
    order: JobOrder = handlers.ask(partial(job_list.list_order, finished, lambda: 7))
    return order


def ids_of(handlers: HandlerFixture, finished: bool = False) -> list[int]:
    order = order_of(handlers, finished)
    pending = order.pending_ids()
    others = handlers.ask(partial(job_list.select_not_eligible, order.not_eligible))
    return [*order.running, *pending, *others, *order.failed_ids()]


def test_the_order_is_that_of_a_short_list(mixed: HandlerFixture) -> None:
    chosen = JobFilter(states=[], user="", queue="", client="", limit=100, tail=0)
    listed = mixed.ask(partial(queries.list_ids, mixed.context, [], chosen, dict))
    assert ids_of(mixed) == listed["ids"] == [3, 7, 4, 5, 6, 8, 9, 1]
    assert order_of(mixed).counts == listed["counts"]


def test_finished_jobs_in_memory_are_listed_on_request(mixed: HandlerFixture) -> None:
    assert ids_of(mixed, finished=True) == [*ids_of(mixed), 2]
    assert order_of(mixed, finished=True).counts["COMPLETED"] == 1


@given(st.lists(st.lists(st.integers(0, 50)), max_size=20))
def test_runs_are_merged_like_one_sort(numbers: list[list[int]]) -> None:
    runs = [sorted((0, float(n), n, n) for n in run) for run in numbers]
    assert job_list.merge_runs(runs) == sorted(key for run in runs for key in run)


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({"states": frozenset({"PENDING"})}, [7, 4, 5, 6, 8, 9]),
        ({"users": frozenset({"bob"})}, []),
        ({"queues": frozenset({"night"})}, [9]),
        ({"labels": frozenset({"lr", "x"})}, [3]),
        ({"words": ("eval.py",)}, [8]),
        ({"words": ("%lr",)}, [3]),
        ({"words": ("4_1",)}, [5]),
        ({"words": ("train", "nothing")}, []),
        ({"sweep": 4}, []),
        ({"fold": True}, [3, 7, 4, 5, 6, 8, 9, 1]),
        ({"sort": "submitted"}, [1, 3, 4, 5, 6, 7, 8, 9]),
        ({"sort": "elapsed"}, [1, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_filters_and_sorts(mixed: HandlerFixture, fields: dict[str, Any], ids: list[int]) -> None:
    chosen = ListFilter(**fields)
    assert chosen.needs_pass
    select = partial(job_list.select_matching, mixed.context, chosen, ids_of(mixed))
    rows, counts = mixed.ask(select)
    if "sort" in fields:
        rows.sort()
    assert [id for _, id in rows] == ids
    assert sum(counts.values()) == len(ids)


def test_columns_and_rows_have_the_same_values(mixed: HandlerFixture) -> None:
    coders = {name: Dictionary() for name in CODED_COLUMNS}
    jobs = list(mixed.state.jobs.values())
    columns = job_columns(jobs, mixed.state.specs, coders, lambda job: job.id * 10)
    rows = job_rows(jobs, mixed.state.specs, lambda job: job.id * 10)
    for at, row in enumerate(rows):
        for name, values in columns.items():
            value = values[at]
            if name in coders and value is not None:
                value = coders[name].texts[value]
            assert value == getattr(row, name), name
    assert [row.label for row in rows] == [job.label for job in jobs]
    assert all(row.array is None or row.label == f"{row.array}_{row.id - row.array + row.first}"
               for row in rows)  # fmt: skip
    running = rows[2]
    assert (running.gpus, running.devices, running.node) == (2, ["0", "1"], "box")
    assert (rows[3].gpus, rows[3].label, rows[6].limit, rows[7].devices) == (0.5, "4_0", 3600, None)


def test_columns_of_hidden_jobs_have_no_private_texts(mixed: HandlerFixture) -> None:
    jobs, specs = list(mixed.state.jobs.values()), mixed.state.specs
    at = next(at for at, job in enumerate(jobs) if specs[job.spec].labels)
    jobs[at].cause = "cannot start: /home/ana/x"
    for hidden in (set(), {jobs[at].spec}):
        coders = {name: Dictionary() for name in CODED_COLUMNS}
        columns = job_columns(jobs, specs, coders, lambda job: None, hidden)
        is_shown = jobs[at].spec not in hidden
        for name in ("labels", "cause"):
            assert (columns[name][at] is not None) is is_shown
        assert (jobs[at].cause in coders["cause"].texts) is is_shown
        assert columns["name"][at] is not None


def test_a_job_that_left_memory_is_no_row(mixed: HandlerFixture) -> None:
    mixed.unload(2)
    coders = {name: Dictionary() for name in CODED_COLUMNS}
    page = mixed.ask(partial(job_list.list_columns, mixed.context, [1, 2, 99], coders))
    assert page["id"] == [1]
