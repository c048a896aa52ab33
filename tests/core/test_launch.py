"""Launch of an attempt: argv, environment, log files."""

from typing import Any

import pytest
from msgspec.structs import replace

from core.scenario import Afar, Scenario, gpus
from stoker.core.launch.launch import Launch, launch
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.spec import Training


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


def test_the_parts_of_a_gang_learn_their_rank_but_not_yet_their_rendezvous() -> None:
    scenario = Afar(gpus=1)
    scenario.add("ant", gpus=1)
    training = Training(distributed=True)
    job = scenario.submit(replace(gpus(1), node_count=2), training=training)
    scenario.plan()
    found, placement = scenario.job(job), scenario.placed(job)
    for rank, part in enumerate(placement.parts):
        node = scenario.state.cluster.nodes[part.node]
        spec = scenario.state.spec(found)
        gang = launch(found, spec, placement, node, 0.0, "/logs", "tok", "/scripts", rank)
        nodes = ",".join(part.node for part in placement.parts)
        extra = gang.extra
        assert extra["STOKER_NODES"] == extra["NODELIST"] == nodes
        assert extra["STOKER_NODE_RANK"] == extra["NODE_RANK"] == str(rank)
        assert extra["NNODES"] == extra["NUM_NODES"] == extra["WORLD_SIZE"] == "2"
        assert extra["GPUS_PER_NODE"] == extra["STOKER_GPU_COUNT"] == extra["NUM_GPUS"] == "1"
        assert extra.keys().isdisjoint({"MASTER_ADDR", "MASTER_PORT", "TF_CONFIG"})
        assert gang.placement == placement


def test_an_attempt_runs_as_the_unix_user_of_its_job() -> None:
    assert launched(uid=1007).spec.uid == 1007
    assert launched().spec.uid is None
