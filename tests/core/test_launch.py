"""Launch of an attempt: argv, environment, log files."""

from typing import Any

import pytest

from core.scenario import Scenario, gpus
from stoker.core.launch.launch import Launch, launch
from stoker.core.model.resources import ResourceRequest


def launched(request: ResourceRequest | None = None, **fields: Any) -> Launch:
    scenario = Scenario(gpus=2)
    job = scenario.submit(request if request is not None else gpus(2), **fields)
    scenario.plan()
    found = scenario.job(job)
    node = scenario.state.cluster.nodes["box"]
    spec = scenario.state.spec(found)
    return launch(found, spec, scenario.placed(job), node, 50.5, "/logs", "tok", "/scripts")


def test_a_line_runs_in_the_submitters_shell() -> None:
    assert launched().argv == ("sh", "-c", "true")


def test_a_job_learns_its_gpus() -> None:
    extra = launched().extra
    assert extra["CUDA_VISIBLE_DEVICES"] == extra["STOKER_GPUS"] == "0,1"
    assert extra["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert extra["STOKER_GPU_COUNT"] == "2"


def test_a_job_without_gpus_sees_none() -> None:
    assert launched(ResourceRequest(cpus=1000)).extra["CUDA_VISIBLE_DEVICES"] == ""


def test_slurms_variables_only_on_request() -> None:
    assert not any(name.startswith("SLURM_") for name in launched().extra)
    extra = launched(slurm=True, limit=60).extra
    assert extra["SLURM_JOB_ID"] == "1"
    assert extra["SLURM_JOB_END_TIME"] == "110"


def test_the_deadline_is_a_unix_time() -> None:
    assert launched(limit=60).extra["STOKER_DEADLINE"] == "110"


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("%x-%j.out", "/job-1.out"),
        ("/abs/%A_%a.%N.%u.%t.%%", "/abs/1_0.box.ada.0.%"),
        ("%J_%n", "/1_0"),
        ("%4j-%3a-%99t-%5x", "/0001-000-0000000000-job"),
        ("odd%", "/odd%"),
        ("odd%12", "/odd%12"),
        ("%7q", "/%7q"),
        ("%q", "/%q"),
    ],
)
def test_slurms_patterns_in_log_names(pattern: str, path: str) -> None:
    assert launched(output=pattern, directory="").out == path


def test_a_later_attempt_has_a_log_of_its_own() -> None:
    assert launched().out == "/logs/1.out"
