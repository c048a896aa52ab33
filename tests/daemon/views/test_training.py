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


def view(story: Afar, id: int, logs: str, **live: Any) -> JobView[str]:
    job, now = story.job(id), Instant(story.now, story.boot)
    return job_view(job, story.state.spec(job), story.state, now, logs, live=lambda _: live)


def test_other_jobs_have_none(logs: str) -> None:
    story = Afar(gpus=1)
    assert view(story, story.submit(), logs).training is None


def test_any_job_that_uses_the_library_has_some(logs: str) -> None:
    story = Afar(gpus=1)
    job = story.submit()
    listens(story, job)
    counted(story, job, 2)
    found = view(story, job, logs).training
    assert (found.epochs_done, found.epochs, found.listening) == (2, None, True)


def test_how_far_it_is(logs: str) -> None:
    story = Afar(gpus=1)
    job = training(story, sharing(9000), training=Training(epochs=10, expected=600))
    listens(story, job)
    story.about(e.MemoryMeasured, job, memory=2000)
    counted(story, job, 3, seconds=100.0, step=0.5)
    story.now += 30
    found = view(story, job, logs, epoch=3, step=41, metrics={"loss": 1.5}, memory=1900)
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
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    high = training(story, priority=5)
    story.plan()
    stopping = view(story, low, logs).training.stopping
    assert stopping.by == str(high)
    assert stopping.why
    assert view(story, high, logs).training.stopping is None


def test_one_that_its_owner_has_cancelled_stops_for_nobody(logs: str) -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    training(story, priority=5)
    story.plan()
    assert view(story, low, logs).training.stopping.ignored is False
    story.tell(e.JobCancelled(at=story.now, job=low))
    found = view(story, low, logs)
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
    story = Afar(gpus=4)
    found = view(story, training(story, ask), logs)
    assert found.training.elastic == elastic


def test_what_is_over_takes_no_more_time(logs: str) -> None:
    story = Afar(gpus=1)
    job = training(story)
    listens(story, job)
    counted(story, job, 10, seconds=5.0)
    story.now += 60
    story.exited(job)
    found = view(story, job, logs).training
    assert (found.remaining_seconds, found.ran_seconds) == (None, 60.0)
    now = Instant(story.now, story.boot)
    spec = story.state.spec(story.job(job))
    assert job_view(story.job(job), spec, None, now, logs).training.epochs_done == 10


def test_what_is_over_keeps_its_metrics_and_what_it_had(logs: str) -> None:
    story = Afar(gpus=4)
    ask = gpus(1, beside=True, memory=9000, most=4000)
    job = training(story, ask)
    listens(story, job)
    story.about(e.MemoryMeasured, job, memory=2000)
    counted(story, job, 10, seconds=5.0, metrics={"loss": 0.5})
    assert view(story, job, logs).training.metrics == {"loss": 0.5}
    live = view(story, job, logs, metrics={"loss": 0.25})
    assert live.training.metrics == {"loss": 0.25}
    reserved = live.training.memory_reserved
    assert reserved == 2200
    story.exited(job)
    found = view(story, job, logs).training
    assert found.metrics == {"loss": 0.5}
    assert (found.memory_reserved, found.memory_peak) == (reserved, 2000)
    assert found.gpus_wanted is None


def test_a_gpu_that_is_shared_by_memory(logs: str) -> None:
    story = Afar(gpus=2)
    jobs = [training(story, sharing(15_000)), training(story, sharing(12_000))]
    third = training(story, sharing(8000))
    story.run(*jobs, third)
    node = story.state.cluster.nodes["box"]
    shown = {view.id: view for view in (
        gpu_view(node, device, story.state, story.boot, {}) for device in node.types["gpu"]
    )}  # fmt: skip
    crowded = shown[story.on(third)[0]]
    assert (crowded.state, crowded.free) == ("shared", "0")
    assert [job.share for job in crowded.gpu_jobs] == ["1", "1"]
    assert crowded.gpu_jobs[1].memory == 8000
    assert resources_view(node)["gpu"].free == "0"
    assert resources_view(node)["gpu"].held == "2"
