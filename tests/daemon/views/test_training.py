"""Views of training jobs, and of GPUs shared by memory."""

from pathlib import Path
from typing import Any

import pytest

from core.scenario import Afar, gpus
from core.test_training import counted, listens, sharing, training
from stoker import places
from stoker.core import events as e
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.spec import Training
from stoker.core.options.training import MAX_GPUS_PER_NODE
from stoker.daemon.views.gpu import gpu_view, resources_view
from stoker.daemon.views.job import job_view
from stoker.engine import Instant
from stoker.schema.job import JobView


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    install = Path(places.install_path())
    install.parent.mkdir(parents=True, exist_ok=True)
    install.write_text("0123abcd4567\n")
    return str(tmp_path / "logs")


def view(scenario: Afar, id: int, logs: str, **live: Any) -> JobView[str]:
    job, now = scenario.job(id), Instant(scenario.now, scenario.boot)
    return job_view(job, scenario.state.spec(job), scenario.state, now, logs, live=lambda _: live)


def test_other_jobs_have_no_training_view(logs: str) -> None:
    scenario = Afar(gpus=1)
    assert view(scenario, scenario.submit(), logs).training is None


def test_any_job_with_the_library_has_a_training_view(logs: str) -> None:
    scenario = Afar(gpus=1)
    job = scenario.submit()
    listens(scenario, job)
    counted(scenario, job, 2)
    shown = view(scenario, job, logs).training
    assert (shown.epochs_done, shown.epochs, shown.listening) == (2, None, True)


def test_the_view_has_the_progress(logs: str) -> None:
    scenario = Afar(gpus=1)
    job = training(scenario, sharing(9000), training=Training(epochs=10, expected=600))
    listens(scenario, job)
    scenario.about(e.MemoryMeasured, job, memory=2000)
    counted(scenario, job, 3, seconds=100.0, step=0.5)
    scenario.now += 30
    shown = view(scenario, job, logs, epoch=3, step=41, metrics={"loss": 1.5}, memory=1900)
    training_ = shown.training
    assert training_.uuid == f"0123abcd-{job}"
    assert training_.checkpoints == f"{Path(logs).parent}/checkpoints/0123abcd-{job}"
    assert training_.remaining_seconds == 670.0
    assert (training_.expected_seconds, training_.estimate_seconds) == (600, 1000.0)
    assert (training_.epoch, training_.step, training_.metrics) == (3, 41, {"loss": 1.5})
    assert (training_.memory_reserved, training_.memory_peak) == (2200, 2000)
    assert training_.memory_now == 1900
    assert training_.speedups == [[1, 100.0]]


def test_the_view_of_a_victim_names_its_preemptor(logs: str) -> None:
    scenario = Afar(gpus=1)
    low = training(scenario)
    listens(scenario, low)
    high = training(scenario, priority=5)
    scenario.plan()
    stopping = view(scenario, low, logs).training.stopping
    assert stopping.by == str(high)
    assert stopping.why
    assert view(scenario, high, logs).training.stopping is None


def test_the_view_of_a_cancelled_job_has_no_preemptor(logs: str) -> None:
    scenario = Afar(gpus=1)
    low = training(scenario)
    listens(scenario, low)
    training(scenario, priority=5)
    scenario.plan()
    assert view(scenario, low, logs).training.stopping.ignored is False
    scenario.tell(e.JobCancelled(at=scenario.now, job=low))
    shown = view(scenario, low, logs)
    assert (shown.state, shown.training.stopping) == ("COMPLETING", None)


@pytest.mark.parametrize(
    ("ask", "elastic"),
    [
        (gpus(1), None),
        (gpus(1, max_amount=4000), [1, 4]),
        (gpus(2, max_amount=MAX_GPUS_PER_NODE), [2, None]),
    ],
)
def test_the_view_has_the_allowed_numbers_of_gpus(
    logs: str, ask: ResourceRequest, elastic: list[int] | None
) -> None:
    scenario = Afar(gpus=4)
    shown = view(scenario, training(scenario, ask), logs)
    assert shown.training.elastic == elastic


def test_an_ended_job_has_no_remaining_time(logs: str) -> None:
    scenario = Afar(gpus=1)
    job = training(scenario)
    listens(scenario, job)
    counted(scenario, job, 10, seconds=5.0)
    scenario.now += 60
    scenario.exited(job)
    shown = view(scenario, job, logs).training
    assert (shown.remaining_seconds, shown.ran_seconds) == (None, 60.0)
    now = Instant(scenario.now, scenario.boot)
    spec = scenario.state.spec(scenario.job(job))
    assert job_view(scenario.job(job), spec, None, now, logs).training.epochs_done == 10


def test_an_ended_job_keeps_its_metrics_and_resources(logs: str) -> None:
    scenario = Afar(gpus=4)
    ask = gpus(1, shareable=True, memory=9000, max_amount=4000)
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
    shown = view(scenario, job, logs).training
    assert shown.metrics == {"loss": 0.5}
    assert (shown.memory_reserved, shown.memory_peak) == (reserved, 2000)
    assert shown.gpus_wanted is None


def test_the_view_of_a_gpu_shared_by_memory(logs: str) -> None:
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
