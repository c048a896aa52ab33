"""joblib's Parallel with our backend."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import pytest
from joblib import Parallel, delayed, parallel_config

from e2e.daemon_fixture import DaemonFixture
from stoker.api import Client, Impossible, Node, StokerError, UnknownOption
from stoker.plugins.joblib import register
from stoker.plugins.slots import max_running_jobs

# Functions are of the standard library, or local: a job need not import this file.
getenv = delayed(os.getenv)


@pytest.fixture(scope="module")
def client(box: DaemonFixture) -> Client:
    return Client()


@pytest.fixture(autouse=True)
def backend(client: Client) -> Iterator[None]:
    """The backend is known, and a test leaves nothing that runs."""
    register()
    yield
    left = client.jobs(state="PENDING,RUNNING")
    if left:
        client.cancel(left)
        client.wait(left, timeout=30)


def test_calls_run_as_jobs_and_their_results_keep_their_order(client: Client) -> None:
    with parallel_config(backend="stoker", gpus=1):
        found = Parallel(n_jobs=2)(delayed(pow)(number, 2) for number in range(5))

    assert found == [0, 1, 4, 9, 16]
    jobs = client.wait("pow")
    assert [job.state for job in jobs] == ["COMPLETED"] * 5
    assert [len(job.gpus) for job in jobs] == [1] * 5
    # Parallel hands out more than it has workers, so that none has to wait: not to us.
    ends = [(job.started_at, 1) for job in jobs] + [(job.ended_at, -1) for job in jobs]
    at_once, most = 0, 0
    for _, step in sorted(ends):
        at_once += step
        most = max(most, at_once)
    assert most <= 2


def test_what_a_call_raises_comes_back_with_its_traceback_and_ends_the_others(
    client: Client, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"

    def second_fails(number: int) -> None:
        while not flag.exists() or number != 1:
            if number == 0:
                flag.touch()
            time.sleep(0.01)
        raise LookupError("nothing there")

    call = delayed(second_fails)
    with pytest.raises(LookupError, match="nothing there") as caught:
        Parallel(n_jobs=2, backend="stoker")(call(number) for number in range(4))

    assert "in second_fails" in str(caught.value.__cause__)
    jobs = client.wait("second_fails", timeout=30)
    assert sorted(job.state for job in jobs) == ["CANCELLED", "FAILED"]


def test_a_batch_is_one_job_and_results_may_come_as_they_are_ready(client: Client) -> None:
    parallel = Parallel(
        n_jobs=2, backend="stoker", name="batches", batch_size=3, pre_dispatch="all",
        return_as="generator_unordered",
    )  # fmt: skip
    found = list(parallel(delayed(abs)(-number) for number in range(6)))

    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    assert len(client.wait("batches")) == 2


def test_inside_a_job_parallel_uses_threads_and_submits_nothing(client: Client) -> None:
    def outer(number: int) -> tuple[list[int], set[str]]:
        import os

        import joblib

        call = joblib.delayed(lambda each: (each + number, os.environ["STOKER_JOB_ID"]))
        named = joblib.Parallel(n_jobs=2, backend="stoker")(call(each) for each in (4, 5))
        plain = joblib.Parallel(n_jobs=2)(call(each) for each in (0, 1))
        with joblib.parallel_config(backend="stoker"):
            asked = joblib.Parallel(n_jobs=2)(call(each) for each in (2, 3))
        found = plain + asked + named
        return [value for value, _ in found], {job for _, job in found}

    with parallel_config(backend="stoker", name="outer"):
        found = Parallel(n_jobs=2)(delayed(outer)(number) for number in (10, 20))

    assert [values for values, _ in found] == [
        [10, 11, 12, 13, 14, 15],
        [20, 21, 22, 23, 24, 25],
    ]
    assert [len(jobs) for _, jobs in found] == [1, 1]
    assert len(client.wait("outer")) == 2


def test_minus_one_is_as_many_as_there_is_room_for(box: DaemonFixture) -> None:
    def workers(n_jobs: int, **parameters: Any) -> int:
        with parallel_config(backend="stoker", **parameters):
            return int(joblib.effective_n_jobs(n_jobs))

    assert workers(-1) == 8
    assert workers(-3) == 6
    assert workers(-1, cpus_per_task=4) == 2
    assert workers(-1, gpus=1) == 4
    assert workers(-1, gpus=1, folder="calls") == 4
    # One at a time still is a job: joblib does the calls itself only where one was asked for.
    assert workers(-1, gpus=4) == 2
    assert workers(5, gpus=4) == 5
    assert workers(1) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 8 + 2),
        ({"gpus": "1"}, 4),
        ({"gpus": "0.5"}, 8),
        ({"gpus": "a100:3"}, 1),
        ({"gpus": "1..4"}, 4),
        ({"gres": "gpu:2"}, 2),
        ({"gpus": "1", "cpus": "4"}, 2),
        ({"gpus": "whatever"}, 4),
    ],
)
def test_room_is_counted_machine_by_machine(options: dict[str, object], expected: int) -> None:
    def node(name: str, state: str, **has: int) -> Node:
        resources = {key: {"total": str(total), "free": "0"} for key, total in has.items()}
        return Node.of({"name": name, "state": state, "resources": resources})

    machines = [node("a", "up", cpu=8, gpu=4), node("b", "up", cpu=2), node("c", "down", cpu=64)]
    assert max_running_jobs(machines, options) == expected


def test_threads_of_libraries_are_limited_on_request(box: DaemonFixture) -> None:
    with parallel_config(backend="stoker", inner_max_num_threads=3, env={"GREETING": "hello"}):
        found = Parallel(n_jobs=2)(getenv(name) for name in ("MKL_NUM_THREADS", "GREETING"))
    assert found == ["3", "hello"]


def test_time_that_is_up_cancels_what_runs(client: Client) -> None:
    with pytest.raises(multiprocessing.TimeoutError):
        Parallel(n_jobs=2, backend="stoker", timeout=0.2)(delayed(time.sleep)(60) for _ in "ab")
    jobs = client.wait("sleep", timeout=30)
    assert {job.state for job in jobs} == {"CANCELLED"}


def test_a_cancelled_job_is_an_error(client: Client) -> None:
    def cancels_itself() -> None:
        import os
        import time

        import stoker

        stoker.Client().cancel(os.environ["STOKER_JOB_ID"])
        time.sleep(60)

    with pytest.raises(StokerError, match=r"Job \d+ was cancelled"):
        Parallel(n_jobs=2, backend="stoker")([delayed(cancels_itself)()])


def test_an_impossible_request_is_an_error_without_waiting(box: DaemonFixture) -> None:
    with pytest.raises(UnknownOption, match=r"There is no parameter 'gpuss'\. Did you mean gpus"):
        parallel_config(backend="stoker", gpuss=1)
    with pytest.raises(UnknownOption, match="There is no parameter 'gpuss'"):
        Parallel(n_jobs=2, backend="stoker", gpuss=1)([getenv("HOME")])
    with pytest.raises(Impossible, match="Cannot be satisfied: 99 GPUs requested"):
        Parallel(n_jobs=2, backend="stoker", gpus=99)([getenv("HOME")])
