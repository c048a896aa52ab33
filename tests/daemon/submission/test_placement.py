"""From a submission to its devices: what starts at once, in which order, and what stays pending."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from daemon.handler_fixture import HandlerFixture, assert_rejection
from stoker.core import events as e
from stoker.core.model.resources import DeviceFacts, NodeFacts
from stoker.daemon.handlers import job_actions, queries
from stoker.daemon.submission.submit import submit_jobs
from stoker.engine import CommandRejected
from stoker.schema import requests as r


@pytest.fixture
def one(tmp_path: Path) -> HandlerFixture:
    """A node with a single GPU."""
    return HandlerFixture(tmp_path, gpus=1)


@pytest.fixture
def four(tmp_path: Path) -> HandlerFixture:
    """A node with four GPUs."""
    return HandlerFixture(tmp_path, gpus=4)


def started(handlers: HandlerFixture, **options: Any) -> int:
    """Submit a job that starts at once."""
    job = handlers.submit(**options)
    assert handlers.status(job) == "CONFIGURING", handlers.job(job)
    handlers.run(job)
    return job


def pending(handlers: HandlerFixture, **options: Any) -> int:
    """Submit a job that cannot start now."""
    job = handlers.submit(**options)
    assert handlers.status(job) == "PENDING", handlers.job(job)
    return job


def devices(handlers: HandlerFixture, job: int) -> list[str]:
    (view,) = handlers.ask(partial(queries.list_views, handlers.context, [job], 0))
    names: list[str] = view["devices"]["gpu"]
    return names


def free(handlers: HandlerFixture) -> list[str]:
    reply = handlers.ask(partial(queries.list_gpus, lambda _: {}, list))
    return [gpu["free"] for gpu in reply["gpus"]]


def reason(handlers: HandlerFixture, job: int) -> str:
    text: str = handlers.ask(partial(queries.explain, handlers.context, str(job)))["reason"]
    return text


def starts_in_order(handlers: HandlerFixture, running: int) -> list[int]:
    """End the running job, then each that starts after it; return those."""
    order = []
    while True:
        handlers.exit(running)
        if not handlers.state.running:
            return order
        (running,) = handlers.state.running
        order.append(running)


# ------------------------------------------------------------------------------- amounts


def test_two_halves_share_a_gpu_and_a_third_waits(one: HandlerFixture) -> None:
    first, second = started(one, gpus="0.5"), started(one, gpus="0.5")
    assert devices(one, first) == devices(one, second) == ["0"]
    third = pending(one, gpus="0.5")
    assert (reason(one, third), free(one)) == ("Resources", ["0"])
    one.exit(first)
    assert one.status(third) == "CONFIGURING"


def test_ten_tenths_fill_a_gpu_and_the_eleventh_waits(one: HandlerFixture) -> None:
    body = r.Submit(
        what=r.What(lines=["true"] * 11), directory=str(one.directory), options={"gpus": "0.1"}
    )
    one.ask(partial(submit_jobs, one.context, body))
    assert [one.status(id) for id in range(1, 12)] == ["CONFIGURING"] * 10 + ["PENDING"]


def test_two_and_a_half_gpus_are_two_whole_ones_and_half_of_another(four: HandlerFixture) -> None:
    assert len(devices(four, started(four, gpus="2.5"))) == 3
    assert sorted(free(four)) == ["0", "0", "0.5", "1"]
    assert len(devices(four, started(four, gpus="1.5"))) == 2
    pending(four, gpus="0.1")


def test_jobs_of_one_cycle_never_share_a_gpu_by_accident(four: HandlerFixture) -> None:
    body = r.Submit(
        what=r.What(lines=["true"] * 6), directory=str(four.directory), options={"gpus": "1"}
    )
    four.ask(partial(submit_jobs, four.context, body))
    used = [devices(four, id) for id in four.state.running]
    assert sorted(used) == [["0"], ["1"], ["2"], ["3"]]


def test_named_resources_are_counted(handlers: HandlerFixture) -> None:
    licences = tuple(DeviceFacts(name=str(n)) for n in range(2))
    facts = handlers.state.record.nodes["box"]
    types = {**facts.types, "licence": licences}
    handlers.apply(e.NodeJoined(at=handlers.now, facts=NodeFacts("box", types)))
    for _ in range(2):
        started(handlers, resources="licence=1")
    third = pending(handlers, resources="licence=1")
    assert "licence" in str(handlers.ask(partial(queries.explain, handlers.context, str(third))))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"gpus": "5"}, "GPU"), ({"gpus": "h100:1"}, "h100"), ({"gpus_min_vram": "80G"}, "GPU"),
        ({"cpus": "9"}, "cores"), ({"mem": "90T"}, "RAM"), ({"resources": "licence=1"}, "licence"),
        ({"gpus": "1", "use_gpus": "7"}, "among those named"), ({"nodes": 2}, "node"),
    ],
)  # fmt: skip
def test_a_request_that_no_node_can_satisfy_is_rejected_with_its_reason(
    four: HandlerFixture, options: dict[str, Any], word: str
) -> None:
    with pytest.raises(CommandRejected) as error:
        four.submit(**options)
    assert_rejection(error.value, "impossible", word)
    assert four.state.jobs == {}


def test_gpus_can_be_chosen_preferred_and_avoided(four: HandlerFixture) -> None:
    assert devices(four, started(four, gpus="1", use_gpus="2")) == ["2"]
    assert devices(four, started(four, gpus="1", prefer_gpus="3")) == ["3"]
    assert devices(four, started(four, gpus="1", avoid_gpus="0")) == ["1"]
    pending(four, gpus="1", avoid_gpus="0")
    assert devices(four, started(four, gpus="1", prefer_gpus="3")) == ["0"]


def test_an_exclusive_job_runs_alone(four: HandlerFixture) -> None:
    first = started(four)
    alone = pending(four, exclusive=True)
    four.exit(first)
    assert four.status(alone) == "CONFIGURING"
    pending(four)


def test_memory_is_reserved_and_given_back(handlers: HandlerFixture) -> None:
    first = started(handlers, mem="20000M")
    second = pending(handlers, mem="20000M")
    handlers.exit(first)
    assert handlers.status(second) == "CONFIGURING"


# --------------------------------------------------------------------------------- order


def test_larger_priority_goes_first_and_equals_go_in_the_order_of_submission(
    one: HandlerFixture,
) -> None:
    running = started(one, gpus="1")
    a, b, c, d, e = (one.submit(gpus="1", priority=number) for number in (0, 5, 0, 5, -1))
    assert starts_in_order(one, running) == [b, d, a, c, e]


def test_a_large_job_at_the_head_is_not_starved_by_small_ones(four: HandlerFixture) -> None:
    running = started(four, gpus="1")
    large = pending(four, gpus="4")
    for _ in range(3):
        pending(four, gpus="1")
    four.exit(running)
    assert four.status(large) == "CONFIGURING"


def test_small_jobs_with_a_time_limit_fill_the_gap_before_a_reserved_start(
    four: HandlerFixture,
) -> None:
    started(four, gpus="1", time="10m")
    pending(four, gpus="4", time="10m")
    started(four, gpus="1", time="5m")
    long = pending(four, gpus="1", time="30m")
    assert reason(four, long) in ("Priority", "Resources")


def test_an_array_runs_no_more_members_at_once_than_it_may(handlers: HandlerFixture) -> None:
    array = handlers.submit(array="0-5%2")
    assert sorted(handlers.state.running) == [array, array + 1]
    handlers.exit(array)
    assert sorted(handlers.state.running) == [array + 1, array + 2]
    handlers.ask(partial(job_actions.cancel, handlers.context, r.Cancel([str(array)])))
    assert {handlers.status(array + n) for n in (3, 4, 5)} == {"CANCELLED"}


def test_dependencies_depend_on_how_the_other_job_ended(handlers: HandlerFixture) -> None:
    failing = handlers.submit(hold=True)
    ok, always, failed = (
        pending(handlers, dependency=f"{kind}:{failing}")
        for kind in ("afterok", "afterany", "afternotok")
    )
    assert {reason(handlers, job) for job in (ok, always, failed)} == {"Dependency"}
    handlers.ask(partial(job_actions.release, handlers.context, r.Release([str(failing)])))
    handlers.exit(failing, 1)
    assert [handlers.status(job) for job in (always, failed)] == ["CONFIGURING", "CONFIGURING"]
    assert reason(handlers, ok) == "DependencyNeverSatisfied"
    handlers.ask(partial(job_actions.retry, handlers.context, r.Retry(failed=True)))
    handlers.exit(failing)
    assert handlers.status(ok) == "CONFIGURING", "a retry that succeeds revives it"


def test_singletons_of_a_name_run_one_after_the_other(handlers: HandlerFixture) -> None:
    first = started(handlers, name="only", dependency="singleton")
    second = pending(handlers, name="only", dependency="singleton")
    started(handlers, name="other", dependency="singleton")
    handlers.exit(first)
    assert handlers.status(second) == "CONFIGURING"


def test_a_job_does_not_begin_before_its_time(handlers: HandlerFixture) -> None:
    job = pending(handlers, delay="60s")
    assert reason(handlers, job) == "BeginTime"
    handlers.now += 59
    handlers.apply()
    assert handlers.status(job) == "PENDING"
    handlers.now += 1
    handlers.apply()
    assert handlers.status(job) == "CONFIGURING"


def test_a_held_job_waits_until_it_is_released(handlers: HandlerFixture) -> None:
    job = pending(handlers, hold=True)
    assert reason(handlers, job) == "JobHeldUser"
    handlers.ask(partial(job_actions.release, handlers.context, r.Release([str(job)])))
    assert handlers.status(job) == "CONFIGURING"


def test_an_explanation_names_the_node_the_constraint_and_the_job_in_the_way(
    one: HandlerFixture,
) -> None:
    running = started(one, gpus="1")
    view = one.ask(partial(queries.explain, one.context, str(pending(one, gpus="1"))))
    (constraint,) = [c for c in view["nodes"][0]["constraints"] if c["name"] == "gpus"]
    assert (view["reason"], constraint["needs"], constraint["free"]) == ("Resources", "1", "0")
    assert f"job {running}" in str(constraint)
