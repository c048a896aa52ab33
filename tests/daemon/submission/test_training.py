"""Checks of training submissions: GPUs or none, directories, epochs, limits of the queue."""

import os
from pathlib import Path
from typing import Any

import pytest

from core.scenario import Scenario
from stoker.core.events import NodeAdded, QueueDefined
from stoker.core.model.job import Job, Progress
from stoker.core.model.resources import GpuRequest, ResourceRequest
from stoker.core.model.spec import Container, Mount, Spec, Training
from stoker.core.model.units import BadValue
from stoker.core.options.submit import ParseContext, parse_options
from stoker.daemon.submission.training import (
    check_directories,
    check_epochs,
    keep_user_settings,
    limit_to_queue,
    without_gpus,
)

CONTEXT = ParseContext(1000.0, lambda _: [], lambda _: [])


def spec(request: ResourceRequest, **more: Any) -> Spec:
    fields = {"kind": "line", "user": "u", "directory": "/", "shell": "sh", "environment": ""}
    return Spec(**fields, request=request, name="", **more)


def test_a_job_that_may_run_without_a_gpu_takes_one_if_there_is_one() -> None:
    assert without_gpus(Scenario(gpus=1).state, spec(ResourceRequest(GpuRequest(1000)))) is None


def test_without_a_gpu_it_gets_a_core() -> None:
    state = Scenario(gpus=0).state
    assert without_gpus(state, spec(ResourceRequest(GpuRequest(1000)))) == ResourceRequest(
        cpus=1000
    )
    assert without_gpus(
        state, spec(ResourceRequest(GpuRequest(1000), cpus=4000))
    ) == ResourceRequest(cpus=4000)
    assert without_gpus(state, spec(ResourceRequest(cpus=4000))) is None


def test_a_request_that_fails_without_gpus_too_is_left_as_it_is() -> None:
    state = Scenario(gpus=0).state
    assert without_gpus(state, spec(ResourceRequest(GpuRequest(1000), memory=10**6))) is None


def test_a_node_that_was_not_reached_yet_may_have_a_gpu() -> None:
    scenario = Scenario(gpus=0)
    scenario.tell(NodeAdded(at=1000.0, name="far", address="ssh://far"))
    assert without_gpus(scenario.state, spec(ResourceRequest(GpuRequest(1000)))) is None


@pytest.mark.parametrize(("allowed", "expected"), [(3500, 3000), (9000, 8000), (2000, None)])
def test_a_queue_bounds_an_elastic_job(allowed: int, expected: int | None) -> None:
    scenario = Scenario(gpus=8)
    scenario.tell(QueueDefined(at=1000.0, name="q", max_job_gpus=allowed))
    in_queue = spec(ResourceRequest(GpuRequest(2000, max_amount=8000)), queue="q")
    assert limit_to_queue(scenario.state, in_queue, []).request == ResourceRequest(
        GpuRequest(2000, max_amount=expected)
    )
    free = spec(ResourceRequest(GpuRequest(2000, max_amount=8000)))
    assert limit_to_queue(scenario.state, free, []) is free


def test_variables_set_by_the_user_win_for_distributed_jobs_only() -> None:
    environment = b"A=1\0OMP_NUM_THREADS=3\0PL_TORCH_DISTRIBUTED_BACKEND=gloo"
    wanted = parse_options({"distributed": True, "env": ["A=1"]}, CONTEXT)
    keep_user_settings(wanted, environment)
    assert wanted.fields["exported_variables"] == (
        "A",
        "PL_TORCH_DISTRIBUTED_BACKEND",
        "OMP_NUM_THREADS",
    )
    plain = parse_options({"epochs": "3"}, CONTEXT)
    keep_user_settings(plain, environment)
    assert plain.fields["exported_variables"] is None


def test_directories_must_exist(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    check_directories({"training": Training(snapshots=str(tmp_path))})
    for bad in (tmp_path / "missing", file):
        with pytest.raises(BadValue, match="--snapshots-dir"):
            check_directories({"training": Training(snapshots=str(bad))})
    missing = Mount(str(tmp_path / "missing"), "/x")
    with pytest.raises(BadValue, match="--mount"):
        check_directories({"container": Container("i", (missing,))})
    optional = Mount(missing.source, "/x", optional=True)
    check_directories({"container": Container("i", (optional, Mount(str(file), "/y")))})


def test_a_directory_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode & os.W_OK == 0)  # root may write all
    with pytest.raises(BadValue, match="cannot be written to"):
        check_directories({"training": Training(snapshots=str(tmp_path))})


def test_fewer_epochs_than_have_ended_are_rejected() -> None:
    job = Job(7, "s", "t", "u", 1.0, progress=Progress(epochs=5))
    with pytest.raises(BadValue, match="--epochs 4 is less than the 5 that have ended"):
        check_epochs(job, {"training": Training(epochs=4)})
    allowed: list[dict[str, Any]] = [
        {}, {"training": Training()}, {"training": Training(epochs=5)}
    ]  # fmt: skip
    for fields in allowed:
        check_epochs(job, fields)
    check_epochs(Job(7, "s", "t", "u", 1.0), {"training": Training(epochs=1)})


def test_a_new_checkpoint_directory_after_the_first_epoch_is_rejected() -> None:
    job = Job(7, "s", "t", "u", 1.0, progress=Progress(epochs=5))
    with pytest.raises(BadValue, match="the checkpoints are in the old directory"):
        check_epochs(job, {"training": Training(snapshots="/new")}, Training(snapshots="/old"))
    check_epochs(job, {"training": Training(snapshots="/old")}, Training(snapshots="/old"))
    check_epochs(Job(7, "s", "t", "u", 1.0), {"training": Training(snapshots="/new")})
