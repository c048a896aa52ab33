"""What the API says of training jobs, and of GPUs that are shared by memory."""

from pathlib import Path
from typing import Any

import pytest

from core.scenario import Afar, gpus
from core.test_training import counted, listens, sharing, training
from stoker.core import events as e
from stoker.core.job import Training
from stoker.core.request import Request
from stoker.core.training_options import ALL_OF_A_MACHINE
from stoker.daemon.views.gpu import gpu_view, resources_view
from stoker.daemon.views.job import job_view
from stoker.engine import Instant
from stoker.schema.job import JobView


@pytest.fixture
def logs(tmp_path: Path) -> str:
    (tmp_path / "install").write_text("0123abcd4567\n")
    return str(tmp_path / "logs")


def view(scenario: Afar, id: int, logs: str, **live: Any) -> JobView[str]:
    job, now = scenario.job(id), Instant(scenario.now, scenario.boot)
    return job_view(job, scenario.state.spec(job), scenario.state, now, logs, live=lambda _: live)


def test_other_jobs_have_none(logs: str) -> None:
    scenario = Afar(gpus=1)
    assert view(scenario, scenario.submit(), logs).training is None


def test_any_job_that_uses_the_library_has_some(logs: str) -> None:
    scenario = Afar(gpus=1)
    job = scenario.submit()
    listens(scenario, job)
    counted(scenario, job, 2)
    found = view(scenario, job, logs).training
    assert (found.epochs_done, found.epochs, found.listening) == (2, None, True)


def test_how_far_it_is(logs: str) -> None:
    scenario = Afar(gpus=1)
    job = training(scenario, sharing(9000), training=Training(epochs=10, expected=600))
    listens(scenario, job)
    scenario.about(e.MemoryMeasured, job, memory=2000)
    counted(scenario, job, 3, seconds=100.0, step=0.5)
    scenario.now += 30
    found = view(scenario, job, logs, epoch=3, step=41, metrics={"loss": 1.5}, memory=1900)
    training_ = found.training
    assert training_.uuid == f"0123abcd-{job}"
    assert training_.checkpoints == f"{Path(logs).parent}/checkpoints/0123abcd-{job}"
    assert training_.remaining_seconds == 670.0
    assert (training_.expected_seconds, training_.estimate_seconds) == (600, 1000.0)
    assert (training_.epoch, training_.step, training_.metrics) == (3, 41, {"loss": 1.5})
    assert (training_.memory_reserved, training_.memory_peak) == (2200, 2000)
    assert training_.memory_now == 1900
    assert training_.speedups == [[1, 100.0]]


def test_for_whom_it_stops(logs: str) -> None:
    scenario = Afar(gpus=1)
    low = training(scenario)
    listens(scenario, low)
    high = training(scenario, priority=5)
    scenario.plan()
    stopping = view(scenario, low, logs).training.stopping
    assert stopping.by == str(high)
    assert stopping.why
    assert view(scenario, high, logs).training.stopping is None


def test_one_that_its_owner_has_cancelled_stops_for_nobody(logs: str) -> None:
    scenario = Afar(gpus=1)
    low = training(scenario)
    listens(scenario, low)
    training(scenario, priority=5)
    scenario.plan()
    assert view(scenario, low, logs).training.stopping.ignored is False
    scenario.tell(e.JobCancelled(at=scenario.now, job=low))
    found = view(scenario, low, logs)
    assert (found.state, found.training.stopping) == ("COMPLETING", None)


@pytest.mark.parametrize(
    ("ask", "elastic"),
    [
        (gpus(1), None),
        (gpus(1, most=4000), [1, 4]),
        (gpus(2, most=ALL_OF_A_MACHINE), [2, None]),
    ],
)
def test_how_many_gpus_it_may_have(logs: str, ask: Request, elastic: list[int] | None) -> None:
    scenario = Afar(gpus=4)
    found = view(scenario, training(scenario, ask), logs)
    assert found.training.elastic == elastic


def test_what_is_over_takes_no_more_time(logs: str) -> None:
    scenario = Afar(gpus=1)
    job = training(scenario)
    listens(scenario, job)
    counted(scenario, job, 10, seconds=5.0)
    scenario.now += 60
    scenario.exited(job)
    found = view(scenario, job, logs).training
    assert (found.remaining_seconds, found.ran_seconds) == (None, 60.0)
    now = Instant(scenario.now, scenario.boot)
    spec = scenario.state.spec(scenario.job(job))
    assert job_view(scenario.job(job), spec, None, now, logs).training.epochs_done == 10


def test_what_is_over_keeps_its_metrics_and_what_it_had(logs: str) -> None:
    scenario = Afar(gpus=4)
    ask = gpus(1, beside=True, memory=9000, most=4000)
    job = training(scenario, ask)
    listens(scenario, job)
    scenario.about(e.MemoryMeasured, job, memory=2000)
    counted(scenario, job, 10, seconds=5.0, metrics={"loss": 0.5})
    assert view(scenario, job, logs).training.metrics == {"loss": 0.5}
    live = view(scenario, job, logs, metrics={"loss": 0.25})
    assert live.training.metrics == {"loss": 0.25}
    reserved = live.training.memory_reserved
    assert reserved == 2200
    scenario.exited(job)
    found = view(scenario, job, logs).training
    assert found.metrics == {"loss": 0.5}
    assert (found.memory_reserved, found.memory_peak) == (reserved, 2000)
    assert found.gpus_wanted is None


def test_a_gpu_that_is_shared_by_memory(logs: str) -> None:
    scenario = Afar(gpus=2)
    jobs = [training(scenario, sharing(15_000)), training(scenario, sharing(12_000))]
    third = training(scenario, sharing(8000))
    scenario.run(*jobs, third)
    node = scenario.state.cluster.nodes["box"]
    shown = {view.id: view for view in (
        gpu_view(node, device, scenario.state, scenario.boot, {}) for device in node.types["gpu"]
    )}  # fmt: skip
    crowded = shown[scenario.on(third)[0]]
    assert (crowded.state, crowded.free) == ("shared", "0")
    assert [job.share for job in crowded.gpu_jobs] == ["1", "1"]
    assert crowded.gpu_jobs[1].memory == 8000
    assert resources_view(node)["gpu"].free == "0"
    assert resources_view(node)["gpu"].held == "2"
